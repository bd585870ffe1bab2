"""Tours of one site: the best path through all of its GPUs, for every pair of a first and a last one.

Held and Karp's dynamic programme over subsets, for a batch of instances at a time. Its entry [S, x, w] tells the best
path that begins at x, visits exactly the GPUs of the set S and ends at w; bit i of S stands for GPU i.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]

FAR_PS = np.int64(1) << 58
"""The delay of what cannot be passed, in ps: beyond any other, and a dozen of them still add up within 64 bits."""

_NO_RANK = 255  # beyond the rank of any edge: a site of twelve GPUs has 132 of them


class _Tours:
    """The table over `weight` [m, m, K], a path's weight being the `combine` of its edges' and `far` that of none."""

    def __init__(self, weight: Array, *, combine: np.ufunc, far: int) -> None:
        size = weight.shape[0]
        self._weight, self._combine, self._full = weight, combine, (1 << size) - 1
        self._table = np.full((1 << size, *weight.shape), far, dtype=weight.dtype)
        passed = np.empty_like(weight)
        for alone in range(size):
            self._table[1 << alone, alone, alone] = 0
        for visited in range(1 << size):
            if not visited & (visited - 1):
                continue  # the empty set and the single ones
            for first in range(size):
                if visited >> first & 1:
                    # Over every second GPU at once; one that is no longer to be visited has `far` in the table.
                    combine(weight[first][:, None], self._table[visited ^ (1 << first)], out=passed)
                    np.minimum(passed.min(axis=0), far, out=self._table[visited, first])

    def _walk(self, first: Indices, last: Indices, instance: Indices, budget: Array) -> Indices:
        """The path from first to last within the budget that comes first in order of its GPUs: [instances, m]."""
        size = self._weight.shape[0]
        path = np.empty((first.size, size), dtype=np.intp)
        path[:, 0] = here = first
        left = np.full(first.size, self._full)
        for place in range(1, size):
            left = left ^ (1 << here)
            step = self._weight[here, :, instance]
            whole = self._combine(step, self._table[left, :, last, instance])
            path[:, place] = here = np.argmax(whole <= budget[:, None], axis=1)
            if self._combine is np.add:
                budget = budget - step[np.arange(first.size), here]
        return path


class FastestTours(_Tours):
    """The tours whose slowest edge is fastest, over `cost` [m, m, K]; infinity where there is no edge.

    The table holds ranks of the edges by cost, one byte each, which is an eighth of the memory and the time.
    """

    def __init__(self, cost: Floats) -> None:
        size, _, count = cost.shape
        self._no_edge = np.eye(size, dtype=bool)[:, :, None]
        flat = np.where(self._no_edge, np.inf, cost).reshape(size * size, count)
        order = flat.argsort(axis=0)
        self._cost_of_rank = np.take_along_axis(flat, order, axis=0)
        rank = np.empty(flat.shape, dtype=np.uint8)
        np.put_along_axis(rank, order, np.arange(size * size, dtype=np.uint8)[:, None], axis=0)
        super().__init__(rank.reshape(cost.shape), combine=np.maximum, far=_NO_RANK)

    def slowest(self) -> Floats:
        """The slowest edge of the best tour from each GPU to each other, [m, m, K]; infinity where there is none."""
        rank = self._table[self._full]
        known = np.minimum(rank, len(self._cost_of_rank) - 1).reshape(self._cost_of_rank.shape)
        cost = np.take_along_axis(self._cost_of_rank, known.astype(np.intp), axis=0).reshape(rank.shape)
        return np.where(self._no_edge, np.inf, cost)

    def walk(self, first: Indices, last: Indices, instance: Indices, *, slowest: Floats) -> Indices:
        """Of the tours from first to last without an edge costing more than `slowest` [K], the first in order."""
        budget = (self._cost_of_rank <= slowest).sum(axis=0) - 1
        return self._walk(first, last, instance, budget[instance])


class ShortestTours(_Tours):
    """The tours of least total delay, over `delay` [m, m, K] in ps; FAR_PS where there is no edge."""

    def __init__(self, delay: Ints) -> None:
        closed = np.where(np.eye(delay.shape[0], dtype=bool)[:, :, None], FAR_PS, delay)
        super().__init__(closed, combine=np.add, far=int(FAR_PS))

    def total(self) -> Ints:
        """The delay of the best tour from each GPU to each other, [m, m, K] ps; FAR_PS where there is none."""
        total: Ints = self._table[self._full]
        return total

    def walk(self, first: Indices, last: Indices, instance: Indices) -> Indices:
        """Of the tours from first to last of least delay, the first in order."""
        return self._walk(first, last, instance, self.total()[first, last, instance])
