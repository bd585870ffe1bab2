"""A watch over a VM by the wall clock: one that says nothing for too long is stopped, and what it did is named.

Inside, a deadline passes at once where everything waits; but where something spins, or the VM itself hangs, its clock
stands still, and nothing inside can tell.
"""

import threading
import time
from collections.abc import Callable

from scenarios.spec.scenario import Scenario

_PATIENCE_S = 180.0  # a busy machine takes a tenth of it from the start of a VM to the first line
_PAIR_S = 2e-3  # for each two GPUs: every host is told of every other, and the links of a site are pairs
_BYTES_PER_S = 1e8  # a tenth of what a slow machine carries


def patience_s(setting: Scenario) -> float:
    """How long a VM that runs this setting may be silent: no step of it takes a tenth of that."""
    carried = setting.gpus * (setting.gpus - 1) * setting.collective.chunk_bytes
    return _PATIENCE_S + _PAIR_S * setting.gpus**2 + carried / _BYTES_PER_S


class Watchdog:
    """Calls what it was given with `guard` once nothing has been `heard` for `patience_s` seconds of wall time.

    A context manager; its thread ends with it. `stuck` is what it was waiting for then, and None until then.
    """

    def __init__(self, patience_s: float, *, waits_for: str) -> None:
        self._patience_s, self._doing = patience_s, waits_for
        self._stop: Callable[[], None] | None = None
        self._last_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.stuck: str | None = None

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def guard(self, stop: Callable[[], None]) -> None:
        """Be told how to stop what is watched."""
        self._stop = stop

    def heard(self, doing: str | None = None) -> None:
        """Something was heard; `doing` is what comes next, if that was said."""
        self._last_s = time.monotonic()
        self._doing = doing or self._doing

    def sentence(self) -> str:
        """What there is to say of what was stuck."""
        return f"nothing was heard from the VM for {self._patience_s:.0f} s, while it was waited for {self.stuck}"

    def _watch(self) -> None:
        while not self._over.wait(max(0.0, self._last_s + self._patience_s - time.monotonic())):
            if time.monotonic() - self._last_s >= self._patience_s and self._stop is not None:
                self.stuck = self._doing
                self._stop()
                return
            if self._stop is None:  # it has not been started yet
                self._last_s = time.monotonic()
