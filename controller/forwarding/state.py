"""Keeps the forwarding state of the switches, their default rules and routes, and changes it."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from types import MappingProxyType

import numpy as np

from controller.api.protocol import RouteRequest
from controller.forwarding import rules
from controller.forwarding.flow_mods import LAST_GENERATION, Stage, tunnel_over
from controller.forwarding.switches import SETTLE_S, SwitchError, Switches
from controller.routing.multipath import multipath
from controller.routing.switch_paths import FabricPaths, return_paths
from controller.routing.traffic_engineering import Integers, Traffic, allocate_flows
from controller.routing.wan_path_choice import NoPathError, Router
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import Cables, failed_links, reachable, spines

DEADLINE_S = 5.0
"""How long the switches may take to confirm one stage of a change."""

_STANDING_TUNNELS = 4096
"""In a fabric with more tunnels than this, a tunnel is installed when first wanted, instead of all at the start."""

FlowPaths = Mapping[tuple[int, int, int], rules.FlowPath]
"""The paths of flows, by (source rank, destination rank, TCP source port); of channels of connections, by what stands
for the channel in place of the port (`rules.of_channel`)."""

NO_FLOWS: FlowPaths = MappingProxyType({})


class State(Enum):
    """Whether the rules of the ready switches are known.

    CONFIRMED -> (a change begins) -> IN_DOUBT -> (every switch confirms it) -> CONFIRMED. After a failed change the
    state remains IN_DOUBT, and the next change begins by removing all routes and restoring the default rules.
    """

    CONFIRMED = "every switch has confirmed the default rules and the routes in force"
    IN_DOUBT = "a change has begun that not every switch has confirmed"


class Forwarding:
    """The forwarding of one fabric: default rules along `paths`, `tunnels` and `routes`. One change at a time.

    `tunnels` are the numbers of the tunnels that every ready switch has; none is ever removed. `ready` are the names of
    the switches that have their default rules. Only these get changes; others get all rules on connecting (`greet`).
    """

    def __init__(self, fabric: Fabric, switches: Switches) -> None:
        self._fabric, self._switches = fabric, switches
        self.paths = FabricPaths(fabric)
        self.routes: tuple[rules.Route, ...] = ()
        tunnels = _tunnels(fabric)
        self.tunnels = frozenset(tunnels if len(tunnels) <= _STANDING_TUNNELS else ())
        self.generation = 0
        self.ready: set[str] = set()
        self.state = State.CONFIRMED

    def greet(self, switch: str) -> None:
        """Send all rules to a switch that has connected, and mark it as ready.

        Raises SwitchError after closing the connection, so that the switch connects again.
        """
        connection = self._switches.connection(switch)
        try:
            stages = rules.greeting(self.paths, switch, self.routes, self.tunnels)
            self._switches.send(stages, deadline_s=DEADLINE_S)
        except SwitchError:
            self._switches.drop(connection)
            raise
        self.ready.add(switch)

    def reconcile(self, new: FabricPaths, wanted: Mapping[tuple[int, int], int], of_flows: FlowPaths = NO_FLOWS) -> int:
        """Install the default rules of `new`, and put each pair of ranks in `wanted` on its path and each flow in
        `of_flows` on its own.

        Acknowledgements that the default rules would lose get routes, too. Return the number of messages of the change.
        Raises SwitchError; the state is then IN_DOUBT.
        """
        crossings = (*wanted, *((src, dst) for (src, dst, _), flow_path in of_flows.items() if flow_path.path >= 0))
        wanted = {**return_paths(new, crossings), **wanted}
        detours = () if new == self.paths else [rules.detour(self.paths, new, s.name) for s in self._fabric.switches]
        if self.state is State.IN_DOUBT:
            greetings = [rules.greeting(self.paths, s.name, (), self.tunnels) for s in self._fabric.switches]
            self._send(tuple(itertools.chain(*stages)) for stages in zip(*greetings, strict=True))
            self.routes, self.state = (), State.CONFIRMED
        generation = self.generation % LAST_GENERATION + 1
        change = rules.change(new, self.routes, wanted, generation=generation, tunnels=self.tunnels, of_flows=of_flows)
        moves = change.moves if detours else ()  # traffic of a dead cable is moved in the first stage
        early = set(moves)
        later = (tuple(message for message in stage if message not in early) for stage in change.stages)
        stages = [stage for stage in (tuple(itertools.chain(*detours, moves)), *later) if stage]
        if stages:
            self.generation, self.state = generation, State.IN_DOUBT
            self._send(stages, settle_s=SETTLE_S)
        self.routes, self.tunnels, self.paths, self.state = change.routes, change.tunnels, new, State.CONFIRMED
        return sum(len(stage) for stage in stages)

    def path(self, src: int, dst: int) -> int:
        """Return the index of the path that a pair of ranks in two sites is on."""
        routed = {route.key: route.path for route in self.routes}
        return routed.get((src, dst, None), self.paths.default(src, dst))

    def paths_of_flows(self) -> dict[tuple[int, int, int], int]:
        """Return the path index of every flow that has its own route over the WAN, by ranks and TCP source port."""
        return {(r.src, r.dst, r.port): r.path for r in self.routes if r.port is not None and r.path >= 0}

    def _send(self, stages: Iterable[Stage], *, settle_s: float = 0.0) -> None:
        known = self.ready | self._switches.elsewhere.keys()
        sent = [tuple(message for message in stage if message.switch in known) for stage in stages]
        self._switches.send([stage for stage in sent if stage], deadline_s=DEADLINE_S, settle_s=settle_s)


def choose(fabric: Fabric, request: RouteRequest, dead: Cables) -> list[int]:
    """Choose the paths of the request's crossings together, avoiding dead cables; return indices in `fabric.paths`.

    Raises NoPathError.
    """
    if not request.crossings:
        return []
    src, dst = np.array(request.crossings).T
    rates_bps = np.array(request.rates_bps)
    rates_bps[list(failed_links(fabric, dead))] = 0.0
    router = Router(fabric, np.array(request.delays_s))
    ends = rates_bps[None], src[None], dst[None]
    routes = router.choose_jointly(*ends, chunk_bytes=request.chunk_bytes) if request.best else router.fixed(*ends)
    path = router.redirected(routes.path[0], src, dst, {(a, b): index for a, b, index in request.given}, rates_bps)
    return [int(index) for index in path]


Limits = list[list[float]]
"""The rate limits of tunnels, bit/s, by index of the class in service order and of the path; empty without limits."""


def choose_flow_paths(
    fabric: Fabric,
    request: RouteRequest,
    dead: Cables,
    paths: Sequence[int] = (),
    current: Mapping[tuple[int, int, int], int] = MappingProxyType({}),
) -> tuple[dict[tuple[int, int, int], rules.FlowPath], Limits]:
    """Choose the paths of the request's flows by the fabric's routing, avoiding dead cables.

    Return them by ranks and TCP source port, followed by those of probes; and the limits of tunnels. `paths` are the
    paths of the request's crossings, which their flows take; `current` are the current path indices of flows.
    Raises NoPathError if a flow has no path.
    """
    routing, failed = multipath(fabric), set(failed_links(fabric, dead))
    probes = {
        (src, dst, port): rules.FlowPath(path=path)
        for src, dst, path, port in request.probes
        if failed.isdisjoint(fabric.paths[path].links)
    }
    flows = [*request.flows, *_channels(request)]
    if routing is None or not flows:
        return probes, []
    reach = reachable(fabric, dead)
    for src, dst, *_ in flows:
        if not reach[src, dst]:
            raise NoPathError(f"no path leads over the WAN from rank {src} to rank {dst}")
    src, dst, channel, port = np.array(flows).T
    keys = list(zip(src.tolist(), dst.tolist(), port.tolist(), strict=True))
    path: Integers
    limits: Limits = []
    if routing.engineers:
        rates_bps = np.array(request.rates_bps)
        rates_bps[list(failed)] = 0.0
        priority, wanted_bps = zip(*request.asks, *_asks_of_channels(request), strict=True)
        traffic = Traffic(priority=priority, wanted_bps=wanted_bps, kept=request.kept)
        crossing = np.flatnonzero(fabric.gpu_sites[src] != fabric.gpu_sites[dst])
        if request.stay and all(keys[flow] in current for flow in crossing):
            traffic = replace(traffic, current_path=tuple(current.get(key, -1) for key in keys))
        plan = allocate_flows(fabric, np.array(request.delays_s), rates_bps, (src, dst), traffic)
        path, limits = plan.path, plan.limits_bps.tolist()
    else:
        path = routing.paths(src, dst, channel, failed)
    if paths:
        of_crossing = dict(zip(request.crossings, paths, strict=True))
        path = np.array([of_crossing.get(flow[:2], index) for flow, index in zip(flows, path, strict=True)])
    up, down = routing.spines(src, dst, path, channel, dead).T
    columns = zip(keys, path.tolist(), up.tolist(), down.tolist(), strict=True)
    of_flows = {key: rules.FlowPath(path=index, up=above, down=below) for key, index, above, below in columns}
    return of_flows | probes, limits


def _channels(request: RouteRequest) -> Iterator[tuple[int, int, int, int]]:
    """Yield every channel of the request's connections in the form of a flow."""
    for src, dst in request.connections:
        for channel in range(request.channels):
            yield src, dst, channel, rules.of_channel(channel)


def _asks_of_channels(request: RouteRequest) -> Iterator[tuple[int, float]]:
    """Yield what every channel of `_channels` asks for: an equal part of what its pair wants, in the first class."""
    for wanted_bps in request.wants:
        yield from itertools.repeat((0, wanted_bps / request.channels), request.channels)


def _tunnels(fabric: Fabric) -> tuple[int, ...]:
    """Return the numbers of the tunnels that routes may use."""
    tunnels = [tunnel_over(path.index) for path in fabric.paths]
    if multipath(fabric) is not None and fabric.spec.grain == "physical":
        counts = [len(spines(fabric, site)) for site in range(len(fabric.gpus_per_site))]
        tunnels += [tunnel_over(path.index, spine) for path in fabric.paths for spine in range(counts[path.dst_site])]
    return tuple(tunnels)
