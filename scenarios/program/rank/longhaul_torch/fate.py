"""Whether a group still works: its first failure ends it on every rank, and is the reason that every rank gives."""

import threading
from collections.abc import Callable
from contextlib import suppress

from .connections import Connections
from .errors import GroupError, LostRank, ShutDown

Publish = Callable[[str], str]
"""Publishes why this rank gave up, unless another rank has done so before; returns what is published."""


class Fate:
    """The fate of one group on this rank, `rank` in the world; several threads may use it."""

    def __init__(self, rank: int, connections: Connections, publish: Publish) -> None:
        self._rank, self._connections, self._publish = rank, connections, publish
        self._lock = threading.Lock()
        self.why: str | None = None

    def fail(self, error: GroupError, what: str) -> str:
        """End the group, as `what` failed by this error; return why it ended, as a main clause.

        The connections are shut down, so that the other ranks give up at once. A rank whose connection ends because
        another has given up asks which failure was the first.
        """
        with self._lock:
            if self.why is not None:
                return self.why
            why = first = f"rank {self._rank} gave up {what}, as {error}"
            if not isinstance(error, ShutDown):  # else the others see the end of the connections
                with suppress(Exception):  # the store may have ended with the rank that failed
                    first = self._publish(why)
            is_own = first == why or not isinstance(error, LostRank)
            self.why = why if is_own else first
            self._connections.shut_down()
            return str(error) if is_own else first

    def end(self, why: str) -> None:
        """Have all work from now on fail for this reason, unless the group has failed already."""
        with self._lock:
            self.why = self.why or why
            self._connections.shut_down()
