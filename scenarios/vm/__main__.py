"""``python -m scenarios.vm [OPTIONS] -- COMMAND…``, whose options `--help` lists."""

import argparse
import os
import signal
import stat
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from scenarios import vm
from scenarios.vm import joined, terminal
from scenarios.vm.hosts import MAX_HOSTS, HostLink, LinkError, command_line, parse_link
from topologies.command_line import CommandParser
from topologies.conditions.clock import date_ns
from topologies.units import UnitError, format_size, parse_size_bytes

# Linux's usual limit, which a process may raise itself. Others close all descriptors that they may have, one by one, as
# the shell of each of Mininet's hosts does.
OPEN_FILES = 1024


def main(arguments: list[str]) -> int:
    """Run the command of the arguments in the VM; return its exit status."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with SIGINT ignored
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    command = options.command
    if options.hosts is not None:
        command = command_line(options.hosts, options.link or HostLink(), command)
    elif options.link is not None:
        print("longhaul: --link needs --hosts; allowed: both, or neither", file=sys.stderr)
        return 2
    try:
        return _run_joined(options) if options.join else _run_one(options, command)
    except vm.VMError as error:
        print(f"longhaul: {error}{error.option and f', or {error.option}'}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # flushing the rest of the buffer at exit would fail again
        if isinstance(error, BrokenPipeError):  # the reader of our output has ended: end like any command in a pipeline
            return 128 + signal.SIGPIPE
        print(f"longhaul: the VM's output cannot be written: {error.strerror}", file=sys.stderr)
        return 1


def _run_one(options: argparse.Namespace, command: list[str]) -> int:
    use_terminal = options.clock == "wall" and terminal.is_terminal()
    return vm.run(
        command,
        clock=options.clock,
        memory_bytes=options.memory,
        results=options.results,
        date_ns=options.date,
        open_files=OPEN_FILES,
        stdin=0 if _has_input(options.clock) and not use_terminal else None,
        use_terminal=use_terminal,
    )


def _run_joined(options: argparse.Namespace) -> int:
    """Run the command in each of several joined VMs; return the first exit status that is not 0."""
    if refused := next((name for name in ("hosts", "link") if getattr(options, name) is not None), None):
        raise vm.VMUsageError(f"--join cannot be combined with --{refused}: a command makes the hosts of its machine")
    if options.clock != "virtual":
        raise vm.VMUsageError("--join needs --clock virtual: only virtual time can be the same in several machines")
    machines = 1 + max(max(link.one, link.other) for link in options.join)
    lock = threading.Lock()
    streams = (sys.stdout.buffer, sys.stderr.buffer)
    sinks = [(Lines(f"{n}: ", streams[0], lock), Lines(f"{n}: ", streams[1], lock)) for n in range(machines)]
    try:
        statuses = joined.run(
            [options.command] * machines,
            options.join,
            memory_bytes=options.memory,
            sinks=sinks,
            results=options.results,
            date_ns=options.date,
            open_files=OPEN_FILES,
        )
    finally:
        for sink in (sink for pair in sinks for sink in pair):
            sink.end()
    return next((status for status in statuses if status), 0)


class Lines:
    """A stream to which several machines write: whole lines, each behind the machine's number."""

    def __init__(self, prefix: str, stream: BinaryIO, lock: threading.Lock) -> None:
        self._prefix, self._stream, self._lock, self._rest = prefix.encode(), stream, lock, b""

    def write(self, data: bytes, /) -> None:
        """Write the lines that are whole, and keep the rest."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        with self._lock:
            self._stream.writelines(self._prefix + line + b"\n" for line in lines)

    def flush(self) -> None:
        """Flush what was written."""
        with self._lock:
            self._stream.flush()

    def end(self) -> None:
        """Write the last line, if it is not whole."""
        if self._rest:
            self.write(b"\n")
            self.flush()


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m scenarios.vm",
        description="Run COMMAND as root in a new VM, on this machine's files, and return its exit status.",
        epilog="Files that COMMAND writes outside DIR are discarded with the VM.",
    )
    parser.add_argument(
        "--clock",
        choices=vm.CLOCKS,
        default="virtual",
        help="virtual: time jumps whenever all processes wait; wall: real time, and COMMAND gets the terminal",
    )
    parser.add_argument(
        "--memory",
        type=_size,
        default=vm.DEFAULT_MEMORY_BYTES,
        metavar="SIZE",
        help=f'the VM\'s memory, such as "{format_size(vm.DEFAULT_MEMORY_BYTES)}" (the default)',
    )
    parser.add_argument(
        "--date",
        type=_date,
        metavar="DATE",
        help="the date at which COMMAND begins, such as 2026-01-01T00:00:00 in UTC; by default this machine's",
    )
    parser.add_argument(
        "--hosts",
        type=_hosts,
        metavar="N",
        help="make N hosts, the network namespaces h0, h1 and so on, and run COMMAND in h0",
    )
    parser.add_argument(
        "--link", type=_link, metavar="LINK", help='rate and one-way delay between hosts, such as "20 Mbit/s, 300 ms"'
    )
    parser.add_argument(
        "--join",
        type=_joined_link,
        action="append",
        metavar="LINK",
        help='run COMMAND in each of several machines, of which this link joins two: "0-1, 10 ms" (one-way delay);'
        " may be given several times",
    )
    parser.add_argument("--results", metavar="DIR", help="the one folder in which files are kept")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the command and its arguments, after --")
    return parser


def _size(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _date(text: str) -> int:
    try:
        return date_ns(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _hosts(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= MAX_HOSTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number from 2 to {MAX_HOSTS}")
    return int(text)


def _link(text: str) -> HostLink:
    try:
        return parse_link(text)
    except LinkError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _joined_link(text: str) -> joined.JoinedLink:
    try:
        return joined.parse_link(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _has_input(clock: vm.Clock) -> bool:
    """Return whether there is standard input to forward.

    A terminal does not count in virtual time: the clock would race ahead while a person types.
    """
    try:
        mode = os.fstat(0)
    except OSError:
        return False
    if os.isatty(0):
        return clock == "wall"
    return not (stat.S_ISCHR(mode.st_mode) and mode.st_rdev == Path(os.devnull).stat().st_rdev)


def _exit_on_signal(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
