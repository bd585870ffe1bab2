"""Packets as a file that Wireshark opens (pcap with nanoseconds), and which packets belong to a link. Pure."""

import socket
import struct

SNAP_BYTES = 256
"""As much of a packet is kept: all headers, and a little of what a chunk has in it."""

_NANOSECONDS, _ETHERNET = 0xA1B2_3C4D, 1
_HEADER = struct.Struct("<IHHiIII")
_RECORD = struct.Struct("<IIII")
_IPV4 = b"\x08\x00"


def header() -> bytes:
    """The beginning of a file."""
    return _HEADER.pack(_NANOSECONDS, 2, 4, 0, 0, SNAP_BYTES, _ETHERNET)


def record(packet: bytes, *, length: int, at_ns: int) -> bytes:
    """A packet of that length on the wire, of which `packet` has been kept, at that time since 1970."""
    seconds, ns = divmod(at_ns, 1_000_000_000)
    return _RECORD.pack(seconds, ns, len(packet), length) + packet


def belongs(packet: bytes, match: str | None) -> bool:
    """Whether a frame is what a class of `topologies.shaping` takes: "src ADDRESS", "dst ADDRESS", or all with None."""
    if match is None:
        return True
    side, address = match.split()
    place = 26 if side == "src" else 30  # Ethernet's 14 bytes, then 12 or 16 of IPv4
    return packet[12:14] == _IPV4 and packet[place : place + 4] == socket.inet_aton(address)
