"""What the commands of studies share: status and sentence of an error, a line of progress, plain scenarios.

Nothing slow is imported before it is needed, so that --help is quick.
"""

import argparse
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.experiment.options import BAD_USAGE, CANNOT, FAILED

if TYPE_CHECKING:
    from scenarios.spec.scenario import Scenario

_QUIET_S = 2.0


def status_of(name: str, study: Callable[[], int], figure: Path | None) -> int:
    """The exit status of a study, which is called once its figure's files can be written; of what it raises, which is
    printed behind the command's name: 3 where the VM or a module is missing, 2 for what is asked wrongly, 1 else."""
    try:
        from scenarios.api import RunError  # with numpy and much else
        from scenarios.experiment.place import check_figure
        from scenarios.vm import VMError
    except ModuleNotFoundError as missing:
        print(f"{name}: {sys.executable} has no module {missing.name}: take .venv/bin/python", file=sys.stderr)
        return CANNOT
    try:
        check_figure(figure)
        return study()
    except VMError as error:
        status, why = CANNOT, str(error)
    except RunError as error:
        status, why = FAILED, str(error)
    except ValueError as error:
        status, why = BAD_USAGE, str(error)
    except OSError as error:
        status, why = FAILED, f"{figure} cannot be written: {error.strerror or error}"
    print(f"{name}: {why}", file=sys.stderr)
    return status


class Progress:
    """A line on stderr that says how far a command is, if it takes a while; a context manager, which ends the line."""

    def __init__(self, name: str) -> None:
        self._name, self._began_s, self._is_told = name, time.monotonic(), False

    def say(self, done: str) -> None:
        """Put this in the line's place."""
        if self._is_told or time.monotonic() - self._began_s > _QUIET_S:
            self._is_told = True
            print(f"\r{self._name}: {done}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_told:
            print(file=sys.stderr)


def check(asked: argparse.Namespace, least: float, most: float, *options: str) -> None:
    """Raise ValueError for the first of these options that was given another number than `least` to `most`."""
    for option in options:
        value = getattr(asked, option)
        if value is not None and not least <= value <= most:
            raise ValueError(f"--{option.replace('_', '-')}: {value}; allowed: {least:,} to {most:,}")


def check_plain(name: str, scenario: "Scenario", swept: Collection[str]) -> None:
    """Raise ScenarioError for faults, jobs, or a sweep of other keys than these."""
    from scenarios.spec import ScenarioError

    foreign = [axis.key for axis in scenario.sweep if axis.key not in swept]
    if foreign:
        raise ScenarioError([f"{name} has a sweep of {', '.join(foreign)}; allowed: a single value"])
    if scenario.faults:
        raise ScenarioError([f"{name} has faults; allowed: none"])
    if scenario.jobs:
        raise ScenarioError([f"{name} has jobs, which have algorithms of their own; allowed: none"])
