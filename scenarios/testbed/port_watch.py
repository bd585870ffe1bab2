"""Reads counters while a collective runs, inside the VM: those of switches' ports, or of tunnels."""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence

from hosts.agent.clock import sleep_until

_PR_SET_TIMERSLACK = 29

Counters = Mapping[str, tuple[int, int, Mapping[int, int]]]
"""By switch, when it was asked and when it had answered, ns, and the bytes that each port had sent, by its number; or
of "", those of tunnels."""


class PortWatch:
    """The readings of one collective, each by `ask`, which gives None where nothing can be read: one before it begins,
    every `every_s` from then on, in a thread of their own, and one at its end. `then` is called with the number of each
    of those in between, from 1, behind it. A context manager that ends them in any case."""

    def __init__(self, ask: Callable[[], Counters | None], every_s: float, then: Callable[[int], object]) -> None:
        self._ask, self._every_ns, self._then = ask, round(every_s * 1e9), then
        self._lock, self._is_over, self._start_ns = threading.Lock(), False, 0
        self._read: list[Counters] = []
        self._error: Exception | None = None

    def __enter__(self) -> "PortWatch":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:  # the thread ends by itself when the next reading would be due; that could take long
            self._is_over = True

    def begin(self, start_ns: int) -> None:
        """The collective begins at this instant of CLOCK_MONOTONIC, in a moment."""
        self._start_ns = start_ns
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        """The collective is over: read once more, and not again. Raises the error of a reading that failed."""
        with self._lock:
            self._is_over = True
            if self._error is not None:
                raise self._error
            self._look()

    def _look(self) -> bool:
        """Read once; whether anything was read."""
        found = self._ask()
        if found is not None:
            self._read.append(found)
        return found is not None

    def of(
        self, counted: Mapping[int, Sequence[tuple[str, int]]], *, control_s: Mapping[str, float]
    ) -> tuple[tuple[int, ...], ...]:
        """What was read of links, ports or tunnels, each `counted` by these, as `CollectiveRecord.counters`.

        `control_s` are the one-way delays to switches: those are asked so much later, and answer so much earlier, than
        the controller sees it. What was read before the beginning is what it is at that, as nothing is sent until then.
        A port of a switch that was not asked each time is left out.
        """
        found = []
        for one, all_ports in counted.items():
            first, ports = None, [port for port in all_ports if all(port[0] in counters for counters in self._read)]
            if not ports:
                continue
            for counters in self._read:
                at = [(*counters[switch], port, round(1e9 * control_s.get(switch, 0.0))) for switch, port in ports]
                asked_ns = min(asked + delay for asked, _, _, _, delay in at) - self._start_ns
                answered_ns = max(answered - delay for _, answered, _, _, delay in at) - self._start_ns
                sent = sum(sent[port] for _, _, sent, port, _ in at)
                first = sent if first is None else first
                found.append((one, max(0, asked_ns), max(0, answered_ns), sent - first))
        return tuple(found)

    def _run(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # this thread's: or it would be 50 us late
        due_ns = self._start_ns
        while True:
            with self._lock:
                if self._is_over:
                    return
                try:
                    if self._look() and len(self._read) > 1:
                        self._then(len(self._read) - 1)
                except Exception as error:
                    self._error = error
                    return
            due_ns += self._every_ns
            sleep_until(due_ns)
