"""Traffic engineering: computes the rate of each demand over the WAN in each of its tunnels.

A demand is all traffic of one priority from one site to another; its tunnels are the candidate paths between the two.
Priorities are strict: a later priority never takes rate from an earlier one. Within a priority, rates are max-min fair.
A demand may be split over its tunnels in any way, and its split may still change as later priorities are served (as in
SWAN: Hong et al., "Achieving High Utilization with Software-Driven WAN", SIGCOMM 2013; B4: Jain et al., ibid.).

The algorithm is progressive filling by linear programmes. Each maximizes the common rate of all demands that still
grow; the demands that have all they want then stop or, if there are none, the demands that can have no more in any
solution, which have positive dual values. The last programme finds the split with the least delay for these rates; with
the objective "utilisation" one before it finds the least highest utilisation of a WAN link, which the split then keeps.

Messages are cut into pieces, each a separate flow (`controller.routing.multipath`). The pieces of a demand are assigned
to its tunnels in proportion to the tunnels' rates by D'Hondt's method, which maximizes the rate of the slowest piece.
If pieces have to stay in their tunnels, a demand's rate is split in proportion to its pieces in each tunnel, and rates
are max-min fair over demands under these splits.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heapreplace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric, WanPath

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Integers = npt.NDArray[np.integer[Any]]

_POSITIVE = 1e-7  # least dual value that counts as positive; a programme's dual values add up to 1
_TOLERANCE = 1e-10
_SLACK = 1e-9  # by which a fixed rate may be missed, relative to the unit of the programme
_IDLE = 1e-4  # share of each link that is left to a class's demands that want nothing, because they may begin to send
_LARGE = 1e6  # a capacity that never binds, relative to the unit of the programme


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The traffic from site `src` to site `dst` that wants at most `wanted_bps`; the lowest `priority` is served first.

    `tunnels` has the link indices of each tunnel that the demand may use.
    """

    src: int
    dst: int
    priority: int
    tunnels: tuple[tuple[int, ...], ...]
    wanted_bps: float = np.inf


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The demands of flows: the index of each flow's class in service order, `priority` [F], and the rate that it
    wants, `wanted_bps` [F], infinite for all that it can send.

    `kept`, [C], is the share of each link that each class keeps regardless of the earlier classes' demands.
    `current_path` is the current path of each flow if flows have to stay on their paths, empty otherwise.
    """

    priority: tuple[int, ...]
    wanted_bps: tuple[float, ...]
    kept: tuple[float, ...] = (0.0,)
    current_path: tuple[int, ...] = ()

    def with_demands(
        self, wanted_bps: Floats, src: Integers, dst: Integers, current_path: Sequence[int] = ()
    ) -> "Traffic":
        """Return the traffic with the rates that demands want, [C, sites, sites] bit/s, divided equally among their
        flows; for NaN, the flows keep the rates that they want. `src` and `dst`, [F], are the flows' sites."""
        demand = np.array(self.priority), src, dst
        flows = np.zeros(wanted_bps.shape)
        np.add.at(flows, demand, 1)
        each_bps = wanted_bps[demand] / flows[demand]
        wanted = tuple(np.where(np.isnan(each_bps), self.wanted_bps, each_bps).tolist())
        return replace(self, wanted_bps=wanted, current_path=tuple(current_path))


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The path of each flow, [F], -1 within a site; and the rate of each class in each tunnel, [C, paths] bit/s."""

    path: npt.NDArray[np.int16]
    limits_bps: Floats


def allocate_flows(
    fabric: Fabric, delays_s: Floats, rates_bps: Floats, ends: tuple[Integers, Integers], traffic: Traffic
) -> Plan:
    """Return the tunnels of flows whose source and destination ranks are `ends`, [F] each, and the rates of tunnels.

    `delays_s` and `rates_bps`, [links], are those of logical links; a rate of 0 is a link that is down. A demand is all
    flows of a class between two sites; it can send no more than its GPUs' links to and from the border routers carry.
    A flow that cannot reach its tunnel because links of its own GPUs are down takes the first tunnel that it can reach.
    If its class has no rate in its tunnel, because no tunnel serves all GPUs of a demand, it gets the rate of the
    tunnel's slowest link.
    """
    links = np.ascontiguousarray([delays_s, rates_bps], np.float64)
    return _engineered(fabric, links.tobytes(), np.ascontiguousarray(ends, np.int64).tobytes(), traffic)


@lru_cache(maxsize=256)
def _engineered(fabric: Fabric, links: bytes, ends: bytes, traffic: Traffic) -> Plan:
    delays_s, rates_bps = np.frombuffer(links).reshape(2, -1)
    (src, dst), sites = np.frombuffer(ends, np.int64).reshape(2, -1), fabric.gpu_sites
    members: dict[tuple[int, int, int], list[int]] = {}  # the flows of each demand
    for flow in np.flatnonzero(sites[src] != sites[dst]).tolist():
        members.setdefault((traffic.priority[flow], int(sites[src[flow]]), int(sites[dst[flow]])), []).append(flow)
    capacity, demands = rates_bps.tolist(), dict[Demand, list[int]]()
    for (priority, a, b), flows in members.items():
        tunnels = _tunnels(fabric, fabric.paths_between[a, b], np.unique(src[flows]), np.unique(dst[flows]), capacity)
        wanted_bps = sum(traffic.wanted_bps[flow] for flow in flows)
        demands[Demand(src=a, dst=b, priority=priority, tunnels=tunnels, wanted_bps=wanted_bps)] = flows
    allocated = _tunnel_rates(fabric, traffic, demands, capacity, delays_s)
    path = np.full(src.shape, -1, dtype=np.int16)
    limits_bps = np.zeros((len(traffic.kept), len(fabric.paths)))
    for (demand, flows), of_tunnels in zip(demands.items(), allocated, strict=True):
        paths = fabric.paths_between[demand.src, demand.dst]
        if traffic.current_path:
            path[flows] = [traffic.current_path[flow] for flow in flows]
        else:
            path[flows] = [paths[tunnel].index for tunnel in assign_pieces(of_tunnels, len(flows))]
        limits_bps[demand.priority, [over.index for over in paths]] = of_tunnels
    for flow in np.flatnonzero(path >= 0).tolist() if not rates_bps.all() else ():
        for over in (fabric.paths[path[flow]], *fabric.paths_between[sites[src[flow]], sites[dst[flow]]]):
            if rates_bps[[*over.links, *_end_links(fabric, over, src[flow], dst[flow])]].all():
                path[flow], cell = over.index, (traffic.priority[flow], over.index)
                limits_bps[cell] = limits_bps[cell] or rates_bps[list(over.links)].min()
                break
    for array in (path, limits_bps):
        array.setflags(write=False)
    return Plan(path=path, limits_bps=limits_bps)


def _tunnel_rates(
    fabric: Fabric, traffic: Traffic, demands: Mapping[Demand, list[int]], capacity: list[float], delays_s: Floats
) -> Sequence[Sequence[float]]:
    """Return the rates of each demand's tunnels; `demands` has the flows of each demand."""
    kept = dict(enumerate(traffic.kept))
    if traffic.current_path:
        parts = []
        for demand, flows in demands.items():
            pieces = Counter(traffic.current_path[flow] for flow in flows)
            numbers = [pieces[path.index] for path in fabric.paths_between[demand.src, demand.dst]]
            parts.append([number / sum(numbers) for number in numbers])
        totals = allocate_split(list(demands), parts, np.array(capacity), kept)
        return [[rate * part for part in of_demand] for rate, of_demand in zip(totals, parts, strict=True)]
    more = np.zeros(len(capacity) - len(delays_s))
    even = len(delays_s) if fabric.spec.objective == "utilisation" else 0
    rates = [*allocate(list(demands), np.array(capacity), np.append(delays_s, more), kept, even)]
    for index, demand in enumerate(demands):
        if demand.wanted_bps and not any(rates[index]):  # too slow relative to the fastest link, or down
            most_bps = [min(capacity[link] for link in links) for links in demand.tunnels]
            best = np.argmax(most_bps)
            rates[index] = tuple(bps if tunnel == best else 0.0 for tunnel, bps in enumerate(most_bps))
    return rates


def _end_links(fabric: Fabric, path: WanPath, src: int, dst: int) -> tuple[int, int]:
    """Return the links from rank `src` to the path's first border router and from its last to rank `dst`."""
    return int(fabric.to_br_index[src, path.src_br]), int(fabric.from_br_index[path.dst_br, dst])


def _tunnels(
    fabric: Fabric, paths: Sequence[WanPath], near: Integers, far: Integers, capacity_bps: list[float]
) -> tuple[tuple[int, ...], ...]:
    """Return the link indices of the paths between two sites, as tunnels with two additional links each.

    One models the rate at which the source ranks, `near`, can send to the tunnel's first border router, the other that
    at which the destination ranks, `far`, can receive from its last. Their capacities are appended to `capacity_bps`.
    In the physical grain all routers of a site have one link in common, as all traffic of a GPU passes one port.
    """
    rates_bps = np.array(capacity_bps)
    tunnels = [path.links for path in paths]
    ups = {path.src_br: rates_bps[fabric.to_br_index[near, path.src_br]] for path in paths}
    downs = {path.dst_br: rates_bps[fabric.from_br_index[path.dst_br, far]] for path in paths}
    for ends, routers in ((ups, [path.src_br for path in paths]), (downs, [path.dst_br for path in paths])):
        most = {router: float(bps.sum()) if bps.all() else 0.0 for router, bps in ends.items()}
        if fabric.spec.grain == "physical":  # a router that some rank cannot reach is not used in either grain
            link_of = dict.fromkeys((router for router, bps in most.items() if bps), len(capacity_bps))
            capacity_bps.append(max(most.values(), default=0.0))
        else:
            link_of = {router: len(capacity_bps) + index for index, router in enumerate(most)}
            capacity_bps += most.values()
        if unreachable := [router for router in most if router not in link_of]:
            link_of |= dict.fromkeys(unreachable, len(capacity_bps))
            capacity_bps.append(0.0)
        tunnels = [(*links, link_of[router]) for links, router in zip(tunnels, routers, strict=True)]
    return tuple(tunnels)


def assign_pieces(rates_bps: Sequence[float], pieces: int) -> list[int]:
    """Assign pieces to tunnels in proportion to these rates by D'Hondt's method; return the tunnel of each piece, in
    the method's order. If all rates are 0, all pieces get the first tunnel."""
    heap = [(-rate, tunnel, 1) for tunnel, rate in enumerate(rates_bps)]
    heapify(heap)
    assigned = []
    for _ in range(pieces):
        _, tunnel, number = heap[0]
        assigned.append(tunnel)
        heapreplace(heap, (-rates_bps[tunnel] / (number + 1), tunnel, number + 1))
    return assigned


def allocate_split(
    demands: Sequence[Demand],
    parts: Sequence[Sequence[float]],
    capacity_bps: Floats,
    kept: Mapping[int, float] = MappingProxyType({}),
) -> list[float]:
    """Return the rates of demands, bit/s, as `allocate`, but with each demand's rate split by fixed `parts`.

    Demands that want nothing get the capacity that all others leave, and at least `_IDLE` of each link.
    """
    on_link, rate = np.zeros((len(demands), len(capacity_bps))), np.zeros(len(demands))  # parts of rates, [D, links]
    for row, demand, of_demand in zip(on_link, demands, parts, strict=True):
        for links, part in zip(demand.tunnels, of_demand, strict=True):
            row[list(set(links))] += part
    wanted = np.array([demand.wanted_bps or np.inf for demand in demands])
    turns = np.array([(not demand.wanted_bps, demand.priority) for demand in demands]).reshape(-1, 2)
    in_order = sorted(set(map(tuple, turns.tolist())))
    for index, turn in enumerate(in_order):
        room = capacity_bps - rate @ on_link
        for later in in_order[index + 1 :]:
            share = _IDLE if later[0] else kept.get(later[1], 0.0)
            room -= share * capacity_bps * on_link[(turns == later).all(axis=1)].any(axis=0)
        grows = (turns == turn).all(axis=1)
        while grows.any():
            used = on_link[grows].sum(axis=0)
            most = np.divide(room, used, out=np.full(room.shape, np.inf), where=used > 0)
            step = max(0.0, min(most.min(), (wanted - rate)[grows].min()))
            rate[grows] += step
            room -= step * used
            full = (used > 0) & (most <= step * (1 + _TOLERANCE))
            grows &= (rate < wanted * (1 - _TOLERANCE)) & ~on_link[:, full].any(axis=1)
    return rate.tolist()


def allocate(
    demands: Sequence[Demand],
    capacity_bps: Floats,
    delays_s: Floats | None = None,
    kept: Mapping[int, float] = MappingProxyType({}),
    even: int = 0,
) -> tuple[tuple[float, ...], ...]:
    """Return the rate of each tunnel of each demand, bit/s: strict between priorities, max-min fair within a priority,
    and split with the least delay, among the splits for which the highest utilisation of the first `even` links is
    least.

    `capacity_bps` and `delays_s`, [links], are those of the links that tunnels pass; a capacity of 0 is a link that is
    down. No link carries more than its capacity. `kept` is the share of each link on their way that the demands of a
    priority keep regardless of earlier priorities' demands, by default 0. Raises ValueError for a capacity that is
    negative or not finite, a wanted rate that is negative or not a number, and a tunnel without links.
    """
    _check(demands, capacity_bps)
    programme = _Programme(demands, capacity_bps)
    rate = np.zeros(len(demands))
    grows = np.array([bool(programme.is_up[programme.of_demand == d].any()) for d in range(len(demands))], dtype=bool)
    wanted = np.array([demand.wanted_bps for demand in demands]) / programme.unit_bps
    priorities = np.array([demand.priority for demand in demands], dtype=np.intp)
    for priority in np.unique(priorities).tolist():
        later = np.unique(priorities[priorities > priority]).tolist()
        programme.reserve({other: kept.get(other, 0.0) for other in later}, priorities)
        while (growing := np.flatnonzero((priorities == priority) & grows)).size:
            level, duals = programme.common_rate(rate, growing)
            stops = growing[wanted[growing] <= level * (1 + 1e-12)]
            rate[growing] = np.minimum(wanted[growing], level)
            if not stops.size:
                stops = growing[duals >= min(_POSITIVE, duals.max())]
            grows[stops] = False
    rates_bps = programme.split(rate, np.zeros(len(capacity_bps)) if delays_s is None else delays_s, even)
    return tuple(tuple(rates_bps[programme.of_demand == d].tolist()) for d in range(len(demands)))


def _check(demands: Sequence[Demand], capacity_bps: Floats) -> None:
    if not (valid := (capacity_bps >= 0) & (capacity_bps < np.inf)).all():
        raise ValueError(f"a capacity of {capacity_bps[~valid][0]:g} bit/s; allowed: 0 or more")
    for demand in demands:
        if not demand.wanted_bps >= 0:
            raise ValueError(f"a demand of {demand.wanted_bps:g} bit/s; allowed: 0 or more")
        if not all(demand.tunnels):
            raise ValueError("a tunnel without links; allowed: one link or more")


class _Programme:
    """The linear programmes over the rates of all tunnels, [T], in units of `unit_bps`.

    The unit is the most that tunnels can send through any link: less than its capacity if all its tunnels have slower
    links elsewhere. With the capacity as unit, slow tunnels over fast links would be lost in the tolerances.

    `of_demand` [T] is the demand of each tunnel, `is_up` [T] whether none of its links is down. The last variable of
    the programmes is the common rate of the demands that grow.
    """

    def __init__(self, demands: Sequence[Demand], capacity_bps: Floats) -> None:
        from scipy.sparse import csc_array  # slow to import

        self._tunnels = [links for demand in demands for links in demand.tunnels]
        self.of_demand = np.array([index for index, one in enumerate(demands) for _ in one.tunnels], dtype=np.intp)
        self.is_up = np.array([all(capacity_bps[link] > 0 for link in links) for links in self._tunnels], dtype=bool)
        carried = np.zeros(len(capacity_bps))
        for links in self._tunnels:
            carried[list(set(links))] += capacity_bps[list(links)].min()
        self.unit_bps = float(np.minimum(capacity_bps, carried).max(initial=0)) or 1.0
        used = sorted({link for links in self._tunnels for link in links})
        self._used = np.array(used, dtype=np.intp)
        self._capacity = np.minimum(capacity_bps[self._used] / self.unit_bps, _LARGE)
        self._room = np.ones(len(used))
        # One row per demand, its common rate minus its tunnels' rates; then one row per used link, its tunnels' rates.
        demand_rows, common = np.arange(len(demands)), len(self._tunnels)
        link_rows = len(demands) + np.searchsorted(self._used, [link for links in self._tunnels for link in links])
        link_columns = [tunnel for tunnel, links in enumerate(self._tunnels) for _ in links]
        values = np.concatenate([-np.ones(common), np.ones(len(link_rows) + len(demands))])
        rows = np.concatenate([self.of_demand, link_rows, demand_rows])
        columns = np.concatenate([np.arange(common), link_columns, np.full(len(demands), common)])
        self._rows = csc_array((values, (rows, columns)), (len(demands) + len(used), common + 1))

    def reserve(self, kept: Mapping[int, float], priorities: Indices) -> None:
        """Reserve shares of links for later priorities: `kept[p]` of each link that a demand of priority p may use."""
        self._room = np.ones(len(self._used))
        passes = self._rows[len(priorities) :, :-1]
        for priority, share in kept.items():
            of_tunnels = (priorities == priority)[self.of_demand]
            self._room[passes @ of_tunnels.astype(float) > 0] -= share

    def common_rate(self, rate: Floats, growing: Indices) -> tuple[float, Floats]:
        """Return the largest common rate of the demands in `growing` while the others keep their `rate` [D], and the
        dual value of each growing demand, which is positive if it can have no more in any solution."""
        grows = np.zeros(rate.size)
        grows[growing] = 1
        solution = self._solve(np.append(np.zeros(len(self.is_up)), -1.0), rate * (1 - grows), grows)
        return float(solution.x[-1]), -solution.ineqlin.marginals[growing]

    def split(self, rate: Floats, delays_s: Floats, even: int) -> Floats:
        """Return the rates of the tunnels, [T] bit/s, that give demands their `rate` [D] with the least delay, when the
        first `even` links are used no more than is needed."""
        if not self._tunnels:
            return np.zeros(0)
        if even:
            is_even = self._used < even
            self._room[is_even] = np.minimum(self._room, self._least_use(rate, is_even))[is_even]
        delay_s = np.array([delays_s[list(links)].sum() for links in self._tunnels])
        cost = 1 + delay_s / (delay_s.max() or 1.0)  # at least 1, so that no tunnel sends more than is needed
        solution = self._solve(np.append(cost, 0.0), rate, np.zeros(rate.size))
        rates: Floats = np.maximum(solution.x[:-1], 0)
        rates[rates < 10 * _SLACK] = 0  # rounding within the slack
        load = self._rows[len(rate) :, :-1] @ rates
        used = load > 0
        rates *= min(1.0, (self._capacity[used] / load[used]).min(initial=1.0)) * self.unit_bps
        return rates

    def _least_use(self, rate: Floats, is_even: npt.NDArray[np.bool_]) -> float:
        """Return the least highest utilisation of the used links `is_even` at which demands can have their `rate`."""
        from scipy.sparse import csc_array, hstack

        column = np.append(np.zeros(rate.size), np.where(is_even, -self._capacity, 0.0))
        rows = csc_array(hstack([self._rows[:, :-1], column[:, None]]))
        limits = np.append(-np.maximum(rate - _SLACK, 0), np.where(is_even, 0.0, self._capacity * self._room))
        most = np.append(np.where(self.is_up, np.inf, 0.0), np.inf)
        return float(_solved(np.append(np.zeros(len(self.is_up)), 1.0), rows, limits, most).x[-1]) + _SLACK

    def _solve(self, cost: Floats, least: Floats, grows: Floats) -> Any:
        self._rows.data[self._rows.indptr[-2] :] = grows
        most = np.append(np.where(self.is_up, np.inf, 0.0), np.inf if grows.any() else 0.0)
        limits = np.append(-np.maximum(least - _SLACK, 0), self._capacity * self._room)
        return _solved(cost, self._rows, limits, most)


def _solved(cost: Floats, rows: Any, limits: Floats, most: Floats) -> Any:
    """Return the solution of the linear programme over variables from 0 to `most`; raises ArithmeticError."""
    from scipy.optimize import linprog

    solution = linprog(
        cost,
        rows,
        limits,
        bounds=np.stack([np.zeros_like(most), most], axis=1),
        method="highs-ds",
        options={"primal_feasibility_tolerance": _TOLERANCE, "dual_feasibility_tolerance": _TOLERANCE},
    )
    if solution.status != 0:
        raise ArithmeticError(f"the allocation's linear programme failed: {solution.message}")
    return solution
