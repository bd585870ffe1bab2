"""Deterministic chunk payload: a function of (collective, source rank), so a receiver can verify every byte without a
reference copy.

A chunk consists of pieces, and piece i is a window into one pool of random bytes. The window's position depends on the
collective, the source rank and i, and none repeats until all have been used. So the check finds the chunk of another
rank or of an earlier collective, pieces that are missing or in another order, and a single wrong bit. Nothing is
generated between collectives, and a check reads each byte once.
"""

import ctypes
import hashlib
from collections.abc import Iterator, Sequence

PIECE_BYTES = 1 << 18  # more where a chunk would have more than _MAX_PIECES of them
PART_BYTES = 1 << 20
_MAX_PIECES = 1000  # Linux sends 1024 buffers at a time
_STRIDE_BYTES = 64  # windows begin on a cache line
_WINDOWS = 1 << 16  # a power of two, so that an odd factor visits each of them once
_SCATTER = 40503  # odd, and near _WINDOWS divided by the golden ratio: neighbours lie far apart

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Payload:
    """The payload of every chunk of `chunk_bytes` in collectives over `ranks` GPUs."""

    def __init__(self, *, ranks: int, chunk_bytes: int) -> None:
        self._ranks, self._chunk_bytes = ranks, chunk_bytes
        self._piece_bytes = max(PIECE_BYTES, -(-chunk_bytes // _MAX_PIECES))
        self._pieces = -(-chunk_bytes // self._piece_bytes)
        size = _WINDOWS * _STRIDE_BYTES + self._piece_bytes
        self._pool = hashlib.shake_128(b"longhaul 0").digest(size)
        self._view = memoryview(self._pool)
        self._address: int = ctypes.cast(ctypes.c_char_p(self._pool), ctypes.c_void_p).value or 0

    def views(self, *, rank: int, collective: int) -> list[memoryview]:
        """The chunk of source `rank`, as read-only buffers to be sent one after the other."""
        return [self._view[at : at + size] for at, _, size in self._windows(rank, collective, range(self._chunk_bytes))]

    @property
    def parts(self) -> Sequence[range]:
        """The chunk in parts of a few pieces, each small enough for a processor's cache."""
        size = max(PART_BYTES // self._piece_bytes, 1) * self._piece_bytes
        return [range(at, min(at + size, self._chunk_bytes)) for at in range(0, self._chunk_bytes, size)]

    def first_difference(self, address: int, part: range, *, rank: int, collective: int) -> int | None:
        """The first byte of a part in which the chunk at `address` differs from that chunk; None where it does not."""
        for at, start, size in self._windows(rank, collective, part):
            if _memcmp(address + start, self._address + at, size):
                pairs = zip(ctypes.string_at(address + start, size), self._view[at : at + size], strict=True)
                return start + next(byte for byte, (found, wanted) in enumerate(pairs) if found != wanted)
        return None

    def _windows(self, rank: int, collective: int, part: range) -> Iterator[tuple[int, int, int]]:
        """Of every piece of a part, its offset in the pool, its offset in the chunk, and its length."""
        first = (collective * self._ranks + rank) * self._pieces
        for piece in range(part.start // self._piece_bytes, -(-part.stop // self._piece_bytes)):
            at = (first + piece) * _SCATTER % _WINDOWS * _STRIDE_BYTES
            start = piece * self._piece_bytes
            yield at, start, min(self._piece_bytes, self._chunk_bytes - start)
