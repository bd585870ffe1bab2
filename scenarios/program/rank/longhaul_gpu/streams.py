"""The streams of a rank's GPU, each with the instant until which it computes. No torch.

The host does not wait when an operation is put on a stream; it sleeps until a stream's end only where a real host would
block. `now_ns` and `sleep` can be replaced in tests.
"""

import threading
import time
from collections.abc import Callable
from importlib import import_module


def _compute(seconds: float) -> None:
    import_module("longhaul").compute(seconds)  # by which the run knows that ranks compute


class Timeline:
    """A stream's times: it is busy until `end_ns` (CLOCK_MONOTONIC), and has been busy for `busy_ns` in all.

    `number` tells streams apart, and `after` are the ids of what comes next waits for (`recording`).
    """

    __slots__ = ("after", "busy_ns", "end_ns", "number")

    def __init__(self, number: int = 0) -> None:
        self.end_ns = self.busy_ns = 0
        self.number, self.after = number, tuple[int, ...]()

    def follow(self, end_ns: int, after: tuple[int, ...]) -> None:
        """Have what comes next begin after an instant, at which what has these ids has ended."""
        self.end_ns = max(self.end_ns, end_ns)
        self.after += tuple(one for one in after if one not in self.after)


class Device:
    """The GPU: its streams, of which each thread has a current one, and how long the host has waited for them."""

    def __init__(
        self, now_ns: Callable[[], int] = time.monotonic_ns, sleep: Callable[[float], object] | None = None
    ) -> None:
        self.now_ns = now_ns
        self.sleep = sleep or _compute
        self.default = Timeline()
        self.all = [self.default]
        self.waited_ns = self.waits = 0
        self._of_thread = threading.local()

    def new(self) -> Timeline:
        """Return a new stream, which is idle."""
        stream = Timeline(len(self.all))
        self.all.append(stream)
        return stream

    @property
    def current(self) -> Timeline:
        """The stream on which this thread's operations are put."""
        found: Timeline = getattr(self._of_thread, "stream", self.default)
        return found

    @current.setter
    def current(self, stream: Timeline) -> None:
        self._of_thread.stream = stream

    def busy(self, seconds: float) -> int:
        """Put an operation of so many seconds on the current stream; return its time in ns."""
        stream, took_ns = self.current, round(seconds * 1e9)
        stream.end_ns = max(stream.end_ns, self.now_ns()) + took_ns
        stream.busy_ns += took_ns
        return took_ns

    def join(self, after: tuple[int, ...] = ()) -> None:
        """Make the current stream wait for now, when what has these ids has ended."""
        self.current.follow(self.now_ns(), after)

    def reached_ns(self, stream: Timeline) -> int:
        """Return when a stream has computed what it holds now: an idle one has already."""
        return max(stream.end_ns, self.now_ns())

    @property
    def end_ns(self) -> int:
        """When all streams have computed what they hold now."""
        return max(stream.end_ns for stream in self.all)

    def wait(self, until_ns: int) -> None:
        """Block the host until an instant."""
        wait_ns = until_ns - self.now_ns()
        if wait_ns > 0:
            self.sleep(wait_ns / 1e9)
            self.waited_ns += wait_ns
            self.waits += 1


DEVICE = Device()
"""The GPU of this process."""
