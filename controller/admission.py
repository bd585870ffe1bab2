"""Admission control: decides which transfers over a network are promised, and at which rate each sends through each
tunnel in each interval. Pure functions.

A request is an amount of bits to send between two instants, or a rate to hold throughout. A request fits with the
earlier promises if a linear programme has a solution. Its variables are the bits that each of them sends through each
tunnel in each interval; the intervals lie between all instants at which a request begins or ends or capacities change.
Earlier promises may therefore move between tunnels and intervals as long as each is kept. All times are sending times:
the caller accounts for propagation delays, by the end of a request and by how much sooner each tunnel has to stop.

Promises may be protected against failures: sets of links, of which at most one is down at a time. When a failure hits
a tunnel, the network moves the tunnel's traffic at once to other links, which are known beforehand, and the calendar
stays as it is. Moved and unmoved traffic then fit together under every failure, at every time.

B4 and SWAN send within a window, split over tunnels, between sites (Jain et al., "B4", SIGCOMM 2013; Hong et al.,
"Achieving High Utilization with Software-Driven WAN", SIGCOMM 2013). Promising deadlines by such linear programmes
follows Zhang et al., "Guaranteeing Deadlines for Inter-Datacenter Transfers", EuroSys 2015.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ADMITTED, DEFERRED, REFUSED = "admitted", "deferred", "refused"

_SAME = 1e-9  # relative to the longest time: closer instants are merged, as rates in between are rounding errors
_LATER = (1e-6, 1e-5)  # parts of its window by which the earliest end is delayed, in turn, until the request fits
_SOLVERS = ("highs-ds", True), ("highs-ds", False), ("highs-ipm", True)
"""(method, presolve), in the order tried: each fails in cases that the next solves, such as nearly empty intervals."""
_TOLERANCE = 1e-7  # relative to a capacity
_SPREAD = 1e-3  # cost of the longest tunnel, where sending at the end of the calendar costs 1
_END, _SHARE = 0, 1  # the first columns of the linear programme


@dataclass(frozen=True, kw_only=True)
class Capacities:
    """Link capacities over time: `bps[s]`, [links] bit/s, from `from_s[s]` on (ascending), the first one also before.

    `failures` are sets of link indices; at most one of the sets is down at a time.
    """

    bps: Floats
    from_s: tuple[float, ...] = (0.0,)
    failures: tuple[frozenset[int], ...] = ()

    def without(self, links: frozenset[int]) -> "Capacities":
        """Return the same capacities with these links down."""
        bps = self.bps.copy()
        bps[:, list(links)] = 0.0
        return replace(self, bps=bps)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A transfer between two instants: `amount` bits in total or, with `is_rate`, `amount` bit/s throughout.

    `tunnels` lists the link indices of each tunnel. The request may be deferred, to end at `latest_s` at the latest. A
    tunnel sends nothing in the last `stops_early_s` seconds before the end; this is 0 for at least one tunnel, and
    empty for a rate. Where promises are protected, `tunnels_after_failure[f]` are the links of each tunnel after
    failure f of `Capacities`.
    """

    name: str
    tunnels: tuple[tuple[int, ...], ...]
    tunnels_after_failure: tuple[tuple[tuple[int, ...], ...], ...] = ()
    amount: float
    begin_s: float
    end_s: float
    is_rate: bool = False
    latest_s: float = 0.0
    stops_early_s: tuple[float, ...] = ()

    def ends(self, end_s: float) -> list[float]:
        """Return when each tunnel sends its last bit if the request ends at `end_s`."""
        return [end_s - early_s for early_s in self.stops_early_s or (0.0,) * len(self.tunnels)]

    def until(self, end_s: float) -> "Request":
        """Return the request with another end: the window of a rate moves, the window of an amount grows or shrinks."""
        begin_s = self.begin_s + end_s - self.end_s if self.is_rate else self.begin_s
        return replace(self, begin_s=begin_s, end_s=end_s)

    @property
    def bits(self) -> float:
        """The number of bits that the request sends in total."""
        return self.amount * (self.end_s - self.begin_s) if self.is_rate else self.amount


@dataclass(frozen=True, kw_only=True)
class Calendar:
    """The rate of each request in each interval and tunnel: `bps[r]` is [intervals, tunnels] bit/s of `requests[r]`.

    Interval i lasts from `edges_s[i]` to `edges_s[i + 1]`.
    """

    requests: tuple[Request, ...]
    edges_s: Floats
    bps: tuple[Floats, ...]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision on a request: its `outcome` is ADMITTED, DEFERRED or REFUSED.

    `promised` is the request as promised, with its new window if it is deferred; None if it is refused. For a refused
    request `most` is the largest amount that would fit in its window, and `earliest_s` the earliest end at which all of
    it would fit, None if there is none.
    """

    outcome: str
    request: Request
    promised: Request | None = None
    most: float = math.nan
    earliest_s: float | None = None


def decide_all(
    capacities: Capacities, requests: Sequence[Request], *, protects: bool
) -> tuple[list[Decision], Calendar]:
    """Decide on the requests in order, each given the promises before it; return answers and the promises' calendar.

    With `protects`, promises hold under each of the failures in `capacities`.
    """
    decisions: list[Decision] = []
    kept: list[Request] = []
    for request in requests:
        decision = decide(capacities, kept, request, protects=protects)
        decisions.append(decision)
        if decision.promised is not None:
            kept.append(decision.promised)
    calendar = calendar_of(capacities, kept, protects=protects)
    assert calendar is not None, "the last admitted request fitted"
    return decisions, calendar


def decide(capacities: Capacities, kept: Sequence[Request], request: Request, *, protects: bool) -> Decision:
    """Decide on a request given the promises in `kept`, which all stay kept; arguments as for `decide_all`."""
    if calendar_of(capacities, [*kept, request], protects=protects) is not None:
        return Decision(outcome=ADMITTED, request=request, promised=request)
    earliest_s = _earliest(capacities, kept, request, protects=protects)
    if earliest_s is not None and earliest_s <= request.latest_s:
        for share in _LATER:
            later = request.until(min(earliest_s + share * (earliest_s - request.begin_s), request.latest_s))
            if calendar_of(capacities, [*kept, later], protects=protects) is not None:
                return Decision(outcome=DEFERRED, request=request, promised=later, earliest_s=later.end_s)
    is_possible = request.end_s > request.begin_s
    most = _Programme(capacities, kept, request, protects=protects).most() if is_possible else 0.0
    return Decision(outcome=REFUSED, request=request, most=most, earliest_s=earliest_s)


def calendar_of(capacities: Capacities, requests: Sequence[Request], *, protects: bool) -> Calendar | None:
    """Return a calendar that keeps all of these requests, or None if there is none.

    It sends as soon as possible and, among equally early calendars, over the shortest tunnels.
    """
    if not requests:
        return Calendar(requests=(), edges_s=np.zeros(1), bps=())
    if requests[-1].end_s <= requests[-1].begin_s:
        return None
    return _Programme(capacities, requests[:-1], requests[-1], protects=protects).calendar()


def decide_after_failure(
    capacities: Capacities, calendar: Calendar, links: frozenset[int], *, at_s: float
) -> tuple[list[Decision], Calendar]:
    """Decide again on a calendar's promises when these links fail for good at `at_s`.

    Return the answers to the unsent remainder of each promise that is not yet complete, in order and without deferring
    any, and the calendar from then on.
    """
    remainders = []
    elapsed_s = np.clip(at_s, calendar.edges_s[:-1], calendar.edges_s[1:]) - calendar.edges_s[:-1]
    for request, bps in zip(calendar.requests, calendar.bps, strict=True):
        sent = 0.0 if request.is_rate else float(elapsed_s @ bps.sum(axis=1))
        amount = max(0.0, request.amount - sent)
        is_complete = at_s >= request.end_s or amount <= 1e-9 * request.amount
        if not is_complete:
            remainders.append(replace(request, begin_s=max(at_s, request.begin_s), amount=amount, latest_s=0.0))
    return decide_all(capacities.without(links), remainders, protects=False)


def _earliest(capacities: Capacities, kept: Sequence[Request], request: Request, *, protects: bool) -> float | None:
    """Return the earliest end at which a request fits, not before its own end; None if there is none.

    The order of all instants changes only at certain ends of the request. Between two of these ends, a linear programme
    finds the earliest end.
    """
    instants = set(capacities.from_s)
    for promise in kept:
        instants |= {promise.begin_s, *promise.ends(promise.end_s)}
    if request.is_rate:
        instants |= {at_s + request.end_s - request.begin_s for at_s in instants}
    instants |= {at_s + early_s for early_s in request.stops_early_s for at_s in (*instants, request.begin_s)}
    first_s = max(request.begin_s, request.end_s)
    breaks_s = [first_s, *sorted(at_s for at_s in instants if at_s > first_s), math.inf]

    def soonest(ends_s: tuple[float, float]) -> float | None:
        return _Programme(capacities, kept, request, protects=protects, ends_s=ends_s).soonest()

    spans = list(pairwise(breaks_s))
    if not request.is_rate:  # an amount that fits by an end also fits by every later end, so bisect
        spans = spans[bisect_left(spans, True, key=lambda span: soonest(span) is not None) :]
    return next((end_s for end_s in map(soonest, spans) if end_s is not None), None)


class _Programme:
    """The linear programme of the promises in `kept` and one request, whose end varies within `ends_s` if given.

    The columns are _END, the request's end as seconds after the earliest one, in units of `_scale_s`; _SHARE, the
    amount that it sends in total; and the amount that each request sends in each interval through each tunnel. Amounts
    are in units of their request's bits, `_unit`. Every instant is an affine function of the request's end, stored as a
    constant and a factor of 0 or 1.
    """

    def __init__(
        self,
        capacities: Capacities,
        kept: Sequence[Request],
        request: Request,
        *,
        protects: bool,
        ends_s: tuple[float, float] | None = None,
    ) -> None:
        self.capacities, self.requests, self._moves = capacities, (*kept, request), ends_s is not None
        self._low_s, high_s = ends_s or (request.end_s, request.end_s)
        if ends_s is not None:
            self.requests = (*kept, request.until(self._low_s))
        self._longest_s = high_s - self._low_s
        self._divide_time(min(high_s, self._low_s + 1.0))
        self._failures = capacities.failures if protects else ()
        self._rows: list[tuple[dict[int, float], float, float]] = []  # coefficients, lower and upper bound
        self._add_columns_and_rows()

    def _divide_time(self, order_s: float) -> None:
        """Order the instants into intervals, and find in which intervals each request may send.

        The order is the one that holds when the request's end is halfway between the earliest end and `order_s`.
        """
        half_s = (order_s - self._low_s) / 2

        def at_half(instant: tuple[float, int]) -> float:
            return instant[0] + instant[1] * half_s

        instants = {(from_s, 0) for from_s in self.capacities.from_s}
        windows = []
        for request in self.requests:
            moves = int(request is self.requests[-1] and self._moves)
            ends = [(end_s, moves) for end_s in request.ends(request.end_s)]
            window = [(request.begin_s, moves * request.is_rate), *ends]
            windows.append(window)
            instants.update(window)
        first = min(at_half(window[0]) for window in windows)
        last = max(map(at_half, chain.from_iterable(windows)))
        same_s = _SAME * max(abs(first), abs(last))
        edges: list[tuple[float, int]] = []
        for instant in sorted(instants, key=at_half):
            at_s = at_half(instant)
            if first - same_s <= at_s <= last + same_s and (not edges or at_s > at_half(edges[-1]) + same_s):
                edges.append(instant)
        self._edges = np.array(edges, dtype=float)  # [I + 1, 2]
        self._spans = np.diff(self._edges, axis=0)
        middle_s = (self._edges[:-1] + self._edges[1:]) @ (0.5, 0.5 * half_s)
        self._middle_s = middle_s
        self._within = [  # for each request and tunnel, the intervals in which it may send
            [np.flatnonzero((at_half(begin) < middle_s) & (middle_s < at_half(end))).tolist() for end in ends]
            for begin, *ends in windows
        ]
        self._capacity_row = np.maximum(np.searchsorted(self.capacities.from_s, middle_s, side="right") - 1, 0)
        self._bps = self.capacities.bps[self._capacity_row]  # [I, links]

    def _add_columns_and_rows(self) -> None:
        last = self.requests[-1]
        most_bps = self._bps.max(initial=1.0) * max(1, len(last.tunnels))
        self._unit = [request.bits for request in self.requests]
        if not self._moves:  # for an excessive request a unit that is still more than the network can carry
            self._unit[-1] = min(last.bits, 2 * most_bps * (last.end_s - last.begin_s))
        self._scale_s = last.end_s - last.begin_s if last.is_rate else last.bits / most_bps
        self._sent: dict[tuple[int, int, int], int] = {}
        for r, of_tunnels in enumerate(self._within):
            for p, within in enumerate(of_tunnels):
                for i in within:
                    self._sent[r, i, p] = 2 + len(self._sent)
        self._columns = 2 + len(self._sent)
        for r, request in enumerate(self.requests):
            self._add_amount_rows(r, request)
        usual = self._loads([request.tunnels for request in self.requests])
        self._add_capacity_rows(usual, self._bps)
        for f, links in enumerate(self._failures):
            moved = self._loads([request.tunnels_after_failure[f] for request in self.requests])
            # A link that has not failed and carries no additional tunnel has room already, by the rows above.
            more = {at: row for at, row in moved.items() if at[1] in links or row.keys() - usual.get(at, {}).keys()}
            self._add_capacity_rows(more, self.capacities.without(links).bps[self._capacity_row])

    def _loads(self, tunnels: Sequence[Sequence[Sequence[int]]]) -> dict[tuple[int, int], dict[int, float]]:
        """Return the load in bits on each link in each interval, keyed by (interval, link), when each request uses
        these `tunnels`: a coefficient for each column."""
        loads: dict[tuple[int, int], dict[int, float]] = {}
        for (r, i, p), column in self._sent.items():
            for link in set(tunnels[r][p]):
                loads.setdefault((i, link), {})[column] = self._unit[r]
        return loads

    def _add_capacity_rows(self, loads: dict[tuple[int, int], dict[int, float]], bps: Floats) -> None:
        """Add the rows that keep these loads within the links' capacities `bps`, [I, links] bit/s."""
        for (i, link), row in loads.items():
            constant_s, moving = self._spans[i]
            room = bps[i, link]
            scale = room * (self._scale_s if moving else constant_s) or max(row.values())
            scaled = {column: value / scale for column, value in row.items()}
            scaled[_END] = -room * moving * self._scale_s / scale
            self._rows.append((scaled, -math.inf, room * constant_s / scale))

    def _add_amount_rows(self, r: int, request: Request) -> None:
        """Add the rows that make promise `r` send its full amount, and the last request as much as column _SHARE."""
        share = 1.0 if r < len(self.requests) - 1 else 0.0
        rows: dict[int, dict[int, float]] = {}  # one row for an amount, one for each interval for a rate
        for (sender, i, _), column in self._sent.items():
            if sender == r:
                rows.setdefault(i if request.is_rate else 0, {})[column] = 1.0
        if not request.is_rate:
            row = rows.get(0, {})
            self._rows.append((row if share else row | {_SHARE: -1.0}, share, share))
            return
        for i, row in rows.items():
            constant, moving = self._spans[i] / (request.end_s - request.begin_s)
            if share or self._moves:
                self._rows.append((row | {_END: -moving * self._scale_s}, constant, constant))
            else:
                self._rows.append((row | {_END: -moving * self._scale_s, _SHARE: -constant}, 0.0, 0.0))

    def _solve(self, cost: Floats, share: tuple[float, float], *, spare: float = 0.0) -> Any:
        from scipy.optimize import linprog  # slow to import

        equal = [(row, high) for row, low, high in self._rows if low == high]
        below = [(row, high + spare) for row, low, high in self._rows if low != high]
        bounds = np.zeros((self._columns, 2))
        bounds[:, 1] = np.inf
        bounds[_END, 1], bounds[_SHARE] = self._longest_s / self._scale_s, share
        constraints: dict[str, Any] = {}
        for name, rows in (("eq", equal), ("ub", below)):
            if rows:
                constraints[f"A_{name}"] = self._matrix([row for row, _ in rows])
                constraints[f"b_{name}"] = [bound for _, bound in rows]
        for method, presolve in _SOLVERS:
            solution = linprog(cost, bounds=bounds, method=method, options={"presolve": presolve}, **constraints)
            if solution.status in (0, 2):  # solved, or infeasible
                return solution if solution.status == 0 else None
        raise ArithmeticError(f"the linear programme of {len(self.requests)} requests failed: {solution.message}")

    def _solve_with_tolerance(self, cost: Floats, share: tuple[float, float]) -> Any:
        """Solve, and if there is no solution, solve again with `_TOLERANCE`.

        Promises that only just fit may miss by rounding once the request's instants divide the intervals further.
        """
        solution = self._solve(cost, share)
        return self._solve(cost, share, spare=_TOLERANCE) if solution is None else solution

    def _matrix(self, rows: Sequence[dict[int, float]]) -> Any:
        from scipy.sparse import csr_array

        cells = [(number, column, value) for number, row in enumerate(rows) for column, value in row.items()]
        row, column, value = zip(*cells, strict=True)
        return csr_array((value, (row, column)), shape=(len(rows), self._columns))

    @property
    def _requested(self) -> float:
        """The whole amount of the request, in units of its column."""
        return self.requests[-1].bits / self._unit[-1]

    def most(self) -> float:
        """Return the largest amount that would fit for the request."""
        cost = np.zeros(self._columns)
        cost[_SHARE] = -1.0
        solution = self._solve_with_tolerance(cost, (0.0, self._requested))
        assert solution is not None, "the promises that are kept fit"
        return max(0.0, float(solution.x[_SHARE])) / self._requested * self.requests[-1].amount

    def soonest(self) -> float | None:
        """Return the earliest end at which the request fits, or None if it fits at no end within `ends_s`."""
        cost = np.zeros(self._columns)
        cost[_END] = 1.0
        solution = self._solve_with_tolerance(cost, (1.0, 1.0))
        return None if solution is None else float(self._low_s + solution.x[_END] * self._scale_s)

    def calendar(self) -> Calendar | None:
        """Return the calendar, or None if the request does not fit."""
        cost = np.zeros(self._columns)
        waits = (self._middle_s - self._edges[0, 0]) / (self._edges[-1, 0] - self._edges[0, 0])
        most = max(len(links) for request in self.requests for links in request.tunnels) if self._sent else 1
        for (r, i, p), column in self._sent.items():
            cost[column] = waits[i] + _SPREAD * len(self.requests[r].tunnels[p]) / most
        solution = self._solve(cost, (self._requested, self._requested))
        if solution is None:
            return None
        bps = tuple(np.zeros((len(self._spans), len(request.tunnels))) for request in self.requests)
        for (r, i, p), column in self._sent.items():
            bps[r][i, p] = max(0.0, solution.x[column]) * self._unit[r] / self._spans[i, 0]
        return Calendar(requests=self.requests, edges_s=self._edges[:, 0], bps=bps)
