"""Chooses placements, the assignment of ranks to the places of a schedule, for algorithms that are not rings.

The search is a steepest descent: it makes the swap of two places that shortens the collective most, until no swap
shortens it. It starts from several fixed placements and returns the best result. The time of a placement is that of the
timing model in which flows do not share links, evaluated for many placements of many instances at once.

Compared with all placements of 6 GPUs (500 instances each of random matrices, and of two sites with WAN delays of 10 us
to 10 ms and rates of 10 to 200 Gbit/s), it finds the best one in all hierarchical instances, and in at least 99.8 % of
tree and halving-doubling, 98 % of chain and 93 % of double-tree instances; on average its times exceed the best by at
most 0.9 % (double-tree) and 0.15 % (others). With 8 GPUs they exceed the best of 200 starts by at most 4.3 %
(double-tree), 2.2 % (tree) and 0.6 % (others) if WAN delays differ that much, and by 0.5 % on random matrices.
"""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Ranks = npt.NDArray[np.int16]

STARTS = 16
"""Number of placements from which the search starts: the given one, and shuffles of it."""

_SEED = 1
_MISSING_S = 1e9  # added to the time for each missing edge; longer than any collective
_BATCH_ELEMENTS = 1 << 18  # of a matrix or of the flows' times, so that they about fit in the L2 cache
_MAX_BATCH = 1024  # instances per batch

_Matrices = tuple[Floats, Floats, npt.NDArray[np.bool_] | None]  # delay, time per slot, edge is missing: [n, n, K]

Completion = Callable[[Floats, Floats], Floats]
"""A function from the delays and the times per slot of a schedule's flows, `[flows, K]` seconds each, to the
completion times `[K]`."""


def best_placements(
    completion_s: Completion,
    flows: Sequence[tuple[int, int]],
    *,
    delay_s: Floats,
    slot_s: Floats,
    start: Sequence[int],
    sites: Sequence[int] | None = None,
    root_stays: bool = False,
    groups: Sequence[Sequence[int]] | None = None,
    starts: int = STARTS,
) -> Ranks:
    """Return, for each instance of a batch, the fastest placement that the search finds: `[K, n]` ranks.

    `flows` has the places (from, to) of each flow, which are equal for a stream. `delay_s` and `slot_s`, `[K, n, n]`,
    are the delay and the time per slot from rank to rank in seconds; infinity is a missing edge, and the diagonals are
    ignored. `start` has the initial rank at each place. With `sites`, the number of places of each site in order, ranks
    stay within the site of their place; with `root_stays` place 0 keeps its rank. `groups` replaces both: the groups of
    places that may exchange their ranks; all other places keep theirs.

    A returned placement is a local optimum: no swap of two places makes it faster. Of equally good swaps the first in
    the order of places is made, and of equally good results that of the earliest start is returned. The result of an
    instance does not depend on the rest of the batch. Raises ValueError for arrays of another shape, for a start that
    is not a permutation, for sites that do not cover all places, and if every placement found uses a missing edge.
    """
    n = len(start)
    if delay_s.shape != slot_s.shape or delay_s.shape[1:] != (n, n):
        raise ValueError(f"delays {delay_s.shape} and times for a slot {slot_s.shape}: both must be [K, {n}, {n}]")
    if sorted(start) != list(range(n)):
        raise ValueError(f"the start {list(start)}: it must have each of the ranks 0 to {n - 1} once")
    if sites is not None and sum(sites) != n:
        raise ValueError(f"sites of {list(sites)} places: they must be {n} together")
    if groups is None:
        groups = _groups(n, sites, root_stays=root_stays)
    placements = np.empty((len(delay_s), n), dtype=np.int16)
    begins_from = _starts(np.array(start), groups, starts)
    step = min(max(1, _BATCH_ELEMENTS // (n * n)), _MAX_BATCH)
    for begin in range(0, len(delay_s), step):
        batch = slice(begin, begin + step)
        placements[batch] = _Search(completion_s, flows, delay_s[batch], slot_s[batch], groups).best(begins_from)
    return placements


def _groups(n: int, sites: Sequence[int] | None, *, root_stays: bool) -> list[list[int]]:
    """Return the groups of places that may swap their ranks."""
    ends = np.cumsum(sites or [n]).tolist()
    return [
        [place for place in range(begin, end) if not (root_stays and place == 0)]
        for begin, end in zip([0, *ends], ends, strict=False)
    ]


def _starts(start: Indices, groups: Sequence[Sequence[int]], count: int) -> list[Indices]:
    """Return the placements from which the search starts."""
    random, placements = np.random.default_rng(_SEED), [start]
    for _ in range(count - 1):
        shuffled = start.copy()
        for group in groups:
            shuffled[list(group)] = random.permutation(shuffled[list(group)])
        placements.append(shuffled)
    return placements


class _Search:
    """The search for one batch."""

    def __init__(
        self,
        completion_s: Completion,
        flows: Sequence[tuple[int, int]],
        delay_s: Floats,
        slot_s: Floats,
        groups: Sequence[Sequence[int]],
    ) -> None:
        self._completion_s = completion_s
        self._src, self._dst = np.array(flows, dtype=np.intp).reshape(-1, 2).T
        count, n, _ = delay_s.shape
        places = np.arange(n)
        # With the instances on the last axis, a swap moves whole rows.
        self._delay_s, self._slot_s = (np.ascontiguousarray(np.moveaxis(matrix, 0, -1)) for matrix in (delay_s, slot_s))
        missing = np.isinf(self._delay_s) | np.isinf(self._slot_s)
        missing[places, places] = False
        self._missing = missing if missing.any() else None
        self._delay_s[missing] = self._slot_s[missing] = 0.0
        # The diagonal is for streams: no delay, and their amounts are in seconds.
        self._delay_s[places, places], self._slot_s[places, places] = 0.0, 1.0
        pairs = [pair for group in groups for pair in combinations(group, 2)]
        self._pairs = np.array(pairs, dtype=np.intp).reshape(-1, 2)
        self._swaps = np.tile(places, (len(self._pairs), 1))  # the places after each swap: [swaps, n]
        np.put_along_axis(self._swaps, self._pairs, self._pairs[:, ::-1], axis=1)
        self._count, self._n = count, n

    def best(self, starts: Sequence[Indices]) -> npt.NDArray[np.intp]:
        """Return the best placements over these starts, `[K, n]`."""
        least_s = np.full(self._count, np.inf)
        best = np.empty((self._count, self._n), dtype=np.intp)
        for start in starts:
            optima, optima_s = self._descend(start)
            better = optima_s < least_s
            best[better], least_s[better] = optima[better], optima_s[better]
        if (least_s >= _MISSING_S).any():
            where = int(np.argmax(least_s >= _MISSING_S))
            raise ValueError(f"instance {where}: every placement found has a flow over a missing edge")
        return best

    def _descend(self, start: Indices) -> tuple[Indices, Floats]:
        """Return the local optimum of each instance from `start`, `[K, n]`, and its time, `[K]`."""
        ranks = np.tile(start, (self._count, 1))
        active = np.arange(self._count)
        matrices = self._placed(ranks, active)
        least_s = self._times(matrices, np.arange(self._n)[None])[0]
        optima_s = least_s.copy()
        while active.size and len(self._swaps):
            chosen = np.full(active.size, -1)
            step = max(1, _BATCH_ELEMENTS // max(1, self._src.size * active.size))
            for begin in range(0, len(self._swaps), step):
                times_s = self._times(matrices, self._swaps[begin : begin + step])
                first = times_s.argmin(axis=0)
                time_s = times_s[first, np.arange(active.size)]
                better = time_s < least_s
                chosen[better], least_s[better] = begin + first[better], time_s[better]
            improved = chosen >= 0
            active, least_s, pairs = active[improved], least_s[improved], self._pairs[chosen[improved]]
            rows, optima_s[active] = active[:, None], least_s
            ranks[rows, pairs] = ranks[rows, pairs[:, ::-1]]
            matrices = self._placed(ranks[active], active)
        return ranks, optima_s

    def _placed(self, ranks: Indices, instances: Indices) -> _Matrices:
        """Return the matrices of these instances from place to place, with `ranks` at the places."""
        here = ranks.T[:, None], ranks.T[None, :], instances
        return self._delay_s[here], self._slot_s[here], None if self._missing is None else self._missing[here]

    def _times(self, matrices: _Matrices, places: Indices) -> Floats:
        """Return the completion times `[swaps, K]` after moving ranks: place p gets the rank of `places[swap, p]`."""
        delay_s, slot_s, missing = matrices
        src, dst = places.T[self._src], places.T[self._dst]
        shape = len(self._src), -1
        time_s = self._completion_s(delay_s[src, dst].reshape(shape), slot_s[src, dst].reshape(shape))
        times_s = time_s.reshape(len(places), -1)
        return times_s if missing is None else times_s + _MISSING_S * missing[src, dst].sum(axis=0)
