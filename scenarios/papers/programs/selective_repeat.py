"""AllReduces over UDP with selective repeat, ``selective_repeat CHUNKS COUNT ROUND_TRIP_S``: paths keep the order of
datagrams, so what a later one has overtaken is lost, and is asked for at once."""

from scenarios.papers.programs.datagram_exchanges import Exchange, arguments, main


class SelectiveRepeat(Exchange):
    next_number = 0

    def arrived(self, number: int, payload: bytes) -> None:
        if number >= self.next_number:
            lost = range(self.next_number, number)
            self.next_number = number + 1
            if lost:
                self.ask(lost)


main(SelectiveRepeat, *arguments())
