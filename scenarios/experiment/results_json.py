"""The results of a run as JSON, which `--json` prints."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from analysis.statistics.block_notes import few_blocks_sentence
from analysis.statistics.bound_words import ANY, SHARED
from analysis.statistics.comparisons import comparisons_of
from analysis.statistics.fidelity import Fidelity, Fifo
from scenarios.engines.prediction import critical_path, is_bound_of_shared, link_bytes
from scenarios.experiment.ecmp import HASH_SEEDS, EcmpGain, why_none
from scenarios.experiment.point_results import (
    ConfigResult,
    PointResult,
    intervals_of,
    pooled_faults,
    settings_of,
    times_by_engine,
    transfer_fields,
)
from scenarios.experiment.run_paragraphs import as_sentence
from scenarios.spec.scenario import Scenario
from topologies.fabric.fabric import FabricSpec, LogicalLink, build_fabric
from topologies.fabric.ports import DirectedPort, links_in_grain


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
        point_as_json(result, point)
        | _job_fields(result.config, point)
        | transfer_fields(result.config, point)
        | ({"faults": [asdict(fault) for fault in point.faults]} if point.faults else {})
        | training_fields(point)
        | ({} if point.training is None else {"link_bytes": link_bytes(result.config, point.mode)})
        | {"critical_path": critical_path(result.config, point.mode, 1)}
        for result in results
        for point in result.points
    ]
    said = {"answer": as_sentence(results)} if results else {}
    compared = [one.as_json() for one in comparisons_of(settings_of(results), times_by_engine(results))]
    answer: dict[str, Any] = {"run": run} | said | {"points": points} | ({"comparisons": compared} if compared else {})
    if fidelity is not None:
        numbers = {name: value for name, value in asdict(fidelity).items() if value is not None}
        answer["fidelity"] = numbers | {"holds": fidelity.holds, "warnings": list(fidelity.warnings)}
    if few := few_blocks_sentence(intervals_of(results)):
        answer["few_blocks"] = few
    if unmeasured is not None:
        answer["unmeasured"] = unmeasured
    if struck := pooled_faults(results):
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
        | transfer_fields(config)
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


def point_as_json(result: ConfigResult, point: PointResult) -> dict[str, Any]:
    """Return the fields of a point that JSON and CSV share."""
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
    if point.faults:
        bound["mean_without_faults_s"] = point.mean_without_s
    bound |= {f"mean_{name}": mean_s for name, mean_s in point.referees_s.items()}
    if (changes := point.changes) is not None and (changes.count or changes.first_s is not None):
        bound |= {"first_reconfigure_s": changes.first_s, "mean_reconfigure_s": changes.mean_s}
        bound |= {"reconfigurations": changes.count, "path_changes": changes.of_paths}
    if changes is not None and changes.within:
        bound |= {"rerouted_within": changes.within, "path_changes_within": changes.moved}
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


def training_fields(point: PointResult) -> dict[str, Any]:
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


_BLOCKS = ("blocks", "gain_blocks")


_INTERVAL_ENDS = ("mean_low_s", "mean_high_s", "total_low_s", "total_high_s", "gain_low", "gain_high")


def _interval_ends(point: PointResult) -> dict[str, float | str | None]:
    """Return the ends of the 95 % intervals, and the numbers of independent blocks of collectives behind those of the
    mean and of the gain. Without an interval its ends are None, and a field has the reason."""
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
