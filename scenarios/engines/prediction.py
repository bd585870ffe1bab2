"""What the plan and the model expect of a collective that was emulated, whatever faults were in force when it began.

Without faults that is the plan as it is made for any engine. With faults it depends on which of them were in force
when the collective's paths, and before that its ring, were chosen; that is told with every collective.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.model.alpha_beta import completion_s
from analysis.model.lower_bound import LowerBound
from scenarios.policies.decide import MODES, Decisions, decide
from scenarios.spec.faults import Fault, active, known
from scenarios.spec.scenario import Scenario
from topologies.conditions.sampler import Sampler, delays_s, sampler
from topologies.fabric.fabric import Fabric, build_fabric

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Damaged:
    """Conditions with faults: `in_force` tells which are, for each collective."""

    source: Sampler
    fabric: Fabric
    in_force: Callable[[int], Collection[Fault]]

    @property
    def limit(self) -> int | None:
        """How many collectives there are conditions for."""
        return self.source.limit

    def rates_bps(self, start: int, count: int) -> Floats:
        """The rates that who chooses knows of, [count, links]; 0 is a link that is down."""
        found = self.source.rates_bps(start, count)
        fresh = np.array(found)
        for row in range(count):
            faults = self.in_force(start + row)
            if faults:
                fresh[row] = known(found[row], faults, self.fabric)
        return fresh


def damaged(source: Sampler, fabric: Fabric, faults: Sequence[Fault]) -> Sampler:
    """Conditions with the faults of a scenario, as they are in force where no collective is lost."""
    return Damaged(source, fabric, lambda collective: active(faults, collective)) if faults else source


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What one collective is expected to use and to take."""

    ring: npt.NDArray[np.int16]
    path: npt.NDArray[np.int16]
    predicted_s: float


class Expectations:
    """What is expected of a point's collectives, told of in order: `of` needs all before to have been asked for."""

    def __init__(self, setting: Scenario, mode: str) -> None:
        self._setting, self._mode = setting, mode
        self._fabric = build_fabric(setting.fabric)
        self._conditions = sampler(self._fabric, setting.conditions, seed=setting.run.seed)
        self._in_force: dict[int, tuple[Fault, ...]] = {}
        self._all = None if setting.faults else planned(setting, mode)
        delays, chunk_bytes = delays_s(self._fabric, setting.conditions), setting.collective.chunk_bytes
        self._bound = LowerBound(self._fabric, delays_s=delays, chunk_bytes=chunk_bytes)

    def bound_s(self, collective: int) -> Floats:
        """A time that no schedule can beat under a collective's conditions, faults aside: [1] seconds."""
        return self._bound.seconds(self._conditions.rates_bps(collective, 1))

    def of(self, collective: int, faults: Sequence[int] = ()) -> Expected:
        """What is expected of a collective when these faults, by their places in the scenario, were in force."""
        if self._all is not None:
            return _row(self._all, collective)
        self._in_force[collective] = tuple(self._setting.faults[place] for place in faults)
        conditions = Damaged(self._conditions, self._fabric, lambda number: self._in_force.get(number, ()))
        return _row(_decided(self._setting, self._mode, self._fabric, conditions, collective, 1), 0)


def planned(setting: Scenario, mode: str) -> Decisions:
    """The plan of a point of a scenario without faults."""
    fabric = build_fabric(setting.fabric)
    conditions = sampler(fabric, setting.conditions, seed=setting.run.seed)
    return _decided(setting, mode, fabric, conditions, 0, setting.collective.count)


def _decided(  # noqa: PLR0917
    setting: Scenario, mode: str, fabric: Fabric, conditions: Sampler, start: int, count: int
) -> Decisions:
    return decide(
        fabric,
        conditions,
        delays_s=delays_s(fabric, setting.conditions),
        mode=MODES[mode],
        chunk_bytes=setting.collective.chunk_bytes,
        reembed_every=setting.collective.reembed_every,
        start=start,
        count=count,
    )


def _row(decisions: Decisions, row: int) -> Expected:
    part = slice(row, row + 1)
    predicted = completion_s(decisions.edge_alpha_s[part], decisions.edge_beta_s[part])
    return Expected(ring=decisions.ring[row], path=decisions.path[row], predicted_s=float(predicted[0]))
