"""Tenants that share a fabric, each with a collective on a ring: the order of its ranks on its servers, and its start.

`search` improves the orders by any cost, `best_starts` the starts by the times of a model. `take_turns` is the
reference for both: the optimum, by CP-SAT, of the plans in which tenants whose rings share a port take turns.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.model.optimal_schedule import solver_module

Floats = npt.NDArray[np.float64]
Orders = npt.NDArray[np.int64]
"""The servers of each tenant in the order of its ring, [tenants, servers of a tenant]."""

Edges = Mapping[tuple[int, int], Sequence[int]]
"""The shared ports that a tenant passes from one of its servers to another, for every two of them."""

_ROUNDING = 1e-9  # times that differ by less, as a share, are equal


def search(
    first: Orders, cost: Callable[[Orders], Floats], *, rng: np.random.Generator, rounds: int, width: int
) -> Orders:
    """Return the orders of the least cost found by hill climbing from `first`; the same generator finds the same.

    Each of the `rounds` draws `width` neighbours, in which a tenant has exchanged two servers or turned a part of its
    ring around, and goes on from the cheapest of them if it costs no more: equal ones lead out of plateaus. `cost`
    returns the costs, [K], of orders [K, tenants, servers].
    """
    best, least = first, cost(first[None])[0]
    for _ in range(rounds):
        near = np.stack([_neighbour(best, rng) for _ in range(width)])
        costs = cost(near)
        index = int(np.argmin(costs))
        if costs[index] <= least:
            best, least = near[index], costs[index]
    return best


def _neighbour(orders: Orders, rng: np.random.Generator) -> Orders:
    near = orders.copy()
    row = near[rng.integers(len(near))]
    a, b = sorted(rng.choice(len(row), size=2, replace=False).tolist())
    if rng.random() < 0.5:
        row[[a, b]] = row[[b, a]]
    else:
        row[a : b + 1] = row[a : b + 1][::-1].copy()
    return near


def best_starts(tenants: int, ends_s: Callable[[Sequence[float]], Sequence[float]]) -> tuple[float, ...]:
    """Return the best starts in s of all in which a tenant begins at once, or when another one ends.

    `ends_s` are the tenants' ends with given starts. The mean of the ends is minimised, then the last end, and then the
    number of tenants that wait.
    """
    known: dict[tuple[float, ...], Sequence[float]] = {}

    def ends_of(starts: tuple[float, ...]) -> Sequence[float]:
        if starts not in known:  # many orders begin alike
            known[starts] = ends_s(starts)
        return known[starts]

    at_once = (0.0,) * tenants
    never_s = sum(ends_of(at_once))  # a start that disturbs none of those that begin before
    tried = {at_once}
    for order in itertools.permutations(range(tenants)):
        for first in range(1, tenants):
            for waits in itertools.product(*(order[:place] for place in range(first, tenants))):
                starts = [0.0 if tenant in order[:first] else never_s for tenant in range(tenants)]
                for tenant, other in zip(order[first:], waits, strict=True):
                    starts[tenant] = ends_of(tuple(starts))[other]
                tried.add(tuple(starts))

    def cost(starts: tuple[float, ...]) -> tuple[float, float, int, tuple[float, ...]]:
        ends = ends_of(starts)
        scale = _ROUNDING * never_s
        return round(sum(ends) / scale), round(max(ends) / scale), sum(map(bool, starts)), starts

    return min(tried, key=cost)


@dataclass(frozen=True, kw_only=True)
class Turns:
    """A plan in which tenants whose rings share a port take turns: the orders, and starts and ends in units of the
    formulation (`take_turns`). `proven`: no such plan is better."""

    orders: Orders
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    proven: bool


def take_turns(
    servers: Sequence[Sequence[int]], edges: Sequence[Edges], *, alone: int, shared: int, search: float
) -> Turns:
    """Return the best plan in which tenants whose rings share a port take turns: that with the least sum of ends, and
    of these the one with the least last end.

    `servers` are those of each tenant, and `edges` the shared ports between them. A tenant's ring takes `alone` units,
    or `shared` units times the most of its edges that pass one port, if that is longer: so long as the others on that
    port are its own, each of them has an equal part of it. `search` limits the solver's work, as for `best_schedule`.
    Raises NotInstalledError without OR-Tools, and ValueError if nothing was found within `search`.
    """
    cp = solver_module()
    model, tenants = cp.CpModel(), range(len(servers))
    horizon = sum(max(alone, shared * len(own)) for own in servers)
    taken: list[dict[tuple[int, int], Any]] = []
    uses: list[dict[int, Any]] = []  # of each tenant, whether it uses a port
    starts, ends = [], []
    for tenant in tenants:
        own = servers[tenant]
        arcs = {(a, b): model.new_bool_var("") for a in own for b in own if a != b}
        place = {server: number for number, server in enumerate(own)}
        model.add_circuit([(place[a], place[b], arc) for (a, b), arc in arcs.items()])
        over = defaultdict(list)
        for edge, arc in arcs.items():
            for port in edges[tenant][edge]:
                over[port].append(arc)
        start, lasts = (model.new_int_var(least, horizon, "") for least in (0, alone))
        for using in over.values():
            model.add(lasts >= shared * sum(using))
        uses.append({port: model.new_bool_var("") for port in over})
        for port, using in over.items():
            model.add_max_equality(uses[-1][port], using)
        end = model.new_int_var(0, horizon, "")
        model.add(end >= start + lasts)
        taken.append(arcs)
        starts.append(start)
        ends.append(end)
    for a, b in itertools.combinations(tenants, 2):
        first, second = model.new_bool_var(""), model.new_bool_var("")
        model.add(starts[b] >= ends[a]).only_enforce_if(first)
        model.add(starts[a] >= ends[b]).only_enforce_if(second)
        for port in uses[a].keys() & uses[b].keys():
            model.add_bool_or([first, second, ~uses[a][port], ~uses[b][port]])
    last = model.new_int_var(0, horizon, "")
    model.add_max_equality(last, ends)
    model.minimize(sum(ends) * (horizon + 1) + last)
    solver = cp.CpSolver()
    solver.parameters.num_workers, solver.parameters.random_seed = 1, 1
    solver.parameters.catch_sigint_signal = False  # the run handles SIGINT itself
    solver.parameters.max_deterministic_time = search
    status = solver.solve(model)
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        raise ValueError(f"the solver found no plan within {search:g}")
    rings = [_ring(own, arcs, solver) for own, arcs in zip(servers, taken, strict=True)]
    return Turns(
        orders=np.array(rings, np.int64),
        starts=tuple(solver.value(start) for start in starts),
        ends=tuple(solver.value(end) for end in ends),
        proven=status == cp.OPTIMAL,
    )


def _ring(own: Sequence[int], arcs: Mapping[tuple[int, int], Any], solver: Any) -> list[int]:
    """Return a tenant's servers in the order of the arcs taken, from its first on."""
    follows = {a: b for (a, b), arc in arcs.items() if solver.boolean_value(arc)}
    ring = [own[0]]
    while len(ring) < len(own):
        ring.append(follows[ring[-1]])
    return ring
