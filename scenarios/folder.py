"""The folder of a run: made before the run begins, filled when it is done, and nothing in it ever written over."""

import itertools
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from scenarios.answer import summary_csv
from scenarios.document import one_line
from scenarios.loader import resolved
from scenarios.results import SettingResult
from scenarios.spec import Scenario

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
            if any(path.iterdir()):
                raise FolderError(f"{path} is not empty: allowed is a new folder or an empty one")
            return
        if path.exists() or path.is_symlink():
            raise FolderError(f"{path} is no folder: allowed is a new folder or an empty one")
        above = next(parent for parent in path.absolute().parents if parent.exists())
        if not above.is_dir():
            raise FolderError(f"{path} cannot be made: {above} is no folder")
    except OSError as error:
        raise FolderError(f"{path} cannot be looked at: {error.strerror}") from None


class RunFolder:
    """A folder ready to be written to, and what to do with it when the run ends either way."""

    def __init__(self, path: Path) -> None:
        """Make `path`, which may exist if it is empty; raises FolderError where it cannot be made or written to."""
        check(path)
        missing = [path, *path.absolute().parents]
        self._made = list(itertools.takewhile(lambda folder: not folder.exists(), missing))
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            self.abandon()
            raise FolderError(f"{path} cannot be written to: {error.strerror}") from None

    @classmethod
    def dated(cls, name: str, now: datetime) -> "RunFolder":
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
                folder = cls(path)
                folder._made = [path]
                return folder
        raise AssertionError("counting never ends")

    def describe(self, scenario: Scenario) -> None:
        """Write scenario.toml, unless it is there; raises OSError where that fails."""
        path = self.path / "scenario.toml"
        if not path.exists():
            path.write_text(resolved(scenario), encoding="utf-8")

    def fill(self, scenario: Scenario, results: Sequence[SettingResult]) -> None:
        """Write scenario.toml, summary.csv and figures/; raises OSError where that fails."""
        # matplotlib takes its time to import, and most ways out of the command end before anything is drawn.
        from analysis.figures import write_totals
        from scenarios.plots import figures_of

        self.describe(scenario)
        with (self.path / "summary.csv").open("x", encoding="utf-8") as file:
            file.write(summary_csv(results))
        figures = self.path / "figures"
        figures.mkdir()
        for name, figure in figures_of(scenario, results).items():
            write_totals(figure, figures / name)

    def abandon(self) -> None:
        """Take away the folders made for this run that are still empty."""
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:
                return
