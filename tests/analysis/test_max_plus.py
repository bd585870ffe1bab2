"""The timing model of schedules, against closed forms, an event loop and the ring's own recursion."""

import heapq
import math
import random

import numpy as np
import pytest

from analysis.model import alpha_beta, max_plus
from analysis.model.max_plus import Hop
from hosts.collectives.kinds import schedule
from hosts.collectives.schedule import Schedule, Transfer

ALPHA, SLOT = 13e-6, 1.7e-3


def completion(found: Schedule, slot_s: float = SLOT) -> float:
    flows = len(found.flows), 1
    return float(max_plus.times(found.transfers, np.full(flows, ALPHA), np.full(flows, slot_s)).arrives_s.max())


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
def test_constant_rates_give_the_closed_forms(n: int) -> None:
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


def test_on_a_ring_it_is_the_recursion_of_the_ring() -> None:
    rng = np.random.default_rng(5)
    for n in (2, 3, 8, 16):
        found = schedule("allgather", "ring", sites=(n - 1, 1))
        alpha, beta = rng.uniform(0, 1, (2, 50, n))
        sources = [flow.src for flow in found.flows]
        ours = max_plus.times(found.transfers, alpha.T[sources], beta.T[sources]).arrives_s.max(axis=0)
        np.testing.assert_allclose(ours, alpha_beta.completion_s(alpha, beta), rtol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_take_as_long_as_in_an_event_loop(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        flows = rng.randint(1, 5)
        transfers = [
            Transfer(
                flow=rng.randrange(flows),
                slots=((0, 0),) * rng.randint(1, 3),
                after=tuple(sorted(rng.sample(range(index), min(index, rng.randint(0, 3))))),
            )
            for index in range(rng.randint(1, 25))
        ]
        alpha, beta = np.random.default_rng(rng.getrandbits(32)).uniform(0, 1, (2, flows, 1))
        last_s = event_loop_s(transfers, alpha, beta)
        found = max_plus.times(transfers, alpha, beta)
        assert found.arrives_s.max() == pytest.approx(last_s, rel=1e-12)
        path = max_plus.critical_path(transfers, found)
        assert sum(step.seconds for step in path) == pytest.approx(last_s, rel=1e-12)
        hops = [[Hop(f"{i}", 1.0, 0.25 * delay), Hop("all", 2.0, 0.75 * delay)] for i, delay in enumerate(alpha[:, 0])]
        costs = max_plus.seconds_by_link(transfers, path, hops).values()
        assert sum(cost.seconds for cost in costs) == pytest.approx(last_s, rel=1e-12)


def test_the_seconds_of_a_path_are_those_of_its_links_by_hand() -> None:
    """Two messages one behind the other over a and b, then the answer over c, after a computation."""
    hops = [[Hop("a", 4.0, 0.25), Hop("b", 2.0, 0.5)], [Hop("c", 8.0, 2.0)], [Hop("g1", math.inf, 0.0)]]
    transfers = [
        Transfer(flow=0, size=1),
        Transfer(flow=0, size=3),
        Transfer(flow=2, size=7.0, after=(1,)),
        Transfer(flow=1, size=8, after=(2,)),
    ]
    alpha, beta = np.array([[0.75], [2.0], [0.0]]), np.array([[0.5], [0.125], [1.0]])  # beta: one bit a slot
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


def test_a_measured_path_is_what_each_transfer_waited_for_last_and_gaps_are_the_later_ones() -> None:
    transfers = [Transfer(flow=0, size=1), Transfer(flow=1, size=1), Transfer(flow=2, size=1, after=(0, 1))]
    leaves, arrives = np.array([[1.0], [2.0], [5.5]]), np.array([[1.5], [2.5], [6.0]])
    found = max_plus.Times(begins_s=np.array([[0.0], [0.5], [3.0]]), leaves_s=leaves, arrives_s=arrives)
    path = max_plus.critical_path(transfers, found)
    assert [(step.transfer, step.seconds) for step in path] == [(1, 2.5), (2, 3.5)]


def event_loop_s(transfers: list[Transfer], alpha: np.ndarray, beta: np.ndarray) -> float:
    """When the last transfer arrives, by events in the order of their times; `alpha` and `beta` are [flows, 1]."""
    flows = len(alpha)
    queues = {flow: [i for i, one in enumerate(transfers) if one.flow == flow] for flow in range(flows)}
    busy, arrived, events, now = set(), set(), [], 0.0
    while len(arrived) < len(transfers):
        for flow, queue in queues.items():
            if queue and flow not in busy and set(transfers[queue[0]].after) <= arrived:
                busy.add(flow)
                heapq.heappush(events, (now + len(transfers[queue[0]].slots) * beta[flow, 0], 0, queue.pop(0)))
        now, has_left, index = heapq.heappop(events)
        if has_left:
            arrived.add(index)
        else:
            busy.discard(transfers[index].flow)
            heapq.heappush(events, (now + alpha[transfers[index].flow, 0], 1, index))
    return now
