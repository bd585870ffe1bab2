"""What the kernel holds of traffic control, exactly: rates in bytes/s, delays in ns and drops, asked over rtnetlink.

tc itself rounds a rate to five digits or so when it prints one, and before iproute2 6.3 it has no JSON for classes.
Sets what that iproute2 cannot: how large TCP's segments may be, delays to the nanosecond, and the rates of many
classes at once, each answered by what the class then holds. The messages are those of linux/rtnetlink.h,
linux/if_link.h, linux/pkt_sched.h and linux/gen_stats.h.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topologies import netlink

_RTM_NEWLINK, _RTM_NEWQDISC, _RTM_GETQDISC, _RTM_NEWTCLASS, _RTM_GETTCLASS = 16, 36, 38, 40, 42
_IFINFOMSG = struct.Struct("=BxHiII")
_IFLA_GSO_IPV4_MAX_SIZE, _IFLA_GRO_IPV4_MAX_SIZE = 63, 64
_TCMSG = struct.Struct("=BxxxiIII")
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2, _TCA_STATS_QUEUE = 1, 2, 7, 3
_TCA_HTB_PARMS, _TCA_HTB_RATE64, _TCA_HTB_CEIL64 = 1, 6, 7
_NETEM_QOPT, _TCA_NETEM_LATENCY64 = struct.Struct("=IIIIII"), 10  # latency, limit, loss, gap, duplicates, jitter
_HTB_OPT = struct.Struct("=BBHhHI BBHhHI IIIII")  # two tc_ratespec, then bursts, quantum, level and priority
_ETHERNET = 1  # TC_LINKLAYER_ETHERNET; without it HTB wants a table of times besides
_TICK_NS = 64  # what tc and the kernel count bursts in, as the time that they take at the class's rate
_ROOT = 0xFFFFFFFF
_FIRST_HANDLE = 0x10000  # of the qdisc 1:, and how far apart such handles are
_SO_RCVBUFFORCE = 33  # Python has no name for it
_ANSWER_BYTES = 1 << 16  # twice what the kernel puts into one; a larger buffer is new memory each time, which costs
_QUEUE_BYTES = 1 << 26  # the kernel answers all requests of a batch before we can read the first answer


@dataclass(frozen=True, kw_only=True)
class HtbRate:
    """A rate for the class 1:`minor` of the interface with this index, in bytes/s of frames, with the burst it may
    save up: what it sends in `burst_ns`, and one priority for all."""

    interface: int
    minor: int
    rate: int
    burst_ns: int
    quantum: int


@dataclass(frozen=True, kw_only=True)
class NetemDelay:
    """A delay for the netem MINOR+1: that hangs under the class 1:`minor` of the interface with this index, how many
    packets it may hold, and the share of them that it loses, from 0 to 1."""

    interface: int
    minor: int
    delay_ns: int
    limit: int
    loss: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HtbClass:
    """An HTB class: its interface's index, the minor number of its id, the rates it holds in bytes/s of frames, and
    packets dropped."""

    interface: int
    minor: int
    rate: int
    ceil: int
    drops: int


@dataclass(frozen=True, kw_only=True)
class Qdisc:
    """A queueing discipline: its interface's index, the minor number of the class it hangs under (None for a root).

    `delay_ns` is netem's, 0 for other kinds; `drops` are packets since it was made.
    """

    interface: int
    kind: str
    parent: int | None
    delay_ns: int
    drops: int


class RtNetlink:
    """A socket to the traffic control of the network namespace it is opened in."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        with contextlib.suppress(PermissionError):  # who only reads needs no more than anyone has
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def set_segment_bytes(self, interface: str, size_bytes: int) -> None:
        """Let TCP over IPv4 hand the interface segments of up to this size; a kernel before 6.3 stays at 64 KiB.

        Raises OSError where there is no such interface and for a size beyond what it takes.
        """
        kinds = (_IFLA_GSO_IPV4_MAX_SIZE, _IFLA_GRO_IPV4_MAX_SIZE)
        attributes = b"".join(netlink.attribute(kind, struct.pack("=I", size_bytes)) for kind in kinds)
        body = _IFINFOMSG.pack(0, 0, socket.if_nametoindex(interface), 0, 0) + attributes
        self._send(_RTM_NEWLINK, netlink.REQUEST_ACK, body)
        (code,) = struct.unpack_from("=i", self._socket.recv(_ANSWER_BYTES), netlink.HEADER.size)
        if code:
            raise OSError(-code, f"{interface} does not take segments of {size_bytes} bytes: {os.strerror(-code)}")

    def classes(self, interface: int) -> list[HtbClass]:
        """The HTB classes of the interface with this index; none where there is no such interface."""
        dump = self._dump(_RTM_GETTCLASS, interface)
        return [_htb_class(item) for item in dump if item[3].get(_TCA_KIND, b"").rstrip(b"\0") == b"htb"]

    def change_classes(self, rates: Sequence[HtbRate]) -> list[HtbClass]:
        """Give classes that exist these rates, in one go, and return what the kernel then holds of each, in order.

        Raises OSError, with the class's interface and number, for the first that the kernel refuses; those behind it
        are changed all the same.
        """
        held = []
        bodies = [_htb_body(rate) for rate in rates]
        for wanted, (code, message) in zip(
            rates, self._batch(_RTM_NEWTCLASS, netlink.REQUEST_ECHO, bodies), strict=True
        ):
            if code:
                where = f"class 1:{wanted.minor:x} of interface {wanted.interface}"
                raise OSError(code, f"{where} does not take {8 * wanted.rate} bit/s: {os.strerror(code)}")
            held.append(_htb_class(_tc_object(message)))
        return held

    def change_delays(self, delays: Sequence[NetemDelay]) -> None:
        """Give netems that exist these delays; raises OSError for the first that the kernel refuses."""
        bodies = [_netem_body(delay) for delay in delays]
        for wanted, (code, _) in zip(delays, self._batch(_RTM_NEWQDISC, netlink.REQUEST_ACK, bodies), strict=True):
            if code:
                where = f"the netem of class 1:{wanted.minor:x} of interface {wanted.interface}"
                raise OSError(code, f"{where} does not take {wanted.delay_ns} ns: {os.strerror(code)}")

    def _batch(self, kind: int, flags: int, bodies: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Send requests at once; the answer to each, in order: an error's number (0 for none), and the message."""
        first = self._sequence + 1
        self._socket.send(b"".join(self._message(kind, flags, body) for body in bodies))
        found: dict[int, tuple[int, bytes]] = {}
        while len(found) < len(bodies):
            for answer, sequence, message in netlink.messages(self._socket.recv(_ANSWER_BYTES)):
                if sequence >= first:  # others are left over from a dump that was given up
                    code = -struct.unpack_from("=i", message)[0] if answer == netlink.ERROR else 0
                    found[sequence - first] = code, message
        return [found[place] for place in range(len(bodies))]

    def qdiscs(self) -> list[Qdisc]:
        """The queueing disciplines of all interfaces."""
        found = []
        for interface, _, parent, attributes in self._dump(_RTM_GETQDISC, 0):
            kind = attributes[_TCA_KIND].rstrip(b"\0").decode()
            delay_ns = 0
            if kind == "netem":
                delay_ns = _u64(netlink.attributes(attributes[_TCA_OPTIONS][_NETEM_QOPT.size :]), _TCA_NETEM_LATENCY64)
            found.append(
                Qdisc(
                    interface=interface,
                    kind=kind,
                    parent=None if parent == _ROOT else parent & 0xFFFF,
                    delay_ns=delay_ns,
                    drops=_drops(attributes),
                )
            )
        return found

    def _dump(self, kind: int, interface: int) -> Iterator["_TcObject"]:
        """Interface, handle, parent and attributes of everything of a kind."""
        self._send(kind, netlink.REQUEST_DUMP, _TCMSG.pack(0, interface, 0, 0, 0))
        while True:
            for answer, sequence, message in netlink.messages(self._socket.recv(_ANSWER_BYTES)):
                if sequence != self._sequence:
                    continue  # left over from a dump that was given up
                if answer == netlink.DONE:
                    return
                if answer == netlink.ERROR:
                    code = -struct.unpack_from("=i", message)[0]
                    raise OSError(code, f"the kernel does not tell its traffic control: {os.strerror(code)}")
                yield _tc_object(message)

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._socket.send(self._message(kind, flags, body))

    def _message(self, kind: int, flags: int, body: bytes) -> bytes:
        self._sequence += 1
        return netlink.message(kind, flags, self._sequence, body)


_TcObject = tuple[int, int, int, dict[int, bytes]]
"""Interface, handle, parent and attributes of something of traffic control."""


def _tc_object(message: bytes) -> _TcObject:
    _, interface, handle, parent, _ = _TCMSG.unpack_from(message)
    return interface, handle, parent, netlink.attributes(message[_TCMSG.size :])


def _htb_class(found: _TcObject) -> HtbClass:
    interface, handle, _, attributes = found
    options = netlink.attributes(attributes[_TCA_OPTIONS])
    rate, ceil = struct.unpack_from("=8xI8xI", options[_TCA_HTB_PARMS])
    return HtbClass(
        interface=interface,
        minor=handle & 0xFFFF,
        rate=_u64(options, _TCA_HTB_RATE64) or rate,
        ceil=_u64(options, _TCA_HTB_CEIL64) or ceil,
        drops=_drops(attributes),
    )


def _htb_body(wanted: HtbRate) -> bytes:
    spec = (0, _ETHERNET, 0, 0, 0, min(wanted.rate, 0xFFFFFFFF))
    ticks = max(1, wanted.burst_ns // _TICK_NS)
    parameters = _HTB_OPT.pack(*spec, *spec, ticks, ticks, wanted.quantum, 0, 0)
    options = netlink.attribute(_TCA_HTB_PARMS, parameters)
    options += b"".join(
        netlink.attribute(kind, struct.pack("=Q", wanted.rate)) for kind in (_TCA_HTB_RATE64, _TCA_HTB_CEIL64)
    )
    message = _TCMSG.pack(0, wanted.interface, _FIRST_HANDLE + wanted.minor, _FIRST_HANDLE, 0)
    return message + netlink.attribute(_TCA_KIND, b"htb\0") + netlink.attribute(_TCA_OPTIONS, options)


def _netem_body(wanted: NetemDelay) -> bytes:
    options = _NETEM_QOPT.pack(0, wanted.limit, round(wanted.loss * 0xFFFFFFFF), 0, 0, 0)
    options += netlink.attribute(_TCA_NETEM_LATENCY64, struct.pack("=Q", wanted.delay_ns))
    handle = (wanted.minor + 1) * _FIRST_HANDLE
    message = _TCMSG.pack(0, wanted.interface, handle, _FIRST_HANDLE + wanted.minor, 0)
    return message + netlink.attribute(_TCA_KIND, b"netem\0") + netlink.attribute(_TCA_OPTIONS, options)


def _u64(attributes: dict[int, bytes], kind: int) -> int:
    value = attributes.get(kind)
    return int.from_bytes(value[:8], "little") if value else 0


def _drops(attributes: dict[int, bytes]) -> int:
    statistics = netlink.attributes(attributes.get(_TCA_STATS2, b""))
    queue = statistics.get(_TCA_STATS_QUEUE)
    return int(struct.unpack_from("=II I", queue)[2]) if queue else 0
