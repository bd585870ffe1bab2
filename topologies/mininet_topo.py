"""The declared fabric as a Mininet topology: hosts, switches, ports, addresses and cables, just as the Fabric says.

Also a custom file for Mininet's own command, with what `mn` needs said on its command line:

    mn --custom topologies/mininet_topo.py --topo longhaul,gpus=8 --arp --controller remote

Whatever this module calls by a name, `mn` takes for its own variable of that name: there must be none that it has.
Building a network from the topology is left to `network`.
"""

import sys
from pathlib import Path

from mininet.link import Link
from mininet.topo import Topo

if "__file__" not in globals():  # run by mn, which tells a custom file neither where it is nor where its package is
    sys.path.append(str(Path((lambda: None).__code__.co_filename).resolve().parent.parent))

from topologies.fabric import Fabric, FabricSpec, build_fabric, even_split
from topologies.shaping import MTU_BYTES
from topologies.wan import WanSpec

PREFIX_LENGTH = 8
"""Of every GPU's address: all GPUs of all sites are on one link, and no route is needed."""


class JumboLink(Link):
    """A veth pair whose ends take frames of MTU_BYTES of payload."""

    def __init__(self, node1: object, node2: object, **params: object) -> None:
        """As Mininet's Link; raises what that raises."""
        super().__init__(node1, node2, **params)
        for end in (self.intf1, self.intf2):
            end.cmd(f"ip link set dev {end.name} mtu {MTU_BYTES}")


class LonghaulTopo(Topo):
    """A fabric as Mininet sees it; every number is one that the Fabric declares."""

    def build(  # noqa: PLR0917 - mn passes what it is given positionally
        self,
        gpus: int | str = 8,
        leaves: int = 2,
        spines: int = 2,
        border_routers: int = 2,
        wan: str = "mesh",
        fabric: Fabric | None = None,
    ) -> None:
        """Declare hosts, switches and links: of `fabric`, or of one with these counts.

        `gpus` is a total to share out over two sites, or a number per site: "3+5". Raises FabricError for a fabric
        that cannot be built.
        """
        if fabric is None:
            text = str(gpus)
            per_site = tuple(int(count) for count in text.split("+")) if "+" in text else even_split(int(text))
            fabric = build_fabric(
                FabricSpec(
                    gpus_per_site=per_site,
                    leaves=leaves,
                    spines=spines,
                    border_routers=border_routers,
                    wan=WanSpec(preset=wan),
                )
            )
        for gpu in fabric.gpus:
            self.addHost(gpu.name, ip=f"{gpu.ip}/{PREFIX_LENGTH}", mac=gpu.mac)
        for switch in fabric.switches:
            self.addSwitch(switch.name, dpid=f"{switch.dpid:016x}", protocols="OpenFlow13", failMode="secure")
        for cable in fabric.cables:
            self.addLink(cable.a, cable.b, port1=cable.a_port, port2=cable.b_port, cls=JumboLink)


topos = {"longhaul": LonghaulTopo}
