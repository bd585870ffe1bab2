"""Rings for sites too large for the exact choice: a search, with the same interface as `ring.ExactRound`.

From the ranks in order, neighbouring parts of a site's GPUs are exchanged while that makes the ring's total less, which
is the only change of three edges that keeps all directions; then again and again after two exchanges at random
(iterated local search; Johnson et al., "Experimental analysis of heuristics for the ATSP", 2002). That is done for each
order of the sites, of more than six for those whose shortest crossings are least together. How far a ring is from the
best, `bounds` tells.
"""

from itertools import permutations

import numpy as np
import numpy.typing as npt

from hosts.embedding.held_karp import FAR_PS, Floats, Indices, Ints

KICKS = (60, 2)
"""Descents after the first, and of how many one is in all sites at once."""
_OF_MANY = (120, 4), (40, 4)  # the same of more than four sites: for a ring, and to learn whether there is one

_ALL_ORDERS = 6  # those of four sites, which are all searched
_ENTRIES = 200_000  # of the weights of all orders that are searched where there are more, 3 of 256 GPUs

_PENALTY = 1e3  # of a missing edge, in rings of the largest edges; more, by its excess, would hide those


class SearchedRound:
    """Rings of small total over the edges' `weight`, [n, n, K] in ps, FAR_PS for a missing edge.

    Where `excess` [n, n, K] is given, of two missing edges that of less excess is nearer to being there.
    """

    def __init__(self, weight: Ints, gpus_per_site: tuple[int, ...], excess: Floats | None = None) -> None:
        missing = weight >= FAR_PS
        most = len(weight) * np.maximum(1.0, np.where(missing, 0, weight).max(axis=(0, 1)))
        penalty = _PENALTY * most * (1.0 if excess is None else np.minimum(excess, _PENALTY))
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
        every, ranked, turns = self._orders(blocks)
        kicks = KICKS if len(every) <= _ALL_ORDERS else _OF_MANY[goal is not None]
        for turn in range(ranked.shape[1]):
            if turn == turns and goal is not None:
                break
            left = (least > (goals if turn < turns else self._most)) & (ranked[:, turn] >= 0)
            for order in np.unique(ranked[left, turn]):
                some = np.flatnonzero(left & (ranked[:, turn] == order))
                rings = np.tile(np.concatenate([blocks[site] for site in every[order]]), (some.size, 1))
                ends = np.cumsum([0, *(blocks[site].size for site in every[order])])
                totals = searched(rings, ends, self._weight[some], goals[some], kicks)
                better = totals < least[some]
                least[some[better]], best[some[better]] = totals[better], rings[better]
        return np.where(least <= self._most, np.rint(least), FAR_PS).astype(np.int64), best

    def _orders(self, blocks: list[Indices]) -> tuple[Indices, Indices, int]:
        """Every order of the sites, [orders, S]; each instance's, the most promising first, by their numbers or -1 for
        one of which a crossing is missing, [K, orders]; and how many are searched in any case."""
        every = np.array([(0, *rest) for rest in permutations(range(1, len(blocks)))])
        number = np.arange(len(every))
        if len(every) <= _ALL_ORDERS:
            return every, np.tile(number, (len(self._weight), 1)), len(every)
        starts = [block[0] for block in blocks]
        crossing = np.minimum.reduceat(np.minimum.reduceat(self._weight, starts, axis=1), starts, axis=2)
        least = crossing[:, every, np.roll(every, -1, axis=1)].sum(axis=2)
        ranked = np.argsort(least, axis=1, kind="stable")
        is_whole = np.take_along_axis(least, ranked, axis=1) <= self._most[:, None]
        return every, np.where(is_whole, ranked, -1), max(1, _ENTRIES // self._weight[0].size)


if __name__ == "__main__":  # compiled now, and kept beside the module, so that no command has to wait for it
    SearchedRound(np.ones((4, 4, 1), np.int64), (2, 2)).totals()
