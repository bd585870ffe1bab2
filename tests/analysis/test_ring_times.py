"""The timing model of a ring AllGather, against an independent event simulation and closed forms."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model import max_plus
from hosts.collectives.algorithms import ring_allgather

times = st.floats(1e-9, 10.0)


def completion_s(alpha_s: np.ndarray, beta_s: np.ndarray) -> np.ndarray:
    """Return the model's times of rings, [K], whose edges have these delays and times per chunk, [K, n]."""
    return max_plus.completion_s(ring_allgather(alpha_s.shape[1]).transfers, alpha_s.T, beta_s.T)


def simulate(alpha_s: list[float], beta_s: list[float]) -> list[list[tuple[float, float]]]:
    """Simulate an AllGather: every rank queues the chunks that it receives, and its one sender sends them in turn.

    Returns for every rank's edge when each of its transfers left and arrived, in order.
    """
    n = len(alpha_s)
    queues: list[list[int]] = [[] for _ in range(n)]
    busy = [False] * n
    moves: list[list[tuple[float, float]]] = [[] for _ in range(n)]
    held = [{rank} for rank in range(n)]
    events: list[tuple[float, int, str, int, int]] = []
    serial = 0
    now = 0.0

    def post(at: float, what: str, rank: int, chunk: int) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(events, (at, serial, what, rank, chunk))

    def offer(rank: int) -> None:
        if queues[rank] and not busy[rank]:
            busy[rank] = True
            moves[rank].append((now, now + beta_s[rank] + alpha_s[rank]))
            post(now + beta_s[rank], "sent", rank, queues[rank].pop(0))

    for rank in range(n):
        queues[rank].append(rank)
        offer(rank)
    while events:
        now, _, what, rank, chunk = heapq.heappop(events)
        if what == "sent":
            busy[rank] = False
            post(now + alpha_s[rank], "arrived", (rank + 1) % n, chunk)
        else:
            held[rank].add(chunk)
            if chunk != (rank + 1) % n:  # the successor's own chunk has gone all the way round
                queues[rank].append(chunk)
        offer(rank)
    assert all(len(chunks) == n for chunks in held)
    return moves


def end_s(moves: list[list[tuple[float, float]]]) -> float:
    return max(arrives for edge in moves for _, arrives in edge)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(times, times), min_size=2, max_size=12))
def test_ring_allgather_times_equal_an_event_simulation(edges: list[tuple[float, float]]) -> None:
    alpha, beta = zip(*edges, strict=True)
    moves = simulate([*alpha], [*beta])
    assert completion_s(np.array([alpha]), np.array([beta]))[0] == pytest.approx(end_s(moves), rel=1e-9)
    n = len(edges)
    found = max_plus.times(ring_allgather(n).transfers, np.array(alpha)[:, None], np.array(beta)[:, None])
    leaves, arrives = (part.reshape(n - 1, n).T for part in (found.begins_s, found.arrives_s))
    assert pytest.approx(np.array([[move[0] for move in edge] for edge in moves]), rel=1e-9) == leaves
    assert pytest.approx(np.array([[move[1] for move in edge] for edge in moves]), rel=1e-9) == arrives


def test_ring_allgather_times_equal_a_simulation_at_the_papers_rates_and_delays() -> None:
    random = np.random.default_rng(5)
    for n in (4, 8, 16):
        alpha = np.where(random.random((60, n)) < 0.2, random.choice([1e-5, 1e-4, 1e-3, 1e-2], (60, n)), 0.7e-6)
        beta = 8 * 64e6 / random.uniform(10e9, 200e9, (60, n))
        expected = [end_s(simulate(a.tolist(), b.tolist())) for a, b in zip(alpha, beta, strict=True)]
        assert completion_s(alpha, beta) == pytest.approx(expected, rel=1e-9)


@given(st.integers(2, 12), st.floats(1e-6, 1e-3), st.floats(1e-3, 1.0), st.floats(0.0, 0.1))
def test_each_of_two_wan_crossings_adds_its_delay_once_to_a_ring_allgather(
    n: int, alpha: float, beta: float, extra: float
) -> None:
    """A chunk travels all edges but one, so some chunk that arrives last has crossed both slow edges."""
    alphas = np.full((1, 2 * n), alpha)
    alphas[0, [n - 1, 2 * n - 1]] += extra
    expected = (2 * n - 1) * (alpha + beta) + 2 * extra
    assert completion_s(alphas, np.full((1, 2 * n), beta))[0] == pytest.approx(expected, rel=1e-12)


def test_batch_size_does_not_change_completion_times() -> None:
    alpha, beta = np.random.default_rng(1).random((2, 9000, 4))
    alone = np.concatenate([completion_s(alpha[k : k + 7], beta[k : k + 7]) for k in range(0, 9000, 7)])
    assert (completion_s(alpha, beta) == alone).all()
