"""AllReduces over UDP with selective repeat: ``selective_repeat`` with the arguments of `datagram_exchanges.main`.

Paths keep the order of datagrams, so what a later one has overtaken is lost, and is asked for at once.
"""

import sys

from scenarios.studies.programs.datagram_exchanges import Exchange, main


class SelectiveRepeat(Exchange):
    next_number = 0

    def arrived(self, number: int, payload: bytes) -> None:
        if number >= self.next_number:
            lost = range(self.next_number, number)
            self.next_number = number + 1
            if lost:
                self.ask(lost)


main(SelectiveRepeat, sys.argv[1:])
