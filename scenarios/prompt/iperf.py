"""Measures TCP goodput between two hosts with iperf, at the receiver, as a sender counts what it has only buffered."""

import select
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from scenarios.prompt.arguments import PromptError

_PORT = 5001
_START_S, _SLACK_S = 20.0, 60.0
_LISTENING = f":{_PORT:04X} 00000000:0000 0A"  # a socket in state TCP_LISTEN, in the format of /proc/net/tcp


def carried_bps(*, src_pid: int, dst_pid: int, address: str, seconds: float) -> int:
    """Run a TCP flow for `seconds` between the hosts of two processes; return its goodput (payload) in bit/s.

    `address` is the receiver's IP address. Raises PromptError if iperf gives no result. No process keeps running.
    """
    server = ["iperf", "-s", "-p", str(_PORT), "-y", "C"]
    client = ["iperf", "-c", address, "-p", str(_PORT), "-t", f"{seconds:g}", "-y", "C"]
    with ExitStack() as stack:
        receiver, end = _started(dst_pid, server, stack), time.monotonic() + _START_S
        while _LISTENING not in Path(f"/proc/{dst_pid}/net/tcp").read_text():
            if receiver.poll() is not None or time.monotonic() > end:
                raise PromptError(f"iperf does not listen on port {_PORT}: does another program use that port?")
            time.sleep(0.02)
        sender, end = _started(src_pid, client, stack), time.monotonic() + seconds + _SLACK_S
        assert receiver.stdout is not None
        while not select.select([receiver.stdout], [], [], 0.2)[0]:
            if sender.poll() not in (None, 0) or time.monotonic() > end:
                raise PromptError("iperf gave no result: can the two GPUs reach each other? (g0 ping g4 shows it)")
        report = receiver.stdout.readline().decode(errors="replace").strip()
        bps = report.rpartition(",")[2]  # the last field of iperf's CSV
        if not bps.isdecimal():
            raise PromptError(f"iperf's report cannot be read: {report[:80]!r}")
        return int(bps)


def _started(host_pid: int, command: list[str], stack: ExitStack) -> "subprocess.Popen[bytes]":
    """Start a program in a host's network namespace, out of reach of Ctrl-C; it is killed when the stack unwinds."""
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
