"""A person at the prompt, in the VM and on a kernel that has all it needs: every verb, Ctrl-C, and nothing left behind."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from tests.conftest import NOBODY, PROJECT, VM

RUN = str(PROJECT / "scenarios" / "run.py")
GUEST = str(PROJECT / "tests" / "guest" / "prompt.py")
PROMPT = "mininet> "
COMING_UP_S, ANSWER_S = 180, 120


class Session:
    """A prompt at a pseudo-terminal."""

    def __init__(self, child: "pexpect.spawn[str]") -> None:
        self.child = child
        child.expect_exact(PROMPT, timeout=COMING_UP_S)
        self.banner = self._before()

    def ask(self, line: str) -> str:
        """Type a line and return what is said until the next prompt."""
        self.child.sendline(line)
        self.child.expect_exact(PROMPT, timeout=ANSWER_S)
        return self._before().partition("\n")[2]

    def _before(self) -> str:
        text = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", str(self.child.before)).replace("\r", "")
        assert "Traceback" not in text
        return text


@contextmanager
def session(vm: VM, *arguments: str) -> Iterator[Session]:
    """A prompt of an unprivileged user's, left by exit."""
    child: pexpect.spawn[str] = pexpect.spawn(
        sys.executable,
        [RUN, "--cli", *arguments],
        env=vm.environment | {"TERM": "xterm", "XDG_STATE_HOME": str(vm.folder / "state")},  # type: ignore[arg-type]
        cwd=str(vm.folder),
        preexec_fn=become_nobody,
        dimensions=(50, 160),
        encoding="utf-8",
        timeout=ANSWER_S,
    )
    try:
        yield Session(child)
        child.sendline("exit")
        child.expect(pexpect.EOF, timeout=COMING_UP_S)
        child.close()
        assert child.exitstatus == 0
    finally:
        child.close(force=True)


def become_nobody() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def carried_bps(said: str) -> float:
    """The rate that iperf says it has carried."""
    found = re.search(r": ([0-9.]+) ([kMG])bit/s of payload carried", said)
    assert found, said
    return float(found[1]) * {"k": 1e3, "M": 1e6, "G": 1e9}[found[2]]


def test_a_session_at_eight_gpus(vm: VM) -> None:
    with session(vm, "--out", "kept") as prompt:
        assert "8 GPUs (4 + 4)" in prompt.banner and "rate scale 1/1000" in prompt.banner
        assert "in the VM" in prompt.banner
        assert "*** Results: 0% dropped (56/56 received)" in prompt.ask("pingall")

        # Rates: the link's own within a site, the slowest of the way across the WAN.
        assert "g0>g1 has 50 Gbit/s, of which 1/1000, 50 Mbit/s, is carried" in prompt.ask("rate g0>g1 50 Gbit/s")
        assert carried_bps(prompt.ask("iperf g0 g1")) == pytest.approx(50e6, rel=0.05)
        prompt.ask("rate s0b0>s1b0 12 Gbit/s")
        assert carried_bps(prompt.ask("iperf g0 g4")) == pytest.approx(12e6, rel=0.05)
        assert re.search(r"s0b0>s1b0 +12 Gbit/s", prompt.ask("wan"))

        # Conditions: the same seed gives the same ones again.
        first = prompt.ask("resample 7") + prompt.ask("wan")
        assert "collective 0 of seed 7" in first
        assert "collective 1 of seed 7" in prompt.ask("resample")
        assert prompt.ask("resample 7") + prompt.ask("wan") == first

        # A ring, a mode and a collective, whose bytes go where the paths say.
        assert "g0 > g2 > g1 > g3 > g7 > g5 > g6 > g4 > g0" in prompt.ask("ring 0 2 1 3 7 5 6 4")
        assert "joint: the ring re-embedded" in prompt.ask("mode joint")
        said = prompt.ask("allgather 64 MB 2")
        ratios = [float(ratio) for ratio in re.findall(r"ratio ([0-9.]+)", said)]
        assert len(ratios) == 2 and all(0.8 < ratio < 10 for ratio in ratios)  # real time, on a machine that tests
        used = re.findall(r"^(\S+>\S+) .*in use", prompt.ask("paths"), re.MULTILINE)
        busy = re.findall(r"^(\S+) .*us +([0-9.]+) MB +[0-9.]+ MB", prompt.ask("wan"), re.MULTILINE)
        assert sorted(used) == sorted(link for link, _ in busy)
        assert all(7 * 64 <= float(sent) < 7 * 64 * 1.05 for _, sent in busy)
        assert re.search(r"route 1 .*tagged 1", prompt.ask("flows s0l0"))
        assert "g0 > g1 > g2 > g3 > g4 > g5 > g6 > g7 > g0" in prompt.ask("ring rank")
        assert "base: the ring fixed, WAN paths fixed" in prompt.ask("mode base")

        # A capture, with what crosses in it, of the link's own packets.
        prompt.ask("capture g0>g1 leaf.pcap")
        prompt.ask("allgather 8 MB")
        assert re.search(r"g0>g1: \d+ packets", prompt.ask("capture stop"))
        assert "is there already" in prompt.ask("capture g0>g1 leaf.pcap")

        # Ctrl-C in a collective that would take half a minute.
        prompt.ask("rate s0b0>s1b0 1 Gbit/s")
        prompt.child.sendline("allgather 640 MB")
        prompt.child.expect(pexpect.TIMEOUT, timeout=4)
        prompt.child.send("\x03")
        prompt.child.expect_exact("aborted", timeout=ANSWER_S)
        prompt.child.expect_exact(PROMPT, timeout=ANSWER_S)
        prompt.ask("rate s0b0>s1b0 50 Gbit/s")
        assert "ratio" in prompt.ask("allgather 64 MB")

        # A cable, of the WAN and of a GPU.
        assert "s0b0 - s1b0 is down" in prompt.ask("link s0b0 s1b0 down")
        assert "100% packet loss" in prompt.ask("g0 ping -c 1 -W 1 g4")
        prompt.ask("link s0b0 s1b0 up")
        prompt.ask("link g0 s0l0 down")
        prompt.ask("link g0 s0l0 up")
        assert " 0% packet loss" in prompt.ask("g0 ping -c 3 -W 5 g4")
        assert "ratio" in prompt.ask("allgather 64 MB")

        # A delay is one: there by it, back without.
        prompt.ask("delay s0b0>s1b0 30 ms")
        fastest = re.search(r"min/avg/max/mdev = ([0-9.]+)", prompt.ask("g0 ping -c 3 g4"))
        assert fastest and 30 <= float(fastest[1]) < 60

        # What is mistyped is a sentence, and the prompt again.
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
            ("x", "usage"),
            ("x g99", "came to nothing"),
        ):
            assert words in prompt.ask(line), line
        assert prompt.ask("help rate").strip().startswith("rate LINK RATE")
        assert re.search(r"^  pingall", prompt.ask("help"), re.MULTILINE)

        # Tab completes, and a line that was typed comes back with the arrow.
        prompt.child.send("flows s1b\t0\r")
        prompt.child.expect_exact(PROMPT, timeout=ANSWER_S)
        assert "goes to" in str(prompt.child.before)
        prompt.child.send("\x1b[A\r")
        prompt.child.expect_exact(PROMPT, timeout=ANSWER_S)
        assert "goes to" in str(prompt.child.before)

    assert sorted(path.name for path in (vm.folder / "kept").iterdir()) == ["leaf.pcap"]
    assert (vm.folder / "state" / "longhaul" / "history").read_text().endswith("flows s1b0\nexit\n")
    read_capture(vm.folder / "kept" / "leaf.pcap")
