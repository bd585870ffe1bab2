"""Rings of several tenants: search against all orders, starts against processor sharing, CP-SAT against all plans."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import inf

import numpy as np
import pytest

from analysis.model.tenant_rings import Floats, Orders, best_starts, search, take_turns


def test_the_search_finds_the_shortest_ring_of_six_points() -> None:
    points = np.random.default_rng(1).random((6, 2))

    def length(orders: Orders) -> Floats:
        steps = points[orders] - points[np.roll(orders, 1, axis=-1)]
        lengths: Floats = np.linalg.norm(steps, axis=-1).sum(axis=(1, 2))
        return lengths

    every = np.array([[order] for order in permutations(range(6))])
    first = every[int(np.argmax(length(every)))]
    found = [search(first, length, rng=np.random.default_rng(2), rounds=60, width=8) for _ in range(2)]
    assert length(found[0][None])[0] == pytest.approx(length(every).min())
    assert (found[0] == found[1]).all()


def shared_server(work: Sequence[float], starts: Sequence[float]) -> list[float]:
    """The ends of jobs that share a server equally, in steps from one start or end to the next."""
    left, ends, now = list(work), [inf] * len(work), 0.0
    while any(left):
        here = [job for job, more in enumerate(left) if more and starts[job] <= now]
        later = min((start for job, start in enumerate(starts) if left[job] and start > now), default=inf)
        step = min([later - now, *(left[job] * len(here) for job in here)])
        for job in here:
            left[job] -= step / len(here)
            if left[job] < 1e-9:
                left[job], ends[job] = 0.0, now + step
        now += step
    return ends


def test_jobs_that_share_one_server_begin_in_turn_the_shortest_first() -> None:
    work = (3.0, 1.0, 2.0)
    starts = best_starts(3, lambda starts: shared_server(work, starts))
    assert starts == pytest.approx((3.0, 0.0, 1.0))
    assert shared_server(work, starts) == pytest.approx([6.0, 1.0, 3.0])


def test_jobs_with_servers_of_their_own_begin_at_once() -> None:
    assert best_starts(3, lambda starts: [start + 2.0 for start in starts]) == (0.0, 0.0, 0.0)


def all_turns(servers: Sequence[Sequence[int]], edges: Sequence[dict[tuple[int, int], list[int]]]) -> Iterator[float]:
    """The sum of ends of every two rings, at once if they share no port, and else one after the other."""
    for rings in product(*([(own[0], *rest) for rest in permutations(own[1:])] for own in servers)):
        lasts, used = [], []
        for ring, ports in zip(rings, edges, strict=True):
            load: dict[int, int] = {}
            for edge in zip(ring, (*ring[1:], ring[0]), strict=True):
                for port in ports[edge]:
                    load[port] = load.get(port, 0) + 1
            lasts.append(max(1, 2 * max(load.values(), default=0)))
            used.append(set(load))
        yield sum(lasts) + (min(lasts) if used[0] & used[1] else 0)


@pytest.mark.optimum
@pytest.mark.parametrize("seed", range(6))
def test_turns_are_the_best_of_all_plans_of_two_tenants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    servers = [[0, 1, 2, 3], [4, 5, 6, 7]]
    edges: list[dict[tuple[int, int], list[int]]] = [
        {(a, b): [int(rng.integers(5))] if rng.random() < 0.6 else [] for a in own for b in own if a != b}
        for own in servers
    ]
    found = take_turns(servers, edges, alone=1, shared=2, search=10.0)
    assert found.proven and sum(found.ends) == min(all_turns(servers, edges))
    assert [sorted(order) for order in found.orders.tolist()] == servers
