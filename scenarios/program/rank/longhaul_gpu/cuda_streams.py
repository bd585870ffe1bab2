"""torch.cuda's streams and events, on the times of `streams.DEVICE`."""

from typing import Any

from .streams import DEVICE, Due, Timeline


class Stream:
    """A stream of the GPU, as torch.cuda.Stream."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.timeline, self.priority, self.device_index = DEVICE.new(), priority, 0
        self._contexts = list[StreamContext]()

    @classmethod
    def of(cls, timeline: Timeline) -> "Stream":
        """Return the stream of this timeline."""
        made = cls.__new__(cls)
        made.timeline, made.priority, made.device_index, made._contexts = timeline, 0, 0, []
        return made

    @property
    def cuda_stream(self) -> int:
        """A number that only this stream has."""
        return DEVICE.all.index(self.timeline)

    stream_id = cuda_stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.timeline is self.timeline

    def __hash__(self) -> int:
        return id(self.timeline)

    def __enter__(self) -> "Stream":
        self._contexts.append(StreamContext(self))
        self._contexts[-1].__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._contexts.pop().__exit__()

    def wait_stream(self, stream: "Stream") -> None:
        """Have what follows on this stream begin when the other has computed what it holds now."""
        other = stream.timeline
        DEVICE.follow(self.timeline, other.end_ns, other.after, other.due)

    def wait_event(self, event: "Event") -> None:
        """Have what follows on this stream begin after an event."""
        DEVICE.follow(self.timeline, event.at_ns or 0, event.after, event.due)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record an event, by default a new one."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Block the host until the stream has computed what it holds."""
        DEVICE.wait(DEVICE.settled_ns(self.timeline))

    def query(self) -> bool:
        """Return whether the stream has computed what it holds."""
        is_over = all(one.is_completed() for one in self.timeline.due)
        return is_over and DEVICE.now_ns() >= DEVICE.settled_ns(self.timeline)


class Event:
    """An event of a stream, as torch.cuda.Event; it happens when the stream has computed what it held before."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self.at_ns: int | None = None
        self.after, self.due = tuple[int, ...](), tuple[Due, ...]()

    def record(self, stream: Stream | None = None) -> None:
        """Record the event on a stream, by default the current one."""
        timeline = DEVICE.current if stream is None else stream.timeline
        self.at_ns, self.after, self.due = DEVICE.reached_ns(timeline), timeline.after, timeline.due

    def wait(self, stream: Stream | None = None) -> None:
        """Have what follows on a stream, by default the current one, begin after the event."""
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Return whether the event has happened; true if it has not been recorded."""
        return all(one.is_completed() for one in self.due) and DEVICE.now_ns() >= self._settled_ns()

    def _settled_ns(self) -> int:
        """Wait for the ends of what is due; return when the event happens, 0 if it has not been recorded."""
        while self.due:
            first, *rest = self.due
            self.due = tuple(rest)
            end_ns, ids = first.ended()
            self.at_ns, self.after = max(self.at_ns or 0, end_ns), self.after + ids
        return self.at_ns or 0

    def synchronize(self) -> None:
        """Block the host until the event."""
        DEVICE.wait(self._settled_ns())

    def elapsed_time(self, end_event: "Event") -> float:
        """Return the ms from this event to another one; raises RuntimeError if one has not been recorded."""
        if self.at_ns is None or end_event.at_ns is None:
            raise RuntimeError("both events must be recorded before the time between them is known")
        return (end_event._settled_ns() - self._settled_ns()) / 1e6


class StreamContext:
    """Makes a stream the current one within the context, as torch.cuda.stream; None leaves the current one."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._before = list[Timeline]()

    def __enter__(self) -> None:
        self._before.append(DEVICE.current)
        if self.stream is not None:
            set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        DEVICE.current = self._before.pop()


def current_stream(*_: Any, **__: Any) -> Stream:
    """Return the current stream."""
    return Stream.of(DEVICE.current)


def set_stream(stream: Stream) -> None:
    """Make a stream the current one."""
    DEVICE.current = stream.timeline
