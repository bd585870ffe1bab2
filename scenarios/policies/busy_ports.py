"""Rates of ports from their counters and queues while a program runs: what a port sends while its queue is not empty.
Pure.

A collective's messages tell when a port was limited; a program may send less than a port could, at any time. So only a
port whose queue holds something shows its rate.
"""

import numpy as np
import numpy.typing as npt

from topologies.shaping.classes import FRAME_BYTES
from topologies.shaping.frames import TCP_FRAMES

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

LEAST_BYTES = 100 * FRAME_BYTES
"""The least bytes of frames from which a rate is inferred, which is then low by 1 % at most."""
_PART_BYTES = 1000 * FRAME_BYTES
_MIN_NS = 1


class BusyPorts:
    """Infers the rates of ports from readings, in order of time, of what they have sent and have queued.

    A port is taken to be busy between two readings that follow each other if its queue was empty at neither. Its rate
    is the highest of its stretches of busy time, and of parts of 1,000 packets of these. A packet counts as sent when
    it begins to be sent, so one packet less has certainly been sent: the rate is never more than the true one. It is
    less if the queue was empty for a while between two readings, in every part.
    """

    def __init__(self, ports: int) -> None:
        self._is_busy, self._best = np.zeros(ports, bool), np.zeros(ports)
        # By port, where the stretch and the part of it began that are under way: (ns, bytes).
        self._stretch, self._part = np.zeros((2, ports), np.int64), np.zeros((2, ports), np.int64)

    def read(self, at_ns: int, sent_bytes: Counts, queued_bytes: Counts) -> None:
        """Note a reading: the bytes of frames that each port has sent so far, and those in its queue, both [ports]."""
        busy, now = queued_bytes > 0, np.stack([np.full(sent_bytes.size, at_ns), sent_bytes])
        goes_on = busy & self._is_busy
        for since, least_bytes in ((self._stretch, LEAST_BYTES), (self._part, _PART_BYTES)):
            took_ns, sent = now - since
            shows = goes_on & (sent >= least_bytes)
            rate = (sent - FRAME_BYTES) / np.maximum(took_ns, _MIN_NS)
            self._best = np.where(shows, np.maximum(self._best, rate), self._best)
            begins = ~goes_on if since is self._stretch else ~goes_on | shows
            since[:, begins] = now[:, begins]
        self._is_busy = busy

    def interrupt(self) -> None:
        """Note that a reading is missing: no stretch goes on across it."""
        self._is_busy[:] = False

    def rates_bps(self) -> Floats:
        """Return the rate of each port in payload of full frames, whole bit/s, [ports]; NaN where none is known."""
        return np.where(self._best > 0, np.round(8e9 * self._best / TCP_FRAMES.wire_per_payload), np.nan)
