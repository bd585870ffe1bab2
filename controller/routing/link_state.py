"""The link state: which cables are dead, from the ports that switches report and the switches that have disconnected.

A cable is dead while either of its ports is down or either of its switches is disconnected. A switch that has never
connected does not count as disconnected. Of cables between switches that have another controller it is told.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import NO_CABLES, Cables, cable, cable_name, cables_of

_REMEMBERED = 16  # most outages in a status; a run has a handful


@dataclass(kw_only=True)
class Outage:
    """One change of the set of dead cables.

    `died` and `back` are the cables, as "a-b", that have failed or recovered. `seen_ns` is when the change was first
    seen, `done_ns` when all switches had confirmed the new paths (CLOCK_MONOTONIC; 0 until then). `moved` are the
    crossings that changed paths, [source rank, destination rank, path before, path after] each.
    """

    died: list[str]
    back: list[str]
    seen_ns: int
    done_ns: int = 0
    moved: list[list[int]] = field(default_factory=list)


class LinkState:
    """The link state of one fabric and its last changes."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._peer = {(s.name, port.number): port.peer for s in fabric.switches for port in s.ports}
        self._down: set[tuple[str, int]] = set()  # (switch, port)
        self._disconnected: set[str] = set()
        self._told: Cables = NO_CABLES
        self._news_ns = 0  # time of the first report since the last change, 0 if there was none
        self._outages: deque[Outage] = deque(maxlen=_REMEMBERED)

    def dead(self) -> Cables:
        """Return the cables that are dead now."""
        ports = frozenset(cable(name, self._peer[name, number]) for name, number in tuple(self._down))
        return ports.union(self._told, *(cables_of(self._fabric, name) for name in tuple(self._disconnected)))

    def told(self, dead: Cables) -> None:
        """Record which cables are dead of those whose switches all have another controller."""
        self._told = dead
        self._news()

    def disconnected(self, switch: str) -> None:
        """Record that a switch has disconnected."""
        self._disconnected.add(switch)
        self._news()

    def connected(self, switch: str) -> None:
        """Record that a switch is connected and has its default rules."""
        self._disconnected.discard(switch)
        self._news()

    def reported(self, switch: str, ports: Iterable[tuple[int, bool]]) -> None:
        """Record ports that a switch reports, (number, whether it is down) each; ignores ports not in the fabric."""
        for number, down in ports:
            if down and (switch, number) in self._peer:
                self._down.add((switch, number))
            else:
                self._down.discard((switch, number))
        self._news()

    def begin(self, before: Cables, now: Cables) -> Outage:
        """Record that the set of dead cables has changed; return the new outage."""
        outage = Outage(
            died=sorted(map(cable_name, now - before)),
            back=sorted(map(cable_name, before - now)),
            seen_ns=self._news_ns or time.monotonic_ns(),
        )
        self._news_ns = 0
        self._outages.append(outage)
        return outage

    def nothing_new(self) -> None:
        """Record that the reports so far have not changed the set of dead cables."""
        self._news_ns = 0

    def recent(self) -> list[dict[str, Any]]:
        """Return the last outages as dictionaries, for a status."""
        return [asdict(outage) for outage in self._outages]

    def _news(self) -> None:
        self._news_ns = self._news_ns or time.monotonic_ns()
