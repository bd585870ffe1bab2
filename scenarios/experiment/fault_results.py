"""What each fault of a point cost, in words: measured outcomes, and predictions of points that were not measured."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.results.rows import Point
from scenarios.engines.model import undisturbed_s
from scenarios.policies.conditions import faults_of_completed
from scenarios.spec.faults import CABLE_KINDS, KILLED_KINDS, PLANNED_KINDS, Fault
from scenarios.spec.scenario import Scenario
from topologies.errors import list_first
from topologies.fabric.fabric import build_fabric
from topologies.units import format_delay

if TYPE_CHECKING:
    import pandas as pd

PREDICTED = "predicted"
"""The outcome of a fault of a point that was only predicted."""
_MOST_COLLECTIVES = 10_000  # of a fault that are predicted without it
_MOST_SEEDS = 4
_RESOLUTION_S = 1e-9  # of measured times
_SOON_S = 1e-6  # the shortest time of a recovery that is told
_DOWN = tuple(kind.rpartition(" ")[2] for kind in CABLE_KINDS)


@dataclass(frozen=True, kw_only=True)
class FaultResult:
    """A fault of a point: its index in the scenario (-1 if no fault was declared), what it was, in which collective,
    how it ended, after how long it was detected and recovered from, and what it cost; s, None for never or not known.

    `error_s` is how far the cost may be off, as far as the point's predictions are; `collectives` is in how many
    collectives the predicted cost arises, if it is not that of all.
    """

    fault: int
    what: str
    at_collective: int
    outcome: str
    detected_s: float | None = None
    recovered_s: float | None = None
    cost_s: float | None = None
    error_s: float | None = None
    collectives: int | None = None

    @property
    def words(self) -> str:
        """The fault in words, such as "agent 1 killed in collective 2: recovered after 12 ms, cost 10.5 ms"."""
        where = f"{self.what} in collective {self.at_collective:,}"
        if self.outcome != PREDICTED:
            after = "" if self.recovered_s is None else f" {_after(self.recovered_s)}"
            cost = "" if self.cost_s is None else f", cost {self._cost(self.cost_s)}"
            return f"{where}: {self.outcome}{after}{cost}"
        if self.cost_s is None:
            return f"{where}: no cost is predicted, as the model has no time of detection, losses or failed attempts"
        some = "" if self.collectives is None else f" in the first {self.collectives:,} collectives that it hits"
        return f"{where}: predicted cost {self._cost(self.cost_s)}{some}"

    def _cost(self, cost_s: float) -> str:
        if abs(cost_s) <= max(self.error_s or 0.0, _RESOLUTION_S):
            return "about 0"
        if cost_s > 0:
            return _time(cost_s)
        why = ": the other paths happened to be faster" if self.what.endswith(_DOWN) else ""
        return f"-{_time(-cost_s)} (negative{why})"


def _time(seconds: float) -> str:
    """Return a time with four digits, in a unit that shows it."""
    return format_delay(float(f"{seconds:.4g}"))


def _after(seconds: float) -> str:
    return f"after {_time(seconds)}" if seconds >= _SOON_S else f"within {_time(_SOON_S)}"


def faults_by_point(records: Iterable[Mapping[str, Any]]) -> dict[Point, tuple[FaultResult, ...]]:
    """Return the measured faults of each point, in the order in which they took effect; `records` have the columns of
    FAULTS."""
    found = dict[Point, tuple[FaultResult, ...]]()
    for record in records:
        point = Point(record["engine"], record["setting"], record["mode"])
        values: dict[str, Any] = {name: record[name] for name in ("fault", "what", "at_collective", "outcome")}
        for name in ("detected_s", "recovered_s", "cost_s"):
            value = record[name]
            values[name] = None if value is None or math.isnan(value) else value
        found[point] = (*found.get(point, ()), FaultResult(**values))
    return found


def with_errors(
    results: Sequence[FaultResult], declared: Sequence[Fault], rows: "pd.DataFrame"
) -> tuple[FaultResult, ...]:
    """Return measured faults with how far their costs may be off: the predicted times of the collectives that they hit,
    times the 99th percentile of how far the point's predictions are off where no fault disturbed a collective. `rows`
    are the point's."""
    whole = rows[rows["undisturbed"]]
    if not results or whole.empty:
        return tuple(results)
    off = float(np.percentile(np.abs(whole["completion_s"] / whole["predicted_s"] - 1), 99))
    number, predicted_s = rows["collective"].to_numpy(), rows["predicted_s"].to_numpy()
    found = []
    for one in results:
        fault = declared[one.fault] if one.fault >= 0 else None
        lasts = 1 if fault is None or fault.kind in KILLED_KINDS else fault.lasts
        hit = (number >= one.at_collective) & (lasts is None or number < one.at_collective + (lasts or 0))
        found.append(replace(one, error_s=off * float(predicted_s[hit].sum())))
    return tuple(found)


def predicted_faults(config: Scenario, mode: str, completion_s: npt.NDArray[np.float64]) -> tuple[FaultResult, ...]:
    """Return the faults of a predicted point, given the times of all its collectives. A fault costs by how much the
    collectives that it hits take longer than without any fault; if it is one that the model has only a part of, its
    cost is left out."""
    completed = faults_of_completed(config, build_fabric(config.fabric))
    healthy_s, found = np.full(completion_s.size, np.nan), list[FaultResult]()
    for index, (fault, whole) in enumerate(zip(completed, config.faults, strict=True)):
        one = FaultResult(fault=index, what=fault.what, at_collective=fault.collective, outcome=PREDICTED)
        if fault.kind in PLANNED_KINDS and fault.after_s is None and fault.lasts == whole.lasts:
            stop = completion_s.size if fault.lasts is None else min(completion_s.size, fault.collective + fault.lasts)
            hit = slice(fault.collective, min(stop, fault.collective + _MOST_COLLECTIVES))
            if np.isnan(healthy_s[hit]).any():
                healthy_s[hit] = undisturbed_s(config, mode, hit.start, hit.stop)
            cost_s = float((completion_s[hit] - healthy_s[hit]).sum())
            few = hit.stop - hit.start if hit.stop < stop else None
            one = replace(one, cost_s=None if math.isnan(cost_s) else cost_s, collectives=few)
        found.append(one)
    return tuple(found)


def heading(configs: Iterable[Scenario]) -> str:
    """Return what the lines of these configurations' faults tell, and where costs depend on chance."""
    seeds = sorted({config.run.seed for config in configs if 1 < config.conditions.rate_ratio < math.inf})
    of = "seed" if len(seeds) == 1 else "seeds"
    chance = (
        f"; rates are drawn at random ({of} {list_first([*map(str, seeds)], _MOST_SEEDS)}), others have other costs"
    )
    return (
        "faults, how long it took to recover, and what they cost: by how much the collectives that they hit took "
        f"longer than is predicted without faults{chance if seeds else ''}"
    )
