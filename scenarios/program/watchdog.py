"""Detects, from outside the VM, a program that stops the VM's clock by computing or spinning.

The two cannot be told apart for certain. A program that loads or computes something shows signs of life: it prints, its
processes start and end, its memory grows. A program that spins shows none. Every process of the VM is also a process of
this machine, a child of the VM's kernel; its command line inside the VM can be read from its memory.
"""

import os
import re
import signal
import struct
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

ADVICE = (
    "let it sleep or block where it waits, give it longer with program.patience, or take the wall clock with --clock "
    "wall --rate-scale 1/1000"
)
"""Remedies for a program that stops the clock."""

MEMORY = (
    "the VM's memory is full, so it may be loading the same files again and again: give the program more with "
    "program.memory"
)
"""The remedy that is added if the VM's memory is full."""

PROMPT = "the prompt itself"
"""The cause if the prompt in the VM itself computes or spins."""

_BUSY_TIMES = 20  # a program with signs of life may take this many times the patience
_HUNG_TIMES = 6  # a program that does not even use a processor may take this many times the patience, of wall time
_START_S = 180.0  # bringing the network up may take this long on a busy machine
_GRAIN_BYTES = 4 << 20
_FULL = 0.9  # share of the memory at which it counts as full: the VM's kernel keeps some free
_MEASURED_S, _MEASURED_TIMES = 0.5, 10
_STACK_TOP, _STRINGS_BYTES = 0x7F80000000, 1 << 18  # a process's arguments and environment lie just below the top
_CLOCK_AT, _CLOCK = _STACK_TOP - 2 * 4096, struct.Struct("=6q")  # the last four: seconds, ns of two clocks each
_VARIABLE = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*=")
_SHOWN = 120


class _Instant(NamedTuple):
    """An instant: on the wall clock, and by the processor time in s that the VM has used."""

    wall_s: float
    used_s: float


class ClockWatchdog:
    """Watches one VM for a stopped clock.

    Once `look` has returned True, `sentence` says why the VM must be ended; for a program that computes or spins, it
    ends with `advice`. `cause` then names the command responsible, with its rank if it is one, if that is known.
    `end_cause` kills that command.

    `patience_s` is the processor time (wall time, if the VM has a processor to itself) that may pass without virtual
    time or a sign of life. `memory_bytes` is the VM's memory if the user can raise it.
    """

    def __init__(self, patience_s: float, advice: str = ADVICE, *, memory_bytes: int | None = None) -> None:
        self._patience_s, self._advice, self._memory_bytes = patience_s, advice, memory_bytes
        self.cause: str | None = None
        self._cause_pid = 0
        self._began = False
        self._virtual_ns, self._life = -1, 0
        self._moved = self._lived = _Instant(0.0, 0.0)
        self._used_s, self._processes, self._most_bytes = 0.0, frozenset[int](), 0
        self.sentence: str | None = None

    def look(self, virtual_ns: int, lines: int, *, began: bool) -> bool:
        """Return whether to end the VM, given the latest virtual time and number of lines received from it.

        `began` is False while the network comes up.
        """
        life = (lines, *self._signs_of_life())
        now = _Instant(time.monotonic(), self._used_s)
        if (virtual_ns, began) != (self._virtual_ns, self._began):
            self._virtual_ns, self._began, self._moved, self._lived = virtual_ns, began, now, now
        if hash(life) != self._life:
            self._life, self._lived = hash(life), now
        patience_s = self._patience_s if began else max(self._patience_s, _START_S)
        is_spinning = now.used_s - self._lived.used_s >= patience_s
        is_hung = now.wall_s - self._lived.wall_s >= _HUNG_TIMES * patience_s
        is_too_long = now.used_s - self._moved.used_s >= _BUSY_TIMES * patience_s
        if not (is_spinning or is_hung or is_too_long):
            return False
        still_s = now.wall_s - self._moved.wall_s
        if not began:
            self.sentence = f"the VM printed nothing for {still_s:.0f} s while the network came up"
        else:
            self.cause = self._busiest_command()
            cause = self.cause or "a process in the VM"
            still = f"virtual time has stood still for {still_s:.0f} s of wall time"
            self.sentence = f"{still}, as {cause} computes or spins: {self._advice}"
            if self._memory_bytes is not None and self._most_bytes > _FULL * self._memory_bytes:
                self.sentence += f"; {MEMORY}"
        return True

    def end_cause(self) -> bool:
        """Kill the command responsible; return False, and kill nothing, if it is unknown or the prompt itself.

        If this machine sends a signal to a process of the VM, the VM's kernel passes on only signals for faults, such
        as SIGILL.
        """
        if self.cause in (None, PROMPT):
            return False
        with suppress(OSError):
            os.kill(self._cause_pid, signal.SIGILL)
        return True

    def _signs_of_life(self) -> tuple[Hashable, ...]:
        """Return the processes of the VM and its peak memory, as signs of life; record its processor time."""
        with suppress(psutil.Error):  # a process has just ended: keep the last values
            kernel, processes = _vm()
            self._most_bytes = max(self._most_bytes, kernel.memory_info().rss)
            used_s = sum(kernel.cpu_times()[:4])  # with that of its children that have ended
            for process in processes:
                used_s += sum(process.cpu_times()[:2])
            self._used_s, self._processes = max(self._used_s, used_s), frozenset(process.pid for process in processes)
        return (self._processes, self._most_bytes // _GRAIN_BYTES)

    def _busiest_command(self) -> str | None:
        """Return the command that uses the processor most now, and its rank, as far as these are known."""
        try:
            _, processes = _vm()
            before_s = [sum(process.cpu_times()[:2]) for process in processes]
            for _ in range(_MEASURED_TIMES):  # on a busy machine, it may take a while until any of them runs
                time.sleep(_MEASURED_S)
                used_s = [sum(one.cpu_times()[:2]) - before for one, before in zip(processes, before_s, strict=True)]
                if max(used_s) > 0:
                    self._cause_pid = processes[used_s.index(max(used_s))].pid
                    return command_of(_strings(self._cause_pid))
            return None
        except (psutil.Error, OSError, ValueError):  # it has just ended, or its memory may not be read
            return None


@contextmanager
def watched(
    watch: Callable[[Callable[[], None], threading.Event], None],
) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Yield the `on_start` callback for `vm.run`, which runs `watch` in a thread until the context ends.

    `watch` is called with a function that ends the VM, and an event that is set when the context ends.
    """
    over, threads = threading.Event(), list[threading.Thread]()

    def start(stop: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=watch, args=(stop, over), daemon=True))
        threads[0].start()

    try:
        yield start
    finally:
        over.set()
        for thread in threads:
            thread.join()


def virtual_ns() -> int:
    """Return the virtual time of this process's VM in ns, from where the VM's processes read it
    (scenarios/vm/10-vdso-clock.patch); -1 if no process of the VM has it."""
    with suppress(psutil.Error):
        for process in _vm()[1]:
            with suppress(OSError), Path(f"/proc/{process.pid}/mem").open("rb", buffering=0) as memory:
                memory.seek(_CLOCK_AT)
                *_, seconds, _, nanoseconds = _CLOCK.unpack(memory.read(_CLOCK.size))
                return int(seconds * 10**9 + nanoseconds)
    return -1


def command_of(strings: bytes) -> str | None:
    """Return the command of a process, with its rank if it is one, from the `strings` at the top of its stack.

    These are the arguments, then the environment variables, each terminated by a null byte. Returns None if there are
    no variables or the arguments have been overwritten.
    """
    parts = strings.split(b"\0")
    ranks = [index for index, part in enumerate(parts) if re.fullmatch(rb"RANK=[0-9]+", part)]
    variables = [index for index, part in enumerate(parts) if _VARIABLE.match(part)]
    if not variables:
        return None
    end = ranks[-1] if ranks else variables[-1]
    while end and _VARIABLE.match(parts[end - 1]):
        end -= 1
    begin = end
    while begin and parts[begin - 1] and parts[begin - 1].decode(errors="replace").isprintable():
        # The arguments follow the platform's name, which follows 16 random bytes without a separator.
        if parts[begin - 1].endswith(b"x86_64") and len(parts[begin - 1]) <= 16 + len(b"x86_64"):
            break
        begin -= 1
    command = b" ".join(parts[begin:end]).decode(errors="replace")
    if not command:
        return None
    if " -m scenarios.prompt.session " in command:
        return PROMPT
    shown = f"{command[:_SHOWN]}..." if len(command) > _SHOWN else command
    return f"rank {parts[ranks[-1]].decode().removeprefix('RANK=')} (`{shown}`)" if ranks else f"`{shown}`"


def _vm() -> tuple[psutil.Process, list[psutil.Process]]:
    """Return the kernel of this process's VM and the processes that it runs; raises psutil.Error if there is no VM."""
    for child in psutil.Process().children(recursive=True):
        command = child.cmdline()
        if "rootfstype=hostfs" in command and Path(command[0]).name != "sh":
            return child, child.children()
    raise psutil.NoSuchProcess(0)


def _strings(pid: int) -> bytes:
    """Return the mapped part of the top `_STRINGS_BYTES` of the stack of a process of the VM; raises OSError."""
    strings = b""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if start >= _STACK_TOP - _STRINGS_BYTES and end <= _STACK_TOP:
                memory.seek(start)
                strings += memory.read(end - start)
    return strings
