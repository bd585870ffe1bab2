"""One VM as a process of the host: starts it, copies its streams, returns COMMAND's exit status, and stops it.

The VM leaves nothing behind because it never creates anything with a name: the guest's memory is an unnamed file, init
is a file of the project, and the request goes over the control console. reaper.sh kills the VM's processes when the
thread that started it ends, so that even a launcher that is killed leaves no processes.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from scenarios.vm import kernel
from scenarios.vm.errors import VMError, death

REAPER = Path(__file__).with_name("reaper.sh")

LOG = "panic.log"
"""The file in the kernel's cache folder with the output of the last kernel that ended by itself."""

HELD_BYTES = 2**17
"""Number of bytes that COMMAND writes after a question in its dialogue, more than a pipe holds. Consoles block the VM's
kernel in virtual time until the host has read their output, so the VM and its clock stop until the answer."""

ENQUIRY = b"\x05"
"""The byte that COMMAND writes to its terminal before a question (ASCII's enquiry). It marks the end of the output that
precedes the question, because a terminal delivers later than a pipe."""

Answer = Callable[[bytes, bytearray, Callable[[], None]], bytes]
"""Function that answers a question: (question, keys typed so far, check) -> answer. It removes the keys that it uses.
While it waits, it regularly calls `check`, which raises VMEnded once the VM has ended."""

_CHUNK = 65536
_LOG_BYTES = 65536
_KEYS = b"keys"
_INTERRUPTS = re.compile(rb".*[\x03\x1c]", re.DOTALL)  # Ctrl-C, Ctrl-\, and the keys before, which a terminal discards
_LATE_S = 5.0  # how long a terminal may take to deliver ENQUIRY
_INTERRUPT_S = 0.2  # interval of `_interrupt_spinning`


class VMEnded(Exception):
    """The VM has ended while a question of its COMMAND was being answered."""


class Sink(Protocol):
    """The destination of one of the VM's streams: a binary file, or any object that can be written to like one."""

    def write(self, data: bytes, /) -> object: ...
    def flush(self) -> object: ...


class Console:
    """One console of the VM: our ends, and `kernel_fds`, the kernel's descriptors for input and output.

    `kernel_fds` are two open files, even for a terminal: the kernel makes its input non-blocking, and in virtual time
    its output must block, so that the VM waits until we have read it.
    """

    def __init__(self, *, terminal: bool = False) -> None:
        if terminal:
            self.reader, slave = os.openpty()
            self.writer = self.reader
            self.kernel_fds: tuple[int, ...] = (slave, os.open(os.ttyname(slave), os.O_RDWR | os.O_NOCTTY))
        else:
            self.reader, output = os.pipe()
            source, self.writer = os.pipe()
            self.kernel_fds = (source, output)
        for ours in (self.reader, self.writer):
            os.set_blocking(ours, False)
        self.unsent = bytearray()

    def send(self, data: bytes = b"") -> None:
        """Send the unsent bytes and then ``data``, as much as the kernel accepts now; the rest remains unsent."""
        self.unsent += data
        try:
            while self.unsent:
                del self.unsent[: os.write(self.writer, self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()  # nobody will read it

    def receive(self, most: int = _CHUNK) -> bytes | None:
        """Return received bytes, b"" if there are none, None at the end of the stream."""
        try:
            return os.read(self.reader, most) or None
        except BlockingIOError:
            return b""
        except OSError:  # a pseudo-terminal whose other end is closed
            return None

    def close_kernel_fds(self) -> None:
        """Close our copies of the kernel's ends, which the kernel has inherited."""
        for fd in set(self.kernel_fds):
            os.close(fd)
        self.kernel_fds = ()

    def close(self) -> None:
        """Close all ends."""
        self.close_kernel_fds()
        for fd in {self.reader, self.writer}:
            os.close(fd)


class Machine:
    """A VM that runs one command.

    ``terminal`` makes COMMAND's console a pseudo-terminal, whose other side is ``stdout.reader``. ``answer`` gives
    COMMAND a fifth console, /dev/tty4, for a dialogue: COMMAND asks a question by one line and HELD_BYTES, and the VM
    stops until it is answered. At a terminal, COMMAND first writes ENQUIRY to the terminal. Keys other than interrupts
    are held until COMMAND requests them by the line ``keys``; keys held at a question go to ``answer``.
    ``on_interrupt`` is called when an interrupt is passed on.

    Use as a context manager: leaving it kills the VM. ``stop`` may be called from any thread or signal handler.
    """

    def __init__(
        self, *, terminal: bool = False, answer: Answer | None = None, on_interrupt: Callable[[], None] = lambda: None
    ) -> None:
        self.messages, self.stdout = Console(), Console(terminal=terminal)
        self.stderr, self.control = Console(), Console()
        self.terminal = terminal
        self.log = bytearray()
        self.ready = False
        self.status: int | None = None
        self._stopped = False
        self.dialogue = None if answer is None else Console()
        consoles = (self.messages, self.stdout, self.stderr, self.control, self.dialogue)
        self.consoles = tuple(console for console in consoles if console is not None)
        self._answer = answer
        self._question, self._held_bytes_left = bytearray(), 0
        self._forwards_keys = answer is None
        self._typed = bytearray()
        self._interrupted, self._on_interrupt = False, on_interrupt  # whether interrupted since the last question
        self._last_output = b""  # last byte of the terminal's output
        self._partial = b""
        self._request = b""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._process is not None:
            self._process.wait()
        for console in self.consoles:
            console.close()

    def start(
        self,
        kernel: Path,
        arguments: tuple[str, ...],
        *,
        memory_folder: str,
        core: int | None,
        request: bytes,
        fds: tuple[int, ...] = (),
    ) -> None:
        """Start the kernel, on one core or on all, with these files of ours open; raises OSError if the host cannot."""
        # A process that is ending ignores SIGTERM; without this, a child that it starts would inherit that.
        with_sigterm = ["env", "--default-signal=TERM"]
        pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        reaper = [*with_sigterm, *pinned, "setpriv", "--pdeathsig", "TERM", "--", "sh", str(REAPER), str(os.getpid())]
        self._process = subprocess.Popen(
            [*reaper, str(kernel), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self.messages.kernel_fds[1],
            stderr=self.messages.kernel_fds[1],
            cwd="/",
            env={"TMPDIR": memory_folder, "PATH": "/usr/bin:/bin"},
            pass_fds=[*fds, *(fd for console in self.consoles for fd in console.kernel_fds)],
            start_new_session=True,  # so that Ctrl-C interrupts this process only, which then ends the VM
        )
        for console in self.consoles:
            console.close_kernel_fds()
        self._request = request

    def stop(self) -> None:
        """Kill all processes of the VM at once."""
        self._stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, stdout: Sink, stderr: Sink, *, stdin: int | None = None) -> int:
        """Copy the streams until COMMAND has ended, and return its status; raises VMError if the VM ends first.

        ``stdin`` is a file descriptor to forward to COMMAND, unchanged to a terminal, otherwise in frames. An error of
        a sink, such as BrokenPipeError, is passed on unchanged.
        """
        sinks = {self.stdout: stdout, self.stderr: stderr}
        open_consoles = set(self.consoles)
        while self.status is None and self.control in open_consoles:
            ready = self._poll(open_consoles, stdin)
            if self._interrupted and not ready:
                self._interrupt_spinning()
            if stdin is not None and ready.get(stdin) and not self._forward(stdin):
                stdin = None
            for console in self.consoles:
                if ready.get(console.writer):
                    console.send()
                if not ready.get(console.reader) or console not in open_consoles:
                    continue
                if console is self.dialogue:
                    self._read_dialogue(console, sinks)
                    continue
                data = console.receive()
                if data is None:
                    open_consoles.discard(console)
                elif data:
                    self._deliver(console, data, sinks)
        # The VM's init sends all output of COMMAND before its status, so the output is complete now.
        for console in open_consoles - {self.dialogue}:
            while data := console.receive():
                self._deliver(console, data, sinks)
        if self.status is None:
            assert self._process is not None
            ended, log = self._process.wait(), self.log.decode(errors="replace")
            status = ended if ended >= 0 else 128 - ended  # negative if the reaper itself was killed
            kept = None if self._stopped else _keep_log(log)
            raise death(log, status=status, ready=self.ready, kept=kept)
        return self.status

    def _poll(self, consoles: set[Console], stdin: int | None) -> dict[int, int]:
        """Wait for events on the consoles and on `stdin`; return file descriptors with their events."""
        poll = select.poll()
        for console in consoles:
            poll.register(console.reader, select.POLLIN)
            if console.unsent:
                also_reads = console.writer == console.reader
                poll.register(console.writer, select.POLLOUT | (select.POLLIN if also_reads else 0))
        if stdin is not None and self.ready and not self.stdout.unsent and len(self._typed) < _CHUNK:
            poll.register(stdin, select.POLLIN)
        return dict(poll.poll(_INTERRUPT_S * 1000 if self._interrupted else None))

    def _interrupt_spinning(self) -> None:
        """Stop each computing process of the VM for a moment, so that the VM's kernel can deliver an interrupt.

        In virtual time nothing else stops a process that spins and never enters the kernel by itself. Each is a process
        of the host that the kernel traces; the kernel takes a SIGALRM for the end of a time slice.
        """
        import psutil  # installed in the virtual environment only; the rest of this module runs in any Python

        assert self._process is not None
        with contextlib.suppress(psutil.Error):  # a process may have ended meanwhile
            for process in psutil.Process(self._process.pid).children(recursive=True):
                if process.status() == psutil.STATUS_RUNNING and _is_traced(process.pid):
                    process.send_signal(signal.SIGALRM)

    def _forward(self, stdin: int) -> bool:
        """Forward the available part of COMMAND's standard input; return whether there may be more."""
        try:
            data = os.read(stdin, _CHUNK)
        except OSError:  # the terminal was closed
            data = b""
        more = bool(data)
        if not self._forwards_keys:
            self._typed += data
            data = b""
            if interrupt := _INTERRUPTS.match(self._typed):
                data = interrupt[0][-1:]
                del self._typed[: interrupt.end()]
        if self.dialogue is not None and _INTERRUPTS.match(data):
            self._interrupted = True
            self._on_interrupt()
        self.stdout.send(data if self.terminal else b"%d\n%s" % (len(data), data))
        return more

    def _read_dialogue(self, dialogue: Console, sinks: dict[Console, Sink]) -> None:
        """Read COMMAND's dialogue byte by byte, so that the VM stops after a question, and answer the question."""
        assert self._answer is not None
        if self._held_bytes_left:  # HELD_BYTES, after the answer
            self._held_bytes_left -= len(dialogue.receive(min(_CHUNK, self._held_bytes_left)) or b"")
            return
        if (byte := dialogue.receive(1)) != b"\n":
            self._question += byte or b""
            return
        question = bytes(self._question)
        self._question.clear()
        self._interrupted, self._forwards_keys = False, question == _KEYS
        if self._forwards_keys:
            self.stdout.send(bytes(self._typed))
            self._typed.clear()
            return
        until = time.monotonic() + (_LATE_S if self.terminal else 0)
        while True:
            for output in (self.stdout, self.stderr):
                while data := output.receive():
                    self._deliver(output, data, sinks)
            if self._last_output == ENQUIRY or time.monotonic() >= until:
                break
            select.select([self.stdout.reader], [], [], _LATE_S)
        self._last_output = b""
        with contextlib.suppress(VMEnded):  # `wait` will see the consoles' ends
            dialogue.send(self._answer(question, self._typed, self._check_alive))
            self._held_bytes_left = HELD_BYTES

    def _check_alive(self) -> None:
        assert self._process is not None
        # Not by Popen.poll: a signal handler may call this while the interrupted thread holds Popen's lock.
        try:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            raise VMEnded from None
        if ended is not None:
            raise VMEnded

    def _deliver(self, console: Console, data: bytes, sinks: dict[Console, Sink]) -> None:
        if console in sinks:
            if self.dialogue is not None and self.terminal:
                self._last_output, data = data[-1:], data.replace(ENQUIRY, b"")
            sinks[console].write(data)
            sinks[console].flush()
        elif console is self.messages:
            self.log += data
            del self.log[:-_LOG_BYTES]
        else:
            self._handle_control(data)

    def _handle_control(self, data: bytes) -> None:
        """Handle the lines that init sends over the control console (guest.sh lists them)."""
        *sent, self._partial = (self._partial + data).split(b"\n")
        for line in sent:
            word, _, value = line.decode(errors="replace").strip().partition(" ")
            if word == "request" and self.ready:
                raise VMError("the VM ended because a process in it rebooted it")
            if word == "request":
                self.control.send(self._request)
            elif word == "ready":
                self.ready = True
            elif word == "exit":
                self.status = int(value)
            elif word == "error":
                raise VMError(f"the VM did not start: {value}")


def _is_traced(pid: int) -> bool:
    """Return whether a process is a process inside a VM, which is traced, and not one of the VM's own."""
    try:
        return re.search(r"^TracerPid:\t[1-9]", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is not None
    except OSError:
        return False


def _keep_log(log: str) -> Path | None:
    """Write the output of a kernel that died to LOG, replacing the last one; return None if that fails."""
    path = kernel.cache_folder(os.environ) / LOG
    temporary = path.with_name(f".{LOG}.{os.getpid()}-{threading.get_ident()}")  # several VMs may die at the same time
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(log)
        temporary.replace(path)
    except OSError:
        return None
    return path
