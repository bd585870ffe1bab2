"""Traffic engineering: what each demand over the WAN may send through each of its tunnels.

A demand is all traffic of one priority from a site to another, and its tunnels are the candidate paths between the two.
Priorities are strict: what a later one gets never takes anything from an earlier one. Within a priority rates are
max-min fair, and a demand may be split over its tunnels in any way, also in another way as later ones are served (as in
SWAN: Hong et al., "Achieving High Utilization with Software-Driven WAN", SIGCOMM 2013; B4: Jain et al., same place).

That is progressive filling by linear programmes: the most that all demands that still grow can have alike; those that
have all they want stop there, or else those that no solution gives more, as their dual values are positive. The last
programme has, of all splits with these rates, the one with the least delay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

_POSITIVE = 1e-7  # of a dual value: those of a programme are 1 together
_TOLERANCE = 1e-10
_SLACK = 1e-9  # by which a rate that is fixed may be missed, of the largest capacity


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What traffic from site `src` to site `dst` wants at most, in bit/s; the lowest `priority` is served first.

    `tunnels` are the links of each way that it may take, by index.
    """

    src: int
    dst: int
    priority: int
    tunnels: tuple[tuple[int, ...], ...]
    wanted_bps: float = np.inf


def allocate(
    demands: Sequence[Demand], capacity_bps: Floats, delays_s: Floats | None = None
) -> tuple[tuple[float, ...], ...]:
    """The rate of each tunnel of each demand, bit/s: strict by priority, max-min fair within one, of least delay.

    `capacity_bps` and `delays_s`, [links], are those of the links that tunnels pass; a capacity of 0 is a link that is
    down. No link carries more than its capacity. Raises ValueError for a capacity that is negative or not finite, a
    wanted rate that is negative or no number, and a demand that wants infinitely much over a tunnel without links.
    """
    _check(demands, capacity_bps)
    programme = _Programme(demands, capacity_bps)
    rate = np.zeros(len(demands))
    grows = np.array([bool(programme.is_up[programme.of_demand == d].any()) for d in range(len(demands))], dtype=bool)
    wanted = np.array([one.wanted_bps for one in demands]) / programme.unit_bps
    for priority in sorted({one.priority for one in demands}):
        of_priority = np.array([one.priority == priority for one in demands])
        while (growing := np.flatnonzero(of_priority & grows)).size:
            level, duals = programme.most_alike(rate, growing)
            stops = growing[wanted[growing] <= level * (1 + 1e-12)]
            rate[growing] = np.minimum(wanted[growing], level)
            if not stops.size:
                stops = growing[duals > _POSITIVE]
            grows[stops] = False
    found = programme.split(rate, np.zeros(len(capacity_bps)) if delays_s is None else delays_s)
    return tuple(tuple(found[programme.of_demand == d].tolist()) for d in range(len(demands)))


def _check(demands: Sequence[Demand], capacity_bps: Floats) -> None:
    if not (right := (capacity_bps >= 0) & (capacity_bps < np.inf)).all():
        raise ValueError(f"a capacity of {capacity_bps[~right][0]:g} bit/s: allowed is 0 or more")
    for one in demands:
        if not one.wanted_bps >= 0:
            raise ValueError(f"a demand of {one.wanted_bps:g} bit/s: allowed is 0 or more")
        if np.isinf(one.wanted_bps) and not all(one.tunnels):
            raise ValueError("a demand of all that it can send over a tunnel without links: allowed is a finite one")


class _Programme:
    """The linear programmes over the rates of all tunnels, [T], as shares of the largest capacity, `unit_bps`.

    `of_demand` [T] is the demand of each tunnel, and `is_up` [T] whether none of its links is down. Their last variable
    is the rate that demands which grow have alike.
    """

    def __init__(self, demands: Sequence[Demand], capacity_bps: Floats) -> None:
        from scipy.sparse import csc_array  # takes its time to import

        tunnels = [(index, links) for index, one in enumerate(demands) for links in one.tunnels]
        self.of_demand = np.array([index for index, _ in tunnels], dtype=np.intp)
        self.is_up = np.array([all(capacity_bps[link] > 0 for link in links) for _, links in tunnels], dtype=bool)
        self.unit_bps = float(capacity_bps.max(initial=0)) or 1.0
        used = sorted({link for _, links in tunnels for link in links})
        self._tunnels, self._used = [links for _, links in tunnels], np.array(used, dtype=np.intp)
        self._capacity = capacity_bps[self._used] / self.unit_bps
        column = [place for place, links in enumerate(self._tunnels) for _ in links]
        row = len(demands) + np.searchsorted(self._used, [link for links in self._tunnels for link in links])
        every, last = np.arange(len(demands)), len(tunnels)
        self._rows = csc_array(
            (
                np.concatenate([-np.ones(last), np.ones(len(row) + len(every))]),
                (
                    np.concatenate([self.of_demand, row, every]),
                    np.concatenate([np.arange(last), column, np.full(len(every), last)]),
                ),
            ),
            (len(demands) + len(used), last + 1),
        )

    def most_alike(self, rate: Floats, growing: Indices) -> tuple[float, Floats]:
        """The most that these demands can all have while the others have their `rate` [D], and the dual value of each
        of them: positive where it can have no more in any solution."""
        grows = np.zeros(rate.size)
        grows[growing] = 1
        found = self._solve(np.append(np.zeros(len(self.is_up)), -1.0), rate * (1 - grows), grows)
        return float(found.x[-1]), -found.ineqlin.marginals[growing]

    def split(self, rate: Floats, delays_s: Floats) -> Floats:
        """The rates of the tunnels, [T] bit/s, that give demands these rates with the least delay."""
        if not self._tunnels:
            return np.zeros(0)
        delay_s = np.array([delays_s[list(links)].sum() for links in self._tunnels])
        cost = 1 + delay_s / (delay_s.max() or 1.0)  # of what is sent, too: nothing beyond these rates
        found = self._solve(np.append(cost, 0.0), rate, np.zeros(rate.size))
        rates: Floats = np.maximum(found.x[:-1], 0)
        rates[rates < 10 * _SLACK] = 0  # what is left of the slack
        load = self._rows[len(rate) :, :-1] @ rates
        used = load > 0
        rates *= min(1.0, (self._capacity[used] / load[used]).min(initial=1.0)) * self.unit_bps
        return rates

    def _solve(self, cost: Floats, least: Floats, grows: Floats) -> Any:
        from scipy.optimize import linprog

        self._rows.data[self._rows.indptr[-2] :] = grows
        most = np.append(np.where(self.is_up, np.inf, 0.0), np.inf if grows.any() else 0.0)
        found = linprog(
            cost,
            self._rows,
            np.append(-np.maximum(least - _SLACK, 0), self._capacity),
            bounds=np.stack([np.zeros_like(most), most], axis=1),
            method="highs-ds",
            options={"primal_feasibility_tolerance": _TOLERANCE, "dual_feasibility_tolerance": _TOLERANCE},
        )
        if found.status != 0:
            raise ArithmeticError(f"the allocation has no solution: {found.message}")
        return found
