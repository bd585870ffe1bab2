"""Signs of life on stderr while a command does what may take long."""

import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

SILENT_S = 8.0
"""The longest silence in a file or pipe: users are promised a line every 15 s, and the thread may be late."""

QUIET_S = 2.0
"""The time after which a terminal shows the line. In a pipe it would be among the errors of every command that a busy
machine makes slower than that."""
_REFRESH_S = 1.0  # between the updates of the line at a terminal


@contextmanager
def heartbeat(describe: Callable[[], str]) -> Generator[None, None, None]:
    """Show `describe()`, the current activity, and the time since it began, until the context ends.

    A terminal shows it in one line from the third second on, which is erased at the end. Elsewhere a line is printed
    every few seconds.
    """
    began_s = time.monotonic()

    def line() -> str:
        return f"{describe()}, {time.monotonic() - began_s:.0f} s so far"

    if not sys.stderr.isatty():
        with breaking_silence(line):
            yield
        return
    shown = False

    def show() -> float:
        nonlocal shown
        shown = True
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # 0: the terminal has not said its size
        print(f"\r{line()[: columns - 1]}\x1b[K", end="", file=sys.stderr, flush=True)
        return _REFRESH_S

    try:
        with repeating(show, QUIET_S):
            yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def breaking_silence(describe: Callable[[], str]) -> Generator[Callable[[str], None], None, None]:
    """Yield a function that prints a line on stderr; after a silence of some seconds `describe()` is printed."""
    last_s = time.monotonic()

    def say(line: str) -> None:
        nonlocal last_s
        print(f"{line}\n", end="", file=sys.stderr, flush=True)  # one write, because two threads print
        last_s = time.monotonic()

    def beat() -> float:
        if time.monotonic() >= last_s + SILENT_S:
            say(describe())
        return last_s + SILENT_S - time.monotonic()

    with repeating(beat, SILENT_S):
        yield say


@contextmanager
def repeating(beat: Callable[[], float], first_s: float) -> Generator[None, None, None]:
    """Call `beat` in a thread after `first_s`, then always after the time that it returns, until the context ends."""
    over = threading.Event()

    def run() -> None:
        wait_s = first_s
        with suppress(OSError):  # stderr is closed; the main thread will notice
            while not over.wait(max(0.0, wait_s)):
                wait_s = beat()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
