"""The compiled part of `search`; importing it imports numba, which takes longer than many commands run."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

Function = TypeVar("Function", bound=Callable[..., object])

_SEED = 88172645463325252
_MIN_GAIN = 1e-12  # relative to the total; a smaller gain is rounding error


def _entry(function: Function) -> Function:
    return njit(cache=True, nogil=True)(function)  # type: ignore[return-value]


def _inner(function: Function) -> Function:
    return njit(nogil=True)(function)  # type: ignore[return-value]


@_inner
def _total(ring: Indices, weight: Floats) -> float:
    total: float = weight[ring[-1], ring[0]]
    for at in range(ring.size - 1):
        total += weight[ring[at], ring[at + 1]]
    return total


@_inner
def _exchange(ring: Indices, i: int, j: int, k: int) -> None:
    """Exchange the adjacent segments [i, j) and [j, k) of the ring."""
    first = ring[i:j].copy()
    for at in range(k - j):
        ring[i + at] = ring[j + at]
    for at in range(j - i):
        ring[i + k - j + at] = first[at]


@_inner
def _descend(ring: Indices, ends: Indices, weight: Floats, first: int, last: int) -> None:
    """Exchange adjacent segments of a site's GPUs, in the sites first .. last, while that reduces the total."""
    n, least = ring.size, _MIN_GAIN * _total(ring, weight)
    gained = True
    while gained:
        gained = False
        for site in range(first, last + 1):
            low, high = ends[site], ends[site + 1]
            for i in range(low, high - 1):
                for j in range(i + 1, high):
                    before = ring[i - 1] if i else ring[n - 1]
                    a, a_end, b = ring[i], ring[j - 1], ring[j]
                    fixed = weight[before, a] + weight[a_end, b] - weight[before, b]
                    for k in range(j + 1, high + 1):
                        if k - i == n:  # in a single site: exchanging both parts of a ring only rotates it
                            break
                        b_end, after = ring[k - 1], ring[k] if k < n else ring[0]
                        gain = fixed + weight[b_end, after] - weight[b_end, a] - weight[a_end, after]
                        if gain > least:
                            _exchange(ring, i, j, k)
                            gained = True
                            break


@_entry
def searched(rings: Indices, ends: Indices, weight: Floats, goal: Floats, kicks: tuple[int, int]) -> Floats:
    """Improve rings `[K, n]` in place until their totals over `weight` `[K, n, n]` are at most `goal` `[K]`; return the
    totals.

    The GPUs of site s stay at the indices `ends[s]` to `ends[s + 1]` of the ring. After the first descent come
    `kicks[0]` more, each from the best ring so far, perturbed by two random exchanges in one site or, at every
    `kicks[1]`-th descent, by one random exchange in each site. The result of an instance does not depend on the others.
    """
    totals = np.empty(len(rings))
    sites = ends.size - 1
    for index in range(len(rings)):
        best, edges = rings[index], weight[index]
        total, state = _total(best, edges), np.uint64(_SEED)
        for kick in range(kicks[0] + 1):
            if total <= goal[index]:
                break
            ring, first, last = best.copy(), 0, sites - 1
            if kick % kicks[1]:  # otherwise in all sites together, because their end points depend on each other
                first = last = (kick - kick // kicks[1] - 1) % sites
            exchanges = 2 if first == last else sites
            if kick == 0:
                exchanges = 0
            for turn in range(exchanges):
                site = first if first == last else turn
                cuts = np.empty(3, dtype=np.intp)
                state ^= state << np.uint64(13)  # xorshift64 (Marsaglia, 2003)
                state ^= state >> np.uint64(7)
                state ^= state << np.uint64(17)
                drawn = np.intp(state >> np.uint64(20))
                positions = ends[site + 1] - ends[site] + 1
                for cut in range(3):
                    cuts[cut], drawn = ends[site] + drawn % positions, drawn // positions
                cuts.sort()
                _exchange(ring, cuts[0], cuts[1], cuts[2])
            _descend(ring, ends, edges, first, last)
            new_total = _total(ring, edges)
            if new_total <= total:
                total = new_total
                best[:] = ring
        totals[index] = total
    return totals
