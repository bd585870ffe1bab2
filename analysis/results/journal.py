"""Journals: files that records are appended to, each of them whole or not there, whenever the power fails.

A record is a line with the checksum and the size of what follows, the bytes themselves, and an end of line. It is on
the disk when `append` returns. What an append that was cut short left at the end of a file is no record and is cut
off by the next writer; anything wrong before a whole record is damage, and said to be. Knows nothing of the bytes.
"""

import mmap
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from analysis.results.durable import settle

_HEAD = re.compile(rb"([0-9a-f]{8}) ([0-9]{1,12})\n")


class JournalError(ValueError):
    """A journal that is damaged; the message names the file and the place."""


@dataclass(frozen=True)
class Found:
    """The place of one record's bytes in a journal."""

    offset: int
    size: int


class Journal:
    """A journal to append to; a context manager, or to be closed."""

    def __init__(self, path: Path) -> None:
        """Open the journal at `path`, made if there is none; raises JournalError where it is damaged, and OSError."""
        end = _end(path) if path.exists() else None
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if end is None:
            settle(path.parent)
        else:
            os.ftruncate(self._fd, end)

    def append(self, data: bytes) -> None:
        """Append one record; it is on the disk when this returns. Raises OSError where that fails."""
        record = b"%08x %d\n%b\n" % (zlib.crc32(data), len(data), data)
        before = os.fstat(self._fd).st_size
        try:
            while record:
                record = record[os.write(self._fd, record) :]
            os.fdatasync(self._fd)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, before)
            raise

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def records(path: Path) -> Iterator[tuple[Found, bytes]]:
    """Every record of the journal at `path` and its place, in order; raises JournalError where it is damaged."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            offset = 0
            while offset < len(data):
                record = _record(data, offset)
                if record is None:
                    if _whole_one_after(data, offset):
                        raise JournalError(f"{path} is damaged at byte {offset:,}")
                    return
                yield record, data[record.offset : record.offset + record.size]
                offset = record.offset + record.size + 1


def _record(data: mmap.mmap, offset: int) -> Found | None:
    """The whole record that begins there, if one does."""
    head = _HEAD.match(data, offset)
    if head is None:
        return None
    start, size = head.end(), int(head[2])
    if data[start + size : start + size + 1] != b"\n" or zlib.crc32(data[start : start + size]) != int(head[1], 16):
        return None
    return Found(start, size)


def _whole_one_after(data: mmap.mmap, offset: int) -> bool:
    return any(_record(data, head.start()) for head in _HEAD.finditer(data, offset + 1))


def _end(path: Path) -> int:
    last = 0
    for record, _ in records(path):
        last = record.offset + record.size + 1
    return last
