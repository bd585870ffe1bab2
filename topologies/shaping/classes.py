"""Shaping: links or ports and their conditions as HTB classes and netems, in tc's text. Pure.

In the logical grain every logical link is one HTB class on the egress port of a switch that all of the link's traffic
leaves by:

    GPU to GPU of its site    the leaf's port to the receiver, by source address
    GPU to border router      every spine's port to that border router, by source address
    border router to GPU      the border router's port to every spine, by destination address
    WAN link                  the port it leaves by, all traffic

In the physical grain every direction of a cable is one class of all its traffic: on the port that sends or, where a
GPU does, on an ifb of the port that receives.

A flow passes one spine, so a link that is shaped at every spine is shaped exactly once whichever carries it. Traffic
that matches no class of a port, and ports without classes, are infinitely fast.

*Rates.* The rate of a link is TCP payload. HTB charges frames, and counts the frames that a large segment will be cut
into (`qdisc_pkt_len_init` in the kernel): Ethernet 14 bytes, IPv4 20 and TCP 32 with timestamps, so that a full frame
of MTU + 14 bytes carries MTU - 52. The class's rate is the payload's times that ratio.

*Bursts.*
1. HTB charges a packet after sending it, so the last packet of a chunk leaves at t = 8(L - S - B)/R seconds (L bytes in
   the chunk, S in its last packet, B in the burst that the class has saved up while idle, R bit/s). Faster links behind
   the slowest one add nothing, as if border routers cut through.
2. The agents make S small: the last packet of a chunk is a short one of its own.
3. B = R x the timer's lateness. With less, the time by which a timer is late is lost for good; with more, chunks arrive
   early. In virtual time it is below a microsecond on any machine.
4. A class whose time comes behind a segment of another would lose what it waits. One with a part of a port has a burst
   of the longest segment, to catch up; its messages are early by that at most.

*Fair.* Flows that share a link get equal shares by a fair queue under its class, which tells them apart by their
sockets (each packet knows its own, in one kernel). What else that takes:
1. fq sends up to 8 packets in the order of their arrival when it has run empty, unless it has a `maxrate`.
2. Acknowledgements pass the shaper, or those of a flow the other way would take a share: IP packets of 52 bytes.
3. Delays are applied behind the shared links (`ifb`), and flows have little queued (`hosts.agent.transport.Windows`).

*Finite buffers.* A class with a `Buffer` drops the frames that its queue has no room for: bfifo, or where frames are
marked, an fq_codel with a single flow, which is a queue in the order of arrival with a threshold above which it marks.
1. fq_codel marks a frame that has waited for longer than a time. In a queue in the order of arrival, with a constant
   rate, that is a frame that found more than rate x time in the queue: the rule of DCTCP (Alizadeh et al., SIGCOMM
   2010), and of TCN (Bai et al., CoNEXT 2016). The kernel takes whole microseconds, so thresholds are rounded to those.
   CoDel's own control law is out of reach.
2. fq_codel limits memory, which a frame takes somewhat more of than it has bytes. When it is full the oldest frame is
   dropped; bfifo drops the newest.
3. Delays are applied behind the links, since a netem has no room for what is on its way only.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric
from topologies.fabric.ports import shared_by
from topologies.shaping.ifb import Ifb, delays, nic_name, nics
from topologies.shaping.netlink import Inner

Floats = npt.NDArray[np.float64]
ClassKey = tuple[str, int]
"""A class: the interface it is on and the minor number of its id."""

MTU_BYTES = 9000
SEGMENT_BYTES, SHORT_SEGMENT_BYTES = 500_000, 64_000
"""The largest packet that TCP makes, and the largest where flows have fair shares. They are large, as an AllGather
costs wall time, and clock readings that take virtual time, by the packet."""
_ETHERNET_BYTES = 14
_HEADER_BYTES = 20 + 32  # IPv4, and TCP with timestamps

VIRTUAL_LATE_S = 64e-9
"""How late a timer is in virtual time: less than the 64 ns in which bursts are counted."""
_TUNNELS_LATE_NS = 2_000  # by which a class is late where several of a port's tunnels wait for their times
QUANTUM_BYTES = 200_000  # HTB requires one, though no class borrows
QUEUE_PACKETS = 10_000_000  # nothing is ever dropped: memory would end first
FRAME_BYTES = MTU_BYTES + _ETHERNET_BYTES
MAX_BUFFER_BYTES = 2_000_000_000  # limits are 32 bits, and memory is more than bytes
_FRAME_MEMORY_BYTES = FRAME_BYTES + 766  # of a full frame of TCP, as measured in the VM
FQ = (
    f"fq nopacing maxrate 30gbit flow_limit {QUEUE_PACKETS} quantum {FRAME_BYTES} "
    f"initial_quantum {FRAME_BYTES} orphan_mask 4194303 limit {QUEUE_PACKETS}"
)
"""A fair queue as tc names it: segments in turn, whatever their size, byte for byte alike."""
_PURE_ACK = f"protocol ip prio 1 u32 match u16 {_HEADER_BYTES:#06x} 0xffff at 2 flowid 1:0"
_ROUNDED = 1e-6  # of the rates of tunnels together
TELLING = 100  # a delay this many times shorter than the lateness of timers is not distinguishable from none


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """The finite queue of every class, in bytes of frames: its room, and above what it marks, never if None."""

    limit_bytes: int
    ecn_threshold_bytes: int | None = None

    @property
    def queue(self) -> str:
        """The queue as tc names it; where it marks, from its first change of rates on."""
        if self.ecn_threshold_bytes is None:
            return f"bfifo limit {self.limit_bytes}"
        memory_bytes = self.limit_bytes * _FRAME_MEMORY_BYTES // FRAME_BYTES
        return (
            f"fq_codel flows 1 limit {QUEUE_PACKETS} memory_limit {memory_bytes} drop_batch 1 "
            "target 1000s interval 1000s ecn"
        )


@dataclass(frozen=True, kw_only=True)
class Service:
    """A class of traffic on a WAN port: packets with this DSCP have the part `assured` of the port's rate first, and
    then up to the part `ceiling` of what is left."""

    dscp: int
    assured: float = 0.0
    ceiling: float = 1.0

    @property
    def has_part(self) -> bool:
        """Whether it has a part of a port in any case, or no more than one."""
        return self.assured > 0 or self.ceiling < 1


@dataclass(frozen=True, kw_only=True)
class Tunnel:
    """A tunnel for a class of traffic: the WAN link or port that it begins with, and tc's u32 match of its packets."""

    link: int
    match: str


@dataclass(frozen=True, kw_only=True)
class HtbClass:
    """An HTB class: the index of the link or port it shapes, its interface, its minor number and its traffic.

    `match` is "src ADDRESS", "dst ADDRESS", or None for all traffic of the port. One that is below the class `parent`
    is of the service of this number, in the order in which they borrow, or of the packets of a `tunnel`.
    """

    link: int
    interface: str
    minor: int
    match: str | None
    parent: int = 0
    service: int = 0
    tunnel: str | None = None

    @property
    def key(self) -> ClassKey:
        """The class's interface and minor number."""
        return self.interface, self.minor

    def queue(self, kind: str) -> str:
        """A queue beneath the class, as tc's batch text names it; `kind` is its kind with its options.

        Only a netem has a handle that is known: the kernel does not change the kind of a queue that keeps its handle.
        """
        handle = f" handle {self.minor + 1:x}:" if kind.startswith("netem ") else ""
        return f"dev {self.interface} parent 1:{self.minor:x}{handle} {kind}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Shaping:
    """How a fabric whose logical links have these propagation delays, [links] seconds, is shaped in its grain.

    A class makes up for a timer that is up to `late_s` late; every chunk arrives that much too early. With `fair` the
    flows that share a link or a port get equal shares of it. With a `buffer`, which is not for fair queues, every class
    drops what it has no room for, and WAN links lose the share `wan_loss` of all frames, as `seed` says. With
    `services`, which are for fair queues, every WAN port serves them in their order; the last of them has what is of
    none. With `tunnels`, likewise and without services, each has a rate of its own at the port where it begins:
    conditions are those of links or ports and behind these of tunnels, and traffic in no tunnel has the port's. With
    `paths`, tc's match of packets in a tunnel over each path, no delay is before a link of the WAN. Segments have up to
    `segment_bytes`.
    """

    fabric: Fabric
    delays_s: Floats = field(repr=False)
    late_s: float = VIRTUAL_LATE_S
    fair: bool = False
    buffer: Buffer | None = None
    services: tuple[Service, ...] = ()
    wan_loss: float = 0.0
    seed: int = 0
    tunnels: tuple[Tunnel, ...] = ()
    paths: tuple[str, ...] = ()
    segment_bytes: int = 0

    @cached_property
    def classes(self) -> tuple[HtbClass, ...]:
        """Every class, port by port; those below another follow it."""
        wan, links = wan_of(self.fabric), len(shared_by(self.fabric).all)
        found = []
        for one in classes_of(self.fabric):
            found.append(one)
            if one.link in wan:
                below = [replace(one, service=number) for number in range(len(self.services))]
                tunnels = [(number, each) for number, each in enumerate(self.tunnels, links) if each.link == one.link]
                below += [replace(one, link=number, tunnel=each.match) for number, each in tunnels]
                below += [one] if tunnels else []  # of what is in none
                found += [replace(each, minor=one.minor + n, parent=one.minor) for n, each in enumerate(below, 1)]
        return tuple(found)

    @cached_property
    def _above(self) -> frozenset[ClassKey]:
        """The classes that others are below."""
        return frozenset((one.interface, one.parent) for one in self.classes if one.parent)

    @cached_property
    def leaves(self) -> tuple[HtbClass, ...]:
        """The classes that have a queue."""
        return tuple(one for one in self.classes if one.key not in self._above)

    @cached_property
    def interfaces(self) -> tuple[str, ...]:
        """Every interface with a class."""
        return tuple(dict.fromkeys(one.interface for one in self.classes))

    @cached_property
    def delays_ns(self) -> Mapping[ClassKey, int]:
        """The delay of the netem beneath each class that has one; none has where ifbs delay.

        A delay that is negligible beside the lateness of timers has none: it would cost time and change nothing.
        """
        if self._delays_behind:
            return {}
        least_ns = max(1.0, self.late_s * 1e9 / TELLING)
        delays = {one.key: round(self.delays_s[one.link] * 1e9) for one in self.leaves}
        return {key: ns for key, ns in delays.items() if ns >= least_ns}

    @property
    def _delays_behind(self) -> bool:
        """Whether ifbs delay, behind the links."""
        return self.fair or self._is_physical or self.buffer is not None

    @cached_property
    def ifbs(self) -> tuple[Ifb, ...]:
        """The ifbs: of GPUs' ports in the physical grain, and those that delay where delays are behind the links."""
        found = nics(self.fabric) if self._is_physical else ()
        if not self._delays_behind:
            return ()
        return found + delays(self.fabric, self.delays_s, wan_loss=self.wan_loss, seed=self.seed, paths=self.paths)

    @property
    def _is_physical(self) -> bool:
        return self.fabric.spec.grain == "physical"

    @property
    def queue(self) -> str:
        """The queue beneath a class without a netem, as tc names it."""
        if self.buffer is not None:
            return self.buffer.queue
        return FQ if self.fair else f"pfifo limit {QUEUE_PACKETS}"

    def marks_us(self, rates_bps: Floats) -> dict[ClassKey, int]:
        """After how many microseconds in its queue every class marks a frame under the conditions `rates_bps`."""
        if self.buffer is None or self.buffer.ecn_threshold_bytes is None:
            return {}
        threshold = self.buffer.ecn_threshold_bytes
        return {key: max(1, round(threshold / rate * 1e6)) for key, rate in self.wanted(rates_bps).items()}

    def structure(self, rates_bps: Floats) -> str:
        """tc's batch text that makes all qdiscs, classes and filters, for the conditions `rates_bps`, [links] bit/s.

        The ifbs must be there, and the ports must have no queueing discipline of their own, as interfaces begin. Bursts
        and delays are not what they should be yet: tc (iproute2 6.1) cuts both down to whole microseconds.
        """
        wanted, inner = self.wanted(rates_bps), self.inner(rates_bps)
        lines: list[str] = []
        for interface, group in groupby(self.classes, key=lambda one: one.interface):
            classes = list(group)
            everything = next((one.minor for one in reversed(classes) if one.match is None), 0)
            lines.append(
                f"qdisc add dev {interface} root handle 1: htb default {everything:x} direct_qlen {QUEUE_PACKETS}"
            )
            if self.fair:
                lines.append(f"filter add dev {interface} parent 1: {_PURE_ACK}")
            for one in classes:
                lines += self._class_lines(one, wanted[one.key], inner.get(one.key))
        return "".join(line + "\n" for line in lines)

    def removal(self) -> str:
        """tc's batch text that removes what `structure` made."""
        return "".join(f"qdisc del dev {interface} root\n" for interface in self.interfaces)

    def wanted(self, rates_bps: Floats) -> dict[ClassKey, int]:
        """The rate in bytes/s that the kernel must hold for every class under the conditions `rates_bps`."""
        count = len(shared_by(self.fabric).all)
        if rates_bps.shape != (count + len(self.tunnels),):
            more = f" and {len(self.tunnels)} tunnels" * bool(self.tunnels)
            raise ValueError(f"rates {rates_bps.shape}: the fabric has {count} links or ports{more}, one rate each")
        wire = [wire_bytes_per_s(round(rate)) for rate in rates_bps.tolist()]
        ceilings = [service.ceiling for service in self.services]
        parts = {one.key: ceilings[one.service] if one.parent and ceilings else 1 for one in self.classes}
        return {one.key: max(1, round(wire[one.link] * parts[one.key])) for one in self.classes}

    def inner(self, rates_bps: Floats) -> dict[ClassKey, Inner]:
        """What the classes below others have of their own under these conditions; `wanted` has their ceilings. With
        tunnels also what their ports have."""
        wanted = self.wanted(rates_bps)
        below = [(one, wanted[one.interface, one.parent]) for one in self.classes if one.parent]
        if self.services:
            own = {one.key: round(port * self.services[one.service].assured) for one, port in below}
        else:
            # A class that waits for the port's tokens loses its own meanwhile. So tunnels that are not the whole port's
            # have theirs in any case, unless they are more than the port carries, as its rate is another by now.
            own = {one.key: wanted[one.key] * (wanted[one.key] < port) for one, port in below}
            of_port = Counter[str]()
            for (interface, _), rate in own.items():
                of_port[interface] += rate
            own = {one.key: own[one.key] * (of_port[one.interface] <= port * (1 + _ROUNDED)) for one, port in below}
        ports = self._above if self.tunnels else ()
        return {key: Inner(wanted[key], 0, 0, _TUNNELS_LATE_NS) for key in ports} | {
            one.key: Inner(max(1, own[one.key]), one.parent, one.service, self._burst_ns(one, port))
            for one, port in below
        }

    def _burst_ns(self, one: HtbClass, port: int) -> int:
        """How long a class below a port of so many bytes/s may wait for another's segment and catch up on it later."""
        if self.tunnels:
            return _TUNNELS_LATE_NS
        has_part = self.services and self.services[one.service].has_part
        return round(1e9 * self.segment_bytes / port) if has_part else 0

    def _class_lines(self, one: HtbClass, ceiling: int, inner: Inner | None) -> Iterator[str]:
        """A class, its queue, and the filter of its traffic."""
        rate, parent, priority, _ = inner or (ceiling, 0, 0, 0)
        burst, cburst = (max(1, round(each * self.late_s)) for each in (rate, ceiling))
        limits = f"rate {8 * rate}bit ceil {8 * ceiling}bit burst {burst} cburst {cburst} quantum {QUANTUM_BYTES}"
        below = f"1:{parent:x}" if parent else "1:"
        prio = f" prio {priority}" if parent else ""
        yield f"class add dev {one.interface} parent {below} classid 1:{one.minor:x} htb {limits}{prio}"
        if one.key in self._above:
            return
        ns = self.delays_ns.get(one.key, 0)
        # HTB's own queue would hold no more than the port's txqueuelen.
        queue = f"netem delay {ns // 1000}us limit {QUEUE_PACKETS}" if ns else self.queue
        yield f"qdisc add {one.queue(queue)}"
        if parent and (one.tunnel or self.services):
            match = one.tunnel or f"match ip tos {4 * self.services[one.service].dscp:#04x} 0xfc"
            yield f"filter add dev {one.interface} parent 1: protocol ip prio 1 u32 {match} flowid 1:{one.minor:x}"
        elif one.match is not None:
            match = f"protocol ip prio 1 u32 match ip {one.match}/32 flowid 1:{one.minor:x}"
            yield f"filter add dev {one.interface} parent 1: {match}"


def wan_of(fabric: Fabric) -> frozenset[int]:
    """The WAN links, or the ports of the WAN, by index in the fabric's grain."""
    return frozenset(one.index for one in shared_by(fabric).all if one.kind == "wan")


def classes_of(fabric: Fabric) -> tuple[HtbClass, ...]:
    """The classes of a fabric in its grain, port by port."""
    return _port_classes(fabric) if fabric.spec.grain == "physical" else _link_classes(fabric)


def _link_classes(fabric: Fabric) -> tuple[HtbClass, ...]:
    """The classes of logical links; on each port they are numbered from 1."""
    address = {gpu.name: gpu.ip for gpu in fabric.gpus}
    leaf = {gpu.name: gpu.leaf for gpu in fabric.gpus}
    ports = [(switch, port) for switch in fabric.switches for port in switch.ports]
    interface = {(switch.name, port.peer): port.interface for switch, port in ports}
    spines: dict[str, list[str]] = {}
    for switch, port in ports:
        if switch.kind == "spine":
            spines.setdefault(port.peer, []).append(switch.name)
    on_port: dict[str, list[HtbClass]] = {port.interface: [] for _, port in ports}
    for link in fabric.links:
        if link.kind == "intra":
            hops, match = [(leaf[link.dst], link.dst)], f"src {address[link.src]}"
        elif link.kind == "to_br":
            hops, match = [(spine, link.dst) for spine in spines[link.dst]], f"src {address[link.src]}"
        elif link.kind == "from_br":
            hops, match = [(link.src, spine) for spine in spines[link.src]], f"dst {address[link.dst]}"
        else:
            hops, match = [(link.src, link.dst)], None
        for name in (interface[hop] for hop in hops):
            minor = len(on_port[name]) + 1
            on_port[name].append(HtbClass(link=link.index, interface=name, minor=minor, match=match))
    return tuple(one for classes in on_port.values() for one in classes)


def _port_classes(fabric: Fabric) -> tuple[HtbClass, ...]:
    """The class of each port, in their order."""
    interface = {(switch.name, port.peer): port.interface for switch in fabric.switches for port in switch.ports}
    interface |= {(gpu.name, gpu.leaf): nic_name(gpu.rank) for gpu in fabric.gpus}
    return tuple(
        HtbClass(link=port.index, interface=interface[port.src, port.dst], minor=1, match=None)
        for port in shared_by(fabric).all
    )


def wire_bytes_per_s(rate_bps: int) -> int:
    """The rate, in bytes/s of frames as HTB counts them, at which full frames carry `rate_bps` of payload.

    Rounded to a whole byte, and never 0, which HTB refuses.
    """
    payload_bytes, frame_bytes = MTU_BYTES - _HEADER_BYTES, MTU_BYTES + _ETHERNET_BYTES
    return max(1, (2 * rate_bps * frame_bytes + 8 * payload_bytes) // (16 * payload_bytes))


def payload_bytes(wire_bytes: int) -> int:
    """The payload of so many bytes of full frames, as HTB counts them."""
    return round(wire_bytes * (MTU_BYTES - _HEADER_BYTES) / FRAME_BYTES)


def class_name(key: ClassKey) -> str:
    """A class as people read it."""
    return f"class 1:{key[1]:x} of port {key[0]}"


def mismatch(
    wanted: Mapping[ClassKey, int],
    found: Mapping[ClassKey, tuple[int, int]],
    inner: Mapping[ClassKey, Inner] | None = None,
) -> str | None:
    """The first class that is not as it should be, in one sentence, or None.

    `wanted` are ceilings in bytes/s, and rates where `inner` has no other, `found` rates and ceilings in bytes/s.
    """
    for key in sorted(wanted.keys() | found.keys()):
        if key not in found:
            return f"{class_name(key)} should have {8 * wanted[key]} bit/s and is not there"
        if key not in wanted:
            return f"{class_name(key)} should not be there and has {8 * found[key][0]} bit/s"
        rate = wanted[key] if inner is None or key not in inner else inner[key].rate
        for right, held in zip((rate, wanted[key]), found[key], strict=True):
            if held != right:
                return f"{class_name(key)} should have {8 * right} bit/s and has {8 * held} bit/s"
    return None
