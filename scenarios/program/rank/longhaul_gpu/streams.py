"""The streams of a rank's GPU, each with the instant until which it computes. No torch.

The host does not wait when an operation is put on a stream; it sleeps until a stream's end only where a real host would
block. `now_ns` and `sleep` can be replaced in tests.

A stream may have to wait for a collective that is under way, whose end nobody knows yet. As tensors have values, the
host then waits for that end before anything that could read them. For the default stream it does so at once. Another
stream keeps the collective as `due` until the host or the default stream waits for it, and operations that can be
`Deferred` with it. So the host issues meanwhile what overlaps, as FSDP2 does with its own streams.
"""

import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Protocol


def _compute(seconds: float) -> None:
    import_module("longhaul").compute(seconds)  # by which the run knows that ranks compute


class Due(Protocol):
    """What is under way, such as a collective."""

    def ended(self) -> tuple[int, tuple[int, ...]]:
        """Wait for its end; return the instant and the ids of what has ended then. Raises its failure."""

    def is_completed(self) -> bool:
        """Return whether it has ended."""


class Timeline:
    """A stream's times: it is busy until `end_ns` (CLOCK_MONOTONIC), and has been busy for `busy_ns` in all.

    `number` tells streams apart, and `after` are the ids of what comes next waits for (`recording`). What is `due` has
    to end, too, before what comes next. Operations are issued now, or at `issued_ns`.
    """

    __slots__ = ("after", "busy_ns", "due", "end_ns", "issued_ns", "number")

    def __init__(self, number: int = 0) -> None:
        self.end_ns = self.busy_ns = 0
        self.issued_ns: int | None = None
        self.number, self.after, self.due = number, tuple[int, ...](), tuple[Due, ...]()

    def follow(self, end_ns: int, after: tuple[int, ...], due: tuple[Due, ...] = ()) -> None:
        """Have what comes next begin after an instant, at which what has these ids has ended, and after what is due."""
        self.end_ns = max(self.end_ns, end_ns)
        self.after += tuple(one for one in after if one not in self.after)
        self.due += tuple(one for one in due if one not in self.due)

    def settle(self) -> None:
        """Wait for the ends of what is due; raises the first failure."""
        while self.due:
            first, *rest = self.due
            self.due = tuple(rest)
            self.follow(*first.ended())


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
        issued_ns = self.now_ns() if stream.issued_ns is None else stream.issued_ns
        stream.end_ns = max(stream.end_ns, issued_ns) + took_ns
        stream.busy_ns += took_ns
        return took_ns

    def join(self, after: tuple[int, ...] = ()) -> None:
        """Make the current stream wait for now, when what has these ids has ended."""
        self.current.follow(self.now_ns(), after)

    def follow(self, stream: Timeline, end_ns: int, after: tuple[int, ...], due: tuple[Due, ...] = ()) -> None:
        """Have what comes next on a stream begin after all of this (`Timeline.follow`)."""
        stream.follow(end_ns, after, due)
        if stream is self.default:
            stream.settle()

    def defer(self, due: Due) -> bool:
        """Have the current stream wait for what is under way; return whether it does so without the host."""
        if self.current is self.default:
            return False
        self.follow(self.current, 0, (), (due,))
        return True

    def reached_ns(self, stream: Timeline) -> int:
        """Return when a stream has computed what it holds now, without what is due: an idle one has already."""
        return max(stream.end_ns, self.now_ns())

    @property
    def end_ns(self) -> int:
        """When all streams have computed what they hold now."""
        return max(map(self.settled_ns, self.all))

    def settled_ns(self, stream: Timeline) -> int:
        """Wait for the ends of what is due on a stream; return when it has computed what it holds now."""
        stream.settle()
        return stream.end_ns

    def catch_up(self) -> None:
        """Block the host until the current stream has computed what it holds."""
        self.wait(self.settled_ns(self.current))

    def wait(self, until_ns: int) -> None:
        """Block the host until an instant."""
        wait_ns = until_ns - self.now_ns()
        if wait_ns > 0:
            self.sleep(wait_ns / 1e9)
            self.waited_ns += wait_ns
            self.waits += 1


class Deferred:
    """An operation that is put on the current stream now, and done by `run` when what is due there has ended."""

    def __init__(self, device: Device, run: Callable[[], object]) -> None:
        self._device, self._stream = device, device.current
        self._run: Callable[[], object] | None = run
        self._lock = threading.Lock()  # the script's thread and that of a group may both wait for it
        self._own = Timeline(self._stream.number)  # the stream as it is now: it may follow more by then
        self._own.follow(self._stream.end_ns, self._stream.after, self._stream.due)
        self._own.issued_ns = device.now_ns()
        self._stream.after, self._stream.due = (), (self,)

    def ended(self) -> tuple[int, tuple[int, ...]]:
        """Do the operation, if it is not done; return its end and its id."""
        with self._lock:
            if self._run is not None:
                run, self._run = self._run, None
                self._own.settle()
                before, self._device.current = self._device.current, self._own
                try:
                    run()
                finally:
                    self._device.current = before
                self._stream.busy_ns += self._own.busy_ns
            return self._own.end_ns, self._own.after

    def is_completed(self) -> bool:
        """Return whether all has ended that was due before."""
        return all(one.is_completed() for one in self._own.due)


DEVICE = Device()
"""The GPU of this process."""
