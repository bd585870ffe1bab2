"""A snapshot of the network at the prompt: rates, delays and WAN paths in force, and the timing model's prediction for
a collective under them. Pure functions.

Rates and sizes are the scenario's, before the rate scale.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.model import fluid, max_plus
from controller.routing.multipath import Multipath, multipath
from controller.routing.switch_paths import FabricPaths
from controller.routing.traffic_engineering import Traffic, allocate_flows
from hosts.collectives.schedule import Flow, Schedule
from topologies.fabric.fabric import Fabric, WanPath
from topologies.fabric.failures import Cables, cable, failed_links
from topologies.fabric.ports import SharedLinks, links_in_grain

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Route:
    """The route from one GPU to another: its links or ports in order, the sum of their delays, and the rate of the
    slowest one, 0 if one is down."""

    links: tuple[int, ...]
    delay_s: float
    rate_bps: float

    def cost_s(self, message_bytes: int) -> float:
        """Return the time that a message takes on this route, in s; infinity if a link is down."""
        return self.delay_s + 8 * message_bytes / self.rate_bps if self.rate_bps else math.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """Links and routes at one moment.

    `set_bps` and `delays_s`, [links or ports], are the configured rates and delays; `status` is the controller's
    (`controller.api.client.Controller.status`).
    """

    fabric: Fabric
    set_bps: Floats
    delays_s: Floats
    status: Mapping[str, Any]

    @property
    def dead(self) -> Cables:
        """The failed cables."""
        return dead_cables(self.status)

    @cached_property
    def shared(self) -> SharedLinks:
        """The links or ports as forwarding uses them once the failed cables are removed."""
        return links_in_grain(self.fabric, self.dead)

    @cached_property
    def rates_bps(self) -> Floats:
        """The rates, [links or ports] bit/s; 0 for those that the failed cables cut."""
        rates = self.set_bps.copy()
        rates[list(self.shared.failed(self.dead))] = 0.0
        return rates

    @cached_property
    def logical_bps(self) -> Floats:
        """The rates of the logical links, [links] bit/s; 0 if the failed cables leave a link no path."""
        rates = self.shared.slowest_bps(self.set_bps).copy()
        rates[list(failed_links(self.fabric, self.dead))] = 0.0
        return rates

    @cached_property
    def _installed_paths(self) -> dict[tuple[int, int], int]:
        return {(src, dst): path for src, dst, path, _ in self.status["routes"]}

    @cached_property
    def _fabric_paths(self) -> FabricPaths:
        return FabricPaths(self.fabric, self.dead)

    def path(self, src: int, dst: int) -> int:
        """Return the index of the WAN path in force from rank `src` to rank `dst`, -1 within a site.

        A pair without an installed route uses the fixed path of its sites: the first one without a failed cable.
        """
        if not crosses(self.fabric, src, dst):
            return -1
        sites = self.fabric.gpus[src].site, self.fabric.gpus[dst].site
        return self._installed_paths.get((src, dst), self._fabric_paths.fixed(*sites).index)

    def route(self, src: int, dst: int, path: int | None = None) -> Route:
        """Return the route between two ranks over the WAN path of this index (-1 within a site), or that in force."""
        path = self.path(src, dst) if path is None else path
        return self._route_over(self.shared.edge(src, dst, path))

    def in_use(self, src: int, dst: int) -> Counter[int]:
        """Count the flows between two ranks of different sites on each WAN path, by path index.

        A pair whose flows have no paths of their own counts as one flow.
        """
        return Counter(self._own_paths.get((src, dst)) or [self.path(src, dst)])

    @cached_property
    def _own_paths(self) -> dict[tuple[int, int], list[int]]:
        """The path of each flow that has a path of its own, grouped by the flow's ranks."""
        paths: dict[tuple[int, int], list[int]] = {}
        for src, dst, _, path, *_ in self.status.get("flows", ()):
            paths.setdefault((src, dst), []).append(path)
        return paths

    def _flow_route(self, src: int, dst: int, channel: int) -> Route:
        """Return the route of a flow, by the fabric's multipath routing if the pair's flows have their own paths."""
        routing = multipath(self.fabric)
        if routing is None or (src, dst) not in self._own_paths:
            return self.route(src, dst)
        ends = np.array(src), np.array(dst)
        path = routing.paths(*ends, channel, failed_links(self.fabric, self.dead))
        if len({*self._own_paths[src, dst]}) == 1:  # the mode may have chosen it, instead of the routing
            path = np.array(self._own_paths[src, dst][0])
        links = routing.links(*ends, path, channel, self.dead)
        return self._route_over(tuple(int(link) for link in links if link >= 0))

    def _route_over(self, links: tuple[int, ...]) -> Route:
        delay_s, rate_bps = float(self.delays_s[[*links]].sum()), float(self.rates_bps[[*links]].min())
        return Route(links=links, delay_s=delay_s, rate_bps=rate_bps)

    def predicted_s(
        self, schedule: Schedule, placement: Sequence[int], *, slot_bytes: float, traffic: Traffic | None = None
    ) -> float:
        """Return the model's completion time of a collective with slots of `slot_bytes`, in s; its routes must be up.

        `traffic` holds the demands of its flows; if tunnels have rate limits, the prediction takes these into account.
        """
        routing, channels = multipath(self.fabric), _channels(schedule)
        if traffic is not None and routing is not None and routing.engineers and self.status["limits"]:
            return self._engineered_s(routing, schedule, placement, slot_bytes, traffic)
        flows = zip(pairs(schedule, placement), channels, strict=True)
        routes = [self._flow_route(*ends, channel) for ends, channel in flows]
        alpha_s = np.array([[route.delay_s] for route in routes])
        used = Counter(link for route in routes for link in route.links)
        if max(used.values()) == 1:
            beta_s = np.array([[8 * slot_bytes / route.rate_bps] for route in routes])
            return float(max_plus.completion_s(schedule.transfers, alpha_s, beta_s)[0])
        links = np.full((len(routes), max(len(route.links) for route in routes)), -1, dtype=np.int32)
        for flow, route in enumerate(routes):
            links[flow, : len(route.links)] = route.links
        return _shared_completion_s(schedule, links, self.rates_bps, alpha_s[:, 0], slot_bytes)

    def _engineered_s(
        self, routing: Multipath, schedule: Schedule, placement: Sequence[int], slot_bytes: float, traffic: Traffic
    ) -> float:
        """Do what `predicted_s` does, for tunnels with rate limits: each one is a link more, at the end of a route."""
        src, dst = np.array(pairs(schedule, placement)).T
        delays_s = self.shared.delays_s(self.delays_s)
        plan = allocate_flows(self.fabric, delays_s, self.logical_bps, (src, dst), traffic)
        links = routing.links(src, dst, plan.path, np.array(_channels(schedule)), self.dead)
        first = len(self.rates_bps) + np.array(traffic.priority) * len(self.fabric.paths)
        tunnels = np.where(plan.path >= 0, first + plan.path, -1)
        links = np.concatenate([links, tunnels[:, None]], axis=1).astype(np.int32)
        rates_bps = np.append(self.rates_bps, plan.limits_bps.ravel())
        alpha_s = np.append(self.delays_s, np.zeros(plan.limits_bps.size + 1))[links].sum(axis=1)
        return _shared_completion_s(schedule, links, rates_bps, alpha_s, slot_bytes)


def _channels(schedule: Schedule) -> list[int]:
    """Return the channel of each flow of a schedule."""
    return [flow.channel if isinstance(flow, Flow) else 0 for flow in schedule.flows]


def _shared_completion_s(
    schedule: Schedule, links: npt.NDArray[np.int32], rates_bps: Floats, alpha_s: Floats, slot_bytes: float
) -> float:
    """Return the fluid model's completion time of one collective in s, given the links of its flows, [flows, links]."""
    times_s = fluid.completion_s(schedule.transfers, links[None], rates_bps[None], alpha_s[None], slot_bytes=slot_bytes)
    return float(times_s[0])


def dead_cables(status: Mapping[str, Any]) -> Cables:
    """Return the failed cables according to the controller's status."""
    return frozenset(cable(a, b) for a, b in status["dead"])


def pairs(schedule: Schedule, placement: Sequence[int]) -> list[tuple[int, int]]:
    """Return the source and destination rank of each flow of a schedule."""
    return [(placement[src], placement[dst]) for src, dst in zip(*schedule.ends, strict=True)]


def edges(ring: Sequence[int]) -> list[tuple[int, int]]:
    """Return the edges of a ring: from each rank to the next, and from the last to the first."""
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))


def crosses(fabric: Fabric, src: int, dst: int) -> bool:
    """Return whether two ranks are in different sites."""
    return fabric.gpus[src].site != fabric.gpus[dst].site


def candidates(fabric: Fabric, src: int, dst: int) -> tuple[WanPath, ...]:
    """Return the WAN paths that traffic between two ranks could take, the fixed one first."""
    return fabric.paths_between.get((fabric.gpus[src].site, fabric.gpus[dst].site), ())
