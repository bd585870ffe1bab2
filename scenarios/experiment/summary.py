"""The results of a run, computed from the collectives in its directory: means with intervals for each point.

They are printed as a table with the paper's claims, or as JSON, and stored as CSV.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count, groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.results.columns import COLLECTIVE, POINT, REFEREES
from analysis.results.paragraphs import About, Paragraph, those_about
from analysis.results.reader import Choices, Reconfigurations, choices_of, reconfigurations_of
from analysis.results.rows import Point
from analysis.statistics.answer import answer, winners
from analysis.statistics.block_notes import few_blocks_sentence
from analysis.statistics.bound_words import ANY, MARK, SHARED, bound_words, is_mixed
from analysis.statistics.claims import (
    ABOUT,
    PAPER_JOINT_GAIN,
    PAPER_ORDER,
    claims,
    is_paper_configuration,
)
from analysis.statistics.comparisons import comparisons_of
from analysis.statistics.contests import BASELINE, MODE, Place, Setting, baselines_of, contests_of
from analysis.statistics.declared_faults import unmodelled_sentence
from analysis.statistics.fault_costs import RECOVERY, FaultResult, PointCosts, pooled_costs
from analysis.statistics.fidelity import Fidelity, Fifo, fifo_of
from analysis.statistics.gain_times import gain_times_sentence
from analysis.statistics.grain_notes import grain_sentence, most_at_a_time
from analysis.statistics.intervals import Interval, Series, Summary, gain, reasons, series_of, summarise
from analysis.statistics.job_times import series_of_jobs
from analysis.statistics.number_words import bracketed, fixed, quoted
from analysis.statistics.orders import SIGNS, orders_of
from analysis.statistics.rates import drawn_sentence
from analysis.statistics.transfer_times import times_of
from hosts.collectives.kinds import TRAINING
from hosts.collectives.training import extra_forwards_by_stage, in_flight
from scenarios.engines.prediction import critical_path, exposed_s, is_bound_of_shared, link_bytes
from scenarios.experiment.ecmp import HASH_SEEDS, EcmpGain, lines_of, why_none
from scenarios.experiment.fault_results import heading, with_errors
from scenarios.spec.admission import UNADMITTED
from scenarios.spec.labels import setting_of
from scenarios.spec.scenario import Scenario, plain_values
from scenarios.spec.training import sites_of
from scenarios.text_table import aligned, told
from topologies.fabric.fabric import FabricSpec, LogicalLink, build_fabric
from topologies.fabric.ports import DirectedPort, links_in_grain
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
class JobResult:
    """One job of a point: the means of its measured and predicted completion times, the longest time, and all of them,
    [K] s; no round waits for `background`. `training` describes the iterations of a training job."""

    name: str
    mean_s: float
    mean_predicted_s: float
    longest_s: float
    background: bool
    completion_s: npt.NDArray[np.float64]
    training: TrainingResult | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields, including those of `training`, without the single times."""
        values = asdict(self)
        del values["completion_s"]
        return values | (values.pop("training") or {})


@dataclass(frozen=True, kw_only=True)
class BudgetResult:
    """The time budget of a collective, how much of it the mean leaves (or exceeds), and how many collectives fit."""

    budget_s: float
    spare_s: float
    fitting: int

    def words(self, collectives: int) -> str:
        """Return the verdict on this number of collectives, such as "290 ms: fits, 154.009 ms left"."""
        fits = {0: "does not fit", collectives: "fits"}.get(self.fitting, f"{self.fitting:,} of {collectives:,} fit")
        by = f"{abs(self.spare_s) * 1e3:,.3f} ms {'left' if self.spare_s >= 0 else 'late'}"
        return f"{format_delay(self.budget_s)}: {fits}, {by}"


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One mode in one configuration: its times, and its gain over the point `over`, its baseline.

    The gain is None if they share no collectives, and `over` is None for the baseline itself.

    `bound_s` is the mean of its collectives' lower bounds. `changes` are its reconfigurations. `fifo` is the effect of
    fifo queues on collectives without faults. Each is None where it does not exist. `jobs` are the jobs of its rounds,
    and `faults` the faults that were injected. `training` describes the iterations if the collective is training, and
    `budget` compares the times with the budget if there is one. `choices` are, of a mode that decides by itself when to
    choose, how often it re-routed and re-embedded. `referees_s` are the means of the references in
    `run.referees`, by column.
    """

    mode: str
    summary: Summary
    gain: Interval | None
    over: str | None = None
    bound_s: float | None = None
    changes: Reconfigurations | None = None
    jobs: tuple[JobResult, ...] = ()
    faults: tuple[FaultResult, ...] = ()
    fifo: Fifo | None = None
    training: TrainingResult | None = None
    budget: BudgetResult | None = None
    choices: Choices | None = None
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
    for key, rows in jobs.groupby([*_POINT_COLUMNS, "job", "background"], sort=False):
        *point, name, background = key
        of_point = results.get(Point(*point), ())
        result = JobResult(
            name=name,
            mean_s=float(rows["completion_s"].mean()),
            mean_predicted_s=float(rows["predicted_s"].mean()),
            longest_s=float(rows["completion_s"].max()),
            background=bool(background),
            completion_s=rows.sort_values("collective")["completion_s"].to_numpy(),
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
    baselines, times = baselines_of(_settings_of(results)), _times_of(results)
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


def _settings_of(results: Iterable[ConfigResult]) -> list[Setting]:
    """Return the configurations of results among those of their sweep, with the modes that have results."""
    found: dict[int, Setting] = {}
    for result in results:
        setting = found.get(result.index) or replace(setting_of(result.index, result.config), modes=())
        modes = tuple(mode for mode in result.config.run.modes if mode in {*setting.modes, *result.times})
        found[result.index] = replace(setting, modes=modes)
    return [found[index] for index in sorted(found)]


def _times_of(results: Iterable[ConfigResult]) -> dict[Place, Series]:
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
    for mode, rows in stored.items():
        chosen: Any = {name: rows[name].to_numpy() for name in ("reembedded", "rerouted")}
        times_s = rows["completion_s"].to_numpy()
        series[mode] = series_of(np.arange(times_s.size), times_s, config.conditions, **chosen)
    points = tuple(
        replace(
            point_result(mode, times, None),
            bound_s=_mean(stored[mode]["bound_s"].to_numpy()),
            changes=reconfigurations_of(stored[mode], engine),
            jobs=tuple(
                replace(job, training=_training(config, mode, job.mean_s, arrived.get(mode), job.name))
                for job in jobs[mode]
            ),
            faults=with_errors(faults[mode], config.faults, stored[mode]) if engine != "model" else tuple(faults[mode]),
            fifo=fifo_of([stored[mode][stored[mode]["undisturbed"]]]),
            training=_training(config, mode, float(times.completion_s.mean()), arrived.get(mode)),
            budget=_budget(config.collective.budget_s, times.completion_s),
            choices=None if config.mode(mode).is_periodic else choices_of(stored[mode]),
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


def as_json(
    run: str,
    results: Sequence[ConfigResult],
    fidelity: Fidelity | None,
    *,
    unmeasured: str | None = None,
    ecmp: Sequence[EcmpGain] = (),
) -> str:
    """Return one JSON object on one line: the run's folder, its points, the answer of `as_sentence` if a point was
    finished, the comparisons of alternatives if there are any, and its fidelity if something was measured.

    A point's `critical_path` divides the predicted time of its first collective into seconds by link; for training,
    `link_bytes` are the bytes that this collective sends over each link. `unmeasured` is why nothing was measured,
    although it was requested, and `ecmp` what ECMP alone would gain.
    """
    points = [
        _point_as_json(result, point)
        | _job_fields(result.config, point)
        | _transfer_fields(result.config, point)
        | ({"faults": [asdict(fault) for fault in point.faults]} if point.faults else {})
        | _training_fields(point)
        | ({} if point.training is None else {"link_bytes": link_bytes(result.config, point.mode)})
        | {"critical_path": critical_path(result.config, point.mode, 1)}
        for result in results
        for point in result.points
    ]
    said = {"answer": as_sentence(results)} if results else {}
    compared = [one.as_json() for one in comparisons_of(_settings_of(results), _times_by_engine(results))]
    answer: dict[str, Any] = {"run": run} | said | {"points": points} | ({"comparisons": compared} if compared else {})
    if fidelity is not None:
        numbers = {name: value for name, value in asdict(fidelity).items() if value is not None}
        answer["fidelity"] = numbers | {"holds": fidelity.holds, "warnings": list(fidelity.warnings)}
    if few := few_blocks_sentence(_intervals(results)):
        answer["few_blocks"] = few
    if unmeasured is not None:
        answer["unmeasured"] = unmeasured
    if struck := _pooled_faults(results):
        answer["fault_costs"] = [fault for one in struck for fault in one.as_json()]
    if ecmp:
        answer["ecmp"] = [
            {
                "setting": one.setting.index,
                "collectives": one.collectives,
                "hash_seeds": [*HASH_SEEDS],
                "outcomes": one.outcomes,
                "seeds": one.seeds,
                "gains": one.gains,
                "gains_low": [None if each.why else each.low for each in one.intervals],
                "gains_high": [None if each.why else each.high for each in one.intervals],
                "no_interval": next((why_none(each) for each in one.intervals if each.why), None),
                "median_gain": one.median,
            }
            for one in ecmp
        ]
    return json.dumps(answer, allow_nan=False)


def plan_as_json(plans: Sequence[tuple[str, Sequence[Scenario]]]) -> str:
    """Return the object of `as_json` for a run that was not made: without a folder, and with all points without times.

    `links` has the names of the logical links or ports, as traces use them, and the indices of the
    configurations whose fabric has them.
    """
    times = dict.fromkeys(("mean_s", "total_s", "gain", "baseline", "gain_vs_base"))
    points = [
        _identity(engine, config, mode)
        | times
        | _setting_fields(index, config)
        | _transfer_fields(config)
        | dict.fromkeys((*_INTERVAL_ENDS, *_BLOCKS, "mean_bound_s", "bound_of", "critical_path"))
        for engine, configs in plans
        for index, config in enumerate(configs)
        if not config.program.is_given  # a program has no points
        for mode in config.run.modes
    ]
    links = [
        {"settings": indices, "names": [link.name for link in links]}
        for links, indices in links_of(plans[0][1]).items()
    ]
    return json.dumps({"run": None, "points": points, "links": links}, allow_nan=False)


def links_of(configs: Sequence[Scenario]) -> dict[tuple[LogicalLink | DirectedPort, ...], list[int]]:
    """Return the distinct lists of logical links or ports, each with the indices of the configurations that have it."""
    specs: dict[FabricSpec, list[int]] = {}
    for index, config in enumerate(configs):
        specs.setdefault(config.fabric, []).append(index)
    indices_of: dict[tuple[LogicalLink | DirectedPort, ...], list[int]] = {}
    for spec, indices in specs.items():
        indices_of.setdefault(links_in_grain(build_fabric(spec)).all, []).extend(indices)
    return indices_of


def _point_as_json(result: ConfigResult, point: PointResult) -> dict[str, Any]:
    values = {
        "mean_s": point.summary.mean_s.value,
        "total_s": point.summary.total_s.value,
        "gain": None if point.gain is None else point.gain.value,
        "baseline": point.over,
        "gain_vs_base": None if point.gain is None or point.over not in (None, "base") else point.gain.value,
    }
    which = _identity(result.engine, result.config, point.mode)
    bound: dict[str, Any] = {"mean_bound_s": point.bound_s, "bound_of": None}
    if point.bound_s is not None:
        bound["bound_of"] = SHARED if is_bound_of_shared(result.config) else ANY
    bound |= {f"mean_{name}": mean_s for name, mean_s in point.referees_s.items()}
    if (changes := point.changes) is not None and (changes.count or changes.first_s is not None):
        bound |= {"first_reconfigure_s": changes.first_s, "mean_reconfigure_s": changes.mean_s}
        bound |= {"reconfigurations": changes.count, "path_changes": changes.of_paths}
    if point.budget is not None:
        bound |= asdict(point.budget)
    if point.choices is not None:
        names = ("rerouted", "reembedded", "rerouted_to_same", "reembedded_to_same")
        bound |= dict(zip(names, point.choices, strict=True))
    return (
        which
        | values
        | _setting_fields(result.index, result.config)
        | _interval_ends(point)
        | bound
        | _fifo_fields(point.fifo)
    )


def _fifo_fields(fifo: Fifo | None) -> dict[str, Any]:
    """Return the effect of fifo queues: drops, retransmitted bytes, extreme ratios of transfers, least fair link."""
    if fifo is None:
        return {}
    names = ("drops", "retransmitted_bytes", "quickest_transfer", "slowest_transfer", "fairness", "fairness_link")
    return {name: getattr(fifo, name) for name in names}


def _job_fields(config: Scenario, point: PointResult) -> dict[str, Any]:
    """Return the jobs of a point, if it has any, with the bytes by link of training jobs."""
    jobs = [
        job.as_json() | ({} if job.training is None else {"link_bytes": link_bytes(config, point.mode, job.name)})
        for job in point.jobs
    ]
    return {"jobs": jobs} if jobs else {}


def _transfer_fields(config: Scenario, point: PointResult | None = None) -> dict[str, Any]:
    """Return a configuration's transfers with outcomes, if any; for a point also their latest completion times."""
    longest_s = {} if point is None else {job.name: job.longest_s for job in point.jobs}
    transfers = [transfer.as_json() | transfer.kept(longest_s.get(transfer.job.name)) for transfer in config.transfers]
    return {"transfers": transfers} if transfers else {}


def _training_fields(point: PointResult) -> dict[str, Any]:
    """Return the training iterations of a point, if it has any."""
    return {} if point.training is None else {"training": asdict(point.training)}


def _setting_fields(index: int, config: Scenario) -> dict[str, Any]:
    """Return a configuration's index in the sweep, the GPUs of each site, and the grain."""
    gpus_per_site = "+".join(map(str, config.fabric.gpus_per_site))
    return {"setting": index, "gpus_per_site": gpus_per_site, "grain": config.fabric.grain}


def _identity(engine: str, config: Scenario, mode: str) -> dict[str, Any]:
    return {
        "engine": engine,
        "mode": mode,
        "gpus": config.gpus,
        "chunk_bytes": config.collective.chunk_bytes,
        "pieces": config.collective.pieces,
        "wan_delay_s": config.conditions.wan_delay_s,
        "collectives": len(config.collective.numbers),
        "seed": config.run.seed,
        **_clock_fields(config),
        **config.columns,
        **_sharing_fields(config, mode),
    }


def _sharing_fields(config: Scenario, mode: str) -> dict[str, Any]:
    """Return the links or ports that flows can share, if any."""
    links = config.shared_links(mode)
    return {"shared_links": list(links)} if links else {}


def _clock_fields(config: Scenario) -> dict[str, Any]:
    """Return the clock, the rate scale and the bytes that are carried for a chunk; empty in virtual time."""
    if not config.run.is_real:
        return {}
    scale = config.run.scale
    carried_bytes = scale.chunk_bytes(config.collective.chunk_bytes)
    return {"clock": "wall", "rate_scale": str(scale), "carried_chunk_bytes": carried_bytes}


def summary_csv(results: Sequence[ConfigResult]) -> str:
    """Return the points as CSV with the values of the JSON; null is an empty cell.

    The columns of a job NAME are "job.NAME.mean_s", "job.NAME.mean_predicted_s" and, for training, such as
    "job.NAME.bubble_ratio"; the columns of a training run are such as "training.bubble_ratio", and those of a point's
    faults, by their number from 1, such as "fault.1.cost_s", or for one that the scenario does not declare
    "fault.undeclared.1.cost_s". Values by stage are separated by spaces.
    """
    rows: list[dict[str, Any]] = [
        {"setting": result.index}
        | _point_as_json(result, point)
        | {
            f"job.{job.name}.{name}": value
            for job in point.jobs
            for name, value in job.as_json().items()
            if name not in ("name", "background")
        }
        | {
            f"fault.{which}.{name}": value
            for which, fault in _numbered(point.faults)
            for name, value in asdict(fault).items()
            if name != "costs"
        }
        | {f"training.{name}": value for name, value in _training_fields(point).get("training", {}).items()}
        for result in results
        for point in result.points
    ]
    text = io.StringIO()
    # Points may differ in columns. A column without a value stays: whoever reads it by name has it in every run.
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, fieldnames=columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(
        {key: " ".join(map(str, cell)) if isinstance(cell, list | tuple) else cell for key, cell in row.items()}
        for row in rows
    )
    return text.getvalue()


def _numbered(faults: Iterable[FaultResult]) -> Iterator[tuple[str, FaultResult]]:
    """Yield faults with what names them: "1" for the first one of the scenario, "undeclared.1" for the first other."""
    undeclared = count(1)
    for one in faults:
        yield (str(one.number) if one.number else f"undeclared.{next(undeclared)}"), one


_BLOCKS = ("blocks", "gain_blocks")
_INTERVAL_ENDS = ("mean_low_s", "mean_high_s", "total_low_s", "total_high_s", "gain_low", "gain_high")


def _interval_ends(point: PointResult) -> dict[str, float | str | None]:
    """Return the ends of the 95 % intervals, None if there is no interval, and then why not; and on how many
    independent blocks of collectives those of the mean and of the gain rest."""
    intervals = (point.summary.mean_s, point.summary.total_s, point.gain)
    ends: list[float] = []
    for interval in intervals:
        ends += (math.nan, math.nan) if interval is None else (interval.low, interval.high)
    fields: dict[str, Any] = {
        name: None if math.isnan(end) else end for name, end in zip(_INTERVAL_ENDS, ends, strict=True)
    }
    blocks = {
        name: None if one is None or math.isinf(one.blocks) else round(one.blocks, 1)
        for name, one in zip(_BLOCKS, (point.summary.mean_s, point.gain), strict=True)
    }
    missing = {
        "no_interval": point.summary.mean_s.why,
        "no_gain_interval": "" if point.gain is None else point.gain.why,
    }
    return fields | blocks | {name: why for name, why in missing.items() if why}


def as_sentence(results: Sequence[ConfigResult]) -> str:
    """Return the answer of a run in one sentence: what is fastest, by how much, and how sure that is. Others tell when
    it gains if conditions are recorded, which rates are random, and which faults predicted times are without."""
    times = _times_by_engine(results)
    jobs = {
        (result.engine, Place(result.index, point.mode)): series_of_jobs(
            result.times[point.mode], {job.name: job.completion_s for job in point.jobs}
        )
        for result in results
        for point in result.points
    }
    configs = {result.index: result.config for result in results}
    drawn = drawn_sentence((build_fabric(config.fabric), config.conditions) for config in configs.values())
    modelled = (plain_values(result.config)["fault"] for result in results if result.engine == "model")
    settings = _settings_of(results)
    grain = grain_sentence(
        winners(settings, times),
        lambda index: configs[index].workload.algorithm,
        lambda index: _most_at_a_time(configs[index]),
    )
    when = gain_times_sentence(settings, times, {index: config.conditions for index, config in configs.items()})
    said = [answer(settings, times, jobs), when, drawn, grain, unmodelled_sentence(modelled)]
    return " ".join(filter(None, said))


def _times_by_engine(results: Sequence[ConfigResult]) -> dict[tuple[str, Place], Series]:
    return {
        (result.engine, Place(result.index, mode)): series
        for result in results
        for mode, series in result.times.items()
    }


def _most_at_a_time(config: Scenario) -> int:
    if config.fabric.grain == "physical":
        return 0
    schedule = config.workload.schedule
    transfers = ((one.flow, one.after) for one in schedule.transfers)
    return most_at_a_time([*zip(*schedule.ends, strict=True)], transfers, config.fabric.gpus_per_site)


def paragraphs_of(
    results: Sequence[ConfigResult],
    run_fidelity: Fidelity | None = None,
    ecmp: Sequence[EcmpGain] = (),
    lacking: Iterable[str] = (),
) -> list[Paragraph]:
    """Return what a run tells at its end beside the table, in the order of the terminal: the answer, the fidelity, what
    the table's cells mean, and each configuration's order of the modes, with the paper's claims for its own. `lacking`
    are sentences on what failed or was not measured."""
    answer_lines = (as_sentence(results),) if results else ()
    paragraphs = [
        Paragraph(about=About.ANSWER, lines=answer_lines),
        Paragraph(about=About.FIDELITY, lines=tuple(str(run_fidelity).splitlines() if run_fidelity else ())),
        Paragraph(about=About.EMPTY, lines=tuple(_empty_lines(results))),
        Paragraph(about=About.BLOCKS, lines=tuple(filter(None, [few_blocks_sentence(_intervals(results))]))),
        Paragraph(about=About.BOUNDS, lines=tuple(_bound_lines(results))),
        _choices(results),
        _jobs(results),
        _transfers(results),
        _faults(results),
        _training_iterations(results),
        *_order_paragraphs(results),
        Paragraph(about=About.ECMP, lines=tuple(lines_of(ecmp))),
        Paragraph(about=About.LACKING, lines=tuple(lacking)),
    ]
    return [one for one in paragraphs if one.lines]


def as_text(results: Sequence[ConfigResult], paragraphs: Sequence[Paragraph]) -> str:
    """Return the table of the points among the paragraphs of `paragraphs_of`, as the terminal prints them."""
    opening = (About.ANSWER, About.FIDELITY)
    above = [str(one) for one in those_about(paragraphs, *opening)]
    below = [str(one) for one in paragraphs if one.about not in (*opening, About.LACKING)]
    table = "\n".join(aligned(_table(results)[0], range(3))) if results else "no point was finished"
    return "\n\n".join([*above, table, *below] if results else [table, *above])


def _table(results: Sequence[ConfigResult]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the rows of the table of points, the heading first, and a line for each reason for an empty cell."""
    points = [(result, point) for result in results for point in result.points]
    columns, whys = list[list[str]](), list[str]()
    for one in (*_COLUMNS, _gain_column(points), *_OPTIONAL_COLUMNS):
        cells, reasons = told([one.cell(*each) for each in points], one.name, (one.why(*each) for each in points))
        columns.append([one.heading or one.name, *_marked(one, cells, points)])
        whys += reasons
    return list(zip(*columns, strict=True)), whys


def _marked(column: "_Column", cells: list[str], points: Sequence[tuple[ConfigResult, PointResult]]) -> list[str]:
    """Return the cells of a column, with a mark at lower bounds in the model of shared links beside others."""
    bounded = _bounded(points)
    if column.heading != _BOUND or not is_mixed(bounded.values()):
        return cells
    return [f"{MARK * bounded.get(result.index, False)}{cell}" for cell, (result, _) in zip(cells, points, strict=True)]


def _bounded(points: Iterable[tuple[ConfigResult, PointResult]]) -> dict[int, bool]:
    """Return for each configuration with a lower bound whether it is the one in the model of shared links."""
    return {result.index: is_bound_of_shared(result.config) for result, point in points if point.bound_s is not None}


def _bound_lines(results: Sequence[ConfigResult]) -> Iterator[str]:
    """Yield what the lower bounds are, if there are any."""
    configs = [result.config for result in results]
    yield from filter(
        None,
        [
            bound_words(
                _bounded((result, point) for result in results for point in result.points).values(),
                faults=any(config.faults for config in configs),
                jobs=any(config.jobs for config in configs),
            )
        ],
    )


def _empty_lines(results: Sequence[ConfigResult]) -> Iterator[str]:
    """Yield why there are no intervals, with the modes that have none for this reason, and why other cells are
    empty."""
    yield from (f"[-]: {each}" for each in reasons(_intervals(results)))
    yield from _table(results)[1]


def _intervals(results: Sequence[ConfigResult]) -> list[tuple[str, Interval | None]]:
    """Return the intervals of the table with their modes."""
    points = [point for result in results for point in result.points]
    return [(point.mode, interval) for point in points for interval in (point.summary.mean_s, point.gain)]


def _choices(results: Sequence[ConfigResult]) -> Paragraph:
    """Return how often modes that decide by themselves have chosen, if there are any."""
    lines = []
    for result in results:
        for point in result.points:
            if point.choices is not None:
                what = point.choices.words(point.summary.collectives - (0 in result.config.collective.numbers))
                lines.append(f"{result.engine}, {result.config.label}, {point.mode}: {what}")
    what = "policies that decide by themselves re-routed and re-embedded"
    heading = f"before how many collectives after the first one {what}"
    return Paragraph(about=About.CHOICES, heading=heading, lines=tuple(lines))


def _jobs(results: Sequence[ConfigResult]) -> Paragraph:
    """Return the mean times of all jobs, measured and predicted, unless each is its whole round."""
    lines, is_told = [], any(_tells_more(point) for result in results for point in result.points)
    for result in results if is_told else ():
        for point in (one for one in result.points if one.jobs):
            jobs = (
                f"{job.name}{' (background)' * job.background} {job.mean_s * 1e3:,.3f} ms"
                + f" (predicted {job.mean_predicted_s * 1e3:,.3f})" * (result.engine != "model")
                for job in point.jobs
            )
            lines.append(f"{result.engine}, {result.config.label}, {point.mode}: {', '.join(jobs)}")
    return Paragraph(
        about=About.JOBS, heading="the jobs' mean completion times, each from the job's start", lines=tuple(lines)
    )


def _tells_more(point: PointResult) -> bool:
    """Return whether the jobs' times tell more than the round's: those of a single job from its beginning on do not."""
    return len(point.jobs) > 1 or any(not math.isclose(job.mean_s, point.summary.mean_s.value) for job in point.jobs)


def _transfers(results: Sequence[ConfigResult]) -> Paragraph:
    """Return the outcome of every transfer, if there are any."""
    lines = []
    for result in results:
        for point in result.points if result.config.transfers else ():
            lines.append(f"{result.engine}, {result.config.label}, {point.mode}:")
            for transfer in _transfer_fields(result.config, point)["transfers"]:
                lines.append(f"  {transfer['sentence']}{_delivery(transfer)}")
    heading = "transfers, and when the latest of all rounds was complete"
    return Paragraph(about=About.TRANSFERS, heading=heading, lines=tuple(lines))


def _pooled_faults(results: Sequence[ConfigResult]) -> list[PointCosts]:
    """Return the faults of all points, those of several seeds as one: predicted only where nothing was measured."""
    faults = {
        Point(result.engine, result.index, point.mode): point.faults for result in results for point in result.points
    }
    return pooled_costs(_settings_of(results), faults)


def _faults(results: Sequence[ConfigResult]) -> Paragraph:
    """Return the outcome of every fault, if there are any."""
    struck, lines = _pooled_faults(results), list[str]()
    for (engine, label), points in groupby(struck, lambda one: (one.engine, one.label)):
        lines.append(f"{engine}, {label}:")
        by_fault: dict[tuple[int, str], list[str]] = {}
        for one in points:
            for fault in one.faults:
                told = by_fault.setdefault((fault.results[0].number, fault.what), [])
                told.append(f"    {one.mode}: {fault.outcome}")
        for (number, what), told in by_fault.items():
            lines += [f"  {f'fault {number}' if number else 'no declared fault'}, {what}", *told]
    if any(one.recovered_s is not None for each in struck for fault in each.faults for one in fault.results):
        lines.append(f"({RECOVERY})")
    indices = {index for one in struck for index in one.settings}
    return Paragraph(
        about=About.FAULTS,
        heading=heading(result.config for result in results if result.index in indices),
        lines=tuple(lines),
    )


def _delivery(transfer: Mapping[str, Any]) -> str:
    """Describe when a transfer was complete and whether that was in time; empty if it was not sent."""
    if "there_s" not in transfer:
        return ""
    complete = f"; complete at {transfer['there_s'] * 1e3:,.3f} ms"
    if not transfer["kept"]:
        return f"{complete}, due at {transfer['due_s'] * 1e3:,.3f} ms"
    return f"{complete}, {'in time' if transfer['outcome'] == UNADMITTED else 'kept'}"


def _training_iterations(results: Sequence[ConfigResult]) -> Paragraph:
    """Return a description of the training iterations, if there are any."""
    points = [
        (f"{result.engine}, {result.config.label}, {point.mode}{name}", training)
        for result in results
        for point in result.points
        for name, training in (("", point.training), *((f", {job.name}", job.training) for job in point.jobs))
        if training is not None
    ]
    lines = []
    for which, training in points:
        held = " ".join(f"{count:g}" for count in training.in_flight)
        more = f", {max(training.more)} more before a cut than in 1F1B" * any(training.more)
        room = "" if training.room is None else f" of {training.room:g}"
        time, bubble = f"{training.iteration_s * 1e3:,.3f} ms", f"bubble {training.bubble_ratio:.2%}"
        in_flight = f"micro-batches in flight by stage: {held}{room}{more}"
        lines.append(f"{which}: {time}, {bubble}, {_exposed(training)}; {in_flight}")
    what = "training iterations: time, share in which GPUs do not compute, time that communication adds"
    return Paragraph(about=About.TRAINING, heading=what, lines=tuple(lines))


def _exposed(training: TrainingResult) -> str:
    """Describe the time that communication adds to an iteration: measured, if it was, and predicted."""
    pipeline, gradients = training.exposed_pipeline_s * 1e3, training.exposed_data_s * 1e3
    if training.measured_pipeline_s is None or training.measured_data_s is None:
        return f"predicted {pipeline:,.3f} ms between stages and {gradients:,.3f} ms for gradients"
    measured = training.measured_pipeline_s * 1e3, training.measured_data_s * 1e3
    return (
        f"measured {measured[0]:,.3f} ms between stages and {measured[1]:,.3f} ms for gradients "
        f"(predicted {pipeline:,.3f} and {gradients:,.3f})"
    )


def _gain(point: PointResult) -> str:
    """Return the gain of a point over its baseline; "" for a point without one."""
    if point.gain is None:
        return ""
    return BASELINE if point.over is None else _share(point.gain)


def _share(gain: Interval) -> str:
    return f"{fixed(gain.value * 100, 1)}% {bracketed(gain, 100, 1)}"


def _ms_of(value_s: float | None) -> str:
    return "" if value_s is None else f"{value_s * 1e3:,.3f}"


def _fifo_cell(cell: Callable[[Fifo], str]) -> "_Cell":
    return lambda _, point: "" if point.fifo is None else cell(point.fifo)


def _referee_cell(name: str) -> "_Cell":
    return lambda _, point: _ms_of(point.referees_s.get(name))


_Cell = Callable[[ConfigResult, PointResult], str]
_BOUND = "lower bound (ms)"


@dataclass(frozen=True)
class _Column:
    """A column of the table of points: its short name, the text of its cells, why one is empty, and its heading, if
    that is not the name."""

    name: str
    cell: _Cell
    why: _Cell = lambda _result, _point: ""
    heading: str = ""


def _always(why: str) -> _Cell:
    return lambda _result, _point: why


_COLUMNS: Sequence[_Column] = (
    _Column("engine", lambda result, _: result.engine),
    _Column("setting", lambda result, _: result.config.label),
    _Column("mode", lambda _, point: point.mode),
    _Column("collectives", lambda _, point: f"{point.summary.collectives:,}"),
    _Column(
        "mean",
        lambda _, point: f"{_ms_of(point.summary.mean_s.value)} {bracketed(point.summary.mean_s, 1e3, 3)}",
        heading="mean, 95 % interval (ms)",
    ),
    _Column(
        "lower bound",
        lambda _, point: _ms_of(point.bound_s),
        lambda result, _: f"none is known for the kind {result.config.collective.kind}",
        _BOUND,
    ),
    _Column("total (s)", lambda _, point: f"{point.summary.total_s.value:,.3f}"),
)
"""The columns of every table of points."""
_OF_FIFO = _always("not measured with FIFO queues")
_OPTIONAL_COLUMNS: Sequence[_Column] = (
    _Column(
        "budget",
        lambda _, point: "" if point.budget is None else point.budget.words(point.summary.collectives),
        _always("without collective.budget"),
    ),
    *(
        _Column(
            one.heading,
            _referee_cell(one.name),
            _always("the referee is not defined there"),
        )
        for one in REFEREES
    ),
    _Column(
        "reconfiguration",
        lambda _, point: "" if point.changes is None else point.changes.words,
        lambda result, _: _why_no_change(result),
        "reconfiguration (ms), how often",
    ),
    _Column("drops", _fifo_cell(lambda fifo: f"{fifo.drops:,}"), _OF_FIFO),
    _Column("retransmitted (MB)", _fifo_cell(lambda fifo: f"{fifo.retransmitted_bytes / 1e6:,.1f}"), _OF_FIFO),
    _Column("transfers, measured/predicted", _fifo_cell(lambda fifo: fifo.transfers_took), _OF_FIFO),
    _Column(
        "least fair link, Jain's index",
        _fifo_cell(lambda fifo: "" if fifo.fairness is None else f"{fifo.fairness_link} {fifo.fairness:.2f}"),
        lambda result, point: _OF_FIFO(result, point) if point.fifo is None else "no link was shared",
    ),
)


def _gain_column(points: Sequence[tuple[ConfigResult, PointResult]]) -> _Column:
    over = list(dict.fromkeys(point.over for _, point in points if point.over is not None))
    heading = f"gain over {quoted(over[0]) if len(over) == 1 else 'the baseline'}, 95 % interval"
    return _Column("gain", lambda _, point: _gain(point), lambda _, point: _why_no_gain(point), heading)


def _why_no_gain(point: PointResult) -> str:
    return "no baseline is finished there" if point.over is None else "no collective is also the baseline's"


def _why_no_change(result: ConfigResult) -> str:
    if result.engine == "model" and not result.config.control.counted:
        return "the model counts no time for changes (control.counted = false)"
    return "nothing was changed"


def _order_paragraphs(results: Sequence[ConfigResult]) -> tuple[Paragraph, Paragraph]:
    """Return the order of what each contest compares, in each engine, and those of the paper's configurations, with
    verdicts on its claims."""
    others, papers = list[str](), list[str]()
    for engine in dict.fromkeys(one.engine for one in results):
        of_engine, of_paper = _orders(engine, [one for one in results if one.engine == engine])
        others += of_engine
        papers += of_paper
    what = "the modes" if any(len(one.points) > 1 for one in results) else "compared"
    paper = f"the paper's claims: {' > '.join(PAPER_ORDER)}, joint about {PAPER_JOINT_GAIN:.0%} below base"
    signs = "" if others else f"; {SIGNS}"
    return (
        Paragraph(about=About.ORDERS, heading=f"{what}, slowest first ({SIGNS})", lines=tuple(others)),
        Paragraph(
            about=About.CLAIMS,
            heading=f"{paper} (here: within {ABOUT * 100:.0f} points of it{signs})",
            lines=tuple(papers),
        ),
    )


def _orders(engine: str, results: Sequence[ConfigResult]) -> tuple[list[str], list[str]]:
    """Return the orders of an engine's contests, and those of the paper's configurations."""
    papers, times = {result.index for result in results if _has_paper_values(result)}, _times_of(results)
    contests, of_paper = [], []
    for contest in contests_of(_settings_of(results)):
        series = contest.times(times)
        if contest.key == MODE and contest.all_places[0].setting in papers:
            of_paper.append(f"{engine}, {contest.where}: {_claims(series)}")
        elif len(series) > 1 and contest.is_rivalry:
            contests.append((contest, series))
    return [f"{engine}, {where}: {order}" for where, order in orders_of(contests)], of_paper


def _claims(times: Mapping[str, Series]) -> str:
    """Return the order of the modes and how far joint is below base, whatever the baseline is, with both verdicts."""
    tested, joint = claims(times), gain(times["base"], times["joint"])
    assert joint is not None  # all modes have all collectives
    order = f"{tested.order_text}{_verdict(tested.order_holds)}"
    return f"{order}; joint {_share(joint)} below base{_verdict(tested.joint_holds)}"


def _has_paper_values(result: ConfigResult) -> bool:
    return is_paper_configuration(plain_values(result.config), [point.mode for point in result.points])


def _verdict(holds: bool | None) -> str:
    return {True: " (holds)", False: " (differs)", None: " (open)"}[holds]
