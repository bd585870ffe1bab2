"""Files that survive: a new one takes the place of an old one whole, and is on the disk before one relies on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def settle(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path to write a new file to, which then takes the place of the one at `path`; on the disk at the end.

    Whenever the power fails `path` is the old file or the new one, whole.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        settle(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Have `path` hold this text, whole or not at all; raises OSError where that fails."""
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
