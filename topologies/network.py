"""The fabric built: a Mininet network of the Fabric's hosts, switches and cables, on Open vSwitch's kernel datapath.

It is Mininet's own object model (hosts, switches, links, CLI), made in a few batches instead of a dozen programs a
node: in User-Mode Linux starting a program takes 10 to 40 ms, and a shell as Mininet starts it 1.6 s. A node has its
shell from the first command it is given on. Raises NetworkError, a sentence, for what cannot be made.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Host, Node, OVSSwitch, RemoteController

from topologies.fabric import Fabric
from topologies.mininet_topo import PREFIX_LENGTH, LonghaulTopo
from topologies.rtnetlink import RtNetlink
from topologies.shaping import MTU_BYTES

_SEGMENT_BYTES = (
    500_000  # as few and large packets as TCP can make: most of what an AllGather costs, it costs by packet
)
_NEVER_MS = 86_400_000  # Open vSwitch looks through its cache when rules change, and not in the middle of a collective
_CLONE_NEWNET = 0x40000000
_BACKLOG_PACKETS = 1_000_000  # a queue of the kernel's between the ends of a cable, which drops beyond it


class NetworkError(Exception):
    """A network that cannot be built; one sentence."""


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
        net.stop()
        raise
    return Network(net)


class LateShell(Node):
    """A node whose shell is started by the first command it is given; until then it costs nothing."""

    isSetup = True  # Mininet would start programs to see whether others are installed
    pid: int
    inNamespace: bool
    _ready = False

    def startShell(self, mnopts: str | None = None) -> None:
        """Make what the node needs from the start: for a switch or a controller, nothing."""
        self.pid = os.getpid()

    def cmd(self, *arguments: Any, **options: Any) -> Any:
        """Run a command in the node's shell and return what it says."""
        if not self._ready:  # Mininet's constructors set interfaces up that are up, or that the network sets up
            return ""
        self._open()
        return super().cmd(*arguments, **options)

    def sendCmd(self, *arguments: Any, **options: Any) -> Any:
        """Have the node's shell run a command, and do not wait for it."""
        self._open()
        return super().sendCmd(*arguments, **options)

    def ready(self) -> None:
        """Let commands through, now that the node's surroundings are there."""
        self._ready = True

    def terminate(self) -> None:
        """End the node's shell, if it has one."""
        self._ready = False
        super().terminate()

    def _open(self) -> None:
        if self.shell is None:
            pid, namespaced = self.pid, self.inNamespace
            self.inNamespace = False  # the shell joins the node's namespace and makes none
            try:
                super().startShell(mnopts="-d")
            finally:
                self.pid, self.inNamespace = pid, namespaced

    def _popen(self, cmd: list[str], **params: Any) -> "subprocess.Popen[bytes]":
        if cmd[:2] == ["mnexec", "-d"]:
            # Not with -c, which closes every descriptor there could be: 65536 system calls at a VM's limits.
            cmd, params["close_fds"] = ["mnexec", "-da", str(self.pid), *cmd[2:]], True
        popen: subprocess.Popen[bytes] = super()._popen(cmd, **params)
        return popen


class GpuHost(LateShell, Host):
    """A GPU's host: a network namespace, held by an `ip` that also sets it up and ends with this process."""

    _holder: "subprocess.Popen[str] | None" = None

    def startShell(self, mnopts: str | None = None) -> None:
        """Make the namespace."""
        command = ["mnexec", "-n", "-p", "ip", "-oneline", "-batch", "-"]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._holder.pid

    def await_namespace(self) -> None:
        """Return once the namespace is there."""
        assert self._holder is not None and self._holder.stdout is not None
        if not self._holder.stdout.readline():  # mnexec prints its pid behind the namespace's making
            raise NetworkError(f"the network namespace of {self.name} cannot be made: mnexec failed")

    def configure(self, lines: Iterable[str]) -> None:
        """Have `ip` run these lines in the namespace; raises NetworkError where it refuses one."""
        assert self._holder is not None and self._holder.stdin is not None and self._holder.stdout is not None
        batch = "".join(line + "\n" for line in (*lines, "link show dev lo"))
        with contextlib.suppress(BrokenPipeError):
            self._holder.stdin.write(batch)
            self._holder.stdin.flush()
        if not self._holder.stdout.readline():
            raise NetworkError(f"the interfaces of {self.name} cannot be set up: ip failed in its namespace")

    def terminate(self) -> None:
        """End the node's shell and its namespace."""
        super().terminate()
        if self._holder is not None and self._holder.stdin is not None and self._holder.stdout is not None:
            with contextlib.suppress(BrokenPipeError):
                self._holder.stdin.close()
            self._holder.stdout.close()
            self._holder.wait()
            self._holder = None


class FabricSwitch(LateShell, OVSSwitch):
    """An Open vSwitch bridge; all of a network are made by one ovs-vsctl."""

    @staticmethod
    def isOldOVS() -> bool:
        """No: what speaks OpenFlow 1.3 is newer than what Mininet calls old."""
        return False

    @classmethod
    def batchStartup(cls, switches: Sequence["FabricSwitch"], run: Callable[..., Any] | None = None) -> Any:
        """Make all the bridges."""
        return super().batchStartup(switches, run=run or _run)

    @classmethod
    def batchShutdown(cls, switches: Sequence["FabricSwitch"], run: Callable[..., Any] | None = None) -> Any:
        """Remove all the bridges."""
        if switches:
            (run or _run)(["ovs-vsctl", *" -- ".join(f"--if-exists del-br {switch}" for switch in switches).split()])
        for switch in switches:
            switch.terminate()
        return switches


class ElsewhereController(LateShell, RemoteController):
    """A controller that others start, now or later."""

    def checkListening(self) -> None:
        """Do not look for it: the switches will."""


class PlannedIntf(Intf):
    """An interface that the network makes and sets up with all others."""

    def config(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Leave it to the network."""
        return {}


class PlannedLink(Link):
    """A veth pair that the network makes with all others."""

    @classmethod
    def makeIntfPair(cls, *_: Any, **__: Any) -> None:
        """Leave it to the network."""


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
        _run(["ip", "-batch", "-"], "".join(map(_cable_lines, self.links)))
        for gpu, host in zip(self.fabric.gpus, self.hosts, strict=True):
            neighbours = [other for other in self.fabric.gpus if other is not gpu]
            host.configure(
                (
                    "link set dev lo up",
                    f"link set dev {gpu.interface} up",
                    f"address add {gpu.ip}/{PREFIX_LENGTH} dev {gpu.interface}",
                    *(f"neigh add {other.ip} lladdr {other.mac} dev {gpu.interface}" for other in neighbours),
                )
            )
        self._allow_segments()
        for node in self.values():
            node.ready()
        self.built = True

    def start(self) -> None:
        """Build the network if need be, and start its switches."""
        cache = [f"other_config:{key}={_NEVER_MS}" for key in ("max-idle", "max-revalidator")]
        _run(["ovs-vsctl", "--no-wait", "set", "Open_vSwitch", ".", *cache])
        super().start()

    def _allow_segments(self) -> None:
        """Let large segments through every interface."""
        places = [("self", [port.interface for switch in self.fabric.switches for port in switch.ports])]
        places += [(str(host.pid), [intf.name for intf in host.intfList()]) for host in self.hosts]
        for process, interfaces in places:
            with _inside(process), contextlib.closing(RtNetlink()) as netlink:
                for interface in interfaces:
                    netlink.set_segment_bytes(interface, _SEGMENT_BYTES)

    def stop(self) -> None:
        """Remove switches, hosts and cables."""
        switches, hosts, controllers = self.switches, self.hosts, self.controllers
        self.switches, self.hosts, self.controllers, self.links = [], [], [], []
        if switches:
            FabricSwitch.batchShutdown(switches)
        between = [
            intf.name for switch in switches for intf in switch.intfList() if intf.link and intf is intf.link.intf1
        ]
        for node in (*hosts, *controllers):  # the cables of a host go with its namespace
            node.terminate()
        if between:
            _run(["ip", "-force", "-batch", "-"], "".join(f"link delete dev {name}\n" for name in between), check=False)


@contextlib.contextmanager
def _inside(process: str) -> Iterator[None]:
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


def _run(command: str | Sequence[str], text: str = "", *, shell: bool = False, check: bool = True) -> None:
    """Run a program; raises NetworkError with what it says where it fails."""
    ended = subprocess.run(command, input=text, capture_output=True, text=True, shell=shell, check=False)
    if check and ended.returncode != 0:
        name = command.split()[0] if isinstance(command, str) else command[0]
        said = (ended.stderr or ended.stdout).strip().splitlines()
        raise NetworkError(f"{name} failed with status {ended.returncode}: {said[0] if said else 'it said nothing'}")
