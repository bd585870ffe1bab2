"""Files that a schedule is read from, which may be anything until they have been checked."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hosts.collectives.schedule import ScheduleError

MOST_BYTES = 16 * 2**20
MOST_GPUS = 1024
MOST_TASKS_WITH_SLOTS = 20_000
"""The proof keeps a bit for every two tasks."""
MOST_SLOTS = 2**15
"""Of all GPUs together: the proof keeps a bit for every two of them."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading; raises ScheduleError, one sentence that begins with the file, also within."""
    try:
        # A pipe or a device would block or never end: opened without waiting, it is looked at before it is read.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ScheduleError(f"{path}: it cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ScheduleError(f"{path}: it is not a regular file; allowed: one")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        raise ScheduleError(f"{path}: it cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def text_of(path: Path) -> str:
    """The text of a regular file in UTF-8; raises ScheduleError, one sentence that begins with the file."""
    with opened(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ScheduleError(f"{path}: it is too large; allowed: {MOST_BYTES:,} bytes at most")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{path}: byte {error.start:,} is not UTF-8; allowed: text in UTF-8") from None


def check_size(path: Path, *, gpus: int, slots: int, tasks: int) -> None:
    """Raise ScheduleError for a schedule that is too large to be proven in a moment; slots are those of one GPU."""
    if not 2 <= gpus <= MOST_GPUS or gpus * slots > MOST_SLOTS or not 1 <= tasks <= MOST_TASKS_WITH_SLOTS:
        raise ScheduleError(
            f"{path}: {gpus:,} GPUs with {slots:,} slots each and {tasks:,} messages; allowed: 2 to {MOST_GPUS:,} "
            f"GPUs, {MOST_SLOTS:,} slots of all GPUs together, and 1 to {MOST_TASKS_WITH_SLOTS:,} messages"
        )
