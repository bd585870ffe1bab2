"""Draw the figures of a stored run: ``python -m analysis.figures DIR`` writes them into ``DIR/figures``.

This module decides which figures a run gets and writes their files; one module per figure decides how it looks. Drawing
a run again replaces the same files and leaves all others alone.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from analysis.figures import (
    budget,
    busbw,
    calendar,
    cdf,
    comparison,
    fabric,
    faults,
    fidelity,
    job_times,
    over_time,
    periods,
    ranking,
    referees,
    timeline,
    training,
    wan_map,
)
from analysis.figures.collective_detail import Collective, collectives_of
from analysis.figures.faults_in_force import of_point
from analysis.figures.output import Picture, add_note
from analysis.figures.pooled_seeds import with_pooled_seeds
from analysis.figures.run_points import (
    Configuration,
    FigureError,
    FigureGroup,
    Points,
    configurations_of,
    groups_of,
    points_of,
)
from analysis.results.columns import REFEREES
from analysis.results.reader import ResultsError, Run, open_run
from analysis.statistics.contests import shared_words
from analysis.statistics.declared_faults import unmodelled_sentence
from analysis.statistics.fault_costs import attempts_sentence, ends_of, faults_by_point
from topologies.command_line import CommandParser
from topologies.errors import list_first
from topologies.heartbeat import SILENT_S, heartbeat
from topologies.linux import begin_worker

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses."""

_MAX_JOBS = 12  # configurations of a sweep whose jobs, or transfers, are drawn
_MAX_OVER_TIME = 4  # configurations of a sweep that are drawn over time
_MAX_NAMED = 4  # configurations that are left out and named
_ANY = 1 << 62  # more than any number of a collective
_QUIET_S = 2.0  # between two lines of progress

Task = partial[Picture] | partial[Picture | None]


def draw(directory: str | Path, *, setting: int = 0, collective: int | None = None) -> list[Path]:
    """Draw the figures of the run in a folder and return the paths of the files written, which replace older ones.

    The timeline and the fabric show one collective of one setting (the index of a configuration), by default the first
    that a fault hit, of the measured ones if there are any, or else the first. Progress is printed on stderr if drawing
    takes longer than two seconds. Raises analysis.results.ResultsError if the folder holds no readable run, FigureError
    if there is nothing to draw or drawing fails, OSError if a file cannot be written.
    """
    with heartbeat(lambda: "figures: reading the run"):
        run = open_run(directory)
        configurations = configurations_of(run)
        tasks = tasks_of(run, configurations, points_of(run, configurations), setting=setting, collective=collective)
    return [file for _, files in draw_all(tasks, run, "figures") for file in files]


def tasks_of(
    run: Run,
    configurations: Sequence[Configuration],
    points: Points,
    *,
    setting: int = 0,
    collective: int | None = None,
) -> list[Task]:
    """Return a task for each figure of a run with these points, in reading order; raises the errors of `draw`."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", str(run.provenance.get("name", ""))).lstrip("_.-")[:64] or "run"
    repeated, pooled = with_pooled_seeds(configurations, points)
    groups = groups_of(repeated)
    if not 0 <= setting < len(configurations):
        raise FigureError(f"{run.path} has no setting {setting}; allowed: 0 to {len(configurations) - 1}")
    number = _shown_collective(run, points, configurations[setting]) if collective is None else collective
    if number < 0:
        raise FigureError(f"{run.path} has no collective {collective}; allowed: 0 or more")
    has_budget = any(one.values.get("collective.budget") for one in configurations)
    without = _without(run, points)
    noted = partial(_noted, " ".join(without), drawn=without)
    tasks: list[Task] = [partial(budget.picture, name, groups, pooled)] if has_budget else []
    tasks += [task for group in groups for task in _of_means(name, group, pooled)]
    tasks += [partial(periods.picture, name, group, pooled) for group in periods.groups_of(repeated)]
    if any(point.rows[[column.name for column in REFEREES]].notna().any(axis=None) for point in points.values()):
        tasks.append(partial(referees.of_run, name, configurations, points))
    with_transfers = [one for one in configurations if one.admission]
    if len(with_transfers) > 1:
        words = _left_out(with_transfers, _MAX_JOBS)
        tasks.insert(0, _noted(words, partial(calendar.deadlines, name, run, with_transfers[:_MAX_JOBS])))
    tasks += _of_jobs(name, run, configurations)
    if any(one.kind == "training" for one in configurations):
        tasks += [partial(training.iteration_times, axis, name, configurations, points) for axis in training.AXES]
    tasks += [partial(busbw.picture_of, name, group, pooled) for group in busbw.groups_of(repeated)]
    tasks = [*map(noted, tasks)]
    if any(point.engine == "emulation" for point in points.values()):
        tasks.append(partial(fidelity.picture, name, points, run.jobs))
    tasks += [
        noted(partial(cdf.picture, part, group, here, pooled))
        for group in groups
        for part, here in cdf.parts_of(name, group)
    ]
    tasks += [noted(task) for task in _over_time(name, run, points, configurations, setting)]
    if len(faults.measured(run)):
        tasks.append(partial(faults.picture, name, run))
    configuration = configurations[setting]
    shown = collectives_of(run, points, configuration, number=number)
    if shown:
        has_map = bool(configuration.fabric.spec.wan.places)  # a map replaces the picture of the fabric
        both = timeline.picture, wan_map.picture if has_map else fabric.picture
        tasks += [_of_setting(configurations, partial(picture, name, shown), configuration) for picture in both]
        promised = (one for one in configurations[setting:] if any(each["rates_bps"] for each in one.admission))
        if (admitting := next(promised, configuration)).admission:
            of_transfers = partial(calendar.picture, name, collectives_of(run, points, admitting, number=number))
            tasks.append(_of_setting(configurations, of_transfers, admitting))
        if trained := training.trained(configuration):
            other = training.most_different(configurations, configuration)
            found = [_both_engines(run, points, one, number) for one in (configuration, other) if one is not None]
            for place, one in enumerate(trained):
                beside = (*found[1], training.trained(other)[place]) if other is not None else None
                diagram = partial(training.diagram, name, *found[0], one, beside=beside)
                tasks.append(_of_setting(configurations, diagram, configuration))
    elif (setting, collective) not in ((0, None), (0, 0)):
        raise FigureError(f"{run.path} has no collective {collective} of setting {setting} whose conditions are known")
    return tasks


def _of_setting(configurations: Sequence[Configuration], task: Task, shown: Configuration) -> Task:
    """Return a task whose figure and caption tell which of several configurations it shows, and how to draw others."""
    if len(configurations) == 1:
        return task
    which = f"Setting {shown.index} of 0 to {len(configurations) - 1}"
    words = f"{which}, {_swept_words(shown)}; python -m analysis.figures DIR --setting N draws another."
    return _noted(words, task, drawn=[f"{which}; --setting draws another."])


def _both_engines(
    run: Run, points: Points, configuration: Configuration, number: int
) -> tuple[list[Collective], list[Collective]]:
    """Return a collective of a configuration in every mode, measured and predicted."""
    modelled = {key: point for key, point in points.items() if key[0] == "model"}
    every = collectives_of(run, points, configuration, number=number)
    predicted = collectives_of(run, modelled, configuration, number=number)
    return [one for one in every if one.measured], predicted


def _over_time(
    name: str, run: Run, points: Points, configurations: Sequence[Configuration], setting: int
) -> Iterator[Task]:
    """Yield a task for the first configurations that are drawn over time, and for the one with this index."""
    with_time = [one for one in configurations if over_time.is_drawn(one)]
    words = _left_out(with_time, _MAX_OVER_TIME, more=" --setting N of python -m analysis.figures draws one of them.")
    for place, one in enumerate(with_time):
        if place < _MAX_OVER_TIME or one.index == setting:
            yield _noted(words, partial(over_time.picture, name, run, points, one))


def _left_out(configurations: Sequence[Configuration], most: int, more: str = "") -> str:
    """Return that figures of a kind show no more than `most` of these configurations, which are left out, and `more`;
    "" if they show all."""
    hidden = [_swept_words(one) for one in configurations[most:]]
    first = f"Of {len(configurations)} configurations the first {most} in the order of the sweep are drawn."
    return f"{first} Left out: {list_first(hidden, _MAX_NAMED, '; ')}.{more}" if hidden else ""


def _swept_words(one: Configuration) -> str:
    """Return the values by which a configuration differs from others."""
    return ", ".join(value.words for value in one.at) or one.label


def without_words(run: Run, points: Points) -> str:
    """Return sentences on the faults that predicted times of these points are without, and on the attempts that
    measured ones are those of; "" for none."""
    return " ".join(_without(run, points))


def _without(run: Run, points: Points) -> list[str]:
    modelled = [point.configuration for point in points.values() if point.engine == "model"]
    faults = faults_by_point(run.faults.to_dict("records"))
    ends = ends_of(one for point, here in faults.items() if point.engine == "model" for one in here)
    without = unmodelled_sentence((one.values.get("fault") for one in modelled), ends)
    return [*filter(None, [without, attempts_sentence(chain.from_iterable(faults.values()))])]


def _noted(words: str, task: Task, *, drawn: Sequence[str] = ()) -> Task:
    """Return a task whose caption ends with these words, and whose figure has the sentences `drawn`: a picture that is
    passed on has no caption."""
    return partial(_with_words, task, words, drawn=drawn) if words else task


def kind_of(task: Task) -> str:
    """Return the name of the module that draws a task's figure: "comparison"."""
    while task.func is _with_words:
        task = task.args[0]
    return task.func.__module__.rpartition(".")[2]


def _with_words(task: Task, words: str, *, drawn: Sequence[str]) -> Picture | None:
    picture = task()
    if picture is None:
        return None
    for sentence in drawn:
        add_note(picture.figure, sentence)
    return replace(picture, caption=f"{picture.caption} {words}")


def _of_means(name: str, group: FigureGroup, points: Points) -> Iterator[Task]:
    """Yield a task for the mean times of a group, or, if it has too many lines for one panel, for each part of it."""
    if not group.is_crowded:
        yield partial(comparison.picture, name, group, points)
        return
    for stem, shown in ranking.parts_of(name, group):
        yield partial(ranking.picture, stem, group, shown, points)


def _of_jobs(name: str, run: Run, configurations: Sequence[Configuration]) -> list[Task]:
    """Return a task for the jobs of each configuration, or, with one mode, for those of all. Where transfers alone are
    compared, deadlines show them."""
    several = [one for one in configurations if len(one.values.get("job") or ()) > 1]
    if sum(bool(one.admission) for one in configurations) > 1:
        several = [one for one in several if len(one.admission) < len(one.values["job"])]
    has_one_mode = all(len(one.values.get("run.modes", ())) == 1 for one in several)
    if not (several and has_one_mode and 1 < len(configurations) <= _MAX_JOBS):
        words = _left_out(several, _MAX_JOBS)
        return [_noted(words, partial(job_times.picture, name, run, one)) for one in several[:_MAX_JOBS]]
    shown = [one for one in configurations if one in several or (one.values.get("job") and not one.admission)]
    return [partial(job_times.picture_of_sweep, name, run, shown, shared_words([one.title for one in shown]))]


def _shown_collective(run: Run, points: Points, configuration: Configuration) -> int:
    """Return the number of the collective to show: of the measured ones of a configuration, or else of the predicted
    ones, the first that a fault hit, or else the first; 0 if there is none."""
    here = [point for (_, index, _), point in points.items() if index == configuration.index]
    shown = [point for point in here if point.engine == "emulation"] or here
    numbers = np.unique(np.concatenate([np.array([], dtype=np.int64), *(point.number for point in shown)]))
    if configuration.rounds_differ:  # the schedule of the first round alone is stored
        return int(numbers.min(initial=0))
    faults = (fault for point in shown for fault in of_point(run, configuration, point.engine, point.mode))
    hit = [numbers[(numbers >= fault.first) & (numbers < fault.end)] for fault in faults]
    struck = np.concatenate([numbers[:0], *hit])
    return int((struck if struck.size else numbers).min(initial=_ANY)) % _ANY


def draw_all(tasks: Sequence[Task], run: Run, command: str) -> Iterator[tuple[Picture, list[Path]]]:
    """Start to draw in one process per core; iterate over the pictures, each with its files in the run's folder.

    Drawing that takes longer than two seconds prints its progress on stderr after the command's name. Raises OSError.
    """
    folder = run.path / "figures"
    folder.mkdir(exist_ok=True)
    return _with_progress(_started(tasks, folder), len(tasks), command)


_Drawn = tuple[Picture, list[Path]] | None


@dataclass(frozen=True)
class _Started:
    """Pictures that are being drawn, in the order of their tasks: `ready` waits at most for a time in s, and tells
    whether the next one is drawn; `done` is how many are."""

    pictures: Iterator[_Drawn]
    ready: Callable[[int, float], bool]
    done: Callable[[int], int]


def _with_progress(started: _Started, count: int, command: str) -> Iterator[tuple[Picture, list[Path]]]:
    printed_s, quiet, told_s, told = time.monotonic(), True, 0.0, -1

    def tell(index: int) -> None:
        nonlocal printed_s, quiet, told_s, told
        if time.monotonic() - printed_s >= _QUIET_S:
            printed_s, quiet, done = time.monotonic(), False, started.done(index)
            if done > told or printed_s - told_s >= SILENT_S:  # the same number again is a sign of life alone
                told_s, told = printed_s, done
                print(f"{command}: {done} of {count} drawn", file=sys.stderr, flush=True)

    try:
        for index in range(count):
            while not started.ready(index, max(0.0, printed_s + _QUIET_S - time.monotonic())):
                tell(index)
            drawn = next(started.pictures)
            tell(index + 1)
            if drawn is not None:
                yield drawn
        next(started.pictures, None)
    except BrokenProcessPool:
        raise FigureError("a drawing process ended early (killed, or the machine is out of memory)") from None
    if not quiet and told < count:
        print(f"{command}: {count} of {count} drawn", file=sys.stderr, flush=True)


def _started(tasks: Sequence[Task], folder: Path) -> _Started:
    """Start to run the tasks in one process per core, which have ended after the last picture."""
    processes = min(len(os.sched_getaffinity(0)), len(tasks))
    if processes < 2:
        return _Started((_draw_one(task, folder) for task in tasks), lambda index, _: True, lambda index: index)
    # Forked processes inherit the tasks and the run's rows, so that only the index of a task is sent to them.
    initargs = (tasks, folder, os.getpid())
    pool = ProcessPoolExecutor(processes, get_context("fork"), initializer=_start_worker, initargs=initargs)
    futures = [pool.submit(_draw_indexed, index) for index in range(len(tasks))]

    def drawn() -> Iterator[_Drawn]:
        for future in futures:
            yield future.result()
        pool.shutdown()

    return _Started(
        drawn(),
        lambda index, most_s: bool(wait([futures[index]], most_s).done),
        lambda _: sum(future.done() for future in futures),
    )


_work: tuple[Sequence[Task], Path]  # the tasks and the folder of a drawing process


def _start_worker(tasks: Sequence[Task], folder: Path, parent: int) -> None:
    """Begin a drawing process, which keeps the tasks."""
    global _work  # noqa: PLW0603 - a process's only memory between its tasks
    begin_worker(parent)
    _work = tasks, folder


def _draw_indexed(index: int) -> _Drawn:
    tasks, folder = _work
    return _draw_one(tasks[index], folder)


def _draw_one(task: Task, folder: Path) -> _Drawn:
    picture = task()
    return None if picture is None else (picture, picture.write(folder))


def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit status; messages go to stderr."""
    parser = CommandParser(prog="python -m analysis.figures", description="Draw the figures of a stored run.")
    parser.add_argument("directory", metavar="DIR", help="the folder of a run, as written by run.py")
    parser.add_argument(
        "--setting",
        type=int,
        default=0,
        metavar="N",
        help="index of the configuration shown in the timeline, the fabric, over time and the calendar (default 0)",
    )
    parser.add_argument(
        "--collective",
        type=int,
        metavar="K",
        help="collective shown in those figures (default: the first that a fault hit, or the first)",
    )
    options = parser.parse_args(arguments)
    return exit_status_of(
        lambda: draw(options.directory, setting=options.setting, collective=options.collective), "analysis.figures"
    )


def exit_status_of(write: Callable[[], Sequence[Path]], command: str) -> int:
    """Print the paths of the files that `write` writes, or one sentence about its error; returns the exit status."""
    try:
        for path in write():
            print(path)
    except ResultsError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return BAD_USAGE
    except FigureError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return FAILED
    except OSError as error:
        print(f"{command}: {error.filename or 'a file'} cannot be written: {error.strerror}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
