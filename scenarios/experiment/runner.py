"""One run: the engines run the missing points, every row is written to disk, results and report follow at the end."""

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import pyarrow as pa

from analysis.results.paragraphs import Paragraph
from analysis.results.reader import Tables, frame, jobs_in, load, load_jobs, open_run
from analysis.results.rows import Point
from analysis.results.writer import Writer
from analysis.statistics.fault_costs import faults_by_point
from analysis.statistics.fidelity import Fidelity, fidelity
from scenarios.engines.base import Activity, Engine, EngineEvent, Failed, FaultOutcome, Retrying, Slice, Snapshot
from scenarios.engines.emulation import Emulation
from scenarios.experiment import progress
from scenarios.experiment.ecmp import EcmpGain, ecmp_gains
from scenarios.experiment.fault_results import as_record, predicted_faults
from scenarios.experiment.options import CANNOT, DONE, FAILED
from scenarios.experiment.point_results import (
    COLUMNS,
    ConfigResult,
    First,
    collectives_by_point,
    firsts_of,
    jobs_by_point,
    measured_of,
    results_of,
)
from scenarios.experiment.results_json import as_json
from scenarios.experiment.run_files import RunFiles
from scenarios.experiment.run_paragraphs import as_text, paragraphs_of
from scenarios.experiment.so_far import SoFar
from scenarios.signals import Interrupted, OutputError, ask_for_time
from scenarios.spec.scenario import Scenario
from scenarios.vm import CannotRunError
from topologies.errors import list_all
from topologies.heartbeat import heartbeat

if TYPE_CHECKING:
    import pandas as pd

Part = tuple[Engine, Sequence[Scenario]]
"""An engine with its configurations."""


@dataclass(frozen=True)
class Run:
    """A run: its scenario and engines, whether results are printed as JSON, and the reason if nothing can be measured.

    With `unmeasured`, the emulation's points are not run, but recorded as failed for that reason. With `reports`,
    figures and a report are made.
    """

    scenario: Scenario
    parts: Sequence[Part]
    json: bool
    unmeasured: str | None = None
    reports: bool = True

    @property
    def library(self) -> str:
        """The module that the results need and that takes a second to import."""
        return "analysis.report.__main__" if self.reports else "pandas"

    def numbers(self) -> dict[Point, range]:
        """Return every point with the numbers of its collectives."""
        return {
            Point(engine.name, index, mode): config.collective.numbers
            for engine, configs in self.parts
            for index, config in enumerate(configs)
            for mode in config.run.modes
        }


def run_in(files: RunFiles, run: Run) -> int:
    """Run the points that are missing, complete the run and close its folder; returns the exit status."""
    status, so_far = FAILED, SoFar({engine.name: configs for engine, configs in run.parts})
    try:
        status = _run(files, run, so_far)
    except CannotRunError as error:
        print(f"run.py: {error}", file=sys.stderr)
        status = CANNOT
    except OutputError:
        raise
    except OSError as error:
        print(f"run.py: {files.path} cannot be written to: {error.strerror or error}", file=sys.stderr)
    except MemoryError:
        print("run.py: out of memory", file=sys.stderr)
    finally:
        if not files.complete:
            outcome = files.remedy or f"the results so far are kept; resume with --resume {files.path}"
            if files.discard():
                outcome = f"there are no results; {files.path} was removed"
            print(f"run.py: {outcome}", file=sys.stderr)
        elif run.reports and not files.reported:  # interrupted, or drawing failed
            print(f"run.py: all results are in {files.path}; --resume {files.path} makes the report", file=sys.stderr)
        files.folder.close()
    return status


def print_again(files: RunFiles, run: Run) -> int:
    """Print the results of a complete run and close its folder; returns the exit status."""
    try:
        stored, jobs = collectives_by_point(load(files.path, columns=COLUMNS)), load_jobs(files.path)
        _predict_faults(stored, jobs, run, files)
        results = _results(stored, jobs, run, files)
        print(f"run.py: {files.path} is complete: nothing is left to run", file=sys.stderr)
        said = _said(*results, [])
        if run.reports and not files.reported:
            files.tell(said.paragraphs)
            why = files.report()()
            if why:
                print(f"run.py: {why}", file=sys.stderr)
        _print(run, files, *results, said)
    finally:
        files.folder.close()
    return DONE


def _predict_faults(stored: Mapping[Point, "pd.DataFrame"], jobs: "pd.DataFrame", run: Run, files: RunFiles) -> None:
    """Store the predicted faults of the model's points with all their collectives, unless they are stored already."""
    known, of_jobs, found = faults_by_point(files.faults), jobs_by_point(jobs), list[FaultOutcome]()
    for engine, configs in run.parts:
        for index, config in enumerate(configs if engine.name == "model" else ()):
            for mode in config.run.modes if config.faults else ():
                point = Point(engine.name, index, mode)
                rows = stored.get(point)
                if rows is not None and len(rows) == len(config.collective.numbers) and point not in known:
                    jobs_s = {job.name: job.completion_s for job in of_jobs.get(point, ()) if not job.background}
                    faults = predicted_faults(config, mode, rows["completion_s"].to_numpy(), jobs_s)
                    records = map(as_record, faults)
                    found += [FaultOutcome(setting=index, mode=mode, account=record) for record in records]
    if found:
        files.record_faults("model", found)


def _results(
    stored: Mapping[Point, "pd.DataFrame"],
    jobs: "pd.DataFrame",
    run: Run,
    files: RunFiles,
    tables: Tables | None = None,
) -> tuple[list[ConfigResult], Fidelity | None]:
    """Return the results of the stored points of a run, and their fidelity; `tables` as for `open_run`."""
    of_jobs, firsts = jobs_by_point(jobs), dict[Point, First]()
    struck = faults_by_point(files.faults, {point: rows["collective"].to_numpy() for point, rows in stored.items()})
    if stored and any(config.training_plan is not None for _, configs in run.parts for config in configs):
        opened = open_run(files.path, tables)
        firsts = firsts_of(opened.collectives, opened.transfers)
    results = [
        result
        for engine, configs in run.parts
        for result in results_of(stored, engine.name, configs, jobs=of_jobs, firsts=firsts, faults=struck)
    ]
    configs = run.scenario.configurations()
    classes = {(index, job.name): job.traffic_class for index, config in enumerate(configs) for job in config.jobs}
    lossy = any(config.transport.wan_loss for config in configs)
    is_real = run.scenario.run.is_real
    undisturbed, disturbed = measured_of(stored)
    return results, fidelity(
        undisturbed,
        jobs,
        disturbed=disturbed,
        is_real=is_real,
        lossy=lossy,
        classes=classes,
        are_rounds=all(config.jobs for config in configs),
        slow=[index for index, config in enumerate(configs) if not config.transport.line_rate],
    )


@dataclass(frozen=True)
class Finished:
    """What a run gave: its results with their fidelity, what it says of them, and a sentence for each point or report
    that failed. `is_partial` tells that points have failed of which there are results."""

    results: Sequence[ConfigResult]
    fidelity: Fidelity | None
    said: "Said"
    wrong: Sequence[str]
    is_partial: bool = False


def carry_out(files: RunFiles, run: Run, so_far: SoFar | None = None) -> Finished:
    """Run the points that are missing, and write tables, summary and report; the folder stays locked. With `so_far`,
    what there is if the run is interrupted is told.

    Raises CannotRunError if this machine cannot run the VM, OSError for a folder that cannot be written to.
    """
    background = ThreadPoolExecutor(1)  # one task after the other
    try:
        with closing(files.writer(run.numbers())) as writer:
            failed = _run_engines(files, run, writer, background, so_far)
            wrong, partial_points = _failures(run, failed), [point for point in failed if so_far and so_far.has(point)]
            if failed and {*failed} <= files.final:
                files.remedy = _remedy(run, failed, str(files.path))
            if run.unmeasured is not None:
                files.log(f"nothing was measured: {run.unmeasured}")
                failed |= {point: run.unmeasured for point in writer.points if point.engine != "model"}
            with (
                _telling(partial(_tell_so_far, so_far, as_json=run.json), writer),
                heartbeat(lambda: "making results and tables"),
            ):
                # In the background thread: two threads that import the same libraries can break each other.
                background.submit(_import, run.library).result()
                tables = writer.tables()
                rows = [table.select(COLUMNS) for table in tables.collectives]
                stored = collectives_by_point(frame(pa.concat_tables(rows))) if rows else {}
                jobs = jobs_in(tables)
                _predict_faults(stored, jobs, run, files)
                # From here on figures are drawn, which can be repeated. The processes that draw are forked while no
                # thread is active.
                drawn = run.reports and any(map(writer.finished, writer.points))
                report = files.report(tables) if drawn else None
                writing = background.submit(writer.write_tables, tables)
                results, run_fidelity = _results(stored, jobs, run, files, tables)
                writing.result()
                files.end(results, failed)
            said = _said(results, run_fidelity, _lacking(run, wrong))
            files.tell(said.paragraphs)
            wrong += [why for why in [report() if report else None] if why]
    finally:
        background.shutdown(wait=False)  # so that an interrupted command ends at once
    return Finished(results, run_fidelity, said, wrong, bool(partial_points))


def _run(files: RunFiles, run: Run, so_far: SoFar) -> int:
    done = carry_out(files, run, so_far)
    _print(run, files, done.results, done.fidelity, done.said)
    if done.is_partial:
        print("\n".join(["", *so_far.lines("failed")]), file=sys.stderr if run.json else sys.stdout, flush=True)
    for why in _lacking(run, done.wrong):
        print(f"run.py: {why}", file=sys.stderr)
    if done.wrong:
        return FAILED
    return DONE if run.unmeasured is None else CANNOT


def _failures(run: Run, failed: Mapping[Point, str]) -> list[str]:
    """Return a sentence for the points that failed, in which modes with the same reason are told together."""
    configs, alike = {engine.name: each for engine, each in run.parts}, dict[tuple[str, str], list[str]]()
    # A user's policy that has failed in the model has the same sentence for the points that are not measured.
    first = {why: point for point, why in reversed([*failed.items()])}
    for why in dict.fromkeys(failed.values()):
        point = first[why]
        where = f"{point.engine}, {configs[point.engine][point.setting].label}, "
        is_own = why.startswith(f"{where}{point.mode}")
        modes = alike.setdefault((where, why.removeprefix(f"{where}{point.mode}")) if is_own else ("", why), [])
        modes += [point.mode] * is_own
    return [f"failed: {where}{list_all(modes) if modes else ''}{why}" for (where, why), modes in alike.items()]


def _remedy(run: Run, failed: Iterable[Point], path: str) -> str:
    """Return what to do instead of resuming a run whose points would all fail again."""
    configs = {engine.name: each for engine, each in run.parts}
    again = f"the results so far are kept in {path}; --resume would fail in the same way"
    if any(configs[point.engine][point.setting].mode(point.mode).function for point in failed):
        return f"{again}, as a run keeps its own copy of a policy: mend the policy's file and start a new run"
    return again


def _run_engines(
    files: RunFiles, run: Run, writer: Writer, background: Executor, so_far: SoFar | None
) -> dict[Point, str]:
    """Run the engines over the unfinished points; returns the failed points, in order, with the reasons."""
    tells = partial(_tell_so_far, so_far, as_json=run.json)
    failed: dict[Point, str] = {}
    for engine, configs in run.parts:
        if isinstance(engine, Emulation):
            if run.unmeasured is not None:
                continue
            files.write_conditions(configs)
        start_import = partial(background.submit, _import, run.library)
        if isinstance(engine, Emulation):
            before = _failed_before(configs, failed)
            failed, files.final = failed | before, files.final | {*before}
        given_up = {point for point in failed if point.engine == engine.name}
        failed |= _run_engine(
            engine, configs, files, writer, start_import=start_import, so_far=so_far, tells=tells, without=given_up
        )
    return {point: failed[point] for point in writer.points if point in failed}


def _failed_before(configs: Sequence[Scenario], failed: Mapping[Point, str]) -> dict[Point, str]:
    """Return the points that are not measured, with the reason: those of a user's policy that has failed in the model,
    where it was asked the same."""
    return {
        Point(Emulation.name, point.setting, point.mode): why
        for point, why in failed.items()
        if configs[point.setting].mode(point.mode).function is not None
    }


def _run_engine(
    engine: Engine,
    configs: Sequence[Scenario],
    files: RunFiles,
    writer: Writer,
    *,
    start_import: Callable[[], object],
    so_far: SoFar | None,
    tells: Callable[[], None],
    without: Collection[Point],
) -> Mapping[Point, str]:
    """Run an engine over the unfinished points, `without` some of them; returns the failed ones with the reasons.

    `start_import` starts to import the module that the results need. `so_far` takes the results, and `tells` them if
    the run is interrupted.
    """
    may_import = engine.name == "model"  # not during the emulation, which may run on the wall clock

    def is_stored(config: int, mode: str, _start: int, stop: int) -> bool:
        point = Point(engine.name, config, mode)
        return point in without or writer.has(point, stop)

    failed = {}
    before: Iterator[Slice] = (
        Slice(setting=point.setting, mode=point.mode, rows=rows)
        for point in writer.points
        if point.engine == engine.name
        for rows in writer.rows(point)
    )
    if so_far is not None:
        before = _taken(before, engine.name, so_far)
    with (
        _telling(tells, writer),
        closing(engine.run(configs, is_stored)) as events,
        closing(
            progress.with_progress(
                _storing(events, engine.name, writer), engine.name, configs, before, lanes=engine.jobs
            )
        ) as shown,
    ):
        for event in shown:
            if may_import:  # only now, because the workers are forked before the first event
                start_import()  # takes a second, in which this process mostly waits
                may_import = False
            point = Point(engine.name, event.setting, event.mode)
            if so_far is not None and isinstance(event, Slice):
                so_far.take(engine.name, event)
            if isinstance(event, Failed):
                failed[point] = event.why
                if event.is_final:
                    files.final.add(point)
                files.log(f"failed: {event.why}")
            elif isinstance(event, Retrying):
                files.log(f"tried once more: {event.why}")
            elif isinstance(event, Snapshot):
                files.record_snapshot(event)
            elif isinstance(event, FaultOutcome):
                files.record_faults(engine.name, [event])
                files.log(f"fault: {event.mode}, {event.account['what']}: {event.account['outcome']}")
            elif not isinstance(event, Activity) and writer.finished(point):
                files.log(f"finished: {engine.name}, {configs[event.setting].label}, {event.mode}")
    return failed


def _taken(parts: Iterable[Slice], engine: str, so_far: SoFar) -> Iterator[Slice]:
    for part in parts:
        so_far.take(engine, part)
        yield part


@contextmanager
def _telling(tells: Callable[[], None], writer: Writer) -> Iterator[None]:
    """If the context is interrupted, store what was measured, and then tell what there is so far."""
    try:
        yield
    except Interrupted:
        writer.flush(measured_only=True)
        with suppress(OSError):  # nobody reads any more
            tells()
        raise


def _tell_so_far(so_far: SoFar | None, *, as_json: bool) -> None:
    """Print what there is of an interrupted run: on stderr if stdout is for one JSON object."""
    if so_far is not None:
        ask_for_time()
        text = "\n".join(so_far.lines())
        if text:
            print(text, file=sys.stderr if as_json else sys.stdout, flush=True)


_lock = threading.RLock()
# A process forked while a thread imports a module would wait for that module forever.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _import(library: str) -> None:
    with _lock:
        import_module(library)


def _storing(events: Iterable[EngineEvent], engine: str, writer: Writer) -> Iterator[EngineEvent]:
    """Store the rows of slices and pass new rows and other events on; a point's last rows once all of it is on disk."""
    for event in events:
        if not isinstance(event, Slice):
            yield event
        elif (rows := writer.add(Point(engine, event.setting, event.mode), event.rows)) is not None:
            yield replace(event, rows=rows)


@dataclass(frozen=True)
class Said:
    """What a run says at its end: its paragraphs, and what ECMP alone would gain."""

    paragraphs: Sequence[Paragraph]
    ecmp: Sequence[EcmpGain]


def _said(results: Sequence[ConfigResult], run_fidelity: Fidelity | None, lacking: Sequence[str]) -> Said:
    with heartbeat(lambda: "predicting what ECMP alone would gain"):
        ecmp = ecmp_gains((result.index, result.config) for result in results)
    return Said(paragraphs_of(results, run_fidelity, ecmp, lacking), ecmp)


def _lacking(run: Run, failed: Iterable[str]) -> list[str]:
    """Return a sentence for each point that failed, and one if nothing was measured."""
    return [*failed, *[f"nothing was measured: {run.unmeasured}"] * (run.unmeasured is not None)]


def _print(
    run: Run, files: RunFiles, results: Sequence[ConfigResult], run_fidelity: Fidelity | None, said: Said
) -> None:
    if run.json:
        text = as_json(str(files.path), results, run_fidelity, unmeasured=run.unmeasured, ecmp=said.ecmp)
    else:
        text = as_text(results, said.paragraphs)
        text += f"\n\nresults in {files.path}" if results else ""
    try:
        print(text, flush=True)
    except OSError as error:
        raise OutputError(error.errno, error.strerror) from None
    if run.json:
        for warning in run_fidelity.warnings if run_fidelity else ():
            print(f"run.py: WARNING: {warning}", file=sys.stderr)
