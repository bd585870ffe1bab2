"""One VM as a process of the host: start it, carry its streams, learn how COMMAND ended, stop it without a trace.

The VM leaves nothing behind because it never makes anything that has a name: the guest's memory is an unnamed file,
init is a file of the project, and what to run goes through the control console. Its processes die with the thread
that started it, which warden.sh sees to, so even a launcher that is killed leaves none.
"""

import contextlib
import os
import select
import socket
import subprocess
from pathlib import Path
from typing import Protocol

from scenarios.vm import autopsy
from scenarios.vm.errors import VMError

INIT = Path(__file__).with_name("guest.sh")
WARDEN = Path(__file__).with_name("warden.sh")

# The kernel makes a folder for itself below uml_dir. None can be made in /proc, not even by root, so it goes without.
NO_FOLDER = "/proc/"

_CHUNK = 65536
_LOG_BYTES = 65536


class Sink(Protocol):
    """Where a stream of the VM goes: a binary file, or anything that can be written to like one."""

    def write(self, data: bytes, /) -> object: ...
    def flush(self) -> object: ...


class Line:
    """One console of the VM: our end of it, and the file descriptor that the kernel gets."""

    def __init__(self, *, terminal: bool = False) -> None:
        if terminal:
            ours, theirs = os.openpty()
        else:
            left, right = socket.socketpair()
            ours, theirs = left.detach(), right.detach()
        os.set_blocking(ours, False)
        self.ours: int = ours
        self.theirs: int = theirs
        self.unsent = bytearray()

    def send(self, data: bytes = b"") -> None:
        """Send what is waiting to be sent and then ``data``, as far as the kernel takes it; the rest waits."""
        self.unsent += data
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self.unsent:
                del self.unsent[: os.write(self.ours, self.unsent)]

    def receive(self) -> bytes | None:
        """Return what has arrived, b"" when nothing has, None when nothing more can."""
        try:
            return os.read(self.ours, _CHUNK) or None
        except BlockingIOError:
            return b""
        except OSError:  # a pseudo-terminal or a socket whose other end is gone
            return None

    def close(self) -> None:
        """Close both ends."""
        for fd in (self.ours, self.theirs):
            if fd >= 0:
                os.close(fd)
        self.ours = self.theirs = -1


class Machine:
    """A VM that runs one command.

    ``terminal`` makes the first line a pseudo-terminal, whose other side is ``stdout.ours``. Use as a context
    manager: leaving it kills what still runs. ``stop`` may be called from any thread or signal handler.
    """

    def __init__(self, *, terminal: bool = False) -> None:
        self.kernel, self.stdout, self.stderr, self.control = Line(), Line(terminal=terminal), Line(), Line()
        self.terminal = terminal
        self.log = bytearray()
        self.ready = False
        self.status: int | None = None
        self._lines = (self.kernel, self.stdout, self.stderr, self.control)
        self._said = bytearray()
        self._request = b""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._process is not None:
            self._process.wait()
        for line in self._lines:
            line.close()

    def start(self, kernel: Path, arguments: tuple[str, ...], *, memory_folder: str, request: bytes) -> None:
        """Start the kernel; raises OSError when the host cannot."""
        warden = ["setpriv", "--pdeathsig", "TERM", "--", "sh", str(WARDEN), str(os.getpid())]
        self._process = subprocess.Popen(
            [*warden, str(kernel), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self.kernel.theirs,
            stderr=self.kernel.theirs,
            cwd="/",
            env={"TMPDIR": memory_folder, "PATH": "/usr/bin:/bin"},
            pass_fds=[line.theirs for line in self._lines],
            start_new_session=True,  # Ctrl-C is for us: we then end the VM
        )
        for line in self._lines:
            os.close(line.theirs)
            line.theirs = -1
        self._request = request

    def stop(self) -> None:
        """Kill the VM, at once and whole."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, stdout: Sink, stderr: Sink, *, stdin: int | None = None) -> int:
        """Carry the streams until COMMAND has ended and return its status; raises VMError when the VM ends first.

        ``stdin`` is a file descriptor to forward to COMMAND: as it is to a terminal, in frames otherwise. An error
        of a sink (BrokenPipeError, say) is raised as it is.
        """
        sinks = {self.stdout: stdout, self.stderr: stderr}
        open_lines = set(self._lines)
        while self.status is None and self.control in open_lines:
            ready = self._poll(open_lines, stdin)
            if stdin is not None and ready.get(stdin) and not self._forward(stdin):
                stdin = None
            for line in [line for line in self._lines if ready.get(line.ours)]:
                line.send()
                data = line.receive()
                if data is None:
                    open_lines.discard(line)
                elif data:
                    self._take(line, data, sinks)
        # Whatever COMMAND wrote was in our hands before its status was: the VM's init sees to that order.
        for line in open_lines:
            while data := line.receive():
                self._take(line, data, sinks)
        if self.status is None:
            raise autopsy.error(self.log.decode(errors="replace"), status=self._reap(), ready=self.ready)
        return self.status

    def _poll(self, lines: set[Line], stdin: int | None) -> dict[int, int]:
        """Wait for something to do; return file descriptors with their events."""
        poll = select.poll()
        for line in lines:
            poll.register(line.ours, select.POLLIN | (select.POLLOUT if line.unsent else 0))
        if stdin is not None and self.ready and not self.stdout.unsent:
            poll.register(stdin, select.POLLIN)
        return dict(poll.poll())

    def _forward(self, stdin: int) -> bool:
        """Pass on what can be read of COMMAND's standard input; tell whether there may be more."""
        try:
            data = os.read(stdin, _CHUNK)
        except OSError:  # the terminal is gone
            data = b""
        self.stdout.send(data if self.terminal else b"%d\n%s" % (len(data), data))
        return bool(data)

    def _take(self, line: Line, data: bytes, sinks: dict[Line, Sink]) -> None:
        if line in sinks:
            sinks[line].write(data)
            sinks[line].flush()
        elif line is self.kernel:
            self.log += data
            del self.log[:-_LOG_BYTES]
        else:
            self._hear(data)

    def _hear(self, data: bytes) -> None:
        """Take in what init says over the control console (guest.sh has the words)."""
        self._said += data
        while b"\n" in self._said:
            said, _, rest = bytes(self._said).partition(b"\n")
            self._said[:] = rest
            word, _, value = said.decode(errors="replace").strip().partition(" ")
            if word == "request":
                self.control.send(self._request)
            elif word == "ready":
                self.ready = True
            elif word == "exit":
                self.status = int(value)
            elif word == "error":
                raise VMError(f"the VM did not come up: {value}")

    def _reap(self) -> int:
        assert self._process is not None
        return self._process.wait()
