"""Lower bounds on the objectives of rings, from assignment problems with a Lagrangian relaxation.

A ring leaves and enters every GPU exactly once, so it is an assignment. The minimum-cost assignment, a lower bound on
the total cost of a ring, takes n^3 steps (`scipy.optimize.linear_sum_assignment`). In addition, a ring over S sites has
exactly S edges between sites, or none if there is one site. This constraint is relaxed: for any toll mu on every edge
between sites, the cost of the minimum assignment with tolls, minus S mu, is a lower bound (Held and Karp, "The
traveling-salesman problem and minimum spanning trees", 1970). The bound is concave in mu; its slope is the number of
such edges in the assignment, minus S.

Up to six orders of the sites are bounded one by one, each without the edges between sites that are not consecutive in
it. More orders are bounded together: the dual of the assignment gives every edge a reduced cost of at least 0, and the
total of a ring is that of the assignment plus the reduced costs of the ring's edges. The bound adds the smallest
reduced costs from each site to the next, in the order of the sites for which their sum is smallest.
"""

import math
from bisect import bisect_left
from functools import cache, partial
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TOLLS = 40  # maximum number of tolls tried; the search ends early when the assignment has S crossings
_MAX_SEPARATE_ORDERS = 6  # up to this many orders of the sites are bounded one by one
_PENALTY = 1e3  # cost of a missing edge, in multiples of the cost of a ring of the largest edges


def lower_bounds(
    cost_s: Floats, delay_s: Floats, *, gpus_per_site: tuple[int, ...], objective: str, messages: float = 1.0
) -> Floats:
    """Return a lower bound on the objective of any ring, `[K]` seconds, or infinity; arguments as `ring.best_rings`.

    Let G(b) be the bound on the total cost of rings whose edges take at most b (the transmission time for the cycle
    time, the whole cost for the slowest edge), infinite if it shows that there is no such ring, and let b' be the
    largest edge below b. A ring's slowest edge is at least b if G(b') is infinite. The cycle time of a ring with an
    edge of b or more is at least m b, and that of any other ring at least G(b') / n.
    """
    bound = partial(_least_value, gpus_per_site=gpus_per_site, objective=objective, messages=messages)
    return np.array([bound(*instance) for instance in zip(cost_s, delay_s, strict=True)])


def _least_value(
    cost_s: Floats, delay_s: Floats, *, gpus_per_site: tuple[int, ...], objective: str, messages: float
) -> float:
    n = len(cost_s)
    if objective == "sum":
        return least_total(cost_s, gpus_per_site=gpus_per_site)
    slot_s = cost_s if objective == "slowest edge" else np.maximum(cost_s - delay_s, 0)
    slots_s = np.unique(slot_s[np.isfinite(cost_s) & ~np.eye(n, dtype=bool)])

    @cache
    def total_s(at: int) -> float:
        """Return the bound on the total of rings without edges longer than `slots_s[at]`."""
        return least_total(np.where(slot_s <= slots_s[at], cost_s, np.inf), gpus_per_site=gpus_per_site)

    def within(at: int) -> bool:
        """Return whether edges up to `slots_s[at]` may suffice for a ring or, for the cycle time, the best ring."""
        most_s = n * messages * slots_s[at] if objective == "cycle time" else math.inf
        return total_s(at) <= most_s and total_s(at) < math.inf

    at = bisect_left(range(slots_s.size), True, key=within)
    if objective == "slowest edge":
        return float(slots_s[at]) if at < slots_s.size else math.inf
    longer_s = messages * float(slots_s[at]) if at < slots_s.size else math.inf
    return min(longer_s, total_s(at - 1) / n if at else math.inf)


def least_total(weight: Floats, *, gpus_per_site: tuple[int, ...]) -> float:
    """Return a lower bound on the total of any ring over `weight` `[n, n]`, where infinity is a missing edge; infinity
    if the bound shows that there is no ring."""
    sites = np.repeat(np.arange(len(gpus_per_site)), gpus_per_site)
    cycles = np.array([(0, *rest) for rest in permutations(range(1, len(gpus_per_site)))])
    if len(cycles) <= _MAX_SEPARATE_ORDERS:
        return min(_bound_for_orders(weight, sites, cycle[None]) for cycle in cycles)
    return _bound_for_orders(weight, sites, cycles)


def _bound_for_orders(weight: Floats, sites: npt.NDArray[Any], cycles: npt.NDArray[Any]) -> float:
    """Return the bound for rings that visit the sites in one of `cycles` `[orders, S]`: one order, or all of them."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    n, count = len(weight), cycles.shape[1]
    needed = count if count > 1 else 0  # edges between sites
    crosses = sites[:, None] != sites
    exists = np.isfinite(weight) & ~np.eye(n, dtype=bool)
    if len(cycles) == 1:
        order = np.argsort(cycles[0])[sites]
        exists &= ~crosses | ((order[:, None] + 1) % count == order)
    if not exists.any():
        return math.inf
    limit = n * max(float(weight[exists].max()), 1e-300)  # no ring without missing edges has a larger total
    base = np.where(exists, weight, _PENALTY * limit)
    bound, low, high = -math.inf, -_PENALTY * limit, _PENALTY * limit
    toll = 0.0
    for _ in range(_TOLLS):
        tolled = base + toll * crosses
        rows, columns = linear_sum_assignment(tolled)
        total = float(tolled[rows, columns].sum()) - toll * needed
        if len(cycles) > 1:
            starts = np.searchsorted(sites, np.arange(count))
            least = np.minimum.reduceat(np.minimum.reduceat(_reduced(tolled, columns), starts, axis=0), starts, axis=1)
            total += float(least[cycles, np.roll(cycles, -1, axis=1)].sum(axis=1).min())
        bound = max(bound, total)
        if bound > limit:
            return math.inf
        slope = int(crosses[rows, columns].sum()) - needed
        if slope == 0:
            break
        low, high = (toll, high) if slope > 0 else (low, toll)
        toll = _next_toll(low, high, scale=limit / n)
    return bound


def _reduced(cost: Floats, columns: npt.NDArray[Any]) -> Floats:
    """Return the costs `[n, n]` reduced by a dual of the minimum assignment, in which row i has column `columns[i]`.

    No reduced cost is below 0, and those of the assignment are 0. The dual of the columns is a distance in the residual
    graph, computed by Bellman and Ford's algorithm.
    """
    excess = cost - cost[np.arange(len(cost)), columns][:, None]  # cost of giving a row another column than its own
    dual = np.zeros(len(cost))
    for _ in range(len(cost)):
        improved = np.minimum(dual, (dual[columns][:, None] + excess).min(axis=0))
        if (improved == dual).all():
            break
        dual = improved
    reduced: Floats = excess + dual[columns][:, None] - dual
    return reduced


def _next_toll(low: float, high: float, *, scale: float) -> float:
    """Return a toll between two others: 0 first, then growing from about the size of an edge, and then the midpoint."""
    if low < 0 < high:
        return 0.0
    if high >= 1e3 * scale and low < scale:
        return max(scale / 4, 2 * low)
    if low <= -1e3 * scale and high > -scale:
        return min(-scale / 4, 2 * high)
    return (low + high) / 2
