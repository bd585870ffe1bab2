"""The framing that all families of netlink share: messages, and attributes within them (linux/netlink.h)."""

import struct
from collections.abc import Iterator

HEADER = struct.Struct("=IHHII")
ERROR, DONE = 2, 3
REQUEST, REQUEST_ACK, REQUEST_ECHO, REQUEST_DUMP = 0x1, 0x5, 0x9, 0x301
_ATTRIBUTE = struct.Struct("=HH")


def message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """A message to the kernel."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Kind, sequence number and body of the messages in what was received at once."""
    while data:
        length, kind, _, sequence, _ = HEADER.unpack_from(data)
        yield kind, sequence, data[HEADER.size : length]
        data = data[(length + 3) & ~3 :]


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute, filled up to a multiple of four bytes as the kernel wants it."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes that something is made of, by their kinds."""
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        found[kind & 0x3FFF] = data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
    return found
