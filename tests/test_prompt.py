"""A person at the prompt in the VM: every verb, Ctrl-C, mistakes, and the line itself."""

import re
import struct
import time
from pathlib import Path

import pexpect
import pytest

from tests.conftest import VM
from tests.seated import ANSWER_S, PROMPT, Session, carried_bps, session


def in_use(prompt: Session) -> list[str]:
    """The WAN paths of the ring that are in use."""
    return re.findall(r"^(\S+>\S+) .*in use", prompt.ask("paths"), re.MULTILINE)


def nearest_bps(prompt: Session, line: str, wanted_bps: float) -> float:
    """What iperf finds, the best of three: time is real here, and the machine is busy testing."""
    found: list[float] = []
    while len(found) < 3 and not any(0.95 < each / wanted_bps < 1.05 for each in found):
        found.append(carried_bps(prompt.ask(line)))
    return min(found, key=lambda each: abs(each - wanted_bps))


def rates(prompt: Session) -> None:
    """Rates: the link's own within a site, the slowest of the way across the WAN."""
    assert "g0>g1 has 50 Gbit/s, of which 1/1000, 50 Mbit/s, is carried" in prompt.ask("rate g0>g1 50 Gbit/s")
    assert nearest_bps(prompt, "iperf g0 g1 3", 50e6) == pytest.approx(50e6, rel=0.05)
    prompt.ask("rate s0b0>s1b0 12 Gbit/s")
    assert nearest_bps(prompt, "iperf g0 g4 3", 12e6) == pytest.approx(12e6, rel=0.05)
    assert re.search(r"s0b0>s1b0 +12 Gbit/s", prompt.ask("wan"))


def conditions(prompt: Session) -> None:
    """Conditions: the same seed gives the same ones again."""
    first = prompt.ask("resample 7") + prompt.ask("wan")
    assert "collective 0 of seed 7" in first
    assert "collective 1 of seed 7" in prompt.ask("resample")
    assert prompt.ask("resample 7") + prompt.ask("wan") == first


def choices(prompt: Session) -> None:
    """A ring, a mode and a collective, whose bytes go where the paths say."""
    assert "g0 > g2 > g1 > g3 > g7 > g5 > g6 > g4 > g0" in prompt.ask("ring 0 2 1 3 7 5 6 4")
    assert "joint: the ring re-embedded" in prompt.ask("mode joint")
    said = prompt.ask("allgather 64 MB 2")
    ratios = [(float(ratio), bool(late)) for ratio, late in re.findall(r"ratio ([0-9.]+)( \(this machine)?", said)]
    assert len(ratios) == 2 and all(ratio > 0.8 and (ratio < 2 or late) for ratio, late in ratios)
    used = in_use(prompt)
    busy = re.findall(r"^(\S+) .*us +([0-9.]+) MB +[0-9.]+ MB", prompt.ask("wan"), re.MULTILINE)
    assert sorted(used) == sorted(link for link, _ in busy)
    assert all(7 * 64 <= float(sent) < 7 * 64 * 1.05 for _, sent in busy)
    assert re.search(r"route 1 .*tagged 1", prompt.ask("flows s0l0"))
    assert "g0 > g1 > g2 > g3 > g4 > g5 > g6 > g7 > g0" in prompt.ask("ring rank")
    assert "base: the ring fixed, WAN paths fixed" in prompt.ask("mode base")


def a_capture(prompt: Session) -> None:
    """A capture, with what crosses in it, of the link's own packets."""
    prompt.ask("capture g0>g1 leaf.pcap")
    prompt.ask("allgather 8 MB")
    assert re.search(r"g0>g1: \d+ packets", prompt.ask("capture stop"))
    assert "is there already" in prompt.ask("capture g0>g1 leaf.pcap")


def ctrl_c_in_a_collective(prompt: Session) -> None:
    """Ctrl-C in a collective that would take half a minute."""
    prompt.ask("rate s0b0>s1b0 1 Gbit/s")
    prompt.child.sendline("allgather 640 MB")
    prompt.child.expect(pexpect.TIMEOUT, timeout=3)
    prompt.child.send("\x03")
    prompt.child.expect_exact("aborted", timeout=ANSWER_S)
    prompt.child.expect_exact(PROMPT, timeout=ANSWER_S)
    prompt.ask("rate s0b0>s1b0 50 Gbit/s")
    assert "ratio" in prompt.ask("allgather 64 MB")


def ctrl_c_at_a_nodes_command(prompt: Session) -> None:
    """Ctrl-C at a node's command is the command's; what is typed meanwhile is its input, and nobody else's."""
    prompt.child.sendline("g0 ping g4")
    prompt.child.expect("icmp_seq=2", timeout=ANSWER_S)
    prompt.child.send("left over")
    prompt.child.expect("icmp_seq=3", timeout=ANSWER_S)
    prompt.child.send("\x03")
    prompt.child.expect_exact("0% packet loss", timeout=ANSWER_S)
    prompt.child.expect_exact(PROMPT, timeout=ANSWER_S)
    assert prompt.ask("g0 echo $((6 * 7))").strip() == "42"


def a_switch_that_was_stopped(prompt: Session) -> None:
    """A switch that was stopped is shaped again when it is back."""
    prompt.ask("switch s0b1 stop")
    prompt.ask("switch s0b1 start")
    assert "ratio" in prompt.ask("allgather 64 MB")


def cables(prompt: Session) -> None:
    """A cable, of the WAN and of a GPU."""
    assert "s0b0 - s1b0 is down" in prompt.ask("link s0b0 s1b0 down")
    end = time.monotonic() + ANSWER_S
    while "s0b0>s1b0" in (found := in_use(prompt)) and time.monotonic() < end:
        time.sleep(0.5)  # the controller leads around it, as soon as it has heard
    assert len(found) == 2 and "s0b0>s1b0" not in found
    assert "ratio" in prompt.ask("allgather 64 MB")
    prompt.ask("link s0b0 s1b0 up")
    prompt.ask("link g0 s0l0 down")
    assert "100% packet loss" in prompt.ask("g1 ping -c 1 -W 1 g0")
    prompt.ask("link g0 s0l0 up")
    assert " 0% packet loss" in prompt.ask("g0 ping -c 3 -W 5 g4")
    assert "ratio" in prompt.ask("allgather 64 MB")


def a_delay(prompt: Session) -> None:
    """A delay is one: there by it, back without."""
    prompt.ask("delay s0b0>s1b0 30 ms")
    fastest = re.search(r"min/avg/max/mdev = ([0-9.]+)", prompt.ask("g0 ping -c 3 g4"))
    assert fastest and 30 <= float(fastest[1]) < 60


def what_is_mistyped(prompt: Session) -> None:
    """What is mistyped is a sentence, and the prompt again."""
    for line, words in (
        ("frobnicate", "is no verb and no node"),
        ("algather 8 MB", "did you mean allgather?"),
        ("rate s0b0>s9b9 1 Gbit/s", "is no link"),
        ("rate s0b0>s1b0 fast", "is no rate"),
        ("ring 0 1", "the ring lacks g2, g3, g4, g5, g6, g7"),
        ("allgather 8", "is no size"),
        ("allgather 800 TB", "allowed is"),
        ("mode bse", "is no mode: allowed is base, ccl, wan, joint (did you mean base?)"),
        ("flows s9l9", "is no switch"),
        ("capture s0b0>s1b0 ../x", "is no name for the file"),
        ("iperf g0 g9", "is no GPU: allowed is g0 to g7"),
        ("link g0 s1l0 down", "no cable joins g0 and s1l0: g0 is joined to s0l0"),
        ("xterm g0", "needs a display"),
        ("source /nonexistent", "is no file"),
        ("switch s9b0 stop", "allowed is switch NAME start, or stop"),
        ("x", "usage"),
        ("x g99", "came to nothing"),
    ):
        assert words in prompt.ask(line), line
    assert prompt.ask("help rate").strip().startswith("rate LINK RATE")
    assert re.search(r"^  pingall", prompt.ask("help"), re.MULTILINE)


def the_line_itself(prompt: Session) -> None:
    """Tab completes, and a line that was typed comes back with the arrow."""
    prompt.child.send("flows s1b\t0\r")
    prompt.child.expect_exact(PROMPT, timeout=ANSWER_S)
    assert "goes to" in str(prompt.child.before)
    prompt.child.send("\x1b[A\r")
    prompt.child.expect_exact(PROMPT, timeout=ANSWER_S)
    assert "goes to" in str(prompt.child.before)


STEPS = (
    rates,
    conditions,
    choices,
    a_capture,
    ctrl_c_in_a_collective,
    ctrl_c_at_a_nodes_command,
    a_switch_that_was_stopped,
    cables,
    a_delay,
    what_is_mistyped,
    the_line_itself,
)


@pytest.mark.alone
def test_a_session_at_eight_gpus(vm: VM) -> None:
    with session(vm, "--out", "kept") as prompt:
        assert "8 GPUs (4 + 4)" in prompt.banner and "rate scale 1/1000" in prompt.banner
        assert "in the VM" in prompt.banner
        assert "*** Results: 0% dropped (56/56 received)" in prompt.ask("pingall")
        for step in STEPS:
            step(prompt)

    assert sorted(path.name for path in (vm.folder / "kept").iterdir()) == ["leaf.pcap"]
    assert (vm.folder / "state" / "longhaul" / "history").read_text().endswith("flows s1b0\nexit\n")
    read_capture(vm.folder / "kept" / "leaf.pcap")


def read_capture(file: Path) -> None:
    """Hold a capture of g0>g1 against what an AllGather of 8 MB at 1/1000 must put on that link."""
    data = file.read_bytes()
    assert struct.unpack_from("<IHHiIII", data)[::6] == (0xA1B23C4D, 1)  # pcap with nanoseconds, of Ethernet frames
    at, payload, times = 24, 0, []
    while at < len(data):
        seconds, ns, kept, length = struct.unpack_from("<IIII", data, at)
        frame = data[at + 16 : at + 16 + kept]
        assert len(frame) == kept <= length
        assert frame[12:14] == b"\x08\x00" and frame[26:34] == bytes([10, 0, 0, 1, 10, 0, 0, 2])
        if frame[23] == 6 and 4791 in struct.unpack_from("!HH", frame, 34):
            payload += length - 34 - (frame[46] >> 4) * 4
        times.append(seconds * 10**9 + ns)
        at += 16 + kept
    assert times == sorted(times) and abs(times[0] / 1e9 - time.time()) < 3600
    assert 7 * 8000 < payload < 7 * 8000 * 1.05  # seven chunks, and a label behind each


@pytest.mark.alone
def test_sixteen_gpus_reach_one_another_and_a_sweep_has_a_first_setting(vm: VM) -> None:
    with session(vm, "--set", "sweep.fabric.gpus=[16, 8]", "--rate-scale", "1/500", leave="\x04") as prompt:
        assert "16 GPUs (8 + 8)" in prompt.banner and "rate scale 1/500" in prompt.banner
        assert "the first of 2 settings of paper" in prompt.banner
        assert "*** Results: 0% dropped (240/240 received)" in prompt.ask("pingall")
        prompt.ask("rate g0>g9 1 Gbit/s")
        assert "ratio" in prompt.ask("allgather 64 MB")
    assert not list((vm.folder / "results").iterdir())  # there was nothing to keep
