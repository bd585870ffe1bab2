"""What the bytes of a chunk are: a pseudo-random text that any GPU can tell for any chunk without having been sent it.

A chunk is cut into pieces, and piece i is a window into one pool of random bytes. Where the window lies depends on the
collective, the rank that the chunk began at and i, and no window repeats until all of them have been used: a chunk of
another rank, a chunk left over from an earlier collective, pieces that changed places or went missing and a single
wrong bit all differ from what is due. Nothing is generated between collectives, and a check reads each byte once.
"""

import ctypes
import hashlib
from collections.abc import Iterator

PIECE_BYTES = 1 << 18  # of all chunks that this cuts into few enough pieces
_MOST_PIECES = 1000  # Linux sends 1024 buffers at a time
_STRIDE_BYTES = 64  # windows begin on a cache line
_WINDOWS = 1 << 16  # a power of two, so that an odd factor visits each of them once
_SCATTER = 40503  # odd, and near _WINDOWS divided by the golden ratio: neighbours lie far apart

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Content:
    """The content of every chunk of `chunk_bytes` in collectives over `ranks` GPUs, the same for the same `seed`."""

    def __init__(self, *, ranks: int, chunk_bytes: int, seed: int = 0) -> None:
        self._ranks, self._chunk_bytes = ranks, chunk_bytes
        self._piece_bytes = max(PIECE_BYTES, -(-chunk_bytes // _MOST_PIECES))
        self._pieces = -(-chunk_bytes // self._piece_bytes)
        size = _WINDOWS * _STRIDE_BYTES + self._piece_bytes
        self._pool = hashlib.shake_128(b"longhaul %d" % seed).digest(size)
        self._view = memoryview(self._pool)
        self._address: int = ctypes.cast(ctypes.c_char_p(self._pool), ctypes.c_void_p).value or 0

    def views(self, *, rank: int, collective: int) -> list[memoryview]:
        """The chunk that begins at `rank`, as read-only buffers to be sent one after the other."""
        return [self._view[at : at + size] for at, _, size in self._windows(rank, collective)]

    def first_difference(self, address: int, *, rank: int, collective: int) -> int | None:
        """The first byte in which what lies in memory at `address` differs from that chunk; None where it is equal."""
        for at, start, size in self._windows(rank, collective):
            if _memcmp(address + start, self._address + at, size):
                return start + _first_difference(address + start, self._address + at, size)
        return None

    def _windows(self, rank: int, collective: int) -> Iterator[tuple[int, int, int]]:
        """Every piece: where it lies in the pool, where in the chunk, and its length."""
        first = (collective * self._ranks + rank) * self._pieces
        for piece in range(self._pieces):
            at = (first + piece) * _SCATTER % _WINDOWS * _STRIDE_BYTES
            start = piece * self._piece_bytes
            yield at, start, min(self._piece_bytes, self._chunk_bytes - start)


def _first_difference(a: int, b: int, size: int) -> int:
    """The first byte in which two stretches of memory that do differ differ, by halves."""
    start = 0
    while size > 1:
        half = size // 2
        if _memcmp(a + start, b + start, half):
            size = half
        else:
            start, size = start + half, size - half
    return start
