"""Bytes on the connections between ranks: hellos, labels of collectives' messages, headers of point-to-point messages.

A label has the bytes of the testbed's own (`hosts.agent.messages`), so that messages take the same time on the wire.
Its field `collective` holds the collective's number and, in its upper 16 bits, the kind, so that ranks which disagree
can say about what.
"""

import struct
from typing import NamedTuple

KINDS = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter")
"""The kinds of collectives, in the order of their numbers on the wire."""

TOKEN_BYTES = 32
COLLECTIVES, MESSAGES = 0, 1
"""What a connection carries: the messages of collectives, or point-to-point messages."""

_LABEL = struct.Struct("!4sIQQ")  # magic, task, collective, length
_LABEL_MAGIC = b"LHms"
LABEL_BYTES = _LABEL.size

_HELLO = struct.Struct(f"!4sIIB{TOKEN_BYTES}s")  # magic, rank, channel, what it carries, token
_HELLO_MAGIC = b"LHtb"
HELLO_BYTES = _HELLO.size

_HEADER = struct.Struct("!4sqQ")  # magic, tag, length
_HEADER_MAGIC = b"LHpp"
HEADER_BYTES = _HEADER.size

_KIND_SHIFT = 48


class Label(NamedTuple):
    """What a label tells: the task in the schedule, the collective (`collective_of`) and the message's bytes."""

    task: int
    collective: int
    size_bytes: int


def label(*, collective: int, task: int, size_bytes: int) -> bytes:
    """Return the label of a message."""
    return _LABEL.pack(_LABEL_MAGIC, task, collective, size_bytes)


def parse_label(data: bytes) -> Label | None:
    """Return what a label tells; None if the bytes are no label."""
    if len(data) != LABEL_BYTES or not data.startswith(_LABEL_MAGIC):
        return None
    _, task, collective, size = _LABEL.unpack(data)
    return Label(task, collective, size)


def find_label(data: bytes) -> Label | None:
    """Return the first label that stands where it says that its message ends, given bytes from the message's start."""
    at = data.find(_LABEL_MAGIC)
    while at >= 0:
        found = parse_label(data[at : at + LABEL_BYTES])
        if found is not None and found.size_bytes == at:
            return found
        at = data.find(_LABEL_MAGIC, at + 1)
    return None


def collective_of(number: int, kind: str) -> int:
    """Return a label's field `collective` for a group's collective of this number and kind."""
    return number | KINDS.index(kind) << _KIND_SHIFT


def described(found: Label) -> str:
    """Return the message of a label in words."""
    kind, number = found.collective >> _KIND_SHIFT, found.collective & (1 << _KIND_SHIFT) - 1
    name = KINDS[kind] if kind < len(KINDS) else f"kind {kind}"
    return f"transfer {found.task} of {name} number {number} with {found.size_bytes} bytes"


def hello(*, rank: int, channel: int, carries: int, token: bytes) -> bytes:
    """Return the first bytes on a connection: the rank that connects, the channel, what it carries, and the token."""
    return _HELLO.pack(_HELLO_MAGIC, rank, channel, carries, token)


def parse_hello(data: bytes) -> tuple[int, int, int, bytes] | None:
    """Return rank, channel, what the connection carries, and token; None if the bytes are no hello."""
    if len(data) != HELLO_BYTES or not data.startswith(_HELLO_MAGIC):
        return None
    _, rank, channel, carries, token = _HELLO.unpack(data)
    return rank, channel, carries, token


def header(*, tag: int, size_bytes: int) -> bytes:
    """Return the bytes before a point-to-point message."""
    return _HEADER.pack(_HEADER_MAGIC, tag, size_bytes)


def parse_header(data: bytes) -> tuple[int, int] | None:
    """Return tag and bytes of a point-to-point message; None if the bytes are no header."""
    if len(data) != HEADER_BYTES or not data.startswith(_HEADER_MAGIC):
        return None
    _, tag, size = _HEADER.unpack(data)
    return tag, size
