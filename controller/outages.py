"""What a controller knows to be down: ports that switches report, and switches that have left. Sends nothing.

A cable is dead while either of its ports is down or either of its switches has gone. A switch that has never been
there has not gone: it is still to come.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from topologies.fabric import Fabric
from topologies.outage import Cables, around, cable

_REMEMBERED = 16  # outages told of in a status; a run has a handful


@dataclass(kw_only=True)
class Outage:
    """One change of what is dead: the cables that died and those that came back, as "a-b", when the first word of it
    came and when all switches had confirmed the way round (ns, CLOCK_MONOTONIC; 0 until then), and the crossings that
    were moved: source and destination rank, the path before and after."""

    died: list[str]
    back: list[str]
    seen_ns: int
    done_ns: int = 0
    moved: list[list[int]] = field(default_factory=list)


class Outages:
    """The outages of one fabric, kept up to date by what switches report."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._peer = {(s.name, port.number): port.peer for s in fabric.switches for port in s.ports}
        self._down: set[tuple[str, int]] = set()
        self._gone: set[str] = set()
        self._heard_ns = 0
        self._told: deque[Outage] = deque(maxlen=_REMEMBERED)

    def dead(self) -> Cables:
        """The cables that are dead now."""
        ports = frozenset(cable(name, self._peer[name, number]) for name, number in tuple(self._down))
        return ports.union(*(around(self._fabric, name) for name in tuple(self._gone)))

    def left(self, switch: str) -> None:
        """A switch that was there has gone."""
        self._gone.add(switch)
        self._hear()

    def came(self, switch: str) -> None:
        """A switch has its rules."""
        self._gone.discard(switch)
        self._hear()

    def reported(self, switch: str, ports: Iterable[tuple[int, bool]]) -> None:
        """A switch says which of its ports are down, by number; ports that the fabric does not have are passed over."""
        for number, down in ports:
            if (switch, number) in self._peer:
                (self._down.add if down else self._down.discard)((switch, number))
        self._hear()

    def begin(self, before: Cables, now: Cables) -> Outage:
        """Note that what is dead has changed."""
        outage = Outage(
            died=sorted("-".join(sorted(ends)) for ends in now - before),
            back=sorted("-".join(sorted(ends)) for ends in before - now),
            seen_ns=self._heard_ns or time.monotonic_ns(),
        )
        self._heard_ns = 0
        self._told.append(outage)
        return outage

    def nothing_new(self) -> None:
        """Note that what has been heard so far changes nothing."""
        self._heard_ns = 0

    def told(self) -> list[dict[str, Any]]:
        """The last outages, as a status tells them."""
        return [asdict(outage) for outage in self._told]

    def _hear(self) -> None:
        self._heard_ns = self._heard_ns or time.monotonic_ns()
