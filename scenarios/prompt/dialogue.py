"""The prompt's lines where its network is in virtual time: they are typed and edited on the host, and asked for from
inside the VM, which stands still meanwhile (`scenarios.vm.machine`).

A question is a JSON object in a line: `verbs`, `modes`, `dead` (the failed cables, as pairs of names). The answer is a
line's text in JSON, or null at the end of the lines.
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
from scenarios.vm.machine import ENQUIRY, HELD_BYTES, Gone
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import cable

CONSOLE = Path("/dev/tty4")
PROMPT = "mininet> "
MAX_LINE = 4000  # characters
_LINES = 1000
_CHECK_S = 0.2


class Inside:
    """In the VM: what a prompt reads its lines from, in place of standard input.

    `state` gives what a question tells.
    """

    def __init__(self, state: Callable[[], dict[str, Any]]) -> None:
        self._state = state
        self._fd = os.open(CONSOLE, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(self._fd)
        settings = termios.tcgetattr(self._fd)
        settings[6][termios.VMIN] = settings[6][termios.VTIME] = 0  # waiting would let the clock run
        termios.tcsetattr(self._fd, termios.TCSANOW, settings)

    def fileno(self) -> int:
        """Standard input's, which is a terminal where the lines are typed at one."""
        return 0

    def readline(self) -> str:
        """The next line, "" at the end of the lines; no virtual time passes until it is there.

        An interrupt meanwhile is for nothing that runs, and half a question would not be answered.
        """
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if os.isatty(0):
                termios.tcflush(0, termios.TCIFLUSH)  # keys that a command has not read
                sys.stdout.buffer.write(ENQUIRY)
            sys.stdout.flush()
            self._send(json.dumps(self._state()).encode() + b"\n" + bytes(HELD_BYTES))
            answer = b""
            while not answer.endswith(b"\n"):
                answer += os.read(self._fd, 65536)
                os.sched_yield()  # to the kernel's thread that brings it
        finally:
            signal.signal(signal.SIGINT, before)
        line = json.loads(answer)
        return "" if line is None else f"{line}\n"

    def want_keys(self) -> None:
        """From now on to the next line, have the keys that are typed become this process's input."""
        self._send(b"keys\n")

    def _send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]


class Outside:
    """On the host: answers the questions, with lines that are typed at the terminal, or read from standard input.

    `fabric` names what Tab completes. Ctrl-C drops the line that is being typed, as in a shell. While a line is carried
    out, the one of number `answers`, `is_answered` holds, and `is_interrupted` once Ctrl-C was pressed.
    """

    def __init__(self, fabric: Fabric, *, at_terminal: bool, history: Path) -> None:
        self._fabric, self._at_terminal, self._history = fabric, at_terminal, history
        self._question: dict[str, Any] = {}
        self._awaits = False  # a line that is being typed
        self.is_answered = self.is_interrupted = False
        self.answers = 0

    def interrupt(self) -> None:
        """Note that Ctrl-C was pressed while a line is carried out."""
        self.is_interrupted = True

    def __call__(self, question: bytes, typed: bytearray, check: Callable[[], None]) -> bytes:
        """The answer to a question; takes the first line that was typed ahead, or begins with what was.

        `check` is called every now and then while a line is awaited; what it raises ends that.
        """
        self._question, self.is_answered = json.loads(question), False
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
        """The next line of standard input."""
        line = sys.stdin.buffer.readline(4 * MAX_LINE).decode(errors="replace")
        while line and len(line) > MAX_LINE:
            _refuse(line)
            while line and not line.endswith("\n"):
                line = sys.stdin.buffer.readline(4 * MAX_LINE).decode(errors="replace")
            line = sys.stdin.buffer.readline(4 * MAX_LINE).decode(errors="replace")
        return line.rstrip("\r\n") if line else None

    def _typed(self, typed: bytearray, check: Callable[[], None]) -> str | None:
        """The next line that is typed; None at Ctrl-D."""
        while True:
            ahead = bytes(typed).replace(b"\r", b"\n").partition(b"\n")
            del typed[: len(ahead[0]) + len(ahead[1])]
            begun = "".join(filter(str.isprintable, ahead[0].decode(errors="replace")))
            if ahead[1]:
                print(f"{PROMPT}{begun}", flush=True)
                line = begun
                readline.add_history(line)
            else:
                readline.set_startup_hook(partial(readline.insert_text, begun))
                try:
                    with checking_signals(check):
                        line = self._input()
                except KeyboardInterrupt:
                    print("\nInterrupt", flush=True)
                    continue
                except EOFError:
                    print(flush=True)
                    return None
                except Gone:
                    print(flush=True)
                    raise
            if len(line) <= MAX_LINE:
                return line
            _refuse(line)

    def _input(self) -> str:
        """A line that is typed; Ctrl-C raises KeyboardInterrupt."""
        self._awaits = True
        try:
            return input(PROMPT)
        except SystemError as error:  # another signal's handler was called while the exception of one was under way
            raise error.__cause__ or error from None
        finally:
            self._awaits = False

    def _drop(self, *_: object) -> None:
        """Take Ctrl-C: between two lines it is for nothing."""
        if self._awaits:
            self._awaits = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def editing(self) -> Iterator["Outside"]:
        """Within the context, readline has the history of earlier prompts, which is kept at the end, and Tab."""
        if not self._at_terminal:
            yield self
            return
        readline.set_history_length(_LINES)
        readline.set_completer_delims(" \t\n")  # names of links have characters in them at which it would stop
        readline.set_completer(self._complete)
        readline.parse_and_bind("tab: complete")
        with contextlib.suppress(OSError):
            readline.read_history_file(self._history)
        try:
            yield self
        finally:
            with contextlib.suppress(OSError):
                self._history.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(self._history)
                self._history.chmod(0o600)

    def _complete(self, text: str, index: int) -> str | None:
        words = readline.get_line_buffer()[: readline.get_begidx()].split()
        asked = self._question
        dead = frozenset(cable(*ends) for ends in asked["dead"])
        found = completed(self._fabric, words, text, dead=dead, verbs=asked["verbs"], modes=asked["modes"])
        return found[index] if index < len(found) else None


@contextlib.contextmanager
def checking_signals(check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within the context, have the prompt check for signals every now and then as it waits for a line, by `check` too.

    One that comes between its last check and its wait, or to another thread, would wait for the line, too.
    """
    signal.signal(signal.SIGALRM, lambda *_: check())
    # It must end a wait, and cut off nothing that readline writes at a terminal, where the wait is a select.
    signal.siginterrupt(signal.SIGALRM, not (os.isatty(0) and os.isatty(1)))
    signal.setitimer(signal.ITIMER_REAL, _CHECK_S, _CHECK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # at its exit Python would die of the next one
        signal.signal(signal.SIGALRM, lambda *_: None)


def _refuse(line: str) -> None:
    print(f"a line of {len(line):,} characters or more; allowed: up to {MAX_LINE:,}", flush=True)
