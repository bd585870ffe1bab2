"""Ring embeddings: in which order a collective's ring visits the GPUs.

A ring is a sequence of all n ranks that begins at rank 0; each rank sends to the next and the last to the first. It
visits every site once, so over S sites it crosses the WAN exactly S times. The best ring has the fastest slowest edge;
of several, the least total delay; of several still, the one that is first by (order of the sites, the rank entered and
the rank left at every site, the order of the ranks in each site).

Example: sites {0, 1} and {2, 3}, every edge within a site costs 1, and those across cost 9 but for 1>2 with 3 and 3>0
with 5. A *leg* is a site's part of the ring, from the GPU entered (row) to the GPU left (column), and legs and
crossings are multiplied as matrices with (min, max) in the place of (+, *):

    leg 0     0  1     crossing  2  3     leg 1     2  3     crossing  0  1
          0   -  1            0  9  9           2   -  1            2  9  9
          1   1  -            1  3  9           3   1  -            3  5  9

    leg 0 x crossing   2  3     ... x leg 1   2  3
                   0   3  9               0   9  3
                   1   9  9               1   9  9

The last crossing closes the ring: the best slowest edge is max(3, 5) = 5, from 0 over 3 and back to 0. The same
product with (min, +) over the delays of all edges that cost 5 at most gives each leg's ends, here 0 > 1 and 2 > 3, and
`held_karp` what lies between the ends of a leg: the ring is 0, 1, 2, 3.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.embedding.held_karp import FAR_PS, FastestPaths, Floats, Indices, Ints, ShortestPaths

MAX_EXACT_GPUS = 12
"""Maximum number of GPUs in a site for the exact choice, which considers every subset of a site's GPUs."""

Walk = Callable[[Indices, Indices, Indices], Indices]

_PS = 1e12
_TABLE_BYTES = 1 << 24  # of one site, at a byte an entry: a few times the second-level cache is the fastest
_FEWEST, _MOST = 16, 2048  # instances at a time, however large or small their tables are


def rank_order(gpus_per_site: tuple[int, ...], site_cycle: tuple[int, ...] | None = None) -> npt.NDArray[np.int16]:
    """NCCL's ring: ranks in ascending order, [n]; with `site_cycle` the sites in that order, each with its ranks so."""
    blocks = _ranks(gpus_per_site)
    return np.concatenate([blocks[site] for site in site_cycle or range(len(blocks))]).astype(np.int16)


def best_rings(cost_s: Floats, delay_s: Floats, *, gpus_per_site: tuple[int, ...]) -> npt.NDArray[np.int16]:
    """The best ring of each instance of a batch: [K, n] ranks.

    `cost_s` and `delay_s`, [K, n, n] each, are the cost (delay plus transmission of a chunk) and the delay of the edge
    from rank i to rank j; a cost of infinity stands for an absent edge, and the diagonals are ignored. Delays are
    compared in whole picoseconds, so that the order of adding them makes no difference. The ring of an instance does
    not depend on the others of the batch.

    Exact, by dynamic programming over subsets after Held and Karp, "A dynamic programming approach to sequencing
    problems" (1962): time and memory grow as m^3 2^m in the GPUs m of a site. Raises ValueError for more than
    MAX_EXACT_GPUS of them, for arrays of another shape, and where an instance has no ring.
    """
    count, n = cost_s.shape[0], sum(gpus_per_site)
    if cost_s.shape != (count, n, n) or delay_s.shape != (count, n, n):
        raise ValueError(f"costs {cost_s.shape} and delays {delay_s.shape}: both must be [K, {n}, {n}]")
    most = max(gpus_per_site)
    if most > MAX_EXACT_GPUS:
        raise ValueError(f"{most} GPUs in a site: the exact ring is chosen for up to {MAX_EXACT_GPUS}")
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
    """The choice for one batch: `cost` [n, n, K] in seconds, `delay` [n, n, K] in ps."""

    def __init__(self, cost: Floats, delay: Ints, gpus_per_site: tuple[int, ...]) -> None:
        self._cost, self._delay = cost, delay
        self._ranks = _ranks(gpus_per_site)
        self._fastest = [FastestPaths(cost[np.ix_(ranks, ranks)]) for ranks in self._ranks]
        self._legs_s = [paths.slowest() for paths in self._fastest]

    def rings(self) -> npt.NDArray[np.int16]:
        """The best ring of every instance, [K, n], each beginning at rank 0."""
        cycles = [(0, *rest) for rest in permutations(range(1, len(self._ranks)))]
        slowest = np.min([self._slowest(cycle) for cycle in cycles], axis=0)
        if not np.isfinite(slowest).all():
            raise ValueError("no ring visits every site once over edges that exist")
        legs = [self._legs(site, slowest) for site in range(len(self._ranks))]
        least = np.full(slowest.size, FAR_PS)
        rings = np.empty((slowest.size, self._cost.shape[0]), dtype=np.int16)
        for cycle in cycles:
            total, ends = self._ends(cycle, [leg for leg, _ in legs], slowest)
            better = np.flatnonzero(total < least)
            least[better] = total[better]
            blocks = _ranks(tuple(self._ranks[site].size for site in cycle))  # the indices in the ring of each site
            for site, block, first, last in zip(cycle, blocks, ends[::2], ends[1::2], strict=True):
                _, walk = legs[site]
                rings[better[:, None], block] = self._ranks[site][walk(first[better], last[better], better)]
        begin = np.argmax(rings == 0, axis=1)[:, None]
        return np.take_along_axis(rings, (begin + np.arange(rings.shape[1])) % rings.shape[1], axis=1)

    def _crossing(self, weight: npt.NDArray[Any], a: int, b: int) -> npt.NDArray[Any]:
        """The weights of the edges from site a to site b, [a's GPUs, b's GPUs, K]."""
        return weight[np.ix_(self._ranks[a], self._ranks[b])]

    def _slowest(self, cycle: tuple[int, ...]) -> Floats:
        """The slowest edge of the best ring through the sites in this order, [K]."""
        reach = self._legs_s[cycle[0]]
        for a, b in pairwise(cycle):
            reach = _product(reach, self._crossing(self._cost, a, b), np.maximum)
            reach = _product(reach, self._legs_s[b], np.maximum)
        back = self._crossing(self._cost, cycle[-1], cycle[0])
        slowest: Floats = np.maximum(reach, back.swapaxes(0, 1)).min(axis=(0, 1))
        return slowest

    def _legs(self, site: int, slowest: Floats) -> tuple[Ints, Walk]:
        """Every leg's least delay over edges that are fast enough, [m, m, K] ps, and how to walk such a leg."""
        delay, fastest = self._crossing(self._delay, site, site), self._fastest[site]
        one = delay[0, 1]
        if (delay[~np.eye(len(delay), dtype=bool)] == one).all():  # then all legs of the site take equally long
            total = np.where(self._legs_s[site] <= slowest, one * (len(delay) - 1), FAR_PS)
            return total, partial(fastest.walk, slowest=slowest)
        fast_enough = self._crossing(self._cost, site, site) <= slowest
        shortest = ShortestPaths(np.where(fast_enough, delay, FAR_PS))
        return shortest.best, shortest.walk

    def _ends(self, cycle: tuple[int, ...], legs: list[Ints], slowest: Floats) -> tuple[Ints, list[Indices]]:
        """The least total delay through the sites in this order, [K] ps, and the GPU entered and the GPU left of each
        site in turn, as indices within the site, [K] each."""
        stages: list[Ints] = []  # leg, crossing, leg, crossing ...: [from, to, K]
        for a, b in pairwise((*cycle, cycle[0])):
            fast_enough = self._crossing(self._cost, a, b) <= slowest
            stages += [legs[a], np.where(fast_enough, self._crossing(self._delay, a, b), FAR_PS)]
        ahead = [stages.pop()]  # ahead[i][x, u]: the least delay from x, before stage i, to the ring's first GPU u
        for stage in reversed(stages):
            ahead.insert(0, np.minimum(_product(stage, ahead[0], np.add), FAR_PS))
        closed = np.diagonal(ahead[0]).T  # from u all the way round to u
        instance = np.arange(slowest.size)
        begin = here = closed.argmin(axis=0)
        ends = [begin]
        for stage, rest in zip(stages, ahead[1:], strict=True):
            here = (stage[here, :, instance] + rest[:, begin, instance].T).argmin(axis=1)
            ends.append(here)
        return closed.min(axis=0), ends


def _product(a: npt.NDArray[Any], b: npt.NDArray[Any], combine: np.ufunc) -> npt.NDArray[Any]:
    """The matrix product with (min, `combine`): [i, l, K], the least of `combine(a[i, j], b[j, l])` over all j."""
    best: npt.NDArray[Any] = combine(a[:, 0, None], b[0])
    for j in range(1, len(b)):
        np.minimum(best, combine(a[:, j, None], b[j]), out=best)
    return best
