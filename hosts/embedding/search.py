"""Rings for sites too large for the exact choice: a search, with the same interface as `ring.ExactRound`.

From the ranks in order, neighbouring parts of a site's GPUs are exchanged while that makes the ring's total less, which
is the only change of three edges that keeps all directions; then again and again after two exchanges at random
(iterated local search; Johnson et al., "Experimental analysis of heuristics for the ATSP", 2002). That is done for each
order of the sites, of many for those whose shortest crossings are the least together. How far a ring is from the best,
`bounds` tells.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np
import numpy.typing as npt

from hosts.embedding.held_karp import FAR_PS, Floats, Indices, Ints

KICKS = 60
"""Descents after the first."""

ORDERS = 8
"""Orders of the sites that are searched, the most promising: all of up to four sites."""

_PENALTY = 1e3  # of a missing edge, in rings of the largest edges


class SearchedRound:
    """Rings of small total over the edges' `weight`, [n, n, K] in ps, FAR_PS for a missing edge.

    Where `excess` [n, n, K] is given, of two missing edges that of less excess is nearer to being there.
    """

    def __init__(self, weight: Ints, gpus_per_site: tuple[int, ...], excess: Floats | None = None) -> None:
        missing = weight >= FAR_PS
        most = len(weight) * np.maximum(1.0, np.where(missing, 0, weight).max(axis=(0, 1)))
        penalty = _PENALTY * most * (1.0 if excess is None else excess)
        self._weight = np.moveaxis(np.where(missing, penalty, weight.astype(np.float64)), -1, 0)
        self._weight = np.ascontiguousarray(self._weight)
        self._most, self._gpus_per_site = most, gpus_per_site

    def totals(self, goal: Floats | None = None) -> Ints:
        """The total of each instance's ring, or any total found that is at most the goal, [K] ps; FAR_PS for none."""
        totals, _ = self._searched(goal)
        return totals

    def rings(self) -> npt.NDArray[np.int16]:
        """The ring of every instance, [K, n], each beginning at rank 0; anything where none was found."""
        _, rings = self._searched(None)
        begin = np.argmax(rings == 0, axis=1)[:, None]
        return np.take_along_axis(rings, (begin + np.arange(rings.shape[1])) % rings.shape[1], axis=1)

    def _searched(self, goal: Floats | None) -> tuple[Ints, npt.NDArray[np.int16]]:
        from hosts.embedding.descent import searched  # with numba, which takes its time to import

        count, n, _ = self._weight.shape
        blocks = np.split(np.arange(n), np.cumsum(self._gpus_per_site)[:-1])
        least, best = np.full(count, np.inf), np.zeros((count, n), dtype=np.int16)
        goals = np.zeros(count) if goal is None else np.minimum(goal, self._most)  # a ring without missing edges
        for cycle, instances in self._orders(blocks):
            some = instances[least[instances] > goals[instances]]
            order = [blocks[site] for site in cycle]
            rings = np.tile(np.concatenate(order), (some.size, 1))
            ends = np.cumsum([0, *(block.size for block in order)])
            totals = searched(rings, ends, self._weight[some], goals[some], KICKS)
            better = totals < least[some]
            least[some[better]], best[some[better]] = totals[better], rings[better]
        return np.where(least <= self._most, np.rint(least), FAR_PS).astype(np.int64), best

    def _orders(self, blocks: list[Indices]) -> Iterator[tuple[tuple[int, ...], Indices]]:
        """Orders of the sites, each with the instances that it is searched for."""
        every = [(0, *rest) for rest in permutations(range(1, len(blocks)))]
        if len(every) <= ORDERS:
            yield from ((cycle, np.arange(len(self._weight))) for cycle in every)
            return
        starts = [block[0] for block in blocks]
        crossing = np.minimum.reduceat(np.minimum.reduceat(self._weight, starts, axis=1), starts, axis=2)
        cycles = np.array(every)
        least = crossing[:, cycles, np.roll(cycles, -1, axis=1)].sum(axis=2)
        for chosen in np.argsort(least, axis=1, kind="stable")[:, :ORDERS].T:
            whole = np.take_along_axis(least, chosen[:, None], axis=1)[:, 0] <= self._most  # else crossings are missing
            for order in np.unique(chosen[whole]):
                yield every[order], np.flatnonzero(whole & (chosen == order))


if __name__ == "__main__":  # compiled now, and kept beside the module, so that no command has to wait for it
    SearchedRound(np.ones((4, 4, 1), np.int64), (2, 2)).totals()
