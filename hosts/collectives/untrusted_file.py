"""Reads schedule files, which are untrusted input, and checks their size."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hosts.collectives.schedule import ScheduleError
from topologies import text_files

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
    with _schedule_errors(path), text_files.opened(path) as file:
        yield file


def bytes_of(path: Path) -> bytes:
    """Return the bytes of a regular file; raises ScheduleError, one sentence that begins with the path."""
    with _schedule_errors(path):
        return text_files.read_bytes(path, most_bytes=MAX_BYTES)


def text_in(path: Path, content: bytes) -> str:
    """Return the text that a file's bytes are; raises ScheduleError, one sentence that begins with the path."""
    with _schedule_errors(path):
        return text_files.decode(content)


def xml_text_in(path: Path, content: bytes) -> str:
    """Return the text of an XML file with these bytes, in the encoding that it declares, without its declaration;
    raises ScheduleError, one sentence that begins with the path."""
    with _schedule_errors(path):
        return text_files.decode_xml(content)


@contextmanager
def _schedule_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except text_files.TextFileError as error:
        raise ScheduleError(f"{path}: {error}") from None


def check_size(path: Path, *, gpus: int, slots: int, tasks: int, most_slots: int = MAX_SLOTS) -> None:
    """Raise ScheduleError for a schedule that is too large to be proven quickly; `slots` is the number per GPU."""
    if not 2 <= gpus <= MAX_GPUS or gpus * slots > most_slots or not 1 <= tasks <= MAX_TASKS_WITH_SLOTS:
        raise ScheduleError(
            f"{path}: {gpus:,} GPUs with {slots:,} slots each and {tasks:,} messages; allowed: 2 to {MAX_GPUS:,} "
            f"GPUs, {most_slots:,} slots of all GPUs together, and 1 to {MAX_TASKS_WITH_SLOTS:,} messages"
        )
