"""Decisions: the placement and the WAN paths of every collective in each mode, computed from its conditions.

`decide` plans them in batches. The testbed and the prompt choose placements by the same `Chooser.placements`, when the
same `play.Player` decides; their paths come from the controller, which compares them by the same `Router`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import CompiledSchedule
from controller.routing.multipath import Multipath, group_by_failures, multipath
from controller.routing.network import Network
from controller.routing.traffic_engineering import Traffic, allocate_flows
from controller.routing.wan_path_choice import NoPathError, Router
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Flow, Stream, Transfer
from hosts.embedding.bounds import lower_bounds
from hosts.embedding.placement import best_placements
from hosts.embedding.ring import MAX_EXACT_GPUS, NoRingError, best_rings, objective_values, rank_order
from scenarios.policies.arrays import Work
from scenarios.policies.play import Given, Player, Timeline, periodic
from scenarios.policies.policy import Mode
from topologies.conditions.sampler import Sampler
from topologies.fabric.fabric import Fabric, LogicalLink, WanPath
from topologies.fabric.failures import NO_CABLES, Cables, failed_links
from topologies.fabric.ports import DirectedPort, links_in_grain

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]

MIN_SHARE = 0.01
"""With traffic engineering, the share of a tunnel's links that every class except the first is guaranteed."""

_FLOWS = 1 << 18  # flows whose links are looked up at a time
_PLACEMENT_BATCH = 512  # keeps the cost matrices of one batch to a few megabytes
_SAME_DELAY_S = 1e-9  # paths whose delays differ by less differ by the rounding of sums alone


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """The placements and paths of K consecutive collectives, with the inputs of the timing model that follow from them.

    `placement`, [K, n], is the rank at each place of the schedule; for a ring, the ring from rank 0 on. Per flow of the
    schedule, [K, F]: `path` is the index in `Fabric.paths` of its WAN path (-1 within a site), `alpha_s` its delay and
    `beta_s` its transmission time for one slot; a stream has 0 and 1. `reembedded` and `rerouted`, [K], are True where
    placement and paths were chosen, even if the result is the same as before. `spreads`: flows between the same two
    GPUs may take different paths or spines (`ways_of`). `limits_bps`, [K, classes * paths], is the rate that each class
    may send through each tunnel; [0, 0] if tunnels have no limits.
    """

    placement: Ranks
    path: npt.NDArray[np.int16]
    alpha_s: Floats
    beta_s: Floats
    reembedded: npt.NDArray[np.bool_]
    rerouted: npt.NDArray[np.bool_]
    spreads: bool = False
    limits_bps: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    @classmethod
    def joined(cls, parts: Sequence["Decisions"]) -> "Decisions":
        """Return the decisions of consecutive collectives as one, [K, ...]."""
        arrays = [entry.name for entry in fields(cls) if entry.name != "spreads"]
        joined: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in parts]) for name in arrays}
        return replace(parts[0], **joined)

    def row(self, row: int) -> "Decisions":
        """Return the decisions of one collective."""
        return self.rows(slice(row, row + 1))

    def rows(self, some: slice) -> "Decisions":
        """Return the decisions of a slice of the collectives."""
        arrays = [entry.name for entry in fields(self) if entry.name != "spreads"]
        return replace(self, **{name: getattr(self, name)[some] for name in arrays})


def spreads_over(fabric: Fabric, mode: Mode) -> Multipath | None:
    """Return the `Multipath` that spreads a mode's flows; None if the mode chooses paths or GPU pairs have one path."""
    return None if mode.reroutes else multipath(fabric)


def ways_of(fabric: Fabric, mode: Mode) -> Multipath | None:
    """Return the `Multipath` by which flows between two GPUs may differ in path or spine; None if they cannot. Over
    rails a flow uses the plane of its channel even on a path that the mode chooses."""
    return multipath(fabric) if fabric.spec.has_planes else spreads_over(fabric, mode)


def spread_pairs(fabric: Fabric, *, within: bool) -> list[tuple[int, int]]:
    """Return every two GPUs of two sites that the WAN joins, in either order; with `within` also those of one site."""
    site, between = [gpu.site for gpu in fabric.gpus], fabric.paths_between
    ranks = range(len(site))
    return [
        (a, b)
        for a in ranks
        for b in ranks
        if between.get((site[a], site[b])) or (within and a != b and site[a] == site[b])
    ]


def channels(workload: Workload) -> Ranks:
    """Return the channel of each flow, [F]; 0 for a stream."""
    return np.array([flow.channel if isinstance(flow, Flow) else 0 for flow in workload.schedule.flows], np.int16)


def dscps_in_service_order(workload: Workload) -> tuple[int, ...]:
    """Return the DSCPs of the workload's flows in service order; flows without a class (DSCP 0) come last."""
    return tuple(sorted(set(workload.dscp) or {0}, key=lambda dscp: (dscp == 0, dscp)))


@lru_cache(maxsize=64)
def traffic(workload: Workload) -> Traffic:
    """Return the demands of a workload's flows, with classes in service order. Every class except the first keeps at
    least MIN_SHARE of a tunnel, because a class without a share would never be served."""
    dscp_of_flow, order = workload.dscp or (0,) * len(workload.schedule.flows), dscps_in_service_order(workload)
    assured = dict(zip(dscp_of_flow, workload.guaranteed_share or (0.0,) * len(dscp_of_flow), strict=True))
    kept = [0.0, *(max(assured[dscp], MIN_SHARE) for dscp in order[1:])]
    scale = (1 - MIN_SHARE) / max(1 - MIN_SHARE, sum(kept))  # so that the first class has at least MIN_SHARE
    return Traffic(
        priority=tuple(order.index(dscp) for dscp in dscp_of_flow),
        wanted_bps=workload.demand_bps or (np.inf,) * len(dscp_of_flow),
        kept=tuple(share * scale for share in kept),
    )


@dataclass(frozen=True)
class Chooser:
    """Chooses placements and paths for a mode in one fabric. Rings minimise the mode's own objective if it has one,
    else the objective `ring` (`hosts.embedding.ring`)."""

    router: Router
    mode: Mode
    workload: Workload
    ring: str

    @property
    def in_order(self) -> Ranks:
        """The default placement, [n]: ranks in order."""
        return rank_order_of(self.router.fabric, self.workload)

    @property
    def delays_s(self) -> Floats:
        """The delays of the logical links, [links] s."""
        return self.router.delays_s

    def placements(self, rates_bps: Floats) -> Ranks:
        """Return the placement chosen under each row of rates [K, links] (0: the link is down): [K, n].

        A mode that does not re-embed keeps ranks in order. Otherwise the placement is chosen for the best paths if the
        mode re-routes, else for the fixed paths or those over which the fabric's routing spreads each pair. For a ring
        it is the best one (`best_rings`). For any other schedule it is the placement of least predicted time found by
        descent (`best_placements`), where each rank stays in its site and the root is rank 0. Raises NoPathError if no
        ring joins all sites, and ValueError if another schedule has no placement.
        """
        if not self.mode.reembeds:
            return np.tile(self.in_order, (len(rates_bps), 1))
        unsprayed, chosen = self._unsprayed, np.empty((len(rates_bps), len(self.router.fabric.gpus)), dtype=np.int16)
        for start in range(0, len(rates_bps), _PLACEMENT_BATCH):
            batch = slice(start, start + _PLACEMENT_BATCH)
            chosen[batch] = unsprayed._best(rates_bps[batch])
        return chosen

    @property
    def _unsprayed(self) -> "Chooser":
        return replace(self, workload=self.workload.unsprayed)

    def _best(self, rates_bps: Floats) -> Ranks:
        """Return the best placements for one batch of rates, chosen for the workload's largest message."""
        fabric, workload = self.router.fabric, self.workload
        cost_s, delay_s = self.edges_s(rates_bps)
        if workload.is_ring:
            objective, messages = self.mode.ring or self.ring, _messages_per_round(workload)
            try:
                return best_rings(
                    cost_s, delay_s, gpus_per_site=fabric.gpus_per_site, objective=objective, messages=messages
                )
            except NoRingError:  # too many cables are down, as for a flow without a path
                raise NoPathError("no ring leads over the WAN that visits every site once") from None
        return best_placements(
            _placement_model(workload).completion_s,
            list(zip(*workload.schedule.ends, strict=True)),
            delay_s=delay_s,
            slot_s=(cost_s - delay_s) * (workload.slot_bytes / workload.largest_message_bytes),
            start=self.in_order.tolist(),
            sites=fabric.gpus_per_site,
            root_stays=workload.is_rooted,
            groups=workload.groups,
        )

    def edges_s(self, rates_bps: Floats) -> tuple[Floats, Floats]:
        """Return cost and delay from each rank to each other under rates [K, links], [K, n, n] seconds each. The cost
        is delay plus transmission of the workload's largest message, over the best path if the mode chooses paths."""
        fabric, delays_s = self.router.fabric, self.router.delays_s
        message_bytes, routing = self.workload.largest_message_bytes, self._routing
        inside = fabric.intra_index >= 0
        link = fabric.intra_index[inside]
        if routing is not None and not routing.engineers:
            cost_s, delay_s = routing.crossings(delays_s, rates_bps, chunk_bytes=message_bytes)
        else:
            fixed = routing is None and not self.mode.reroutes
            cost_s, delay_s = self.router.crossings(rates_bps, chunk_bytes=message_bytes, fixed=fixed)
        with np.errstate(divide="ignore"):  # a link that is down has an infinite cost
            cost_s[:, inside] = delays_s[link] + 8 * message_bytes / rates_bps[:, link]
        delay_s[:, inside] = delays_s[link]
        if self.workload.is_ring and self.workload.schedule.turns_both_ways:  # the slower direction limits an edge
            cost_s = np.maximum(cost_s, cost_s.swapaxes(1, 2))
        return cost_s, delay_s

    def ring_gaps(self, rates_bps: Floats) -> Floats:
        """Return an upper bound on the relative optimality gap of the ring chosen under each row of rates [K, links].
        The gap, [K], is how far the ring's objective can exceed the least possible value, as a share of that value. It
        is 0 if the mode chooses no rings or chooses them exactly."""
        sites, workload = self.router.fabric.gpus_per_site, self.workload.unsprayed
        if not (self.mode.reembeds and workload.is_ring and max(sites) > MAX_EXACT_GPUS):
            return np.zeros(len(rates_bps))
        rings = self.placements(rates_bps)
        cost_s, delay_s = self._unsprayed.edges_s(rates_bps)
        objective: Any = {"objective": self.mode.ring or self.ring, "messages": _messages_per_round(workload)}
        chosen_s = objective_values(rings, cost_s, delay_s, **objective)
        least_s = lower_bounds(cost_s, delay_s, gpus_per_site=sites, **objective)
        return np.maximum(chosen_s / least_s - 1, 0)

    def paths(self, placement: Ranks, rates_bps: Floats, *, chosen: bool) -> npt.NDArray[np.int16]:
        """Return the path of every flow as an index in `Fabric.paths`, -1 within a site: [K, F].

        `placement` is [K, n], `rates_bps` are rates of logical links [K, links]. The paths are the best under these
        rates if `chosen`, else the fixed ones. Raises NoPathError for a flow without a path.
        """
        if self._routing is None:
            return self._paths_of_pairs(placement, rates_bps, chosen=chosen)
        if self._routing.engineers:
            return self.fixed(placement, rates_bps)[0]
        return _spread(self._routing, _ends(placement, self.workload), channels(self.workload), rates_bps)

    def _paths_of_pairs(self, placement: Ranks, rates_bps: Floats, *, chosen: bool) -> npt.NDArray[np.int16]:
        """Implement `paths` for the case in which all flows between two places take the same path."""
        ends = list(zip(*self.workload.schedule.ends, strict=True))
        pairs = {pair: index for index, pair in enumerate(dict.fromkeys(ends))}  # each pair once, in order of the flows
        src, dst = (placement[:, places] for places in zip(*pairs, strict=True))
        path = np.full(src.shape, -1, dtype=np.int16)
        crosses = (self.router.fabric.intra_index[src, dst] < 0) & (src != dst)
        count = crosses.sum(axis=1)
        message_bytes = self.workload.unsprayed.largest_message_bytes
        for crossings in np.unique(count[count > 0]):
            rows = np.flatnonzero(count == crossings)
            at = rows[:, None], crosses[rows].nonzero()[1].reshape(len(rows), crossings)
            rates = rates_bps if len(rows) == len(path) else rates_bps[rows]
            if chosen:
                routes = self.router.choose_jointly(rates, src[at], dst[at], chunk_bytes=message_bytes)
            else:
                routes = self.router.fixed(rates, src[at], dst[at])
            path[at] = routes.path
        return path[:, [pairs[pair] for pair in ends]]

    def fixed(
        self,
        placement: Ranks,
        rates_bps: Floats,
        wanted_bps: Sequence[Floats | None] = (),
        has: Sequence[int] = (),
    ) -> tuple[npt.NDArray[np.int16], Floats]:
        """Return the paths where the mode chooses none, as `paths` does, and `limits_bps` as in `Decisions`.

        `wanted_bps` has for each placement the rates of the demands, as in `Traffic.with_demands`, or None for the
        requested rates; `has` is passed on to `Traffic.with_demands`.
        """
        if self._routing is None or not self._routing.engineers:
            return self.paths(placement, rates_bps, chosen=False), np.zeros((0, 0))
        src, dst = _ends(placement, self.workload)
        fabric, delays_s, sites = self.router.fabric, self.router.delays_s, self.router.fabric.gpu_sites
        demands = [traffic(self.workload)] * len(src)
        for row, bps in enumerate(wanted_bps):
            if bps is not None:
                demands[row] = demands[row].with_demands(bps, sites[src[row]], sites[dst[row]], has)
        plans = [
            allocate_flows(fabric, delays_s, rates_bps[row], (src[row], dst[row]), demands[row])
            for row in range(len(src))
        ]
        limits_bps = np.array([plan.limits_bps.ravel() for plan in plans])
        return np.array([plan.path for plan in plans], np.int16).reshape(src.shape), limits_bps

    def flows(self, placement: Ranks, path: npt.NDArray[np.int16], rates_bps: Floats) -> tuple[Floats, Floats]:
        """Return each flow's delay over its path and its transmission time per slot, [K, F] s each; 0, 1 for streams.
        Raises NoPathError for a flow over a link whose rate is 0."""
        streams = np.array([isinstance(flow, Stream) for flow in self.workload.schedule.flows])
        src, dst = _ends(placement, self.workload)
        link = self.router.fabric.intra_index[src, dst]
        alpha_s = self.router.delays_s[link]
        rate_bps = np.take_along_axis(rates_bps, np.maximum(link, 0), axis=1)
        crosses = (path >= 0).nonzero()
        alpha_s[crosses], rate_bps[crosses] = self.router.delay_and_rate(
            rates_bps, crosses[0], src[crosses], dst[crosses], path[crosses]
        )
        if (rate_bps[:, ~streams] <= 0).any():
            row, flow = np.argwhere((rate_bps <= 0) & ~streams)[0]
            raise NoPathError(f"there is no path from rank {src[row, flow]} to rank {dst[row, flow]}")
        beta_s = 8 * self.workload.slot_bytes / rate_bps
        alpha_s[:, streams], beta_s[:, streams] = 0, 1
        return alpha_s, beta_s

    def decisions(
        self,
        placement: Ranks,
        path: npt.NDArray[np.int16],
        rates_bps: Floats,
        *,
        new: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]],
        limits_bps: Floats | None = None,
    ) -> Decisions:
        """Build the decisions for K collectives from their placement [K, n], paths [K, F] and rates [K, links]. `new`
        flags, [K] each, which placements and which paths were just chosen. Raises NoPathError as `flows` does."""
        alpha_s, beta_s = self.flows(placement, path, rates_bps)
        return Decisions(
            placement=placement,
            path=path,
            alpha_s=alpha_s,
            beta_s=beta_s,
            reembedded=new[0],
            rerouted=new[1],
            spreads=ways_of(self.router.fabric, self.mode) is not None,
            limits_bps=np.zeros((0, 0)) if limits_bps is None else limits_bps,
        )

    @property
    def fabric(self) -> Fabric:
        """The fabric of the placements and paths."""
        return self.router.fabric

    def crossings(self, placement: Ranks) -> dict[tuple[int, int], int]:
        """Return the pairs of ranks in two sites between which a placement [n] sends, each with one of its flows."""
        src, dst = (placement[list(places)] for places in self.workload.schedule.ends)
        crosses = self.fabric.gpu_sites[src] != self.fabric.gpu_sites[dst]
        return {(int(src[flow]), int(dst[flow])): flow for flow in np.flatnonzero(crosses).tolist()}

    def placed(self, ranks: Sequence[int]) -> Ranks:
        """Return a placement that a user's policy gives; raises ValueError with what is allowed instead.

        Each rank stays in a site of its place. A ring may take the sites in any order that it could choose itself.
        """
        found, sites = np.array(ranks), self.fabric.gpu_sites
        if sorted(found.tolist()) != list(range(sites.size)):
            raise ValueError(f"each of the ranks 0 to {sites.size - 1} once")
        orders = _placement_per_site_order(self.fabric, self.workload, self.mode)
        if not any((sites[found] == sites[order]).all() for order in orders):
            by_site = " or ".join(str(sites[order].tolist()) for order in orders)
            raise ValueError(f"ranks at places of their sites, {by_site}")
        free = {place for group in self.workload.groups or () for place in group}
        fixed = [place for place in range(sites.size) if self.workload.groups is not None and place not in free]
        fixed += [0] if self.workload.is_rooted and self.workload.groups is None else []
        if (found[fixed] != self.in_order[fixed]).any():
            raise ValueError(f"a placement that leaves the places {', '.join(map(str, fixed))} as they are")
        return found.astype(np.int16)

    def routed(self, placement: Ranks, given: Mapping[tuple[int, int], int], rates_bps: Floats) -> Ranks:
        """Return the best paths, [F], of a placement [n] under rates [links], except for crossings whose path a user's
        policy has given. Raises ValueError with what is allowed for a path that a crossing cannot take."""
        sites, between = self.fabric.gpu_sites.tolist(), self.fabric.paths_between
        for pair, index in given.items():
            if pair not in self.crossings(placement):
                raise ValueError(f"pairs of ranks that send over the WAN, which {pair} does not")
            paths = [path.index for path in between[sites[pair[0]], sites[pair[1]]]]
            if index not in paths:
                raise ValueError(f"for {pair} the paths {', '.join(map(str, paths))}")
        (path,) = self.paths(placement[None], rates_bps[None], chosen=True)
        flows = np.flatnonzero(path >= 0)
        src, dst = (placement[list(places)][flows] for places in self.workload.schedule.ends)
        path[flows] = self.router.redirected(path[flows], src, dst, given, rates_bps)
        return path  # type: ignore[no-any-return]

    @property
    def _routing(self) -> Multipath | None:
        return spreads_over(self.router.fabric, self.mode)

    def seconds(self, placement: Ranks, path: npt.NDArray[np.int16], rates_bps: Floats) -> Floats:
        """Return the predicted completion times, [K] s, as placements are compared: as if no flows shared a link."""
        alpha_s, beta_s = self.flows(placement, path, rates_bps)
        return _placement_model(self.workload).completion_s(alpha_s.T, beta_s.T)

    @cached_property
    def arrays(self) -> tuple[Network, Work] | None:
        """As `Choices.arrays`; None if the fabric's routing spreads the flows."""
        if self._routing is not None:
            return None
        schedule, transfers = self.workload.schedule, placed_transfers(self.workload)
        begins, ends = np.array(schedule.ends, np.int64)
        _, first = np.unique(begins * schedule.places + ends, return_index=True)
        return (
            self.router.network(),
            Work(
                src=begins,
                dst=ends,
                is_stream=np.array([isinstance(flow, Stream) for flow in schedule.flows]),
                is_first=np.isin(np.arange(begins.size), first),
                flow=np.array([one.flow for one in transfers], np.int64),
                amount=np.array([one.amount for one in transfers], np.float64),
                after_at=np.cumsum([0, *(len(one.after) for one in transfers)]),
                after=np.array([index for one in transfers for index in one.after], np.int64),
                slot_bits=float(8 * self.workload.slot_bytes),
                message_bits=float(8 * self.workload.unsprayed.largest_message_bytes),
            ),
        )


def decide(
    chooser: Chooser,
    conditions: Sampler,
    *,
    reembed_every: int,
    start: int,
    count: int,
    believed: Sampler | None = None,
    timeline: Timeline | None = None,
    wanted: Callable[[int], Floats | None] | None = None,
) -> Decisions:
    """Return the decisions for collectives start .. start+count-1.

    Each is a function of the conditions and the collective's index alone. Choices are made under the `believed`
    conditions (default: the true ones) of the collective before which they are made; their delays and rates are then
    the true ones. A placement is chosen for the paths that will be in force with it: the fixed ones, or those that the
    mode is about to choose. `timeline` is an existing timeline of the mode (`timeline_of`). `wanted`
    returns the rates of the demands in a collective, as in `Traffic.with_demands`, or None for the requested rates.

    Raises ValueError if no placement is possible, ConditionsError if a trace ends too early.
    """
    mode, known = chooser.mode, believed or conditions
    if timeline is None and mode.is_periodic:
        moments = periodic(mode, reembed_every, start, count)
    else:
        timeline = timeline or Timeline(Player(mode, chooser, Given(known), reembed_every=reembed_every))
        moments = timeline.moments(start, count)
    rates_bps = conditions.rates_bps(start, count)
    known_bps = rates_bps if believed is None else believed.rates_bps(start, count)

    def known_at(numbers: npt.NDArray[np.int64]) -> Floats:
        before = [known.rates_bps(int(number), 1) for number in numbers[numbers < start]]
        return np.concatenate([*before, known_bps[numbers[numbers >= start] - start]])

    numbers, limits_bps = np.arange(start, start + count), None
    embedded, which = np.unique(moments.embedded, return_inverse=True)
    chosen_placements = chooser.placements(known_at(embedded[embedded >= 0]))
    default_placements = np.tile(chooser.in_order, (int((embedded < 0).sum()), 1))
    placement = np.concatenate([default_placements, chosen_placements])[which]
    if mode.reroutes:
        routed, first, which = np.unique(moments.routed, return_index=True, return_inverse=True)
        is_chosen = routed >= 0  # False for the first entry at most: no path has been chosen yet
        chosen_paths = chooser.paths(placement[first[is_chosen]], known_at(routed[is_chosen]), chosen=True)
        fixed_paths = chooser.paths(placement[first[~is_chosen]], known_bps[first[~is_chosen]], chosen=False)
        path = np.concatenate([fixed_paths, chosen_paths])[which]
    else:
        wanted_bps = [] if wanted is None else [wanted(number) for number in numbers.tolist()]
        path, limits_bps = chooser.fixed(placement, known_bps, wanted_bps)
    new = moments.embedded == numbers, moments.routed == numbers
    return chooser.decisions(placement, path, rates_bps, new=new, limits_bps=limits_bps)


def probes_of(fabric: Fabric, mode: Mode, workload: Workload, placement: Ranks, dead: Cables = NO_CABLES) -> Ranks:
    """Return the probes before a choice in the order of sending, [P, 3]: source, destination and path of each.

    With this placement [n], every pair of ranks with a flow over the WAN has one probe for each candidate path without
    dead cables; in a mode that chooses no paths, only for the first of these paths.
    """
    begins, ends = workload.schedule.ends
    pairs = zip(placement[list(begins)].tolist(), placement[list(ends)].tolist(), strict=True)
    return probes_between(fabric, mode, pairs, dead)


def probes_between(fabric: Fabric, mode: Mode, pairs: Iterable[tuple[int, int]], dead: Cables = NO_CABLES) -> Ranks:
    """Return the probes between these pairs of GPUs, each once, as `probes_of` does."""
    sites, between, failed = fabric.gpu_sites.tolist(), fabric.paths_between, set(failed_links(fabric, dead))

    def is_whole(src: int, dst: int, path: WanPath) -> bool:
        ends = fabric.to_br_index[src, path.src_br], fabric.from_br_index[path.dst_br, dst]
        return failed.isdisjoint((*path.links, *map(int, ends)))

    probes: list[tuple[int, int, int]] = []
    for src, dst in dict.fromkeys(pairs):
        if sites[src] != sites[dst]:
            paths = [path.index for path in between[sites[src], sites[dst]] if is_whole(src, dst, path)]
            probes += [(src, dst, path) for path in (paths if mode.reroutes else paths[:1])]
    return np.array(probes, dtype=np.int16).reshape(-1, 3)


def rank_order_of(fabric: Fabric, workload: Workload) -> Ranks:
    """Return the default placement, [n]: ranks in order; a ring takes the sites in an order that the WAN connects, if
    there is one."""
    return rank_order(fabric.gpus_per_site, fabric.site_cycle if workload.is_ring else None)


def _messages_per_round(workload: Workload) -> float:
    """Return how many messages a ring edge transmits in each direction per round (a block moves by one place)."""
    begins, ends = workload.schedule.ends
    by_edge = Counter((begins[transfer.flow], ends[transfer.flow]) for transfer in workload.schedule.transfers)
    rounds = (workload.schedule.places - 1) * (2 if workload.kind == "allreduce" else 1)
    return max(by_edge.values()) / rounds


def placed_transfers(workload: Workload) -> Sequence[Transfer]:
    """Return the transfers by which placements are chosen: background jobs, whose ranks stay, are left out."""
    return workload.foreground_transfers if workload.jobs else workload.schedule.transfers


@lru_cache(maxsize=64)
def _placement_model(workload: Workload) -> CompiledSchedule:
    """Return the timing model that placements are chosen by."""
    return CompiledSchedule(placed_transfers(workload)) if workload.jobs else compiled(workload)


@lru_cache(maxsize=64)
def compiled(workload: Workload) -> CompiledSchedule:
    """Return the timing model of a workload's schedule."""
    return CompiledSchedule(workload.schedule.transfers)


@lru_cache(maxsize=1024)
def shared_links(
    fabric: Fabric, workload: Workload, mode: Mode, *, detours: Collection[Cables] = ()
) -> tuple[str, ...]:
    """Return the logical links or ports that two flows of one collective can share, by name in the fabric's order.

    The result is empty if every flow always has its links to itself, whatever the mode chooses. It is conservative: two
    flows count as sharing even if one always ends before the other begins. `detours` are sets of cables that faults may
    take down, so that flows leave the fixed paths.
    """
    shared, links = set[int](), links_in_grain(fabric).all
    for dead in (NO_CABLES, *detours):
        for placement in _placement_per_site_order(fabric, workload, mode):
            shared |= _used_by_several(fabric, dead, workload, placement, mode, choosing=mode.reroutes or bool(detours))
    if mode.reembeds:  # GPUs of a site may exchange their places
        kinds = {_by_site(fabric, links[link]) for link in shared}
        shared = {link.index for link in links if _by_site(fabric, link) in kinds}
    return tuple(link.name for link in links if link.index in shared)


def flows_without_path(fabric: Fabric, workload: Workload) -> list[tuple[int, int, int]]:
    """Return the flows between two sites that no candidate path joins, as (flow, source rank, destination rank), with
    the ranks of the default placement. In every placement of the workload its flows join the same sites, except those
    of a ring, which has such flows only if no order of the sites avoids them."""
    src, dst = (rank_order_of(fabric, workload)[list(places)] for places in workload.schedule.ends)
    joined = np.eye(len(fabric.gpus_per_site), dtype=bool)
    for pair, paths in fabric.paths_between.items():
        joined[pair] = bool(paths)
    lost = np.flatnonzero(~joined[fabric.gpu_sites[src], fabric.gpu_sites[dst]])
    return [(int(flow), int(src[flow]), int(dst[flow])) for flow in lost]


def has_choice_of_paths(fabric: Fabric, workload: Workload) -> bool:
    """Return whether any flow between two sites has several candidate paths."""
    sites = fabric.gpu_sites[rank_order_of(fabric, workload)]
    pairs = {(int(sites[src]), int(sites[dst])) for src, dst in zip(*workload.schedule.ends, strict=True)}
    if workload.is_ring:  # whose sites may be in another order
        pairs = {*fabric.paths_between}
    return any(len(fabric.paths_between.get(pair, ())) > 1 for pair in pairs)


def messages_on_a_choice_of_delays(fabric: Fabric, workload: Workload, delays_s: Floats) -> int:
    """Return the most messages that a flow sends between two sites whose candidate paths differ in delay, given that of
    every link, [links]; 0 without such sites. Paths are chosen for one of them (`Router`)."""
    differing = {
        pair
        for pair, paths in fabric.paths_between.items()
        if paths and np.ptp([delays_s[list(path.links)].sum() for path in paths]) > _SAME_DELAY_S
    }
    if not differing:
        return 0
    sites, (src, dst) = fabric.gpu_sites[rank_order_of(fabric, workload)], workload.schedule.ends
    counts = Counter(transfer.flow for transfer in workload.schedule.transfers)
    # The sites of a ring may be in another order; its edges send alike.
    anywhere = workload.is_ring
    sent = (n for flow, n in counts.items() if anywhere or (int(sites[src[flow]]), int(sites[dst[flow]])) in differing)
    return max(sent, default=0)


def has_choice_of_placements(fabric: Fabric, workload: Workload) -> bool:
    """Return whether a mode that re-embeds has several placements to choose from."""
    sizes = fabric.gpus_per_site
    if workload.is_ring:
        orders = _site_orders(fabric)
        return len(orders) > 1 or max(sizes) > (2 if len(sizes) == 1 else 1)
    groups = workload.groups
    if groups is None:
        return max((sizes[0] - workload.is_rooted, *sizes[1:])) > 1
    return any(len(group) > 1 for group in groups)


def _site_orders(fabric: Fabric) -> list[tuple[int, ...]]:
    """Return the orders in which a ring can visit the sites over the WAN, from site 0 on."""
    sites = len(fabric.gpus_per_site)
    if sites == 1:
        return [(0,)]
    cycles = [(0, *rest, 0) for rest in permutations(range(1, sites))]
    return [cycle[:-1] for cycle in cycles if all(fabric.paths_between.get(pair) for pair in pairwise(cycle))]


@lru_cache(maxsize=1024)
def routes_greedily(fabric: Fabric, workload: Workload, mode: Mode) -> bool:
    """Return whether a mode chooses some paths greedily: crossings have too many combinations (`Router.is_exact`)."""
    if not mode.reroutes:
        return False
    router = Router(fabric, np.zeros(len(fabric.links)))
    ends = np.array(list(dict.fromkeys(zip(*workload.schedule.ends, strict=True)))).T
    for placement in _placement_per_site_order(fabric, workload, mode):
        src, dst = placement[ends]
        crosses = fabric.gpu_sites[src] != fabric.gpu_sites[dst]
        if not router.is_exact(src[crosses], dst[crosses]):
            return True
    return False


def most_shared(fabric: Fabric, shared: Collection[str]) -> int:
    """Return the largest number of these links or ports, given by name, that a flow between two GPUs can pass."""
    names, sites = set(shared), fabric.gpu_sites
    counts = np.array([*(link.name in names for link in links_in_grain(fabric).all), False])  # the last one is for -1
    src, dst = np.nonzero((sites[:, None] == sites) & ~np.eye(len(sites), dtype=bool))
    paths = [(src, dst, np.full(src.shape, -1))]
    for path in fabric.paths:
        src, dst = (np.flatnonzero(sites == site) for site in (path.src_site, path.dst_site))
        src, dst = np.repeat(src, dst.size), np.tile(dst, src.size)
        paths.append((src, dst, np.full(src.shape, path.index)))
    passed = [links_in_grain(fabric).of(*ends_and_path) for ends_and_path in paths]
    if (routing := multipath(fabric)) is not None:  # which may take other spines
        passed += [routing.every_link(src, dst) for src, dst, _ in paths]
    return max(int(counts[links].sum(axis=-1).max(initial=0)) for links in passed)


def _placement_per_site_order(fabric: Fabric, workload: Workload, mode: Mode) -> list[Ranks]:
    """Return one placement for each order of the sites that a mode can choose."""
    if not (workload.is_ring and mode.reembeds):
        return [rank_order_of(fabric, workload)]
    return [rank_order(fabric.gpus_per_site, order) for order in _site_orders(fabric)]


def _used_by_several(
    fabric: Fabric, dead: Cables, workload: Workload, placement: Ranks, mode: Mode, *, choosing: bool
) -> set[int]:
    """Return the links or ports, by index, that two or more flows can pass with this placement. Flows may take any path
    if `choosing`, else the fixed path or those of the fabric's routing. If the mode moves ranks within their sites,
    ports between switches are counted for all such placements."""
    shared, routing = links_in_grain(fabric, dead), ways_of(fabric, mode)
    src, dst = (placement[list(places)] for places in workload.schedule.ends)
    has_path = src != dst
    has_path[[flow for flow, *_ in flows_without_path(fabric, workload)]] = False  # at a prompt
    flows = np.flatnonzero(has_path)
    src, dst = src[flows], dst[flows]

    def every(src: Ranks, dst: Ranks) -> npt.NDArray[np.int32]:
        """Return the links of every possible path from rank to rank, [F, paths, H]."""
        if routing is not None:
            return routing.every_link(src, dst)
        path = Multipath(fabric, sprays=True).candidates(src, dst)[..., : None if choosing else 1]
        path = np.where(path < 0, path[..., :1], path)
        near, far, path = np.broadcast_arrays(src[..., None], dst[..., None], path)
        return shared.of(near, far, path)

    # Otherwise the paths are unknown: other ranks have other hashes, or the mode chooses other paths.
    fixed = routing is not None and not mode.reroutes and not routing.engineers
    if routing is not None and fixed and (routing.sprays or not mode.reembeds):
        channel = channels(workload)[flows]
        path = routing.paths(src, dst, channel, failed_links(fabric, dead))
        links = routing.links(src, dst, path, channel, dead)
    else:
        links = every(src, dst).reshape(flows.size, -1)
    by_flow = np.unique((np.arange(flows.size)[:, None] * len(shared.all) + links)[links >= 0])
    users = np.bincount(by_flow % len(shared.all), minlength=len(shared.all))
    if mode.reembeds and fabric.spec.grain == "physical":
        users = np.maximum(users, _flows_between_switches(fabric, src, dst, every))
    return set(np.flatnonzero(users > 1).tolist())


def _flows_between_switches(
    fabric: Fabric, src: Ranks, dst: Ranks, every: Callable[[Ranks, Ranks], npt.NDArray[np.int32]]
) -> npt.NDArray[np.intp]:
    """Return how many flows between these ranks can pass each port between switches, for any ranks of the same sites.
    `every` returns all ports that a flow from rank to rank can pass."""
    sites, flows = fabric.gpu_sites, np.zeros(len(links_in_grain(fabric).all), dtype=np.intp)
    for (a, b), count in Counter(zip(sites[src].tolist(), sites[dst].tolist(), strict=True)).items():
        near, far = np.meshgrid(np.flatnonzero(sites == a), np.flatnonzero(sites == b))
        apart = near != far
        links = every(near[apart], far[apart])[..., 1:-1]  # without the GPUs' own ports, the first and the last
        flows[np.unique(links[links >= 0])] += count
    return flows


@lru_cache(maxsize=16)
def _site_by_node(fabric: Fabric) -> dict[str, int]:
    """Return the site of every node that is interchangeable within its site: GPUs, leaves and spines."""
    switches = [switch for switch in fabric.switches if switch.kind in ("leaf", "spine")]
    site = {switch.name: switch.site for switch in switches if switch.site is not None}
    return site | {gpu.name: gpu.site for gpu in fabric.gpus}


def _by_site(fabric: Fabric, link: LogicalLink | DirectedPort) -> tuple[object, ...]:
    """Return a link's or port's kind and ends, with GPUs, leaves and spines replaced by their site."""
    sites = _site_by_node(fabric)
    return link.kind, sites.get(link.src, link.src), sites.get(link.dst, link.dst)


def _ends(placement: Ranks, workload: Workload) -> tuple[Ranks, Ranks]:
    """Return the source and destination rank of each flow, [K, F] each."""
    src, dst = (placement[:, places] for places in workload.schedule.ends)
    return src, dst


def _spread(routing: Multipath, ends: tuple[Ranks, Ranks], channel: Ranks, rates_bps: Floats) -> npt.NDArray[np.int16]:
    """Return the path of each flow as the fabric's routing spreads them, [K, F]; -1 for streams."""
    src, dst = ends
    path = np.full(src.shape, -1, dtype=np.int16)
    flows = np.flatnonzero((src != dst).any(axis=0))  # a stream begins and ends at the same place
    for rows, failed in group_by_failures(rates_bps):
        for batch in np.array_split(rows, -(-rows.size * flows.size // _FLOWS)):
            at = batch[:, None], flows
            path[at] = routing.paths(src[at], dst[at], channel[flows], failed)
    return path
