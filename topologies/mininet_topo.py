"""The declared fabric as a Mininet topology: the same hosts, switches, ports, addresses and cables.

Also a custom file for Mininet's own command, beside the controller of the same fabric, `python -m controller --gpus 8`:

    mn --custom topologies/mininet_topo.py --topo longhaul,gpus=8 --controller remote \
       --switch ovs,protocols=OpenFlow13 --test pingall

`mn` makes every name of this module a variable of its own: none may be one that it has already. The network of an
experiment is built from the topology by `mininet_network`.
"""

import sys
from pathlib import Path

from mininet.link import Link
from mininet.node import Host
from mininet.topo import Topo

if "__file__" not in globals():  # run by mn, where a custom file has neither its path nor its package's
    _root = Path((lambda: None).__code__.co_filename).resolve().parent.parent
    # The packages that setup.sh installed, for the Python that mn runs on.
    _packages = _root.glob(f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")
    sys.path += map(str, [_root, *_packages])

from topologies.fabric.addressing import Gpu
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.shaping.classes import MTU_BYTES

PREFIX_LENGTH = 8
"""Of every GPU's address: all GPUs of all sites are in one subnet, and need no routes."""


class JumboLink(Link):
    """A veth pair whose ends take frames of MTU_BYTES of payload."""

    def __init__(self, node1: object, node2: object, **params: object) -> None:
        """As Mininet's Link; raises what that raises."""
        super().__init__(node1, node2, **params)
        for end in (self.intf1, self.intf2):
            end.cmd(f"ip link set dev {end.name} mtu {MTU_BYTES}")


class NeighbourlyHost(Host):
    """A host with the MAC addresses of all others, as mn's --arp, because the switches forward no broadcasts."""

    def config(self, neighbours: tuple[Gpu, ...] = (), **params: object) -> object:
        """Set the host up as Mininet does, with these GPUs as permanent neighbours."""
        result = super().config(**params)
        device = self.defaultIntf()
        lines = [f"ip neigh replace {gpu.ip} lladdr {gpu.mac} dev {device}" for gpu in neighbours]
        self.cmd("; ".join(lines))
        return result


class LonghaulTopo(Topo):
    """A fabric in Mininet's terms."""

    def build(  # noqa: PLR0917 - mn passes what it is given positionally
        self,
        gpus: int | str = 8,
        leaves: int = 2,
        spines: int = 2,
        border_routers: int = 2,
        wan: str = "mesh",
        fabric: Fabric | None = None,
    ) -> None:
        """Declare hosts, switches and links: of `fabric`, or of what `FabricSpec.parse` makes of the others.

        Raises FabricError for a fabric that cannot be built.
        """
        alone = fabric is None  # for mn, without `mininet_network`, which sets the hosts up
        if fabric is None:
            counts = {"leaves": leaves, "spines": spines, "border_routers": border_routers}
            fabric = build_fabric(FabricSpec.parse(gpus=gpus, wan=wan, **counts))
        for gpu in fabric.gpus:
            others = tuple(other for other in fabric.gpus if other is not gpu)
            own = {"cls": NeighbourlyHost, "neighbours": others} if alone else {}
            self.addHost(gpu.name, ip=f"{gpu.ip}/{PREFIX_LENGTH}", mac=gpu.mac, **own)
        for switch in fabric.switches:
            self.addSwitch(switch.name, dpid=f"{switch.dpid:016x}", protocols="OpenFlow13", failMode="secure")
        for cable in fabric.cables:
            self.addLink(cable.a, cable.b, port1=cable.a_port, port2=cable.b_port, cls=JumboLink)


topos = {"longhaul": LonghaulTopo}
