"""Values of an objective that no ring can be below, by the assignment bound on totals.

In a ring every GPU is left once and entered once, which an assignment is, too, and the assignment of least total takes
n^3 steps (`scipy.optimize.linear_sum_assignment`). Of the edges between sites a ring has one for each site. That is
relaxed after Lagrange: for any toll mu on every edge between sites no ring of S sites has less than the least
assignment with tolls, minus S mu (Held and Karp, "The traveling-salesman problem and minimum spanning trees", 1970).
That is concave in mu; its slope is how many such edges the assignment has, minus S.
"""

import math
from bisect import bisect_left
from functools import cache, partial
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TOLLS = 40  # bisections, unless a toll is found that makes the number of crossings right
_PENALTY = 1e3  # of a missing edge, in rings of the largest edges


def least_values(
    cost_s: Floats, delay_s: Floats, *, gpus_per_site: tuple[int, ...], objective: str, messages: float = 1.0
) -> Floats:
    """A value of an objective that no ring is below, [K] seconds, or infinity; arguments as for `ring.best_rings`.

    For edges that take at most b, either to transmit or in all, let G(b) be the bound on the total cost, infinite
    where it shows that there is no ring, and b' the largest edge below b. A ring's slowest edge is at least b if G(b')
    is infinite. The cycle time of a ring with an edge of b or more is at least m b, and that of any other G(b') / n.
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
        """The bound on the totals of rings of edges up to this one."""
        return least_total(np.where(slot_s <= slots_s[at], cost_s, np.inf), gpus_per_site=gpus_per_site)

    def within(at: int) -> bool:
        """Whether the edges up to this one may be enough."""
        most_s = n * messages * slots_s[at] if objective == "cycle time" else math.inf
        return total_s(at) <= most_s and total_s(at) < math.inf

    at = bisect_left(range(slots_s.size), True, key=within)
    if objective == "slowest edge":
        return float(slots_s[at]) if at < slots_s.size else math.inf
    longer_s = messages * float(slots_s[at]) if at < slots_s.size else math.inf
    return min(longer_s, total_s(at - 1) / n if at else math.inf)


def least_total(weight: Floats, *, gpus_per_site: tuple[int, ...]) -> float:
    """A total that no ring's is below over `weight` [n, n], infinity for a missing edge; infinity where it finds that
    there is no ring."""
    sites = np.repeat(np.arange(len(gpus_per_site)), gpus_per_site)
    cycles = [(0, *rest) for rest in permutations(range(1, len(gpus_per_site)))]
    return min(_through(weight, sites, cycle) for cycle in cycles)


def _through(weight: Floats, sites: npt.NDArray[Any], cycle: tuple[int, ...]) -> float:
    """The bound of rings that visit the sites in this order."""
    from scipy.optimize import linear_sum_assignment  # takes its time to import

    n, count = len(weight), len(cycle)
    order = np.argsort(cycle)[sites]
    crosses = order[:, None] != order
    exists = np.isfinite(weight) & (~crosses | ((order[:, None] + 1) % count == order)) & ~np.eye(n, dtype=bool)
    if not exists.any():
        return math.inf
    most = n * max(float(weight[exists].max()), 1e-300)  # of a ring that exists
    base = np.where(exists, weight, _PENALTY * most)
    found, low, high = -math.inf, -_PENALTY * most, _PENALTY * most
    toll = 0.0
    for _ in range(_TOLLS):
        tolled = base + toll * crosses
        rows, columns = linear_sum_assignment(tolled)
        found = max(found, float(tolled[rows, columns].sum()) - toll * count)
        if found > most:
            return math.inf
        slope = int(crosses[rows, columns].sum()) - count
        if slope == 0:
            break
        low, high = (toll, high) if slope > 0 else (low, toll)
        toll = _between(low, high, scale=most / n)
    return found


def _between(low: float, high: float, *, scale: float) -> float:
    """A toll between these: from about the size of an edge outwards, then halfway."""
    if low < 0 < high:
        return 0.0
    if high >= 1e3 * scale and low < scale:
        return max(scale / 4, 2 * low)
    if low <= -1e3 * scale and high > -scale:
        return min(-scale / 4, 2 * high)
    return (low + high) / 2
