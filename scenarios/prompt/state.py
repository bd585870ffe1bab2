"""The state of the network at the prompt: which WAN paths are in force, their rates and delays, and the model's
prediction for a collective under them. Pure.

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
from controller.routing.paths import Ways
from controller.routing.traffic_engineering import Traffic, engineered
from hosts.collectives.schedule import Flow, Schedule
from topologies.fabric.fabric import Fabric, WanPath
from topologies.fabric.failures import Cables, cable, failed_links
from topologies.fabric.ports import Shared, shared_by

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Way:
    """The links or ports from one GPU to another, in order; their delays' sum; the rate of the slowest, 0 if down."""

    links: tuple[int, ...]
    delay_s: float
    rate_bps: float

    def cost_s(self, message_bytes: int) -> float:
        """The time of a message over it, s; infinity where a link of it is down."""
        return self.delay_s + 8 * message_bytes / self.rate_bps if self.rate_bps else math.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """Links and routes at one moment.

    `set_bps` and `delays_s`, [links or ports], are the rates and delays that these were given; `status` is the
    controller's (`controller.api.client.Controller.status`).
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
    def shared(self) -> Shared:
        """The links or ports, as forwarding uses them without the failed cables."""
        return shared_by(self.fabric, self.dead)

    @cached_property
    def rates_bps(self) -> Floats:
        """The rates, [links or ports]; 0 where the failed cables leave none."""
        rates = self.set_bps.copy()
        rates[list(self.shared.failed(self.dead))] = 0.0
        return rates

    @cached_property
    def logical_bps(self) -> Floats:
        """The rates of logical links, [links]; 0 where the failed cables leave a link no way."""
        rates = self.shared.slowest_bps(self.set_bps).copy()
        rates[list(failed_links(self.fabric, self.dead))] = 0.0
        return rates

    @cached_property
    def _routes(self) -> dict[tuple[int, int], int]:
        return {(src, dst): path for src, dst, path, _ in self.status["routes"]}

    @cached_property
    def _ways(self) -> Ways:
        return Ways(self.fabric, self.dead)

    def path(self, src: int, dst: int) -> int:
        """The index of the WAN path in force from rank to rank, -1 within a site.

        A pair without a route of its own is on its sites' fixed path: the first without a failed cable.
        """
        if not crosses(self.fabric, src, dst):
            return -1
        sites = self.fabric.gpus[src].site, self.fabric.gpus[dst].site
        return self._routes.get((src, dst), self._ways.fixed(*sites).index)

    def way(self, src: int, dst: int, path: int | None = None) -> Way:
        """The way from rank to rank over the WAN path of that index (-1 within a site), or over the one in force."""
        path = self.path(src, dst) if path is None else path
        return self._over(self.shared.edge(src, dst, path))

    def in_use(self, src: int, dst: int) -> Counter[int]:
        """How many flows from rank to rank of another site are on each WAN path, by its index.

        Those of a pair without ways of their own count as one.
        """
        return Counter(self._spread.get((src, dst)) or [self.path(src, dst)])

    @cached_property
    def _spread(self) -> dict[tuple[int, int], list[int]]:
        """The paths of flows that have ways of their own, by their ranks."""
        found: dict[tuple[int, int], list[int]] = {}
        for src, dst, _, path, *_ in self.status.get("flows", ()):
            found.setdefault((src, dst), []).append(path)
        return found

    def _way_of(self, src: int, dst: int, channel: int) -> Way:
        """The way of a flow: by the fabric's routing, where flows of its ranks have ways of their own."""
        spread = multipath(self.fabric)
        if spread is None or (src, dst) not in self._spread:
            return self.way(src, dst)
        ends = np.array(src), np.array(dst)
        path = spread.paths(*ends, channel, failed_links(self.fabric, self.dead))
        if len({*self._spread[src, dst]}) == 1:  # where the mode chooses it, that is another
            path = np.array(self._spread[src, dst][0])
        return self._over(tuple(int(one) for one in spread.links(*ends, path, channel, self.dead) if one >= 0))

    def _over(self, links: tuple[int, ...]) -> Way:
        delay_s, rate_bps = float(self.delays_s[[*links]].sum()), float(self.rates_bps[[*links]].min())
        return Way(links=links, delay_s=delay_s, rate_bps=rate_bps)

    def predicted_s(
        self, schedule: Schedule, placement: Sequence[int], *, slot_bytes: float, traffic: Traffic | None = None
    ) -> float:
        """The model's time of a collective with slots of so many bytes, all of whose ways are up, s.

        `traffic` is what its flows ask for; where tunnels have limits these are in force.
        """
        spread = multipath(self.fabric)
        if traffic is not None and spread is not None and spread.engineers and self.status["limits"]:
            return self._engineered_s(spread, schedule, placement, slot_bytes, traffic)
        channels = [flow.channel if isinstance(flow, Flow) else 0 for flow in schedule.flows]
        ways = [self._way_of(*ends, one) for ends, one in zip(pairs(schedule, placement), channels, strict=True)]
        alpha_s = np.array([[way.delay_s] for way in ways])
        used = Counter(link for way in ways for link in way.links)
        if max(used.values()) == 1:
            beta_s = np.array([[8 * slot_bytes / way.rate_bps] for way in ways])
            return float(max_plus.completion_s(schedule.transfers, alpha_s, beta_s)[0])
        links = np.full((1, len(ways), max(len(way.links) for way in ways)), -1, dtype=np.int32)
        for flow, way in enumerate(ways):
            links[0, flow, : len(way.links)] = way.links
        rates_bps = self.rates_bps[None]
        return float(fluid.completion_s(schedule.transfers, links, rates_bps, alpha_s.T, slot_bytes=slot_bytes)[0])

    def _engineered_s(
        self, spread: Multipath, schedule: Schedule, placement: Sequence[int], slot_bytes: float, traffic: Traffic
    ) -> float:
        """As `predicted_s`, over tunnels with rates of their own."""
        channel = np.array([flow.channel if isinstance(flow, Flow) else 0 for flow in schedule.flows])
        src, dst = np.array(pairs(schedule, placement)).T
        delays_s = self.shared.delays_s(self.delays_s)
        plan = engineered(self.fabric, delays_s, self.logical_bps, (src, dst), traffic)
        links = spread.links(src, dst, plan.path, channel, self.dead)
        first = len(self.rates_bps) + np.array(traffic.priority) * len(self.fabric.paths)
        begins = np.where(plan.path >= 0, first + plan.path, -1)
        links = np.concatenate([links, begins[:, None]], axis=1).astype(np.int32)
        rates_bps = np.append(self.rates_bps, plan.limits_bps.ravel())
        alpha_s = np.append(self.delays_s, np.zeros(plan.limits_bps.size + 1))[links].sum(axis=1)
        return float(
            fluid.completion_s(schedule.transfers, links[None], rates_bps[None], alpha_s[None], slot_bytes=slot_bytes)[
                0
            ]
        )


def dead_cables(status: Mapping[str, Any]) -> Cables:
    """The failed cables by the controller's status."""
    return frozenset(cable(a, b) for a, b in status["dead"])


def pairs(schedule: Schedule, placement: Sequence[int]) -> list[tuple[int, int]]:
    """The ranks that each flow of a schedule leads from and to."""
    return [(placement[src], placement[dst]) for src, dst in zip(*schedule.ends, strict=True)]


def edges(ring: Sequence[int]) -> list[tuple[int, int]]:
    """The edges of a ring: from each rank to the next, and from the last to the first."""
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))


def crosses(fabric: Fabric, src: int, dst: int) -> bool:
    """Whether an edge leads to another site."""
    return fabric.gpus[src].site != fabric.gpus[dst].site


def candidates(fabric: Fabric, src: int, dst: int) -> tuple[WanPath, ...]:
    """The WAN paths that an edge could take, the fixed one first."""
    return fabric.paths_between.get((fabric.gpus[src].site, fabric.gpus[dst].site), ())
