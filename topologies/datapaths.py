"""Packets that an Open vSwitch of this network namespace has lost for want of a decision, asked over generic netlink.

A packet that the kernel's datapath has no flow for goes up to ovs-vswitchd, and is lost where that is too slow to read
it; no interface and no queue counts it. The messages are those of linux/genetlink.h and linux/openvswitch.h.
"""

import socket
import struct

from topologies import netlink

_NETLINK_GENERIC = 16  # mypy knows no such name in socket
_GENL_ID_CTRL, _CTRL_CMD_GETFAMILY, _CTRL_ATTR_FAMILY_ID, _CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
_OVS_DP_CMD_GET, _OVS_DP_ATTR_NAME, _OVS_DP_ATTR_STATS, _OVS_DATAPATH_VERSION = 3, 1, 3, 2
_GENL_HEADER, _OVS_HEADER = struct.Struct("=BBxx"), struct.Struct("=i")
_STATISTICS = struct.Struct("=QQQQ")  # hits, misses, lost, flows


class Datapaths:
    """A socket to the kernel's datapaths."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_GENERIC)
        self._socket.bind((0, 0))
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def lost(self) -> dict[str, int]:
        """The packets lost since each datapath was made, by its name; none where the kernel has no Open vSwitch."""
        name = netlink.attribute(_CTRL_ATTR_FAMILY_NAME, b"ovs_datapath\0")
        families = self._ask(_GENL_ID_CTRL, netlink.REQUEST, _GENL_HEADER.pack(_CTRL_CMD_GETFAMILY, 1) + name)
        if not families:
            return {}
        family = int.from_bytes(netlink.attributes(families[0])[_CTRL_ATTR_FAMILY_ID], "little")
        body = _GENL_HEADER.pack(_OVS_DP_CMD_GET, _OVS_DATAPATH_VERSION) + _OVS_HEADER.pack(0)
        found = {}
        for answer in self._ask(family, netlink.REQUEST_DUMP, body):
            told = netlink.attributes(answer[_OVS_HEADER.size :])
            _, _, lost, _ = _STATISTICS.unpack_from(told[_OVS_DP_ATTR_STATS])
            found[told[_OVS_DP_ATTR_NAME].rstrip(b"\0").decode()] = lost
        return found

    def _ask(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        """What the kernel answers, without the headers; nothing where it knows no such thing."""
        self._sequence += 1
        self._socket.send(netlink.message(kind, flags, self._sequence, body))
        found: list[bytes] = []
        while True:
            for answer, sequence, message in netlink.messages(self._socket.recv(1 << 16)):
                if sequence != self._sequence:
                    continue
                if answer in (netlink.ERROR, netlink.DONE):
                    return found
                found.append(message[_GENL_HEADER.size :])
            if flags == netlink.REQUEST:
                return found
