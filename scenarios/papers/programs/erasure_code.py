"""AllReduces over UDP with an erasure code, ``erasure_code CHUNKS COUNT ROUND_TRIP_S``.

Every 32 datagrams are followed by 8, each the XOR of every eighth of them. One that is lost of such four is restored;
of more, those that are lost are asked for when the block is over. CHUNKS is a multiple of 32.
"""

from collections.abc import Iterable, Iterator, Sequence

from scenarios.papers.programs.datagram_exchanges import Exchange, arguments, main

BLOCK, PARITY = 32, 8


def xor(parts: Sequence[bytes]) -> bytes:
    """Return the XOR of strings of bytes of one length."""
    value = 0
    for part in parts:
        value ^= int.from_bytes(part, "big")
    return value.to_bytes(len(parts[0]), "big")


def members(group: int) -> range:
    """Return the numbers of the datagrams in a group; groups are numbered block by block."""
    begin = group // PARITY * BLOCK
    return range(begin + group % PARITY, begin + BLOCK, PARITY)


class ErasureCode(Exchange):
    def further(self, number: int) -> Iterable[tuple[int, bytes]]:
        return self._parities(number // BLOCK) if (number + 1) % BLOCK == 0 else ()

    def _parities(self, block: int) -> Iterator[tuple[int, bytes]]:
        for group in range(block * PARITY, (block + 1) * PARITY):
            yield len(self.message) + group, xor([self.message[one] for one in members(group)])

    def arrived(self, number: int, payload: bytes) -> None:
        group = number - len(self.message)
        if group < 0:
            return
        absent = [one for one in members(group) if self.got[one] is None]
        if len(absent) == 1:
            rest = [have for one in members(group) if (have := self.got[one]) is not None]
            self.keep(absent[0], xor([payload, *rest]))
        elif absent:
            self.ask(absent)


main(ErasureCode, *arguments())
