"""Verbs devices of hosts: Linux's soft-RoCE (rxe) and soft-iWARP (siw) on a host's Ethernet interface.

The messages are defined in rdma/rdma_netlink.h.
"""

import errno
import os
from pathlib import Path

from topologies.shaping.netlink import REQUEST_ACK, NetlinkSocket, attribute

KINDS = ("rxe", "siw")
"""The kinds of devices: RoCE version 2 in UDP packets, and iWARP over TCP."""

DEVICES = Path("/dev/infiniband")
"""The folder of the devices' files; a host can open those of its own device alone."""

_NETLINK_RDMA = 20
_NEW_LINK = 5 << 10 | 3  # RDMA_NL_NLDEV and RDMA_NLDEV_CMD_NEWLINK
_DEVICE_NAME, _INTERFACE_NAME, _LINK_TYPE = 2, 51, 65


class RdmaNetlink(NetlinkSocket):
    """Verbs devices of the network namespace in which it is opened; raises OSError in a kernel without them."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_RDMA)

    def add_device(self, name: str, kind: str, interface: str) -> None:
        """Make a device of a kind on an interface, unless the interface has one; raises OSError."""
        parts = ((_DEVICE_NAME, name), (_LINK_TYPE, kind), (_INTERFACE_NAME, interface))
        body = b"".join(attribute(number, text.encode() + b"\0") for number, text in parts)
        ((code, _),) = self._send(_NEW_LINK, REQUEST_ACK, [body])
        if code not in (0, errno.EEXIST):
            raise OSError(code, f"the verbs device {name} of the kind {kind} cannot be made: {os.strerror(code)}")


def device_numbers() -> dict[str, int]:
    """Return the names and numbers of the devices' files that programs use; empty if no host has a device."""
    if not any(DEVICES.glob("uverbs*")):  # the connection manager has a file without devices, too
        return {}
    return {path.name: path.stat().st_rdev for path in DEVICES.iterdir()}
