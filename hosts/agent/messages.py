"""The messages that agents exchange with the communicator and with each other, as bytes.

Control messages are JSON objects, each a packet of its own on a socket pair (SOCK_SEQPACKET) that only the communicator
and one agent have. A command has its name under "do"; an answer is {"error": SENTENCE} where the command failed. A
ring connection begins with a hello, which holds the run's token, and goes on with chunks, each followed by its label.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

MAX_MESSAGE_BYTES = 1 << 16
TOKEN_BYTES = 32

_LABEL = struct.Struct("!4sHxxQQ")  # magic, rank, collective, chunk_bytes
_LABEL_MAGIC = b"LHch"
LABEL_BYTES = _LABEL.size

_HELLO = struct.Struct(f"!4sHxxQ{TOKEN_BYTES}s")  # magic, rank, epoch, token
_HELLO_MAGIC = b"LHhi"
HELLO_BYTES = _HELLO.size


def send(control: socket.socket, message: Mapping[str, object]) -> None:
    """Send a control message; raises ValueError for one of more than MAX_MESSAGE_BYTES, OSError."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a control message of {len(data)} bytes: the maximum is {MAX_MESSAGE_BYTES}")
    control.sendall(data)


def receive(control: socket.socket) -> dict[str, Any] | None:
    """The next control message, None once the other end is closed; raises ValueError for what is not one."""
    try:
        data = control.recv(MAX_MESSAGE_BYTES + 1)
    except ConnectionResetError:  # it was closed with messages of ours unread
        return None
    if not data:
        return None
    found = json.loads(data) if len(data) <= MAX_MESSAGE_BYTES else None
    if not isinstance(found, dict):
        raise ValueError(f"not a control message: {data[:60]!r}")
    return found


def label(*, collective: int, rank: int, chunk_bytes: int) -> bytes:
    """The label of a chunk: its collective, the rank it began at and its length."""
    return _LABEL.pack(_LABEL_MAGIC, rank, collective, chunk_bytes)


def label_fault(data: bytes, *, collective: int, rank: int, chunk_bytes: int) -> str | None:
    """How a received label differs from that of the expected chunk, as a sentence; None if it does not."""
    if data == label(collective=collective, rank=rank, chunk_bytes=chunk_bytes):
        return None
    magic, found_rank, found_collective, found_bytes = _LABEL.unpack(data)
    if magic != _LABEL_MAGIC:
        return f"its label begins with {magic!r}"
    return (
        f"its label is that of chunk {found_rank} of collective {found_collective} with {found_bytes} bytes, "
        f"not chunk {rank} of collective {collective} with {chunk_bytes}"
    )


def hello(*, epoch: int, rank: int, token: bytes) -> bytes:
    """The first bytes on a ring connection: the number of the ring, the rank that connects, the run's token."""
    return _HELLO.pack(_HELLO_MAGIC, rank, epoch, token)


def parse_hello(data: bytes) -> tuple[int, int, bytes] | None:
    """Epoch, rank and token of a hello; None where the bytes are not one."""
    if len(data) != HELLO_BYTES or not data.startswith(_HELLO_MAGIC):
        return None
    _, rank, epoch, token = _HELLO.unpack(data)
    return epoch, rank, token
