"""How late a machine wakes who asked to be woken: on a wall clock, what tells whether it kept up with an experiment.

Where a process that wants the processor for a moment gets it late, so do the kernel's packets and the agents.
"""

import threading
from types import TracebackType

from hosts.agent import now_ns, sleep_until

_PERIOD_NS = 2_000_000


class Watch:
    """Watches from a thread of its own, for as long as it is open, how late the thread wakes every 2 ms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worst_ns, self._due_ns = 0, now_ns() + _PERIOD_NS
        self._open = True
        self._thread = threading.Thread(target=self._watch, name="lateness", daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._thread.join()

    def worst_s(self) -> float:
        """The latest waking since this was asked last, in seconds; one that is still to come counts by now."""
        with self._lock:
            worst_ns = max(self._worst_ns, now_ns() - self._due_ns)
            self._worst_ns = 0
        return worst_ns / 1e9

    def _watch(self) -> None:
        while self._open:
            sleep_until(self._due_ns)
            with self._lock:
                self._worst_ns = max(self._worst_ns, now_ns() - self._due_ns)
                self._due_ns = now_ns() + _PERIOD_NS
