"""Reads schedule files, which are untrusted input, and checks their size."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hosts.collectives.schedule import ScheduleError

MAX_BYTES = 16 * 2**20
MAX_GPUS = 1024
MAX_TASKS_WITH_SLOTS = 20_000
"""Maximum number of messages of a schedule that is proven: the proof keeps a bit for every pair of them."""
MAX_SLOTS = 2**15
"""Maximum number of slots of all GPUs together: the proof keeps a bit for every pair of them."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; raises ScheduleError, one sentence that begins with the path, here and within
    the `with` block."""
    try:
        # Opening or reading a pipe or a device could block: open without blocking, and check the type before reading.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ScheduleError(f"{path}: it cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ScheduleError(f"{path}: not a regular file; allowed: a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        raise ScheduleError(f"{path}: it cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def text_of(path: Path) -> str:
    """Return the text of a regular file in UTF-8; raises ScheduleError, one sentence that begins with the path."""
    with opened(path) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ScheduleError(f"{path}: it is too large; allowed: {MAX_BYTES:,} bytes at most")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{path}: byte {error.start:,} is not UTF-8; allowed: text in UTF-8") from None


def check_size(path: Path, *, gpus: int, slots: int, tasks: int) -> None:
    """Raise ScheduleError for a schedule that is too large to be proven quickly; `slots` is the number per GPU."""
    if not 2 <= gpus <= MAX_GPUS or gpus * slots > MAX_SLOTS or not 1 <= tasks <= MAX_TASKS_WITH_SLOTS:
        raise ScheduleError(
            f"{path}: {gpus:,} GPUs with {slots:,} slots each and {tasks:,} messages; allowed: 2 to {MAX_GPUS:,} "
            f"GPUs, {MAX_SLOTS:,} slots of all GPUs together, and 1 to {MAX_TASKS_WITH_SLOTS:,} messages"
        )
