"""The exact choice of a ring, against all rings, against random rings, and against itself in other batches."""

from itertools import permutations, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.embedding.ring import OBJECTIVES, best_rings, rank_order

Floats = npt.NDArray[Any]


def ranks_of(sizes: tuple[int, ...]) -> list[list[int]]:
    ends = np.cumsum(sizes)
    return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def all_rings(sizes: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """Return all rings that visit every site once, from their first GPU in site 0, in the order of tie-breaking."""
    sites = ranks_of(sizes)
    keyed = []
    for cycle in permutations(range(1, len(sizes))):
        for legs in product(*(list(permutations(sites[site])) for site in (0, *cycle))):
            gates = [rank for leg in legs for rank in (leg[0], leg[-1])]
            keyed.append((cycle, gates, [rank for leg in legs for rank in leg]))
    return np.array([ring for _, _, ring in sorted(keyed)])


def brute_force(
    cost: Floats, delay: Floats, rings: npt.NDArray[np.intp], objective: str = "slowest edge", messages: float = 1.0
) -> list[int]:
    after = np.roll(rings, -1, axis=1)
    on_delays, on_costs = (np.rint(edges[rings, after] * 1e12).sum(axis=1) for edges in (delay, cost))
    slots = np.rint((cost - delay)[rings, after] * 1e12)
    first, then = {
        "slowest edge": (cost[rings, after].max(axis=1), on_delays),
        "cycle time": (np.maximum(messages * rings.shape[1] * slots.max(axis=1), on_costs), on_costs),
        "sum": (on_costs, on_costs),
    }[objective]
    best: list[int] = rings[np.lexsort((then, first))[0]].tolist()  # lexsort is stable: the first of equals
    return best[best.index(0) :] + best[: best.index(0)]


def instances(kind: str, count: int, n: int) -> tuple[Floats, Floats]:
    random = np.random.default_rng(n * 1000 + len(kind))
    ties = random.integers(1, 6, (count, n, n)).astype(float)
    delay = random.integers(0, 4, (count, n, n)) * 1e-6
    if kind == "ties":
        return ties, delay
    if kind == "equal delays":
        return ties, np.full_like(delay, 0.7e-6)
    if kind == "missing edges":
        return np.where(random.random(ties.shape) < 0.15, np.inf, ties), delay
    return random.random((count, n, n)), delay


@pytest.mark.parametrize("kind", ["ties", "equal delays", "missing edges", "no ties"])
@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        *[((2, 2), 300), ((3, 2), 300), ((2, 4), 200), ((3, 3), 200), ((4, 4), 150), ((5, 3), 100), ((5, 5), 40)],
        *[((2, 2, 2), 100), ((3, 2, 2), 60), ((2, 2, 2, 2), 30)],
        *[((1, 1), 60), ((1, 4), 60), ((3, 1), 60), ((1, 2, 1), 60), ((1, 1, 1, 1), 60), ((2,), 60), ((3,), 60)],
        *[((4,), 60), ((6,), 20)],
    ],
)
def test_the_slowest_edge_ring_is_the_first_of_the_best_of_all_rings(
    sizes: tuple[int, ...], count: int, kind: str
) -> None:
    cost, delay = instances(kind, count, sum(sizes))
    rings = all_rings(sizes)
    if kind == "missing edges":
        after = np.roll(rings, -1, axis=1)
        whole = [bool(np.isfinite(c[rings, after]).all(axis=1).any()) for c in cost]
        cost, delay = cost[whole], delay[whole]
        assert len(cost) > count // 2
    chosen = best_rings(cost, delay, gpus_per_site=sizes)
    for k in range(len(cost)):
        assert chosen[k].tolist() == brute_force(cost[k], delay[k], rings)


@pytest.mark.parametrize("kind", ["ties", "equal delays", "missing edges", "no ties"])
@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        *[((2, 2), 300), ((2, 4), 200), ((4, 4), 150), ((5, 3), 100), ((2, 2, 2), 100), ((2, 3, 2), 60)],
        *[((1, 1), 60), ((1, 4), 60), ((1, 2, 1), 60), ((1, 1, 1, 1), 60), ((2,), 60), ((4,), 60), ((6,), 20)],
    ],
)
@pytest.mark.parametrize(("objective", "messages"), [("cycle time", 4.0), ("cycle time", 0.3), ("sum", 1.0)])
def test_the_ring_of_every_other_objective_is_the_first_of_the_best_of_all_rings(
    sizes: tuple[int, ...], count: int, kind: str, objective: str, messages: float
) -> None:
    slot, delay = instances(kind, count, sum(sizes))
    slot = slot * 1e-6
    delay = delay * np.random.default_rng(1).integers(
        0, 9, (count, 1, 1)
    )  # so that either term of the cycle time can decide
    rings = all_rings(sizes)
    whole = np.isfinite(slot[:, rings, np.roll(rings, -1, axis=1)]).all(axis=2).any(axis=1)
    cost, delay = (slot + delay)[whole], delay[whole]
    assert len(cost) > count // 2
    chosen = best_rings(cost, delay, gpus_per_site=sizes, objective=objective, messages=messages)
    for k in range(len(cost)):
        assert chosen[k].tolist() == brute_force(cost[k], delay[k], rings, objective, messages)


def test_scaling_all_costs_does_not_change_the_ring_of_the_least_sum() -> None:
    cost = np.random.default_rng(1).uniform(1, 2, (50, 8, 8))
    rings = [
        best_rings(scale * cost, 0 * cost, gpus_per_site=(4, 4), objective="sum").tolist() for scale in (1, 1e3, 1e12)
    ]
    assert rings[0] == rings[1] == rings[2]


@pytest.mark.parametrize(("size", "count"), [(8, 40), (12, 3)])
def test_no_random_ring_and_no_swap_of_two_gpus_beats_the_chosen_ring(size: int, count: int) -> None:
    n, tries = 2 * size, 4000
    random = np.random.default_rng(size)
    cost = random.random((count, n, n))
    delay = np.full_like(cost, 1e-6)
    delay[:, :size, size:] = random.integers(1, 4, (count, size, size)) * 1e-5
    chosen = best_rings(cost, delay, gpus_per_site=(size, size)).astype(int)
    assert (np.sort(chosen, axis=1) == np.arange(n)).all()
    sites = [np.argsort(random.random((tries, size)), axis=1) + first for first in (0, size)]
    for k, ring in enumerate(chosen):
        swapped = np.repeat(ring[None], tries, axis=0)
        pairs = random.integers(0, n, (tries, 2))
        rows = np.arange(tries)[:, None]
        swapped[rows, pairs] = swapped[rows, pairs[:, ::-1]]
        rivals = np.concatenate([[ring], np.concatenate(sites, axis=1), swapped])
        after = np.roll(rivals, -1, axis=1)
        rivals, after = (part[((rivals < size) != (after < size)).sum(axis=1) == 2] for part in (rivals, after))
        slowest, total = cost[k][rivals, after].max(axis=1), delay[k][rivals, after].sum(axis=1)
        assert (rivals[0] == ring).all() and slowest[0] == slowest.min()
        assert total[0] <= total[slowest == slowest[0]].min() + 1e-15


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) > 1),
    st.integers(0, 2**32),
    st.booleans(),
    st.sampled_from(OBJECTIVES),
)
def test_the_ring_of_an_instance_does_not_depend_on_its_batch(
    sizes: list[int], seed: int, equal: bool, objective: str
) -> None:
    n, random = sum(sizes), np.random.default_rng(seed)
    cost = random.integers(1, 5, (30, n, n)).astype(float)
    delay: Floats = random.integers(0, 3, (30, n, n)) * 1e-6
    if equal:
        delay[:-1] = 1e-6  # all but the last instance, which must not change the rings of the others
    together = best_rings(cost, delay, gpus_per_site=tuple(sizes), objective=objective)
    alone = [
        best_rings(cost[k : k + 1], delay[k : k + 1], gpus_per_site=tuple(sizes), objective=objective)[0]
        for k in range(30)
    ]
    assert (together == np.array(alone)).all()
    shuffled = random.permutation(30)
    assert (
        best_rings(cost[shuffled], delay[shuffled], gpus_per_site=tuple(sizes), objective=objective)
        == together[shuffled]
    ).all()


def test_the_example_in_the_module_docstring_gives_its_ring() -> None:
    cost = np.array([[[0, 1, 9, 9], [1, 0, 3, 9], [9, 9, 0, 1], [5, 9, 1, 0]]], dtype=float)
    assert best_rings(cost, np.zeros_like(cost), gpus_per_site=(2, 2))[0].tolist() == [0, 1, 2, 3]


def test_delays_are_compared_in_picoseconds() -> None:
    cost, delay = np.ones((1, 4, 4)), np.full((1, 4, 4), 3e-6)
    first = best_rings(cost, delay, gpus_per_site=(2, 2))[0].tolist()
    delay[0, 1, 3] = np.nextafter(3e-6, 0)
    assert best_rings(cost, delay, gpus_per_site=(2, 2))[0].tolist() == first
    delay[0, 1, 3] = 3e-6 - 1e-12
    assert best_rings(cost, delay, gpus_per_site=(2, 2))[0].tolist() != first


def test_instances_without_a_ring_and_invalid_arguments_are_refused() -> None:
    square = np.ones((1, 4, 4))
    with pytest.raises(ValueError, match="no ring"):
        best_rings(np.full_like(square, np.inf), square, gpus_per_site=(2, 2))
    with pytest.raises(ValueError, match="both must be"):
        best_rings(square, square[:, :3], gpus_per_site=(2, 2))
    for objective in ("cycle time", "sum"):
        with pytest.raises(ValueError, match="no ring"):
            best_rings(np.full_like(square, np.inf), square, gpus_per_site=(2, 2), objective=objective)
    with pytest.raises(ValueError, match="'cycles' is not an objective of a ring; allowed: slowest edge, cycle time"):
        best_rings(square, square, gpus_per_site=(2, 2), objective="cycles")


def test_rank_order_follows_the_sites() -> None:
    assert rank_order((2, 3)).tolist() == [0, 1, 2, 3, 4]
    assert rank_order((2, 1, 2), (0, 2, 1)).tolist() == [0, 1, 3, 4, 2]
