"""The plan and the model's prediction for collectives that were emulated, whatever faults were in force.

Without faults that is the plan as it is made for any engine. With faults it depends on which of them were in force when
the collective's paths, and before that its ring, were chosen; the testbed records them with every collective.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.model.alpha_beta import completion_s
from analysis.model.lower_bound import LowerBound
from scenarios.policies.conditions import Conditions, conditions_of
from scenarios.policies.decide import MODES, Decisions, decide
from scenarios.spec.faults import Fault
from scenarios.spec.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The planned ring and paths of one collective, and its predicted completion time."""

    ring: npt.NDArray[np.int16]
    path: npt.NDArray[np.int16]
    predicted_s: float


class Expectations:
    """What is expected of a point's collectives, in order: `of` needs to have been called for all before."""

    def __init__(self, setting: Scenario, mode: str) -> None:
        self._setting, self._mode = setting, mode
        self._in_force: dict[int, tuple[Fault, ...]] = {}
        self._conditions = conditions_of(setting, lambda number: self._in_force.get(number, ()))
        self._all = None if setting.faults else planned(setting, mode)
        self._bound = lower_bound(setting, self._conditions)

    def bound_s(self, collective: int) -> npt.NDArray[np.float64]:
        """A time that no schedule can beat under a collective's conditions, faults aside: [1] seconds."""
        return self._bound.seconds(self._conditions.drawn.rates_bps(collective, 1))

    def of(self, collective: int, faults: Sequence[int] = ()) -> Expected:
        """What is expected of a collective while these faults, by their indices in the scenario, were in force."""
        decisions, row = self._all, collective
        if decisions is None:
            self._in_force[collective] = tuple(self._setting.faults[index] for index in faults)
            decisions, row = decided(self._setting, self._mode, self._conditions, start=collective, count=1), 0
        (predicted_s,) = completion_s(decisions.edge_alpha_s[row, None], decisions.edge_beta_s[row, None])
        return Expected(ring=decisions.ring[row], path=decisions.path[row], predicted_s=float(predicted_s))


def lower_bound(setting: Scenario, conditions: Conditions) -> LowerBound:
    """The times that no schedule of a configuration can beat."""
    chunk_bytes = setting.collective.chunk_bytes
    return LowerBound(conditions.fabric, delays_s=conditions.delays_s, chunk_bytes=chunk_bytes)


def planned(setting: Scenario, mode: str) -> Decisions:
    """The plan of all collectives of a point, its faults aside."""
    return decided(setting, mode, conditions_of(setting, lambda _: ()), start=0, count=setting.collective.count)


def decided(setting: Scenario, mode: str, conditions: Conditions, *, start: int, count: int) -> Decisions:
    """The plan of collectives start .. start+count-1 of a point under these conditions."""
    return decide(
        conditions.fabric,
        conditions,
        delays_s=conditions.delays_s,
        mode=MODES[mode],
        chunk_bytes=setting.collective.chunk_bytes,
        reembed_every=setting.collective.reembed_every,
        start=start,
        count=count,
    )
