"""One run from its folder's first file to its last: the engines at work, every row kept, results at the end."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from analysis.certificate import Certificate, certificate
from analysis.results import Point
from scenarios import progress
from scenarios.answer import as_json, as_text
from scenarios.emulation import Emulation
from scenarios.engine import Again, Engine, Failed, Seen, Slice, Struck
from scenarios.folder import RunFolder
from scenarios.results import SettingResult, Times, results_of
from scenarios.resume import Kept
from scenarios.spec import Scenario
from scenarios.store import Store, StoreError
from scenarios.vm import CannotRunError

DONE, FAILED, CANNOT = 0, 1, 3
"""Exit statuses."""

Part = tuple[Engine, Sequence[Scenario]]
"""An engine and the settings it is for."""


@dataclass(frozen=True)
class Run:
    """A run: its scenario, its engines, and whether it is to be told as JSON."""

    scenario: Scenario
    parts: Sequence[Part]
    json: bool

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
            folder.write_conditions(settings)
        failed |= _engine(engine, settings, folder, store)
    failed = {point: failed[point] for point in store.points if point in failed}  # in the order of the run
    results = _found(run, store.times)
    certified = certificate(store.measured(), is_real=run.scenario.run.is_real)
    folder.complete_with(store, results, failed)
    folder.end()  # what is drawn below can be drawn again
    wrong = [f"failed: {why}" for why in failed.values()]
    wrong += [why for why in [folder.report() if results else None] if why]
    _tell(run, folder, results, certified)
    for why in wrong:
        print(f"run.py: {why}", file=sys.stderr)
    return FAILED if wrong else DONE


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
            elif store.finished(point):
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
        print(as_json(str(folder.path), results, certified))
        for warning in certified.warnings if certified else ():
            print(f"run.py: WARNING: {warning}", file=sys.stderr)
        return
    parts = [as_text(results) if results else "no point was finished", *([str(certified)] if certified else [])]
    print("\n\n".join([*parts, f"results in {folder.path}"]))
