"""Wakes a thread that waits on descriptors."""

import os
from contextlib import suppress


class Wake:
    """A descriptor that is readable from `set` until `clear`; every waiting loop has one. It may be set once closed.

    `is_over` tells the loop to end: set it before `set`.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def set(self) -> None:
        """Wake the thread that waits, or else the next one."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Close the descriptor; no thread may wait on it any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
