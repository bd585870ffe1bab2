"""Tours of one site: the best path through all of its GPUs, for every pair of a first and a last one.

Held and Karp's dynamic programme over subsets, for a batch of instances at a time. Its entry [S, x, w] tells the best
path that begins at x, visits exactly the GPUs of the set S and ends at w; bit i of S stands for GPU i.
"""

from functools import lru_cache
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


class _Layer:
    """All sets of k GPUs out of `size`: [sets, k] `members`, and where each set less one member is in the layer below.

    `place[S]` is the place of set S in its layer.
    """

    def __init__(self, size: int, k: int, place: Indices) -> None:
        sets = [subset for subset in range(1 << size) if subset.bit_count() == k]
        place[sets] = np.arange(len(sets))
        self.members = np.array([[gpu for gpu in range(size) if subset >> gpu & 1] for subset in sets])
        self.rest = place[np.array(sets)[:, None] ^ (1 << self.members)]
        self.others = np.array([[np.delete(row, at) for at in range(k)] for row in self.members])  # [sets, k, k-1]


class _Subsets:
    """The sets of `size` GPUs by how many they hold, each in a place of its own; `sizes[S]` is how many S holds."""

    def __init__(self, size: int) -> None:
        self.place = np.zeros(1 << size, dtype=np.intp)
        self.sizes = np.array([subset.bit_count() for subset in range(1 << size)])
        self.layers = [_Layer(size, k, self.place) for k in range(1, size + 1)]


_subsets = lru_cache(maxsize=None)(_Subsets)


class _Tours:
    """The table over `weight` [m, m, K], a path's weight being the `combine` of its edges' and `far` that of none.

    It is kept and filled by the size of S: for k GPUs an array [sets, k, k, K], x and w counted among the members.
    """

    def __init__(self, weight: Array, *, combine: np.ufunc, far: int) -> None:
        size, _, count = weight.shape
        self._weight, self._combine, self._subsets = weight, combine, _subsets(size)
        self._tables = [np.zeros((size, 1, 1, count), dtype=weight.dtype)]
        for k, layer in enumerate(self._subsets.layers[1:], start=2):
            onward = self._tables[-1][layer.rest]  # [sets, first, second, last, K]
            step = weight[layer.members[:, :, None], layer.others]  # [sets, first, second, K]
            least = combine(step[:, :, :, None], onward, out=onward).min(axis=2)
            table = np.full((len(layer.members), k, k, count), far, dtype=weight.dtype)
            # Two GPUs or more: no path ends where it began, and off the diagonal the others are in order.
            table[:, ~np.eye(k, dtype=bool)] = np.minimum(least, far, out=least).reshape(-1, k * (k - 1), count)
            self._tables.append(table)

    def _best(self) -> Array:
        """The weight of the best path through all GPUs from each to each other, [m, m, K]."""
        best: Array = self._tables[-1][0]
        return best

    def _walk(self, first: Indices, last: Indices, instance: Indices, budget: Array) -> Indices:
        """The path from first to last within the budget that comes first in order of its GPUs: [instances, m]."""
        gpus, sizes = np.arange(len(self._weight)), self._subsets.sizes
        path = np.empty((first.size, gpus.size), dtype=np.intp)
        path[:, 0] = here = first
        left = np.full(first.size, (1 << gpus.size) - 1)
        for step_taken in range(1, gpus.size):
            left = left ^ (1 << here)
            table, place = self._tables[gpus.size - step_taken - 1], self._subsets.place[left]
            visits = left[:, None] >> gpus & 1 == 1
            second = np.where(visits, sizes[left[:, None] & ((1 << gpus) - 1)], 0)
            end = sizes[left & ((1 << last) - 1)]
            step = self._weight[here, :, instance]
            whole = self._combine(step, table[place[:, None], second, end[:, None], instance[:, None]])
            path[:, step_taken] = here = np.argmax(visits & (whole <= budget[:, None]), axis=1)
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
        rank = self._best()
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
        return self._best()

    def walk(self, first: Indices, last: Indices, instance: Indices) -> Indices:
        """Of the tours from first to last of least delay, the first in order."""
        return self._walk(first, last, instance, self.total()[first, last, instance])
