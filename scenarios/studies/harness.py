"""The harness of studies: a study is options, the lines that it computes, columns and a figure; the rest is shared.

    STUDY = Study(command="run.py mine", parser=_parser, answer=_answer)

`answer(options, show)` returns an `Answer`: tables, the same as JSON, and a picture. A scenario is run through the
Python API; some studies also compute something themselves. The harness parses the options, shows progress, prints the
table or the JSON, draws the figure, and turns errors into one sentence and an exit status. `STUDIES` in
`scenarios/run.py` has a line for each. Slow modules are imported only when they are needed, so that --help is quick.
"""

import argparse
import errno
import json
import sys
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scenarios.experiment.options import BAD_USAGE, CANNOT, DONE, FAILED
from scenarios.text_table import aligned, told
from topologies.errors import elements, format_value
from topologies.heartbeat import heartbeat

if TYPE_CHECKING:
    import pandas as pd

    from analysis.figures.output import Picture
    from scenarios.spec.scenario import Scenario

Line = TypeVar("Line")
Value = TypeVar("Value")
Show = Callable[[str], None]
"""Is told how far a study has come, in words."""


@dataclass(frozen=True)
class Column(Generic[Line]):
    """A column of a table: its heading, and the text of its cell of a line; `left`: the text is left-aligned. `why` is
    the reason for a cell that is empty while others are not, "" for one that tells something by that."""

    heading: str
    cell: Callable[[Line], str]
    left: bool = False
    why: str = ""


@dataclass(frozen=True)
class Table(Generic[Line]):
    """Lines as text in columns, with a title above and notes below, which may be empty."""

    columns: Sequence[Column[Line]]
    lines: Sequence[Line]
    title: str = ""
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        columns, reasons = list[list[str]](), list[str]()
        for one in self.columns:
            cells = [one.cell(line) for line in self.lines]
            if one.why:
                cells, more = told(cells, one.heading, [one.why] * len(cells))
                reasons += more
            columns.append([one.heading, *cells])
        left = [number for number, column in enumerate(self.columns) if column.left]
        lines = aligned([*zip(*columns, strict=True)], left)
        return "\n".join([*filter(None, [self.title]), *lines, *reasons, *self.notes])


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a study found: its tables, the same as JSON, and a function that makes the picture for --figure.

    `drawn` has answers by a name for files: without --figure their pictures are drawn in a folder of results.
    `problems` are sentences for stderr, `status` the exit status.
    """

    tables: Sequence[Table[Any] | str]
    as_json: Any
    picture: "Callable[[], Picture] | None" = None
    drawn: "Mapping[str, Answer]" = field(default_factory=dict)
    problems: Sequence[str] = ()
    status: int = DONE


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study: what its messages begin with, its options, and what computes its answer."""

    command: str
    parser: Callable[[], argparse.ArgumentParser]
    answer: Callable[[argparse.Namespace, Show], Answer]


def main(study: Study, arguments: Sequence[str] | None = None) -> int:
    """Run a study with these arguments, print its answer, and return its exit status.

    The path of the figure is checked first. An error is printed after the command's name. Its status is 3 if the VM or
    a Python module is missing, 2 for wrong options or scenarios, and 1 for other errors. An OSError that is not about
    the figure is raised: the output cannot be written, as `signals.guarded` reports.
    """
    options = study.parser().parse_args(arguments)
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from scenarios.api import RunError, ScenarioWarning  # with numpy and much else
        from scenarios.experiment.run_folder import check_figure
        from scenarios.vm import VMError
    except ModuleNotFoundError as missing:
        print(f"{study.command}: {sys.executable} has no module {missing.name}: use .venv/bin/python", file=sys.stderr)
        return CANNOT
    figure = getattr(options, "figure", None)
    try:
        check_figure(figure)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScenarioWarning)  # a study prints notes itself (`warn`)
            with progress(study.command) as show:
                answer = study.answer(options, show)
            return _print(study, answer, options)
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
    print(f"{study.command}: {why}", file=sys.stderr)
    return status


def _print(study: Study, answer: Answer, options: argparse.Namespace) -> int:
    """Print an answer, draw its figure, and return the exit status; raises OSError."""
    text = json.dumps(answer.as_json, indent=1)
    print(text if options.json else "\n\n".join(map(str, answer.tables)))
    problems, status = [*answer.problems], answer.status
    if getattr(options, "figure", None) is None:
        try:
            _draw_in_results(study, answer.drawn)
        except (ValueError, OSError) as error:  # nothing of what was found is lost
            problems, status = [*problems, f"no figure was written: {error}"], FAILED
    elif answer.picture is not None:
        answer.picture().write_to(options.figure, command=study.command, answer=text)
    for problem in problems:
        print(f"{study.command}: {problem}", file=sys.stderr)
    return status


def _draw_in_results(study: Study, answers: Mapping[str, Answer]) -> None:
    """Write the pictures of these answers, and the answers as JSON, into a new folder of results; raises OSError and
    FolderError."""
    from scenarios.experiment.run_folder import RunFolder

    pictures = {name: one.picture() for name, one in answers.items() if one.picture is not None}
    if not pictures:
        return
    folder = RunFolder.dated(study.command.rpartition(" ")[2], datetime.now().astimezone())
    try:
        for name, picture in pictures.items():
            found = json.dumps(answers[name].as_json, indent=1)
            picture.write_to(folder.path / name, command=study.command, answer=found)
    finally:
        folder.close()


@contextmanager
def progress(name: str) -> Generator[Callable[[str], None], None, None]:
    """Show on stderr how far a command has come; yields the function that sets the words, after the command's name."""
    words = "preparing"

    def show(done: str) -> None:
        nonlocal words
        words = done

    with heartbeat(lambda: f"{name}: {words}"):
        yield show


def add_scenario(
    parser: argparse.ArgumentParser,
    *,
    count: int,
    of: str = "that a line averages",
    default: str | Sequence[str] = "paper",
) -> None:
    """Add the options of a study that runs a scenario: the scenario, --collectives (default `count`), --set and --data.
    It runs several scenarios, a list, if the `default` is one."""
    nargs = "?" if isinstance(default, str) else "*"
    parser.add_argument("scenario", nargs=nargs, default=default, help="a TOML file or a name, as for run.py")
    parser.add_argument(
        "-n", "--collectives", "--iters", type=int, default=count, help=f"collectives {of} (default {count})"
    )
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="any key of the scenario")
    parser.add_argument("--data", metavar="DIR", help="folder of the published data that packs read")


def add_output(parser: argparse.ArgumentParser, *, of_json: str = "print a JSON object") -> None:
    """Add the options --json and --figure."""
    parser.add_argument("--json", action="store_true", help=of_json)
    parser.add_argument("--figure", type=Path, metavar="PATH", help="write PATH.svg, PATH.png, PATH.csv and PATH.json")


def loaded(options: argparse.Namespace, values: Mapping[str, object]) -> "Scenario":
    """Return the scenario of the options of `add_scenario`, with these values by dotted key ("sweep.KEY" too) in place
    of its own, and what --set says in place of both; raises ScenarioError with every mistake."""
    from scenarios.spec.load import DATA, Override, assignment, load_scenario

    counted = {"collective.count": options.collectives, "collective.emulated": options.collectives}
    given = {} if options.data is None else {DATA: options.data}
    overrides = [Override(key, value, key) for key, value in (given | counted | dict(values)).items()]
    return load_scenario(options.scenario, [*overrides, *(assignment(text) for text in options.set)])


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


def warnings_of(measured: "pd.DataFrame") -> list[str]:
    """Return a sentence for each way in which measured times are not the model's, by rows of measured collectives."""
    from analysis.statistics.fidelity import fidelity

    found = fidelity([measured])
    return [f"WARNING: {warning}" for warning in (() if found is None else found.warnings)]


def check_range(options: argparse.Namespace, least: float, most: float, *names: str) -> None:
    """Raise ValueError for the first of the options with these names whose value is not from `least` to `most`."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"--{name.replace('_', '-')}: {value}; allowed: {least:,} to {most:,}")


def listed(option: str, text: str) -> list[str]:
    """Return the elements of an option's list; raises ValueError if one of several is empty."""
    try:
        return elements(text, text.split(","))
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


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
