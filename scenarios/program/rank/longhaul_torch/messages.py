"""Point-to-point messages of a group, beside its collectives: matched by source and tag, in the order of issue.

A message is read only when a receive for it has been issued, or when a receive for a later one of the same rank waits:
then it is kept in memory. Otherwise it stays in the network's buffers, as TCP does.
"""

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from . import wire
from .blank import Buffer, in_memory, put
from .connections import Connections, Outgoing, await_bytes
from .errors import GroupError, LostRank, ShutDown, TimedOut, ranks_text
from .fate import Fate
from .waking import Wake

Done = Callable[[str | None, int], None]
"""Called at the end of a message with the sentence of its failure or None, and the rank of its other end."""


@dataclass(eq=False)
class _Posted:
    """A receive that waits for its message; `rank` is None for any."""

    rank: int | None
    tag: int
    target: Buffer
    done: Done
    deadline: float
    timeout_s: float
    what: str


@dataclass(eq=False)
class _Sending:
    rank: int
    tag: int
    data: Buffer
    done: Done
    deadline: float
    timeout_s: float
    what: str


@dataclass(eq=False)
class _Source:
    """A connection from a rank: the message that is being read from it, and those that are kept."""

    socket: socket.socket
    head: bytearray = field(default_factory=bytearray)
    tag: int = 0
    size_bytes: int = -1  # of the message that has come next; -1 if none has
    posted: _Posted | None = None
    data: Buffer | None = None
    got_bytes: int = 0
    trailer: bytearray = field(default_factory=bytearray)
    kept: deque[tuple[int, Buffer]] = field(default_factory=deque)
    is_polled: bool = False
    has_ended: bool = False


class Messages:
    """The messages of the group `name` on this rank, `rank` of `ranks` in the world; a thread that starts when used."""

    def __init__(self, *, name: str, rank: int, connections: Connections, fate: Fate, wake: Wake) -> None:
        self._name, self._rank, self._connections, self._fate, self._wake = name, rank, connections, fate, wake
        self._lock = threading.Lock()
        self._new: deque[_Posted | _Sending] = deque()
        self._is_over = False
        self._posted: list[_Posted] = []
        self._sending: list[_Sending] = []
        self._sources: dict[int, _Source] = {}
        self._counts: dict[int, int] = {}
        self._thread: threading.Thread | None = None

    def send(self, rank: int, tag: int, data: Buffer, done: Done, timeout_s: float) -> None:
        """Send a message to a rank of the group; it is done when the kernel has taken it."""
        what = f"send of {len(data)} bytes with tag {tag} to rank {self._connections.ranks[rank]}"
        self._issue(_Sending(rank, tag, data, done, time.monotonic() + timeout_s, timeout_s, what))

    def receive(self, rank: int | None, tag: int, target: Buffer, done: Done, timeout_s: float) -> None:
        """Receive a message of a rank of the group, or of any, with this tag and as many bytes as the target has."""
        source = "any rank" if rank is None else f"rank {self._connections.ranks[rank]}"
        what = f"recv of {len(target)} bytes with tag {tag} from {source}"
        self._issue(_Posted(rank, tag, target, done, time.monotonic() + timeout_s, timeout_s, what))

    def join(self) -> None:
        """Wait for the thread to end; the wake is over."""
        if self._thread is not None:
            self._thread.join()

    def _issue(self, one: _Posted | _Sending) -> None:
        with self._lock:
            if not self._is_over:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=f"longhaul-p2p-{self._name}", daemon=True)
                    self._thread.start()
                self._new.append(one)
                self._wake.set()
                return
        one.done(self._sentence(one, self._fate.why or str(ShutDown())), -1)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with select.epoll() as epoll:
            epoll.register(self._wake, select.EPOLLIN)
            outs: dict[int, Outgoing] = {}
            while not self._wake.is_over:
                try:
                    self._step(epoll, outs)
                except Exception as error:
                    failure = error if isinstance(error, GroupError) else GroupError(str(error))
                    self._fail(failure, "its point-to-point messages")
                    for out in outs.values():  # shut down, and so for ever ready to be written to
                        epoll.unregister(out)
                    outs.clear()
            with self._lock:
                self._is_over = True
            self._fail(ShutDown(), "its point-to-point messages")

    def _step(self, epoll: select.epoll, outs: dict[int, Outgoing]) -> None:
        deadlines = [one.deadline for one in self._waiting()]
        timeout = None if not deadlines else max(0.0, min(deadlines) - time.monotonic())
        ready = dict(epoll.poll(timeout))
        if ready.pop(self._wake.fileno(), 0):
            self._wake.clear()
            self._begin_new(epoll, outs)
        for rank, connection in self._connections.all_incoming(wire.MESSAGES).items():
            if rank not in self._sources:
                self._sources[rank] = _Source(connection)
        for fd in [fd for fd in ready if fd in outs]:
            self._push(epoll, outs, outs[fd])
        for rank in sorted(self._sources):
            self._advance(rank, self._sources[rank])
            self._poll(epoll, self._sources[rank])
        now = time.monotonic()
        late = [one for one in self._waiting() if one.deadline <= now]
        if late:
            ranks = self._connections.ranks
            first = late[0]
            from_whom = "any rank" if first.rank is None else ranks_text([ranks[first.rank]])
            how = "nothing came from" if isinstance(first, _Posted) else "it was not taken by"
            raise TimedOut(f"{first.what} did not end within {first.timeout_s:g} s: {how} {from_whom}")

    def _begin_new(self, epoll: select.epoll, outs: dict[int, Outgoing]) -> None:
        for one in self._taken():
            if self._fate.why is not None:
                one.done(self._sentence(one, self._fate.why), -1)
            elif isinstance(one, _Posted):
                self._posted.append(one)
            else:
                self._sending.append(one)
                out = self._connections.outgoing(wire.MESSAGES, one.rank)
                number = self._counts[one.rank] = self._counts.get(one.rank, -1) + 1
                label = wire.label(collective=number, task=0, size_bytes=len(one.data))
                head = memoryview(wire.header(tag=one.tag, size_bytes=len(one.data)))
                was_empty = out.fileno() not in outs
                out.queue([head, one.data], label, lambda one=one: self._sent(one))  # type: ignore[misc]
                if was_empty:
                    outs[out.fileno()] = out
                    epoll.register(out, select.EPOLLOUT)
                    self._push(epoll, outs, out)

    def _waiting(self) -> list[_Posted | _Sending]:
        return [*self._posted, *self._sending]

    def _taken(self) -> list[_Posted | _Sending]:
        with self._lock:
            new, self._new = list(self._new), deque()
        return new

    def _push(self, epoll: select.epoll, outs: dict[int, Outgoing], out: Outgoing) -> None:
        out.push()
        if out.is_empty and out.fileno() in outs:
            epoll.unregister(out)
            del outs[out.fileno()]

    def _sent(self, one: _Sending) -> None:
        self._sending.remove(one)
        one.done(None, one.rank)

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _advance(self, rank: int, source: _Source) -> None:
        """Give kept messages to the receives that wait for them, and read on as long as a receive waits."""
        while True:
            for tag, data in list(source.kept):
                posted = self._match(rank, tag, len(data))
                if posted is not None:
                    source.kept.remove((tag, data))
                    put(data, posted.target)
                    posted.done(None, rank)
            if source.has_ended or not self._reads(rank, source) or not self._read(rank, source):
                return

    def _reads(self, rank: int, source: _Source) -> bool:
        """Whether to read from a source: a message that is being read, or one for which a receive may wait."""
        return source.data is not None or any(one.rank in (None, rank) for one in self._posted)

    def _poll(self, epoll: select.epoll, source: _Source) -> None:
        rank = next(rank for rank, one in self._sources.items() if one is source)
        wanted = not source.has_ended and self._reads(rank, source)
        if wanted and not source.is_polled:
            epoll.register(source.socket, select.EPOLLIN)
        elif source.is_polled and not wanted:
            epoll.unregister(source.socket)
        source.is_polled = wanted

    def _match(self, rank: int, tag: int, size_bytes: int) -> _Posted | None:
        """Take the first receive that waits for a message; raises GroupError if it wants another number of bytes."""
        for one in self._posted:
            if one.tag == tag and one.rank in (None, rank):
                if len(one.target) != size_bytes:
                    raise GroupError(
                        f"rank {self._connections.ranks[rank]} sent {size_bytes} bytes with tag {tag}, where "
                        f"{len(one.target)} bytes are to be received"
                    )
                self._posted.remove(one)
                return one
        return None

    def _read(self, rank: int, source: _Source) -> bool:
        """Read what has come from a rank, up to the end of a message; return whether it was a whole message."""
        try:
            if source.data is None:
                self._fill(source.socket, source.head, wire.HEADER_BYTES)
                head = wire.parse_header(bytes(source.head))
                if head is None:
                    raise GroupError(f"rank {self._connections.ranks[rank]} sent bytes that begin no message")
                source.tag, source.size_bytes = head
                source.posted = self._match(rank, *head)
                kept = source.posted is None
                source.data = memoryview(bytearray(head[1])) if kept else source.posted.target  # type: ignore[union-attr]
            while source.got_bytes < source.size_bytes:
                left = next(in_memory([source.data[source.got_bytes :]]))
                got = source.socket.recv_into(left, 0, socket.MSG_DONTWAIT)
                if not got:
                    raise EOFError
                source.got_bytes += got
            self._fill(source.socket, source.trailer, wire.LABEL_BYTES)
        except BlockingIOError:
            if source.data is not None:
                left_bytes = source.size_bytes - source.got_bytes + wire.LABEL_BYTES - len(source.trailer)
                await_bytes(source.socket, left_bytes)
            return False
        except (OSError, EOFError):
            self._ended(rank, source)
            return False
        await_bytes(source.socket, 1)
        if source.posted is None:
            source.kept.append((source.tag, source.data))
        else:
            source.posted.done(None, rank)
        source.head.clear()
        source.trailer.clear()
        source.data, source.posted, source.got_bytes, source.size_bytes = None, None, 0, -1
        return True

    def _fill(self, connection: socket.socket, into: bytearray, size_bytes: int) -> None:
        """Read until there are so many bytes; raises BlockingIOError, OSError and EOFError."""
        while len(into) < size_bytes:
            data = connection.recv(size_bytes - len(into), socket.MSG_DONTWAIT)
            if not data:
                raise EOFError
            into += data

    def _ended(self, rank: int, source: _Source) -> None:
        """A rank has closed its connection: that is an error if a message of that rank is awaited."""
        source.has_ended = True
        if source.posted is not None:
            self._posted.append(source.posted)
        if source.head or source.data is not None or any(one.rank == rank for one in self._posted):
            raise LostRank(f"rank {self._connections.ranks[rank]} ended or closed its connections")

    # --- failing -----------------------------------------------------------------------------------------------------

    def _sentence(self, one: _Posted | _Sending, why: str) -> str:
        return f'{one.what} in the group "{self._name}" failed on rank {self._rank}: {why}'

    def _fail(self, error: GroupError, what: str) -> None:
        """End the group, and fail all messages under way."""
        pending: Sequence[_Posted | _Sending] = [*self._posted, *self._sending]
        pending = [*pending, *(one.posted for one in self._sources.values() if one.posted is not None), *self._taken()]
        why = self._fate.fail(error, what)
        self._posted.clear()
        self._sending.clear()
        for source in self._sources.values():
            source.posted, source.has_ended = None, True
        for one in pending:
            one.done(self._sentence(one, why), -1)
