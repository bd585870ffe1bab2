"""The VM that experiments run in: a Linux kernel as an ordinary process (User-Mode Linux), in virtual time.

``run`` boots it on the machine's own files, which are read-only below an overlay that is discarded, runs one command
as root inside, and returns the command's exit status; ``python -m scenarios.vm`` does the same from a shell. The VM
guards against accidents, not against malice: its root user has all rights of the user who started it.
"""

import os
import signal
import sys

if sys.argv[:1] == ["-m"]:  # in `python -m scenarios.vm`, until __main__ sets its own handler
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TextIO

from scenarios.vm import boot, kernel, resources, terminal
from scenarios.vm.boot import CLOCKS, Clock, Member
from scenarios.vm.errors import CannotRunError, NoRoomError, VMError, VMUsageError
from scenarios.vm.machine import Answer, Machine, Sink
from scenarios.vm.resources import DEFAULT_MEMORY_BYTES

__all__ = [
    "CLOCKS",
    "DEFAULT_MEMORY_BYTES",
    "CannotRunError",
    "Clock",
    "NoRoomError",
    "Sink",
    "VMError",
    "VMUsageError",
    "check",
    "run",
]


def run(
    command: Sequence[str],
    *,
    clock: Clock = "virtual",
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    results: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    date_ns: int | None = None,
    open_files: int | None = None,
    stdin: int | None = None,
    stdout: Sink | None = None,
    stderr: Sink | None = None,
    use_terminal: bool = False,
    answer: Answer | None = None,
    on_start: Callable[[Callable[[], None]], None] | None = None,
    on_interrupt: Callable[[], None] = lambda: None,
    member: Member | None = None,
) -> int:
    """Run a command as root in a new VM and return its exit status, 128+n for death by signal n.

    ``clock`` is ``virtual`` (time passes only while every process of the VM waits, and then jumps) or ``wall``.
    ``results`` is the one folder of the host that the command can write to, at the same path. ``directory`` and
    ``environment`` default to the caller's. ``date_ns`` is the date at which the command begins, in ns since 1970, by
    default the host's. ``open_files`` is its limit of open files, which it may raise itself; by default the highest,
    65,536. The streams default to an empty stdin and this process's stdout and stderr; ``use_terminal``
    gives the command this process's terminal instead. ``answer`` answers the questions that the command asks on
    /dev/tty4 (`machine.Machine`); meanwhile this process has its terminal back. The VM ends with the calling thread,
    and before this function returns if there is any exception, such as KeyboardInterrupt.
    ``on_start`` receives a function that ends the VM and may be called from any thread. ``on_interrupt`` is called when
    an interrupt from the terminal is passed to a command with ``answer``. ``member`` is the VM's place among others
    that are joined in virtual time (`scenarios.vm.joined`).

    Raises VMUsageError if the VM does not offer what is asked for, CannotRunError if this machine cannot run the VM,
    and VMError if the VM ends before the command does.
    """
    if not command:
        raise VMUsageError("there is no command to run in the VM")
    environment = os.environ if environment is None else environment
    memory_folder = resources.memory_folder(memory_bytes, environment)
    results = None if results is None else resources.results_folder(results)
    request = boot.request(
        command,
        directory=resources.working_directory(directory, results=results),
        environment=boot.guest_environment(environment),
        results=results,
        date_ns=date_ns,
        terminal=use_terminal,
        stdin=stdin is not None,
        open_files=open_files,
    )
    image = kernel.find_kernel(environment)
    original_terminal: Callable[[], AbstractContextManager[None]] = nullcontext

    def answer_at_terminal(question: bytes, typed: bytearray, check: Callable[[], None]) -> bytes:
        assert answer is not None
        with original_terminal():
            return answer(question, typed, check)

    answering = None if answer is None else answer_at_terminal
    with ExitStack() as stack:
        try:
            core = stack.enter_context(resources.own_core())
            machine = stack.enter_context(Machine(terminal=use_terminal, answer=answering, on_interrupt=on_interrupt))
            consoles = [console.kernel_fds for console in machine.consoles]
            arguments = boot.kernel_command_line(
                clock=clock, memory_bytes=memory_bytes, consoles=consoles, member=member
            )
            fds = () if member is None else (member.fd,)
            machine.start(image, arguments, memory_folder=memory_folder, core=core, request=request, fds=fds)
        except OSError as error:  # too many files are open, or too many processes run
            raise VMError(f"the VM cannot be started: {error.strerror}") from None
        if on_start is not None:
            on_start(machine.stop)
        stdout, stderr = stdout or _standard(sys.stdout), stderr or _standard(sys.stderr)
        if not use_terminal:
            return machine.wait(stdout, stderr, stdin=stdin)
        with terminal.raw_mode(machine.stdout.reader) as original_terminal:
            return machine.wait(stdout, stderr, stdin=0)


def check(*, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
    """Check that this machine can run a VM: raise CannotRunError if it has no usable kernel, NoRoomError if it has no
    room for the VM's memory."""
    kernel.find_kernel(os.environ)
    resources.memory_folder(memory_bytes, os.environ)


def _standard(stream: TextIO | None) -> Sink:
    """Return the binary buffer of a standard stream, or a buffer that is discarded if the stream is closed (None)."""
    return stream.buffer if stream is not None else io.BytesIO()
