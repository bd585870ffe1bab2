"""Gives the user's terminal to the VM: sets it to raw mode, keeps the VM's terminal at its size, and restores it on
exit and on any error."""

import contextlib
import os
import signal
import termios
import threading
import tty
from collections.abc import Callable, Iterator


def is_terminal() -> bool:
    """Return whether standard input and standard output are both terminals."""
    return os.isatty(0) and os.isatty(1)


@contextlib.contextmanager
def raw_mode(master: int) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Set standard input's terminal to raw mode within the context, and keep the pseudo-terminal `master` at its size.

    The context's value is a function that returns an inner context, in which the terminal has its original mode and
    SIGINT has no effect unless the caller installs a handler.
    """
    saved = termios.tcgetattr(0)
    copy_size(master)
    previous = None
    if threading.current_thread() is threading.main_thread():
        previous = signal.signal(signal.SIGWINCH, lambda _number, _frame: copy_size(master))

    @contextlib.contextmanager
    def original_mode() -> Iterator[None]:
        handler = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, saved)
            yield
        finally:
            tty.setraw(0, termios.TCSADRAIN)  # TCSADRAIN keeps the keys that were typed ahead
            signal.signal(signal.SIGINT, handler)

    try:
        tty.setraw(0)
        yield original_mode
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)
        if previous is not None:
            signal.signal(signal.SIGWINCH, previous)


def copy_size(master: int) -> None:
    """Set the size of a pseudo-terminal to that of standard input's terminal."""
    with contextlib.suppress(termios.error):
        termios.tcsetwinsize(master, termios.tcgetwinsize(0))
