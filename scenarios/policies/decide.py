"""The decisions: which GPU stands where and which WAN paths every collective uses, in each mode, from its conditions.

Planned in batches by `decide`. The testbed and the prompt take their placements from the same `choose_placements` at
the same times (`Mode.reembeds_at`, `Mode.routes_at`), and their paths from the controller, which compares them by the
same `Router`.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import Compiled
from controller.routing.path_choice import NoPathError, Router
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Stream
from hosts.embedding.bounds import least_values
from hosts.embedding.placement import best_placements
from hosts.embedding.ring import MAX_EXACT_GPUS, best_rings, rank_order, values
from topologies.conditions.sampler import Sampler
from topologies.fabric.fabric import Fabric, LogicalLink
from topologies.fabric.failures import NONE, Cables
from topologies.fabric.ports import DirectedPort, Shared, shared_by

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]

_PLACEMENTS_AT_A_TIME = 512  # chosen at a time: their cost matrices stay a few megabytes


@dataclass(frozen=True, kw_only=True)
class Mode:
    """What a mode chooses anew, and when: the WAN paths for every collective, the placement for every so many."""

    name: str
    reroutes: bool
    reembeds: bool

    def reembeds_at(self, number: Any, every: int) -> Any:
        """Whether the placement is chosen anew before this collective: a bool, or an array for an array of numbers."""
        return self.reembeds & (number % every == 0)

    def routes_at(self, number: Any, every: int) -> Any:
        """Whether its paths are installed, chosen or fixed: others may cross the WAN after a new placement."""
        return self.reroutes | self.reembeds_at(number, every)


MODES = {
    mode.name: mode
    for mode in (
        Mode(name="base", reroutes=False, reembeds=False),
        Mode(name="ccl", reroutes=False, reembeds=True),
        Mode(name="wan", reroutes=True, reembeds=False),
        Mode(name="joint", reroutes=True, reembeds=True),
    )
}


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What K collectives in a row use, and what the timing model needs to know of it.

    `placement`, [K, n], is the rank at each place of the schedule: of a ring, the ring from rank 0 on. By flow of the
    schedule, [K, F]: `path` is the index in `Fabric.paths` of the path that it takes over the WAN (-1 within a site),
    `alpha_s` its delay and `beta_s` the time to send one slot over it; of a stream they are 0 and 1. `reembedded` and
    `rerouted`, [K], are True where placement and paths were chosen anew, whether or not the choice came out the same.
    """

    placement: Ranks
    path: npt.NDArray[np.int16]
    alpha_s: Floats
    beta_s: Floats
    reembedded: npt.NDArray[np.bool_]
    rerouted: npt.NDArray[np.bool_]

    def row(self, row: int) -> "Decisions":
        """The decisions of one of the collectives."""
        return Decisions(**{field.name: getattr(self, field.name)[row : row + 1] for field in fields(self)})


def decide(
    fabric: Fabric,
    conditions: Sampler,
    *,
    delays_s: Floats,
    mode: Mode,
    workload: Workload,
    reembed_every: int,
    ring: str,
    start: int,
    count: int,
) -> Decisions:
    """The decisions for collectives start .. start+count-1, each a function of the conditions and its number alone.

    `delays_s`, [links], are the propagation delays. A placement is chosen under the conditions of the last multiple of
    `reembed_every`, for the routes in force then: the fixed ones, or those a mode that re-routes is about to choose.
    A ring is the best by the objective `ring` (`hosts.embedding.ring`).
    Any start gives the same decisions; multiples of `reembed_every` spare a look back. Raises ValueError where
    there is no placement, ConditionsError where a trace ends too early.
    """
    router = Router(fabric, delays_s)
    rates_bps = conditions.rates_bps(start, count)
    collective = np.arange(start, start + count)
    basis_bps, basis = rates_bps, np.arange(count)  # conditions that are chosen under; which is each collective's
    if mode.reembeds:
        lead = -start % reembed_every  # rows before the first placement chosen here; they use the one chosen before
        basis_bps, basis = rates_bps[lead::reembed_every], collective // reembed_every - start // reembed_every
        if lead:
            basis_bps = np.concatenate([conditions.rates_bps(start - start % reembed_every, 1), basis_bps])
    placement = choose_placements(router, basis_bps, mode=mode, workload=workload, ring=ring)[basis]
    path, alpha_s, beta_s = _flows(router, placement, rates_bps, workload=workload, reroutes=mode.reroutes)
    return Decisions(
        placement=placement,
        path=path,
        alpha_s=alpha_s,
        beta_s=beta_s,
        reembedded=mode.reembeds_at(collective, reembed_every),
        rerouted=np.full(count, mode.reroutes),
    )


def choose_placements(router: Router, rates_bps: Floats, *, mode: Mode, workload: Workload, ring: str) -> Ranks:
    """The placement of a mode under each of these conditions [K, links], 0 for a link that is down: [K, n].

    Where the mode does not re-embed, ranks in order. Else for the best paths where it re-routes, and for the fixed ones
    otherwise: of a ring the best by the objective `ring` (`best_rings`), of anything else the placement of least
    predicted time that a descent finds (`best_placements`), in which each rank stays in its site and the root is rank
    0. Raises ValueError where there is none.
    """
    fabric = router.fabric
    if not mode.reembeds:
        return np.tile(_in_order(fabric, workload), (len(rates_bps), 1))
    chosen = np.empty((len(rates_bps), len(fabric.gpus)), dtype=np.int16)
    for start in range(0, len(rates_bps), _PLACEMENTS_AT_A_TIME):
        batch = slice(start, start + _PLACEMENTS_AT_A_TIME)
        chosen[batch] = _placements(router, rates_bps[batch], workload, ring, fixed=not mode.reroutes)
    return chosen


def _in_order(fabric: Fabric, workload: Workload) -> Ranks:
    """Ranks in order, [n]: around a ring, site by site in an order in which the WAN joins them."""
    return rank_order(fabric.gpus_per_site, fabric.site_cycle if workload.is_ring else None)


def _placements(router: Router, rates_bps: Floats, workload: Workload, ring: str, *, fixed: bool) -> Ranks:
    """The placements for one batch of conditions, chosen for the workload's largest message."""
    fabric, message_bytes = router.fabric, workload.largest_message_bytes
    cost_s, delay_s = _edges(router, rates_bps, workload, fixed=fixed)
    if workload.is_ring:
        return best_rings(
            cost_s,
            delay_s,
            gpus_per_site=fabric.gpus_per_site,
            objective=ring,
            messages=_messages_a_round(workload),
        )
    return best_placements(
        _compiled_waited_for(workload).completion_s,
        list(zip(*workload.schedule.ends, strict=True)),
        delay_s=delay_s,
        slot_s=(cost_s - delay_s) * (workload.slot_bytes / message_bytes),
        start=_in_order(fabric, workload).tolist(),
        sites=fabric.gpus_per_site,
        root_stays=workload.is_rooted,
        groups=workload.groups,
    )


def _edges(router: Router, rates_bps: Floats, workload: Workload, *, fixed: bool) -> tuple[Floats, Floats]:
    """What the workload's largest message costs from each rank to each other, and the delay, [K, n, n] seconds each."""
    fabric, delays_s, message_bytes = router.fabric, router.delays_s, workload.largest_message_bytes
    inside = fabric.intra_index >= 0
    link = fabric.intra_index[inside]
    cost_s, delay_s = router.crossings(rates_bps, chunk_bytes=message_bytes, fixed=fixed)
    with np.errstate(divide="ignore"):  # a link that is down costs infinitely much
        cost_s[:, inside] = delays_s[link] + 8 * message_bytes / rates_bps[:, link]
    delay_s[:, inside] = delays_s[link]
    if workload.is_ring and workload.schedule.turns_both_ways:  # an edge is as slow as its slower direction
        cost_s = np.maximum(cost_s, cost_s.swapaxes(1, 2))
    return cost_s, delay_s


def edges_s(fabric: Fabric, delays_s: Floats, rates_bps: Floats, workload: Workload) -> tuple[Floats, Floats]:
    """What a workload's largest message costs from each rank to each other over its best path, and the delay of that,
    [K, n, n] seconds each, under rates [K, links]."""
    return _edges(Router(fabric, delays_s), rates_bps, workload, fixed=False)


def ring_gaps(router: Router, rates_bps: Floats, *, mode: Mode, workload: Workload, ring: str) -> Floats:
    """By how much the ring that a mode chooses under each of these conditions [K, links] can exceed the least possible
    value of the objective `ring`, as a share of it: [K]; 0 where nothing is chosen or the choice is exact.
    """
    sites = router.fabric.gpus_per_site
    if not (mode.reembeds and workload.is_ring and max(sites) > MAX_EXACT_GPUS):
        return np.zeros(len(rates_bps))
    rings = choose_placements(router, rates_bps, mode=mode, workload=workload, ring=ring)
    cost_s, delay_s = _edges(router, rates_bps, workload, fixed=not mode.reroutes)
    messages = _messages_a_round(workload)
    found_s = values(rings, cost_s, delay_s, objective=ring, messages=messages)
    least_s = least_values(cost_s, delay_s, gpus_per_site=sites, objective=ring, messages=messages)
    return np.maximum(found_s / least_s - 1, 0)


def _messages_a_round(workload: Workload) -> float:
    """How many messages an edge of a ring transmits each way in a round, in which a block goes on by one place."""
    begins, ends = workload.schedule.ends
    by_edge = Counter((begins[one.flow], ends[one.flow]) for one in workload.schedule.transfers)
    rounds = (workload.schedule.places - 1) * (2 if workload.kind == "allreduce" else 1)
    return max(by_edge.values()) / rounds


@lru_cache(maxsize=64)
def _compiled_waited_for(workload: Workload) -> Compiled:
    """The timing model of what a placement is chosen for: background jobs stay where they are."""
    return Compiled(workload.waited_for) if workload.jobs else compiled(workload)


@lru_cache(maxsize=64)
def compiled(workload: Workload) -> Compiled:
    """The timing model of a workload's schedule."""
    return Compiled(workload.schedule.transfers)


@lru_cache(maxsize=1024)
def shared_links(
    fabric: Fabric, workload: Workload, mode: Mode, *, detours: Collection[Cables] = ()
) -> tuple[str, ...]:
    """The logical links or ports that two flows of one collective can use at once, by name in the fabric's order.

    Empty where every flow has its own, whatever is chosen; flows of which one always ends before the other begins are
    listed, too. `detours` are sets of cables that faults may take down, so that a mode on fixed paths leaves them.
    """
    choosing = mode.reroutes or bool(detours)
    found = [
        _used_twice(shared_by(fabric, dead), workload, placement, choosing)
        for dead in (NONE, *detours)
        for placement in _placements_by_site(fabric, workload, mode)
    ]
    shared, links = set().union(*found), shared_by(fabric).all
    if mode.reembeds:  # any GPU of a site may stand where another did
        alike = {_by_site(fabric, links[link]) for link in shared}
        shared = {link.index for link in links if _by_site(fabric, link) in alike}
    return tuple(link.name for link in links if link.index in shared)


@lru_cache(maxsize=1024)
def routes_greedily(fabric: Fabric, workload: Workload, mode: Mode) -> bool:
    """Whether a mode chooses some WAN paths greedily, as crossings have too many combinations (`Router.together`)."""
    if not mode.reroutes:
        return False
    router = Router(fabric, np.zeros(len(fabric.links)))
    ends = np.array(list(dict.fromkeys(zip(*workload.schedule.ends, strict=True)))).T
    for placement in _placements_by_site(fabric, workload, mode):
        src, dst = placement[ends]
        crosses = fabric.gpu_sites[src] != fabric.gpu_sites[dst]
        if not router.is_exact(src[crosses], dst[crosses]):
            return True
    return False


def most_shared(fabric: Fabric, shared: Collection[str]) -> int:
    """How many of these links or ports, by name, a flow between any two GPUs passes at most."""
    names, sites = set(shared), fabric.gpu_sites
    counts = np.array([*(link.name in names for link in shared_by(fabric).all), False])  # -1 is the last
    src, dst = np.nonzero((sites[:, None] == sites) & ~np.eye(len(sites), dtype=bool))
    ways = [(src, dst, np.full(src.shape, -1))]
    for path in fabric.paths:
        src, dst = (np.flatnonzero(sites == site) for site in (path.src_site, path.dst_site))
        src, dst = np.repeat(src, dst.size), np.tile(dst, src.size)
        ways.append((src, dst, np.full(src.shape, path.index)))
    return max(int(counts[shared_by(fabric).of(*way)].sum(axis=-1).max(initial=0)) for way in ways)


def _placements_by_site(fabric: Fabric, workload: Workload, mode: Mode) -> list[Ranks]:
    """A placement for each way in which a mode can arrange the sites."""
    if not (workload.is_ring and mode.reembeds):
        return [_in_order(fabric, workload)]
    cycles = [(0, *rest) for rest in permutations(range(1, len(fabric.gpus_per_site)))]
    rings = [rank_order(fabric.gpus_per_site, cycle) for cycle in cycles]
    return [ring for ring in rings if all(fabric.paths_between.get(pair) for pair in _sites_of(fabric, ring))]


def _sites_of(fabric: Fabric, ring: Ranks) -> set[tuple[int, int]]:
    """The pairs of sites that a ring crosses between."""
    sites = fabric.gpu_sites[ring].tolist()
    return {(a, b) for a, b in pairwise([*sites, sites[0]]) if a != b}


def _used_twice(shared: Shared, workload: Workload, placement: Ranks, choosing: bool) -> set[int]:
    """What two flows or more can pass with this placement, over any path if `choosing`, or the fixed one."""
    fabric, ways = shared.fabric, []
    for flow, (begin, end) in enumerate(zip(*workload.schedule.ends, strict=True)):
        src, dst = int(placement[begin]), int(placement[end])
        if src != dst:
            paths = fabric.paths_between.get((fabric.gpus[src].site, fabric.gpus[dst].site), ())
            over = [path.index for path in (paths if choosing else paths[:1])] or [-1]
            ways += [(flow, src, dst, path) for path in over]
    if not ways:
        return set()
    flows, *way = np.array(ways).T
    links = shared.of(*way)
    by_flow = np.unique((flows[:, None] * len(shared.all) + links)[links >= 0])
    users = np.bincount(by_flow % len(shared.all))
    return set(np.flatnonzero(users > 1).tolist())


@lru_cache(maxsize=16)
def _site_by_node(fabric: Fabric) -> dict[str, int]:
    """The site of every node whose part another of its site may take: GPUs, and switches below border routers."""
    below = [switch for switch in fabric.switches if switch.kind in ("leaf", "spine")]
    found = {switch.name: switch.site for switch in below if switch.site is not None}
    return found | {gpu.name: gpu.site for gpu in fabric.gpus}


def _by_site(fabric: Fabric, link: LogicalLink | DirectedPort) -> tuple[object, ...]:
    """A link or a port with its GPUs, leaves and spines named by their site alone."""
    sites = _site_by_node(fabric)
    return link.kind, sites.get(link.src, link.src), sites.get(link.dst, link.dst)


def _flows(
    router: Router, placement: Ranks, rates_bps: Floats, *, workload: Workload, reroutes: bool
) -> tuple[npt.NDArray[np.int16], Floats, Floats]:
    """Path, delay and time per slot of every flow, [K, F] each."""
    streams = np.array([isinstance(flow, Stream) for flow in workload.schedule.flows])
    # The flows between two places take one path: each pair of places once, in the order of the flows.
    ends = list(zip(*workload.schedule.ends, strict=True))
    pairs = {pair: index for index, pair in enumerate(dict.fromkeys(ends))}
    flows = [pairs[pair] for pair in ends]
    src, dst = (placement[:, places] for places in zip(*pairs, strict=True))
    link = router.fabric.intra_index[src, dst]
    path = np.full(link.shape, -1, dtype=np.int16)
    alpha_s = router.delays_s[link]
    rate_bps = np.take_along_axis(rates_bps, np.maximum(link, 0), axis=1)
    crosses = (link < 0) & (src != dst)
    count = crosses.sum(axis=1)
    for crossings in np.unique(count[count > 0]):
        rows = np.flatnonzero(count == crossings)
        at = rows[:, None], crosses[rows].nonzero()[1].reshape(len(rows), crossings)
        rates = rates_bps if len(rows) == len(link) else rates_bps[rows]
        if reroutes:
            routes = router.together(rates, src[at], dst[at], chunk_bytes=workload.largest_message_bytes)
        else:
            routes = router.fixed(rates, src[at], dst[at])
        path[at], alpha_s[at], rate_bps[at] = routes.path, routes.delay_s, routes.rate_bps
    path, alpha_s, rate_bps = path[:, flows], alpha_s[:, flows], rate_bps[:, flows]
    if (rate_bps[:, ~streams] <= 0).any():
        row, flow = np.argwhere((rate_bps <= 0) & ~streams)[0]
        raise NoPathError(f"no way leads from rank {src[row, flows[flow]]} to rank {dst[row, flows[flow]]}")
    beta_s = 8 * workload.slot_bytes / rate_bps
    alpha_s[:, streams], beta_s[:, streams] = 0, 1
    return path, alpha_s, beta_s
