"""AllReduces over UDP with an erasure code: ``erasure_code BLOCK PARITY``, then arguments of `datagram_exchanges.main`.

Every BLOCK datagrams are followed by PARITY, of which number n is the XOR of every PARITY-th one from n on. If one of
such a group is lost, it is restored; if more are, they are asked for when the block is over. The message's datagrams
are a multiple of BLOCK, and BLOCK is one of PARITY.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence

from scenarios.studies.programs.datagram_exchanges import Exchange, main

BLOCK, PARITY = int(sys.argv[1]), int(sys.argv[2])


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


main(ErasureCode, sys.argv[3:])
