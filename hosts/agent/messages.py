"""Wire formats: control messages between communicator and agents, and hellos and labels between agents.

Control messages are JSON objects on a socket pair (SOCK_SEQPACKET) that only the communicator and one agent hold. A
message takes as many packets as it needs: a packet begins with the byte "+" if more follow, and with "." if it is the
last. A command has its name under "do"; the answer to a failed command is {"error": SENTENCE}. A connection between
agents begins with a hello, which holds the run's token; then come messages, each followed by its label.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

PACKET_BYTES = 1 << 15
MAX_MESSAGE_BYTES = 1 << 26
TOKEN_BYTES = 32

_MORE, _LAST = b"+", b"."
_LABEL = struct.Struct("!4sIQQ")  # magic, task, collective, length
_LABEL_MAGIC = b"LHms"
LABEL_BYTES = _LABEL.size

_HELLO = struct.Struct(f"!4sHHQ{TOKEN_BYTES}s")  # magic, rank, channel, epoch, token
_HELLO_MAGIC = b"LHhi"
HELLO_BYTES = _HELLO.size


def send(control: socket.socket, message: Mapping[str, object]) -> None:
    """Send a control message. Raises OSError, and ValueError if it has more than MAX_MESSAGE_BYTES."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a control message of {len(data)} bytes: the maximum is {MAX_MESSAGE_BYTES}")
    for at in range(0, len(data), PACKET_BYTES):
        part = data[at : at + PACKET_BYTES]
        control.sendall((_MORE if at + PACKET_BYTES < len(data) else _LAST) + part)


def receive(control: socket.socket) -> dict[str, Any] | None:
    """Return the next control message, or None if the other end is closed. Raises ValueError for malformed data."""
    data, packet = bytearray(), _MORE
    while packet[:1] == _MORE and len(data) <= MAX_MESSAGE_BYTES:
        try:
            packet = control.recv(PACKET_BYTES + 2)
        except ConnectionResetError:  # the other end closed without reading our last messages
            return None
        if not packet:
            return None
        data += packet[1:]
    is_complete = packet[:1] == _LAST and len(packet) <= PACKET_BYTES + 1
    message = json.loads(data) if is_complete else None
    if not isinstance(message, dict):
        raise ValueError(f"not a control message: {bytes(data[:60])!r}")
    return message


def label(*, collective: int, task: int, size_bytes: int) -> bytes:
    """Return the label of a message: its collective, its task in the schedule, and its length."""
    return _LABEL.pack(_LABEL_MAGIC, task, collective, size_bytes)


def label_fault(data: bytes, *, collective: int, task: int, size_bytes: int) -> str | None:
    """Return how a received label differs from that of the expected message, as a sentence; None if it does not."""
    if data == label(collective=collective, task=task, size_bytes=size_bytes):
        return None
    magic, found_task, found_collective, found_bytes = _LABEL.unpack(data)
    if magic != _LABEL_MAGIC:
        return f"its label begins with {magic!r}"
    return (
        f"its label is that of transfer {found_task} of collective {found_collective} with {found_bytes} bytes, "
        f"not transfer {task} of collective {collective} with {size_bytes}"
    )


def hello(*, epoch: int, rank: int, channel: int, token: bytes) -> bytes:
    """Return a hello, the first bytes on a connection: epoch, rank that connects, channel, and the run's token."""
    return _HELLO.pack(_HELLO_MAGIC, rank, channel, epoch, token)


def parse_hello(data: bytes) -> tuple[int, int, int, bytes] | None:
    """Return epoch, rank, channel and token of a hello; None if the bytes are not a hello."""
    if len(data) != HELLO_BYTES or not data.startswith(_HELLO_MAGIC):
        return None
    _, rank, channel, epoch, token = _HELLO.unpack(data)
    return epoch, rank, channel, token
