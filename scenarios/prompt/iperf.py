"""TCP throughput from one host to another, by iperf; the receiver's count, as a sender counts what it has buffered."""

import select
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from scenarios.prompt.arguments import PromptError

_PORT = 5001
_START_S, _SLACK_S = 20.0, 60.0
_LISTENING = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it


def carried_bps(*, src_pid: int, dst_pid: int, address: str, seconds: int) -> int:
    """The payload in bit/s that a flow of so many seconds carries between the hosts of two processes.

    `address` is the receiver's. Raises PromptError where iperf has no result. Nothing is left running.
    """
    server = ["iperf", "-s", "-p", str(_PORT), "-y", "C"]
    client = ["iperf", "-c", address, "-p", str(_PORT), "-t", str(seconds), "-y", "C"]
    with ExitStack() as stack:
        receiver = _started(dst_pid, server, stack)
        _await_listener(receiver, dst_pid)
        sender = _started(src_pid, client, stack)
        return _reported_bps(_line(receiver, sender, seconds + _SLACK_S))


def _started(host_pid: int, command: list[str], stack: ExitStack) -> "subprocess.Popen[bytes]":
    """A program in the network namespace of a host, which ends with the stack; Ctrl-C does not reach it."""
    process = stack.enter_context(
        subprocess.Popen(
            ["mnexec", "-a", str(host_pid), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
    )
    stack.callback(process.kill)
    return process


def _await_listener(receiver: "subprocess.Popen[bytes]", host_pid: int) -> None:
    end = time.monotonic() + _START_S
    while not _listens(Path(f"/proc/{host_pid}/net/tcp").read_text()):
        if receiver.poll() is not None or time.monotonic() > end:
            raise PromptError(f"iperf does not listen on port {_PORT}: is there another one?")
        time.sleep(0.02)


def _listens(text: str) -> bool:
    sockets = [line.split() for line in text.splitlines()[1:]]
    return any(words[1].endswith(f":{_PORT:04X}") and words[3] == _LISTENING for words in sockets)


def _line(receiver: "subprocess.Popen[bytes]", sender: "subprocess.Popen[bytes]", patience_s: float) -> str:
    """The receiver's report."""
    assert receiver.stdout is not None
    end = time.monotonic() + patience_s
    while not select.select([receiver.stdout], [], [], 0.2)[0]:
        if sender.poll() not in (None, 0) or time.monotonic() > end:
            raise PromptError("iperf came to no result: is there a way between the two? (g0 ping g4 tells)")
    return receiver.stdout.readline().decode(errors="replace")


def _reported_bps(line: str) -> int:
    """The rate of a line of iperf's CSV, its last field."""
    last = line.strip().rpartition(",")[2]
    if not last.isdecimal():
        raise PromptError(f"iperf's report cannot be read: {line.strip()[:80]!r}")
    return int(last)
