"""The fabric as a Mininet network: its hosts, switches and cables, on Open vSwitch's kernel datapath.

The network has Mininet's object model (hosts, switches, links, CLI), but is set up in a few batches instead of a dozen
programs per node, because in User-Mode Linux starting a program takes 10 to 40 ms.
"""

import contextlib
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from mininet.link import Link
from mininet.net import Mininet

from topologies.fabric.addressing import Cable, Gpu
from topologies.fabric.fabric import Fabric
from topologies.fabric.machines import Share
from topologies.linux import enter_network
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
from topologies.shaping.classes import SEGMENT_BYTES
from topologies.shaping.frames import MTU_BYTES
from topologies.shaping.netlink import RtNetlink

_DAY_MS = 86_400_000
_BACKLOG_PACKETS = 1_000_000  # capacity of the kernel's queue between the ends of a cable; further packets are dropped


class Network(Mininet):
    """A fabric's Mininet network, a context manager that builds, starts and removes it.

    Its switches connect to `controller_port` at 127.0.0.1, or at their addresses in `controller_at` (by switch name).
    Open vSwitch must be running, and this process must be root in the network namespace for the switches. Entering
    raises NetworkError if a part of the network cannot be made, after removing all other parts.

    Rules count packets when Open vSwitch revalidates the kernel's flows: when rules change, and every `counted_ms` if
    it is given. It is not for experiments, as a change of rules waits for up to 5 ms after a revalidation.
    """

    hosts: list[Any]
    switches: list[Any]
    controllers: list[Any]
    links: list[Any]

    def __init__(
        self,
        fabric: Fabric,
        *,
        controller_port: int,
        controller_at: Mapping[str, str] | None = None,
        counted_ms: int | None = None,
        share: Share | None = None,
    ) -> None:
        self.share = share or Share(fabric)
        ends = (((one.a, one.a_port), (one.b, one.b_port)) for one in fabric.cables)
        self._cable_at = {end: number for number, both in enumerate(ends) for end in both}
        self.fabric, self._controller_at, self._counted_ms = fabric, controller_at or {}, counted_ms or _DAY_MS
        Mininet.inited = True  # so that it does not start a program per system limit; `build` sets the one needed
        super().__init__(
            topo=LonghaulTopo(fabric=fabric, share=share),
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
        """The pid of a process in each GPU's network namespace, by rank, in a network on one machine."""
        return tuple(self.pids_here[gpu.rank] for gpu in self.fabric.gpus)

    @property
    def pids_here(self) -> Mapping[int, int]:
        """The pid of a process in the network namespace of each GPU in this machine, by rank."""
        return {rank: host.pid for rank, host in zip(self.share.ranks, self.hosts, strict=True)}

    def addHost(self, *arguments: Any, **params: Any) -> Any:
        """Add a host that `build` makes together with all others; raises NetworkError afterwards."""
        self._check_unbuilt("host")
        return super().addHost(*arguments, **params)

    def addSwitch(self, *arguments: Any, **params: Any) -> Any:
        """Add a switch that `build` makes together with all others; raises NetworkError afterwards."""
        self._check_unbuilt("switch")
        return super().addSwitch(*arguments, **params)

    def addLink(self, *ends: Any, **params: Any) -> Any:
        """Add a link that `build` makes together with all others; raises NetworkError afterwards."""
        self._check_unbuilt("link")
        number = 2 * self._cable_at[params["node1"], params["port1"]]
        return super().addLink(*ends, **(params | {"addr1": _mac(number), "addr2": _mac(number + 1)}))

    def _check_unbuilt(self, what: str) -> None:
        if self.built:
            reason = "the controller and the shaping of links know the declared ones only"
            raise NetworkError(f"no {what} can be added to a running network, as {reason}: declare another fabric")

    def build(self) -> None:
        """Make hosts and cables, bring all interfaces up and set their addresses."""
        Path("/proc/sys/net/core/netdev_max_backlog").write_text(str(_BACKLOG_PACKETS))
        self.buildFromTopo(self.topo)
        gpus = [self.fabric.gpus[rank] for rank in self.share.ranks]
        for gpu, host in zip(gpus, self.hosts, strict=True):
            intf = host.defaultIntf()
            intf.mac, intf.ip, intf.prefixLen = gpu.mac, gpu.ip, str(PREFIX_LENGTH)
            host.await_namespaces(gpu.ip)
        run_program(["ip", "-batch", "-"], "".join([*map(_cable_lines, self.links), *self._lines_between_machines()]))
        for gpu, host in zip(gpus, self.hosts, strict=True):
            host.configure(
                "link set dev lo up",
                f"link set dev {gpu.interface} up",
                f"address add {gpu.ip}/{PREFIX_LENGTH} dev {gpu.interface}",
            )
            with netlink_of(host.pid) as netlink:
                self._set_neighbours(netlink, gpu)
                netlink.set_segment_bytes(gpu.interface, SEGMENT_BYTES)
        with contextlib.closing(RtNetlink()) as netlink:
            for port in (port for s in self.fabric.switches if self.share.has(s.name) for port in s.ports):
                netlink.set_segment_bytes(port.interface, SEGMENT_BYTES)
        for node in self.values():
            node.ready()
        for switch in self.switches:
            switch.controller_at = self._controller_at.get(switch.name)
        self.built = True

    def _lines_between_machines(self) -> Iterator[str]:
        """Yield the lines for `ip -batch` that make this machine's ends of cables between machines of their links, and
        tell Mininet of them. The first links are not cables: they join each machine with the first."""
        interfaces = {(s.name, port.number): port.interface for s in self.fabric.switches for port in s.ports}
        for link, cable in enumerate(self.share.between, self.share.machines - 1):
            for end, (node, port) in enumerate(((cable.a, cable.a_port), (cable.b, cable.b_port))):
                if self.share.has(node):
                    name, mac = interfaces[node, port], _mac(2 * self._cable_at[node, port] + end)
                    PlannedIntf(name, node=self[node], port=port, mac=mac)
                    yield f"link set dev join{link} name {name} mtu {MTU_BYTES} address {mac}\n"
                    yield f"link set dev {name} up\n"

    def start(self) -> None:
        """Build the network if it is not built yet, and start its switches; raises NetworkError."""
        cache = [f"other_config:max-idle={_DAY_MS}", f"other_config:max-revalidator={self._counted_ms}"]
        try:  # without a timeout, ovs-vsctl would wait for ever if its database is down
            run_program(["ovs-vsctl", "--timeout=10", "--no-wait", "set", "Open_vSwitch", ".", *cache])
        except NetworkError as error:
            raise NetworkError(f"Open vSwitch does not answer, is it running? ({error})") from None
        super().start()

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:
        """Bring the cables between two nodes "up" or "down"; restore the neighbours of a host that is up again, which
        Linux has deleted."""
        super().configLinkStatus(src, dst, status)
        self._restore_neighbours({src, dst} if status == "up" else set())

    def set_cable(self, cable: Cable, *, up: bool) -> None:
        """Bring one cable up or down, at both ends, as `configLinkStatus` does all cables between two nodes."""
        between = list(self.linksBetween(self[cable.a], self[cable.b]))
        for intf in (between[cable.number - 1].intf1, between[cable.number - 1].intf2):
            intf.ifconfig("up" if up else "down")
        self._restore_neighbours({cable.a, cable.b} if up else set())

    def _restore_neighbours(self, nodes: Set[str]) -> None:
        """Enter the neighbours of those of these nodes that are hosts."""
        for gpu, host in zip((self.fabric.gpus[rank] for rank in self.share.ranks), self.hosts, strict=True):
            if host.name in nodes:
                with netlink_of(host.pid) as netlink:
                    self._set_neighbours(netlink, gpu)

    def _set_neighbours(self, netlink: RtNetlink, gpu: Gpu) -> None:
        """Enter all other GPUs as a host's neighbours; by netlink, as `ip` would need a line for every pair of GPUs."""
        netlink.set_neighbours(gpu.interface, [(other.ip, other.mac) for other in self.fabric.gpus if other is not gpu])

    def stop(self) -> None:
        """Remove the network's switches, hosts and cables, and nothing else; does nothing if called again."""
        switches, hosts, controllers, links = self.switches, self.hosts, self.controllers, self.links
        self.switches, self.hosts, self.controllers, self.links = [], [], [], []
        try:
            FabricSwitch.batchShutdown(switches)
        finally:
            if links:  # deleting one end deletes both; with a host's namespace its ends would vanish too, but later
                ends = [link.intf2 if isinstance(link.intf1.node, GpuHost) else link.intf1 for link in links]
                lines = "".join(f"link delete dev {end.name}\n" for end in ends)
                run_program(["ip", "-force", "-batch", "-"], lines, check=False)
            for node in (*hosts, *controllers):
                node.terminate()


@contextlib.contextmanager
def inside(pid: int | str) -> Iterator[None]:
    """Move this thread into the network namespace of a process until the context ends; raises OSError."""
    with Path("/proc/thread-self/ns/net").open("rb") as home, Path(f"/proc/{pid}/ns/net").open("rb") as there:
        enter_network(there.fileno())
        try:
            yield
        finally:
            enter_network(home.fileno())


@contextlib.contextmanager
def netlink_of(pid: int) -> Iterator[RtNetlink]:
    """Open a netlink socket in the network namespace of a process."""
    with inside(pid), contextlib.closing(RtNetlink()) as netlink:
        yield netlink


def _mac(number: int) -> str:
    """Return the MAC address of a cable's end; GPUs' addresses begin with 02 instead."""
    return "06:" + number.to_bytes(5, "big").hex(":")


def _cable_lines(link: Link) -> str:
    """Return the lines for `ip -batch` that make a cable; a switch's end is in this network namespace, and up."""
    near, far = link.intf1, link.intf2
    if isinstance(near.node, GpuHost):
        near, far = far, near
    ends = [f"name {intf.name} mtu {MTU_BYTES} address {intf.mac}" for intf in (near, far)]
    if isinstance(far.node, GpuHost):
        return f"link add {ends[0]} up type veth peer {ends[1]} netns {far.node.pid}\n"
    return f"link add {ends[0]} up type veth peer {ends[1]}\nlink set dev {far.name} up\n"
