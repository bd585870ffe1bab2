"""The faults of a point: how far the costs of measured ones may be off, and the predicted costs of those that were not
measured."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.statistics.fault_costs import NOT_PREDICTED, PARTLY, PREDICTED, FaultResult, chance
from analysis.statistics.fault_outcomes import as_before, costs_by_collective, costs_by_job
from scenarios.engines.model import undisturbed_s, with_counted_faults
from scenarios.policies.conditions import faults_of_completed
from scenarios.spec.faults import KILLED_KINDS, PLANNED_KINDS, Fault
from scenarios.spec.scenario import Scenario
from topologies.fabric.fabric import build_fabric

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

_MOST_COLLECTIVES = 10_000  # of a fault that are predicted without it
_MOST_AFTER = 100  # of those after a fault


def with_errors(
    results: Sequence[FaultResult],
    declared: Sequence[Fault],
    rows: "pd.DataFrame",
    jobs_s: Mapping[str, tuple[Floats, Floats]] = MappingProxyType({}),
) -> tuple[FaultResult, ...]:
    """Return measured faults with how far their costs may be off: the predicted times of the collectives that they hit,
    times the 99th percentile of how far the point's predictions are off where no fault disturbed a collective. `rows`
    are the point's, and `jobs_s` the measured and predicted times of its jobs by name, [K] s each in their order; the
    cost to a job is off by the same of the job's times."""
    number, undisturbed = rows["collective"].to_numpy(), rows["undisturbed"].to_numpy(dtype=bool)
    if not results or not undisturbed.any():
        return tuple(results)

    def error_s(measured_s: Floats, predicted_s: Floats, hit: npt.NDArray[np.bool_]) -> float:
        off = np.abs(measured_s[undisturbed] / predicted_s[undisturbed] - 1)
        # The next one that occurred: of few collectives the interpolated percentile is below the largest error.
        return float(np.percentile(off, 99, method="higher")) * float(predicted_s[hit].sum())

    times_s = rows["completion_s"].to_numpy(), rows["predicted_s"].to_numpy()
    found = []
    for one in results:
        fault = declared[one.number - 1] if one.number else None
        lasts = 1 if fault is None or fault.kind in KILLED_KINDS else fault.lasts
        until = (
            one.until if fault is not None and fault.is_timed else None if lasts is None else one.at_collective + lasts
        )
        hit = (number >= one.at_collective) & (until is None or number < (until or 0))
        of_jobs = [job | {"error_s": error_s(*jobs_s[job["job"]], hit)} for job in map(dict, one.jobs or ())]
        is_timed = fault is not None and fault.is_timed
        found.append(replace(one, error_s=error_s(*times_s, hit), jobs=of_jobs or None, is_timed=is_timed))
    return tuple(found)


def predicted_faults(
    config: Scenario, mode: str, completion_s: Floats, jobs_s: Mapping[str, Floats] = MappingProxyType({})
) -> tuple[FaultResult, ...]:
    """Return the faults of a predicted point, given the times of all its collectives, and of the jobs in them by name,
    [K] s each. A fault costs by how much the collectives that it hits, and the jobs in them, take longer than without
    any fault; of one that begins within a collective, those after that do, as the model has it from the next one on. If
    the model lacks other parts of it, its cost is left out. From which collective on times are
    as before is told by the first `_MOST_AFTER` after the fault: choices made under it may outlast it."""
    config = with_counted_faults(config, mode)
    completed = faults_of_completed(config, build_fabric(config.fabric))
    names = [span.name for span in config.workload.jobs]
    healthy_s, found = np.full(completion_s.size, np.nan), list[FaultResult]()
    healthy_jobs_s = np.full((completion_s.size, len(names)), np.nan)
    for number, (fault, whole) in enumerate(zip(completed, config.faults, strict=True), 1):
        lost = (whole.lasts or 0) - (fault.lasts or 0)  # attempts that are lost make it shorter
        until = math.inf if fault.lasts is None else fault.collective + fault.lasts
        one = FaultResult(
            number=number,
            what=fault.what,
            at_collective=fault.collective,
            outcome=NOT_PREDICTED,
            collectives_lost=lost,
            until=None if until > completion_s.size else int(until),
        )
        begin = fault.collective + (fault.after_s is not None)
        if fault.kind in PLANNED_KINDS and fault.lasts == whole.lasts and begin < completion_s.size:
            stop = completion_s.size if fault.lasts is None else min(completion_s.size, fault.collective + fault.lasts)
            hit = slice(begin, min(max(begin, stop), begin + _MOST_COLLECTIVES))
            following = min((one.collective for one in completed if one.collective > hit.start), default=None)
            after = min(following or completion_s.size, hit.stop + _MOST_AFTER, completion_s.size)
            known = slice(hit.start, max(hit.stop, after))
            if np.isnan(healthy_s[known]).any():
                healthy_s[known], healthy_jobs_s[known] = undisturbed_s(config, mode, known.start, known.stop)
            later_s = completion_s[hit] - healthy_s[hit]
            if not np.isnan(later_s).any():
                each_s = later_s.tolist()
                number_hit = range(hit.start, hit.start + len(each_s))
                costs = costs_by_collective(number_hit, each_s, each_s)
                few = hit.stop - hit.start if hit.stop < stop else None
                numbers = range(known.start, known.stop)
                whole_s = dict(zip(numbers, healthy_s[known].tolist(), strict=True))
                off_s = dict(zip(numbers, (completion_s - healthy_s)[known].tolist(), strict=True))
                again = as_before(off_s, whole_s, hit.start, following)
                later_jobs_s = {
                    name: (times_s[hit] - healthy_jobs_s[hit, names.index(name)]).tolist()
                    for name, times_s in jobs_s.items()
                }
                of_jobs = costs_by_job(
                    {name: costs_by_collective(number_hit, job_s, job_s) for name, job_s in later_jobs_s.items()}
                )
                # Of a fault that goes on beyond what is predicted without it, the end is not known.
                ended = again if few is None or (again or 0) >= 0 else None
                outcome = PREDICTED if fault.after_s is None else PARTLY
                one = replace(one, outcome=outcome, collectives=few, jobs=of_jobs, as_before=ended, **costs)
        found.append(one)
    return tuple(found)


def as_record(fault: FaultResult) -> dict[str, Any]:
    """Return a predicted fault of a point as a row of faults.parquet, without the point."""
    return {
        "number": fault.number,
        "at_collective": fault.at_collective,
        "what": fault.what,
        "detected_s": None,
        "recovered_s": None,
        "cost_s": fault.cost_s,
        "cost_collectives": fault.collectives or 0,
        "gained_s": fault.gained_s,
        "lasting_cost_s": fault.lasting_cost_s,
        "costs": None if fault.costs is None else [*fault.costs],
        "jobs": None if fault.jobs is None else [*fault.jobs],
        "as_before": fault.as_before,
        "until": fault.until,
        "collectives_lost": fault.collectives_lost,
        "bytes_again": 0,
        "outcome": fault.outcome,
    }


def heading(configs: Iterable[Scenario]) -> str:
    """Return what the lines of these configurations' faults tell, and where costs depend on chance."""
    configs = [*configs]
    depends = chance((build_fabric(config.fabric), config.conditions, config.run.seed) for config in configs)
    has_jobs = any(len(config.jobs) > 1 for config in configs)
    what = "the rounds that they hit, and each job in these," if has_jobs else "the collectives that they hit"
    return (
        f"faults, how long it took to recover, and what they cost: by how much {what} took "
        f"longer than is predicted without faults{depends and f'; {depends}'}"
    )
