"""The declared fabric as a Mininet topology: the same hosts, switches, ports, addresses and cables.

It is also a custom file for the command mn, to run with the same fabric's controller, `python -m controller --gpus 8`:

    mn --custom topologies/mininet_topo.py --topo longhaul,gpus=8 --controller remote \
       --switch ovs,protocols=OpenFlow13 --test pingall

`mn` makes every name of this module a variable of its own, so none may clash with mn's variables. `mininet_network`
builds an experiment's network from this topology.
"""

import sys
from pathlib import Path

from mininet.link import Link
from mininet.node import Host
from mininet.topo import Topo

if "__file__" not in globals():  # mn executes the file without __file__ and without the project's root in sys.path
    _root = Path((lambda: None).__code__.co_filename).resolve().parent.parent
    # The packages that setup.sh installed, if they are for the Python that runs mn.
    _packages = _root.glob(f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")
    sys.path += map(str, [_root, *_packages])

from topologies.fabric.addressing import Gpu
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.shaping.classes import MTU_BYTES

PREFIX_LENGTH = 8
"""Prefix length of every GPU's address: all GPUs of all sites are in one subnet, so that hosts need no routes."""


class JumboLink(Link):
    """A veth pair with an MTU of MTU_BYTES."""

    def __init__(self, node1: object, node2: object, **params: object) -> None:
        """Make the pair as Mininet's Link does, and set the MTU of both ends."""
        super().__init__(node1, node2, **params)
        for end in (self.intf1, self.intf2):
            end.cmd(f"ip link set dev {end.name} mtu {MTU_BYTES}")


class NeighbourlyHost(Host):
    """A host that knows the MAC addresses of all others, as with mn's --arp: the switches forward no broadcasts."""

    def config(self, neighbours: tuple[Gpu, ...] = (), **params: object) -> object:
        """Configure the host as Mininet does, and enter these GPUs as permanent neighbours."""
        result = super().config(**params)
        device = self.defaultIntf()
        lines = [f"ip neigh replace {gpu.ip} lladdr {gpu.mac} dev {device}" for gpu in neighbours]
        self.cmd("; ".join(lines))
        return result


class LonghaulTopo(Topo):
    """A fabric as a Mininet topology."""

    def build(  # noqa: PLR0917 - mn passes its arguments positionally
        self,
        gpus: int | str = 8,
        leaves: int = 2,
        spines: int = 2,
        border_routers: int = 2,
        wan: str = "mesh",
        fabric: Fabric | None = None,
    ) -> None:
        """Declare hosts, switches and links of `fabric`, or if None of the fabric of the other arguments.

        Raises FabricError for a fabric that cannot be built (`FabricSpec.parse`, `build_fabric`).
        """
        alone = fabric is None  # run by mn: there is no `mininet_network` to configure the hosts
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
