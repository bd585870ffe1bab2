"""Admission control: which transfers over a network are promised, and how fast each sends over which tunnel when. Pure.

A request is an amount of bits between two instants, or a rate throughout. Promises and a request fit together if a
linear programme has a solution: its variables are the bits of each of them in each tunnel and interval, the intervals
being those between all instants at which one begins or ends and capacities change. So earlier promises move between
tunnels and intervals as long as each is kept. Propagation delays are left to the caller, who says by when the last bit
is sent, and over which tunnels it is sent sooner: bits are where they are sent.

Promises may be protected from failures, sets of links of which one set at most is down. The network then moves what a
tunnel that is hit has to other links, known beforehand, at once and without the calendar; what stays where it is and
what is moved fits together, whichever the failure and whenever it comes.

Sending within a window, split over tunnels, is what B4 and SWAN do between sites (Jain et al., "B4", SIGCOMM 2013; Hong
et al., "Achieving High Utilization with Software-Driven WAN", SIGCOMM 2013); promises of deadlines by such programmes
are those of Zhang et al., "Guaranteeing Deadlines for Inter-Datacenter Transfers", EuroSys 2015.
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

_SAME = 1e-9  # of the longest time: instants that are one, as rates in between would be rounding errors alone
_LATER = (1e-6, 1e-5)  # what the earliest end is put off by until it fits, so that it does beside others, too
_SOLVERS = ("highs-ds", True), ("highs-ds", False), ("highs-ipm", True)
"""With presolve or not: each fails where the one after it does not, as where an interval is all but empty."""
_TOLERANCE = 1e-7  # of a capacity
_SPREAD = 1e-3  # what a tunnel's hop costs beside waiting until the end of all


@dataclass(frozen=True, kw_only=True)
class Capacities:
    """What links carry: `bps[s]`, [links] bit/s each, from `from_s[s]` on, in rising order; the first also before that.

    `failures` are sets of links, by index, of which one at most is down at a time.
    """

    bps: Floats
    from_s: tuple[float, ...] = (0.0,)
    failures: tuple[frozenset[int], ...] = ()

    def without(self, links: frozenset[int]) -> "Capacities":
        """The same with these links down."""
        bps = self.bps.copy()
        bps[:, list(links)] = 0.0
        return replace(self, bps=bps)


@dataclass(frozen=True, kw_only=True)
class Request:
    """`amount` bits between two instants, or of a `rate` as many bit/s throughout, over `tunnels`: links by index.

    It may be put off until `latest_s`, by then it must be over. Over a tunnel nothing is sent from `sooner_s` before
    the end on, which is 0 for one tunnel at least, and without any for a rate. `behind[f]` are the links of each tunnel
    behind failure f of `Capacities`, where promises are protected.
    """

    name: str
    tunnels: tuple[tuple[int, ...], ...]
    behind: tuple[tuple[tuple[int, ...], ...], ...] = ()
    amount: float
    begin_s: float
    end_s: float
    is_rate: bool = False
    latest_s: float = 0.0
    sooner_s: tuple[float, ...] = ()

    def ends(self, end_s: float) -> list[float]:
        """When each tunnel sends its last bit, where the request ends then."""
        return [end_s - sooner_s for sooner_s in self.sooner_s or (0.0,) * len(self.tunnels)]

    def until(self, end_s: float) -> "Request":
        """The same with another end: of a rate the window moves, of bits it grows."""
        begin_s = self.begin_s + end_s - self.end_s if self.is_rate else self.begin_s
        return replace(self, begin_s=begin_s, end_s=end_s)

    @property
    def bits(self) -> float:
        """What it sends in all."""
        return self.amount * (self.end_s - self.begin_s) if self.is_rate else self.amount


@dataclass(frozen=True, kw_only=True)
class Calendar:
    """How fast each request sends over each of its tunnels in each interval: `bps` are [intervals, tunnels] bit/s each.

    Interval i is from `edges_s[i]` to `edges_s[i + 1]`.
    """

    requests: tuple[Request, ...]
    edges_s: Floats
    bps: tuple[Floats, ...]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What becomes of a request: ADMITTED, DEFERRED or REFUSED.

    `promised` is the request as it is kept, at the time that it was put off to where it is deferred; None where it is
    refused. Then `most` is the largest amount that it could have as it is, and `earliest_s` the first end at which it
    could have all, None where that is never.
    """

    outcome: str
    request: Request
    promised: Request | None = None
    most: float = math.nan
    earliest_s: float | None = None


def answers(capacities: Capacities, requests: Sequence[Request], *, protects: bool) -> tuple[list[Answer], Calendar]:
    """The answer to each request, in their order, under the promises before it, and the calendar of all promises.

    `protects`: promises hold whichever of the failures there is.
    """
    found: list[Answer] = []
    kept: list[Request] = []
    for request in requests:
        found.append(answer(capacities, kept, request, protects=protects))
        kept += [one for one in (found[-1].promised,) if one is not None]
    calendar = calendar_of(capacities, kept, protects=protects)
    assert calendar is not None, "the last admitted request fitted"
    return found, calendar


def answer(capacities: Capacities, kept: Sequence[Request], request: Request, *, protects: bool) -> Answer:
    """What becomes of a request beside these promises, each of which stays as it is; arguments as for `answers`."""
    if calendar_of(capacities, [*kept, request], protects=protects) is not None:
        return Answer(outcome=ADMITTED, request=request, promised=request)
    earliest_s = _earliest(capacities, kept, request, protects=protects)
    if earliest_s is not None and earliest_s <= request.latest_s:
        for share in _LATER:
            later = request.until(min(earliest_s + share * (earliest_s - request.begin_s), request.latest_s))
            if calendar_of(capacities, [*kept, later], protects=protects) is not None:
                return Answer(outcome=DEFERRED, request=request, promised=later, earliest_s=later.end_s)
    is_possible = request.end_s > request.begin_s
    most = _Programme(capacities, kept, request, protects=protects).most() if is_possible else 0.0
    return Answer(outcome=REFUSED, request=request, most=most, earliest_s=earliest_s)


def calendar_of(capacities: Capacities, requests: Sequence[Request], *, protects: bool) -> Calendar | None:
    """The calendar in which all of these are kept, the soonest and then over the shortest tunnels; None for none."""
    if not requests:
        return Calendar(requests=(), edges_s=np.zeros(1), bps=())
    if requests[-1].end_s <= requests[-1].begin_s:
        return None
    return _Programme(capacities, requests[:-1], requests[-1], protects=protects).calendar()


def struck(
    capacities: Capacities, calendar: Calendar, links: frozenset[int], *, at_s: float
) -> tuple[list[Answer], Calendar]:
    """What becomes of a calendar's promises when these links fail: the answer to what is left of each, in their order,
    without the links for good and with nothing put off, and the calendar from then on.
    """
    left = []
    for request, bps in zip(calendar.requests, calendar.bps, strict=True):
        over_s = np.clip(at_s, calendar.edges_s[:-1], calendar.edges_s[1:]) - calendar.edges_s[:-1]
        sent = 0.0 if request.is_rate else float(over_s @ bps.sum(axis=1))
        amount = max(0.0, request.amount - sent)
        is_over = at_s >= request.end_s or amount <= 1e-9 * request.amount
        if not is_over:
            left.append(replace(request, begin_s=max(at_s, request.begin_s), amount=amount, latest_s=0.0))
    return answers(capacities.without(links), left, protects=False)


def _earliest(capacities: Capacities, kept: Sequence[Request], request: Request, *, protects: bool) -> float | None:
    """The first end, not before its own, at which a request fits; None where there is none.

    Between two ends at which the order of all instants changes, the least is a linear programme's.
    """
    instants = {*capacities.from_s, *(at_s for one in kept for at_s in (one.begin_s, *one.ends(one.end_s)))}
    if request.is_rate:
        instants |= {at_s + request.end_s - request.begin_s for at_s in instants}
    instants |= {at_s + sooner_s for sooner_s in request.sooner_s for at_s in (*instants, request.begin_s)}
    first_s = max(request.begin_s, request.end_s)
    turns = [first_s, *sorted(at_s for at_s in instants if at_s > first_s), math.inf]

    def soonest(ends_s: tuple[float, float]) -> float | None:
        return _Programme(capacities, kept, request, protects=protects, ends_s=ends_s).soonest()

    spans = list(pairwise(turns))
    if not request.is_rate:  # what fits by an end fits by every later one
        spans = spans[bisect_left(spans, True, key=lambda span: soonest(span) is not None) :]
    return next((found for found in map(soonest, spans) if found is not None), None)


class _Programme:
    """The linear programme of promises that are `kept` and a request; with `ends_s` the request's end is between these.

    Columns are the request's end, beyond the least and in `_scale_s`, and what it sends in all, then what each request
    sends in each interval over each tunnel, in a unit of the request's: its bits. An instant is affine in the end: a
    constant and 0 or 1.
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
        self._lay_out(min(high_s, self._low_s + 1.0))
        self._failures = capacities.failures if protects else ()
        self._rows: list[tuple[dict[int, float], float, float]] = []
        self._fill()

    def _lay_out(self, seen_s: float) -> None:
        """The instants in order, which is that with the end halfway to `seen_s`, and who sends in which interval."""
        moved = self.requests[-1]
        at = {(at_s, 0) for at_s in self.capacities.from_s}
        windows = []
        for one in self.requests:
            moves = int(one is moved and self._moves)
            window = [(one.begin_s, moves * one.is_rate), *((end_s, moves) for end_s in one.ends(one.end_s))]
            windows.append(window)
            at.update(window)
        half_s = (seen_s - self._low_s) / 2

        def seen(instant: tuple[float, int]) -> float:
            return instant[0] + instant[1] * half_s

        first, last = min(seen(window[0]) for window in windows), max(map(seen, chain.from_iterable(windows)))
        same_s = _SAME * max(abs(first), abs(last))
        kept: list[tuple[float, int]] = []
        for instant in sorted(at, key=seen):
            at_s = seen(instant)
            if first - same_s <= at_s <= last + same_s and (not kept or at_s > seen(kept[-1]) + same_s):
                kept.append(instant)
        self._edges = np.array(kept, dtype=float)  # [I + 1, 2]
        self._spans = np.diff(self._edges, axis=0)
        middle_s = (self._edges[:-1] + self._edges[1:]) @ (0.5, 0.5 * half_s)
        self._middle_s = middle_s
        self._within = [
            [np.flatnonzero((seen(begin) < middle_s) & (middle_s < seen(end))).tolist() for end in ends]
            for begin, *ends in windows
        ]
        self._slot = np.maximum(np.searchsorted(self.capacities.from_s, middle_s, side="right") - 1, 0)
        self._bps = self.capacities.bps[self._slot]  # [I, links]

    def _fill(self) -> None:
        """The columns and the rows."""
        last = self.requests[-1]
        most_bps = self._bps.max(initial=1.0) * max(1, len(last.tunnels))
        self._unit = [one.bits for one in self.requests]
        if not self._moves:  # of what is asked for beyond reason, more than can be had
            self._unit[-1] = min(last.bits, 2 * most_bps * (last.end_s - last.begin_s))
        self._scale_s = last.end_s - last.begin_s if last.is_rate else last.bits / most_bps
        self._sent: dict[tuple[int, int, int], int] = {}
        for r, of_request in enumerate(self._within):
            for p, within in enumerate(of_request):
                for i in within:
                    self._sent[r, i, p] = 2 + len(self._sent)
        self._columns = 2 + len(self._sent)
        for r, one in enumerate(self.requests):
            self._ask(r, one)
        usual = self._loads([one.tunnels for one in self.requests])
        self._limit(usual, self._bps)
        for f, links in enumerate(self._failures):
            behind = self._loads([one.behind[f] for one in self.requests])
            # Where no more passes than usual there is room for it, but on what has failed.
            more = {at: row for at, row in behind.items() if at[1] in links or row.keys() - usual.get(at, {}).keys()}
            self._limit(more, self.capacities.without(links).bps[self._slot])

    def _loads(self, tunnels: Sequence[Sequence[Sequence[int]]]) -> dict[tuple[int, int], dict[int, float]]:
        """What passes a link in an interval, by these, where each request has these tunnels."""
        found: dict[tuple[int, int], dict[int, float]] = {}
        for (r, i, p), column in self._sent.items():
            for link in set(tunnels[r][p]):
                found.setdefault((i, link), {})[column] = self._unit[r]
        return found

    def _limit(self, loads: dict[tuple[int, int], dict[int, float]], bps: Floats) -> None:
        """The rows by which these loads fit on links of [I, links] bit/s."""
        for (i, link), row in loads.items():
            constant_s, moving = self._spans[i]
            room = bps[i, link]
            scale = room * (self._scale_s if moving else constant_s) or max(row.values())
            scaled = {column: value / scale for column, value in row.items()}
            scaled[_END] = -room * moving * self._scale_s / scale
            self._rows.append((scaled, -math.inf, room * constant_s / scale))

    def _ask(self, r: int, one: Request) -> None:
        """The rows that keep a request, and of the last have it send as much as the column _SHARE says."""
        share = 1.0 if r < len(self.requests) - 1 else 0.0
        rows: dict[int, dict[int, float]] = {}  # of bits one row, of a rate one for each interval
        for (of, i, _), column in self._sent.items():
            if of == r:
                rows.setdefault(i if one.is_rate else 0, {})[column] = 1.0
        if not one.is_rate:
            row = rows.get(0, {})
            self._rows.append((row if share else row | {_SHARE: -1.0}, share, share))
            return
        for i, row in rows.items():
            constant, moving = self._spans[i] / (one.end_s - one.begin_s)
            if share or self._moves:
                self._rows.append((row | {_END: -moving * self._scale_s}, constant, constant))
            else:
                self._rows.append((row | {_END: -moving * self._scale_s, _SHARE: -constant}, 0.0, 0.0))

    def _solve(self, cost: Floats, share: tuple[float, float], *, spare: float = 0.0) -> Any:
        from scipy.optimize import linprog  # takes its time to import

        equal = [(row, high) for row, low, high in self._rows if low == high]
        below = [(row, high + spare) for row, low, high in self._rows if low != high]
        bounds = np.zeros((self._columns, 2))
        bounds[:, 1] = np.inf
        bounds[_END, 1], bounds[_SHARE] = self._longest_s / self._scale_s, share
        given: dict[str, Any] = {}
        for name, rows in (("eq", equal), ("ub", below)):
            if rows:
                given[f"A_{name}"], given[f"b_{name}"] = self._matrix([row for row, _ in rows]), [b for _, b in rows]
        for solver, presolve in _SOLVERS:
            found = linprog(cost, bounds=bounds, method=solver, options={"presolve": presolve}, **given)
            if found.status in (0, 2):
                break
        else:
            raise ArithmeticError(f"the linear programme of {len(self.requests)} requests: {found.message}")
        return found if found.status == 0 else None

    def _solve_with_tolerance(self, cost: Floats, share: tuple[float, float]) -> Any:
        """The solution also where promises that just fit among their own instants miss that among more by rounding."""
        found = self._solve(cost, share)
        return self._solve(cost, share, spare=_TOLERANCE) if found is None else found

    def _matrix(self, rows: Sequence[dict[int, float]]) -> Any:
        from scipy.sparse import csr_array

        at = [(number, column, value) for number, row in enumerate(rows) for column, value in row.items()]
        row, column, value = zip(*at, strict=True)
        return csr_array((value, (row, column)), shape=(len(rows), self._columns))

    @property
    def _asked(self) -> float:
        """What the request asks for, as a share of its unit."""
        return self.requests[-1].bits / self._unit[-1]

    def most(self) -> float:
        """The largest amount that the request could have."""
        cost = np.zeros(self._columns)
        cost[_SHARE] = -1.0
        found = self._solve_with_tolerance(cost, (0.0, self._asked))
        assert found is not None, "the promises that are kept fit"
        return max(0.0, float(found.x[_SHARE])) / self._asked * self.requests[-1].amount

    def soonest(self) -> float | None:
        """The least end of the request; None where it fits at none of them."""
        cost = np.zeros(self._columns)
        cost[_END] = 1.0
        found = self._solve_with_tolerance(cost, (1.0, 1.0))
        return None if found is None else float(self._low_s + found.x[_END] * self._scale_s)

    def calendar(self) -> Calendar | None:
        """The calendar; None where the request does not fit."""
        cost = np.zeros(self._columns)
        waits = (self._middle_s - self._edges[0, 0]) / (self._edges[-1, 0] - self._edges[0, 0])
        most = max(len(links) for one in self.requests for links in one.tunnels) if self._sent else 1
        for (r, i, p), column in self._sent.items():
            cost[column] = waits[i] + _SPREAD * len(self.requests[r].tunnels[p]) / most
        found = self._solve(cost, (self._asked, self._asked))
        if found is None:
            return None
        bps = tuple(np.zeros((len(self._spans), len(one.tunnels))) for one in self.requests)
        for (r, i, p), column in self._sent.items():
            bps[r][i, p] = max(0.0, found.x[column]) * self._unit[r] / self._spans[i, 0]
        return Calendar(requests=self.requests, edges_s=self._edges[:, 0], bps=bps)


_END, _SHARE = 0, 1
