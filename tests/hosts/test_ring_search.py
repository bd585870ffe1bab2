"""Rings found by search, and lower bounds on the objective of any ring: against all rings, and against CP-SAT."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.embedding import ring as module
from hosts.embedding.bounds import lower_bounds
from hosts.embedding.ring import OBJECTIVES, best_rings, objective_values
from tests.hosts.test_embedding import all_rings

Floats = npt.NDArray[Any]


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sites of every size too large for the exact choice, so that rings are searched for."""
    monkeypatch.setattr(module, "MAX_EXACT_GPUS", 1)


def instances(n: int, count: int, seed: int, *, missing: float = 0.0) -> tuple[Floats, Floats]:
    """Return random costs and delays, [count, n, n] s, in which either can decide the objective."""
    random = np.random.default_rng(seed)
    delay_s = random.choice([1e-6, 1e-4, 1e-2], (count, n, n))
    cost_s = delay_s + random.choice([1e-4, 1e-3, 1e-2], (count, 1, 1)) * random.uniform(0.1, 1, (count, n, n))
    return np.where(random.random(cost_s.shape) < missing, np.inf, cost_s), delay_s


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(
        [
            *[(2, 2), (3, 3), (4, 3), (2, 2, 2), (2, 3, 2), (2, 2, 2, 2, 2), (2, 2, 3, 2, 2)],
            *[(1, 1), (1, 4), (1, 2, 1), (1, 1, 1, 1, 2), (2,), (5,)],
        ]
    ),
    st.sampled_from(OBJECTIVES),
    st.sampled_from([0.3, 1.0, 4.0]),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 2**32),
)
def test_no_ring_is_below_the_lower_bound_of_its_objective(
    sizes: tuple[int, ...], objective: str, messages: float, missing: float, seed: int
) -> None:
    cost_s, delay_s = instances(sum(sizes), 5, seed, missing=missing)
    found = lower_bounds(cost_s, delay_s, gpus_per_site=sizes, objective=objective, messages=messages)
    rings = all_rings(sizes)
    for k in range(5):
        costs_s, delays_s = (np.broadcast_to(one, (len(rings), *one.shape)) for one in (cost_s[k], delay_s[k]))
        every = objective_values(rings, costs_s, delays_s, objective=objective, messages=messages)
        assert found[k] <= every.min() * (1 + 1e-9)


@pytest.mark.parametrize("sizes", [(4, 4), (3, 3, 3), (2, 3, 2, 2, 2), (1, 7), (8,)])
@pytest.mark.parametrize("ratio", [0.2, 5.0])
def test_the_bound_is_tight_where_crossings_cost_much_less_or_more_than_other_edges(
    sizes: tuple[int, ...], ratio: float
) -> None:
    """Assignments then have too many crossings or too few, unless crossings have a toll."""
    random, site = np.random.default_rng(1), np.repeat(np.arange(len(sizes)), sizes)
    costs_s = random.uniform(1, 2, (30, site.size, site.size))
    cost_s = np.where(site[:, None] != site, ratio, 1.0) * costs_s
    rings = best_rings(cost_s, 0 * cost_s, gpus_per_site=sizes, objective="sum")
    best_s = objective_values(rings, cost_s, 0 * cost_s, objective="sum")
    bounds_s = lower_bounds(cost_s, 0 * cost_s, gpus_per_site=sizes, objective="sum")
    assert 0.97 < (bounds_s / best_s).mean() <= 1


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("sizes", [(4, 4), (6, 5), (3, 2, 3), (4, 3, 4, 3, 4), (8,), (1, 7), (1, 4, 1), (1, 1)])
def test_searched_rings_are_on_average_within_half_a_percent_of_the_best(
    sizes: tuple[int, ...], objective: str, request: pytest.FixtureRequest
) -> None:
    cost_s, delay_s = instances(sum(sizes), 60, 1)
    given = {"gpus_per_site": sizes, "objective": objective}
    best = objective_values(best_rings(cost_s, delay_s, **given), cost_s, delay_s, objective=objective)
    request.getfixturevalue("searched")
    rings = best_rings(cost_s, delay_s, **given)
    ends = np.cumsum((0, *sizes))
    for ring in rings.tolist():
        assert ring[0] == 0 and sorted(ring) == list(range(sum(sizes)))
        sites = np.searchsorted(ends, ring, side="right")
        assert (sites != np.roll(sites, 1)).sum() == (len(sizes) if len(sizes) > 1 else 0)
    found = objective_values(rings, cost_s, delay_s, objective=objective)
    assert (found >= best * (1 - 1e-9)).all()
    assert found.mean() <= 1.005 * best.mean()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_searched_ring_does_not_depend_on_its_batch(objective: str) -> None:
    cost_s, delay_s = instances(26, 6, 2, missing=0.1)
    given = {"gpus_per_site": (13, 13), "objective": objective}
    together = best_rings(cost_s, delay_s, **given)
    alone = [best_rings(cost_s[k : k + 1], delay_s[k : k + 1], **given)[0] for k in range(6)]
    assert (together == np.array(alone)).all()
    assert np.isfinite(objective_values(together, cost_s, delay_s, objective="sum")).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_instance_without_a_ring_is_refused_and_its_bound_is_infinite(objective: str) -> None:
    cost_s, delay_s = instances(28, 2, 3)
    cost_s[1, 5, :] = np.inf  # GPU 5 has no outgoing edge
    given = {"gpus_per_site": (14, 14), "objective": objective}
    with pytest.raises(ValueError, match="no ring"):
        best_rings(cost_s, delay_s, **given)
    assert np.isinf(lower_bounds(cost_s, delay_s, **given)).tolist() == [False, True]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rings_over_8_sites_of_32_gpus_are_within_2_percent_of_the_bound(objective: str) -> None:
    """At the paper's rates, with a different delay between every two sites."""
    random, site = np.random.default_rng(5), np.repeat(np.arange(8), 32)
    crosses = site[:, None] != site
    delay_s = np.where(crosses, random.uniform(1e-3, 20e-3, (8, 8))[site][:, site], 0.7e-6)[None]
    rates_bps = np.where(crosses, random.uniform(10e9, 100e9, (8, 8))[site][:, site], 200e9)
    slot_s = 8 * 8e6 / np.minimum(rates_bps, random.uniform(20e9, 200e9, (256, 256)))[None]
    given = {"gpus_per_site": (32,) * 8, "objective": objective}
    rings = best_rings(slot_s + delay_s, delay_s, **given)
    assert sorted(rings[0].tolist()) == list(range(256)) and (site[rings[0]] != site[np.roll(rings[0], 1)]).sum() == 8
    found_s = objective_values(rings, slot_s + delay_s, delay_s, objective=objective)[0]
    least_s = lower_bounds(slot_s + delay_s, delay_s, **given)[0]
    assert least_s * (1 - 1e-9) <= found_s <= 1.02 * least_s


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_feasible_order_of_sites_is_found_where_the_promising_ones_are_infeasible(objective: str) -> None:
    """All short crossings leave a site from the GPU at which they enter it, so that no promising order is feasible."""
    random, site = np.random.default_rng(6), np.repeat(np.arange(5), 26)
    cost_s, delay_s = random.uniform(1e-3, 2e-3, (1, 130, 130)), np.full((1, 130, 130), 1e-6)
    crosses, first = site[:, None] != site, np.flatnonzero(np.diff(site, prepend=-1))
    cost_s[0][crosses] = np.inf
    cost_s[0][np.ix_(first, first)] = 1e-4
    order = [0, 3, 1, 4, 2]
    for a, b in zip(order, np.roll(order, -1), strict=True):
        cost_s[0][np.ix_(first[a] + np.arange(2, 8), first[b] + np.arange(8, 14))] = 9e-3
    rings = best_rings(cost_s, delay_s, gpus_per_site=(26,) * 5, objective=objective)
    assert list(dict.fromkeys(site[rings[0]].tolist())) == order


@pytest.mark.optimum
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("chunk", [8e6, 64e6])
@pytest.mark.parametrize("delay", [10e-6, 10e-3])
def test_rings_over_2_sites_of_32_gpus_are_within_2_percent_of_the_cp_sat_bound(
    delay: float, chunk: float, seed: int
) -> None:
    """The cycle time in CP-SAT: a circuit with two crossings that minimises an upper limit on its terms."""
    from ortools.sat.python import cp_model

    size, n = 32, 64
    random = np.random.default_rng(seed)
    crosses = np.repeat([0, 1], size)[:, None] != np.repeat([0, 1], size)
    delay_s = np.where(crosses, delay, 0.7e-6)[None]
    rates_bps = np.where(crosses, random.uniform(10e9, 100e9, (n, n)), random.uniform(20e9, 200e9, (n, n)))
    slot_s = 8 * chunk / rates_bps[None]
    rings = best_rings(slot_s + delay_s, delay_s, gpus_per_site=(size, size), objective="cycle time")
    found_s = objective_values(rings, slot_s + delay_s, delay_s, objective="cycle time")[0]

    model, ns = cp_model.CpModel(), 1e9
    cycle_ns = model.new_int_var(0, int(n * found_s * ns) + n, "")  # n times the cycle time
    arcs = {(a, b): model.new_bool_var("") for a in range(n) for b in range(n) if a != b}
    model.add_circuit([(a, b, used) for (a, b), used in arcs.items()])
    model.add(sum(used for ends, used in arcs.items() if crosses[ends]) == 2)
    slots, costs = (np.floor(part[0] * ns).astype(int) for part in (slot_s, slot_s + delay_s))
    model.add(cycle_ns >= sum(int(costs[ends]) * used for ends, used in arcs.items()))
    for a in range(n):
        model.add(cycle_ns >= sum(n * int(slots[ends]) * used for ends, used in arcs.items() if ends[0] == a))
    model.minimize(cycle_ns)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_deterministic_time = 1, 60
    assert solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bound_s = solver.best_objective_bound / ns / n
    assert bound_s * (1 - 1e-6) <= found_s <= 1.02 * bound_s
    assert lower_bounds(slot_s + delay_s, delay_s, gpus_per_site=(size, size), objective="cycle time")[0] <= found_s
