"""The results of a run, computed from the collectives in its directory: means with intervals for each point."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.results.columns import COLLECTIVE, POINT, REFEREES
from analysis.results.reader import Choices, Reconfigurations, choices_of, last_words, reconfigurations_of
from analysis.results.rows import Point
from analysis.statistics.contests import Place, Setting, baselines_of
from analysis.statistics.fault_costs import FaultResult, PointCosts, pooled_costs
from analysis.statistics.fidelity import Fifo, fifo_of
from analysis.statistics.intervals import (
    Estimated,
    Interval,
    Series,
    Summary,
    gain,
    series_of,
    summarise,
    with_blocks_of_equal,
)
from analysis.statistics.transfer_times import times_of
from analysis.statistics.without_faults import mean_without_s
from hosts.collectives.kinds import TRAINING
from hosts.collectives.training import extra_forwards_by_stage, in_flight
from scenarios.engines.prediction import exposed_s
from scenarios.experiment.fault_results import with_errors
from scenarios.spec.labels import setting_of
from scenarios.spec.scenario import Scenario
from scenarios.spec.training import sites_of
from topologies.units import format_delay

if TYPE_CHECKING:
    import pandas as pd

_POINT_COLUMNS = [column.name for column in POINT]
COLUMNS = [*_POINT_COLUMNS, *(column.name for column in COLLECTIVE)]
"""The columns of the collectives that results are computed from."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The training iterations of a point: their mean time, and the share of it in which GPUs do not compute.

    `exposed_pipeline_s` and `exposed_data_s` are the times that messages between stages and gradient sums add to an
    iteration in the prediction of the first collective (for a job, of the first round). `measured_pipeline_s` and
    `measured_data_s` are the same from its measurement, None if it was not measured. By stage, `in_flight` is the
    largest number of micro-batches at the same time, of which `more` are due to a cut. `room` is how many
    micro-batches' activations fit in memory, None if any number fits.
    """

    iteration_s: float
    bubble_ratio: float
    exposed_pipeline_s: float
    exposed_data_s: float
    measured_pipeline_s: float | None
    measured_data_s: float | None
    in_flight: tuple[float, ...]
    more: tuple[int, ...]
    room: float | None


@dataclass(frozen=True, kw_only=True)
class ServingResult:
    """The requests of a point's job, means over its rounds: the median of the times to first token, and how many are
    served a second."""

    mean_first_token_p50_s: float
    mean_requests_per_s: float

    @property
    def words(self) -> str:
        """Both in words: "median 63.1 ms, 4.7 requests a second"."""
        return f"median {self.mean_first_token_p50_s * 1e3:,.3f} ms, {self.mean_requests_per_s:,.3g} requests a second"


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """One job of a point: the means of its measured and predicted completion times, the longest time, and all of both,
    [K] s; no round waits for `background`. `training` describes the iterations of a training job, and `serving` the
    requests of one that has some."""

    name: str
    mean_s: float
    mean_predicted_s: float
    longest_s: float
    background: bool
    completion_s: npt.NDArray[np.float64]
    predicted_s: npt.NDArray[np.float64]
    training: TrainingResult | None = None
    serving: ServingResult | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields, including those of `training` and `serving`, without the single times."""
        values = asdict(self)
        del values["completion_s"], values["predicted_s"]
        return values | (values.pop("training") or {}) | (values.pop("serving") or {})


@dataclass(frozen=True, kw_only=True)
class BudgetResult:
    """The time budget of a collective, how much of it the mean leaves (or exceeds), and how many collectives fit."""

    budget_s: float
    spare_s: float
    fitting: int

    def words(self, collectives: int) -> str:
        """Return the verdict on the mean and on this number of collectives: "290 ms: mean fits, 154.009 ms left; all
        fit"."""
        by = f"{abs(self.spare_s) * 1e3:,.3f} ms {'left' if self.spare_s >= 0 else 'late'}"
        mean = f"mean {'fits' if self.spare_s >= 0 else 'does not fit'}, {by}"
        return f"{format_delay(self.budget_s)}: {mean}" + f"; {self.share_words(collectives)}" * (collectives > 1)

    def share_words(self, collectives: int) -> str:
        """Return how many of so many collectives fit: "277 of 500 fit", "all fit"."""
        return {0: "none fits", collectives: "all fit"}.get(self.fitting, f"{self.fitting:,} of {collectives:,} fit")


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One mode in one configuration: its times, and its gain over the point `over`, its baseline.

    The gain is None if they share no collectives, and `over` is None for the baseline itself.

    `bound_s` is the mean of its collectives' lower bounds. `changes` are its reconfigurations. `fifo` is the effect of
    fifo queues on collectives without faults. Each is None where it does not exist. `jobs` are the jobs of its rounds,
    and `faults` the faults that were injected; `mean_without_s` is the mean without what they cost, if that is known.
    `training` describes the iterations if the collective is training, and `budget` compares the times with the budget
    if there is one. `choices` are, of a mode that decides by itself when to choose, how often it re-routed and
    re-embedded, and `stopped` tells when it did so last if that is early. `referees_s` are the means of the references
    in `run.referees`, by column.
    """

    mode: str
    summary: Summary
    gain: Interval | None
    over: str | None = None
    bound_s: float | None = None
    changes: Reconfigurations | None = None
    jobs: tuple[JobResult, ...] = ()
    faults: tuple[FaultResult, ...] = ()
    mean_without_s: float | None = None
    fifo: Fifo | None = None
    training: TrainingResult | None = None
    budget: BudgetResult | None = None
    choices: Choices | None = None
    stopped: str = ""
    referees_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ConfigResult:
    """The results of all modes in one configuration, whose index among the scenario's configurations is `index`.

    `times` are the completion times by mode. The gain of a baseline is zero.
    """

    engine: str
    index: int
    config: Scenario
    points: tuple[PointResult, ...]
    times: Mapping[str, Series]


def collectives_by_point(rows: "pd.DataFrame") -> dict[Point, "pd.DataFrame"]:
    """Return the stored rows of each point, in the order of collectives; `rows` have COLUMNS."""
    return {Point(*key): here for key, here in rows.groupby(_POINT_COLUMNS, sort=False)}


def jobs_by_point(jobs: "pd.DataFrame") -> dict[Point, tuple[JobResult, ...]]:
    """Return the results of the jobs of each point, in order."""
    results: dict[Point, tuple[JobResult, ...]] = {}
    for key, of_job in jobs.groupby([*_POINT_COLUMNS, "job", "background"], sort=False):
        *point, name, background = key
        of_point = results.get(Point(*point), ())
        rows = of_job.sort_values("collective")
        serves = not rows["requests_per_s"].isna().all()
        result = JobResult(
            name=name,
            mean_s=float(rows["completion_s"].mean()),
            mean_predicted_s=float(rows["predicted_s"].mean()),
            longest_s=float(rows["completion_s"].max()),
            background=bool(background),
            completion_s=rows["completion_s"].to_numpy(),
            predicted_s=rows["predicted_s"].to_numpy(),
            serving=ServingResult(
                mean_first_token_p50_s=float(rows["first_token_p50_s"].mean()),
                mean_requests_per_s=float(rows["requests_per_s"].mean()),
            )
            if serves
            else None,
        )
        results[Point(*point)] = (*of_point, result)
    return results


@dataclass(frozen=True, kw_only=True)
class First:
    """The first collective of a measured point: the rank at each place, and its messages as they are stored."""

    placement: Sequence[int]
    messages: "pd.DataFrame"


def firsts_of(collectives: "pd.DataFrame", transfers: "pd.DataFrame") -> dict[Point, First]:
    """Return the first collective of each measured point."""
    rows, messages = (
        table[table["collective"] == table.groupby(_POINT_COLUMNS)["collective"].transform("min")]
        for table in (collectives, transfers)
    )
    placement = {Point(*key): here["ring"].iloc[0] for key, here in rows.groupby(_POINT_COLUMNS, sort=False)}
    return {
        Point(*key): First(placement=placement[Point(*key)], messages=here)
        for key, here in messages.groupby(_POINT_COLUMNS, sort=False)
    }


def measured_of(stored: Mapping[Point, "pd.DataFrame"]) -> tuple[list["pd.DataFrame"], list["pd.DataFrame"]]:
    """Return the measured rows for the fidelity: those that no fault disturbed, and the others."""
    measured = [rows for point, rows in stored.items() if point.engine != "model"]
    return [rows[rows["undisturbed"]] for rows in measured], [rows[~rows["undisturbed"]] for rows in measured]


def results_of(
    stored: Mapping[Point, "pd.DataFrame"],
    engine: str,
    configs: Sequence[Scenario],
    *,
    jobs: Mapping[Point, tuple[JobResult, ...]],
    firsts: Mapping[Point, "First"],
    faults: Mapping[Point, tuple[FaultResult, ...]],
) -> list[ConfigResult]:
    """Return the result of each configuration that has modes with all their collectives stored, over these modes.
    `firsts` are the first collectives of measured training points."""
    results = []
    for index, config in enumerate(configs):
        rows_of = {mode: stored.get(Point(engine, index, mode)) for mode in config.run.modes}
        count = len(config.collective.numbers)
        finished = {mode: rows for mode, rows in rows_of.items() if rows is not None and len(rows) == count}
        if finished:
            points = {mode: Point(engine, index, mode) for mode in finished}
            jobs_by_mode = {mode: jobs.get(point, ()) for mode, point in points.items()}
            firsts_by_mode = {mode: firsts[point] for mode, point in points.items() if point in firsts}
            faults_by_mode = {mode: faults.get(point, ()) for mode, point in points.items()}
            results.append(
                _result(
                    engine, index, config, finished, jobs=jobs_by_mode, firsts=firsts_by_mode, faults=faults_by_mode
                )
            )
    return _over_baselines(results)


def _over_baselines(results: Sequence[ConfigResult]) -> list[ConfigResult]:
    """Return the results of one engine with the gains of all points over their baselines."""
    baselines, times = baselines_of(settings_of(results)), point_times(results)
    return [
        replace(
            result,
            points=tuple(_over(point, Place(result.index, point.mode), baselines, times) for point in result.points),
        )
        for result in results
    ]


def _over(
    point: PointResult,
    place: Place,
    baselines: Mapping[Place, tuple[str, Place]],
    times: Mapping[Place, Series],
) -> PointResult:
    name, baseline = baselines.get(place, ("", place))
    if not name or baseline not in times:
        return point
    return replace(point, gain=gain(times[baseline], times[place]), over=None if place == baseline else name)


def settings_of(results: Iterable[ConfigResult]) -> list[Setting]:
    """Return the configurations of results among those of their sweep, with the modes that have results."""
    found: dict[int, Setting] = {}
    for result in results:
        setting = found.get(result.index) or replace(setting_of(result.index, result.config), modes=())
        modes = tuple(mode for mode in result.config.run.modes if mode in {*setting.modes, *result.times})
        found[result.index] = replace(setting, modes=modes)
    return [found[index] for index in sorted(found)]


def point_times(results: Iterable[ConfigResult]) -> dict[Place, Series]:
    """Return the times of the points of one engine."""
    return {Place(result.index, mode): times for result in results for mode, times in result.times.items()}


def point_result(mode: str, times: Series, base: Series | None) -> PointResult:
    """Return the result of one mode, finished or not, from its stored times and those of base."""
    return PointResult(mode=mode, summary=summarise(times), gain=None if base is None else gain(base, times))


def _result(
    engine: str,
    index: int,
    config: Scenario,
    stored: Mapping[str, "pd.DataFrame"],
    *,
    jobs: Mapping[str, tuple[JobResult, ...]],
    firsts: Mapping[str, First],
    faults: Mapping[str, tuple[FaultResult, ...]],
) -> ConfigResult:
    series, arrived = {}, {}
    for mode, first in firsts.items():
        with suppress(ValueError):  # the run was made by a version with a different schedule
            schedule, rank_at = config.workload.schedule, first.placement
            ends = [(rank_at[begin], rank_at[end]) for begin, end in zip(*schedule.ends, strict=True)]
            arrived[mode] = np.array(times_of(schedule.transfers, ends, first.messages)[1])
    exact_from = config.exact_from(engine)
    for mode, rows in stored.items():
        chosen: Any = {name: rows[name].to_numpy() for name in ("reembedded", "rerouted")}
        times_s = rows["completion_s"].to_numpy()
        series[mode] = series_of(np.arange(times_s.size), times_s, config.conditions, exact_from=exact_from, **chosen)
    series = {mode: with_blocks_of_equal(one, series.values()) for mode, one in series.items()}
    points = tuple(
        replace(
            point_result(mode, times, None),
            bound_s=_mean(stored[mode]["bound_s"].to_numpy()),
            changes=reconfigurations_of(stored[mode], engine),
            jobs=tuple(
                replace(job, training=_training(config, mode, job.mean_s, arrived.get(mode), job.name))
                for job in jobs[mode]
            ),
            faults=tuple(faults[mode])
            if engine == "model"
            else with_errors(
                faults[mode],
                config.faults,
                stored[mode],
                {job.name: (job.completion_s, job.predicted_s) for job in jobs[mode]},
            ),
            mean_without_s=mean_without_s(
                stored[mode]["collective"].to_numpy(),
                stored[mode]["completion_s"].to_numpy(),
                stored[mode]["predicted_s"].to_numpy(),
                faults[mode],
            ),
            fifo=fifo_of([stored[mode][stored[mode]["undisturbed"]]]),
            training=_training(config, mode, float(times.completion_s.mean()), arrived.get(mode)),
            budget=_budget(config.collective.budget_s, times.completion_s),
            choices=choices_of(stored[mode]) if mode in config.counted_modes else None,
            stopped=last_words(stored[mode]) if mode in config.counted_modes else "",
            referees_s={
                name: mean_s
                for name in (one.name for one in REFEREES)
                if (mean_s := _mean(stored[mode][name].to_numpy())) is not None
            },
        )
        for mode, times in series.items()
    )
    return ConfigResult(engine=engine, index=index, config=config, points=points, times=series)


def _budget(budget_s: float | None, completion_s: npt.NDArray[np.float64]) -> BudgetResult | None:
    """Compare the times of collectives with a budget; None without one."""
    if budget_s is None:
        return None
    spare_s, fitting = budget_s - float(completion_s.mean()), int((completion_s <= budget_s).sum())
    return BudgetResult(budget_s=budget_s, spare_s=spare_s, fitting=fitting)


def _training(
    config: Scenario, mode: str, mean_s: float, arrived_s: npt.NDArray[np.float64] | None, job: str | None = None
) -> TrainingResult | None:
    """Describe training iterations whose collectives, or whose job's rounds, take `mean_s` on average, or return None.

    `arrived_s` holds when each transfer of the first collective was complete, if it was measured.
    """
    plan, ranks, count = config.training_plan, tuple(range(config.gpus)), 1
    if job is not None:
        spec = next(one for one in config.jobs if one.name == job)
        ranks, count = spec.ranks or ranks, spec.count
        plan = plan if spec.collective(config.collective).kind == TRAINING else None
    if plan is None or (job is None and config.jobs):
        return None
    training, iteration_s = plan.training, mean_s / count / plan.training.every
    more = extra_forwards_by_stage(training, sites_of(ranks, config.fabric.gpus_per_site), plan.more(ranks))
    pipeline_s, data_s = exposed_s(config, mode, job)
    measured_s = (None, None) if arrived_s is None else exposed_s(config, mode, job, arrived_s=arrived_s)
    return TrainingResult(
        iteration_s=iteration_s,
        bubble_ratio=1 - training.micro_batches * (training.forward_s + training.backward_s) / iteration_s,
        exposed_pipeline_s=pipeline_s,
        exposed_data_s=data_s,
        measured_pipeline_s=measured_s[0],
        measured_data_s=measured_s[1],
        in_flight=tuple(in_flight(training, stage, len(more), extra) for stage, extra in enumerate(more)),
        more=more,
        room=None if training.memory_bytes is None else training.memory_bytes / training.kept_bytes,
    )


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    """Return the mean of the finite values, None if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def transfer_fields(config: Scenario, point: PointResult | None = None) -> dict[str, Any]:
    """Return a configuration's transfers with outcomes, if any; for a point also their latest completion times."""
    longest_s = {} if point is None else {job.name: job.longest_s for job in point.jobs}
    transfers = [transfer.as_json() | transfer.kept(longest_s.get(transfer.job.name)) for transfer in config.transfers]
    if point is not None and (lost := sum(fault.collectives_lost for fault in point.faults)):
        # A round that fails delivers nothing in time; measured times are those of its repetition.
        missed = {"kept": False, "rounds_lost": lost}
        transfers = [one | missed if "kept" in one else one for one in transfers]
    return {"transfers": transfers} if transfers else {}


def times_by_engine(results: Sequence[ConfigResult]) -> dict[tuple[str, Place], Series]:
    """Return the times of all points, by engine and place."""
    return {
        (result.engine, Place(result.index, mode)): series
        for result in results
        for mode, series in result.times.items()
    }


def intervals_of(results: Sequence[ConfigResult]) -> list[Estimated]:
    """Return the intervals of the table with their modes."""
    points = [point for result in results for point in result.points]
    return [(one.mode, one.summary.mean_s, None if one.over is None else one.gain) for one in points]


def pooled_faults(results: Sequence[ConfigResult]) -> list[PointCosts]:
    """Return the faults of all points, those of several seeds as one: predicted only where nothing was measured."""
    faults = {
        Point(result.engine, result.index, point.mode): point.faults for result in results for point in result.points
    }
    return pooled_costs(settings_of(results), faults)
