"""Netlink: HTB rates, netem delays, ifbs, routes, neighbours and segment sizes (rtnetlink), and Open vSwitch's drops
(generic netlink).

Netlink is exact, and `tc` is not: tc rounds printed rates to about five digits, cuts delays to whole microseconds and,
before iproute2 6.3, has no JSON for classes. One message carries many changes, and the kernel answers each with the
object's new state. The messages are defined in linux/netlink.h, rtnetlink.h, if_link.h, pkt_sched.h, gen_stats.h,
genetlink.h and openvswitch.h.
"""

import contextlib
import math
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

HEADER = struct.Struct("=IHHII")
ERROR, DONE = 2, 3
REQUEST, REQUEST_ACK, REQUEST_ECHO, REQUEST_DUMP = 0x1, 0x5, 0x9, 0x301
REQUEST_REPLACE = 0x505  # replace or create, and acknowledge
REQUEST_CREATE = 0x605  # create unless it exists, and acknowledge
_ATTRIBUTE = struct.Struct("=HH")

_RTM_NEWLINK, _RTM_DELLINK, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_INFO_KIND = 16, 17, 3, 4, 18, 1
_RTM_NEWQDISC, _RTM_DELQDISC, _RTM_GETQDISC, _RTM_NEWTCLASS, _RTM_GETTCLASS = 36, 37, 38, 40, 42
_RTM_NEWNEIGH, _NDA_DST, _NDA_LLADDR, _NUD_PERMANENT = 28, 1, 2, 0x80
_RTM_NEWROUTE, _RTM_DELROUTE, _RTA_DST, _RTA_OIF, _RTA_METRICS = 24, 25, 1, 4, 8
_RTAX_LOCK, _RTAX_INITCWND, _RTAX_RTO_MIN, _RTAX_CC_ALGO = 1, 11, 13, 16
_RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_LINK, _RTN_UNICAST = 254, 4, 253, 1
_NDMSG, _IFINFOMSG, _TCMSG = struct.Struct("=BxxxiHBB"), struct.Struct("=BxHiII"), struct.Struct("=BxxxiIII")
_IFF_UP = 1
_IFLA_GSO_IPV4_MAX_SIZE, _IFLA_GRO_IPV4_MAX_SIZE = 63, 64
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2, _TCA_STATS_BASIC, _TCA_STATS_QUEUE = 1, 2, 7, 1, 3
_TCA_HTB_PARMS, _TCA_HTB_RATE64, _TCA_HTB_CEIL64 = 1, 6, 7
_NETEM_QOPT = struct.Struct("=IIIIII")  # latency, limit, loss, gap, duplicates, jitter
_TCA_NETEM_LATENCY64, _TCA_NETEM_PRNG_SEED = 10, 14
_TCA_FQ_CODEL_CE_THRESHOLD = 7
_HTB_OPT = struct.Struct("=BBHhHI BBHhHI IIIII")  # two tc_ratespec, then bursts, quantum, level and priority
_ETHERNET = 1  # TC_LINKLAYER_ETHERNET; without it HTB also needs a rate table
_TICK_NS = 64  # bursts in tc and the kernel are times at the class's rate, in this unit
_ROOT, _INGRESS, _INGRESS_HANDLE = 0xFFFFFFFF, 0xFFFFFFF1, 0xFFFF0000
_FIRST_HANDLE = 0x10000  # of the qdisc 1:, and the difference between the handles N: and N+1:

_NETLINK_GENERIC, _SO_RCVBUFFORCE = 16, 33  # Python or its type stubs do not define these names
_GENL_ID_CTRL, _CTRL_CMD_GETFAMILY, _CTRL_ATTR_FAMILY_ID, _CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
_OVS_DP_CMD_GET, _OVS_DP_ATTR_NAME, _OVS_DP_ATTR_STATS, _OVS_DATAPATH_VERSION = 3, 1, 3, 2
_GENL_HEADER, _OVS_HEADER = struct.Struct("=BBxx"), struct.Struct("=i")
_OVS_STATISTICS = struct.Struct("=QQQQ")  # hits, misses, lost, flows

_ANSWER_BYTES = 1 << 16  # twice the kernel's largest answer; a larger buffer would be mapped for every call
_QUEUE_BYTES = 1 << 26  # the kernel answers all requests of a message before the first answer can be read
MAX_SENT_BYTES = 1 << 17
"""Most bytes in a message of a batch: the kernel takes at most net.core.wmem_default, 208 KiB by default."""

ClassId = tuple[int, int]
"""Identifies an HTB class: its interface's index and its minor number; number 0 stands for the interface itself."""


class Netem(NamedTuple):
    """A netem's parameters: the delay, the share of packets that it loses (0 to 1), and the seed from which the lost
    packets are drawn; None leaves the seed to the kernel."""

    delay_ns: int
    loss: float = 0.0
    seed: int | None = None


class ChildClass(NamedTuple):
    """The parameters of an HTB class below another: its assured rate in bytes/s, its parent's minor number, its
    priority (the lowest borrows first), and its burst as a time."""

    rate: int
    parent: int
    priority: int
    burst_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class Qdisc:
    """A queueing discipline: its interface's index, kind, and the minor number of its parent class (None for a root).

    `delay_ns` is a netem's delay, 0 for other kinds; `drops` counts the packets dropped since it was made.
    """

    interface: int
    kind: str
    parent: int | None
    delay_ns: int
    drops: int


class NetlinkSocket:
    """A netlink socket in the network namespace in which it is opened; its requests are numbered from 1."""

    def __init__(self, family: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
        self._socket.bind((0, 0))
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _answers(self, kind: int, flags: int, bodies: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
        """Send requests in one packet; yield answers without end: the request's index, the answer's kind and body."""
        first = self._sequence + 1
        self._sequence += len(bodies)
        self._socket.send(b"".join(message(kind, flags, first + index, body) for index, body in enumerate(bodies)))
        while True:
            for answer, sequence, body in messages(self._socket.recv(_ANSWER_BYTES)):
                if sequence >= first:  # others are left over from a dump that was abandoned
                    yield sequence - first, answer, body

    def _send(self, kind: int, flags: int, bodies: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Send requests in one packet; return for each its error number (0 for none) and the body of its answer."""
        answers: dict[int, tuple[int, bytes]] = {}
        if bodies:
            for index, answer, body in self._answers(kind, flags, bodies):
                answers[index] = _error(body) if answer == ERROR else 0, body
                if len(answers) == len(bodies):
                    break
        return [answers[index] for index in range(len(bodies))]

    def _dump(self, kind: int, request: bytes) -> Iterator[bytes]:
        """Yield the bodies of all objects of a kind; raises OSError if the kernel refuses."""
        for _, answer, body in self._answers(kind, REQUEST_DUMP, [request]):
            if answer == DONE:
                return
            if answer == ERROR:
                code = _error(body)
                raise OSError(code, f"the kernel refuses to list its traffic control: {os.strerror(code)}")
            yield body


class RtNetlink(NetlinkSocket):
    """Links, neighbours, routes and traffic control of the network namespace in which it is opened."""

    def __init__(self) -> None:
        super().__init__(socket.NETLINK_ROUTE)
        with contextlib.suppress(PermissionError):  # without privileges it only reads, which needs no larger buffer
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)

    def set_segment_bytes(self, interface: str, size_bytes: int) -> None:
        """Let TCP over IPv4 send segments of up to this size on the interface; kernels before 6.3 stay at 64 KiB.

        Raises OSError if there is no such interface or it does not support the size.
        """
        kinds = (_IFLA_GSO_IPV4_MAX_SIZE, _IFLA_GRO_IPV4_MAX_SIZE)
        body = _IFINFOMSG.pack(0, 0, socket.if_nametoindex(interface), 0, 0)
        body += b"".join(attribute(kind, struct.pack("=I", size_bytes)) for kind in kinds)
        ((code, _),) = self._send(_RTM_NEWLINK, REQUEST_ACK, [body])
        if code:
            raise OSError(code, f"{interface} does not support segments of {size_bytes} bytes: {os.strerror(code)}")

    def add_ifb(self, name: str, *, mtu_bytes: int) -> None:
        """Make an ifb and bring it up; raises OSError if the name is taken or the kernel does not support ifb."""
        body = _IFINFOMSG.pack(0, 0, 0, _IFF_UP, _IFF_UP)
        body += attribute(_IFLA_IFNAME, name.encode() + b"\0") + attribute(_IFLA_MTU, struct.pack("=I", mtu_bytes))
        body += attribute(_IFLA_LINKINFO, attribute(_IFLA_INFO_KIND, b"ifb"))
        ((code, _),) = self._send(_RTM_NEWLINK, REQUEST_CREATE, [body])
        if code:
            raise OSError(code, f"the ifb {name} cannot be made: {os.strerror(code)}")

    def delete_link(self, name: str) -> None:
        """Delete an interface; raises OSError if there is none of that name."""
        ((code, _),) = self._send(_RTM_DELLINK, REQUEST_ACK, [_IFINFOMSG.pack(0, 0, socket.if_nametoindex(name), 0, 0)])
        if code:
            raise OSError(code, f"{name} cannot be deleted: {os.strerror(code)}")

    def delete_ingress(self, interface: str) -> None:
        """Delete the ingress qdisc of an interface with its filters; raises OSError if it has none."""
        body = _TCMSG.pack(0, socket.if_nametoindex(interface), _INGRESS_HANDLE, _INGRESS, 0)
        ((code, _),) = self._send(_RTM_DELQDISC, REQUEST_ACK, [body])
        if code:
            raise OSError(code, f"the ingress qdisc of {interface} cannot be deleted: {os.strerror(code)}")

    def set_neighbours(self, interface: str, neighbours: Sequence[tuple[str, str]]) -> None:
        """Enter permanent neighbours, (IPv4 address, MAC address), of an interface.

        Raises OSError if there is no such interface, and for the first neighbour that the kernel refuses.
        """
        head = _NDMSG.pack(socket.AF_INET, socket.if_nametoindex(interface), _NUD_PERMANENT, 0, 0)
        bodies = [
            head
            + attribute(_NDA_DST, socket.inet_aton(address))
            + attribute(_NDA_LLADDR, bytes.fromhex(mac.replace(":", "")))
            for address, mac in neighbours
        ]
        answers = self._batch(_RTM_NEWNEIGH, REQUEST_REPLACE, bodies, what=f"{len(bodies)} neighbours of {interface}")
        for (address, _), (code, _) in zip(neighbours, answers, strict=True):
            if code:
                raise OSError(code, f"{interface} refuses the neighbour {address}: {os.strerror(code)}")

    def set_route(
        self,
        interface: str,
        address: str,
        *,
        initial_segments: int | None,
        rto_min_s: float | None = None,
        congestion_control: str | None = None,
        prefix_length: int = 32,
    ) -> None:
        """Set the route over an interface to an IPv4 address or network, with this initial congestion window in
        segments, this lower bound of TCP's retransmission timeout, in whole ms, and this congestion control; it
        replaces the namespace's.

        Without any of them the route is deleted. Raises OSError.
        """
        head = (socket.AF_INET, prefix_length, 0, 0, _RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_LINK, _RTN_UNICAST, 0)
        body = struct.pack("=8BI", *head) + attribute(_RTA_DST, socket.inet_aton(address))
        body += attribute(_RTA_OIF, struct.pack("=I", socket.if_nametoindex(interface)))
        kind, flags = _RTM_DELROUTE, REQUEST_ACK
        least_ms = None if rto_min_s is None else math.ceil(rto_min_s * 1e3)
        if values := route_metrics(initial_segments, least_ms, congestion_control):
            kind, flags = _RTM_NEWROUTE, REQUEST_REPLACE
            body += attribute(_RTA_METRICS, values)
        ((code, _),) = self._send(kind, flags, [body])
        if code:
            raise OSError(code, f"the route to {address} over {interface} could not be changed")

    def rates(self, interface: int) -> dict[ClassId, tuple[int, int]]:
        """Return rate and ceiling, bytes/s of frames, of an interface's HTB classes; empty if it does not exist."""
        dump = self._dump(_RTM_GETTCLASS, _TCMSG.pack(0, interface, 0, 0, 0))
        return dict(_held_rates(htb) for htb in map(_tc_object, dump) if htb.kind == "htb")

    def sent_bytes(self, interface: int) -> dict[ClassId, int]:
        """Return the bytes of frames that an interface's HTB classes have sent; empty if it does not exist."""
        classes = map(_tc_object, self._dump(_RTM_GETTCLASS, _TCMSG.pack(0, interface, 0, 0, 0)))
        return {(htb.interface, htb.handle & 0xFFFF): _sent_bytes(htb) for htb in classes if htb.kind == "htb"}

    def queues(self, interface: int) -> dict[ClassId, tuple[int, int]]:
        """Return the bytes of frames that an interface's HTB classes have sent, and those in the queue beneath each,
        which is 0 for a class with others below it; empty if the interface does not exist."""
        classes = map(_tc_object, self._dump(_RTM_GETTCLASS, _TCMSG.pack(0, interface, 0, 0, 0)))
        return {
            (htb.interface, htb.handle & 0xFFFF): (_sent_bytes(htb), _queued_bytes(htb))
            for htb in classes
            if htb.kind == "htb"
        }

    def change_rates(
        self,
        rates: Mapping[ClassId, int],
        *,
        burst_ns: int,
        quantum_bytes: int,
        children: Mapping[ClassId, ChildClass] | None = None,
    ) -> dict[ClassId, tuple[int, int]]:
        """Set the rates, bytes/s of frames, of existing HTB classes; return each one's new (rate, ceiling).

        For a class in `children`, `rates` has the ceiling and `children` the rate. A burst is what the class sends in
        `burst_ns`, or in its `ChildClass.burst_ns` if that is longer. Raises OSError, with the class's interface and
        number, for the first class that the kernel refuses; the classes after it are changed nevertheless.
        """
        below = children or {}
        bodies = [_htb_body(key, rate, burst_ns, quantum_bytes, below.get(key)) for key, rate in rates.items()]
        answers = self._batch(_RTM_NEWTCLASS, REQUEST_ECHO, bodies, what=f"the rates of {len(bodies)} classes")
        for ((interface, minor), rate), (code, _) in zip(rates.items(), answers, strict=True):
            if code:
                where = f"class 1:{minor:x} of interface {interface}"
                raise OSError(code, f"{where} refuses {8 * rate} bit/s: {os.strerror(code)}")
        return dict(_held_rates(_tc_object(body)) for _, body in answers)

    def change_netems(self, netems: Mapping[ClassId, Netem], *, limit_packets: int) -> None:
        """Set the parameters of existing netems: handle MINOR+1: beneath class 1:MINOR, or the root 1: if MINOR is 0.

        Raises OSError for the first netem that the kernel refuses.
        """
        bodies = [_netem_body(key, netem, limit_packets) for key, netem in netems.items()]
        answers = self._batch(_RTM_NEWQDISC, REQUEST_ACK, bodies, what=f"the delays of {len(bodies)} netems")
        for ((interface, minor), netem), (code, _) in zip(netems.items(), answers, strict=True):
            if code:
                where = f"the netem of class 1:{minor:x} of interface {interface}"
                raise OSError(code, f"{where} refuses {netem.delay_ns} ns: {os.strerror(code)}")

    def change_marks(self, marks_us: Mapping[ClassId, int]) -> None:
        """Set the waiting time, in microseconds, above which the existing fq_codel beneath each class marks a packet.

        Raises OSError for the first queue that the kernel refuses.
        """
        bodies = [_marks_body(key, us) for key, us in marks_us.items()]
        answers = self._batch(_RTM_NEWQDISC, REQUEST_ACK, bodies, what=f"the marks of {len(bodies)} queues")
        for ((interface, minor), us), (code, _) in zip(marks_us.items(), answers, strict=True):
            if code:
                where = f"the fq_codel of class 1:{minor:x} of interface {interface}"
                raise OSError(code, f"{where} refuses {us} us: {os.strerror(code)}")

    def qdiscs(self) -> list[Qdisc]:
        """Return the queueing disciplines of all interfaces."""
        return [_qdisc(_tc_object(body)) for body in self._dump(_RTM_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0))]

    def _batch(self, kind: int, flags: int, bodies: Sequence[bytes], *, what: str) -> list[tuple[int, bytes]]:
        """As `_send`, but in as many packets as needed; an OSError of the socket names `what` was to be set."""
        try:
            return [answer for part in portions(bodies) for answer in self._send(kind, flags, part)]
        except OSError as error:
            raise OSError(error.errno, f"{what} cannot be set: {error.strerror}") from None


class Datapaths(NetlinkSocket):
    """Open vSwitch's kernel datapaths in the network namespace in which it is opened.

    A packet without a flow in the kernel is passed to ovs-vswitchd, and is lost if that is too slow to read it; no
    interface and no queue counts such a drop.
    """

    def __init__(self) -> None:
        super().__init__(_NETLINK_GENERIC)

    def lost(self) -> dict[str, int]:
        """Return the packets lost since each datapath was made, by its name; empty without Open vSwitch's module."""
        family_name = attribute(_CTRL_ATTR_FAMILY_NAME, b"ovs_datapath\0")
        get_family = _GENL_HEADER.pack(_CTRL_CMD_GETFAMILY, 1) + family_name
        ((code, family),) = self._send(_GENL_ID_CTRL, REQUEST, [get_family])
        if code:
            return {}
        kind = int.from_bytes(attributes(family[_GENL_HEADER.size :])[_CTRL_ATTR_FAMILY_ID], "little")
        request = _GENL_HEADER.pack(_OVS_DP_CMD_GET, _OVS_DATAPATH_VERSION) + _OVS_HEADER.pack(0)
        lost = {}
        for datapath in [attributes(body[len(request) :]) for body in self._dump(kind, request)]:
            name = datapath[_OVS_DP_ATTR_NAME].rstrip(b"\0").decode()
            _, _, lost[name], _ = _OVS_STATISTICS.unpack_from(datapath[_OVS_DP_ATTR_STATS])
        return lost


def message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """Encode a message to the kernel."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield kind, sequence number and body of the messages in a received packet."""
    while data:
        length, kind, _, sequence, _ = HEADER.unpack_from(data)
        yield kind, sequence, data[HEADER.size : length]
        data = data[(length + 3) & ~3 :]


def attribute(kind: int, value: bytes) -> bytes:
    """Encode an attribute, padded to a multiple of four bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    """Decode the attributes of an object, by kind."""
    values = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        values[kind & 0x3FFF] = data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
    return values


def route_metrics(initial_segments: int | None, rto_min_ms: int | None, congestion_control: str | None) -> bytes:
    """Encode TCP's settings of a route, of which each may be None."""
    metrics = {} if initial_segments is None else {_RTAX_INITCWND: initial_segments}
    if rto_min_ms is not None:  # TCP heeds this metric only if it is locked
        metrics |= {_RTAX_LOCK: 1 << _RTAX_RTO_MIN, _RTAX_RTO_MIN: rto_min_ms}
    values = b"".join(attribute(metric, struct.pack("=I", value)) for metric, value in metrics.items())
    if congestion_control is not None:  # unlocked: a program may choose another on a connection
        values += attribute(_RTAX_CC_ALGO, congestion_control.encode() + b"\0")
    return values


def portions(bodies: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split the bodies of requests, in order, into parts whose messages have at most MAX_SENT_BYTES together."""
    start = used = 0
    for index, body in enumerate(bodies):
        size = HEADER.size + len(body)
        if used + size > MAX_SENT_BYTES and index > start:
            yield bodies[start:index]
            start, used = index, 0
        used += size
    if start < len(bodies):
        yield bodies[start:]


class _TcObject(NamedTuple):
    """A class or queueing discipline as the kernel reports it."""

    interface: int
    handle: int
    parent: int
    attributes: dict[int, bytes]

    @property
    def kind(self) -> str:
        return self.attributes.get(_TCA_KIND, b"").rstrip(b"\0").decode()


def _tc_object(body: bytes) -> _TcObject:
    _, interface, handle, parent, _ = _TCMSG.unpack_from(body)
    return _TcObject(interface, handle, parent, attributes(body[_TCMSG.size :]))


def _held_rates(htb_class: _TcObject) -> tuple[ClassId, tuple[int, int]]:
    options = attributes(htb_class.attributes[_TCA_OPTIONS])
    rate, ceil = struct.unpack_from("=8xI8xI", options[_TCA_HTB_PARMS])
    exact = _u64(options, _TCA_HTB_RATE64) or rate, _u64(options, _TCA_HTB_CEIL64) or ceil
    return (htb_class.interface, htb_class.handle & 0xFFFF), exact


def _sent_bytes(htb_class: _TcObject) -> int:
    return _u64(attributes(htb_class.attributes[_TCA_STATS2]), _TCA_STATS_BASIC)


def _queued_bytes(htb_class: _TcObject) -> int:
    queue = attributes(htb_class.attributes[_TCA_STATS2]).get(_TCA_STATS_QUEUE)
    return int(struct.unpack_from("=4xI", queue)[0]) if queue else 0


def _qdisc(qdisc: _TcObject) -> Qdisc:
    options = attributes(qdisc.attributes[_TCA_OPTIONS][_NETEM_QOPT.size :]) if qdisc.kind == "netem" else {}
    queue = attributes(qdisc.attributes.get(_TCA_STATS2, b"")).get(_TCA_STATS_QUEUE)
    return Qdisc(
        interface=qdisc.interface,
        kind=qdisc.kind,
        parent=None if qdisc.parent == _ROOT else qdisc.parent & 0xFFFF,
        delay_ns=_u64(options, _TCA_NETEM_LATENCY64),
        drops=struct.unpack_from("=8xI", queue)[0] if queue else 0,
    )


def _htb_body(
    class_id: ClassId, ceiling: int, burst_ns: int, quantum_bytes: int, child: ChildClass | None = None
) -> bytes:
    rate, parent, priority, child_burst_ns = child or (ceiling, 0, 0, 0)
    specs = [(0, _ETHERNET, 0, 0, 0, min(each, 0xFFFFFFFF)) for each in (rate, ceiling)]
    ticks = max(1, max(burst_ns, child_burst_ns) // _TICK_NS)
    options = attribute(_TCA_HTB_PARMS, _HTB_OPT.pack(*specs[0], *specs[1], ticks, ticks, quantum_bytes, 0, priority))
    exact = ((_TCA_HTB_RATE64, rate), (_TCA_HTB_CEIL64, ceiling))
    options += b"".join(attribute(kind, struct.pack("=Q", each)) for kind, each in exact)
    head = _TCMSG.pack(0, class_id[0], _FIRST_HANDLE + class_id[1], _FIRST_HANDLE + parent, 0)
    return head + attribute(_TCA_KIND, b"htb\0") + attribute(_TCA_OPTIONS, options)


def _netem_body(class_id: ClassId, netem: Netem, limit_packets: int) -> bytes:
    options = _NETEM_QOPT.pack(0, limit_packets, round(netem.loss * 0xFFFFFFFF), 0, 0, 0)
    options += attribute(_TCA_NETEM_LATENCY64, struct.pack("=Q", netem.delay_ns))
    if netem.seed is not None:
        options += attribute(_TCA_NETEM_PRNG_SEED, struct.pack("=Q", netem.seed))
    parent = _FIRST_HANDLE + class_id[1] if class_id[1] else _ROOT
    head = _TCMSG.pack(0, class_id[0], (class_id[1] + 1) * _FIRST_HANDLE, parent, 0)
    return head + attribute(_TCA_KIND, b"netem\0") + attribute(_TCA_OPTIONS, options)


def _marks_body(class_id: ClassId, us: int) -> bytes:
    head = _TCMSG.pack(0, class_id[0], 0, _FIRST_HANDLE + class_id[1], 0)
    options = attribute(_TCA_FQ_CODEL_CE_THRESHOLD, struct.pack("=I", us))
    return head + attribute(_TCA_KIND, b"fq_codel\0") + attribute(_TCA_OPTIONS, options)


def _error(body: bytes) -> int:
    return -int(struct.unpack_from("=i", body)[0])


def _u64(values: dict[int, bytes], kind: int) -> int:
    value = values.get(kind)
    return int.from_bytes(value[:8], "little") if value else 0
