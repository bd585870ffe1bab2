"""A node's command in the foreground: what it says is shown, what is typed is its input, Ctrl-C is for it."""

import contextlib
import os
import select
import termios
from collections.abc import Iterator
from typing import Any

_READ_BYTES = 4096


def attend(node: Any, *, at_terminal: bool) -> None:
    """Return once the node's command has ended. Without a terminal nothing is its input: lines are for the prompt."""
    with _by_the_key() if at_terminal else contextlib.nullcontext():
        poll = select.poll()
        poll.register(node.stdout, select.POLLIN)
        if at_terminal:
            poll.register(0, select.POLLIN)
        while node.waiting:
            try:
                for fd, _ in poll.poll():
                    if fd == 0:
                        _type(node, poll)
                    elif node.waiting:
                        print(node.monitor(), end="", flush=True)
            except KeyboardInterrupt:
                node.sendInt()
    # What the command has not read must not become part of the node's next one.
    termios.tcflush(node.slave, termios.TCIFLUSH)


def _type(node: Any, poll: "select.poll") -> None:
    """Pass on what was typed; at its end there is nothing more to come."""
    data = os.read(0, _READ_BYTES)
    if data:
        node.write(data.decode(errors="replace"))
    else:
        poll.unregister(0)


@contextlib.contextmanager
def _by_the_key() -> Iterator[None]:
    """Have the terminal give keys as they come, not lines."""
    before = termios.tcgetattr(0)
    changed = termios.tcgetattr(0)
    changed[3] &= ~termios.ICANON
    termios.tcsetattr(0, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
