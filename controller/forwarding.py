"""What the switches have been told, and changing it: the ways that standing rules follow, and the routes beside them.

One change at a time; whose turn it is, is the caller's business. Which paths to choose is `routing`'s.
"""

import itertools
from collections.abc import Iterable, Mapping

import numpy as np

from controller import rules
from controller.flows import LAST_GENERATION, Stage
from controller.protocol import RouteRequest
from controller.routing import Router
from controller.switches import SETTLE_S, SwitchError, Switches
from controller.ways import Ways
from topologies.fabric import Fabric
from topologies.outage import Cables, dead_links

DEADLINE_S = 5.0
"""How long the switches may take to confirm one stage of a change."""


class Forwarding:
    """The forwarding of one fabric.

    `ready` are the switches that have their standing rules: the others are told nothing, and all of it once they are
    back (`greet`). A change that fails may have been made in part, which leaves it `in_doubt`; the next one begins with
    the standing rules alone.
    """

    def __init__(self, fabric: Fabric, switches: Switches) -> None:
        self._fabric, self._switches = fabric, switches
        self.ways = Ways(fabric)
        self.routes: tuple[rules.Route, ...] = ()
        self.generation = 0
        self.ready: set[str] = set()
        self.in_doubt = False

    def greet(self, switch: str) -> None:
        """Give a switch that has connected its rules, and call it ready.

        Raises SwitchError after it has hung up on the switch, which has to connect anew.
        """
        connection = self._switches.connection(switch)
        try:
            self._switches.send(rules.greeting(self.ways, switch, self.routes), deadline_s=DEADLINE_S)
        except SwitchError:
            self._switches.drop(connection)
            raise
        self.ready.add(switch)

    def put(self, ways: Ways, wanted: Mapping[tuple[int, int], int]) -> int:
        """Lead these crossings over these paths, and everything else as the ways say; raises SwitchError.

        Returns the number of messages that it took.
        """
        old = self.ways
        moved = tuple(m for s in self._fabric.switches for m in rules.detour(old, ways, s.name)) if ways != old else ()
        if self.in_doubt:
            greetings = [rules.greeting(old, switch.name, ()) for switch in self._fabric.switches]
            self._send(tuple(itertools.chain(*stages)) for stages in zip(*greetings, strict=True))
            self.routes, self.in_doubt = (), False
        generation = self.generation % LAST_GENERATION + 1
        change = rules.change(ways, self.routes, wanted, generation=generation)
        stages = ((moved,) if moved else ()) + change.stages
        if stages:
            self.generation, self.in_doubt = generation, True
            self._send(stages, settle_s=SETTLE_S)
            self.in_doubt = False
        self.routes, self.ways = change.routes, ways
        return sum(len(stage) for stage in stages)

    def path(self, src: int, dst: int) -> int:
        """The index of the path that a pair of ranks in two sites is on."""
        found = next((route.path for route in self.routes if (route.src, route.dst) == (src, dst)), None)
        gpus = self._fabric.gpus
        return self.ways.fixed(gpus[src].site, gpus[dst].site).index if found is None else found

    def _send(self, stages: Iterable[Stage], *, settle_s: float = 0.0) -> None:
        here = [tuple(message for message in stage if message.switch in self.ready) for stage in stages]
        self._switches.send([stage for stage in here if stage], deadline_s=DEADLINE_S, settle_s=settle_s)


def choose(fabric: Fabric, request: RouteRequest, dead: Cables) -> list[int]:
    """The path of every crossing, as its index in `fabric.paths`, without these cables; raises NoPathError."""
    if not request.crossings:
        return []
    src, dst = np.array(request.crossings).T
    rates_bps = np.array(request.rates_bps)
    rates_bps[list(dead_links(fabric, dead))] = 0.0
    every = np.broadcast_to(rates_bps, (src.size, rates_bps.size))
    router = Router(fabric, np.array(request.delays_s))
    if request.best:
        routes = router.best(every, src, dst, chunk_bytes=request.chunk_bytes)
    else:
        routes = router.fixed(every, src, dst)
    return [int(path) for path in routes.path]
