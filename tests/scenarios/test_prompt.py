"""Prompt sessions on the wall clock: every verb at a terminal, lines from a pipe, the own kernel, every way to end."""

import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.conftest import PROJECT, VM
from tests.fakes.processes import await_that, descendants, living

RUN = str(PROJECT / "scenarios" / "run.py")
PROMPT = "mininet> "
COMING_UP_S = 180
ANSWER_S = 120


class Session:
    """A prompt that an unprivileged user started at a pseudo-terminal."""

    def __init__(self, vm: VM, *arguments: str, clock: str = "wall", program: Sequence[str] = (RUN,)) -> None:
        state = str(vm.folder / "state")
        self.child = vm.terminal("--cli", "--clock", clock, *arguments, program=program, XDG_STATE_HOME=state)

    def ask(self, line: str) -> str:
        """Type a line and return the output until the next prompt."""
        return self.type(line + "\r").partition("\n")[2]

    def type(self, keys: str, *, timeout: float = ANSWER_S) -> str:
        self.child.send(keys)
        self.child.expect_exact(PROMPT, timeout=timeout)
        text = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", str(self.child.before)).replace("\r", "")
        assert "Traceback" not in text
        return text


@contextmanager
def session(vm: VM, *arguments: str, leave: str = "exit\r", **options: Any) -> Iterator[tuple[Session, str]]:
    """Start a prompt, with the options of `Session`; yield it with its banner; end the session by typing `leave`."""
    prompt = Session(vm, *arguments, **options)
    try:
        yield prompt, prompt.type("", timeout=COMING_UP_S)
        prompt.child.send(leave)
        prompt.child.expect(pexpect.EOF, timeout=COMING_UP_S)
        assert "taking everything down" in str(prompt.child.before)
        prompt.child.close()
        assert prompt.child.exitstatus == 0
    finally:
        prompt.child.close(force=True)


def carried_bps(output: str) -> float:
    found = re.search(r": ([0-9.]+) ([kMG])bit/s of payload carried", output)
    assert found, output
    return float(found[1]) * {"k": 1e3, "M": 1e6, "G": 1e9}[found[2]]


def is_shaped_to(prompt: Session, line: str, rate_bps: float) -> bool:
    """Whether one of up to three iperf results is what a link of `rate_bps` carries.

    Time is real here: a busy machine carries less (94 % was seen), a link that is shaped too little carries more.
    """
    return any(0.6 < carried_bps(prompt.ask(line)) / rate_bps < 1.02 for _ in range(3))


def in_use(prompt: Session) -> list[str]:
    """Return the WAN paths that the ring uses."""
    return re.findall(r"^(\S+>\S+) .*in use", prompt.ask("paths"), re.MULTILINE)


def rates_and_conditions(prompt: Session) -> None:
    assert "50 Mbit/s" in prompt.ask("rate g0>g1 50 Gbit/s")
    assert is_shaped_to(prompt, "iperf g0 g1 3", 50e6)
    prompt.ask("rate s0b0>s1b0 12 Gbit/s")
    assert is_shaped_to(prompt, "iperf g0 g4 3", 12e6)
    assert re.search(r"s0b0>s1b0 +12 Gbit/s", prompt.ask("wan"))
    first = prompt.ask("resample 7") + prompt.ask("wan")
    assert "collective 1 of seed 7" in prompt.ask("resample")
    assert prompt.ask("resample 7") + prompt.ask("wan") == first


def ring_mode_and_collectives(prompt: Session) -> None:
    """The bytes of a collective cross the WAN links that `paths` shows."""
    assert "g0 > g2 > g1 > g3 > g7 > g5 > g6 > g4 > g0" in prompt.ask("ring 0 2 1 3 7 5 6 4")
    assert "joint: " in prompt.ask("mode joint")
    output = prompt.ask("allgather 512 MB 2")
    ratios = [(float(ratio), bool(late)) for ratio, late in re.findall(r"ratio ([0-9.]+)( \(this machine)?", output)]
    assert len(ratios) == 2 and all(ratio > 0.8 and (ratio < 2 or late) for ratio, late in ratios)
    sent_mb = re.findall(r"^(\S+) .*us +([0-9.]+) MB +[0-9.]+ MB", prompt.ask("wan"), re.MULTILINE)
    busy = {link: float(sent) for link, sent in sent_mb if float(sent) > 64}  # acknowledgements have a few MB at most
    assert sorted(in_use(prompt)) == sorted(busy)
    assert all(7 * 64 <= sent < 7 * 64 * 1.05 for sent in busy.values())
    assert re.search(r"route \d+ .* tagged s0b\d>s1b\d", prompt.ask("flows s0l1"))
    assert re.search(r"tunnel .* tagged s0b1>s1b0", prompt.ask("flows s0p0"))
    assert "g0 > g1 > g2 > g3 > g4 > g5 > g6 > g7 > g0" in prompt.ask("ring rank")
    assert "base: " in prompt.ask("mode base")


def captures(prompt: Session) -> None:
    prompt.ask("capture g0>g1 leaf.pcap")
    prompt.ask("capture g3>s0b0 spines.pcap")  # a link that is shaped at every spine
    prompt.ask("allgather chunk 8 MB")
    assert re.findall(r"(\S+): \d+ packets in \S+$", prompt.ask("capture stop"), re.MULTILINE) == ["g0>g1", "g3>s0b0"]
    assert "exists already" in prompt.ask("capture g0>g1 leaf.pcap")


def ctrl_c_in_a_collective(prompt: Session) -> None:
    prompt.ask("rate s0b0>s1b0 1 Gbit/s")
    prompt.child.sendline("allgather chunk 640 MB")  # half a minute
    prompt.child.expect(pexpect.TIMEOUT, timeout=3)
    assert "aborted" in prompt.type("\x03")
    prompt.ask("rate s0b0>s1b0 50 Gbit/s")
    assert "ratio" in prompt.ask("allgather chunk 64 MB")


def ctrl_c_at_a_nodes_command(prompt: Session) -> None:
    """Keys and Ctrl-C reach only the command that runs on the host."""
    prompt.child.sendline("g0 ping g4")
    prompt.child.expect("icmp_seq=2", timeout=ANSWER_S)
    prompt.child.send("left over")
    prompt.child.expect("icmp_seq=3", timeout=ANSWER_S)
    assert " 0% packet loss" in prompt.type("\x03")
    assert prompt.ask("g0 echo $((6 * 7))").strip() == "42"


def cables_and_delays(prompt: Session) -> None:
    assert "s0b0 - s1b0 is down" in prompt.ask("link s0b0 s1b0 down")
    found = in_use(prompt)
    assert len(found) == 2 and "s0b0>s1b0" not in found
    assert "ratio" in prompt.ask("allgather chunk 64 MB")
    prompt.ask("link s0b0 s1b0 up")
    prompt.ask("link g0 s0l0 down")
    assert "100% packet loss" in prompt.ask("g1 ping -c 1 -W 1 g0")
    prompt.ask("link g0 s0l0 up")
    assert "ratio" in prompt.ask("allgather chunk 64 MB")
    prompt.ask("delay s0b0>s1b0 30 ms")
    fastest = re.search(r"min/avg/max/mdev = ([0-9.]+)", prompt.ask("g0 ping -c 3 g4"))
    assert fastest and 30 <= float(fastest[1]) < 60


def mistakes_help_and_the_line(prompt: Session) -> None:
    for line, named in (
        ("algather 8 MB", "did you mean allgather?"),
        ("rate s0b0>s9b9 1 Gbit/s", "s0b0>s9b9"),
        ("allgather 800 TB", "allowed: up to"),
        ("xterm g0", "display"),
        ("source /nonexistent", "/nonexistent"),
        ("g0", "g0 CMD"),
        ("x g0", "display"),
        ("help rate", "rate LINK RATE"),
        ("help", "pingall [SECONDS]"),
    ):
        assert named in prompt.ask(line), line
    assert "goes to" in prompt.type("flows s1b\t0\r")
    assert "goes to" in prompt.type("\x1b[A\r")


def test_a_prompt_session_with_eight_gpus_supports_every_verb(vm: VM) -> None:
    with session(vm, "--out", "kept") as (prompt, banner):
        assert all(words in banner for words in ("8 GPUs (4 + 4)", "rate scale 1/1000", "in the VM"))
        assert "(56/56 received)" in prompt.ask("pingall")
        rates_and_conditions(prompt)
        ring_mode_and_collectives(prompt)
        captures(prompt)
        ctrl_c_in_a_collective(prompt)
        ctrl_c_at_a_nodes_command(prompt)
        cables_and_delays(prompt)
        mistakes_help_and_the_line(prompt)

    assert sorted(path.name for path in (vm.folder / "kept").iterdir()) == ["leaf.pcap", "spines.pcap"]
    assert (vm.folder / "state" / "longhaul" / "history").read_text().endswith("flows s1b0\nexit\n")
    # Seven chunks of 8 MB at the rate scale 1/1000, each followed by a label.
    assert 7 * 8000 < captured_bytes(vm.folder / "kept" / "leaf.pcap", src=0, dst=1) < 7 * 8000 * 1.05
    assert 7 * 8000 < captured_bytes(vm.folder / "kept" / "spines.pcap", src=3, dst=4) < 7 * 8000 * 1.05


def captured_bytes(file: Path, *, src: int, dst: int) -> int:
    """Return the chunk bytes to rank `dst` in a capture, all of whose packets must come from rank `src`."""
    data = file.read_bytes()
    assert struct.unpack_from("<IHHiIII", data)[::6] == (0xA1B23C4D, 1)  # pcap in nanoseconds, Ethernet frames
    addresses = [bytes([10, rank // 4, 0, rank % 4 + 1]) for rank in (src, dst)]
    at, payload, times = 24, 0, []
    while at < len(data):
        seconds, ns, kept, length = struct.unpack_from("<IIII", data, at)
        frame = data[at + 16 : at + 16 + kept]
        assert len(frame) == kept == min(length, 256)
        assert frame[12:14] == b"\x08\x00" and frame[26:30] == addresses[0]
        if frame[23] == 6 and 4791 in struct.unpack_from("!HH", frame, 34) and frame[30:34] == addresses[1]:
            payload += length - 34 - (frame[46] >> 4) * 4
        times.append(seconds * 10**9 + ns)
        at += 16 + kept
    assert times == sorted(times) and abs(times[0] / 1e9 - time.time()) < 3600
    return payload


@pytest.mark.slow
def test_a_prompt_with_sixteen_gpus_uses_the_first_configuration_of_a_sweep(vm: VM) -> None:
    arguments = ("--set", "sweep.fabric.gpus=[16, 8]", "--rate-scale", "1/500")
    with session(vm, *arguments, leave="\x04") as (prompt, banner):
        assert all(words in banner for words in ("16 GPUs (8 + 8)", "rate scale 1/500", "the first of 2 conf"))
        assert "(240/240 received)" in prompt.ask("pingall")
        prompt.ask("rate g0>g9 1 Gbit/s")
        assert "ratio" in prompt.ask("allgather chunk 64 MB")
    assert not (vm.folder / "results").exists()  # there is nothing to keep


LINES = """\
links
g0 ping -c 1 g2
link s0b0 s1b0 down
g0 ping -c 2 -i 0.1 g2
links
wan
allgather chunk 64 MB
link g0 s0l0 down
allgather chunk 64 MB
save cut.toml
ring 0 1 3 2
iperf g0 g2
link g0 s0l0 up
link s0b0 s1b1 down
link s0b1 s1b0 down
link s0b1 s1b1 down
mode joint
allgather chunk 64 MB
link s0b1 s1b1 up
allgather chunk 64 MB
switch s1l0 stop
allgather chunk 64 MB
switch s1l0 start
allgather chunk 64 MB
link s0l0 s0p0 down
link s0l1 s0p1 down
allgather chunk 64 MB
ring best
"""


# On the wall clock, test_a_prompt_session_with_eight_gpus_supports_every_verb cuts cables as well.
@pytest.mark.parametrize("clock", ["virtual", pytest.param("wall", marks=pytest.mark.slow)])
def test_lines_from_a_pipe_run_and_failed_links_are_shown_avoided_or_named_as_the_cause(vm: VM, clock: str) -> None:
    ended = vm.run("--cli", "--clock", clock, "--gpus", "4", program=[RUN], input=LINES.encode(), timeout=400)
    assert ended.status == 1, ended.err  # a collective over the failed link fails
    assert "mininet>" not in ended.out and "4 GPUs" in ended.err and "bringing up the agents" in ended.err
    assert "Warning" not in ended.err and "Traceback" not in ended.err
    output = ended.out.splitlines()
    assert output[0].endswith("up")  # stdout has the answers only
    assert ended.out.count(" 0% packet loss") == 2  # once the prompt has said that a link is down, none is lost
    wires = [line for line in output if "<->" in line]
    half = len(wires) // 2
    assert all(line.endswith(" up") for line in wires[:half])
    assert [line.split("-eth")[0] for line in wires[half:] if line.endswith(" down")] == ["s0b0"]
    assert [line.split()[0] for line in output if re.search(r"^\S+>\S+ +down ", line)] == ["s0b0>s1b0", "s1b0>s0b0"]
    found = [line for line in output if "cannot be reached" in line or line.startswith("allgather")]
    cut, wan = "g0 cannot be reached: g0 - s0l0 is down", "s0b0 - s1b0, s0b0 - s1b1, s0b1 - s1b0 and s0b1 - s1b1"
    assert [line if line == cut else line[:11] for line in found[:5]] == ["allgather 1", cut, cut, cut, cut]
    assert all("g2, g3" in line and wan in line for line in found[5:7])
    assert found[7].startswith("allgather 2") and "g2" in found[8] and found[9].startswith("allgather 3")
    assert "g0" in found[10] and "g1" in found[10] and "s0l0 - s0p0 and s0l1 - s0p1" in found[10]
    assert "s0l0 - s0p0 and s0l1 - s0p1" in output[-1] and "ring" in output[-1]


def test_root_runs_the_prompt_on_the_machines_own_kernel_and_it_cleans_up_completely(vm: VM) -> None:
    """The VM's kernel, which has Open vSwitch and netem, acts as the machine's own kernel."""
    seen = vm.report("prompt", options=("--clock", "wall"))
    assert "on this machine's own kernel" in seen["banner"] and seen["bridges"] == 12
    assert "(12/12 received)" in seen["pingall"] and carried_bps(seen["iperf"]) > 40e6
    assert seen["collectives"].keys() == {"allgather", "allreduce", "alltoall", "broadcast"}
    for verb, output in seen["collectives"].items():
        assert re.search(rf"^{verb} .*ratio [0-9.]+", output, re.MULTILINE), output
    assert "aborted" in seen["aborted"]
    assert seen["status"] == {"exit": 0, "a signal": 143, "Ctrl-C while it comes up": 130}
    for end, after in seen["after"].items():
        assert after == seen["before"], end


@pytest.mark.parametrize(
    ("clock", "moment", "signal_number", "says"),
    [
        ("wall", "bringing up the shaping", signal.SIGTERM, "run.py: interrupted"),
        ("virtual", PROMPT, signal.SIGTERM, ""),
        ("virtual", PROMPT, signal.SIGHUP, ""),
    ],
)
def test_a_signal_to_the_prompt_ends_the_vm_and_all_its_processes(
    vm: VM, clock: str, moment: str, signal_number: int, says: str
) -> None:
    child = Session(vm, "--gpus", "4", clock=clock).child
    child.expect_exact(moment, timeout=COMING_UP_S)
    below = descendants(child.pid)
    assert below
    child.kill(signal_number)
    child.expect_exact(pexpect.EOF, timeout=ANSWER_S)
    assert says in str(child.before)
    child.close()
    assert child.exitstatus == 128 + signal.SIGTERM
    await_that(lambda: not set(below) & living().keys(), 5)  # the host reaps them one by one
    assert not (vm.folder / "results").exists() or not list((vm.folder / "results").iterdir())


LOST = """
import signal, threading, time
from scenarios.prompt import dialogue, session
signal.signal(signal.SIGTERM, session._exit_on_signal)
def strike():
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # to another thread: it wakes no reader of a line
threading.Thread(target=strike, daemon=True).start()
with dialogue.checking_signals():
    input()
"""


def test_a_signal_that_did_not_wake_a_prompt_reading_a_pipe_still_ends_it() -> None:
    with subprocess.Popen([sys.executable, "-c", LOST], cwd=PROJECT, stdin=subprocess.PIPE) as child:
        try:
            assert child.wait(timeout=60) == 128 + signal.SIGTERM
        finally:
            child.kill()


def test_a_signal_that_did_not_wake_a_prompt_at_a_terminal_still_ends_it() -> None:
    child = pexpect.spawn(sys.executable, ["-c", LOST], cwd=str(PROJECT), timeout=60)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 128 + signal.SIGTERM


def test_no_typed_character_is_lost_when_signals_are_checked_while_the_prompt_is_written() -> None:
    code = f"""
import readline
from scenarios.prompt import dialogue
dialogue._CHECK_S = 0.00004
with dialogue.checking_signals():
    while input({PROMPT!r}) != "end":
        pass
"""
    child = pexpect.spawn(sys.executable, ["-c", code], encoding="utf-8", timeout=20, cwd=str(PROJECT))
    for _ in range(100):
        child.expect_exact(PROMPT)
        child.send("a\r")
    child.expect_exact(PROMPT)
    child.send("end\r")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
