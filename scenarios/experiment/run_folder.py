"""Run folders, new or to be resumed: created, checked, and locked while a run writes to them."""

import fcntl
import itertools
import os
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from topologies.errors import one_line

RESULTS = Path("results")
"""The folder in which run folders are created, relative to the working directory."""


class FolderError(ValueError):
    """A folder that results cannot be written to; the message names it."""


def check(path: Path) -> None:
    """Raise FolderError unless `path` can become a run folder: new or empty, and not below a file."""
    if not str(path).isprintable():
        raise FolderError(f"{one_line(str(path))} cannot be printed; allowed: printable text")
    try:
        if path.is_dir():
            if not is_vacant(path):
                raise FolderError(f"{path} is not empty; allowed: a new folder or an empty one")
            return
        if path.exists() or path.is_symlink():
            raise FolderError(f"{path} is not a folder; allowed: a new folder or an empty one")
        above = next(parent for parent in path.absolute().parents if parent.exists())
        if not above.is_dir():
            raise FolderError(f"{path} cannot be made: {above} is not a folder")
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}") from None


def check_figure(path: Path | None) -> None:
    """Raise FolderError if the files of a figure, whose names begin with `path` if it is given, cannot be written."""
    if path is None:
        return
    if not path.name:
        raise FolderError(f'--figure: "{path}" names no file; allowed: a path such as results/mine')
    if not path.parent.is_dir():
        raise FolderError(f"--figure: there is no folder {path.parent}")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise FolderError(f"--figure: {path.parent} cannot be written to: {error.strerror}") from None


class RunFolder:
    """A writable folder, locked until it is closed or this process ends."""

    def __init__(self, path: Path, made: Sequence[Path] = ()) -> None:
        """Lock `path`; `made` are the folders that were created for it, innermost first. Raises FolderError."""
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
            os.close(self._lock)
            if isinstance(error, BlockingIOError):
                raise FolderError(f"{path} is being written to by another run; allowed: one at a time") from None
            raise FolderError(f"{path} cannot be written to: {error.strerror}") from None

    @classmethod
    def new(cls, path: Path) -> "RunFolder":
        """Create a folder at `path`, or take a vacant one that exists; raises FolderError."""
        check(path)
        missing = [path, *path.absolute().parents]
        made = list(itertools.takewhile(lambda folder: not folder.exists(), missing))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _remove(made)
            raise FolderError(f"{path} cannot be written to: {error.strerror}") from None
        try:
            folder = cls(path, made)
        except FolderError:
            _remove(made)
            raise
        if not is_vacant(path):  # another run took it first
            folder.close()
            raise FolderError(f"{path} is not empty; allowed: a new folder or an empty one")
        return folder

    @classmethod
    def dated(cls, name: str, now: datetime) -> "RunFolder":
        """Create a folder results/NAME-DATE-TIME, with a number appended if another run began in the same second."""
        stem = f"{name}-{now:%Y%m%d-%H%M%S}"
        above = [] if RESULTS.exists() else [RESULTS]
        for number in itertools.count(1):
            path = RESULTS / (stem if number == 1 else f"{stem}-{number}")
            try:
                path.mkdir(parents=True)
            except (FileExistsError, NotADirectoryError):
                if not RESULTS.is_dir():
                    raise FolderError(f"{RESULTS.absolute()} is not a folder: results are written into it") from None
            except OSError as error:
                raise FolderError(f"{path} cannot be made: {error.strerror}") from None
            else:
                return cls(path, [path, *above])
        raise AssertionError("counting never ends")

    def abandon(self) -> None:
        """Remove the folders that were created for this run, if they are empty."""
        _remove(self._made)

    def close(self) -> None:
        """Release the lock, also where forked processes still have it open."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
        self._lock = -1


def is_vacant(path: Path) -> bool:
    """Return whether a folder is empty, or holds only what a run writes before its provenance.json; raises OSError."""
    names = {file.name for file in path.iterdir()}
    if not names:
        return True
    from analysis.results.reader import PROVENANCE, SCENARIO, SETTINGS  # imports Parquet, which is slow

    first, *others = (f".{name}.new" for name in (PROVENANCE, SCENARIO, SETTINGS))
    return first in names and names <= {first, *others, SCENARIO, SETTINGS}


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
