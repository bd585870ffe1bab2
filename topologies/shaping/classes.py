"""Shaping of links or ports: their conditions as HTB classes, queues and netems, in the syntax of tc. Pure.

In the logical grain every logical link is an HTB class, by source or destination address, on the egress ports by which
all of the link's traffic leaves a switch:

    GPU to GPU of its site    the leaf's port to the receiver, by source address
    GPU to border router      every spine's port to that border router, by source address
    border router to GPU      the border router's port to every spine, by destination address
    WAN link                  the port it leaves by, all traffic

In the physical grain every direction of a cable is one class of all its traffic: on the port that sends or, if a GPU
sends, on an ifb of the leaf's port that receives.

A flow passes one spine, so a link that is shaped at every spine is shaped exactly once, whichever spine carries it.
Traffic that matches no class of its port is not limited, nor are ports without classes.

*Rates.* The rate of a link is payload. HTB charges frames, and counts the frames into which a large segment will be
cut (`qdisc_pkt_len_init` in the kernel). The class's rate is the payload's rate times the size of a full frame, by the
payload in it (`frames`).

*Bursts.*
1. HTB charges a packet after sending it, so the last packet of a chunk leaves at t = 8(L - S - B)/R seconds (L bytes in
   the chunk, S in its last packet, B in the burst that the class has saved up while idle, R bit/s). Faster links after
   the slowest one add nothing, as if border routers were cut-through.
2. The agents make S small: the last packet of a chunk is a short one.
3. B = R x timer lateness. With a smaller burst, the time by which a timer is late is lost for good; with a larger one,
   chunks arrive early. In virtual time the lateness is below a microsecond on any machine.
4. A class whose turn is delayed by segments of other classes would lose that time, and HTB would hand it to a later
   class. In the worst case it waits for one segment of every other class. So a class with an assured part or a ceiling
   has a burst of that many of the longest segments to catch up; its messages are early by that at most.

*Fair sharing.* Flows that share a link get equal shares from a fair queue (fq) under its class, which distinguishes
them by their sockets (all packets are in one kernel and refer to their sockets). It also needs:
1. fq with a `maxrate`: otherwise it sends up to 8 packets in the order of arrival after it has been empty.
2. Acknowledgements (IP packets of 52 bytes; 48 of RoCE) that bypass the shaper: otherwise those of a flow in the
   opposite direction would take a share.
3. Delays after the shared links (`ifb`), and flows with little data queued (`hosts.agent.transport.FairShareLimits`).

*Finite buffers.* A class with a `Buffer` drops the frames that do not fit its queue. The queue is a bfifo or, if frames
are marked, an fq_codel with a single flow, which is a FIFO queue with a marking threshold.
1. fq_codel marks a frame that has waited longer than a given time. In a FIFO queue with a constant rate that is a frame
   that arrived at a queue of more than rate x time: the rule of DCTCP (Alizadeh et al., SIGCOMM 2010), and of TCN (Bai
   et al., CoNEXT 2016). The kernel takes whole microseconds, so thresholds are rounded to microseconds. CoDel's own
   control law is disabled by a target beyond reach.
2. fq_codel limits memory, and a frame takes somewhat more memory than it has bytes. A full fq_codel drops the oldest
   frame, a full bfifo the newest.
3. Delays are applied after the links, because a netem's limit counts packets in flight as well as queued ones.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric
from topologies.fabric.machines import Share
from topologies.fabric.ports import links_in_grain
from topologies.shaping.frames import TCP_FRAMES, Frames
from topologies.shaping.ifb import Ifb, delays, nic_name, nics
from topologies.shaping.netlink import ChildClass

Floats = npt.NDArray[np.float64]
ClassKey = tuple[str, int]
"""Identifies an HTB class: its interface and the minor number of its class id."""

SEGMENT_BYTES, SHORT_SEGMENT_BYTES = 500_000, 64_000
"""The largest segment that TCP makes, and the largest one with fair sharing. They are large because every packet costs
wall time, and clock readings that take virtual time."""

VIRTUAL_LATE_S = 64e-9
"""Timer lateness in virtual time: less than the 64 ns in which bursts are counted."""
TUNNELS_LATE_NS = 2_000
"""Lateness of a class while several tunnels of its port wait for their turns, for which it makes up."""
QUANTUM_BYTES = 200_000  # required by HTB, though no class borrows
QUEUE_PACKETS = 10_000_000  # a limit that is never reached: memory would run out first
FRAME_BYTES = TCP_FRAMES.frame_bytes
MAX_BUFFER_BYTES = 2_000_000_000  # limits have 32 bits, and a frame's memory is larger than the frame
_FRAME_MEMORY_BYTES = FRAME_BYTES + 766  # kernel memory of a full TCP frame, as measured in the VM
FQ = (
    f"fq nopacing maxrate 30gbit flow_limit {QUEUE_PACKETS} quantum {FRAME_BYTES} "
    f"initial_quantum {FRAME_BYTES} orphan_mask 4194303 limit {QUEUE_PACKETS}"
)
"""The fair queue in tc's syntax: flows send by turns and get equal shares in bytes, whatever the size of segments."""
_TABLE = 1  # the number of a port's hash table of addresses
_OFFSETS = {"src": 12, "dst": 16}  # of addresses in a packet's IP header
_ROUNDED = 1e-6  # relative rounding error of the sum of tunnels' rates
NEGLIGIBLE_DELAY_RATIO = 100  # a delay below 1/100 of the timer lateness cannot be distinguished from none


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """The finite queue of every class, in bytes of frames: its capacity, and the marking threshold (None: no marks)."""

    limit_bytes: int
    ecn_threshold_bytes: int | None = None

    @property
    def queue(self) -> str:
        """The queue in tc's syntax; it marks only once `netlink.RtNetlink.change_marks` has set its threshold."""
        if self.ecn_threshold_bytes is None:
            return f"bfifo limit {self.limit_bytes}"
        memory_bytes = self.limit_bytes * _FRAME_MEMORY_BYTES // FRAME_BYTES
        return (
            f"fq_codel flows 1 limit {QUEUE_PACKETS} memory_limit {memory_bytes} drop_batch 1 "
            "target 1000s interval 1000s ecn"
        )


@dataclass(frozen=True, kw_only=True)
class Service:
    """A class of traffic on a WAN port: packets with this DSCP are assured the part `assured` of the port's rate, and
    may borrow up to the part `ceiling` of it."""

    dscp: int
    assured: float = 0.0
    ceiling: float = 1.0

    @property
    def has_part(self) -> bool:
        """Whether the class has an assured part, or a ceiling below the port's rate."""
        return self.assured > 0 or self.ceiling < 1


@dataclass(frozen=True, kw_only=True)
class Tunnel:
    """A tunnel for a class of traffic: the index of its first WAN link or port, and tc's u32 match of its packets."""

    link: int
    match: str


@dataclass(frozen=True, kw_only=True)
class HtbClass:
    """An HTB class: the index of the link, port or tunnel it shapes, its interface, minor number and traffic.

    `match` is "src ADDRESS", "dst ADDRESS", or None for all traffic of the port. A class below the class `parent`
    (0: none) shapes the traffic of `service`, an index into `Shaping.services`, or the packets that match `tunnel`.
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
        """Return the queue beneath the class in tc's syntax; `kind` is its kind with options.

        Only a netem has a fixed handle, because the kernel cannot replace a queue by one of another kind with the same
        handle.
        """
        handle = f" handle {self.minor + 1:x}:" if kind.startswith("netem ") else ""
        return f"dev {self.interface} parent 1:{self.minor:x}{handle} {kind}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Shaping:
    """The traffic control of a fabric in its grain, for these propagation delays of logical links, [links] s.

    A class makes up for a timer that is up to `late_s` late; every chunk arrives that much too early. With `fair`,
    flows that share a link or a port get equal shares of it. With a `buffer` (not with `fair`), every class drops the
    frames that do not fit, and WAN links lose the share `wan_loss` of all frames, drawn from `seed`. With `services`
    (only with `fair`), every link or port in `serving` does in order: the last one has the packets without a class, and
    `sending_services` of them have traffic at all. With `tunnels` (only without services), each has a rate of
    its own at the port where it begins: rates are those of links or ports, followed by those of tunnels, and traffic in
    no tunnel has the port's rate. With `paths`, tc's match of packets in a tunnel over each path, no delay
    is applied before a WAN link. With `moving`, WAN delays may change (`tc.Shaper.move`). Segments have up to
    `segment_bytes`. Of a fabric that machines share, it is the traffic control of this machine's `share`. Rates are
    those of the payload of full `frames`.
    """

    fabric: Fabric
    delays_s: Floats = field(repr=False)
    late_s: float = VIRTUAL_LATE_S
    fair: bool = False
    buffer: Buffer | None = None
    services: tuple[Service, ...] = ()
    serving: frozenset[int] = frozenset()
    sending_services: int = 0
    wan_loss: float = 0.0
    seed: int = 0
    tunnels: tuple[Tunnel, ...] = ()
    paths: tuple[str, ...] = ()
    moving: bool = False
    segment_bytes: int = 0
    share: Share | None = None
    frames: Frames = TCP_FRAMES

    @cached_property
    def classes(self) -> tuple[HtbClass, ...]:
        """All classes, port by port; the classes below another class follow it."""
        return tuple(htb for htb in self._all_classes if self._has(htb.interface))

    def _has(self, interface: str) -> bool:
        """Whether an interface is in this machine."""
        return self.share is None or interface in self._interfaces_here

    @cached_property
    def _interfaces_here(self) -> frozenset[str]:
        assert self.share is not None
        return self.share.interfaces | {nic_name(rank) for rank in self.share.ranks}

    @property
    def _all_classes(self) -> tuple[HtbClass, ...]:
        wan, links = wan_of(self.fabric), len(links_in_grain(self.fabric).all)
        ports = classes_of(self.fabric)
        minors = Counter(port.interface for port in ports)
        classes = []
        for port in ports:
            classes.append(port)
            children = [
                replace(port, service=index) for index in range(len(self.services)) if port.link in self.serving
            ]
            if port.link in wan:
                tunnels = [(index, each) for index, each in enumerate(self.tunnels, links) if each.link == port.link]
                children += [replace(port, link=index, tunnel=tunnel.match) for index, tunnel in tunnels]
                if tunnels:
                    children.append(port)  # for traffic in no tunnel
            last = minors[port.interface]
            classes += [replace(htb, minor=last + n, parent=port.minor) for n, htb in enumerate(children, 1)]
            minors[port.interface] += len(children)
        return tuple(classes)

    @cached_property
    def _parents(self) -> frozenset[ClassKey]:
        """The classes that have classes below them."""
        return frozenset((htb.interface, htb.parent) for htb in self.classes if htb.parent)

    @cached_property
    def leaves(self) -> tuple[HtbClass, ...]:
        """The classes that have a queue."""
        return tuple(htb for htb in self.classes if htb.key not in self._parents)

    @cached_property
    def interfaces(self) -> tuple[str, ...]:
        """All interfaces with classes."""
        return tuple(dict.fromkeys(htb.interface for htb in self.classes))

    @cached_property
    def delays_ns(self) -> Mapping[ClassKey, int]:
        """The delay of the netem beneath each class that has one; empty if ifbs apply the delays.

        A class has no netem for a delay that is negligible against the timer lateness: it would only cost time.
        """
        if self._delays_after_links:
            return {}
        least_ns = max(1.0, self.late_s * 1e9 / NEGLIGIBLE_DELAY_RATIO)
        delays = {htb.key: round(self.delays_s[htb.link] * 1e9) for htb in self.leaves}
        return {key: ns for key, ns in delays.items() if ns >= least_ns}

    @property
    def _delays_after_links(self) -> bool:
        """Whether delays are applied after the links, by ifbs."""
        return self.fair or self._is_physical or self.buffer is not None or bool(self.tunnels or self.services)

    @cached_property
    def ifbs(self) -> tuple[Ifb, ...]:
        """The ifbs: those of GPUs' ports in the physical grain, and those that apply delays after the links."""
        if not self._delays_after_links:
            return ()
        sending = nics(self.fabric) if self._is_physical else ()
        delaying = delays(
            self.fabric,
            self.delays_s,
            wan_loss=self.wan_loss,
            seed=self.seed,
            paths=self.paths,
            moving=self.moving,
        )
        ranks = range(len(self.fabric.gpus)) if self.share is None else self.share.ranks
        ifbs = (*sending, *delaying)
        return tuple(ifb for ifb in ifbs if (self._has(ifb.interface) if ifb.rank is None else ifb.rank in ranks))

    @property
    def _is_physical(self) -> bool:
        return self.fabric.spec.grain == "physical"

    @property
    def queue(self) -> str:
        """The queue beneath a class without a netem, in tc's syntax."""
        if self.buffer is not None:
            return self.buffer.queue
        return FQ if self.fair else f"pfifo limit {QUEUE_PACKETS}"

    def marks_us(self, rates_bps: Floats) -> dict[ClassKey, int]:
        """Return the waiting time, in microseconds, above which each class marks a frame under these rates.

        Empty if frames are not marked.
        """
        if self.buffer is None or self.buffer.ecn_threshold_bytes is None:
            return {}
        threshold = self.buffer.ecn_threshold_bytes
        return {key: max(1, round(threshold / rate * 1e6)) for key, rate in self.wanted(rates_bps).items()}

    def structure(self, rates_bps: Floats) -> str:
        """Return the batch for tc that makes all qdiscs, classes and filters for these rates, [links] bit/s.

        The ifbs must exist, and the ports must be without a queueing discipline, as new interfaces are. Bursts and
        delays are not exact yet: tc (iproute2 6.1) cuts both to whole microseconds.
        """
        wanted, children = self.wanted(rates_bps), self.child_classes(rates_bps)
        lines: list[str] = []
        for interface, group in groupby(self.classes, key=lambda htb: htb.interface):
            classes = list(group)
            default = next((htb.minor for htb in reversed(classes) if htb.match is None), 0)
            lines.append(
                f"qdisc add dev {interface} root handle 1: htb default {default:x} direct_qlen {QUEUE_PACKETS}"
            )
            if self.fair:
                acks = f"u32 match u16 {self.frames.ack_bytes:#06x} 0xffff at 2 flowid 1:0"
                lines.append(f"filter add dev {interface} parent 1: protocol ip prio 1 {acks}")
            for htb in classes:
                lines += self._class_lines(htb, wanted[htb.key], children.get(htb.key))
            lines += _address_filters([htb for htb in classes if self._has_address(htb)])
        return "".join(line + "\n" for line in lines)

    def removal(self) -> str:
        """Return the batch for tc that removes what `structure` made."""
        return "".join(f"qdisc del dev {interface} root\n" for interface in self.interfaces)

    def wanted(self, rates_bps: Floats) -> dict[ClassKey, int]:
        """Return the ceiling, in bytes/s of frames, that the kernel must hold for every class under these rates.

        `rates_bps` are those of links or ports, followed by those of tunnels. Raises ValueError for another shape.
        """
        count = len(links_in_grain(self.fabric).all)
        if rates_bps.shape != (count + len(self.tunnels),):
            tunnels = f" and {len(self.tunnels)} tunnels" if self.tunnels else ""
            raise ValueError(f"rates {rates_bps.shape}: the fabric has {count} links or ports{tunnels}, one rate each")
        wire = [self.frames.wire_bytes_per_s(round(rate)) for rate in rates_bps.tolist()]
        ceilings = [service.ceiling for service in self.services]
        parts = {htb.key: ceilings[htb.service] if htb.parent and ceilings else 1 for htb in self.classes}
        return {htb.key: max(1, round(wire[htb.link] * parts[htb.key])) for htb in self.classes}

    def child_classes(self, rates_bps: Floats) -> dict[ClassKey, ChildClass]:
        """Return the parameters, under these rates, of the classes below others and, with tunnels, of the classes above
        these; `wanted` has their ceilings."""
        ceilings = self.wanted(rates_bps)
        children = [(htb, ceilings[htb.interface, htb.parent]) for htb in self.classes if htb.parent]
        if self.services:
            assured = {htb.key: round(port * self.services[htb.service].assured) for htb, port in children}
        else:
            # A class that waits for the port's tokens loses its own tokens meanwhile. So every tunnel with a lower rate
            # than its port is assured that rate, unless the port's rate has changed and is now less than their sum.
            assured = {htb.key: ceilings[htb.key] if ceilings[htb.key] < port else 0 for htb, port in children}
            total = Counter[str]()
            for (interface, _), rate in assured.items():
                total[interface] += rate
            for htb, port in children:
                if total[htb.interface] > port * (1 + _ROUNDED):
                    assured[htb.key] = 0
        ports = self._parents if self.tunnels else ()
        return {key: ChildClass(ceilings[key], 0, 0, TUNNELS_LATE_NS) for key in ports} | {
            htb.key: ChildClass(max(1, assured[htb.key]), htb.parent, htb.service, self._burst_ns(htb, port))
            for htb, port in children
        }

    def _burst_ns(self, htb: HtbClass, port: int) -> int:
        """Return the burst, in ns, of a class below a port of `port` bytes/s: the waiting time it can make up for."""
        if self.tunnels:
            return TUNNELS_LATE_NS
        has_part = self.services and self.services[htb.service].has_part
        return round(1e9 * self.segment_bytes * max(1, self.sending_services - 1) / port) if has_part else 0

    def _has_address(self, htb: HtbClass) -> bool:
        """Whether a class has the packets of its address, or of those the ones without a class of traffic."""
        is_last = not htb.parent or htb.service == len(self.services) - 1
        return htb.key not in self._parents and is_last

    def _class_lines(self, htb: HtbClass, ceiling: int, child: ChildClass | None) -> Iterator[str]:
        """Yield the lines that make a class, its queue and its filter; `ceiling` is in bytes/s of frames."""
        rate, parent, priority, _ = child or (ceiling, 0, 0, 0)
        burst, cburst = (max(1, round(each * self.late_s)) for each in (rate, ceiling))
        limits = f"rate {8 * rate}bit ceil {8 * ceiling}bit burst {burst} cburst {cburst} quantum {QUANTUM_BYTES}"
        parent_id = f"1:{parent:x}" if parent else "1:"
        prio = f" prio {priority}" if parent else ""
        yield f"class add dev {htb.interface} parent {parent_id} classid 1:{htb.minor:x} htb {limits}{prio}"
        if htb.key in self._parents:
            return
        # HTB's default queue would hold at most the port's txqueuelen of packets.
        queue = f"netem limit {QUEUE_PACKETS}" if self.delays_ns.get(htb.key) else self.queue
        yield f"qdisc add {htb.queue(queue)}"
        if parent and (htb.tunnel or self.services):
            match = htb.tunnel or f"match ip tos {4 * self.services[htb.service].dscp:#04x} 0xfc"
            if htb.match is not None:
                match = f"match ip {htb.match}/32 {match}"
            yield f"filter add dev {htb.interface} parent 1: protocol ip prio 1 u32 {match} flowid 1:{htb.minor:x}"


def _address_filters(classes: Sequence[HtbClass]) -> Iterator[str]:
    """Yield the lines that lead packets to those of a port's classes that have an address, which is that of all sources
    or of all destinations.

    The addresses are in a hash table by their last byte, which GPUs of a site do not share: in a list, a packet would
    pass the filters of half of its site's GPUs, and a new filter all that are there.
    """
    matches = [(htb.match.split(), htb.minor) for htb in classes if htb.match is not None]
    if not matches:
        return
    (field,) = {field for (field, _), _ in matches}
    add = f"filter add dev {classes[0].interface} parent 1: protocol ip prio 1"
    yield f"{add} handle {_TABLE}: u32 divisor 256"
    for (_, address), minor in matches:
        bucket = int(address.rpartition(".")[2])
        yield f"{add} u32 ht {_TABLE}:{bucket:x}: match ip {field} {address}/32 flowid 1:{minor:x}"
    yield f"{add} u32 match u32 0 0 at 0 link {_TABLE}: hashkey mask 0x000000ff at {_OFFSETS[field]}"


def wan_of(fabric: Fabric) -> frozenset[int]:
    """Return the indices of the WAN links, or in the physical grain of the WAN ports."""
    return frozenset(link.index for link in links_in_grain(fabric).all if link.kind == "wan")


def classes_of(fabric: Fabric) -> tuple[HtbClass, ...]:
    """Return the classes of a fabric in its grain, port by port."""
    return _port_classes(fabric) if fabric.spec.grain == "physical" else _link_classes(fabric)


def _link_classes(fabric: Fabric) -> tuple[HtbClass, ...]:
    """Return the classes of logical links, port by port; each port's classes are numbered from 1."""
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
            hops, match = [(link.src, link.far_end)], None
        for name in (interface[hop] for hop in hops):
            minor = len(on_port[name]) + 1
            on_port[name].append(HtbClass(link=link.index, interface=name, minor=minor, match=match))
    return tuple(htb for classes in on_port.values() for htb in classes)


def _port_classes(fabric: Fabric) -> tuple[HtbClass, ...]:
    """Return the class of each directed port, in the order of ports."""
    interface = {(switch.name, port.peer): port.interface for switch in fabric.switches for port in switch.ports}
    interface |= {(gpu.name, gpu.leaf): nic_name(gpu.rank) for gpu in fabric.gpus}
    return tuple(
        HtbClass(link=port.index, interface=interface[port.src, port.far_end], minor=1, match=None)
        for port in links_in_grain(fabric).all
    )


def class_name(key: ClassKey) -> str:
    """Write a class for messages: "class 1:2 of port s0b0-eth3"."""
    return f"class 1:{key[1]:x} of port {key[0]}"


def mismatch(
    wanted: Mapping[ClassKey, int],
    held: Mapping[ClassKey, tuple[int, int]],
    children: Mapping[ClassKey, ChildClass] | None = None,
) -> str | None:
    """Describe the first class that differs from its wanted parameters in one sentence; None if there is none.

    `wanted` are ceilings in bytes/s, and also the rates of classes not in `children`; `held` are (rate, ceiling).
    """
    for key in sorted(wanted.keys() | held.keys()):
        if key not in held:
            return f"{class_name(key)} should have {8 * wanted[key]} bit/s but does not exist"
        if key not in wanted:
            return f"{class_name(key)} should not exist but has {8 * held[key][0]} bit/s"
        rate = wanted[key] if children is None or key not in children else children[key].rate
        for right, actual in zip((rate, wanted[key]), held[key], strict=True):
            if actual != right:
                return f"{class_name(key)} should have {8 * right} bit/s but has {8 * actual} bit/s"
    return None
