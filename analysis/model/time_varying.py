"""The timing model for link rates that change at given instants, even in the middle of a schedule: an exact fluid."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from analysis.model.fluid import Links, program_of
from analysis.model.max_plus import Floats, Transfer

_FIRST_ROWS = 16  # rows of rates that are requested first; each further request doubles them


class TransferTimes(NamedTuple):
    """When every transfer of one instance begins, has left entirely and has arrived entirely, [T] s each."""

    begins_s: Floats
    leaves_s: Floats
    arrives_s: Floats


class PathChanges(NamedTuple):
    """Changes of flows' paths: instants in ascending order, [M] s, the new links, [M, F, H], and delays, [M, F] s."""

    at_s: Floats
    links: Links
    delay_s: Floats


class TimeVaryingModel:
    """A schedule compiled for evaluation under changing rates, with a number of flows and a slot size in bytes.

    With `packet_bytes` above 0, links have queues: each flow has two packets of this size queued at its bottleneck, as
    TCP has in the testbed. If a change of rates moves the bottleneck towards the sender, these packets have passed the
    new one already, which has that much less to send. Each new bottleneck sends one packet immediately.

    Raises the errors of `fluid.program_of`.
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
        changes: Callable[[int], PathChanges] | None = None,
    ) -> TransferTimes:
        """Return when each transfer of one instance of the schedule begins, leaves and arrives.

        `rates_bps(n)` returns the first n rows of rates, [n, links] bit/s, all above 0. The first row holds for
        `until_s`, every other one for `every_s`. `links` [F, H] and `delay_s` [F] are as for `fluid.times`, and so are
        the rules, whether or not links are shared: at every moment all transfers in service have their max-min fair
        rates under the current rates of links. When these change, the rest of a transfer is served at its new rate. A
        change and the end of a transfer are simultaneous if they differ by less than 1e-12 of the time since the start;
        the end then comes first.

        `changes(n)` returns the changes of paths in the first n rows; they may be at the beginning of a row or within
        it, from the second row on. The rest of a transfer is then served over the new links. The messages of a flow
        arrive in order and entirely: none before everything that its flow sent over the old path.

        Raises ValueError for a rate, `until_s` or `every_s` that is not above 0.
        """
        return self.progress(links, rates_bps, until_s=until_s, every_s=every_s, delay_s=delay_s, changes=changes)[0]

    def progress(
        self,
        links: Links,
        rates_bps: Callable[[int], Floats],
        *,
        until_s: float,
        every_s: float,
        delay_s: Floats,
        changes: Callable[[int], PathChanges] | None = None,
    ) -> tuple[TransferTimes, Floats]:
        """Return `times`, and the bits left of each flow's current transfer as each row of rates begins, [n, F]."""
        if not (0 < until_s < np.inf and 0 < every_s < np.inf):
            raise ValueError(f"rates change after {until_s:g} s and every {every_s:g} s; allowed: more than 0 s")
        from analysis.model import time_varying_jit

        links, delay_s = np.require(links, np.int32, ("C", "W")), np.require(delay_s, np.float64, ("C", "W"))
        seconds = np.empty((3, self._program.flow.size))
        rows, is_complete = _FIRST_ROWS, False
        while not is_complete:
            rates = np.require(rates_bps(rows), np.float64, ("C", "W"))
            if not (rates > 0).all():
                raise ValueError(f"a rate of {rates.min():g} bit/s; allowed: more than 0")
            at_s, paths, delays_s = changes(rows) if changes else (np.empty(0), links[None][:0], delay_s[None][:0])
            moved = time_varying_jit.PathChanges(
                np.require(at_s, np.float64, ("C", "W")),
                np.require(paths, np.int32, ("C", "W")),
                np.require(delays_s, np.float64, ("C", "W")),
            )
            instance = time_varying_jit.Instance(
                self._program, links, delay_s, self._slot_bits, self._packet_bits, moved
            )
            left = np.zeros((rows, len(links)))
            rate_rows = time_varying_jit.Rates(rates, float(until_s), float(every_s), left)  # its compiled types
            is_complete = time_varying_jit.run(instance, rate_rows, seconds)
            rows *= 2
        return TransferTimes(*seconds), left


if __name__ == "__main__":  # compile now and cache the code next to the module, so that no command has to wait
    nothing = TimeVaryingModel([], flows=0, slot_bytes=1)
    none = np.zeros((0, 0), np.int32), np.zeros(0)
    nothing.times(none[0], lambda rows: np.ones((rows, 1)), until_s=1, every_s=1, delay_s=none[1])
