"""The fastest of all rings for an AllGather, to compare with rings chosen by an objective of `hosts.embedding.ring`."""

from dataclasses import dataclass
from itertools import permutations, product
from math import factorial, prod

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import CompiledSchedule
from hosts.collectives.algorithms import ring_allgather
from hosts.embedding.bounds import lower_bounds
from hosts.embedding.ring import best_rings

Floats = npt.NDArray[np.float64]

MAX_RINGS = 20_000
"""The largest number of rings among which the fastest is found by comparing all: two sites of five GPUs have 14,400."""

_RINGS_AT_A_TIME = 1 << 17


@dataclass(frozen=True, eq=False)
class FastestRings:
    """For K instances: the fastest known ring [K, n], its time, and a lower bound on any ring's time, [K] s each."""

    rings: npt.NDArray[np.int16]
    completion_s: Floats
    bound_s: Floats


def fastest_rings(alpha_s: Floats, beta_s: Floats, *, gpus_per_site: tuple[int, ...]) -> FastestRings:
    """Return the fastest rings that visit every site once, by the timing model for edges that share no link.

    `alpha_s` and `beta_s`, [K, n, n], are the delay of every edge and its transmission time for a block; an edge with
    an infinite time does not exist. Up to MAX_RINGS rings are all compared, and the bound equals the completion time.
    With more rings the result is the ring of least cycle time, and the bound is the larger of two: each edge sends
    n - 1 blocks one after the other; and n - 1 cycle times, because each block passes n - 1 of the n edges, and one
    block passes all but the cheapest edge.
    """
    count, n = len(alpha_s), sum(gpus_per_site)
    cost_s, model = alpha_s + beta_s, CompiledSchedule(ring_allgather(n).transfers)
    if factorial(len(gpus_per_site) - 1) * prod(map(factorial, gpus_per_site)) <= MAX_RINGS:
        candidates = _all_rings(gpus_per_site)
        edges = slice(None), candidates, np.roll(candidates, -1, axis=1)
        rings, best_s = np.zeros((count, n), dtype=np.int16), np.full(count, np.inf)
        step = max(1, _RINGS_AT_A_TIME // len(candidates))
        for start in range(0, count, step):
            batch = slice(start, start + step)
            parts = (part[batch][edges].reshape(-1, n).T for part in (alpha_s, beta_s))
            times_s = model.completion_s(*parts).reshape(-1, len(candidates))
            rings[batch], best_s[batch] = candidates[times_s.argmin(axis=1)], times_s.min(axis=1)
        return FastestRings(rings, best_s, best_s)
    rings = best_rings(cost_s, alpha_s, objective="cycle time", gpus_per_site=gpus_per_site)
    used = np.arange(count)[:, None], rings, np.roll(rings, -1, axis=1)
    completion_s = model.completion_s(alpha_s[used].T, beta_s[used].T)
    of_edges_s = lower_bounds(
        alpha_s + (n - 1) * beta_s, alpha_s, objective="slowest edge", gpus_per_site=gpus_per_site
    )
    of_cycle_s = (n - 1) * lower_bounds(cost_s, alpha_s, objective="cycle time", gpus_per_site=gpus_per_site)
    return FastestRings(rings, completion_s, np.minimum(np.maximum(of_edges_s, of_cycle_s), completion_s))


def _all_rings(gpus_per_site: tuple[int, ...]) -> npt.NDArray[np.int16]:
    """Return every ring that visits every site once, [rings, n], starting in site 0."""
    first, *others = np.split(np.arange(sum(gpus_per_site)), np.cumsum(gpus_per_site)[:-1])
    orders = [
        np.concatenate(legs)
        for cycle in permutations(others)
        for legs in product(*(list(permutations(site.tolist())) for site in (first, *cycle)))
    ]
    return np.array(orders, dtype=np.int16)
