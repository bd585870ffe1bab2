"""Deterministic payload: a function of the collective and of the window, so a receiver can verify every byte without a
reference copy.

A *window* is what a rank begins with in a slot. It consists of pieces, each a part of one pool of random bytes. Where a
piece begins in the pool depends on the collective, the window and the piece's number, and none repeats until all
places have been used. So the check finds the data of another rank or of an earlier collective, pieces that are missing
or in another order, and a single wrong bit. Nothing is generated between collectives, and a check reads each byte once.

Where sums are made, every rank's data is the same pool times a number of its own (`hosts.agent.sums`).
"""

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hosts.agent.program import Term

if TYPE_CHECKING:
    from hosts.agent.sums import Sums

PIECE_BYTES = 1 << 18  # more where a window would have more than _MAX_PIECES of them
PART_BYTES = 1 << 20
_MAX_PIECES = 1000  # Linux sends 1024 buffers at a time
_STRIDE_BYTES = 16  # so that the pool stays in a processor's second cache
_PLACES = 1 << 16  # a power of two, so that an odd factor visits each of them once
_SCATTER = 40503  # odd, and near _PLACES divided by the golden ratio: neighbours lie far apart

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Payload:
    """The payload of collectives with so many windows, of which the largest has `window_bytes`."""

    def __init__(self, *, windows: int, window_bytes: int) -> None:
        self._count = windows
        self._piece_bytes = max(PIECE_BYTES, -(-window_bytes // (_MAX_PIECES * _STRIDE_BYTES)) * _STRIDE_BYTES)
        self._pieces = -(-window_bytes // self._piece_bytes)
        size = _PLACES * _STRIDE_BYTES + self._piece_bytes
        self._pool = hashlib.shake_128(b"longhaul 0").digest(size)
        self._own = memoryview(self._pool)  # that of the rank's own data
        self._address: int = ctypes.cast(ctypes.c_char_p(self._pool), ctypes.c_void_p).value or 0

    @property
    def sums(self) -> "Sums | None":
        """The same as a payload that can be added; None where it cannot."""
        return None

    def views(self, window: int, *, collective: int, size_bytes: int) -> list[memoryview]:
        """The first bytes of a window, as read-only buffers to be sent one after the other."""
        pieces = self._places(window, collective, range(size_bytes))
        return [self._own[at : at + size] for at, _, size in pieces]

    def parts(self, size_bytes: int) -> Sequence[range]:
        """So many bytes of a window in parts of a few pieces, each small enough for a processor's cache."""
        return [range(at, min(at + self.part_bytes, size_bytes)) for at in range(0, size_bytes, self.part_bytes)]

    @property
    def part_bytes(self) -> int:
        """The bytes of a part that is not the last."""
        return max(PART_BYTES // self._piece_bytes, 1) * self._piece_bytes

    def first_difference(self, found: memoryview, part: range, *, collective: int, terms: Sequence[Term]) -> int | None:
        """The first byte of a part, counted from the window's beginning, in which `found`, that part, differs from the
        sum of these terms; None where it does not."""
        address = address_of(found)
        ((window, _),) = terms
        for at, start, size in self._places(window, collective, part):
            begin = start - part.start
            if differ(address + begin, self._address + at, size):
                return start + first_of(found[begin : begin + size], memoryview(self._pool)[at : at + size])
        return None

    def _places(self, window: int, collective: int, part: range) -> Iterator[tuple[int, int, int]]:
        """Of every piece of a part, where it begins in the pool and in the window, and its length."""
        first = (collective * self._count + window) * self._pieces
        for piece in range(part.start // self._piece_bytes, -(-part.stop // self._piece_bytes)):
            at = (first + piece) * _SCATTER % _PLACES * _STRIDE_BYTES
            start = piece * self._piece_bytes
            yield at, start, min(self._piece_bytes, part.stop - start)


def address_of(memory: memoryview) -> int:
    """Where writable memory is."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def first_of(found: memoryview, wanted: memoryview) -> int:
    """The first byte in which two memories of one length differ; raises StopIteration where none does."""
    return next(byte for byte, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b)


def differ(found: int, wanted: int, size: int) -> bool:
    """Whether the memory at two addresses differs."""
    return bool(_memcmp(found, wanted, size))
