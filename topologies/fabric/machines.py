"""A fabric divided among machines that are joined in virtual time: each has whole sites, and cables join them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from topologies.fabric.addressing import Cable, Gpu, Switch
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import Cables, cable

Floats = npt.NDArray[np.float64]
MAX_MACHINES = 16
REST_NS = 1_000
"""What a link between machines leaves of its delay to the netem of its port, in ns, so that packets meet the same
queues as in one machine; of a shorter delay than twice this, half."""


@dataclass(frozen=True)
class Share:
    """What one machine, by its `number`, has of a fabric that `machines` share: sites in their order, as evenly as they
    divide. Transit routers are in the first machine. One machine alone has everything."""

    fabric: Fabric
    number: int = 0
    machines: int = 1

    @cached_property
    def machine_of(self) -> Mapping[str, int]:
        """The machine of each node."""
        sites = len(self.fabric.gpus_per_site)
        nodes: list[Gpu | Switch] = [*self.fabric.gpus, *self.fabric.switches]
        return {node.name: 0 if node.site is None else node.site * self.machines // sites for node in nodes}

    def has(self, node: str) -> bool:
        """Whether a node is in this machine."""
        return self.machine_of[node] == self.number

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the GPUs in this machine."""
        return tuple(gpu.rank for gpu in self.fabric.gpus if self.has(gpu.name))

    @cached_property
    def interfaces(self) -> frozenset[str]:
        """The interfaces of the switches in this machine."""
        return frozenset(port.interface for s in self.fabric.switches if self.has(s.name) for port in s.ports)

    @cached_property
    def elsewhere(self) -> tuple[str, ...]:
        """The switches in other machines."""
        return tuple(switch.name for switch in self.fabric.switches if not self.has(switch.name))

    @cached_property
    def between(self) -> tuple[Cable, ...]:
        """The cables between two machines, in the fabric's order; all machines number them alike."""
        ends = self.machine_of
        return tuple(cable for cable in self.fabric.cables if ends[cable.a] != ends[cable.b])

    @cached_property
    def crossing(self) -> Cables:
        """The same cables, as pairs of nodes."""
        return frozenset(cable(one.a, one.directions[0][1]) for one in self.between)


def carried_ns(share: Share, delays_s: Floats, number: int) -> int:
    """Return the delay, in ns, of the link between machines in the place of the cable `share.between[number]`, given
    the delays of logical links, [links] s: the least of the cable's WAN links, without REST_NS."""
    one = cable(*share.between[number].directions[0])
    wan = (link for link in share.fabric.links if link.kind == "wan" and cable(link.src, link.far_end) == one)
    delay_ns = min(round(float(delays_s[link.index]) * 1e9) for link in wan)
    return delay_ns - min(REST_NS, delay_ns // 2)
