"""Pool of equal-sized buffers for slots that have arrived and are still needed; buffers are allocated once and reused.

A large buffer can be sent without a copy (MSG_ZEROCOPY): it is then lent to the kernel until the receiver has read it.
"""

import mmap
import socket
import struct
from contextlib import suppress

from hosts.agent.transport import completed

LENT = 1
"""Maximum number of buffers lent at a time; an agent allocates this many in addition to those of its program. With one,
17 of 18 messages of a ring were sent without a copy."""
MIN_LENT_BYTES = 1 << 18  # copying a smaller message is faster than looking up its pages
_BLOCK_BYTES = 1 << 18
_SOL_PACKET, _PACKET_RX_RING = 263, 5  # not in Python's socket module


class Buffers:
    """A free list of buffers of `size_bytes` each, which grows on demand, and `scratch`, `scratch_bytes` of memory for
    data that is not kept.

    With `is_added_to` no buffer is lent. The process then writes to the buffers itself (sums), and in the VM its first
    write to each page of a lendable buffer is expensive.
    """

    def __init__(self, size_bytes: int, *, scratch_bytes: int, is_added_to: bool = False) -> None:
        self._size_bytes, self._lendable = size_bytes, 0 if is_added_to or size_bytes < MIN_LENT_BYTES else LENT
        self.scratch = filled(scratch_bytes)
        self._free: list[memoryview] = []
        self._lent: list[tuple[socket.socket, memoryview]] = []
        self.made = 0

    def prepare(self, count: int) -> None:
        """Allocate buffers until there are `count`, plus those that may be lent, and reclaim lent buffers."""
        self._free += [buffer for _, buffer in self._lent]  # the connections that borrowed them have been closed
        self._lent = []
        while self.made < (count and count + self._lendable):
            self._free.append(self._allocate())

    def take(self) -> memoryview:
        """Take a buffer from the free list, or allocate one if the list is empty."""
        return self._free.pop() if self._free else self._allocate()

    def give_back(self, buffer: memoryview) -> None:
        """Return a buffer to the free list."""
        self._free.append(buffer)

    def can_lend(self) -> bool:
        """Return whether one more buffer may be lent, after reclaiming those whose transmission has completed."""
        for connection in {connection for connection, _ in self._lent}:
            self._reclaim(connection, completed(connection))
        return len(self._lent) < self._lendable

    def lend(self, buffer: memoryview, connection: socket.socket) -> None:
        """Lend the kernel a buffer that was sent without a copy; it becomes free when the transmission completes."""
        self._lent.append((connection, buffer))

    def _reclaim(self, connection: socket.socket, count: int) -> None:
        """Move the first `count` buffers lent to a connection back to the free list."""
        remaining = []
        for borrower, buffer in self._lent:
            if borrower is connection and count:
                self._free.append(buffer)
                count -= 1
            else:
                remaining.append((borrower, buffer))
        self._lent = remaining

    def _allocate(self) -> memoryview:
        self.made += 1
        if self._lendable:
            with suppress(PermissionError):  # ordinary memory works, too, but limits a segment to 17 pages
                return _contiguous(self._size_bytes)
        return filled(self._size_bytes)


def filled(size_bytes: int) -> memoryview:
    """Return anonymous memory whose pages the kernel maps all at once, as page faults are expensive in the VM."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return memoryview(mmap.mmap(-1, size_bytes, flags))


def _contiguous(size_bytes: int) -> memoryview:
    """Return memory in blocks of physically contiguous pages; raises PermissionError without the privilege.

    A TCP segment has up to 17 fragments, each contiguous in memory. With 4 KiB pages that is much less than a segment
    holds when it is copied, so completion times would differ. Without huge pages, the receive ring of a packet socket
    is the way to get larger blocks; the socket is bound to no protocol and receives nothing.
    """
    blocks = -(-size_bytes // _BLOCK_BYTES)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as ring:
        ring.setsockopt(_SOL_PACKET, _PACKET_RX_RING, struct.pack("=4I", *(_BLOCK_BYTES, blocks) * 2))
        memory = mmap.mmap(ring.fileno(), blocks * _BLOCK_BYTES)
    return memoryview(memory)[:size_bytes]
