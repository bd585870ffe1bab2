"""Scenarios: every key with its default and range, faults, and how scenarios are read from and written to TOML.

This module imports nothing slow, so that the command can list the scenarios and report a mistake at once.
"""

from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
"""The folder of the named scenarios."""


class ScenarioError(ValueError):
    """A scenario that cannot be run; `mistakes` holds every mistake found, each one line."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self.mistakes))


def scenario_names() -> tuple[str, ...]:
    """Return the names of the scenarios that come with Longhaul, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
