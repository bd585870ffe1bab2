"""The max-plus timing model of schedules, against closed forms, an event loop and the recursion of the ring."""

import heapq
import math
import random

import numpy as np
import pytest

from analysis.model import fluid, max_plus
from analysis.model.max_plus import Hop
from hosts.collectives.kinds import ALGORITHMS, schedule
from hosts.collectives.schedule import Schedule, Transfer

ALPHA, SLOT = 13e-6, 1.7e-3


def completion(found: Schedule, slot_s: float = SLOT) -> float:
    flows = len(found.flows), 1
    return float(max_plus.times(found.transfers, np.full(flows, ALPHA), np.full(flows, slot_s)).arrives_s.max())


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
def test_with_constant_rates_schedules_take_their_closed_form_times(n: int) -> None:
    sites, whole_s, pieces = (n - 1, 1), SLOT * n, 6
    log = math.log2(n)
    forms = {
        ("allgather", "ring", 1): (n - 1) * (ALPHA + SLOT),
        ("reducescatter", "ring", 1): (n - 1) * (ALPHA + SLOT),
        ("allreduce", "ring", 1): 2 * (n - 1) * (ALPHA + whole_s / n),
        ("broadcast", "chain", pieces): (n - 1) * (ALPHA + SLOT) + (pieces - 1) * SLOT,
        ("alltoall", "direct", 1): ALPHA + SLOT,
    }
    if log.is_integer():
        forms["allreduce", "halving-doubling", 1] = 2 * ALPHA * log + 2 * (n - 1) / n * whole_s
    for (kind, algorithm, cut), right in forms.items():
        found = completion(schedule(kind, algorithm, sites=sites, pieces=cut))
        assert found == pytest.approx(right, rel=1e-12), (kind, algorithm)


def ring_recursion_s(alpha: list[float], beta: list[float]) -> float:
    """Return the greatest A(n-1, .): F(s, r) = max(A(s-1, r-1), F(s-1, r)) + beta_r; A(s, r) = F(s, r) + alpha_r."""
    left, arrived = [0.0] * len(alpha), [0.0] * len(alpha)
    for _ in range(len(alpha) - 1):
        left = [max(arrived[r - 1], left[r]) + beta[r] for r in range(len(alpha))]
        arrived = [left[r] + alpha[r] for r in range(len(alpha))]
    return max(arrived)


@pytest.mark.parametrize("n", [2, 3, 8, 16])
def test_max_plus_times_of_a_ring_equal_the_ring_recursion_bit_for_bit(n: int) -> None:
    found = schedule("allgather", "ring", sites=(n - 1, 1))
    alpha, beta = np.random.default_rng(5).uniform(0, 1, (2, 50, n))
    right = [ring_recursion_s(*edges) for edges in zip(alpha.tolist(), beta.tolist(), strict=True)]
    sources = [flow.src for flow in found.flows]
    assert max_plus.completion_s(found.transfers, alpha.T[sources], beta.T[sources]).tolist() == right


@pytest.mark.parametrize(("kind", "algorithm"), [(kind, one) for kind, found in ALGORITHMS.items() for one in found])
@pytest.mark.parametrize(("sites", "pieces"), [((4, 4), 1), ((3, 2), 3), ((2, 3, 2), 1)])
def test_the_completion_of_a_compiled_schedule_is_its_last_arrival(
    kind: str, algorithm: str, sites: tuple[int, ...], pieces: int
) -> None:
    found = schedule(kind, algorithm, sites=sites, pieces=pieces)
    rng = np.random.default_rng(len(found.transfers))
    alpha, beta = rng.choice([0.1, 0.2, 0.7, 1.3], (2, len(found.flows), 9001))  # with ties
    compiled = max_plus.CompiledSchedule(found.transfers)
    ends_s = compiled.completion_s(alpha, beta)
    assert (ends_s == max_plus.times(found.transfers, alpha, beta).arrives_s.max(axis=0)).all()
    one = compiled.completion_s(alpha[:, 7:8], beta[:, 7:8])
    assert one.shape == (1,) and one == ends_s[7]


@pytest.mark.parametrize("seed", range(20))
def test_max_plus_times_of_random_graphs_equal_an_event_loop(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        flows = rng.randint(1, 5)
        streams = {flow for flow in range(flows) if rng.random() < 0.3}
        transfers = []
        for index in range(rng.randint(1, 25)):
            flow, after = rng.randrange(flows), rng.sample(range(index), min(index, rng.randint(0, 3)))
            slots = () if flow in streams else ((0, 0),) * rng.randint(1, 3)
            size = rng.choice([0.0, rng.random()]) if flow in streams else 0.0
            transfers.append(Transfer(flow=flow, slots=slots, size=size, after=tuple(sorted(after))))
        alpha, beta = np.random.default_rng(rng.getrandbits(32)).uniform(0, 1, (2, flows, 4))
        alpha[list(streams)], beta[list(streams)] = 0.0, 1.0
        last_s = [event_loop_s(transfers, alpha[:, [one]], beta[:, [one]]) for one in range(4)]
        found = max_plus.times(transfers, alpha, beta)
        assert found.arrives_s.max(axis=0) == pytest.approx(last_s, rel=1e-12)
        assert max_plus.completion_s(transfers, alpha, beta) == pytest.approx(last_s, rel=1e-12)
        path = max_plus.critical_path(transfers, found)
        assert sum(step.seconds for step in path) == pytest.approx(last_s[0], rel=1e-12)
        hops = [[Hop(f"{i}", 1.0, 0.25 * delay), Hop("all", 2.0, 0.75 * delay)] for i, delay in enumerate(alpha[:, 0])]
        costs = max_plus.seconds_by_link(transfers, path, hops).values()
        assert sum(cost.seconds for cost in costs) == pytest.approx(last_s[0], rel=1e-12)


def test_critical_path_seconds_are_attributed_to_links_as_computed_by_hand() -> None:
    """Two successive messages cross links a and b; after a computation on g1, an answer crosses c."""
    hops = [[Hop("a", 4.0, 0.25), Hop("b", 2.0, 0.5)], [Hop("c", 8.0, 2.0)], [Hop("g1", math.inf, 0.0)]]
    transfers = [
        Transfer(flow=0, size=1),
        Transfer(flow=0, size=3),
        Transfer(flow=2, size=7.0, after=(1,)),
        Transfer(flow=1, size=8, after=(2,)),
    ]
    alpha, beta = np.array([[0.75], [2.0], [0.0]]), np.array([[0.5], [0.125], [1.0]])  # beta for slots of one bit
    path = max_plus.critical_path(transfers, max_plus.times(transfers, alpha, beta))
    assert [(step.transfer, step.seconds, step.arrives) for step in path] == [
        (0, 0.5, False),
        (1, 2.25, True),
        (2, 7.0, True),
        (3, 3.0, True),
    ]
    found = max_plus.seconds_by_link(transfers, path, hops)
    assert found == {"g1": (7.0, 0.0), "c": (1.0, 2.0), "b": (2.0, 0.5), "a": (0.0, 0.25)}
    assert list(found) == ["g1", "c", "b", "a"]


def test_critical_path_seconds_go_to_the_shared_bottleneck_and_not_to_a_slower_own_link() -> None:
    """Two messages of 80 bits share a link of 10 bit/s: each gets 5, although the first one's own link has 8 bit/s."""
    transfers = [Transfer(flow=0, size=1), Transfer(flow=1, size=1)]
    links, capacity = np.array([[[0, 1], [1, 2]]], np.int32), np.array([[8.0, 10.0, 100.0]])
    found = fluid.times(transfers, links, capacity, np.zeros((1, 2)), slot_bytes=10)
    path = max_plus.critical_path(transfers, found)
    hops = [[Hop("a", 8.0, 0.0), Hop("w", 10.0, 0.0)], [Hop("w", 10.0, 0.0), Hop("b", 100.0, 0.0)]]
    limits = fluid.bottleneck_names(found, ["a", "w", "b"])
    assert max_plus.seconds_by_link(transfers, path, hops, limits) == {"w": (pytest.approx(16.0), 0.0)}
    assert max_plus.seconds_by_link(transfers, path, hops) == {"a": (pytest.approx(16.0), 0.0)}


def test_a_measured_critical_path_follows_last_dependencies_and_includes_waiting_gaps() -> None:
    transfers = [Transfer(flow=0, size=1), Transfer(flow=1, size=1), Transfer(flow=2, size=1, after=(0, 1))]
    leaves, arrives = np.array([[1.0], [2.0], [5.5]]), np.array([[1.5], [2.5], [6.0]])
    found = max_plus.Times(begins_s=np.array([[0.0], [0.5], [3.0]]), leaves_s=leaves, arrives_s=arrives)
    path = max_plus.critical_path(transfers, found)
    assert [(step.transfer, step.seconds) for step in path] == [(1, 2.5), (2, 3.5)]


def test_of_simultaneous_events_the_critical_path_follows_an_arrival_and_then_the_earliest_transfer() -> None:
    """Transfers 0 and 1 arrive, and transfer 2 leaves, at the same time; transfer 3 waits for all three."""
    transfers = [
        Transfer(flow=0, size=1),
        Transfer(flow=1, size=1),
        Transfer(flow=2, size=2),
        Transfer(flow=2, size=1, after=(1, 0)),
    ]
    alpha, beta = np.array([[1.0], [1.0], [4.0]]), np.ones((3, 1)) / 8
    path = max_plus.critical_path(transfers, max_plus.times(transfers, alpha, 8 * beta))
    assert [(step.transfer, step.seconds, step.arrives) for step in path] == [(0, 2.0, True), (3, 5.0, True)]


def test_a_schedule_without_transfers_takes_no_time() -> None:
    assert max_plus.completion_s([], np.ones((0, 3)), np.ones((0, 3))).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("alpha", "beta"), [((2, 3), (2, 4)), ((2,), (2,)), ((1, 3), (1, 3))])
def test_alpha_and_beta_arrays_that_do_not_match_the_flows_are_refused(
    alpha: tuple[int, ...], beta: tuple[int, ...]
) -> None:
    transfers = [Transfer(flow=0, size=1.0), Transfer(flow=1, size=1.0)]
    for evaluated in (max_plus.completion_s, max_plus.times):
        with pytest.raises(ValueError, match="flows 2 or more"):
            evaluated(transfers, np.ones(alpha), np.ones(beta))


def event_loop_s(transfers: list[Transfer], alpha: np.ndarray, beta: np.ndarray) -> float:
    """Return when the last transfer arrives in an event simulation; `alpha` and `beta` are [flows, 1], in seconds."""
    flows = len(alpha)
    queues = {flow: [i for i, one in enumerate(transfers) if one.flow == flow] for flow in range(flows)}
    busy, arrived, events, now = set(), set(), [], 0.0
    while len(arrived) < len(transfers):
        for flow, queue in queues.items():
            if queue and flow not in busy and set(transfers[queue[0]].after) <= arrived:
                busy.add(flow)
                heapq.heappush(events, (now + transfers[queue[0]].amount * beta[flow, 0], 0, queue.pop(0)))
        now, has_left, index = heapq.heappop(events)
        if has_left:
            arrived.add(index)
        else:
            busy.discard(transfers[index].flow)
            heapq.heappush(events, (now + alpha[transfers[index].flow, 0], 1, index))
    return now
