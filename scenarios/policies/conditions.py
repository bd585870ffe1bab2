"""The conditions (rates, delays) of a configuration's collectives: one source for shaping, planning and prediction."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from controller.routing.multipath import multipath
from controller.routing.wan_path_choice import Router
from scenarios.policies.decide import Chooser, rank_order_of
from scenarios.policies.knowledge import LATE, ORACLE, PROBED, Derived, Knowledge
from scenarios.policies.policy import Mode
from scenarios.policies.situation import Changed
from scenarios.spec.faults import (
    CABLE_KINDS,
    Ends,
    Fault,
    active,
    dead_cables,
    for_completed_attempts,
    lacks_controller,
    planned_rates_bps,
    slowed,
)
from scenarios.spec.scenario import Scenario
from topologies.conditions.sampler import Sampler, delays_s, sampler
from topologies.conditions.timed import Timed
from topologies.fabric.fabric import Fabric, build_fabric
from topologies.fabric.failures import NO_CABLES, Cables, reachable
from topologies.fabric.ports import SharedLinks, links_in_grain

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Conditions:
    """Delays and rates, including the effect of faults. As a `Sampler` it yields the rates of the logical links as the
    planner knows them.

    The resources that flows share (`shared`) are logical links or ports: `drawn` samples their rates without faults,
    and `shared_delays_s` holds their delays; `delays_s` holds the delays of the logical links, [links].
    `in_force(number)` returns the faults in force for a collective; None means that there are no faults. Where
    conditions change by time, the rates are those at the start of a collective, and `timed` has the later ones.
    """

    fabric: Fabric
    shared_delays_s: Floats
    drawn: Sampler
    in_force: Callable[[int], Collection[Fault]] | None
    timed: Timed | None = None

    @property
    def shared(self) -> SharedLinks:
        """The links or ports that flows share while nothing has failed."""
        return links_in_grain(self.fabric)

    @cached_property
    def delays_s(self) -> Floats:
        """The delays of logical links, [links]."""
        return self.shared.delays_s(self.shared_delays_s)

    @property
    def limit(self) -> int | None:
        """The number of collectives with conditions; None if unlimited."""
        return self.drawn.limit

    @property
    def mean_bps(self) -> Floats:
        """The long-run mean rate of every logical link without faults, [links] bit/s."""
        (mean_bps,) = self.shared.slowest_bps(self.drawn.mean_bps[None])
        return mean_bps  # type: ignore[no-any-return]

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return the rates of logical links as the planner knows them, [count, links] bit/s; 0 if a link is down."""
        drawn = self.drawn.rates_bps(start, count)
        rates_bps, faulty = self.shared.slowest_bps(drawn), self._faulty(start, count)
        if faulty:
            rates_bps = np.array(rates_bps)
            for row, faults in faulty.items():
                rates_bps[row] = planned_rates_bps(drawn[row], faults, self.fabric)
        return rates_bps

    def believed(self, knowledge: Knowledge) -> "Conditions":
        """Return the conditions as a policy believes them with knowledge that need not be measured. Faults are known at
        once."""
        if knowledge == ORACLE:
            return self
        drawn = self.timed if knowledge.kind == LATE and self.timed is not None else self.drawn
        return replace(self, drawn=knowledge.of(drawn))

    def noting(self, noted: Sampler) -> "Conditions":
        """Return the conditions with the rates that were measured last. Failed links and switches are known at once; a
        slow GPU has to be measured."""
        believed, in_force = replace(self, drawn=noted), self.in_force
        if in_force is None:
            return believed
        return replace(
            believed, in_force=lambda number: [fault for fault in in_force(number) if fault.kind in CABLE_KINDS]
        )

    def held(self, every: int) -> "Conditions":
        """Return conditions whose rates change at every `every`-th collective only; faults take effect at once."""
        return self if every == 1 else replace(self, drawn=_Held(self.drawn, every))

    def are_struck(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        """Return for each collective whether the set of failed cables differs from the previous collective's, [count].
        Before collective 0 no cable has failed."""
        if self.in_force is None:
            return np.full(count, False)
        dead = self.dead(max(0, start - 1), count + (start > 0))
        before = dead if start else [NO_CABLES, *dead]
        return np.array([last != now for last, now in pairwise(before)], dtype=bool)

    def dead(self, start: int, count: int) -> list[Cables]:
        """Return the cables that are down in each collective, [count]; an empty list if there are no faults at all."""
        if self.in_force is None:
            return []
        faulty = self._faulty(start, count)
        return [dead_cables(faulty.get(row, ()), self.fabric) for row in range(count)]

    def are_probed(self, mode: Mode, start: int, count: int, reembed_every: int) -> npt.NDArray[np.bool_]:
        """Return before which collectives the candidate paths are probed, [count]. That is where a mode with probes
        makes, or may make, a choice, and the controller is running."""
        numbers = np.arange(start, start + count)
        probes = np.full(count, False)
        if mode.knowledge.kind != PROBED:
            return probes
        probes |= mode.may_choose_at(numbers, reembed_every)
        if self.in_force is not None:
            probes |= self.are_struck(start, count) & mode.reroutes
            probes &= [not lacks_controller(self.in_force(number)) for number in numbers.tolist()]
        return probes

    @cached_property
    def _by_row(self) -> "Conditions":
        """These conditions, which change by time, as if a collective began at every change: one collective per row."""
        assert self.timed is not None
        rows = replace(self.timed, interval_ns=self.timed.every_ns)
        return replace(self, drawn=rows, timed=rows)

    def believed_within_bps(self, knowledge: Knowledge, number: int, changes: Sequence[int]) -> Floats:
        """Return the believed rates of logical links at some changes of conditions while a collective runs, [changes,
        links]. `changes` are their indices, counted from 0 within the collective."""
        believed, limit = self._by_row.believed(knowledge), self._by_row.limit
        assert self.timed is not None
        rows = self.timed.row(np.array(number)) + 1 + np.array(changes)
        rows = rows if limit is None else np.minimum(rows, limit - 1)
        rates_bps: Floats = believed.rates_bps(int(rows[0]), int(rows[-1] - rows[0]) + 1)[rows - rows[0]]
        return rates_bps

    def changed(self, number: int, change: int) -> Changed:
        """Return the event of change `change` (from 0) of the conditions while a collective runs."""
        assert self.timed is not None
        return Changed((int(self.timed.row(np.array(number))) + 1 + change) * self.timed.every_ns)

    def _faulty(self, start: int, count: int) -> dict[int, Collection[Fault]]:
        """Return the faults in force by row, only for collectives that have any."""
        if self.in_force is None:  # with a million collectives, the loop takes longer than drawing the rates
            return {}
        return {row: faults for row in range(count) if (faults := self.in_force(start + row))}

    def shared_bps(self, start: int, count: int) -> Floats:
        """Return the true rates of the shared links or ports, as they are shaped, [count, links or ports] bit/s."""
        rates_bps, faulty = self.drawn.rates_bps(start, count), self._faulty(start, count)
        if faulty:
            rates_bps = np.array(rates_bps)
            for row, faults in faulty.items():
                rates_bps[row] = slowed(rates_bps[row], faults, self.fabric)
        return rates_bps

    def passed(
        self, start: int, src: Ranks, dst: Ranks, path: Ranks, channel: Ranks | None = None
    ) -> npt.NDArray[np.int32]:
        """Return the links or ports that flows pass in collectives from `start` on: indices in order, [K, F, H], -1 for
        unused entries.

        `src`, `dst` and `path`, [K, F], are the ranks at both ends of each flow and its WAN path, -1 within a site.
        With `channel`, [F], flows take the spines that the fabric's routing chooses for their channels.
        """
        routing = None if channel is None else multipath(self.fabric)

        def links_of(src: Ranks, dst: Ranks, path: Ranks, dead: Cables) -> npt.NDArray[np.int32]:
            if routing is None or channel is None:
                return links_in_grain(self.fabric, dead).of(src, dst, path)
            return routing.links(src, dst, path, channel, dead)

        links = links_of(src, dst, path, NO_CABLES)
        for row, faults in self._faulty(start, len(src)).items():
            dead = dead_cables(faults, self.fabric)
            if dead:
                links[row] = links_of(src[row], dst[row], path[row], dead)
        return links

    def known_bps(self, number: int, faults: Collection[Fault]) -> Floats:
        """Return one collective's rates of logical links, [links] bit/s, as the planner knows them with `faults`."""
        return planned_rates_bps(self.drawn.rates_bps(number, 1)[0], faults, self.fabric)

    def shaped_bps(self, number: int, faults: Collection[Fault]) -> Floats:
        """Return the shaped rates of one collective, [links or ports] bit/s; a failed link keeps its drawn rate."""
        return slowed(self.drawn.rates_bps(number, 1)[0], faults, self.fabric)


class _Held(Derived):
    """A sampler that repeats the conditions of every `every`-th collective until the next one of these."""

    def __init__(self, source: Sampler, every: int) -> None:
        super().__init__(source)
        self._every = every

    def rates_bps(self, start: int, count: int) -> Floats:
        number = np.arange(start, start + count)
        drawn, which = np.unique(number - number % self._every, return_inverse=True)
        return np.concatenate([self.source.rates_bps(int(row), 1) for row in drawn] or [np.empty((0, 0))])[which]


def chooser_of(config: Scenario, mode: Mode, conditions: Conditions) -> Chooser:
    """Create the `Chooser` of a mode in a configuration."""
    router = Router(conditions.fabric, conditions.delays_s)
    return Chooser(router, mode, config.workload, config.collective.ring)


def conditions_of(
    config: Scenario, in_force: Callable[[int], Collection[Fault]] | None = None, *, seed: int | None = None
) -> Conditions:
    """Return the conditions of a configuration, drawn from `seed` if it is given, else from the configuration's seed.

    `in_force` gives the faults by collective. By default these are the scenario's faults, assuming that a collective is
    lost (and repeated) only if a fault disconnects its GPUs. Raises ConditionsError for a trace that cannot be read or
    has holes.
    """
    fabric = build_fabric(config.fabric)
    drawn = sampler(fabric, config.conditions, seed=config.run.seed if seed is None else seed)
    if in_force is None and config.faults:
        in_force = partial(active, faults_of_completed(config, fabric))
    timed = drawn if isinstance(drawn, Timed) else None
    return Conditions(fabric, delays_s(fabric, config.conditions), drawn, in_force, timed)


@lru_cache(maxsize=64)
def cut_off(config: Scenario) -> tuple[int, ...]:
    """Return the collectives in which faults begin that cut GPUs off from each other for longer than a collective is
    begun again, unless ranks are placed otherwise."""
    fabric = build_fabric(config.fabric)
    faults, ends = faults_of_completed(config, fabric), _ends_of(config, fabric)
    begun = {fault.collective + (fault.after_s is not None) for fault in faults}
    dead = {number: dead_cables(active(faults, number), fabric) for number in begun}
    return tuple(sorted(one for one, cables in dead.items() if cables and not reachable(fabric, cables)[ends].all()))


def faults_of_completed(config: Scenario, fabric: Fabric) -> tuple[Fault, ...]:
    """Return a configuration's faults with the durations that completed attempts see."""
    return for_completed_attempts(config.faults, fabric, _ends_of(config, fabric))


def _ends_of(config: Scenario, fabric: Fabric) -> Ends:
    """Return the ranks that flows join, placed in order."""
    ranks, (src, dst) = rank_order_of(fabric, config.workload), config.workload.schedule.ends
    return ranks[list(src)], ranks[list(dst)]
