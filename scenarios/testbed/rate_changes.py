"""Gives links new rates at the instants at which conditions change while a collective runs, inside the VM."""

import ctypes
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hosts.agent.clock import sleep_until
from topologies.conditions.timed import Timed

_PR_SET_TIMERSLACK = 29


class RateChanges:
    """The changes of one collective's conditions, made by `change` with the number of each from 0 on and the rates,
    [links or ports] bit/s, from its beginning to its end in a thread of their own, while the main thread waits for
    agents."""

    def __init__(self, timed: Timed, number: int, change: Callable[[int, npt.NDArray[np.float64]], object]) -> None:
        self._timed, self._number, self._change = timed, number, change
        self._lock, self._is_over = threading.Lock(), False
        self._error: Exception | None = None

    def begin(self, start_ns: int) -> None:
        """The collective begins at this instant of CLOCK_MONOTONIC."""
        threading.Thread(target=self._run, args=(start_ns,), daemon=True).start()

    def end(self) -> None:
        """The collective is over: no rate is changed any more. Raises the error of a change that failed.

        The thread ends by itself at the next instant; to wait for that could take long.
        """
        with self._lock:
            self._is_over = True
        if self._error is not None:
            raise self._error

    def _run(self, start_ns: int) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # this thread's: or it would be 50 us late
        place = 0
        while True:
            rates_bps = self._timed.after(self._number, place)
            sleep_until(start_ns + self._timed.change_ns(self._number, place))
            with self._lock:
                if self._is_over:
                    return
                try:
                    self._change(place, rates_bps)
                except Exception as error:
                    self._error = error
                    return
            place += 1
