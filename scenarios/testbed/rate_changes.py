"""Changes of links' rates at the instants at which conditions change while a collective runs, inside the VM."""

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hosts.agent.clock import sleep_until
from topologies.conditions.timed import Timed
from topologies.linux import make_timers_exact


class RateChanges:
    """Makes the changes of conditions during collective `number`, in a thread, while the main thread waits for agents.

    At each instant of `timed` it calls `change` with the change's number, from 0 on, and the rates, [links or ports]
    bit/s.
    """

    def __init__(self, timed: Timed, number: int, change: Callable[[int, npt.NDArray[np.float64]], object]) -> None:
        self._timed, self._number, self._change = timed, number, change
        self._lock, self._is_over = threading.Lock(), False
        self._error: Exception | None = None

    def begin(self, start_ns: int) -> None:
        """Start the changes of a collective that begins at this instant of CLOCK_MONOTONIC."""
        threading.Thread(target=self._run, args=(start_ns,), daemon=True).start()

    def end(self) -> None:
        """End the changes, at the collective's end. Raises the error of a change that failed.

        The thread is not joined: it ends only at the instant of its next change, which could take long.
        """
        with self._lock:
            self._is_over = True
        if self._error is not None:
            raise self._error

    def _run(self, start_ns: int) -> None:
        make_timers_exact()
        index = 0
        while True:
            rates_bps = self._timed.rates_after_change(self._number, index)
            sleep_until(start_ns + self._timed.change_ns(self._number, index))
            with self._lock:
                if self._is_over:
                    return
                try:
                    self._change(index, rates_bps)
                except Exception as error:
                    self._error = error
                    return
            index += 1
