"""Reading of counters while a collective runs, inside the VM: those of switches' ports, or of tunnels."""

import threading
from collections.abc import Callable, Mapping, Sequence

from hosts.agent.clock import sleep_until
from topologies.linux import make_timers_exact

Counters = Mapping[str, tuple[int, int, Mapping[int, int]]]
"""One reading, by switch: the instants of the request and of the answer, ns, and the bytes sent by each port, by port
number. For tunnels the switch is "" and the numbers are those of tunnels."""


class PortWatch:
    """Reads counters during one collective: before it begins, every `every_s` from then on in a thread, and at its end.

    `read` makes a reading, and returns None if nothing can be read. `then` is called after each reading of the thread
    but the first, with its number from 1 on. Leaving the context ends the readings in any case.
    """

    def __init__(self, read: Callable[[], Counters | None], every_s: float, then: Callable[[int], object]) -> None:
        self._read, self._every_ns, self._then = read, round(every_s * 1e9), then
        self._lock, self._is_over, self._start_ns = threading.Lock(), False, 0
        self._readings: list[Counters] = []
        self._error: Exception | None = None

    def __enter__(self) -> "PortWatch":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:  # no join: the thread ends only when its next reading is due, which could take long
            self._is_over = True

    def begin(self, start_ns: int) -> None:
        """Start the readings of a collective that begins shortly, at this instant of CLOCK_MONOTONIC."""
        self._start_ns = start_ns
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        """Make the last reading, at the collective's end. Raises the error of a reading that failed."""
        with self._lock:
            self._is_over = True
            if self._error is not None:
                raise self._error
            self._read_once()

    def _read_once(self) -> bool:
        """Read once; return whether anything was read."""
        counters = self._read()
        if counters is not None:
            self._readings.append(counters)
        return counters is not None

    def rows(
        self, counted: Mapping[int, Sequence[tuple[str, int]]], *, control_s: Mapping[str, float]
    ) -> tuple[tuple[int, ...], ...]:
        """Return the readings as `CollectiveRecord.counters`, for links, ports or tunnels by index.

        `counted` maps each to the (switch, port) pairs whose counters are added up for it. `control_s` are the one-way
        delays to switches: a request arrives there that much later, and the answer leaves that much earlier, than the
        controller sees. Readings before the collective's beginning count as readings at the beginning, as nothing is
        sent until then. A port of a switch that is missing in a reading is left out.
        """
        rows = []
        for index, all_ports in counted.items():
            ports = [port for port in all_ports if all(port[0] in counters for counters in self._readings)]
            if not ports:
                continue
            first_bytes = None
            for counters in self._readings:
                samples = [(*counters[switch], port, round(1e9 * control_s.get(switch, 0.0))) for switch, port in ports]
                requested_ns = min(requested + delay for requested, _, _, _, delay in samples) - self._start_ns
                answered_ns = max(answered - delay for _, answered, _, _, delay in samples) - self._start_ns
                sent_bytes = sum(sent[port] for _, _, sent, port, _ in samples)
                first_bytes = sent_bytes if first_bytes is None else first_bytes
                rows.append((index, max(0, requested_ns), max(0, answered_ns), sent_bytes - first_bytes))
        return tuple(rows)

    def _run(self) -> None:
        make_timers_exact()
        due_ns = self._start_ns
        while True:
            with self._lock:
                if self._is_over:
                    return
                try:
                    if self._read_once() and len(self._readings) > 1:
                        self._then(len(self._readings) - 1)
                except Exception as error:
                    self._error = error
                    return
            due_ns += self._every_ns
            sleep_until(due_ns)
