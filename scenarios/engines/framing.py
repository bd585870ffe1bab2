"""What processes say to each other: whole messages of bytes over a socket, and several byte strings in one.

Nothing that arrives is run or unpickled.
"""

import json
import socket
import struct
from collections.abc import Mapping

_SIZE = struct.Struct("<Q")


def send(line: socket.socket, message: bytes) -> None:
    """Send one message; raises OSError where nobody is there to take it."""
    line.sendall(_SIZE.pack(len(message)) + message)


def receive(line: socket.socket) -> bytes:
    """The next message; raises EOFError where the other side has gone, OSError where it was cut off."""
    (size,) = _SIZE.unpack(_exactly(line, _SIZE.size))
    return _exactly(line, size)


def _exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = line.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(data)


def bundled(parts: Mapping[str, bytes]) -> bytes:
    """Byte strings by name as one."""
    head = json.dumps({name: len(part) for name, part in parts.items()}).encode()
    return b"".join([head, b"\n", *parts.values()])


def unbundled(data: bytes) -> dict[str, bytes]:
    """The byte strings that `bundled` was given."""
    head, _, body = data.partition(b"\n")
    parts, place = {}, 0
    for name, size in json.loads(head).items():
        parts[name] = body[place : place + size]
        place += size
    return parts
