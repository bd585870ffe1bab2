"""Deterministic payload: a function of collective and window, so that a receiver verifies every byte without a copy.

A *window* is the data that a rank has in one slot at the start. It consists of pieces, each a section of one common
pool of pseudo-random bytes. The offset of a piece in the pool depends on the collective, the window and the index of
the piece, and no offset repeats before all have been used. Verification therefore detects data of another rank or of
an earlier collective, missing or reordered pieces, and a single wrong bit. No data is generated between collectives,
and verification reads each byte once.

Where sums are computed, a rank's data is the pool times that rank's multiplier (`hosts.agent.reduction`).
"""

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from hosts.agent.rank_program import Term

PIECE_BYTES = 1 << 18  # larger where a window would otherwise have more than _MAX_PIECES
PART_BYTES = 1 << 20
_MAX_PIECES = 1000  # Linux accepts at most 1024 buffers in one sendmsg()
_STRIDE_BYTES = 16  # between offsets; small, so that the pool stays in a processor's L2 cache
_OFFSETS = 1 << 16  # number of offsets: a power of two, so that multiplying by an odd factor permutes them
_SCATTER = 40503  # odd, and near _OFFSETS divided by the golden ratio: consecutive pieces lie far apart

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Adder(Protocol):
    """The part of a payload that computes sums (`hosts.agent.reduction.Sums`, which imports numpy)."""

    def multiply(self, multiplier: int) -> None:
        """Set the rank's own data to the pool times `multiplier`."""

    def add_own(self, data: memoryview, part: range, *, collective: int, window: int) -> None:
        """Add the same part of the rank's own window to `data`, a part of a slot."""

    def add(self, data: memoryview, addend: memoryview) -> None:
        """Add `addend` to `data`."""


class Payload:
    """The payload of collectives with `windows` windows, the largest of which has `window_bytes`."""

    def __init__(self, *, windows: int, window_bytes: int) -> None:
        self._windows = windows
        self._piece_bytes = max(PIECE_BYTES, -(-window_bytes // (_MAX_PIECES * _STRIDE_BYTES)) * _STRIDE_BYTES)
        self._pieces = -(-window_bytes // self._piece_bytes)
        size = _OFFSETS * _STRIDE_BYTES + self._piece_bytes
        self._pool = hashlib.shake_128(b"longhaul 0").digest(size)
        self._own = memoryview(self._pool)  # the pool of this rank's own data
        self._address: int = ctypes.cast(ctypes.c_char_p(self._pool), ctypes.c_void_p).value or 0

    @property
    def sums(self) -> Adder | None:
        """This payload as one that adds, or None if the collectives compute no sums."""
        return None

    def views(self, window: int, *, collective: int, size_bytes: int) -> list[memoryview]:
        """Return the first `size_bytes` of a window, as read-only buffers to be sent one after the other."""
        pieces = self._piece_offsets(window, collective, range(size_bytes))
        return [self._own[at : at + size] for at, _, size in pieces]

    def parts(self, size_bytes: int) -> Sequence[range]:
        """Split the first `size_bytes` of a window into parts of a few pieces, small enough for a processor's cache."""
        return [range(at, min(at + self.part_bytes, size_bytes)) for at in range(0, size_bytes, self.part_bytes)]

    @property
    def part_bytes(self) -> int:
        """The size of every part except the last, in bytes."""
        return max(PART_BYTES // self._piece_bytes, 1) * self._piece_bytes

    def first_difference(self, data: memoryview, part: range, *, collective: int, terms: Sequence[Term]) -> int | None:
        """Compare `data`, a received part of a window, with the sum of `terms`; return the offset in the window of the
        first wrong byte, or None."""
        address = address_of(data)
        ((window, _),) = terms
        for at, start, size in self._piece_offsets(window, collective, part):
            begin = start - part.start
            if differ(address + begin, self._address + at, size):
                return start + first_of(data[begin : begin + size], memoryview(self._pool)[at : at + size])
        return None

    def _piece_offsets(self, window: int, collective: int, part: range) -> Iterator[tuple[int, int, int]]:
        """Yield, for each piece of a part, its offset in the pool, its offset in the window, and its length."""
        first = (collective * self._windows + window) * self._pieces
        for piece in range(part.start // self._piece_bytes, -(-part.stop // self._piece_bytes)):
            at = (first + piece) * _SCATTER % _OFFSETS * _STRIDE_BYTES
            start = piece * self._piece_bytes
            yield at, start, min(self._piece_bytes, part.stop - start)


def address_of(memory: memoryview) -> int:
    """Return the address of writable memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def first_of(actual: memoryview, expected: memoryview) -> int:
    """Return the first index at which two equally long buffers differ; raises StopIteration if they are equal."""
    return next(byte for byte, (a, b) in enumerate(zip(actual, expected, strict=True)) if a != b)


def differ(actual: int, expected: int, size: int) -> bool:
    """Return whether `size` bytes at two addresses differ."""
    return bool(_memcmp(actual, expected, size))
