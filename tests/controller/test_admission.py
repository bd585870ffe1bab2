"""Admission control, compared with flows over time on arcs instead of tunnels: networkx and linear programmes."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from controller.admission import (
    ADMITTED,
    DEFERRED,
    REFUSED,
    Calendar,
    Capacities,
    Decision,
    Request,
    decide_after_failure,
    decide_all,
)

EXACT = 1e-6


class Case:
    """A random network of bidirectional links, and requests between its nodes with all simple paths as tunnels."""

    def __init__(
        self, seed: int, *, requests: int, one_source: bool = False, rates: bool = True, protects: bool = False
    ) -> None:
        draw = random.Random(seed)
        graph = networkx.cycle_graph(draw.randint(3, 5))
        graph.add_edge(0, 2)
        self.cables = list(graph.edges)
        self.arcs = [(a, b) for a, b in self.cables] + [(b, a) for a, b in self.cables]
        changes = [0.0, float(draw.randint(1, 9))][: draw.randint(1, 2)]
        bps = np.array([[draw.randint(0, 10) for _ in self.arcs] for _ in changes], dtype=float)
        failures = tuple(frozenset((i, i + len(self.cables))) for i in range(len(self.cables)))
        self.capacities = Capacities(bps=bps, from_s=tuple(changes), failures=failures)
        self.ends: dict[str, tuple[int, int]] = {}
        self.requests = []
        for number in range(requests):
            src = 0 if one_source else draw.randrange(len(graph))
            dst = draw.choice([node for node in graph if node != src])
            begin_s = draw.randint(0, 8)
            one = Request(
                name=f"r{number}",
                tunnels=tuple(
                    tuple(self.arcs.index(arc) for arc in pairwise(path))
                    for path in networkx.all_simple_paths(graph, src, dst)
                ),
                amount=float(draw.randint(1, 60)),
                begin_s=float(begin_s),
                end_s=float(begin_s + draw.randint(1, 8)),
                latest_s=draw.choice([0.0, 20.0]),
            )
            if rates and draw.random() < 0.4:
                one = replace(one, is_rate=True, amount=float(draw.randint(1, 12)))
            self.requests.append(self.protected(one, draw) if protects else one)
            self.ends[one.name] = src, dst

    def protected(self, one: Request, draw: random.Random) -> Request:
        """Return the request with every tunnel twice, each with a random substitute for every failure that hits it."""
        tunnels = 2 * one.tunnels
        behind = []
        for down in self.capacities.failures:
            left = [links for links in one.tunnels if not down & {*links}]
            behind.append(tuple(draw.choice(left or [links]) if down & {*links} else links for links in tunnels))
        return replace(one, tunnels=tunnels, tunnels_after_failure=tuple(behind))

    def intervals(self, requests: Sequence[Request]) -> list[tuple[float, float]]:
        instants = {at for one in requests for at in (one.begin_s, one.end_s)} | set(self.capacities.from_s)
        return list(pairwise(sorted(instants)))

    def bps(self, at_s: float) -> np.ndarray:
        slot = max((i for i, since_s in enumerate(self.capacities.from_s) if since_s <= at_s), default=0)
        return np.asarray(self.capacities.bps[slot])

    def fits(self, requests: Sequence[Request], *, protects: bool = False) -> bool:
        """Return whether all requests can be kept at once."""
        if not requests:
            return True
        return self._fits_behind(requests) if protects else self._fits(requests)

    def _fits(self, requests: Sequence[Request]) -> bool:
        """Decide by a linear programme of the bits per arc and interval, with flow conservation at every node."""
        intervals, nodes = self.intervals(requests), range(1 + max(max(arc) for arc in self.arcs))
        arcs, per = len(self.arcs), len(requests) * len(intervals)
        whole = per * (1 + arcs)  # the bits sent, then the bits over each arc
        equal, equals, below, belows = [], [], [], []
        upper = np.full(whole, np.inf)
        for r, one in enumerate(requests):
            total = np.zeros(whole)
            for i, (low_s, high_s) in enumerate(intervals):
                sent = r * len(intervals) + i
                if not one.begin_s <= low_s < high_s <= one.end_s:
                    upper[sent] = 0.0
                elif one.is_rate:
                    row = np.zeros(whole)
                    row[sent] = 1.0
                    equal.append(row)
                    equals.append(one.amount * (high_s - low_s))
                total[sent] = 1.0
                src, dst = self.ends[one.name]
                first = per + sent * arcs
                for node in nodes:
                    row = np.zeros(whole)
                    for link, (a, b) in enumerate(self.arcs):
                        row[first + link] = (a == node) - (b == node)
                    row[sent] = (node == dst) - (node == src)
                    equal.append(row)
                    equals.append(0.0)
            if not one.is_rate:
                equal.append(total)
                equals.append(one.amount)
        for i, (low_s, high_s) in enumerate(intervals):
            for link in range(arcs):
                row = np.zeros(whole)
                for r in range(len(requests)):
                    row[per + (r * len(intervals) + i) * arcs + link] = 1.0
                below.append(row)
                belows.append(self.bps(low_s)[link] * (high_s - low_s))
        return self._solves(whole, upper, (below, belows), (equal, equals))

    def _fits_behind(self, requests: Sequence[Request]) -> bool:
        """Decide by a linear programme of the bits per tunnel and interval, within every limit under every failure."""
        intervals = self.intervals(requests)
        sends = [
            (r, t, i) for r, one in enumerate(requests) for t in range(len(one.tunnels)) for i in range(len(intervals))
        ]
        upper = np.array(
            [
                np.inf if requests[r].begin_s <= intervals[i][0] < intervals[i][1] <= requests[r].end_s else 0.0
                for r, _, i in sends
            ]
        )
        equal, equals, below, belows = [], [], [], []
        for r, one in enumerate(requests):
            for i, (low_s, high_s) in enumerate(intervals):
                if one.is_rate and one.begin_s <= low_s < high_s <= one.end_s:
                    equal.append(np.array([float((of, at) == (r, i)) for of, _, at in sends]))
                    equals.append(one.amount * (high_s - low_s))
            if not one.is_rate:
                equal.append(np.array([float(of == r) for of, _, _ in sends]))
                equals.append(one.amount)
        for f, down in enumerate([frozenset(), *self.capacities.failures]):
            over = [one.tunnels_after_failure[f - 1] if f else one.tunnels for one in requests]
            for at, (low_s, high_s) in enumerate(intervals):
                for link in range(len(self.arcs)):
                    below.append(np.array([float(i == at and link in over[r][t]) for r, t, i in sends]))
                    belows.append(0.0 if link in down else self.bps(low_s)[link] * (high_s - low_s))
        return self._solves(len(sends), upper, (below, belows), (equal, equals))

    def _solves(self, whole: int, upper: np.ndarray, below: tuple[list, list], equal: tuple[list, list]) -> bool:
        bounds = [(0.0, limit) for limit in upper]
        for method in ("highs-ipm", "highs-ds"):
            found = linprog(np.zeros(whole), *below, *equal, bounds, method=method)
            if found.status in (0, 2):
                break
        assert found.status in (0, 2), found.message
        return bool(found.status == 0)


def with_amount(kept: Sequence[Request], one: Request, amount: float) -> list[Request]:
    return [*kept, replace(one, amount=amount)]


def with_earlier_promises(found: Sequence[Decision]) -> Iterator[tuple[list[Request], Decision]]:
    """Yield each answer with the promises given before it."""
    kept: list[Request] = []
    for one in found:
        yield list(kept), one
        kept += [] if one.promised is None else [one.promised]


def check_calendar(case: Case, calendar: Calendar, *, protects: bool) -> None:
    """Assert that every promise sends its amount in its time, and that no link is overloaded, under each failure."""
    spans_s = np.diff(calendar.edges_s)
    for one, mine in zip(calendar.requests, calendar.bps, strict=True):
        assert (mine >= -EXACT).all()
        inside = (calendar.edges_s[:-1] >= one.begin_s - EXACT) & (calendar.edges_s[1:] <= one.end_s + EXACT)
        assert (mine[~inside] == 0).all()
        if one.is_rate:
            np.testing.assert_allclose(mine[inside].sum(axis=1), one.amount, rtol=EXACT)
        else:
            assert spans_s @ mine.sum(axis=1) == pytest.approx(one.amount, rel=EXACT)
    for f, down in enumerate([frozenset(), *(case.capacities.failures if protects else ())]):
        carried = np.zeros((len(spans_s), len(case.arcs)))
        for one, mine in zip(calendar.requests, calendar.bps, strict=True):
            for p, links in enumerate(one.tunnels_after_failure[f - 1] if f else one.tunnels):
                carried[:, list(links)] += mine[:, [p]]
        room = np.array([case.bps(at_s) for at_s in calendar.edges_s[:-1]]).reshape(carried.shape)
        room[:, list(down)] = 0.0
        assert (carried <= room + 100 * EXACT).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_from_one_source_admission_agrees_with_the_maximum_flow_over_time(seed: int) -> None:
    """With one source, the most that a request can get is the maximum flow less the earlier promises."""
    case = Case(seed, requests=4, one_source=True, rates=False)
    found, calendar = decide_all(case.capacities, [replace(one, latest_s=0.0) for one in case.requests], protects=False)
    check_calendar(case, calendar, protects=False)
    for kept, one in with_earlier_promises(found):
        most = flow_over_time(case, [*kept, replace(one.request, amount=1e4)]) - sum(other.amount for other in kept)
        assert (one.outcome == ADMITTED) == (one.request.amount <= most + EXACT)
        if one.outcome == REFUSED:
            assert one.most == pytest.approx(most, abs=1e-4)


def flow_over_time(case: Case, requests: Sequence[Request]) -> float:
    """Return the maximum flow from node 0 to the requests over all intervals, computed by networkx."""
    graph = networkx.DiGraph()
    graph.add_node("to")
    for i, (low_s, high_s) in enumerate(case.intervals(requests)):
        graph.add_edge("from", (i, 0))
        for (a, b), bps in zip(case.arcs, case.bps(low_s), strict=True):
            graph.add_edge((i, a), (i, b), capacity=float(bps * (high_s - low_s)))
        for one in requests:
            if one.begin_s <= low_s < high_s <= one.end_s:
                graph.add_edge((i, case.ends[one.name][1]), one.name)
                graph.add_edge(one.name, "to", capacity=one.amount)
    return float(networkx.maximum_flow_value(graph, "from", "to"))


@pytest.mark.parametrize("protects", [False, True])
def test_every_admission_answer_is_optimal_by_an_independent_linear_programme(protects: bool) -> None:
    seen = dict.fromkeys((ADMITTED, DEFERRED, REFUSED), 0)
    for seed in range(25 if protects else 60):
        case = Case(seed, requests=4, protects=protects)
        found, calendar = decide_all(case.capacities, case.requests, protects=protects)
        check_calendar(case, calendar, protects=protects)
        for kept, one in with_earlier_promises(found):
            seen[one.outcome] += 1
            asked = one.request
            assert case.fits([*kept, asked], protects=protects) == (one.outcome == ADMITTED)
            if one.outcome == REFUSED:
                assert not case.fits(with_amount(kept, asked, one.most + 1e-3), protects=protects)
                if one.most > 0:
                    assert case.fits(with_amount(kept, asked, max(0.0, one.most - 1e-5)), protects=protects)
            if one.outcome == DEFERRED:
                assert one.promised is not None and asked.end_s < one.promised.end_s <= asked.latest_s
                assert case.fits([*kept, one.promised.until(one.promised.end_s + 1e-5)], protects=protects)
                for end_s in np.linspace(asked.end_s, one.promised.end_s - 1e-3, 7):
                    assert not case.fits([*kept, asked.until(float(end_s))], protects=protects)
    assert min(seen.values()) > 8, seen


def test_after_a_link_failure_all_promises_are_kept_exactly_if_they_still_fit() -> None:
    refused = 0
    for seed in range(60):
        case = Case(seed, requests=4)
        _, calendar = decide_all(case.capacities, case.requests, protects=False)
        down = random.Random(seed).choice(case.capacities.failures)
        left, later = decide_after_failure(case.capacities, calendar, down, at_s=3.5)
        without = Case(seed, requests=4)
        without.capacities = case.capacities.without(down)
        check_calendar(without, later, protects=False)
        assert without.fits([one.request for one in left]) == all(one.outcome == ADMITTED for one in left)
        refused += sum(one.outcome == REFUSED for one in left)
        for one in left:  # what was sent before the failure is not sent again
            if not one.request.is_rate:
                (of,) = [i for i, other in enumerate(calendar.requests) if other.name == one.request.name]
                sent_s = np.clip(3.5 - calendar.edges_s[:-1], 0.0, np.diff(calendar.edges_s))
                sent = sent_s @ calendar.bps[of].sum(axis=1)
                assert sent + one.request.amount == pytest.approx(calendar.requests[of].amount, rel=1e-5)
    assert refused > 10


def test_an_earlier_promise_moves_to_other_tunnels_and_times_for_an_urgent_request() -> None:
    """The early promise gives up the fast tunnel in the only second in which the urgent request can use it."""
    capacities = Capacities(bps=np.array([[10.0, 1.0]]))
    early = Request(name="early", tunnels=((0,), (1,)), amount=10.0, begin_s=0.0, end_s=10.0)
    urgent = Request(name="urgent", tunnels=((0,),), amount=10.0, begin_s=0.0, end_s=1.0)
    assert decide_all(capacities, [early], protects=False)[1].bps[0][0, 0] > 0
    found, calendar = decide_all(capacities, [early, urgent], protects=False)
    assert [one.outcome for one in found] == [ADMITTED, ADMITTED]
    first = calendar.edges_s[:-1] < 1.0
    np.testing.assert_allclose(calendar.bps[1][first], [[10.0]])
    np.testing.assert_allclose(calendar.bps[0][first][:, 0], 0.0, atol=1e-9)


def test_instants_that_differ_only_by_rounding_errors_are_merged() -> None:
    """In an interval of 1e-14 s, the solver's tolerance would allow any rate, even a negative one."""
    one = Request(name="one", tunnels=((0,), (1,)), amount=2.0, begin_s=0.0, end_s=1.0, stops_early_s=(0.0, 0.3))
    other = replace(one, name="other", end_s=0.7 + 4e-11)
    _, calendar = decide_all(Capacities(bps=np.array([[10.0, 10.0]])), [one, other], protects=False)
    assert np.diff(calendar.edges_s) == pytest.approx([0.4, 0.3, 0.3])


def test_no_requests_give_an_empty_calendar() -> None:
    found, calendar = decide_all(Capacities(bps=np.ones((1, 2))), [], protects=True)
    assert found == [] and calendar.requests == ()


def test_an_impossible_request_has_no_earliest_end_and_a_huge_one_is_deferred() -> None:
    capacities = Capacities(bps=np.array([[10.0]]), failures=(frozenset({0}),))
    one = Request(name="r", tunnels=((0,),), amount=11.0, begin_s=0.0, end_s=1.0, is_rate=True, latest_s=math.inf)
    one = replace(one, tunnels_after_failure=(one.tunnels,))  # the only tunnel has no substitute
    (found,), _ = decide_all(capacities, [one], protects=False)
    assert (found.outcome, found.earliest_s) == (REFUSED, None) and found.most == pytest.approx(10.0)
    (found,), _ = decide_all(capacities, [replace(one, amount=1.0)], protects=True)
    assert (found.outcome, found.earliest_s) == (REFUSED, None) and found.most == pytest.approx(0.0)
    (found,), _ = decide_all(capacities, [replace(one, amount=1e15, is_rate=False)], protects=False)
    assert (
        found.outcome == DEFERRED
        and found.promised is not None
        and found.promised.end_s == pytest.approx(1e14, rel=2e-6)
    )


def test_answers_are_the_same_when_the_solvers_presolve_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(3, requests=4, protects=True)
    wanted, _ = decide_all(case.capacities, case.requests, protects=True)

    def failing(*given: object, options: dict[str, bool], **more: object) -> object:
        found = linprog(*given, options=options, **more)
        found.status = 4 if options["presolve"] else found.status
        return found

    monkeypatch.setattr("scipy.optimize.linprog", failing)
    found, _ = decide_all(case.capacities, case.requests, protects=True)
    assert [one.outcome for one in found] == [one.outcome for one in wanted]
    assert [one.earliest_s for one in found] == pytest.approx([one.earliest_s for one in wanted], rel=EXACT)
