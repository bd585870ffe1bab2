"""The conditions of a configuration's collectives: drawn here for shaping, planning and prediction alike."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from controller.routing.multipath import multipath
from controller.routing.path_choice import Router
from scenarios.policies.decide import Chooser, rank_order_of
from scenarios.policies.knowledge import LATE, ORACLE, PROBED, Knowledge, Seen
from scenarios.policies.policy import Mode
from scenarios.spec.faults import CUTS, Fault, active, dead_cables, known, lacks_controller, outlasted, slowed
from scenarios.spec.scenario import Scenario
from topologies.conditions.sampler import Sampler, delays_s, sampler
from topologies.conditions.timed import Timed
from topologies.fabric.fabric import Fabric, build_fabric
from topologies.fabric.failures import NONE, Cables
from topologies.fabric.ports import Shared, shared_by

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Conditions:
    """The rates of every link with faults; as a `Sampler`, those of logical links that the planner knows.

    What flows share, `shared`, are logical links or ports: `drawn` are their rates without faults, `shared_delays_s`
    their delays, and `delays_s` those of logical links, [links]. `in_force` gives the faults in force for a collective,
    None: never any. Where conditions change by time, rates are those as a collective begins, and `timed` has those that
    follow.
    """

    fabric: Fabric
    shared_delays_s: Floats
    drawn: Sampler
    in_force: Callable[[int], Collection[Fault]] | None
    timed: Timed | None = None

    @property
    def shared(self) -> Shared:
        """What flows share where nothing has failed."""
        return shared_by(self.fabric)

    @cached_property
    def delays_s(self) -> Floats:
        """The delays of logical links, [links]."""
        return self.shared.delays_s(self.shared_delays_s)

    @property
    def limit(self) -> int | None:
        """How many collectives there are conditions for; None if endless."""
        return self.drawn.limit

    @property
    def mean_bps(self) -> Floats:
        """Every logical link's rate in the long run, faults aside, [links] bit/s."""
        (found,) = self.shared.slowest_bps(self.drawn.mean_bps[None])
        return found  # type: ignore[no-any-return]

    def rates_bps(self, start: int, count: int) -> Floats:
        """Rates as the planner knows them: [count, links] bit/s; 0 where a link is down."""
        drawn = self.drawn.rates_bps(start, count)
        found, faulty = self.shared.slowest_bps(drawn), self._faulty(start, count)
        if faulty:
            found = np.array(found)
            for row, faults in faulty.items():
                found[row] = known(drawn[row], faults, self.fabric)
        return found

    def believed(self, knowledge: Knowledge, seen: Seen | None = None) -> "Conditions":
        """The conditions as they are known when something is chosen, of what is measured by what was `seen`.

        Faults are known at once. But where knowledge is measured only what is down is: a slow GPU has to be seen.
        """
        if knowledge == ORACLE:
            return self
        drawn, in_force = self.timed if knowledge.kind == LATE and self.timed is not None else self.drawn, self.in_force
        found = replace(self, drawn=knowledge.of(drawn, seen))
        if in_force is None or not knowledge.is_measured:
            return found
        return replace(found, in_force=lambda number: [one for one in in_force(number) if one.kind in CUTS])

    def held(self, every: int) -> "Conditions":
        """The conditions of the last collective whose number is a multiple of `every`, under the faults of now."""
        return self if every == 1 else replace(self, drawn=_Held(self.drawn, every))

    def are_struck(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        """Whether other cables are down in these collectives than in the one before each, [count]; before the first
        none are."""
        if self.in_force is None:
            return np.full(count, False)
        faulty = self._faulty(max(0, start - 1), count + (start > 0))
        dead = [dead_cables(faulty.get(row, ()), self.fabric) for row in range(count + (start > 0))]
        before = dead if start else [NONE, *dead]
        return np.array([one != other for one, other in pairwise(before)], dtype=bool)

    def are_probed(self, mode: Mode, start: int, count: int, reembed_every: int) -> npt.NDArray[np.bool_]:
        """Before which of these collectives candidate paths are probed, [count]: where a mode that probes chooses, or
        may choose, something; not without a controller."""
        number = np.arange(start, start + count)
        found: npt.NDArray[np.bool_] = np.full(count, False) | mode.probes_at(number, reembed_every)
        if mode.knowledge.kind == PROBED and self.in_force is not None:
            found |= self.are_struck(start, count) & mode.reroutes
            found &= [not lacks_controller(self.in_force(one)) for one in number.tolist()]
        return found

    @cached_property
    def _by_row(self) -> "Conditions":
        """The same of collectives of which one begins with each row, where conditions change by time."""
        assert self.timed is not None
        rows = replace(self.timed, interval_ns=self.timed.every_ns)
        return replace(self, drawn=rows, timed=rows)

    def believed_within_bps(self, knowledge: Knowledge, number: int, places: Sequence[int]) -> Floats:
        """The rates of logical links that are believed at these changes of conditions while a collective runs, [places,
        links], the first being 0."""
        believed, limit = self._by_row.believed(knowledge), self._by_row.limit
        assert self.timed is not None
        rows = self.timed.row(np.array(number)) + 1 + np.array(places)
        rows = rows if limit is None else np.minimum(rows, limit - 1)
        found: Floats = believed.rates_bps(int(rows[0]), int(rows[-1] - rows[0]) + 1)[rows - rows[0]]
        return found

    def reroutes_within(self, mode: Mode, number: int, place: int) -> bool:
        """Whether a mode chooses paths at this change of conditions while a collective runs."""
        if mode.reroute.within_s is None or self.timed is None:
            return False
        row = int(self.timed.row(np.array(number))) + 1 + place
        return row % round(mode.reroute.within_s * 1e9 / self.timed.every_ns) == 0

    def _faulty(self, start: int, count: int) -> dict[int, Collection[Fault]]:
        """The faults that are in force for these collectives, by row where there are any."""
        if self.in_force is None:  # with a million collectives, asking for each takes longer than drawing them
            return {}
        return {row: faults for row in range(count) if (faults := self.in_force(start + row))}

    def shared_bps(self, start: int, count: int) -> Floats:
        """The rates of what flows share, [count, links or ports], as they are shaped."""
        found, faulty = self.drawn.rates_bps(start, count), self._faulty(start, count)
        if faulty:
            found = np.array(found)
            for row, faults in faulty.items():
                found[row] = slowed(found[row], faults, self.fabric)
        return found

    def passed(
        self, start: int, src: Ranks, dst: Ranks, path: Ranks, channel: Ranks | None = None
    ) -> npt.NDArray[np.int32]:
        """What flows pass in collectives from `start` on, by index, in order, -1 for none: [K, F, H].

        `src`, `dst` and `path`, [K, F], are the ranks that each flow joins and its WAN path, -1 within a site. With
        `channel`, [F], they go through the spines of the fabric's routing.
        """
        ways = None if channel is None else multipath(self.fabric)

        def of(src: Ranks, dst: Ranks, path: Ranks, dead: Cables) -> npt.NDArray[np.int32]:
            if ways is None or channel is None:
                return shared_by(self.fabric, dead).of(src, dst, path)
            return ways.links(src, dst, path, channel, dead)

        found = of(src, dst, path, NONE)
        for row, faults in self._faulty(start, len(src)).items():
            dead = dead_cables(faults, self.fabric)
            if dead:
                found[row] = of(src[row], dst[row], path[row], dead)
        return found

    def known_bps(self, number: int, faults: Collection[Fault]) -> Floats:
        """The rates of logical links for one collective, [links], as the planner knows them under these faults."""
        return known(self.drawn.rates_bps(number, 1)[0], faults, self.fabric)

    def shaped_bps(self, number: int, faults: Collection[Fault]) -> Floats:
        """The rates of one collective, [links or ports], that are shaped: a link that is down keeps its own."""
        return slowed(self.drawn.rates_bps(number, 1)[0], faults, self.fabric)


@dataclass(frozen=True, eq=False)
class _Held:
    """A sampler whose conditions stay for `every` collectives."""

    source: Sampler
    every: int

    @property
    def limit(self) -> int | None:
        return self.source.limit

    @property
    def mean_bps(self) -> Floats:
        return self.source.mean_bps

    def rates_bps(self, start: int, count: int) -> Floats:
        number = np.arange(start, start + count)
        drawn, which = np.unique(number - number % self.every, return_inverse=True)
        return np.concatenate([self.source.rates_bps(int(one), 1) for one in drawn] or [np.empty((0, 0))])[which]


def chooser_of(setting: Scenario, mode: Mode, conditions: Conditions) -> Chooser:
    """The choices of a mode in a configuration."""
    router = Router(conditions.fabric, conditions.delays_s)
    return Chooser(router, mode, setting.workload, setting.collective.ring)


def conditions_of(
    setting: Scenario, in_force: Callable[[int], Collection[Fault]] | None = None, *, seed: int | None = None
) -> Conditions:
    """The conditions of a configuration, drawn from another seed if given.

    `in_force`: the faults by collective; by default those that are in force where no collective is lost but those whose
    GPUs are cut off. Raises ConditionsError for a trace that cannot be read or has holes.
    """
    fabric = build_fabric(setting.fabric)
    drawn = sampler(fabric, setting.conditions, seed=setting.run.seed if seed is None else seed)
    if in_force is None and setting.faults:
        ranks, (src, dst) = rank_order_of(fabric, setting.workload), setting.workload.schedule.ends
        in_force = partial(active, outlasted(setting.faults, fabric, (ranks[list(src)], ranks[list(dst)])))
    timed = drawn if isinstance(drawn, Timed) else None
    return Conditions(fabric, delays_s(fabric, setting.conditions), drawn, in_force, timed)
