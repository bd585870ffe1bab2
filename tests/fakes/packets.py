"""Sizes of packets, and the packets in captures."""

import struct

HEADERS = 9014 / (9000 - 52)
"""The size of a full frame over its payload."""


def pcap_lengths(data: bytes) -> list[int]:
    """Return the lengths on the wire of the packets in a pcap file."""
    found, at = [], 24
    while at < len(data):
        kept, length = struct.unpack_from("<II", data, at + 8)
        found.append(length)
        at += 16 + kept
    return found
