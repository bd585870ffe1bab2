"""The model engine: predicts the completion times of collectives by the timing model, in batches, on several processes.

The results of a batch depend only on the configuration and the indices of its collectives. So the number of processes,
the size of batches and the order of modes affect only the running time.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from analysis.results.rows import Rows
from controller.routing.wan_path_choice import NoPathError
from scenarios.engines.base import EngineEvent, Failed, IsStored, Slice, none_stored
from scenarios.engines.pool import Executors, FailedTask, processes, results
from scenarios.engines.prediction import Plan, decisions_of, known_before, lower_bound
from scenarios.engines.referees import best_s
from scenarios.policies.conditions import Conditions, conditions_of, cut_off
from scenarios.policies.knowledge import Derived
from scenarios.spec.faults import CABLE_KINDS, MAX_ATTEMPTS, PLANNED_KINDS, Fault, active
from scenarios.spec.scenario import Scenario
from scenarios.spec.trace_times import trace_time
from topologies.conditions.sampler import Sampler
from topologies.errors import SpecError, list_all
from topologies.shaping.rate_scale import FULL_SCALE

BATCH = 5000
"""Collectives per batch: enough to make numpy's overhead small, few enough to show progress."""

_AHEAD = 4  # batches queued per process, as writing the results of a point takes some time
_CELLS = 1 << 20  # rates per batch: bounds the memory by smaller batches for large fabrics
TRANSFERS = 2_000_000
"""Transfers per batch, so that it takes a second or two: progress is told by batches."""
_ROUNDING = 1e-12  # of times
_MOST_AT_ONCE = 1000  # collectives of which it is seen when a fault ends
_SHARED = 8  # transfers that one counts for if flows share links: so much longer it takes

Floats = npt.NDArray[np.float64]


def check_known(configs: Sequence[Scenario]) -> None:
    """Raise ValueError for a fault that the model ignores, or of which it models only a part of the effect."""
    for config in configs:
        for number, fault in enumerate(config.faults, 1):
            if fault.kind not in PLANNED_KINDS:
                raise ValueError(
                    f"fault[{number}].what: {fault.what} has no effect in the model; allowed with --engine model: "
                    f"{', '.join(PLANNED_KINDS)}"
                )
            if fault.after_s is not None:
                raise ValueError(
                    f"fault[{number}].at: {fault.at} is within a collective, which the model does not support; allowed "
                    f'with --engine model: "collective {fault.collective}"'
                )


def as_modelled(config: Scenario) -> Scenario:
    """Return the configuration as the model computes it: unscaled and in virtual time, whatever the emulation uses."""
    return replace(config, run=replace(config.run, clock="virtual", scale=FULL_SCALE))


@dataclass(frozen=True)
class Batch:
    """Collectives start .. stop-1 of some modes of a configuration; `index` is the configuration's index in the run."""

    index: int
    config: Scenario
    modes: tuple[str, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Model:
    """The engine of the timing model, on `jobs` processes or other `executors`, in batches of about `batch` rows, or of
    fewer with about so many `transfers`."""

    jobs: int = 1
    batch: int = BATCH
    transfers: int = TRANSFERS
    executors: Executors = processes
    name: ClassVar[str] = "model"

    def run(self, configs: Sequence[Scenario], is_stored: IsStored = none_stored) -> Generator[EngineEvent, None, None]:
        """As `Engine.run`; batches are started in order of the configurations and of their collectives."""
        jobs = min(self.jobs, sum(-(-config.collective.count // self._step(config)) for config in configs))
        failed: set[tuple[int, str]] = set()
        with self.executors(jobs) as executors:
            for batch, result in results(rows_of, self._batches(configs, is_stored), executors, ahead=_AHEAD):
                for mode in batch.modes:
                    rows = result if isinstance(result, FailedTask) else result[mode]
                    kept = rows.before if isinstance(rows, CutShort) else rows
                    if isinstance(kept, Rows):
                        yield Slice(setting=batch.index, mode=mode, rows=kept)
                    if isinstance(rows, FailedTask) and (batch.index, mode) not in failed:
                        failed.add((batch.index, mode))
                        numbers = f"collectives {batch.start} to {batch.stop - 1}: "
                        where = f"model, {batch.config.label}, {mode}, {numbers * (not isinstance(rows, CutShort))}"
                        is_final = not isinstance(result, FailedTask)
                        yield Failed(setting=batch.index, mode=mode, why=f"{where}{rows.why}", is_final=is_final)

    def _step(self, config: Scenario) -> int:
        if config.searches_schedules:
            return 1
        # If a batch begins with a re-embedding, it needs no conditions of earlier collectives.
        links = sum(gpus * gpus for gpus in config.fabric.gpus_per_site)
        batch = max(1, min(self.batch, _CELLS // links, self.transfers // _effort(config)))
        every = config.collective.reembed_every
        return batch // every * every or batch

    def _batches(self, configs: Sequence[Scenario], is_stored: IsStored) -> Iterator[Batch]:
        for index, config in enumerate(configs):
            step = self._step(config)
            for start in range(0, config.collective.count, step):
                stop = min(start + step, config.collective.count)
                modes = tuple(mode for mode in config.run.modes if not is_stored(index, mode, start, stop))
                if modes:
                    yield Batch(index, config, modes, start, stop)


@dataclass(frozen=True)
class CutShort(FailedTask):
    """A mode's result if faults leave its flows without a path within a batch: its rows `before` that, None for none.
    `why` names the collective in which the point ends."""

    before: Rows | None = None


def _effort(config: Scenario) -> int:
    """Return how long all modes take to predict a collective, in transfers over links that no flows share."""
    return sum(effort_of(config, mode) for mode in config.run.modes)


def effort_of(config: Scenario, mode: str) -> int:
    """Return how long a mode takes to predict a collective, in transfers over links that no flows share."""
    return max(1, len(config.workload.schedule.transfers) * (_SHARED if config.shared_links(mode) else 1))


def rows_of(batch: Batch) -> dict[str, Rows | FailedTask]:
    """Compute one batch in every mode, all under the same conditions, which are drawn once. If a user-defined policy
    fails, only that mode's result is a FailedTask; if faults leave a flow without a path, a CutShort."""
    if any(fault.is_timed for fault in batch.config.faults):  # for other numbers of collectives in other modes
        one_by_one = (
            replace(batch, config=with_counted_faults(batch.config, mode), modes=(mode,)) for mode in batch.modes
        )
        return {mode: rows for one in one_by_one for mode, rows in _rows_of(one).items()}
    return _rows_of(batch)


def _rows_of(batch: Batch) -> dict[str, Rows | FailedTask]:
    """As `rows_of`, with faults that last for a number of collectives."""
    config, count = batch.config, batch.stop - batch.start
    conditions, bound = _conditions_and_bound(config)
    conditions = replace(conditions, drawn=_Cached(conditions.drawn))
    bound_s = bound(batch.start, conditions.drawn.rates_bps(batch.start, count))
    referees_s = best_s(config, conditions, start=batch.start, count=count)
    rows: dict[str, Rows | FailedTask] = {}
    for mode in batch.modes:
        sound = count
        if (ended := _ends_before(config, mode, conditions, batch.start)) is not None:
            rows[mode] = ended
            continue
        try:
            decisions = decisions_of(config, mode, conditions, start=batch.start, count=count)
        except SpecError as error:  # a user-defined policy failed
            rows[mode] = FailedTask(str(error))
            continue
        except NoPathError as error:
            sound = known_before(config, mode, conditions, start=batch.start, count=count)
            ended = CutShort(_why_cut(config, batch.start + sound, str(error)))
            if not sound:
                rows[mode] = ended
                continue
            decisions = decisions_of(config, mode, conditions, start=batch.start, count=sound)
        plan = Plan(config, mode, decisions, conditions, batch.start)
        completion_s, of_jobs = plan.with_jobs()
        within = plan.moves_within(completion_s)
        waits_s = None
        if config.control.counted:
            waits_s = plan.reconfiguring_s()
            completion_s = completion_s + np.nan_to_num(waits_s)
        found = Rows(
            batch.start,
            {
                "completion_s": completion_s,
                "ring": decisions.placement,
                "paths": decisions.path,
                "reembedded": decisions.reembedded,
                "rerouted": decisions.rerouted,
                "bound_s": bound_s[:sound],
                **{name: values[:sound] for name, values in referees_s.items()},
                "reconfigure_s": waits_s,
                "rerouted_within": within[:, 0],
                "moved_within": within[:, 1],
            },
            jobs=of_jobs and of_jobs._asdict(),
        )
        rows[mode] = found if ended is None else replace(ended, before=found)
    return rows


def _ends_before(config: Scenario, mode: str, conditions: Conditions, start: int) -> CutShort | None:
    """Return that a mode has no path in an earlier collective than `start`, in which its point has ended, whichever of
    the batches is computed first."""
    for collective in cut_off(config) if config.faults else ():
        if collective < start:
            try:
                decisions_of(config, mode, conditions, start=collective, count=1)
            except NoPathError as error:
                return CutShort(_why_cut(config, collective, str(error)))
            except SpecError:  # which its own batch tells
                return None
    return None


def _lasting(fault: Fault) -> str:
    lasts = "to the end" if fault.lasts is None else f"for {fault.lasts:,} collective{'s' * (fault.lasts > 1)}"
    return f"{fault.what} from collective {fault.collective:,} {lasts}"


def _why_cut(config: Scenario, collective: int, why: str) -> str:
    """Return why a point ends in a collective, with the faults that are in force then."""
    struck = active([fault for fault in config.faults if fault.kind in CABLE_KINDS], collective)
    because = f" with {list_all([_lasting(one) for one in struck])}" if struck else ""
    time = trace_time(config, collective).removesuffix(",")
    again = f"it is begun {MAX_ATTEMPTS} times, as in the testbed, and then given up"
    least = f"; --collectives {collective} ends before it" if collective else ""
    return f"collective {collective:,}{time}: {why}{because}: {again}{least}"


def undisturbed_s(config: Scenario, mode: str, start: int, stop: int) -> tuple[Floats, Floats]:
    """Return the times of collectives start .. stop-1 of a point without the scenario's faults, [K] s, and those of
    its jobs, [K, J] s; NaN if the mode fails."""
    whole = replace(config, faults=(), run=replace(config.run, referees=()))
    step, parts, of_jobs = Model()._step(whole), [], []
    jobs = len(whole.workload.jobs)
    for first in range(start, stop, step):
        count = min(first + step, stop) - first
        rows = rows_of(Batch(0, whole, (mode,), first, first + count))[mode]
        if isinstance(rows, FailedTask):
            parts.append(np.full(count, np.nan))
            of_jobs.append(np.full((count, jobs), np.nan))
        else:
            parts.append(rows.completion_s)
            of_jobs.append(rows.jobs.get("completion_s", np.empty((count, 0))))
    return np.concatenate(parts), np.concatenate(of_jobs)


@lru_cache(maxsize=64)
def with_counted_faults(config: Scenario, mode: str) -> Scenario:
    """Return a configuration in which faults that last for a time of collectives have the number of collectives that
    begin with them in this mode, by the predicted times with them. One that ends within a collective is in force until
    the end of that; one that begins within a collective is so from the next one on, as all faults here."""
    timed = {index: fault for index, fault in enumerate(config.faults) if fault.is_timed}
    lasts: dict[int, int] = {}
    left_s: dict[int, float] = {}

    def faults_now() -> tuple[Fault, ...]:
        # The others begin later, or have not begun in the model.
        return tuple(
            replace(fault, lasts=lasts.get(index), lasts_s=None) if fault.is_timed else fault
            for index, fault in enumerate(config.faults)
            if not fault.is_timed or index in left_s or index in lasts
        )

    k, step = min((fault.collective for fault in timed.values()), default=config.collective.count), 1
    while k < config.collective.count and len(lasts) < len(timed):
        starting = [index for index, fault in timed.items() if fault.collective == k]
        left_s |= {index: timed[index].lasts_s or 0.0 for index in starting if timed[index].after_s is None}
        within = [index for index in starting if timed[index].after_s is not None]
        later = [fault.collective for fault in timed.values() if fault.collective > k]
        if not left_s and not within:
            k = min(later, default=config.collective.count)
            continue
        stop = min(config.collective.count, k + (1 if within else step), *later)
        batch = Batch(0, replace(config, faults=faults_now()), (mode,), k, stop)
        rows = _rows_of(batch)[mode]
        if isinstance(rows, FailedTask):  # as every batch of it will
            break
        passed_s = np.cumsum(rows.completion_s)
        least_s = min(left_s.values(), default=math.inf)
        count = min(passed_s.size, int(np.searchsorted(passed_s, least_s * (1 - _ROUNDING))) + 1)
        left_s = {index: left - float(passed_s[count - 1]) for index, left in left_s.items()}
        left_s |= {
            index: (timed[index].lasts_s or 0.0) - max(0.0, float(passed_s[0]) - (timed[index].after_s or 0.0))
            for index in within
        }
        for index in [index for index, left in left_s.items() if left <= _ROUNDING * (timed[index].lasts_s or 0.0)]:
            lasts[index] = k + count - timed[index].collective
            del left_s[index]
        k, step = k + count, min(2 * step, _MOST_AT_ONCE)
    counted = (
        replace(fault, lasts=lasts.get(index)) if index in timed else fault for index, fault in enumerate(config.faults)
    )
    return replace(config, faults=tuple(counted))


class _Cached(Derived):
    """A sampler that caches the conditions drawn last, because all modes of a batch use the same ones."""

    def __init__(self, source: Sampler) -> None:
        super().__init__(source)
        self._key: tuple[int, int] | None = None
        self._rates_bps: Floats = np.empty((0, 0))

    def rates_bps(self, start: int, count: int) -> Floats:
        if self._key != (start, count):
            self._rates_bps = self.source.rates_bps(start, count)
            self._rates_bps.setflags(write=False)
            self._key = (start, count)
        return self._rates_bps


@lru_cache(maxsize=4)
def _conditions_and_bound(config: Scenario) -> tuple[Conditions, Callable[[int, Floats], Floats]]:
    conditions = conditions_of(config)
    return conditions, lower_bound(config, conditions)
