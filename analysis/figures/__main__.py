"""Figures of a stored run: ``python -m analysis.figures DIR`` draws them into its folder ``figures``.

Decides which figures a run makes and writes them; how each looks is for the modules of the single figures. Drawing
again puts the same files in the place of the old ones and leaves everything else alone.
"""

import argparse
import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path

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
    periods,
    referees,
    timeline,
    training,
    wan_map,
)
from analysis.figures.collective import collectives_of
from analysis.figures.output import Picture
from analysis.figures.points import Configuration, FigureError, Points, configurations_of, groups_of, points_of
from analysis.results.reader import ResultsError, Run, open_run
from analysis.results.rows import BEST

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses."""

_PR_SET_PDEATHSIG = 1
_MOST_JOBS = 12  # configurations of a sweep whose jobs, or transfers, are drawn
_QUIET_S = 2.0  # what takes longer says how far it is

Job = Callable[[], Picture | None]


def draw(directory: str | Path, *, setting: int = 0, collective: int = 0) -> list[Path]:
    """Draw the figures of the run in a folder and return the files written; the old ones are replaced, one by one.

    The timeline and the fabric are those of one collective of one setting. Drawing that takes longer than two seconds
    says on stderr how far it is. Raises analysis.results.ResultsError where the folder holds no run that can be read,
    FigureError where there is nothing to draw in it or it is not drawn, OSError where a file cannot be written.
    """
    run = open_run(directory)
    configurations = configurations_of(run)
    jobs = jobs_of(run, configurations, points_of(run, configurations), setting=setting, collective=collective)
    return [file for _, files in drawn(jobs, run, "figures") for file in files]


def jobs_of(
    run: Run, configurations: Sequence[Configuration], points: Points, *, setting: int = 0, collective: int = 0
) -> list[Job]:
    """What is to be drawn of a run with these points, in the order in which a reader wants it; errors as of `draw`."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", str(run.provenance.get("name", ""))).lstrip("_.-")[:64] or "run"
    groups = groups_of(configurations)
    if not 0 <= setting < len(configurations):
        raise FigureError(f"{run.path} has no setting {setting}; allowed: 0 to {len(configurations) - 1}")
    if collective < 0:
        raise FigureError(f"{collective} is not a collective of {run.path}: they are counted from 0")
    limited = any(one.values.get("collective.budget") for one in configurations)
    jobs: list[Job] = [partial(budget.picture, name, groups, points)] * limited
    jobs += [partial(comparison.picture, name, group, points) for group in groups]
    jobs += [partial(periods.picture, name, group, points) for group in periods.groups_of(configurations)]
    if any(point.rows[list(BEST)].notna().any(axis=None) for point in points.values()):
        jobs.append(partial(referees.of_run, name, configurations, points))
    several = [one for one in configurations if len(one.values.get("job") or ()) > 1]
    if len(asked := [one for one in configurations if one.admission]) > 1:
        jobs.insert(0, partial(calendar.deadlines, name, run, asked[:_MOST_JOBS]))
        several = [one for one in several if len(one.admission) < len(one.values["job"])]  # other jobs beside them
    jobs += [partial(job_times.picture, name, run, one) for one in several[:_MOST_JOBS]]
    if any(one.kind == "training" for one in configurations):
        jobs += [partial(training.by, axis, name, configurations, points) for axis in training.AXES]
    jobs += [partial(busbw.picture_of, name, group, points) for group in busbw.groups_of(configurations)]
    if any(point.engine == "emulation" for point in points.values()):
        jobs.append(partial(fidelity.picture, name, points, run.jobs))
    jobs += [
        partial(cdf.picture, part, group, here, points) for group in groups for part, here in cdf.parts_of(name, group)
    ]
    if len(run.faults):
        jobs.append(partial(faults.picture, name, run))
    shown = collectives_of(run, points, configurations[setting], number=collective)
    if shown:
        on_map = bool(configurations[setting].fabric.spec.wan.places)  # which has no room for a fabric's circle
        jobs += [partial(one, name, shown) for one in (timeline.picture, wan_map.picture if on_map else fabric.picture)]
        promised = (one for one in configurations[setting:] if any(each["rates_bps"] for each in one.admission))
        if (asking := next(promised, configurations[setting])).admission:
            jobs.append(partial(calendar.picture, name, collectives_of(run, points, asking, number=collective)))
        if of := training.trained(configurations[setting]):
            modelled = {key: point for key, point in points.items() if key[0] == "model"}
            predicted = collectives_of(run, modelled, configurations[setting], number=collective)
            measured = [one for one in shown if one.measured]
            jobs += [partial(training.diagram, name, measured, predicted, one) for one in of]
    elif (setting, collective) != (0, 0):
        raise FigureError(f"{run.path} has no collective {collective} of setting {setting} whose conditions are known")
    return jobs


def drawn(jobs: Sequence[Job], run: Run, what: str) -> Iterator[tuple[Picture, list[Path]]]:
    """The pictures of these jobs and the files of each, written into the run's folder; a process for each core draws.

    They draw from the call on. Prints a line on stderr every two seconds, and then one at the end. Raises OSError.
    """
    folder = run.path / "figures"
    folder.mkdir(exist_ok=True)
    return _told(_in_processes(jobs, folder), len(jobs), what)


_Drawn = tuple[Picture, list[Path]] | None


def _told(pictures: Iterator[_Drawn], count: int, what: str) -> Iterator[tuple[Picture, list[Path]]]:
    printed_s, quiet = time.monotonic(), True
    try:
        for done, found in enumerate(pictures, start=1):
            if found is not None:
                yield found
            if time.monotonic() - printed_s > _QUIET_S:
                printed_s, quiet = time.monotonic(), False
                print(f"{what}: {done} of {count} drawn", file=sys.stderr, flush=True)
    except BrokenProcessPool:
        raise FigureError("a process ended before it had drawn (killed, or the machine is out of memory)") from None
    if not quiet:
        print(f"{what}: {count} of {count} drawn", file=sys.stderr, flush=True)


def _in_processes(jobs: Sequence[Job], folder: Path) -> Iterator[_Drawn]:
    """What each job draws and the files of it, in their order."""
    processes = min(len(os.sched_getaffinity(0)), len(jobs))
    if processes < 2:
        return (_drawn(job, folder) for job in jobs)
    # Forked processes have the jobs, with the run's rows, from the beginning; only their numbers are sent.
    pool = ProcessPoolExecutor(processes, get_context("fork"), initializer=_begin, initargs=(jobs, folder, os.getpid()))
    pictures = pool.map(_numbered, range(len(jobs)))
    pool.shutdown(wait=False)  # once all are drawn
    return pictures


_work: tuple[Sequence[Job], Path]  # of a process that draws


def _begin(jobs: Sequence[Job], folder: Path, parent: int) -> None:
    """Undo the parent's signal handlers, die with it, and keep what there is to draw."""
    global _work  # noqa: PLW0603 - a process's only memory between its tasks
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _work = jobs, folder


def _numbered(number: int) -> _Drawn:
    jobs, folder = _work
    return _drawn(jobs[number], folder)


def _drawn(job: Job, folder: Path) -> _Drawn:
    picture = job()
    return None if picture is None else (picture, picture.write(folder))


def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit status; messages go to stderr."""
    parser = argparse.ArgumentParser(prog="python -m analysis.figures", description="Draw the figures of a stored run.")
    parser.add_argument("directory", metavar="DIR", help="a run's folder, as run.py leaves it")
    parser.add_argument(
        "--setting", type=int, default=0, metavar="N", help="of the timeline, the fabric and the calendar (0)"
    )
    parser.add_argument("--collective", type=int, default=0, metavar="K", help="of the timeline and the fabric (0)")
    options = parser.parse_args(arguments)
    return reported(
        lambda: draw(options.directory, setting=options.setting, collective=options.collective), "analysis.figures"
    )


def reported(work: Callable[[], Sequence[Path]], name: str) -> int:
    """Do the work, print the files it wrote, or say in one sentence why not; returns the exit status."""
    try:
        for path in work():
            print(path)
    except ResultsError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return BAD_USAGE
    except FigureError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return FAILED
    except OSError as error:
        print(f"{name}: {error.filename or 'a file'} cannot be written: {error.strerror}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
