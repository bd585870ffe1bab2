"""The fabric built: a Mininet network of the Fabric's hosts, switches and cables, on Open vSwitch's kernel datapath.

It is Mininet's own object model (hosts, switches, links, CLI), made in a few batches instead of a dozen programs a
node: in User-Mode Linux starting a program takes 10 to 40 ms. The nodes themselves are `nodes`'.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mininet.link import Link
from mininet.net import Mininet

from topologies.fabric import Fabric
from topologies.mininet_topo import PREFIX_LENGTH, LonghaulTopo
from topologies.nodes import (
    ElsewhereController,
    FabricSwitch,
    GpuHost,
    NetworkError,
    PlannedIntf,
    PlannedLink,
    run_program,
)
from topologies.rtnetlink import RtNetlink
from topologies.shaping import MTU_BYTES
from topologies.wiring import Gpu

# As few and large packets as TCP can make: most of what an AllGather costs, in wall time and in clock readings that
# cost virtual time, it costs by the packet.
_SEGMENT_BYTES = 500_000
_NEVER_MS = 86_400_000  # Open vSwitch looks through its cache when rules change, and not in the middle of a collective
_BACKLOG_PACKETS = 1_000_000  # a queue of the kernel's between the ends of a cable, which drops beyond it
_CLONE_NEWNET = 0x40000000


class Network:
    """A fabric's network while it is up.

    `net` is Mininet's network, `host_pids[rank]` a process in the network namespace of each GPU.
    """

    def __init__(self, net: "FabricNet") -> None:
        self.net = net
        self.host_pids = tuple(host.pid for host in net.hosts)

    def stop(self) -> None:
        """Remove switches, hosts and cables, and nothing else; does nothing the second time."""
        self.net.stop()

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(fabric: Fabric, *, controller_port: int) -> Network:
    """Build the fabric and start its switches, which then look for their controller on this port of 127.0.0.1.

    Open vSwitch must be up, and this process root in the network namespace that is to hold the switches. Raises
    NetworkError where a part of it cannot be made; nothing is left behind then.
    """
    net = FabricNet(fabric, controller_port=controller_port)
    try:
        net.start()
    except BaseException:
        with contextlib.suppress(NetworkError):
            net.stop()
        raise
    return Network(net)


class FabricNet(Mininet):
    """Mininet's network of a fabric."""

    hosts: list[Any]
    switches: list[Any]
    controllers: list[Any]
    links: list[Any]

    def __init__(self, fabric: Fabric, *, controller_port: int) -> None:
        self.fabric = fabric
        Mininet.inited = True  # or it would set limits with a program for each; `build` sets the one that matters
        super().__init__(
            topo=LonghaulTopo(fabric=fabric),
            switch=FabricSwitch,
            host=GpuHost,
            link=PlannedLink,
            intf=PlannedIntf,
            controller=None,
            build=False,
        )
        self.addController(ElsewhereController("c0", ip="127.0.0.1", port=controller_port))

    def addLink(self, *ends: Any, cls: Any = None, **params: Any) -> Any:
        """Add a link: as planned while the network is being built, as told afterwards."""
        if not self.built:
            number = 2 * len(self.links)
            params |= {"addr1": _mac(number), "addr2": _mac(number + 1)}
        return super().addLink(*ends, cls=cls if self.built else PlannedLink, **params)

    def build(self) -> None:
        """Make hosts and cables, everything up and addressed."""
        Path("/proc/sys/net/core/netdev_max_backlog").write_text(str(_BACKLOG_PACKETS))
        self.buildFromTopo(self.topo)
        for gpu, host in zip(self.fabric.gpus, self.hosts, strict=True):
            intf = host.defaultIntf()
            intf.mac, intf.ip, intf.prefixLen = gpu.mac, gpu.ip, str(PREFIX_LENGTH)
            host.await_namespace()
        run_program(["ip", "-batch", "-"], "".join(map(_cable_lines, self.links)))
        for gpu, host in zip(self.fabric.gpus, self.hosts, strict=True):
            host.configure(
                (
                    "link set dev lo up",
                    f"link set dev {gpu.interface} up",
                    f"address add {gpu.ip}/{PREFIX_LENGTH} dev {gpu.interface}",
                    *self._neighbours(gpu),
                )
            )
        self._allow_segments()
        for node in self.values():
            node.ready()
        self.built = True

    def start(self) -> None:
        """Build the network if need be, and start its switches."""
        cache = [f"other_config:{key}={_NEVER_MS}" for key in ("max-idle", "max-revalidator")]
        try:  # with a limit: without its database ovs-vsctl waits for ever
            run_program(["ovs-vsctl", "--timeout=10", "--no-wait", "set", "Open_vSwitch", ".", *cache])
        except NetworkError as error:
            raise NetworkError(f"Open vSwitch does not answer, is it up? ({error})") from None
        super().start()

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:
        """Bring a cable "up" or "down"; a host that is up again gets its neighbours back, which Linux forgets."""
        super().configLinkStatus(src, dst, status)
        for gpu, host in zip(self.fabric.gpus, self.hosts, strict=True):
            if status == "up" and host.name in (src, dst):
                host.configure(self._neighbours(gpu))

    def _neighbours(self, gpu: Gpu) -> tuple[str, ...]:
        """The lines that tell a host where all others are."""
        others = (other for other in self.fabric.gpus if other is not gpu)
        return tuple(f"neigh replace {other.ip} lladdr {other.mac} dev {gpu.interface}" for other in others)

    def _allow_segments(self) -> None:
        """Let large segments through every interface."""
        places = [("self", [port.interface for switch in self.fabric.switches for port in switch.ports])]
        places += [(str(host.pid), [intf.name for intf in host.intfList()]) for host in self.hosts]
        for process, interfaces in places:
            with inside(process), contextlib.closing(RtNetlink()) as netlink:
                for interface in interfaces:
                    netlink.set_segment_bytes(interface, _SEGMENT_BYTES)

    def stop(self) -> None:
        """Remove switches, hosts and cables."""
        switches, hosts, controllers, links = self.switches, self.hosts, self.controllers, self.links
        self.switches, self.hosts, self.controllers, self.links = [], [], [], []
        try:
            FabricSwitch.batchShutdown(switches)
        finally:
            if links:  # one end takes the other along; those of a host's own would go with it, but only some time later
                ends = [link.intf2 if isinstance(link.intf1.node, GpuHost) else link.intf1 for link in links]
                lines = "".join(f"link delete dev {end.name}\n" for end in ends)
                run_program(["ip", "-force", "-batch", "-"], lines, check=False)
            for node in (*hosts, *controllers):
                node.terminate()


@contextlib.contextmanager
def inside(process: str) -> Iterator[None]:
    """Have this thread in the network namespace of a process for the time of the context."""
    with Path("/proc/thread-self/ns/net").open("rb") as home, Path(f"/proc/{process}/ns/net").open("rb") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
        raise NetworkError(f"a network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")


def _mac(number: int) -> str:
    """The address of an end of a cable; GPUs' own begin with 02."""
    return "06:" + number.to_bytes(5, "big").hex(":")


def _cable_lines(link: Link) -> str:
    """The lines of ip's batch that make a cable; a switch's end is in this network namespace, and up."""
    near, far = link.intf1, link.intf2
    if isinstance(near.node, GpuHost):
        near, far = far, near
    ends = [f"name {intf.name} mtu {MTU_BYTES} address {intf.mac}" for intf in (near, far)]
    if isinstance(far.node, GpuHost):
        return f"link add {ends[0]} up type veth peer {ends[1]} netns {far.node.pid}\n"
    return f"link add {ends[0]} up type veth peer {ends[1]}\nlink set dev {far.name} up\n"
