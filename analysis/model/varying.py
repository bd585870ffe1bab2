"""The timing model where the rates of links change at instants, also while a schedule is under way: an exact fluid."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from analysis.model.fluid import Links, program_of
from analysis.model.max_plus import Floats, Transfer

_FIRST_ROWS = 16  # of rates that are asked for; twice as many each time


class Instants(NamedTuple):
    """When every transfer of one instance begins, has left whole and has arrived whole: [T] s each."""

    begins_s: Floats
    leaves_s: Floats
    arrives_s: Floats


class Moves(NamedTuple):
    """The instants at which flows get other links and delays, in order: [M] s, [M, F, H] and [M, F] s."""

    at_s: Floats
    links: Links
    delay_s: Floats


class Varying:
    """A schedule made ready to evaluate where rates change; it has this many flows, and slots of so many bytes.

    With `packet_bytes` above 0 links have queues, in which each flow has two packets of this size at its bottleneck, as
    TCP has in the testbed. A change of rates that moves its bottleneck towards the sender finds them behind the new
    one: so much less is left to send there. Each new bottleneck sends one packet at once, as its time begins.

    Raises ValueError as `fluid.program_of`.
    """

    def __init__(
        self, transfers: Sequence[Transfer], *, flows: int, slot_bytes: float, packet_bytes: float = 0.0
    ) -> None:
        self._program, self._slot_bits = program_of(transfers, flows), 8 * float(slot_bytes)
        self._packet_bits = 8 * float(packet_bytes)

    def times(
        self,
        links: Links,
        rates_bps: Callable[[int], Floats],
        *,
        until_s: float,
        every_s: float,
        delay_s: Floats,
        moves: Callable[[int], Moves] | None = None,
    ) -> Instants:
        """One instance of the schedule.

        `rates_bps(n)`, [n, links], are the first n rows of rates, above 0: the first holds for `until_s`, every other
        one for `every_s`. `links` [F, H] and `delay_s` [F] are as for `fluid.times`, and so are the rules, whether or
        not links are shared: at every moment all transfers in service have their max-min fair rates under the rates of
        links there are then, and what is left of a transfer when those change is served at its new rate. A change and
        the end of a transfer within 1e-12 of the time since the start happen together, the end first.

        `moves(n)` are the changes of ways that go with the first n rows, at the beginning of a row or within it, from
        the second row on. What is left of a transfer is then served over the new links. A flow's messages arrive in
        order and whole: none before what was sent of it, or before it, over the old way.

        Raises ValueError for a rate that is not above 0, and for times that are not.
        """
        return self.progress(links, rates_bps, until_s=until_s, every_s=every_s, delay_s=delay_s, moves=moves)[0]

    def progress(
        self,
        links: Links,
        rates_bps: Callable[[int], Floats],
        *,
        until_s: float,
        every_s: float,
        delay_s: Floats,
        moves: Callable[[int], Moves] | None = None,
    ) -> tuple[Instants, Floats]:
        """As `times`, and the bits that are left of what each flow is sending as a row of rates begins, [n, F]."""
        if not (0 < until_s < np.inf and 0 < every_s < np.inf):
            raise ValueError(f"rates change after {until_s:g} s and every {every_s:g} s; allowed: more than 0 s")
        from analysis.model import varying_kernel

        links, delay_s = np.require(links, np.int32, ("C", "W")), np.require(delay_s, np.float64, ("C", "W"))
        found = np.empty((3, self._program.flow.size))
        rows, is_over = _FIRST_ROWS, False
        while not is_over:
            rates = np.require(rates_bps(rows), np.float64, ("C", "W"))
            if not (rates > 0).all():
                raise ValueError(f"a rate of {rates.min():g} bit/s; allowed: more than 0")
            at_s, ways, delays_s = moves(rows) if moves else (np.empty(0), links[None][:0], delay_s[None][:0])
            moved = varying_kernel.Moves(
                np.require(at_s, np.float64, ("C", "W")),
                np.require(ways, np.int32, ("C", "W")),
                np.require(delays_s, np.float64, ("C", "W")),
            )
            instance = varying_kernel.Instance(self._program, links, delay_s, self._slot_bits, self._packet_bits, moved)
            left = np.zeros((rows, len(links)))
            of_rates = varying_kernel.Rates(rates, float(until_s), float(every_s), left)  # of types it is compiled for
            is_over = varying_kernel.run(instance, of_rates, found)
            rows *= 2
        return Instants(*found), left


if __name__ == "__main__":  # compiled now, and kept beside the module, so that no command has to wait for it
    nothing = Varying([], flows=0, slot_bytes=1)
    none = np.zeros((0, 0), np.int32), np.zeros(0)
    nothing.times(none[0], lambda rows: np.ones((rows, 1)), until_s=1, every_s=1, delay_s=none[1])
