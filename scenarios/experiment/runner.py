"""One run from its folder's first file to its last: the engines at work, every row kept, results at the end."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from analysis.results.reader import Point
from analysis.statistics.fidelity import Certificate, certificate
from scenarios.engines.base import Again, Doing, Engine, Failed, Seen, Slice, Struck
from scenarios.engines.emulation import Emulation
from scenarios.experiment import progress
from scenarios.experiment.resume import Kept
from scenarios.experiment.run_directory import RunFolder
from scenarios.experiment.statistics import SettingResult, Times, results_of
from scenarios.experiment.store import Store, StoreError
from scenarios.experiment.summary import as_json, as_text
from scenarios.spec.scenario import Scenario
from scenarios.vm import CannotRunError

DONE, FAILED, CANNOT = 0, 1, 3
"""Exit statuses."""

Part = tuple[Engine, Sequence[Scenario]]
"""An engine and the settings it is for."""


@dataclass(frozen=True)
class Run:
    """A run: its scenario, its engines, whether its results are printed as JSON, and why nothing can be measured.

    With `unmeasured`, the emulation's points are not run, and are recorded as failed for that reason.
    """

    scenario: Scenario
    parts: Sequence[Part]
    json: bool
    unmeasured: str | None = None

    def counts(self) -> dict[Point, int]:
        """Every point, and how many collectives it has."""
        return {
            Point(engine.name, place, mode): setting.collective.count
            for engine, settings in self.parts
            for place, setting in enumerate(settings)
            for mode in setting.run.modes
        }


def run_in(folder: RunFolder, run: Run) -> int:
    """Run what is not in the folder yet, and complete it; returns the exit status, and closes the folder."""
    status = FAILED
    try:
        with closing(Store(folder.path, run.counts())) as store:
            status = _run(folder, run, store)
    except CannotRunError as error:
        print(f"run.py: {error}", file=sys.stderr)
        status = CANNOT
    except StoreError as error:
        print(f"run.py: {error}", file=sys.stderr)
    except OSError as error:
        print(f"run.py: {folder.path} cannot be written to: {error.strerror or error}", file=sys.stderr)
    except MemoryError:
        print("run.py: out of memory", file=sys.stderr)
    finally:
        _leave(folder)
    return status


def tell_again(folder: RunFolder, run: Run) -> int:
    """Tell what a complete run has found; returns the exit status, and closes the folder."""
    try:
        kept = Kept(folder.path)
        print(f"run.py: {folder.path} is complete: nothing is left to run", file=sys.stderr)
        if not folder.reported:
            why = folder.report()
            if why:
                print(f"run.py: {why}", file=sys.stderr)
        _tell(run, folder, _found(run, kept.times), certificate(kept.measured(), is_real=run.scenario.run.is_real))
    finally:
        folder.place.close()
    return DONE


def _found(run: Run, times: Times) -> list[SettingResult]:
    return [result for engine, settings in run.parts for result in results_of(times, engine.name, settings)]


def _leave(folder: RunFolder) -> None:
    """Take leave of the folder, and say how to go on where there is something to go on with."""
    if not folder.complete and not folder.discard():
        print(f"run.py: what was found is kept; go on with --resume {folder.path}", file=sys.stderr)
    folder.place.close()


def _run(folder: RunFolder, run: Run, store: Store) -> int:
    failed: dict[Point, str] = {}
    for engine, settings in run.parts:
        if isinstance(engine, Emulation):
            if run.unmeasured is not None:
                continue
            folder.write_conditions(settings)
        failed |= _engine(engine, settings, folder, store)
    failed = {point: failed[point] for point in store.points if point in failed}  # in the order of the run
    wrong = [f"failed: {why}" for why in failed.values()]
    if run.unmeasured is not None:
        folder.log(f"nothing was measured: {run.unmeasured}")
        failed |= {point: run.unmeasured for point in store.points if point.engine != "model"}
    with progress.still("report: the results, tables and figures are being made"):
        results = _found(run, store.times)
        certified = certificate(store.measured(), is_real=run.scenario.run.is_real)
        folder.complete_with(store, results, failed)
        folder.end()  # what is drawn below can be drawn again
        wrong += [why for why in [folder.report() if results else None] if why]
    _tell(run, folder, results, certified)
    for why in wrong:
        print(f"run.py: {why}", file=sys.stderr)
    if run.unmeasured is not None:
        print(f"run.py: nothing was measured: {run.unmeasured}", file=sys.stderr)
    return FAILED if wrong else DONE if run.unmeasured is None else CANNOT


def _engine(engine: Engine, settings: Sequence[Scenario], folder: RunFolder, store: Store) -> Mapping[Point, str]:
    """Run an engine over the points that are not finished; returns those that failed, and why."""
    failed = {}
    with (
        closing(engine.run(settings, store.have(engine.name))) as news,
        closing(progress.shown(store.kept(news, engine.name), engine.name, settings, _before(engine, store))) as seen,
    ):
        for item in seen:
            point = Point(engine.name, item.setting, item.mode)
            if isinstance(item, Failed):
                failed[point] = item.why
                folder.log(f"failed: {item.why}")
            elif isinstance(item, Again):
                folder.log(f"tried once more: {item.why}")
            elif isinstance(item, Seen):
                folder.saw(item)
            elif isinstance(item, Struck):
                folder.struck(engine.name, item)
            elif not isinstance(item, Doing) and store.finished(point):
                folder.log(f"finished: {engine.name}, {progress.label(settings[item.setting])}, {item.mode}")
    return failed


def _before(engine: Engine, store: Store) -> Iterator[Slice]:
    """What an earlier run has left of an engine's points."""
    for point in store.points:
        if point.engine == engine.name:
            for rows in store.rows(point):
                yield Slice(setting=point.setting, mode=point.mode, rows=rows)


def _tell(run: Run, folder: RunFolder, results: Sequence[SettingResult], certified: Certificate | None) -> None:
    if run.json:
        print(as_json(str(folder.path), results, certified, unmeasured=run.unmeasured))
        for warning in certified.warnings if certified else ():
            print(f"run.py: WARNING: {warning}", file=sys.stderr)
        return
    parts = [as_text(results) if results else "no point was finished", *([str(certified)] if certified else [])]
    print("\n\n".join([*parts, f"results in {folder.path}"]))
