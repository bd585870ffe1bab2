"""The fabric built: a Mininet network of the Fabric's hosts, switches and cables, on Open vSwitch's kernel datapath.

It is Mininet's own object model (hosts, switches, links, CLI), made in a few batches instead of a dozen programs for
each node: in User-Mode Linux starting a program takes 10 to 40 ms.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mininet.link import Link
from mininet.net import Mininet

from topologies.fabric.addressing import Gpu
from topologies.fabric.fabric import Fabric
from topologies.mininet_nodes import (
    ElsewhereController,
    FabricSwitch,
    GpuHost,
    NetworkError,
    PlannedIntf,
    PlannedLink,
    run_program,
)
from topologies.mininet_topo import PREFIX_LENGTH, LonghaulTopo
from topologies.shaping.classes import MTU_BYTES, SEGMENT_BYTES
from topologies.shaping.netlink import RtNetlink

_NEVER_MS = 86_400_000  # Open vSwitch revalidates its cache when rules change, and not in the middle of a collective
_BACKLOG_PACKETS = 1_000_000  # in the kernel's queue between the ends of a cable, which drops beyond that
_CLONE_NEWNET = 0x40000000


class Network(Mininet):
    """Mininet's network of a fabric, up while it is open; its switches connect to `controller_port` of 127.0.0.1, or of
    the addresses in `controller_at`, by switch.

    Open vSwitch must be up, and this process root in the network namespace that is to hold the switches. Entering
    raises NetworkError where a part of the network cannot be made; nothing is left behind then.
    """

    hosts: list[Any]
    switches: list[Any]
    controllers: list[Any]
    links: list[Any]

    def __init__(self, fabric: Fabric, *, controller_port: int, controller_at: Mapping[str, str] | None = None) -> None:
        self.fabric, self._controller_at = fabric, controller_at or {}
        Mininet.inited = True  # or it would start a program for each of its limits; `build` sets the one that matters
        super().__init__(
            topo=LonghaulTopo(fabric=fabric),
            switch=FabricSwitch,
            host=GpuHost,
            link=PlannedLink,
            intf=PlannedIntf,
            controller=None,
            build=False,
        )
        for number, address in enumerate(dict.fromkeys(self._controller_at.values()) or ["127.0.0.1"]):
            self.addController(ElsewhereController(f"c{number}", ip=address, port=controller_port))

    def __enter__(self) -> "Network":
        try:
            self.start()
        except BaseException:
            with contextlib.suppress(NetworkError):
                self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def host_pids(self) -> tuple[int, ...]:
        """A process in the network namespace of each GPU, by rank."""
        return tuple(host.pid for host in self.hosts)

    def addLink(self, *ends: Any, cls: Any = None, **params: Any) -> Any:
        """Add a link: by `build` with all others, or as Mininet does once the network is built."""
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
                "link set dev lo up",
                f"link set dev {gpu.interface} up",
                f"address add {gpu.ip}/{PREFIX_LENGTH} dev {gpu.interface}",
            )
            with netlink_of(host.pid) as netlink:
                self._set_neighbours(netlink, gpu)
                netlink.set_segment_bytes(gpu.interface, SEGMENT_BYTES)
        with contextlib.closing(RtNetlink()) as netlink:
            for port in (port for switch in self.fabric.switches for port in switch.ports):
                netlink.set_segment_bytes(port.interface, SEGMENT_BYTES)
        for node in self.values():
            node.ready()
        for switch in self.switches:
            switch.controller_at = self._controller_at.get(switch.name)
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
        """Bring a cable "up" or "down"; a host that is up again gets its neighbours again, as Linux forgets them."""
        super().configLinkStatus(src, dst, status)
        for gpu, host in zip(self.fabric.gpus, self.hosts, strict=True):
            if status == "up" and host.name in (src, dst):
                with netlink_of(host.pid) as netlink:
                    self._set_neighbours(netlink, gpu)

    def _set_neighbours(self, netlink: RtNetlink, gpu: Gpu) -> None:
        """Give a host the addresses of all others: not by `ip`, which takes a line for every pair of GPUs."""
        netlink.set_neighbours(gpu.interface, [(other.ip, other.mac) for other in self.fabric.gpus if other is not gpu])

    def stop(self) -> None:
        """Remove switches, hosts and cables, and nothing else; does nothing the second time."""
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
def inside(pid: int | str) -> Iterator[None]:
    """Run this thread in the network namespace of a process until the context ends."""
    setns = ctypes.CDLL(None, use_errno=True).setns
    with Path("/proc/thread-self/ns/net").open("rb") as home, Path(f"/proc/{pid}/ns/net").open("rb") as there:

        def enter(namespace: BinaryIO) -> None:
            if setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise NetworkError(f"a network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")

        enter(there)
        try:
            yield
        finally:
            enter(home)


@contextlib.contextmanager
def netlink_of(pid: int) -> Iterator[RtNetlink]:
    """A netlink socket in the network namespace of a process."""
    with inside(pid), contextlib.closing(RtNetlink()) as netlink:
        yield netlink


def _mac(number: int) -> str:
    """The address of an end of a cable; GPUs' own begin with 02."""
    return "06:" + number.to_bytes(5, "big").hex(":")


def _cable_lines(link: Link) -> str:
    """The lines of ip's batch that make a cable; a switch's end stays in this network namespace, and is up."""
    near, far = link.intf1, link.intf2
    if isinstance(near.node, GpuHost):
        near, far = far, near
    ends = [f"name {intf.name} mtu {MTU_BYTES} address {intf.mac}" for intf in (near, far)]
    if isinstance(far.node, GpuHost):
        return f"link add {ends[0]} up type veth peer {ends[1]} netns {far.node.pid}\n"
    return f"link add {ends[0]} up type veth peer {ends[1]}\nlink set dev {far.name} up\n"
