"""The best path through all GPUs of one site, for every first and last GPU, by Held and Karp's dynamic program.

For every set S of the site's GPUs, and x and w in S, the table holds the weight of the best path from x to w through
exactly the GPUs of S. For S = {x} the weight is 0; for a larger S it is the minimum over all y of weight(x, y) combined
with the best path from y to w through S - {x}. Bit i of S stands for GPU i. All arrays hold a batch of K instances
along the last axis.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]

FAR_PS = np.int64(1) << 58
"""The delay of a missing edge, in ps: larger than any other, while the sum of a dozen still fits in 64 bits."""

_NO_RANK = 255  # larger than the rank of any edge: a site of twelve GPUs has 132 edges


@dataclass(frozen=True)
class _Layer:
    """All sets of k GPUs: their `members` `[sets, k]` in ascending order and, for each member, the index in the layer
    below of the set without it, `rest` `[sets, k]`, and the other members, `others` `[sets, k, k-1]`."""

    members: Indices
    rest: Indices
    others: Indices


@cache
def _layers(size: int) -> tuple[list[_Layer], Indices, Indices]:
    """Return the layers of `size` GPUs for k = 1, 2 ..., and for each set its index in its layer and its size."""
    index, count = np.zeros(1 << size, dtype=np.intp), np.array([subset.bit_count() for subset in range(1 << size)])
    layers = []
    for k in range(1, size + 1):
        sets = np.flatnonzero(count == k)
        index[sets] = np.arange(sets.size)
        members = np.nonzero(sets[:, None] >> np.arange(size) & 1)[1].reshape(-1, k)
        others = np.stack([np.delete(members, at, axis=1) for at in range(k)], axis=1)
        layers.append(_Layer(members, index[sets[:, None] ^ (1 << members)], others))
    return layers, index, count


class _Paths:
    """The table over `weight` `[m, m, K]`; `combine` gives a path's weight from its edges', `far` is that of no path.

    The table has an array `[sets, k, k, K]` for each size k of S, in which x and w are indices among the members of S.
    `best` `[m, m, K]` is the weight of the best path through all GPUs from each GPU to each other.
    """

    def __init__(self, weight: Array, *, combine: np.ufunc, far: int) -> None:
        size, _, count = weight.shape
        self._weight, self._combine = weight, combine
        self._tables = [np.zeros((size, 1, 1, count), dtype=weight.dtype)]
        for k, layer in enumerate(_layers(size)[0][1:], start=2):
            onward = self._tables[-1][layer.rest]  # [sets, x, y, w, K]
            step = weight[layer.members[:, :, None], layer.others]  # [sets, x, y, K]
            least = combine(step[:, :, :, None], onward, out=onward).min(axis=2)
            table = np.full((len(layer.members), k, k, count), far, dtype=weight.dtype)
            # With two GPUs or more, w is not x: row x without its diagonal entry has the other members in order.
            table[:, ~np.eye(k, dtype=bool)] = np.minimum(least, far, out=least).reshape(-1, k * (k - 1), count)
            self._tables.append(table)
        self.best: Array = self._tables[-1][0]

    def _walk(self, first: Indices, last: Indices, instance: Indices, budget: Array) -> Indices:
        """Return the lexicographically first path from `first` to `last` within the budget: `[instances, m]`."""
        gpus, (_, index, count) = np.arange(len(self._weight)), _layers(len(self._weight))
        path = np.empty((first.size, gpus.size), dtype=np.intp)
        path[:, 0] = here = first
        left = np.full(first.size, (1 << gpus.size) - 1)  # the set of GPUs still to be visited
        for at in range(1, gpus.size):
            left = left ^ (1 << here)
            below = count[left[:, None] & ((1 << gpus) - 1)]  # the index of each GPU in the set `left`
            unvisited = left[:, None] >> gpus & 1 == 1
            step = self._weight[here, :, instance]
            end = np.take_along_axis(below, last[:, None], axis=1)
            onward = self._tables[gpus.size - at - 1][
                index[left, None], np.where(unvisited, below, 0), end, instance[:, None]
            ]
            within = unvisited & (self._combine(step, onward) <= budget[:, None])
            path[:, at] = here = np.argmax(within, axis=1)
            if self._combine is np.add:
                budget = budget - step[np.arange(first.size), here]
        return path


class FastestPaths(_Paths):
    """The paths that minimise the cost of their slowest edge, over `cost` `[m, m, K]`; infinity for a missing edge.

    The table stores an edge's position in the order of costs, one byte each, which takes an eighth of the memory and
    the time.
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
        """Return the slowest edge of the best path from each GPU to each other, `[m, m, K]`; infinity for no path.

        A site's only GPU has a path to itself without an edge, which costs nothing.
        """
        if len(self._no_edge) == 1:
            return np.zeros_like(self._cost_of_rank[None])
        rank = self.best
        known = np.minimum(rank, len(self._cost_of_rank) - 1).reshape(self._cost_of_rank.shape)
        cost = np.take_along_axis(self._cost_of_rank, known.astype(np.intp), axis=0).reshape(rank.shape)
        return np.where(self._no_edge, np.inf, cost)

    def walk(self, first: Indices, last: Indices, instance: Indices, *, slowest: Floats) -> Indices:
        """Return the lexicographically first path from `first` to `last` with no edge above `slowest` `[K]`."""
        budget = (self._cost_of_rank <= slowest).sum(axis=0) - 1
        return self._walk(first, last, instance, budget[instance])


class ShortestPaths(_Paths):
    """The paths of least total delay, over `delay` `[m, m, K]` in ps; FAR_PS for a missing edge and for no path."""

    def __init__(self, delay: Ints) -> None:
        closed = np.where(np.eye(delay.shape[0], dtype=bool)[:, :, None], FAR_PS, delay)
        super().__init__(closed, combine=np.add, far=int(FAR_PS))

    def walk(self, first: Indices, last: Indices, instance: Indices) -> Indices:
        """Return the lexicographically first path of least delay from `first` to `last`."""
        return self._walk(first, last, instance, self.best[first, last, instance])
