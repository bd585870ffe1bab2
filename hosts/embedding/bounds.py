"""Values of an objective that no ring can be below, by the assignment bound on totals.

In a ring every GPU is left once and entered once, which an assignment is, too, and the assignment of least total takes
n^3 steps (`scipy.optimize.linear_sum_assignment`). Of the edges between sites a ring has one for each site. That is
relaxed after Lagrange: for any toll mu on every edge between sites no ring of S sites has less than the least
assignment with tolls, minus S mu (Held and Karp, "The traveling-salesman problem and minimum spanning trees", 1970).
That is concave in mu; its slope is how many such edges the assignment has, minus S.

Up to six orders of the sites are bounded one by one, edges of no other order being missing. More are bounded together.
An assignment's dual leaves every edge a reduced cost of at least 0, and a ring has the assignment's total and those of
its edges on top: at least, in the order of the sites for which this is the least, the least from each site to the next.
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
_ONE_BY_ONE = 6  # orders of the sites
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
    cycles = np.array([(0, *rest) for rest in permutations(range(1, len(gpus_per_site)))])
    if len(cycles) <= _ONE_BY_ONE:
        return min(_through(weight, sites, cycle[None]) for cycle in cycles)
    return _through(weight, sites, cycles)


def _through(weight: Floats, sites: npt.NDArray[Any], cycles: npt.NDArray[Any]) -> float:
    """The bound of rings that visit the sites in one of these orders, [orders, S]: of one, or of all that there are."""
    from scipy.optimize import linear_sum_assignment  # takes its time to import

    n, count = len(weight), cycles.shape[1]
    crosses = sites[:, None] != sites
    exists = np.isfinite(weight) & ~np.eye(n, dtype=bool)
    if len(cycles) == 1:
        order = np.argsort(cycles[0])[sites]
        exists &= ~crosses | ((order[:, None] + 1) % count == order)
    if not exists.any():
        return math.inf
    most = n * max(float(weight[exists].max()), 1e-300)  # of a ring that exists
    base = np.where(exists, weight, _PENALTY * most)
    found, low, high = -math.inf, -_PENALTY * most, _PENALTY * most
    toll = 0.0
    for _ in range(_TOLLS):
        tolled = base + toll * crosses
        rows, columns = linear_sum_assignment(tolled)
        total = float(tolled[rows, columns].sum()) - toll * count
        if len(cycles) > 1:
            starts = np.searchsorted(sites, np.arange(count))
            least = np.minimum.reduceat(np.minimum.reduceat(_reduced(tolled, columns), starts, axis=0), starts, axis=1)
            total += float(least[cycles, np.roll(cycles, -1, axis=1)].sum(axis=1).min())
        found = max(found, total)
        if found > most:
            return math.inf
        slope = int(crosses[rows, columns].sum()) - count
        if slope == 0:
            break
        low, high = (toll, high) if slope > 0 else (low, toll)
        toll = _between(low, high, scale=most / n)
    return found


def _reduced(cost: Floats, columns: npt.NDArray[Any]) -> Floats:
    """The costs [n, n] reduced by a dual of the assignment of least total, which gives each row its column: none is
    below 0, and those of the assignment are 0.

    The dual of the columns is a distance in the residual graph, by Bellman and Ford.
    """
    over = cost - cost[np.arange(len(cost)), columns][:, None]  # to have a column in the place of a row's own
    dual = np.zeros(len(cost))
    for _ in range(len(cost)):
        nearer = np.minimum(dual, (dual[columns][:, None] + over).min(axis=0))
        if (nearer == dual).all():
            break
        dual = nearer
    found: Floats = over + dual[columns][:, None] - dual
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
