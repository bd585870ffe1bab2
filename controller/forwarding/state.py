"""The forwarding state of the switches: which default rules and routes they have, and bringing them to others."""

import itertools
from collections.abc import Iterable, Mapping
from enum import Enum

import numpy as np

from controller.api.protocol import RouteRequest
from controller.forwarding import rules
from controller.forwarding.flows import LAST_GENERATION, Stage
from controller.forwarding.switches import SETTLE_S, SwitchError, Switches
from controller.routing.path_choice import Router
from controller.routing.paths import Ways, acknowledgements
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import Cables, failed_links

DEADLINE_S = 5.0
"""How long the switches may take to confirm one stage of a change."""


_STANDING_TUNNELS = 4096
"""Where a fabric has more candidate paths, tunnels are installed as they are first wanted, instead of at the start."""


class State(Enum):
    """What is known of the rules in the ready switches.

    CONFIRMED -> (a change begins) -> IN_DOUBT -> (every switch confirms it) -> CONFIRMED; a change that fails leaves
    IN_DOUBT, and the next one then begins by restoring the default rules alone.
    """

    CONFIRMED = "every switch has confirmed the default rules and the routes in force"
    IN_DOUBT = "a change has begun that not every switch has confirmed"


class Forwarding:
    """The forwarding of one fabric: default rules that follow `ways`, `tunnels`, and `routes`. One change at a time.

    `tunnels` are the paths, by index, whose tunnels every ready switch has; none is ever removed. `ready` are the
    switches that have their default rules. Only these are changed; the others get all of it when they have connected
    (`greet`).
    """

    def __init__(self, fabric: Fabric, switches: Switches) -> None:
        self._fabric, self._switches = fabric, switches
        self.ways = Ways(fabric)
        self.routes: tuple[rules.Route, ...] = ()
        self.tunnels = frozenset(range(len(fabric.paths)) if len(fabric.paths) <= _STANDING_TUNNELS else ())
        self.generation = 0
        self.ready: set[str] = set()
        self.state = State.CONFIRMED

    def greet(self, switch: str) -> None:
        """Give a switch that has connected its rules, and count it as ready.

        Raises SwitchError, after disconnecting the switch so that it connects anew.
        """
        connection = self._switches.connection(switch)
        try:
            stages = rules.greeting(self.ways, switch, self.routes, self.tunnels)
            self._switches.send(stages, deadline_s=DEADLINE_S)
        except SwitchError:
            self._switches.drop(connection)
            raise
        self.ready.add(switch)

    def reconcile(self, ways: Ways, wanted: Mapping[tuple[int, int], int]) -> int:
        """Bring the switches to the default rules of `ways`, and these pairs of ranks onto these paths.

        So are the acknowledgements that the default rules would lose. Returns the number of messages that the change
        took. Raises SwitchError, and is IN_DOUBT then.
        """
        wanted = {**acknowledgements(ways, wanted), **wanted}
        detours = () if ways == self.ways else [rules.detour(self.ways, ways, s.name) for s in self._fabric.switches]
        if self.state is State.IN_DOUBT:
            greetings = [rules.greeting(self.ways, s.name, (), self.tunnels) for s in self._fabric.switches]
            self._send(tuple(itertools.chain(*stages)) for stages in zip(*greetings, strict=True))
            self.routes, self.state = (), State.CONFIRMED
        generation = self.generation % LAST_GENERATION + 1
        change = rules.change(ways, self.routes, wanted, generation=generation, tunnels=self.tunnels)
        stages = [stage for stage in (tuple(itertools.chain(*detours)), *change.stages) if stage]
        if stages:
            self.generation, self.state = generation, State.IN_DOUBT
            self._send(stages, settle_s=SETTLE_S)
        self.routes, self.tunnels, self.ways, self.state = change.routes, change.tunnels, ways, State.CONFIRMED
        return sum(len(stage) for stage in stages)

    def path(self, src: int, dst: int) -> int:
        """The index of the path that a pair of ranks in two sites is on."""
        routed = {(route.src, route.dst): route.path for route in self.routes}
        return routed.get((src, dst), self.ways.default(src, dst))

    def _send(self, stages: Iterable[Stage], *, settle_s: float = 0.0) -> None:
        here = [tuple(message for message in stage if message.switch in self.ready) for stage in stages]
        self._switches.send([stage for stage in here if stage], deadline_s=DEADLINE_S, settle_s=settle_s)


def choose(fabric: Fabric, request: RouteRequest, dead: Cables) -> list[int]:
    """The paths of the crossings, chosen together, by index in `fabric.paths`, without these cables.

    Raises NoPathError.
    """
    if not request.crossings:
        return []
    src, dst = np.array(request.crossings).T
    rates_bps = np.array(request.rates_bps)
    rates_bps[list(failed_links(fabric, dead))] = 0.0
    router = Router(fabric, np.array(request.delays_s))
    ends = rates_bps[None], src[None], dst[None]
    routes = router.together(*ends, chunk_bytes=request.chunk_bytes) if request.best else router.fixed(*ends)
    return [int(path) for path in routes.path[0]]
