"""Searches rings for sites too large for the exact choice, with the same interface as `ring.ExactRings`.

The search is an iterated local search (Johnson et al., "Experimental analysis of heuristics for the ATSP", 2002). From
the ranks in order, it exchanges adjacent segments of a site's GPUs while that reduces the ring's total; this is the
only change of three edges that keeps all directions. It then repeats this after two random exchanges, many times. All
orders of the sites are searched if there are up to six, and otherwise those with the smallest sum of shortest
crossings. `bounds` limits how far a ring is from the best.
"""

from itertools import permutations

import numpy as np
import numpy.typing as npt

from hosts.embedding.held_karp import FAR_PS, Floats, Indices, Ints

KICKS = (60, 2)
"""Number of descents after the first, and period of the descents that perturb all sites at once."""
_MANY_SITES_KICKS, _GOAL_KICKS = (120, 4), (40, 4)  # for more than four sites: for the best ring, and to reach a goal

_ALL_ORDERS = 6  # the orders of four sites; up to this many are all searched
_ENTRIES = 200_000  # limit on matrix entries over the orders searched if there are more: 3 orders for 256 GPUs

_PENALTY = 1e3  # cost of a missing edge, in rings of the largest edges; a larger one would hide the other edges


def starting_at_rank_0(rings: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Return the rings `[K, n]`, each rotated to start at rank 0."""
    begin = np.argmax(rings == 0, axis=1)[:, None]
    return np.take_along_axis(rings, (begin + np.arange(rings.shape[1])) % rings.shape[1], axis=1)


class SearchedRings:
    """Rings of small total over the edges' `weight`, `[n, n, K]` in ps, FAR_PS for a missing edge.

    With `excess` `[n, n, K]`, the penalty of a missing edge grows with its excess.
    """

    def __init__(self, weight: Ints, gpus_per_site: tuple[int, ...], excess: Floats | None = None) -> None:
        missing = weight >= FAR_PS
        most = len(weight) * np.maximum(1.0, np.where(missing, 0, weight).max(axis=(0, 1)))
        penalty = _PENALTY * most * (1.0 if excess is None else np.minimum(excess, _PENALTY))
        self._weight = np.moveaxis(np.where(missing, penalty, weight.astype(np.float64)), -1, 0)
        self._weight = np.ascontiguousarray(self._weight)
        self._most, self._gpus_per_site = most, gpus_per_site

    def totals(self, goal: Floats | None = None) -> Ints:
        """Return the total of each instance's ring, `[K]` ps, FAR_PS for none; the search ends at totals <= `goal`."""
        totals, _ = self._searched(goal)
        return totals

    def rings(self) -> npt.NDArray[np.int16]:
        """Return the ring of every instance, `[K, n]`, starting at rank 0; undefined where none was found."""
        _, rings = self._searched(None)
        return starting_at_rank_0(rings)

    def _searched(self, goal: Floats | None) -> tuple[Ints, npt.NDArray[np.int16]]:
        from hosts.embedding.search_jit import searched  # imports numba, which is slow

        count, n, _ = self._weight.shape
        blocks = np.split(np.arange(n), np.cumsum(self._gpus_per_site)[:-1])
        least_totals, best = np.full(count, np.inf), np.zeros((count, n), dtype=np.int16)
        goals = np.zeros(count) if goal is None else np.minimum(goal, self._most)  # no missing edge in a ring <= most
        orders, ranked, always = self._orders(blocks)
        kicks = KICKS
        if len(orders) > _ALL_ORDERS:
            kicks = _MANY_SITES_KICKS if goal is None else _GOAL_KICKS
        for position in range(ranked.shape[1]):
            if position == always and goal is not None:
                break
            active = (least_totals > (goals if position < always else self._most)) & (ranked[:, position] >= 0)
            for order in np.unique(ranked[active, position]):
                instances = np.flatnonzero(active & (ranked[:, position] == order))
                rings = np.tile(np.concatenate([blocks[site] for site in orders[order]]), (instances.size, 1))
                ends = np.cumsum([0, *(blocks[site].size for site in orders[order])])
                totals = searched(rings, ends, self._weight[instances], goals[instances], kicks)
                better = totals < least_totals[instances]
                least_totals[instances[better]], best[instances[better]] = totals[better], rings[better]
        return np.where(least_totals <= self._most, np.rint(least_totals), FAR_PS).astype(np.int64), best

    def _orders(self, blocks: list[Indices]) -> tuple[Indices, Indices, int]:
        """Return every order of the sites, `[orders, S]`; for each instance the indices of the orders, most promising
        first, with -1 for an order with a missing crossing, `[K, orders]`; and how many are always searched."""
        orders = np.array([(0, *rest) for rest in permutations(range(1, len(blocks)))])
        indices = np.arange(len(orders))
        if len(orders) <= _ALL_ORDERS:
            return orders, np.tile(indices, (len(self._weight), 1)), len(orders)
        starts = [block[0] for block in blocks]
        crossing = np.minimum.reduceat(np.minimum.reduceat(self._weight, starts, axis=1), starts, axis=2)
        least = crossing[:, orders, np.roll(orders, -1, axis=1)].sum(axis=2)
        ranked = np.argsort(least, axis=1, kind="stable")
        is_whole = np.take_along_axis(least, ranked, axis=1) <= self._most[:, None]
        return orders, np.where(is_whole, ranked, -1), max(1, _ENTRIES // self._weight[0].size)


if __name__ == "__main__":  # set-up runs this to fill numba's cache, so that no command has to wait for compilation
    SearchedRings(np.ones((4, 4, 1), np.int64), (2, 2)).totals()
