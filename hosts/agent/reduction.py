"""Payload of collectives that compute sums: 32-bit words, added modulo 2^32, so that sums are exact in any order.

A rank's own data is the pool times the rank's multiplier, word by word. A sum is then the pool times the sum of the
contributors' multipliers, and one pass over it verifies every bit. This module imports numpy, which takes long in the
VM: import it only where sums are computed.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hosts.agent.payload import Payload, address_of, differ, first_of
from hosts.agent.rank_program import Term

WORD_BYTES = 4

Words = npt.NDArray[np.uint32]


class Sums(Payload):
    """A `Payload` whose windows consist of whole words and can be added."""

    def __init__(self, *, windows: int, window_bytes: int) -> None:
        super().__init__(windows=windows, window_bytes=window_bytes)
        self._words: Words = np.frombuffer(self._pool, dtype=np.uint32)
        self._own_words = self._words
        expected = bytearray(self._piece_bytes)
        self._expected, self._expected_address = memoryview(expected), address_of(memoryview(expected))
        self._sum: Words = np.frombuffer(expected, dtype=np.uint32)
        self._product = np.empty_like(self._sum)

    @property
    def sums(self) -> "Sums":
        return self

    def multiply(self, multiplier: int) -> None:
        self._own_words = self._words * np.uint32(multiplier)
        self._own = self._own_words.data.cast("B")

    def first_difference(self, data: memoryview, part: range, *, collective: int, terms: Sequence[Term]) -> int | None:
        address = address_of(data)
        coefficients = [np.uint32(coefficient) for _, coefficient in terms]
        for pieces in zip(*(self._piece_offsets(window, collective, part) for window, _ in terms), strict=True):
            _, start, size = pieces[0]
            words = size // WORD_BYTES
            for index, ((at, _, _), coefficient) in enumerate(zip(pieces, coefficients, strict=True)):
                first = at // WORD_BYTES
                product = self._sum if index == 0 else self._product
                np.multiply(self._words[first : first + words], coefficient, out=product[:words])
                if index:
                    self._sum[:words] += product[:words]
            begin = start - part.start
            if differ(address + begin, self._expected_address, size):
                return int(start + first_of(data[begin : begin + size], self._expected[:size]))
        return None

    def add_own(self, data: memoryview, part: range, *, collective: int, window: int) -> None:
        words = np.frombuffer(data, dtype=np.uint32)
        for at, start, size in self._piece_offsets(window, collective, part):
            begin, first = (start - part.start) // WORD_BYTES, at // WORD_BYTES
            words[begin : begin + size // WORD_BYTES] += self._own_words[first : first + size // WORD_BYTES]

    def add(self, data: memoryview, addend: memoryview) -> None:
        words = np.frombuffer(data, dtype=np.uint32)
        words += np.frombuffer(addend, dtype=np.uint32)
