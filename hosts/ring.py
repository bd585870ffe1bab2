"""Ring embeddings: in which order a collective's ring visits the GPUs.

Knows costs and delays of edges between ranks, not where they come from. A ring is a sequence of all n ranks that
begins at rank 0; each rank sends to the next and the last to the first. A ring visits every site once, so over S
sites it crosses the WAN exactly S times.

The best ring has the fastest slowest edge; of several, the least total delay; of several still, the one that comes
first by (order of the sites, the rank entered and the rank left at every site, the order of the ranks in each site).
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.tour import FAR_PS as _FAR
from hosts.tour import FastestTours, ShortestTours

MAX_GPUS_PER_SITE = 12
"""Most GPUs in one site for which the exact choice is offered: it weighs every subset of a site's GPUs."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]
Walk = Callable[[Indices, Indices, Indices], Indices]

_PS = 1e12
_TABLE_BYTES = 1 << 24  # of one site, at a byte an entry: a few times the second-level cache is the fastest
_FEWEST, _MOST = 16, 2048  # instances at a time, however large or small their tables are


def rank_order(gpus_per_site: tuple[int, ...], site_cycle: tuple[int, ...] | None = None) -> npt.NDArray[np.int16]:
    """NCCL's ring: ranks in order, [n]; with `site_cycle`, the sites in that order and ranks in order within each."""
    blocks = _ranks(gpus_per_site)
    return np.concatenate([blocks[site] for site in site_cycle or range(len(blocks))]).astype(np.int16)


def best_rings(cost_s: Floats, delay_s: Floats, *, gpus_per_site: tuple[int, ...]) -> npt.NDArray[np.int16]:
    """The best ring of each instance of a batch: [K, n] ranks.

    `cost_s` and `delay_s`, [K, n, n] each, are the cost (delay plus transmission of a chunk) and the delay of the edge
    from rank i to rank j; a cost of infinity means there is no such edge, and the diagonals are not read. Delays are
    compared to the picosecond, so that no order of adding them makes a difference. Every instance is solved on its
    own: how they are batched does not show.

    Exact, by dynamic programming over subsets after Held and Karp, "A dynamic programming approach to sequencing
    problems" (1962): time and memory grow as m^3 2^m in the GPUs m of a site. Raises ValueError for more than
    MAX_GPUS_PER_SITE of them, for arrays of another shape, and where an instance has no ring.
    """
    count, n = cost_s.shape[0], sum(gpus_per_site)
    if cost_s.shape != (count, n, n) or delay_s.shape != (count, n, n):
        raise ValueError(f"costs {cost_s.shape} and delays {delay_s.shape}: both must be [K, {n}, {n}]")
    most = max(gpus_per_site)
    if most > MAX_GPUS_PER_SITE:
        raise ValueError(f"{most} GPUs in a site: the exact ring is chosen for up to {MAX_GPUS_PER_SITE}")
    rings = np.empty((count, n), dtype=np.int16)
    step = min(max(_FEWEST, _TABLE_BYTES // (most * most << most)), _MOST)
    for start in range(0, count, step):
        # The instances come last from here on: numpy is fast along the last axis, and the others are short.
        cost = np.ascontiguousarray(np.moveaxis(cost_s[start : start + step], 0, -1))
        delay = np.rint(np.moveaxis(delay_s[start : start + step], 0, -1) * _PS).astype(np.int64)
        rings[start : start + step] = _Choice(cost, delay, gpus_per_site).rings()
    return rings


def _ranks(gpus_per_site: tuple[int, ...]) -> list[npt.NDArray[np.intp]]:
    """The ranks of every site."""
    return np.split(np.arange(sum(gpus_per_site)), np.cumsum(gpus_per_site)[:-1])


class _Choice:
    """The choice for one batch: `cost` [n, n, K] in seconds, `delay` [n, n, K] in ps.

    A leg is a site's part of the ring: from the GPU at which the ring enters to the one at which it leaves, through
    all the others.
    """

    def __init__(self, cost: Floats, delay: Ints, gpus_per_site: tuple[int, ...]) -> None:
        self._cost, self._delay = cost, delay
        self._ranks = _ranks(gpus_per_site)
        self._fastest = [FastestTours(cost[np.ix_(ranks, ranks)]) for ranks in self._ranks]
        self._legs_s = [tours.slowest() for tours in self._fastest]

    def rings(self) -> npt.NDArray[np.int16]:
        """The best ring of every instance, [K, n]."""
        cycles = [(0, *rest) for rest in permutations(range(1, len(self._ranks)))]
        slowest = np.min([self._slowest(cycle) for cycle in cycles], axis=0)
        if not np.isfinite(slowest).all():
            raise ValueError("no ring visits every site once over edges that exist")
        legs = [self._legs(site, slowest) for site in range(len(self._ranks))]
        least = np.full(slowest.size, _FAR)
        rings = np.empty((slowest.size, self._cost.shape[0]), dtype=np.int16)
        for cycle in cycles:
            total, gates = self._gates(cycle, [leg for leg, _ in legs], slowest)
            wins = np.flatnonzero(total < least)
            least[wins] = total[wins]
            for place, blocks in enumerate(self._blocks(cycle)):
                first, last = gates[2 * place][wins], gates[2 * place + 1][wins]
                _, walk = legs[cycle[place]]
                rings[wins[:, None], blocks] = self._ranks[cycle[place]][walk(first, last, wins)]
        return _from_rank_0(rings)

    def _blocks(self, cycle: tuple[int, ...]) -> list[npt.NDArray[np.intp]]:
        """The positions in the ring that each site takes."""
        return _ranks(tuple(self._ranks[site].size for site in cycle))

    def _slowest(self, cycle: tuple[int, ...]) -> Floats:
        """The slowest edge of the best ring through the sites in this order, [K]."""
        reach = self._legs_s[cycle[0]]
        for a, b in pairwise(cycle):
            crossed = _product(reach, self._cost[np.ix_(self._ranks[a], self._ranks[b])], np.maximum)
            reach = _product(crossed, self._legs_s[b], np.maximum)
        back = self._cost[np.ix_(self._ranks[cycle[-1]], self._ranks[cycle[0]])]
        slowest: Floats = np.maximum(reach, back.swapaxes(0, 1)).min(axis=(0, 1))
        return slowest

    def _legs(self, site: int, slowest: Floats) -> tuple[Ints, Walk]:
        """Every leg's least delay over edges that are fast enough, [m, m, K] ps, and how to walk such a leg."""
        inner = np.ix_(self._ranks[site], self._ranks[site])
        delay, fastest = self._delay[inner], self._fastest[site]
        one = delay[0, 1]
        if (delay[~np.eye(len(delay), dtype=bool)] == one).all():  # then all legs of the site take equally long
            total = np.where(self._legs_s[site] <= slowest, one * (len(delay) - 1), _FAR)
            return total, partial(fastest.walk, slowest=slowest)
        shortest = ShortestTours(np.where(self._cost[inner] <= slowest, delay, _FAR))
        return shortest.total(), shortest.walk

    def _gates(self, cycle: tuple[int, ...], legs: list[Ints], slowest: Floats) -> tuple[Ints, list[Indices]]:
        """The least total delay through the sites in this order, [K] ps, and the GPUs entered and left, [K] each."""
        stages: list[Ints] = []  # leg, crossing, leg, crossing ...: [from, to, K]
        for a, b in pairwise((*cycle, cycle[0])):
            over = np.ix_(self._ranks[a], self._ranks[b])
            stages += [legs[a], np.where(self._cost[over] <= slowest, self._delay[over], _FAR)]
        ahead = [stages.pop()]  # ahead[i][x, u]: the least delay from x, before stage i, to the ring's beginning u
        for stage in reversed(stages):
            ahead.insert(0, np.minimum(_product(stage, ahead[0], np.add), _FAR))
        closed = np.diagonal(ahead[0]).T  # from u all the way round to u
        instance = np.arange(slowest.size)
        begin = here = closed.argmin(axis=0)
        gates = [begin]
        for stage, rest in zip(stages, ahead[1:], strict=True):
            here = (stage[here, :, instance] + rest[:, begin, instance].T).argmin(axis=1)
            gates.append(here)
        return closed.min(axis=0), gates


def _product(a: npt.NDArray[Any], b: npt.NDArray[Any], combine: np.ufunc) -> npt.NDArray[Any]:
    """The best way from i over some j to l: [i, l, K], the least of `combine(a[i, j], b[j, l])`."""
    best: npt.NDArray[Any] = combine(a[:, 0, None], b[0])
    for j in range(1, len(b)):
        np.minimum(best, combine(a[:, j, None], b[j]), out=best)
    return best


def _from_rank_0(rings: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """The same rings, each written from rank 0 on."""
    begin = np.argmax(rings == 0, axis=1)[:, None]
    return np.take_along_axis(rings, (begin + np.arange(rings.shape[1])) % rings.shape[1], axis=1)
