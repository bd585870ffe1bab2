"""The user's terminal, lent to the VM: raw while the VM runs, its size passed on, restored on every way out."""

import contextlib
import os
import signal
import termios
import threading
import tty
from collections.abc import Callable, Iterator


def is_terminal() -> bool:
    """Whether the process has a terminal to lend: its standard input and output are both one."""
    return os.isatty(0) and os.isatty(1)


@contextlib.contextmanager
def lent(master: int) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Make standard input's terminal raw for the time of the context, and keep a pseudo-terminal at its size.

    The context's value makes a context for the time of which the terminal is as it was before; Ctrl-C does nothing then
    but what is provided for within.
    """
    saved = termios.tcgetattr(0)
    copy_size(master)
    previous = None
    if threading.current_thread() is threading.main_thread():
        previous = signal.signal(signal.SIGWINCH, lambda _number, _frame: copy_size(master))

    @contextlib.contextmanager
    def returned() -> Iterator[None]:
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, saved)
            yield
        finally:
            tty.setraw(0, termios.TCSADRAIN)  # what is typed ahead stays
            signal.signal(signal.SIGINT, before)

    try:
        tty.setraw(0)
        yield returned
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)
        if previous is not None:
            signal.signal(signal.SIGWINCH, previous)


def copy_size(master: int) -> None:
    """Give a pseudo-terminal the size of standard input's terminal."""
    with contextlib.suppress(termios.error):
        termios.tcsetwinsize(master, termios.tcgetwinsize(0))
