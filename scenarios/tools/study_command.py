"""Parts that the commands of studies share: exit statuses and error messages, a line of progress, checks of options.

Slow modules are imported only when they are needed, so that --help is quick.
"""

import argparse
import errno
import sys
import warnings
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scenarios.experiment.heartbeat import heartbeat
from scenarios.experiment.options import BAD_USAGE, CANNOT, FAILED
from topologies.errors import format_value

if TYPE_CHECKING:
    import pandas as pd

    from scenarios.spec.scenario import Scenario


Value = TypeVar("Value")


def run(name: str, study: Callable[[], int], figure: Path | None) -> int:
    """Run a study and return its exit status; `figure` is the path of its figure, checked first, or None.

    An error is printed after the command's name. Its status is 3 if the VM or a Python module is missing, 2 for wrong
    options or scenarios, and 1 for other errors. An OSError that is not about the figure is raised: the output cannot
    be written, as `signals.guarded` reports.
    """
    try:
        from scenarios.api import RunError, ScenarioWarning  # with numpy and much else
        from scenarios.experiment.run_folder import check_figure
        from scenarios.vm import VMError
    except ModuleNotFoundError as missing:
        print(f"{name}: {sys.executable} has no module {missing.name}: use .venv/bin/python", file=sys.stderr)
        return CANNOT
    try:
        check_figure(figure)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScenarioWarning)  # a study prints notes itself (`warn`)
            return study()
    except VMError as error:
        status, why = CANNOT, str(error)
    except RunError as error:
        status, why = FAILED, str(error)
    except ValueError as error:
        status, why = BAD_USAGE, str(error)
    except OSError as error:
        if figure is None or error.errno == errno.EPIPE:
            raise
        status, why = FAILED, f"{figure} cannot be written: {error.strerror or error}"
    print(f"{name}: {why}", file=sys.stderr)
    return status


@contextmanager
def progress(name: str) -> Generator[Callable[[str], None], None, None]:
    """Show on stderr how far a command has come; yields the function that sets the words, after the command's name."""
    words = "preparing"

    def show(done: str) -> None:
        nonlocal words
        words = done

    with heartbeat(lambda: f"{name}: {words}"):
        yield show


def quantity(name: str, option: str, text: str, parse: Callable[[str], Value]) -> Value:
    """Parse the value of an option, and tell on stderr, after the command's name, if it is rounded; raises ValueError
    with the option in front of what is wrong."""
    from topologies.units import RATE, SIZE, rounding

    try:
        value = parse(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    for rounded in filter(None, (rounding(text, kind) for kind in (RATE, SIZE))):
        print(f"{name}: {option}: {format_value(text)} is rounded {rounded}", file=sys.stderr)
    return value


def warn(name: str, scenarios: "Iterable[Scenario]", *, emulates: bool) -> None:
    """Print the notes on scenarios (`scenarios.spec.notes`) on stderr, after the command's name, as run.py does."""
    from scenarios.spec.notes import notes_on

    configs = [config for scenario in scenarios for config in scenario.configurations()]
    for note in notes_on(configs, emulates=emulates):
        print(f"{name}: {note}", file=sys.stderr)


def warn_of(name: str, measured: "pd.DataFrame") -> None:
    """Print where measured times are not the model's, by rows of measured collectives, as run.py does."""
    from analysis.statistics.fidelity import fidelity

    found = fidelity([measured])
    for warning in () if found is None else found.warnings:
        print(f"{name}: WARNING: {warning}", file=sys.stderr)


def check(options: argparse.Namespace, least: float, most: float, *names: str) -> None:
    """Raise ValueError for the first of the options with these names whose value is not from `least` to `most`."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"--{name.replace('_', '-')}: {value}; allowed: {least:,} to {most:,}")


def check_plain(name: str, scenario: "Scenario", swept: Collection[str]) -> None:
    """Raise ScenarioError if a scenario has faults, jobs, or a sweep of other keys than `swept`."""
    from scenarios.spec import ScenarioError

    foreign = [axis.key for axis in scenario.sweep if axis.key not in swept]
    if foreign:
        raise ScenarioError([f"{name} has a sweep of {', '.join(foreign)}; allowed: a single value (run.py sweeps)"])
    if scenario.faults:
        raise ScenarioError([f"{name} has faults; allowed: none here (run.py runs them)"])
    if scenario.jobs:
        raise ScenarioError(
            [f"{name} has jobs, which have algorithms of their own; allowed: none here (run.py runs them)"]
        )
