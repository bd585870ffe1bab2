"""Ring embeddings: the order in which a collective's ring visits the GPUs.

A ring is a sequence of all n ranks that begins at rank 0; each rank sends to the next and the last to the first. It
visits every site once, so over S sites it crosses the WAN exactly S times, or never if there is one site. The best ring
minimises one of these objectives:

    slowest edge    the largest cost of an edge (delay plus transmission); among equals, the total delay;
    cycle time      the time per round of the collective in the long run (below); among equals, the total cost;
    sum             the total cost.

Among rings that are still equal, it is the first one by (order of the sites, the rank entered and the rank left at
every site, the order of the ranks in each site).

The cycle time is that of the ring as a max-plus system (Baccelli et al., "Synchronization and Linearity", 1992,
theorem 2.28: the largest mean over its circuits). In every round an edge e transmits m messages one after the other,
beta_e each; a GPU forwards in a round what it received in the round before, and a message arrives alpha_e after it has
left. The circuits are the single edges, with a mean of m beta_e, and the whole ring, with the mean over its n edges of
alpha_e + beta_e:

    cycle time = max(m max beta, sum(alpha + beta) / n)

A collective of R rounds takes R cycle times plus effects of its first and last rounds. For 8 GPUs at the rates and
delays of the paper, the ring of least cycle time is on average at most 0.3 % slower than the fastest ring.

The least total cost G(b) of rings with beta <= b falls as b grows. So the minimum of max(m b, G(b) / n) over the edges'
b is found by bisection: it is at the first b with n m b >= G(b), or at the b before it.

Example for the slowest edge: sites {0, 1} and {2, 3}; every edge within a site costs 1, and edges between sites cost 9,
except 1>2 with 3 and 3>0 with 5. A *leg* is a site's part of the ring, from the GPU entered (row) to the GPU left
(column). Legs and crossings are multiplied as matrices with (min, max) in place of (+, *):

    leg 0     0  1     crossing  2  3     leg 1     2  3     crossing  0  1
          0   -  1            0  9  9           2   -  1            2  9  9
          1   1  -            1  3  9           3   1  -            3  5  9

    leg 0 x crossing   2  3     ... x leg 1   2  3
                   0   3  9               0   9  3
                   1   9  9               1   9  9

The last crossing closes the ring: the best slowest edge is max(3, 5) = 5, from 0 to 3 and back to 0. The same product
with (min, +), over the delays of all edges that cost at most 5, gives the ends of each leg, here 0 > 1 and 2 > 3, and
`held_karp` gives the GPUs between the ends of a leg. The ring is 0, 1, 2, 3.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.embedding.held_karp import FAR_PS, FastestPaths, Floats, Indices, Ints, ShortestPaths
from hosts.embedding.search import SearchedRings, starting_at_rank_0

OBJECTIVES = ("slowest edge", "cycle time", "sum")
"""The objectives that the best ring can minimise."""

MAX_EXACT_GPUS = 12
"""Maximum number of GPUs in a site for the exact choice, which considers every subset of a site's GPUs."""

MAX_RING_SITES = 8
"""Maximum number of sites for a choice: every order of the sites is tried."""

Walk = Callable[[Indices, Indices, Indices], Indices]  # (first GPU, last GPU, instance) to the GPUs of a leg

_PS = 1e12
_MAX_BITS = 52  # of an edge's cost as an integer, so that the sum of twelve is below FAR_PS
_TABLE_BYTES = 1 << 24  # of one site's table at a byte per entry; a few times the L2 cache is fastest
_MIN_BATCH, _MAX_BATCH = 16, 2048  # limits on the number of instances per batch


class NoRingError(ValueError):
    """Raised if edges are missing, so that no ring visits every site once."""


def rank_order(gpus_per_site: tuple[int, ...], site_cycle: tuple[int, ...] | None = None) -> npt.NDArray[np.int16]:
    """Return NCCL's ring, `[n]`: ranks in ascending order; with `site_cycle`, sites in that order, ranks ascending."""
    blocks = _ranks(gpus_per_site)
    return np.concatenate([blocks[site] for site in site_cycle or range(len(blocks))]).astype(np.int16)


def best_rings(
    cost_s: Floats,
    delay_s: Floats,
    *,
    gpus_per_site: tuple[int, ...],
    objective: str = "slowest edge",
    messages: float = 1.0,
) -> npt.NDArray[np.int16]:
    """Return the best ring by an objective (OBJECTIVES) for each instance of a batch: `[K, n]` ranks.

    `cost_s` and `delay_s`, `[K, n, n]` each, are the cost (delay plus transmission of a message) and the delay of the
    edge from rank i to rank j; a cost of infinity is a missing edge, and the diagonals are ignored. `messages` is the
    number of messages that an edge transmits in a round, for the cycle time. Sums are compared in whole picoseconds, so
    that they do not depend on the order of addition. The ring of an instance does not depend on the rest of the batch.

    The choice is exact for up to MAX_EXACT_GPUS in a site, by dynamic programming over subsets (Held and Karp, "A
    dynamic programming approach to sequencing problems", 1962); time and memory grow as m^3 2^m in the GPUs m of a
    site. For larger sites the ring is the best one that a search finds (`search`); `bounds.lower_bounds` gives a lower
    bound. Raises ValueError for an unknown objective and for arrays of another shape, NoRingError if an instance has no
    ring or the search finds none.
    """
    count, n = cost_s.shape[0], sum(gpus_per_site)
    if cost_s.shape != (count, n, n) or delay_s.shape != (count, n, n):
        raise ValueError(f"costs {cost_s.shape} and delays {delay_s.shape}: both must be [K, {n}, {n}]")
    if objective not in OBJECTIVES:
        raise ValueError(f"{objective!r} is not an objective of a ring; allowed: {', '.join(OBJECTIVES)}")
    most = max(gpus_per_site)
    rings = np.empty((count, n), dtype=np.int16)
    step = min(max(_MIN_BATCH, _TABLE_BYTES // (most * most << min(most, MAX_EXACT_GPUS))), _MAX_BATCH)
    for start in range(0, count, step):
        # From here on, instances are the last axis: numpy is fast along that one, and the other axes are short.
        cost = np.ascontiguousarray(np.moveaxis(cost_s[start : start + step], 0, -1))
        delay = np.moveaxis(delay_s[start : start + step], 0, -1)
        if objective == "slowest edge" and most <= MAX_EXACT_GPUS:
            best = _SlowestEdgeChoice(cost, np.rint(delay * _PS).astype(np.int64), gpus_per_site).rings()
        else:
            best = _TotalsChoice(cost, delay, gpus_per_site).rings(objective, messages)
        rings[start : start + step] = best
    return rings


def objective_values(
    rings: npt.NDArray[np.int16], cost_s: Floats, delay_s: Floats, *, objective: str, messages: float = 1.0
) -> Floats:
    """Return the objective's value for rings `[K, n]`, `[K]` seconds; other arguments as for `best_rings`."""
    edges = np.arange(len(rings))[:, None], rings, np.roll(rings, -1, axis=1)
    cost, slot = cost_s[edges], (cost_s - delay_s)[edges]
    result: Floats = {
        "slowest edge": lambda: cost.max(axis=1),
        "cycle time": lambda: np.maximum(messages * slot.max(axis=1), cost.mean(axis=1)),
        "sum": lambda: cost.sum(axis=1),
    }[objective]()
    return result


def _ranks(gpus_per_site: tuple[int, ...]) -> list[npt.NDArray[np.intp]]:
    """Return the ranks of every site."""
    return np.split(np.arange(sum(gpus_per_site)), np.cumsum(gpus_per_site)[:-1])


class ExactRings:
    """The rings of least total over the edges' `weight`, `[n, n, K]` in ps, FAR_PS for a missing edge.

    `legs` has, for each site, the least total of a leg between any two of its GPUs, `[m, m, K]`, and a function that
    returns such a leg; if not given, they are computed. The third argument, `SearchedRings`'s excess, is ignored.
    """

    def __init__(
        self,
        weight: Ints,
        gpus_per_site: tuple[int, ...],
        _: Floats | None = None,
        *,
        legs: Sequence[tuple[Ints, Walk]] | None = None,
    ) -> None:
        self._weight, self._ranks = weight, _ranks(gpus_per_site)
        self._cycles = _cycles(len(gpus_per_site))
        if legs is None:
            paths = [ShortestPaths(weight[np.ix_(ranks, ranks)]) for ranks in self._ranks]
            legs = [(site_paths.best, site_paths.walk) for site_paths in paths]
        self._legs, self._walks = zip(*legs, strict=True)

    def totals(self, _: Floats | None = None) -> Ints:
        """Return the total of each instance's ring, `[K]` ps; FAR_PS without a ring."""
        least: Ints = np.min([self._closed(cycle)[0].min(axis=0) for cycle in self._cycles], axis=0)
        return least

    def rings(self) -> npt.NDArray[np.int16]:
        """Return the ring of every instance, `[K, n]`, starting at rank 0; undefined without a ring."""
        count = self._weight.shape[-1]
        least = np.full(count, FAR_PS)
        rings = np.zeros((count, self._weight.shape[0]), dtype=np.int16)
        for cycle in self._cycles:
            total, ends = self._ends(cycle)
            better = np.flatnonzero(total < least)
            least[better] = total[better]
            blocks = _ranks(tuple(self._ranks[site].size for site in cycle))  # the indices of each site in the ring
            for site, block, first, last in zip(cycle, blocks, ends[::2], ends[1::2], strict=True):
                walked = self._walks[site](first[better], last[better], better)
                rings[better[:, None], block] = self._ranks[site][walked]
        return starting_at_rank_0(rings)

    def _closed(self, cycle: tuple[int, ...]) -> tuple[Ints, list[Ints], list[Ints]]:
        """Return the least total of a ring through the sites in this order for each GPU of the first site, `[m, K]`;
        the ring's stages (leg, crossing, leg, crossing ..., without the last) `[from, to, K]`; and, for each stage, the
        least totals of the rest of the ring."""
        stages: list[Ints] = []
        for a, b in pairwise((*cycle, cycle[0])):
            stages += [self._legs[a], self._weight[np.ix_(self._ranks[a], self._ranks[b])]]
        ahead = [stages.pop()]  # ahead[i][x, u]: least total from x, before stage i, to the ring's first GPU u
        for stage in reversed(stages):
            ahead.insert(0, np.minimum(_product(stage, ahead[0], np.add), FAR_PS))
        return np.diagonal(ahead[0]).T, stages, ahead

    def _ends(self, cycle: tuple[int, ...]) -> tuple[Ints, list[Indices]]:
        """Return the least total through the sites in this order, `[K]` ps, and for each site in turn the GPU entered
        and the GPU left, as indices within the site, `[K]` each."""
        closed, stages, ahead = self._closed(cycle)
        instance = np.arange(closed.shape[1])
        begin = here = closed.argmin(axis=0)
        ends = [begin]
        for stage, rest in zip(stages, ahead[1:], strict=True):
            here = (stage[here, :, instance] + rest[:, begin, instance].T).argmin(axis=1)
            ends.append(here)
        return closed.min(axis=0), ends


def _cycles(sites: int) -> list[tuple[int, ...]]:
    """Return the orders in which a ring can visit the sites."""
    return [(0, *rest) for rest in permutations(range(1, sites))]


def _check_whole(exists: npt.NDArray[np.bool_]) -> None:
    if not exists.all():
        raise NoRingError("no ring was found that visits every site once without a missing edge")


class _SlowestEdgeChoice:
    """The exact choice by the slowest edge for one batch: `cost` `[n, n, K]` in seconds, `delay` `[n, n, K]` in ps."""

    def __init__(self, cost: Floats, delay: Ints, gpus_per_site: tuple[int, ...]) -> None:
        self._cost, self._delay, self._gpus_per_site = cost, delay, gpus_per_site
        self._ranks = _ranks(gpus_per_site)
        self._fastest = [FastestPaths(cost[np.ix_(ranks, ranks)]) for ranks in self._ranks]
        self._legs_s = [paths.slowest() for paths in self._fastest]

    def rings(self) -> npt.NDArray[np.int16]:
        """Return the best ring of every instance, `[K, n]`, starting at rank 0."""
        slowest = np.min([self._slowest(cycle) for cycle in _cycles(len(self._ranks))], axis=0)
        _check_whole(np.isfinite(slowest))
        legs = [self._legs(site, slowest) for site in range(len(self._ranks))]
        return ExactRings(np.where(self._cost <= slowest, self._delay, FAR_PS), self._gpus_per_site, legs=legs).rings()

    def _slowest(self, cycle: tuple[int, ...]) -> Floats:
        """Return the cost of the slowest edge of the best ring through the sites in this order, `[K]`."""
        reach = self._legs_s[cycle[0]]
        for a, b in pairwise(cycle):
            reach = _product(reach, self._cost[np.ix_(self._ranks[a], self._ranks[b])], np.maximum)
            reach = _product(reach, self._legs_s[b], np.maximum)
        back = self._cost[np.ix_(self._ranks[cycle[-1]], self._ranks[cycle[0]])]
        slowest: Floats = np.maximum(reach, back.swapaxes(0, 1)).min(axis=(0, 1))
        return slowest

    def _legs(self, site: int, slowest: Floats) -> tuple[Ints, Walk]:
        """Return every leg's least delay over edges of cost <= `slowest`, `[m, m, K]` ps, and a function that returns
        such a leg."""
        here, fastest = np.ix_(self._ranks[site], self._ranks[site]), self._fastest[site]
        delay = self._delay[here]
        edges = delay[~np.eye(len(delay), dtype=bool)]
        if edges.size == 0 or (edges == edges[0]).all():  # all legs of the site have the same delay
            alike = edges[0] * (len(delay) - 1) if edges.size else 0
            total = np.where(self._legs_s[site] <= slowest, alike, FAR_PS)
            return total, partial(fastest.walk, slowest=slowest)
        shortest = ShortestPaths(np.where(self._cost[here] <= slowest, delay, FAR_PS))
        return shortest.best, shortest.walk


class _TotalsChoice:
    """The choice by rings of least total for one batch: `cost_s` and `delay_s`, `[n, n, K]` seconds."""

    def __init__(self, cost_s: Floats, delay_s: Floats, gpus_per_site: tuple[int, ...]) -> None:
        self._gpus_per_site = gpus_per_site
        self._exists = np.isfinite(cost_s) & ~np.eye(len(cost_s), dtype=bool)[:, :, None]
        largest = np.where(self._exists, cost_s, 0).max(axis=(0, 1))
        # If an instance's costs are too large for whole ps, its unit is a power of two of ps.
        self._unit = np.exp2(np.maximum(0, np.frexp(largest * _PS)[1] - _MAX_BITS))
        self._cost, self._delay = self._ps(cost_s), self._ps(delay_s)
        self._slot = self._ps(np.maximum(cost_s - delay_s, 0))
        self._rings_of: type[ExactRings | SearchedRings] = (
            SearchedRings if max(gpus_per_site) > MAX_EXACT_GPUS else ExactRings
        )

    def rings(self, objective: str, messages: float) -> npt.NDArray[np.int16]:
        """Return the best rings by an objective, `[K, n]`."""
        count = self._cost.shape[-1]
        if objective == "sum":
            best = self._rings_of(self._cost, self._gpus_per_site)
        elif objective == "cycle time":
            best = self._within(self._cost, self._slot, self._slots_of_least_cycle_time(messages), np.arange(count))
        else:
            best = self._within(self._delay, self._cost, self._least_slowest_cost(), np.arange(count))
        rings = best.rings()
        used: npt.NDArray[np.bool_] = self._exists[rings, np.roll(rings, -1, axis=1), np.arange(count)[:, None]]
        _check_whole(np.logical_and.reduce(used, axis=1))
        return rings

    def _ps(self, seconds: Floats) -> Ints:
        ps = np.full(seconds.shape, FAR_PS)
        ps[self._exists] = np.rint((seconds * (_PS / self._unit))[self._exists])
        return ps

    def _within(self, weight: Ints, slot: Ints, limit: Ints, which: Indices) -> ExactRings | SearchedRings:
        """Return the rings of least weight, for the instances `which`, over edges with `slot` <= `limit`."""
        slots = slot[:, :, which]
        return self._rings_of(
            np.where(slots <= limit, weight[:, :, which], FAR_PS), self._gpus_per_site, slots / np.maximum(1, limit)
        )

    def _slots_of_least_cycle_time(self, messages: float) -> Ints:
        """Return the largest transmission time allowed in each instance's ring of least cycle time, `[K]`."""
        n, count = len(self._cost), self._cost.shape[-1]

        def total_of(which: Indices, limit: Ints) -> Ints:
            goal = np.multiply(n * messages, limit, dtype=np.float64)
            return self._within(self._cost, self._slot, limit, which).totals(goal)

        def enough(which: Indices, limit: Ints) -> npt.NDArray[np.bool_]:
            best: npt.NDArray[np.bool_] = total_of(which, limit) <= n * messages * limit
            return best

        least = self._rings_of(self._cost, self._gpus_per_site).totals()
        _check_whole(least < FAR_PS)
        # Find the first slot with n m slot >= least total; none may satisfy this.
        needed = _slots_needed(self._slot, self._gpus_per_site)
        slots, edges = self._sorted(self._slot)
        low = _first(slots, (slots < np.maximum(needed, least / (n * messages))).sum(axis=0), edges, enough)
        every = np.arange(count)
        here, before = slots[low, every], slots[np.maximum(low - 1, 0), every]
        total_before = np.full(count, FAR_PS)
        some = np.flatnonzero((low > 0) & (before >= needed))
        if some.size:
            total_before[some] = total_of(some, before[some])
        best: Ints = np.where((low == edges) | (total_before < n * messages * here), before, here)
        return best

    def _least_slowest_cost(self) -> Ints:
        """Return the cost of the slowest edge of each instance's best ring, `[K]`."""

        def enough(which: Indices, limit: Ints) -> npt.NDArray[np.bool_]:
            has_ring: npt.NDArray[np.bool_] = (
                self._within(self._delay, self._cost, limit, which).totals(np.full(which.size, float(FAR_PS))) < FAR_PS
            )
            return has_ring

        costs, edges = self._sorted(self._cost)
        needed = _slots_needed(self._cost, self._gpus_per_site)
        at = _first(costs, (costs < needed).sum(axis=0), edges - 1, enough)
        return costs[at, np.arange(at.size)]

    def _sorted(self, slot: Ints) -> tuple[Ints, Indices]:
        """Return the slots of each instance's edges in ascending order, `[n n, K]`, and its number of edges, `[K]`."""
        slots = np.sort(slot.reshape(-1, slot.shape[-1]), axis=0)
        return slots, (slots < FAR_PS).sum(axis=0)


def _first(
    slots: Ints, low: Indices, high: Indices, enough: Callable[[Indices, Ints], npt.NDArray[np.bool_]]
) -> Indices:
    """Return the index of each instance's first slot, from index `low` on, that is enough, or `high`: `[K]`.

    `enough` takes the indices of some instances and one slot for each. It must be monotone: if a slot is enough, all
    larger ones are.
    """
    low, high, step = low.copy(), np.maximum(low, high), 0
    while (active := np.flatnonzero(low < high)).size:
        probe = low[active] + np.minimum(step, (high - low)[active] // 2)  # start low: the result is often the lowest
        is_enough = enough(active, slots[probe, active])
        high[active] = np.where(is_enough, probe, high[active])
        low[active] = np.where(is_enough, low[active], probe + 1)
        step = 2 * step + 1
    return low


def _slots_needed(slot: Ints, gpus_per_site: tuple[int, ...]) -> Ints:
    """Return a lower bound on the largest slot of any ring, `[K]`: each GPU and each site is entered and left once."""
    sites, open_ = np.repeat(np.arange(len(gpus_per_site)), gpus_per_site), slot.copy()
    open_[np.diag_indices(sites.size)] = FAR_PS
    crossing = np.where((sites[:, None] != sites)[:, :, None], open_, FAR_PS)
    of_gpus: Ints = np.maximum(open_.min(axis=0), open_.min(axis=1)).max(axis=0)
    if len(gpus_per_site) == 1:
        return of_gpus
    of_sites = [
        np.maximum(crossing[sites == site].min(axis=(0, 1)), crossing[:, sites == site].min(axis=(0, 1)))
        for site in range(len(gpus_per_site))
    ]
    needed: Ints = np.maximum(of_gpus, np.max(of_sites, axis=0))
    return needed


def _product(a: npt.NDArray[Any], b: npt.NDArray[Any], combine: np.ufunc) -> npt.NDArray[Any]:
    """Return the (min, `combine`) matrix product `[i, l, K]`: the minimum over j of `combine(a[i, j], b[j, l])`."""
    best: npt.NDArray[Any] = combine(a[:, 0, None], b[0])
    for j in range(1, len(b)):
        np.minimum(best, combine(a[:, j, None], b[j]), out=best)
    return best
