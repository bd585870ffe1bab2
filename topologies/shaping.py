"""Shaping: logical links and their conditions as tc's text, and what the kernel must then hold. Pure.

Every logical link is one HTB class on the egress port of a switch that all of the link's traffic leaves by:

    GPU to GPU of its site    the leaf's port to the receiver, by source address
    GPU to border router      every spine's port to that border router, by source address
    border router to GPU      the border router's port to every spine, by destination address
    WAN link                  the port it leaves by, all traffic

A flow passes one spine, so a link that is shaped at every spine is shaped exactly once whichever carries it. Traffic
that matches no class of a port, and ports without classes, are infinitely fast.

*Rates.* The rate of a link is payload: what TCP carries. HTB charges frames, and counts the frames that a large
segment will be cut into (`qdisc_pkt_len_init` in the kernel): Ethernet 14 bytes, IPv4 20 and TCP 32 with timestamps,
so that a full frame of MTU + 14 bytes carries MTU - 52. The class's rate is the payload's times that ratio.

*Bursts.* HTB lets a packet go as soon as its class is not in debt, and books its cost afterwards. The last packet of
a chunk therefore leaves when all before it are paid for: a chunk of L bytes whose last packet has S leaves after
8(L - S - B)/R seconds, where B is the burst the class has saved up while idle, and slower or faster links behind the
slowest one add nothing, as if border routers cut through. S is the sender's business (a short last packet leaves
nothing to correct); B should be 0, but a class without a burst loses for good every instant by which its timer is
late. So B is the rate times how late a timer can be: in virtual time well below a microsecond, whatever the machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from topologies.fabric import Fabric
from topologies.wiring import Switch

Floats = npt.NDArray[np.float64]
ClassKey = tuple[str, int]
"""A class: the interface it is on and the minor number of its id."""

MTU_BYTES = 9000
_ETHERNET_BYTES = 14
_HEADER_BYTES = 20 + 32  # IPv4, and TCP with timestamps

VIRTUAL_LATE_S = 64e-9
"""How late a timer is in virtual time: less than the 64 ns in which bursts are counted."""
QUANTUM_BYTES = 200_000  # HTB wants one and has no use for it: no class borrows
QUEUE_PACKETS = 10_000_000  # nothing is ever dropped: memory would end first
TELLING = 100  # a delay that is so many times shorter than a timer may be late cannot be told from none


@dataclass(frozen=True, kw_only=True)
class Lane:
    """An HTB class: the index of the link it shapes, its interface, its minor number and what goes into it.

    `match` is "src ADDRESS", "dst ADDRESS", or None for all traffic of the port.
    """

    link: int
    interface: str
    minor: int
    match: str | None

    @property
    def key(self) -> ClassKey:
        """The class's interface and minor number."""
        return self.interface, self.minor


@dataclass(frozen=True, kw_only=True, eq=False)
class Shaping:
    """How a fabric whose links have these propagation delays, [links] seconds, is shaped.

    `late_s` is how late a timer may be for a class to lose nothing by it; each chunk arrives that much too early.
    """

    fabric: Fabric
    delays_s: Floats = field(repr=False)
    mtu_bytes: int = MTU_BYTES
    late_s: float = VIRTUAL_LATE_S

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """Every class, port by port."""
        return lanes(self.fabric)

    @cached_property
    def interfaces(self) -> tuple[str, ...]:
        """Every interface with a class."""
        return tuple(dict.fromkeys(lane.interface for lane in self.lanes))

    @cached_property
    def delays_ns(self) -> Mapping[ClassKey, int]:
        """The delay of the netem beneath each class that has one.

        Where timers may be late a delay that is next to nothing beside that is left out, as it would only cost.
        """
        least_ns = max(1.0, self.late_s * 1e9 / TELLING)
        found = {lane.key: round(self.delays_s[lane.link] * 1e9) for lane in self.lanes}
        return {key: ns for key, ns in found.items() if ns >= least_ns}

    def structure(self, rates_bps: Floats) -> str:
        """tc's batch text that makes all qdiscs, classes and filters, for the conditions `rates_bps`, [links] bit/s.

        The ports must have no queueing discipline of their own, as interfaces begin. Bursts and delays are not what
        they should be yet: tc (iproute2 6.1) cuts both down to whole microseconds.
        """
        wanted = self.wanted(rates_bps)
        lines: list[str] = []
        for interface in self.interfaces:
            own = [lane for lane in self.lanes if lane.interface == interface]
            everything = next((lane.minor for lane in own if lane.match is None), 0)
            queue = f"htb default {everything:x} direct_qlen {QUEUE_PACKETS}"
            lines.append(f"qdisc add dev {interface} root handle 1: {queue}")
            for lane in own:
                lines += [self._class_line("add", lane, wanted[lane.key]), self._queue_line(lane), *_filter_lines(lane)]
        return "".join(line + "\n" for line in lines)

    def removal(self) -> str:
        """tc's batch text that takes away what `structure` made."""
        return "".join(f"qdisc del dev {interface} root\n" for interface in self.interfaces)

    def wanted(self, rates_bps: Floats) -> dict[ClassKey, int]:
        """The rate in bytes/s that the kernel must hold for every class under the conditions `rates_bps`."""
        if rates_bps.shape != (len(self.fabric.links),):
            raise ValueError(f"rates {rates_bps.shape}: the fabric has {len(self.fabric.links)} links, one rate each")
        wire = [wire_bytes_per_s(round(rate), mtu_bytes=self.mtu_bytes) for rate in rates_bps.tolist()]
        return {lane.key: wire[lane.link] for lane in self.lanes}

    def _class_line(self, verb: str, lane: Lane, rate: int) -> str:
        bits, burst = 8 * rate, max(1, round(rate * self.late_s))
        limits = f"rate {bits}bit ceil {bits}bit burst {burst} cburst {burst} quantum {QUANTUM_BYTES}"
        return f"class {verb} dev {lane.interface} parent 1: classid 1:{lane.minor:x} htb {limits}"

    def _queue_line(self, lane: Lane) -> str:
        """The queue beneath a class; HTB's own would hold no more than the interface's txqueuelen."""
        ns = self.delays_ns.get(lane.key, 0)
        kind = f"netem delay {ns // 1000}us limit" if ns else "pfifo limit"
        parent = f"parent 1:{lane.minor:x} handle {lane.minor + 1:x}:"
        return f"qdisc add dev {lane.interface} {parent} {kind} {QUEUE_PACKETS}"


def lanes(fabric: Fabric) -> tuple[Lane, ...]:
    """The classes of a fabric, port by port; on each port they are numbered from 1."""
    address = {gpu.name: gpu.ip for gpu in fabric.gpus}
    leaf = {gpu.name: gpu.leaf for gpu in fabric.gpus}
    spines = [switch for switch in fabric.switches if switch.kind == "spine"]
    port = {(switch.name, port.peer): port.interface for switch in fabric.switches for port in switch.ports}
    found: list[Lane] = []
    numbers: dict[str, int] = {}
    for link in fabric.links:
        if link.kind == "intra":
            ports, match = [(leaf[link.dst], link.dst)], f"src {address[link.src]}"
        elif link.kind == "to_br":
            ports, match = [(name, link.dst) for name in _beside(spines, link.dst)], f"src {address[link.src]}"
        elif link.kind == "from_br":
            ports, match = [(link.src, name) for name in _beside(spines, link.src)], f"dst {address[link.dst]}"
        else:
            ports, match = [(link.src, link.dst)], None
        for ends in ports:
            interface = port[ends]
            numbers[interface] = numbers.get(interface, 0) + 1
            found.append(Lane(link=link.index, interface=interface, minor=numbers[interface], match=match))
    order = {port.interface: place for place, port in enumerate(p for s in fabric.switches for p in s.ports)}
    return tuple(sorted(found, key=lambda lane: (order[lane.interface], lane.minor)))


def wire_bytes_per_s(rate_bps: int, *, mtu_bytes: int) -> int:
    """The rate, in bytes/s of frames as HTB counts them, at which full frames carry `rate_bps` of payload.

    Rounded to a whole byte, and never 0, which HTB refuses. Raises ValueError for an MTU too small for headers.
    """
    payload_bytes, frame_bytes = mtu_bytes - _HEADER_BYTES, mtu_bytes + _ETHERNET_BYTES
    if payload_bytes <= 0:
        raise ValueError(f"an MTU of {mtu_bytes} bytes has no room beside {_HEADER_BYTES} bytes of headers")
    return max(1, (2 * rate_bps * frame_bytes + 8 * payload_bytes) // (16 * payload_bytes))


def _beside(spines: list[Switch], border_router: str) -> list[str]:
    """The spines cabled to a border router."""
    return [spine.name for spine in spines if any(port.peer == border_router for port in spine.ports)]


def _filter_lines(lane: Lane) -> list[str]:
    if lane.match is None:
        return []
    match = f"protocol ip prio 1 u32 match ip {lane.match}/32 flowid 1:{lane.minor:x}"
    return [f"filter add dev {lane.interface} parent 1: {match}"]


def class_name(key: ClassKey) -> str:
    """A class as people read it."""
    return f"class 1:{key[1]:x} of port {key[0]}"


def mismatch(wanted: Mapping[ClassKey, int], found: Mapping[ClassKey, tuple[int, int]]) -> str | None:
    """The first class that is not as it should be, in one sentence, or None.

    `wanted` are rates in bytes/s, `found` rates and ceilings in bytes/s.
    """
    for key in sorted(wanted.keys() | found.keys()):
        if key not in found:
            return f"{class_name(key)} should have {8 * wanted[key]} bit/s and is not there"
        if key not in wanted:
            return f"{class_name(key)} should not be there and has {8 * found[key][0]} bit/s"
        for rate in found[key]:
            if rate != wanted[key]:
                return f"{class_name(key)} should have {8 * wanted[key]} bit/s and has {8 * rate} bit/s"
    return None
