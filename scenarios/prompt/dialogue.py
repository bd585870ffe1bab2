"""Input lines of a prompt in virtual time: the prompt runs inside the VM and requests each line from the host, where
the user types and edits it. The VM stands still until the host answers (`scenarios.vm.machine`).

A request is a JSON object on one line: `verbs`, `modes`, `dead` (the failed cables, as pairs of names). The answer is
the text of the line as a JSON string, or null when the input has ended.
"""

import contextlib
import json
import os
import readline
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from scenarios.prompt.arguments import completed
from scenarios.vm.machine import ENQUIRY, HELD_BYTES, VMEnded
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import cable

CONSOLE = Path("/dev/tty4")
PROMPT = "mininet> "
MAX_LINE = 4000  # characters
_HISTORY_LINES = 1000
_CHECK_S = 0.2


class LineClient:
    """The VM's side: a file-like object that a prompt reads its lines from, in place of standard input.

    `state` returns the fields of a request.
    """

    def __init__(self, state: Callable[[], dict[str, Any]]) -> None:
        self._state = state
        self._fd = os.open(CONSOLE, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(self._fd)
        settings = termios.tcgetattr(self._fd)
        settings[6][termios.VMIN] = settings[6][termios.VTIME] = 0  # a read that waited would let the clock run
        termios.tcsetattr(self._fd, termios.TCSANOW, settings)

    def fileno(self) -> int:
        """Return the descriptor of standard input, which is a terminal if the user types the lines at one."""
        return 0

    def readline(self) -> str:
        """Return the next line, "" at the end of the input; no virtual time passes until the line has arrived.

        SIGINT is ignored meanwhile: no command is running that it could interrupt, and the host would not answer a
        request that was cut off.
        """
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if os.isatty(0):
                termios.tcflush(0, termios.TCIFLUSH)  # discard keys that the last command has not read
                sys.stdout.buffer.write(ENQUIRY)
            sys.stdout.flush()
            self._send(json.dumps(self._state()).encode() + b"\n" + bytes(HELD_BYTES))
            answer = b""
            while not answer.endswith(b"\n"):
                answer += os.read(self._fd, 65536)
                os.sched_yield()  # to the kernel thread that delivers the answer
        finally:
            signal.signal(signal.SIGINT, before)
        line = json.loads(answer)
        return "" if line is None else f"{line}\n"

    def want_keys(self) -> None:
        """Have the host deliver typed keys to this process's standard input until the next line is requested."""
        self._send(b"keys\n")

    def _send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]


class LineServer:
    """The host's side: answers requests with lines that the user types at the terminal, or from standard input.

    Tab completes names of `fabric`. Ctrl-C discards the line being typed, as in a shell. `answers` counts the lines
    sent so far, and `refused` the piped lines that were too long. `is_answered` is True while the prompt executes the
    last of the lines sent, and `is_interrupted` once Ctrl-C was pressed during that time.
    """

    def __init__(self, fabric: Fabric, *, at_terminal: bool, history: Path) -> None:
        self._fabric, self._at_terminal, self._history = fabric, at_terminal, history
        self._request: dict[str, Any] = {}
        self._is_typing = False  # whether a line is being typed
        self.is_answered = self.is_interrupted = False
        self.answers = self.refused = 0

    def interrupt(self) -> None:
        """Record that Ctrl-C was pressed while the prompt executes a line."""
        self.is_interrupted = True

    def __call__(self, request: bytes, typed: bytearray, check: Callable[[], None]) -> bytes:
        """Return the answer to a request.

        `typed` holds the keys typed ahead: the first whole line in it is the answer and is removed, or else its text
        becomes the beginning of the line to edit. `check` is called periodically during the wait for a line, and an
        exception that it raises ends the wait.
        """
        self._request, self.is_answered = json.loads(request), False
        if self._at_terminal:
            before = signal.signal(signal.SIGINT, self._drop)
            try:
                line = self._typed(typed, check)
            finally:
                signal.signal(signal.SIGINT, before)
        else:
            with checking_signals(check):
                line = self._piped()
        self.answers += 1
        self.is_answered, self.is_interrupted = True, False
        return json.dumps(line).encode() + b"\n"

    def _piped(self) -> str | None:
        """Return the next line of standard input, None at its end; lines that are too long are reported and skipped."""
        while True:
            line = sys.stdin.buffer.readline(4 * MAX_LINE).decode(errors="replace")
            if len(line) <= MAX_LINE:
                return line.rstrip("\r\n") if line else None
            _refuse(line)
            self.refused += 1
            while line and not line.endswith("\n"):  # skip the rest of it
                line = sys.stdin.buffer.readline(4 * MAX_LINE).decode(errors="replace")

    def _typed(self, typed: bytearray, check: Callable[[], None]) -> str | None:
        """Return the next line that the user types, or has typed ahead; None at Ctrl-D."""
        while True:
            ahead, newline, _ = bytes(typed).replace(b"\r", b"\n").partition(b"\n")
            del typed[: len(ahead) + len(newline)]
            line = "".join(filter(str.isprintable, ahead.decode(errors="replace")))
            if newline:
                print(f"{PROMPT}{line}", flush=True)
                readline.add_history(line)
            else:
                readline.set_startup_hook(partial(readline.insert_text, line))
                try:
                    with checking_signals(check):
                        line = self._input()
                except KeyboardInterrupt:
                    print("\nInterrupt", flush=True)
                    continue
                except EOFError:
                    print(flush=True)
                    return None
                except VMEnded:
                    print(flush=True)
                    raise
            if len(line) <= MAX_LINE:
                return line
            _refuse(line)

    def _input(self) -> str:
        """Read a line from the terminal; Ctrl-C raises KeyboardInterrupt."""
        self._is_typing = True
        try:
            return input(PROMPT)
        except SystemError as error:  # a signal handler ran while the exception of another one was being raised
            raise error.__cause__ or error from None
        finally:
            self._is_typing = False

    def _drop(self, *_: object) -> None:
        """Handle Ctrl-C: discard the line being typed; between two lines do nothing."""
        if self._is_typing:
            self._is_typing = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def editing(self) -> Iterator["LineServer"]:
        """Within the context, readline completes with Tab and has the history of earlier prompts.

        The history is written back at the end.
        """
        if not self._at_terminal:
            yield self
            return
        readline.set_completer(self._complete)
        readline.parse_and_bind("tab: complete")
        with history(self._history, self._history):
            yield self

    def _complete(self, text: str, index: int) -> str | None:
        words = readline.get_line_buffer()[: readline.get_begidx()].split()
        request = self._request
        dead = frozenset(cable(*ends) for ends in request["dead"])
        names = completed(self._fabric, words, text, dead=dead, verbs=request["verbs"], modes=request["modes"])
        return names[index] if index < len(names) else None


@contextlib.contextmanager
def history(source: Path, target: Path) -> Iterator[None]:
    """Within the context readline has the lines of the file `source`; at the end write these and new ones to `target`.

    A history that cannot be read or written is ignored.
    """
    readline.set_history_length(_HISTORY_LINES)
    readline.set_completer_delims(" \t\n")  # the default delimiters occur in names of links
    with contextlib.suppress(OSError):
        readline.read_history_file(source)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(target)
            target.chmod(0o600)


@contextlib.contextmanager
def checking_signals(check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within the context, wake the prompt every `_CHECK_S` as it waits for a line, to handle signals and call `check`.

    Otherwise a signal that arrives between Python's last check and the blocking read, or in another thread, would be
    handled only after the line.
    """
    signal.signal(signal.SIGALRM, lambda *_: check())
    # SIGALRM must interrupt a blocking read, but no write of readline's; at a terminal the wait is a select, which
    # every signal interrupts.
    signal.siginterrupt(signal.SIGALRM, not (os.isatty(0) and os.isatty(1)))
    signal.setitimer(signal.ITIMER_REAL, _CHECK_S, _CHECK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # a SIGALRM during Python's exit would kill the process
        signal.signal(signal.SIGALRM, lambda *_: None)


def _refuse(line: str) -> None:
    print(f"a line of {len(line):,} characters or more; allowed: up to {MAX_LINE:,}", flush=True)
