"""Where a run's folder is: a new one, or one to go on with, which is this run's alone while it is at work."""

import fcntl
import itertools
import os
import stat
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from topologies.errors import one_line

RESULTS = Path("results")
"""Where run folders are made, relative to the folder the command was called from."""


class FolderError(ValueError):
    """A folder that results cannot be written to; the message names it."""


def check(path: Path) -> None:
    """Raise FolderError unless `path` can become a run folder: new or empty, and not below a file."""
    if not str(path).isprintable():
        raise FolderError(f"{one_line(str(path))} is no name to be shown: allowed is printable text")
    try:
        if path.is_dir():
            if any(path.iterdir()) and not is_scaffold(path):
                raise FolderError(f"{path} is not empty: allowed is a new folder or an empty one")
            return
        if path.exists() or path.is_symlink():
            raise FolderError(f"{path} is no folder: allowed is a new folder or an empty one")
        above = next(parent for parent in path.absolute().parents if parent.exists())
        if not above.is_dir():
            raise FolderError(f"{path} cannot be made: {above} is no folder")
    except OSError as error:
        raise FolderError(f"{path} cannot be looked at: {error.strerror}") from None


class Place:
    """A folder that can be written to, locked until it is closed or this process ends."""

    def __init__(self, path: Path, made: Sequence[Path] = ()) -> None:
        """Lock `path`; `made` are the folders that were made for it, innermost first. Raises FolderError."""
        self.path = path
        self._made = made
        try:
            self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FolderError(f"{path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise FolderError(f"{path} is being written to by another run: allowed is one at a time") from None
            raise FolderError(f"{path} cannot be written to: {error.strerror}") from None

    @classmethod
    def new(cls, path: Path) -> "Place":
        """A new folder at `path`, or an empty one that is there; raises FolderError.

        As empty counts a folder whose run was killed before it had been described: that is taken away.
        """
        check(path)
        missing = [path, *path.absolute().parents]
        made = list(itertools.takewhile(lambda folder: not folder.exists(), missing))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _take_away(made)
            raise FolderError(f"{path} cannot be written to: {error.strerror}") from None
        try:
            place = cls(path, made)
        except FolderError:
            _take_away(made)
            raise
        try:
            if any(path.iterdir()) and is_scaffold(path):
                _clear(path)
        except OSError as error:
            place.close()
            raise FolderError(f"{path} cannot be written to: {error.strerror}") from None
        if any(path.iterdir()):  # another run was faster
            place.close()
            raise FolderError(f"{path} is not empty: allowed is a new folder or an empty one")
        return place

    @classmethod
    def dated(cls, name: str, now: datetime) -> "Place":
        """A folder results/NAME-DATE-TIME of its own, numbered where runs began within one second."""
        stem = f"{name}-{now:%Y%m%d-%H%M%S}"
        for number in itertools.count(1):
            path = RESULTS / (stem if number == 1 else f"{stem}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if not RESULTS.is_dir():
                    raise FolderError(f"{RESULTS.absolute()} is no folder: results are written into it") from None
            except OSError as error:
                raise FolderError(f"{path} cannot be made: {error.strerror}") from None
            else:
                return cls(path, [path])
        raise AssertionError("counting never ends")

    def abandon(self) -> None:
        """Take away the folders made for this run that are empty."""
        _take_away(self._made)

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def is_scaffold(path: Path) -> bool:
    """Whether a folder holds what a run makes before it has described itself, and nothing else."""
    from analysis.results.reader import POINTS, PROVENANCE, SCENARIO, SETTINGS  # with Parquet, which takes its time

    own = {SCENARIO, SETTINGS, *(f".{name}.new" for name in (SCENARIO, SETTINGS, PROVENANCE))}
    try:
        found = {file.name: file.lstat().st_mode for file in path.iterdir()}
        points = stat.S_ISDIR(found.pop(POINTS, 0)) and not any((path / POINTS).iterdir())
    except OSError:
        return False
    return points and found.keys() <= own and all(map(stat.S_ISREG, found.values()))


def _clear(path: Path) -> None:
    folders = [file for file in path.iterdir() if file.is_dir()]
    for file in set(path.iterdir()) - set(folders):
        file.unlink()
    for folder in folders:  # last: without it the rest would be somebody else's
        folder.rmdir()


def _take_away(folders: Sequence[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
