"""What the kernel holds of traffic control, exactly: rates in bytes/s, delays in ns and drops, asked over rtnetlink.

tc itself rounds a rate to five digits or so when it prints one, and before iproute2 6.3 it has no JSON for classes.
Sets only what that iproute2 cannot: how large TCP's segments may be. The messages are those of linux/rtnetlink.h,
linux/if_link.h, linux/pkt_sched.h and linux/gen_stats.h.
"""

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST_DUMP, _NLM_F_REQUEST_ACK = 0x301, 0x5
_RTM_NEWLINK, _RTM_GETQDISC, _RTM_GETTCLASS = 16, 38, 42
_IFINFOMSG = struct.Struct("=BxHiII")
_IFLA_GSO_IPV4_MAX_SIZE, _IFLA_GRO_IPV4_MAX_SIZE = 63, 64
_HEADER, _TCMSG, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxxxiIII"), struct.Struct("=HH")
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2, _TCA_STATS_QUEUE = 1, 2, 7, 3
_TCA_HTB_PARMS, _TCA_HTB_RATE64, _TCA_HTB_CEIL64 = 1, 6, 7
_NETEM_QOPT_BYTES, _TCA_NETEM_LATENCY64 = 24, 10
_ROOT = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class HtbClass:
    """An HTB class: the minor number of its id, the rates it holds in bytes/s of frames, and packets dropped."""

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
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def set_segment_bytes(self, interface: str, size_bytes: int) -> None:
        """Let TCP over IPv4 hand the interface segments of up to this size; a kernel before 6.3 stays at 64 KiB.

        Raises OSError where there is no such interface and for a size beyond what it takes.
        """
        kinds = (_IFLA_GSO_IPV4_MAX_SIZE, _IFLA_GRO_IPV4_MAX_SIZE)
        attributes = b"".join(_ATTRIBUTE.pack(8, kind) + struct.pack("=I", size_bytes) for kind in kinds)
        body = _IFINFOMSG.pack(0, 0, socket.if_nametoindex(interface), 0, 0) + attributes
        self._send(_RTM_NEWLINK, _NLM_F_REQUEST_ACK, body)
        (code,) = struct.unpack_from("=i", self._socket.recv(1 << 16), _HEADER.size)
        if code:
            raise OSError(-code, f"{interface} does not take segments of {size_bytes} bytes: {os.strerror(-code)}")

    def classes(self, interface: int) -> list[HtbClass]:
        """The HTB classes of the interface with this index; none where there is no such interface."""
        found = []
        for _, handle, _, attributes in self._dump(_RTM_GETTCLASS, interface):
            if attributes.get(_TCA_KIND, b"").rstrip(b"\0") == b"htb":
                options = _attributes(attributes[_TCA_OPTIONS])
                rate, ceil = struct.unpack_from("=8xI8xI", options[_TCA_HTB_PARMS])
                found.append(
                    HtbClass(
                        minor=handle & 0xFFFF,
                        rate=_u64(options, _TCA_HTB_RATE64) or rate,
                        ceil=_u64(options, _TCA_HTB_CEIL64) or ceil,
                        drops=_drops(attributes),
                    )
                )
        return found

    def qdiscs(self) -> list[Qdisc]:
        """The queueing disciplines of all interfaces."""
        found = []
        for interface, _, parent, attributes in self._dump(_RTM_GETQDISC, 0):
            kind = attributes[_TCA_KIND].rstrip(b"\0").decode()
            delay_ns = 0
            if kind == "netem":
                delay_ns = _u64(_attributes(attributes[_TCA_OPTIONS][_NETEM_QOPT_BYTES:]), _TCA_NETEM_LATENCY64)
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

    def _dump(self, kind: int, interface: int) -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
        """Interface, handle, parent and attributes of everything of a kind."""
        self._send(kind, _NLM_F_REQUEST_DUMP, _TCMSG.pack(0, interface, 0, 0, 0))
        while True:
            data = self._socket.recv(1 << 20)
            while data:
                length, answer, _, sequence, _ = _HEADER.unpack_from(data)
                message, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
                if sequence != self._sequence:
                    continue  # left over from a dump that was given up
                if answer == _NLMSG_DONE:
                    return
                if answer == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", message)[0]
                    raise OSError(code, f"the kernel does not tell its traffic control: {os.strerror(code)}")
                _, index, handle, parent, _ = _TCMSG.unpack_from(message)
                yield index, handle, parent, _attributes(message[_TCMSG.size :])

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._sequence += 1
        self._socket.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, self._sequence, 0) + body)


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        found[kind & 0x3FFF] = data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
    return found


def _u64(attributes: dict[int, bytes], kind: int) -> int:
    value = attributes.get(kind)
    return int.from_bytes(value[:8], "little") if value else 0


def _drops(attributes: dict[int, bytes]) -> int:
    statistics = _attributes(attributes.get(_TCA_STATS2, b""))
    queue = statistics.get(_TCA_STATS_QUEUE)
    return int(struct.unpack_from("=II I", queue)[2]) if queue else 0
