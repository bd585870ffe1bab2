"""Memory for what has arrived and is still needed: buffers of one size, made once and used again.

A large buffer can be sent without a copy: it is lent to the kernel until the receiver has read it.
"""

import mmap
import socket
import struct
from contextlib import suppress

from hosts.agent.transport import completed

LENT = 1
"""Buffers that are lent at a time; an agent has so many more. With one, 17 of 18 messages of a ring were not copied."""
LEAST_LENT_BYTES = 1 << 18  # a smaller message is copied faster than its pages are looked up
_BLOCK_BYTES = 1 << 18
_SOL_PACKET, _PACKET_RX_RING = 263, 5  # Python has no names for them


class Buffers:
    """A free list of buffers of `size_bytes`, more of which are made when it is empty; and `scratch`, so many bytes for
    what nobody keeps.

    None is lent where `is_added_to`: the process itself then writes in them, and pays in the VM for the first time that
    it does in each page of a buffer that can be lent.
    """

    def __init__(self, size_bytes: int, *, scratch_bytes: int, is_added_to: bool = False) -> None:
        self._size_bytes, self._lendable = size_bytes, 0 if is_added_to or size_bytes < LEAST_LENT_BYTES else LENT
        self.scratch = filled(scratch_bytes)
        self._free: list[memoryview] = []
        self._lent: list[tuple[socket.socket, memoryview]] = []
        self.made = 0

    def prepare(self, count: int) -> None:
        """Have so many that are not lent; those that were are free again, as their connections have gone."""
        self._free += [buffer for _, buffer in self._lent]
        self._lent = []
        while self.made < (count and count + self._lendable):
            self._free.append(self._make())

    def take(self) -> memoryview:
        """A buffer that nobody uses."""
        return self._free.pop() if self._free else self._make()

    def give_back(self, buffer: memoryview) -> None:
        """Let a buffer be used again."""
        self._free.append(buffer)

    def can_lend(self) -> bool:
        """Whether one more may be lent."""
        for connection in {connection for connection, _ in self._lent}:
            self._take_back(connection, completed(connection))
        return len(self._lent) < self._lendable

    def lend(self, buffer: memoryview, connection: socket.socket) -> None:
        """Let a buffer, which was sent on a connection without a copy, be used again when the receiver has read it."""
        self._lent.append((connection, buffer))

    def _take_back(self, connection: socket.socket, count: int) -> None:
        """Let the first buffers that were lent to a connection, so many of them, be used again."""
        left = []
        for borrower, buffer in self._lent:
            if borrower is connection and count:
                self._free.append(buffer)
                count -= 1
            else:
                left.append((borrower, buffer))
        self._lent = left

    def _make(self) -> memoryview:
        self.made += 1
        if self._lendable:
            with suppress(PermissionError):  # ordinary memory is right, too, but its segments are cut at 17 pages
                return _contiguous(self._size_bytes)
        return filled(self._size_bytes)


def filled(size_bytes: int) -> memoryview:
    """Memory that the kernel has filled in one go: a process that touches its pages one by one pays for each of them
    in the VM."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return memoryview(mmap.mmap(-1, size_bytes, flags))


def _contiguous(size_bytes: int) -> memoryview:
    """The same in blocks of adjacent pages; raises PermissionError where the process may not have them.

    A segment of TCP has up to 17 fragments, each of which is adjacent memory. In pages of 4 KiB that is much less than
    a segment holds when it is copied, so the times would be others. Without huge pages the ring of a packet socket is
    what has larger blocks; this socket receives nothing.
    """
    blocks = -(-size_bytes // _BLOCK_BYTES)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as ring:
        ring.setsockopt(_SOL_PACKET, _PACKET_RX_RING, struct.pack("=4I", *(_BLOCK_BYTES, blocks) * 2))
        found = mmap.mmap(ring.fileno(), blocks * _BLOCK_BYTES)
    return memoryview(found)[:size_bytes]
