"""A scenario: every key with its default and range, faults, and TOML in and out.

Imports nothing that takes long, so that the command can list the scenarios and name a mistake at once.
"""

from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
"""Where the scenarios that have names are."""


class ScenarioError(ValueError):
    """A scenario that cannot be run; `mistakes` holds every mistake found, each one line."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self.mistakes))


def scenario_names() -> tuple[str, ...]:
    """The names of the scenarios that come with the product, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
