"""A person at the prompt: a session at a pseudo-terminal, and what is read off it."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pexpect

from tests.conftest import NOBODY, PROJECT, VM

RUN = str(PROJECT / "scenarios" / "run.py")
PROMPT = "mininet> "
COMING_UP_S = 180
ANSWER_S = 120


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
def session(vm: VM, *arguments: str, leave: str = "exit\r") -> Iterator[Session]:
    """A prompt of an unprivileged user's, left by typing `leave`."""
    child = sit_down(vm, *arguments)
    try:
        yield Session(child)
        child.send(leave)
        child.expect(pexpect.EOF, timeout=COMING_UP_S)
        assert "taking everything down" in str(child.before)
        child.close()
        assert child.exitstatus == 0
    finally:
        child.close(force=True)


def sit_down(vm: VM, *arguments: str) -> "pexpect.spawn[str]":
    """Start the command at a pseudo-terminal, as an unprivileged user."""
    return pexpect.spawn(
        sys.executable,
        [RUN, "--cli", *arguments],
        env=vm.environment | {"TERM": "xterm", "XDG_STATE_HOME": str(vm.folder / "state")},  # type: ignore[arg-type]
        cwd=str(vm.folder),
        preexec_fn=become_nobody,
        dimensions=(50, 160),
        encoding="utf-8",
        timeout=ANSWER_S,
    )


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
