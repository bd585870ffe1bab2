"""The conditions of a configuration's collectives: drawn here for shaping, planning and prediction alike."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from scenarios.spec.faults import Fault, active, known, slowed
from scenarios.spec.scenario import Scenario
from topologies.conditions.sampler import Sampler, delays_s, sampler
from topologies.fabric.fabric import Fabric, build_fabric

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Conditions:
    """The rates of every link with faults; as a `Sampler`, those that the planner knows. `delays_s` is [links].

    `drawn` are the conditions without faults; `in_force` gives the faults in force for a collective, None: never any.
    """

    fabric: Fabric
    delays_s: Floats
    drawn: Sampler
    in_force: Callable[[int], Collection[Fault]] | None

    @property
    def limit(self) -> int | None:
        """How many collectives there are conditions for; None if endless."""
        return self.drawn.limit

    def rates_bps(self, start: int, count: int) -> Floats:
        """Rates as the planner knows them: [count, links] bit/s; 0 where a link is down."""
        found = self.drawn.rates_bps(start, count)
        if self.in_force is None:  # with a million collectives, asking for each takes longer than drawing them
            return found
        faulty = {row: faults for row in range(count) if (faults := self.in_force(start + row))}
        if faulty:
            found = np.array(found)
            for row, faults in faulty.items():
                found[row] = known(found[row], faults, self.fabric)
        return found

    def known_bps(self, number: int, faults: Collection[Fault]) -> Floats:
        """The rates of one collective, [links], as the planner knows them while these faults are in force."""
        return known(self.drawn.rates_bps(number, 1)[0], faults, self.fabric)

    def shaped_bps(self, number: int, faults: Collection[Fault]) -> Floats:
        """The rates of one collective, [links], that links are shaped to: a link that is down keeps its own."""
        return slowed(self.drawn.rates_bps(number, 1)[0], faults, self.fabric)


def conditions_of(
    setting: Scenario, in_force: Callable[[int], Collection[Fault]] | None = None, *, seed: int | None = None
) -> Conditions:
    """The conditions of a configuration, drawn from another seed if given.

    `in_force`: the faults by collective; by default those that are in force where no collective is ever lost. Raises
    ConditionsError for a trace that cannot be read or has holes.
    """
    fabric = build_fabric(setting.fabric)
    drawn = sampler(fabric, setting.conditions, seed=setting.run.seed if seed is None else seed)
    if in_force is None and setting.faults:
        in_force = partial(active, setting.faults)
    return Conditions(fabric, delays_s(fabric, setting.conditions), drawn, in_force)
