"""The link state: which cables are dead, by the ports that switches report and the switches that have left.

A cable is dead while either of its ports is down or either of its switches has left. A switch that has never connected
has not left.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import Cables, around, cable

_REMEMBERED = 16  # outages in a status; a run has a handful


@dataclass(kw_only=True)
class Outage:
    """One change of what is dead: the cables that `died` and those that are `back`, as "a-b"; when it was first seen,
    and when all switches had confirmed the new paths (ns, CLOCK_MONOTONIC; 0 until then); and the crossings that were
    `moved`: [source rank, destination rank, path before, path after] each."""

    died: list[str]
    back: list[str]
    seen_ns: int
    done_ns: int = 0
    moved: list[list[int]] = field(default_factory=list)


class Outages:
    """The link state of one fabric and its last changes."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._peer = {(s.name, port.number): port.peer for s in fabric.switches for port in s.ports}
        self._down: set[tuple[str, int]] = set()  # (switch, port)
        self._left: set[str] = set()
        self._news_ns = 0  # of the first news since the last change; 0: none
        self._outages: deque[Outage] = deque(maxlen=_REMEMBERED)

    def dead(self) -> Cables:
        """The cables that are dead now."""
        ports = frozenset(cable(name, self._peer[name, number]) for name, number in tuple(self._down))
        return ports.union(*(around(self._fabric, name) for name in tuple(self._left)))

    def left(self, switch: str) -> None:
        """A switch has disconnected."""
        self._left.add(switch)
        self._news()

    def came(self, switch: str) -> None:
        """A switch has its default rules."""
        self._left.discard(switch)
        self._news()

    def reported(self, switch: str, ports: Iterable[tuple[int, bool]]) -> None:
        """A switch reports ports by number, and whether each is down; ports that the fabric lacks are ignored."""
        for number, down in ports:
            if down and (switch, number) in self._peer:
                self._down.add((switch, number))
            else:
                self._down.discard((switch, number))
        self._news()

    def begin(self, before: Cables, now: Cables) -> Outage:
        """Record that what is dead has changed."""
        outage = Outage(
            died=sorted("-".join(sorted(ends)) for ends in now - before),
            back=sorted("-".join(sorted(ends)) for ends in before - now),
            seen_ns=self._news_ns or time.monotonic_ns(),
        )
        self._news_ns = 0
        self._outages.append(outage)
        return outage

    def nothing_new(self) -> None:
        """The news so far changes nothing."""
        self._news_ns = 0

    def recent(self) -> list[dict[str, Any]]:
        """The last outages, for a status."""
        return [asdict(outage) for outage in self._outages]

    def _news(self) -> None:
        self._news_ns = self._news_ns or time.monotonic_ns()
