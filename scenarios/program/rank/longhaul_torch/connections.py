"""TCP connections between the ranks of a group: one for each ordered pair of ranks, channel, and what it carries.

A process has one listener for all of its groups. Whoever connects begins with a hello, which holds the group's token.
"""

import errno
import resource
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from . import wire
from .blank import Buffer, in_memory
from .errors import LostRank, ShutDown, TimedOut, ranks_text
from .waking import Wake

_MSG_EOR = 0x80  # not in every Python's socket module
_MAX_VIEWS = 1000  # Linux accepts at most 1024 buffers in one sendmsg()
_READS = 8  # of a connection's full buffer
_BACKLOG = 4096
_MAX_UNKNOWN = 1024  # connections that have not said hello yet

Key = tuple[int, int, int]
"""A connection: what it carries, the rank at its other end, and its channel."""


class Peer(NamedTuple):
    """Where a rank of a group listens, and the token with which connections to it begin."""

    host: str
    port: int
    token: bytes


def await_bytes(source: socket.socket, size_bytes: int) -> None:
    """Make a connection readable when so many more bytes have come, or an eighth of its buffer if that is less.

    A large message would otherwise wake its rank with every packet: with GPT-2's gradients on eight ranks, that took
    seven times the processor time. Most of the buffer stays free, so the sender's window does not close meanwhile.
    """
    room = source.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(1, min(size_bytes, room // _READS)))


class Outgoing:
    """A connection on which this rank sends; it begins to connect at once, and sends its hello first."""

    def __init__(self, rank: int, peer: Peer, hello: bytes) -> None:
        self.rank = rank
        family = socket.AF_INET6 if ":" in peer.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unsent: deque[tuple[deque[memoryview], Callable[[], None] | None]] = deque()
        self._add([memoryview(hello)], None)
        failed = self._socket.connect_ex((peer.host, peer.port))
        if failed not in (0, errno.EINPROGRESS):
            self._socket.close()
            raise LostRank(f"rank {rank} cannot be reached: {OSError(failed, '').strerror or errno.errorcode[failed]}")

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    @property
    def is_empty(self) -> bool:
        """Whether everything has been handed to the kernel."""
        return not self._unsent

    def queue(self, views: Iterable[Buffer], label: bytes, done: Callable[[], None] | None = None) -> None:
        """Queue a message and its label; call `done` when both have been handed to the kernel.

        A shaper (HTB) sends a packet first and charges its cost to the packets after it. The label has a packet of its
        own, which arrives when the whole message is paid for.
        """
        self._add(views, None)
        self._add([memoryview(label)], done)

    def _add(self, views: Iterable[Buffer], done: Callable[[], None] | None) -> None:
        parts = deque(view for view in in_memory(views) if len(view))
        if parts or done:
            self._unsent.append((parts, done))

    def push(self) -> None:
        """Hand over as much as the kernel takes; raises LostRank."""
        try:
            while self._unsent:
                views, done = self._unsent[0]
                if not self._pushed(views):
                    return
                self._unsent.popleft()
                if done is not None:
                    done()
        except OSError as error:
            raise LostRank(f"rank {self.rank} takes no more messages: {error.strerror}") from None

    def _pushed(self, views: deque[memoryview]) -> bool:
        while views:
            batch = list(islice(views, _MAX_VIEWS))
            # MSG_EOR: the label must not be appended to the last packet of the message.
            flags = _MSG_EOR if len(batch) == len(views) else socket.MSG_MORE
            try:
                sent = self._socket.sendmsg(batch, (), flags | socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            while views and sent >= len(views[0]):
                sent -= len(views.popleft())
            if sent:
                views[0] = views[0][sent:]
        return True

    def shut_down(self) -> None:
        """End the connection; the kernel still delivers what was handed over."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the kernel still delivers what was handed over."""
        self._socket.close()


class Listener:
    """Accepts connections for all groups of this process, in a thread of its own, at this address; raises OSError."""

    def __init__(self, host: str) -> None:
        # A group takes two descriptors for each other rank, and a process has 1,024 unless it asks for more.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._groups: dict[bytes, Callable[[Key, socket.socket], None]] = {}
        self._lock, self._wake, self._ends = threading.Lock(), Wake(), False
        self._thread = threading.Thread(target=self._run, name="longhaul-accept", daemon=True)
        self._thread.start()

    def expect(self, token: bytes, arrived: Callable[[Key, socket.socket], None]) -> None:
        """From now on call `arrived` for each connection whose hello has this token."""
        with self._lock:
            self._groups[token] = arrived

    def forget(self, token: bytes) -> None:
        """From now on refuse connections with this token."""
        with self._lock:
            self._groups.pop(token, None)

    def close(self) -> None:
        """Stop to listen."""
        self._ends = True
        self._wake.set()
        self._thread.join()
        self._wake.close()

    def _run(self) -> None:
        unknown: dict[socket.socket, bytearray] = {}
        with selectors.EpollSelector() as selector, self._socket:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while not self._ends:
                for key, _ in selector.select():
                    if key.fileobj is self._socket:
                        self._accept(selector, unknown)
                    elif isinstance(key.fileobj, socket.socket):
                        self._greet(selector, key.fileobj, unknown)
            for one in unknown:
                one.close()

    def _accept(self, selector: selectors.EpollSelector, unknown: dict[socket.socket, bytearray]) -> None:
        with suppress(OSError):
            peer, _ = self._socket.accept()
            if len(unknown) >= _MAX_UNKNOWN:
                oldest = next(iter(unknown))
                selector.unregister(oldest)
                del unknown[oldest]
                oldest.close()
            peer.setblocking(False)
            unknown[peer] = bytearray()
            selector.register(peer, selectors.EVENT_READ)

    def _greet(
        self, selector: selectors.EpollSelector, peer: socket.socket, unknown: dict[socket.socket, bytearray]
    ) -> None:
        """Read more of a hello; give the connection to its group once it is there, and close it if it has none."""
        data = b""
        with suppress(OSError):
            data = peer.recv(wire.HELLO_BYTES - len(unknown[peer]))
        unknown[peer] += data
        if data and len(unknown[peer]) < wire.HELLO_BYTES:
            return
        selector.unregister(peer)
        hello = wire.parse_hello(bytes(unknown.pop(peer)))
        with self._lock:
            arrived = None if hello is None else self._groups.get(hello[3])
            if arrived is None or hello is None:
                peer.close()
            else:
                arrived((hello[2], hello[0], hello[1]), peer)


class Connections:
    """The connections of one group, of which this rank is number `rank`; connections to it begin with `token`.

    `ranks` are the ranks in the world, for errors. `peers` are to be set before the first connection is made, and
    `wakes` are set whenever a connection has come in.
    """

    def __init__(
        self,
        *,
        rank: int,
        ranks: list[int],
        listener: Listener,
        token: bytes,
    ) -> None:
        self._rank, self.ranks, self._listener, self._token = rank, ranks, listener, token
        self.peers, self.wakes = list[Peer](), list[Wake]()
        self._outgoing: dict[Key, Outgoing] = {}
        self._incoming: dict[Key, socket.socket] = {}
        self._changed, self._is_closed = threading.Condition(), False
        listener.expect(token, self.arrived)

    def arrived(self, key: Key, connection: socket.socket) -> None:
        """Take over a connection that a rank has made."""
        with self._changed:
            if self._is_closed or key in self._incoming or not 0 <= key[1] < len(self.ranks):
                connection.close()
                return
            self._incoming[key] = connection
            self._changed.notify_all()
            for wake in self.wakes:
                wake.set()

    def outgoing(self, carries: int, rank: int, channel: int = 0) -> Outgoing:
        """Return the connection to a rank; it is made if there is none. Raises LostRank and GroupError."""
        key = carries, rank, channel
        with self._changed:
            if self._is_closed:
                raise ShutDown
            if key not in self._outgoing:
                hello = wire.hello(rank=self._rank, channel=channel, carries=carries, token=self.peers[rank].token)
                self._outgoing[key] = Outgoing(self.ranks[rank], self.peers[rank], hello)
            return self._outgoing[key]

    def incoming(self, carries: int, rank: int, channel: int = 0) -> socket.socket | None:
        """Return the connection from a rank, None until it has come in."""
        with self._changed:
            return self._incoming.get((carries, rank, channel))

    def all_incoming(self, carries: int) -> dict[int, socket.socket]:
        """Return all connections that have come in, by rank."""
        with self._changed:
            return {key[1]: one for key, one in self._incoming.items() if key[0] == carries}

    def connect_all(self, timeout_s: float) -> None:
        """Connect to every other rank for collectives, and wait for the connections of all; raises GroupError."""
        others = [rank for rank in range(len(self.ranks)) if rank != self._rank]
        deadline = time.monotonic() + timeout_s
        waiting = {one.fileno(): one for one in (self.outgoing(wire.COLLECTIVES, rank) for rank in others)}
        with selectors.EpollSelector() as selector:
            for fd in waiting:
                selector.register(fd, selectors.EVENT_WRITE)
            while waiting:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                for key, _ in ready:
                    waiting[key.fd].push()
                    if waiting[key.fd].is_empty:
                        selector.unregister(key.fd)
                        del waiting[key.fd]
                if not ready and time.monotonic() >= deadline:
                    raise TimedOut(f"{ranks_text([one.rank for one in waiting.values()])} could not be reached")
        wanted = {(wire.COLLECTIVES, rank, 0) for rank in others}
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._is_closed or wanted <= self._incoming.keys(), max(0.0, deadline - time.monotonic())
            ):
                missing = sorted(self.ranks[rank] for _, rank, _ in wanted - self._incoming.keys())
                raise TimedOut(f"{ranks_text(missing)} did not connect")

    def shut_down(self) -> None:
        """End all connections, which threads may be using, and take no more; both ends then read their end."""
        self._listener.forget(self._token)
        with self._changed:
            self._is_closed = True
            for one in self._outgoing.values():
                one.shut_down()
            for source in self._incoming.values():
                with suppress(OSError):
                    source.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()
            for wake in self.wakes:
                wake.set()

    def close(self) -> None:
        """Close all connections; no thread may be using them."""
        self._listener.forget(self._token)
        with self._changed:
            self._is_closed = True
            for out in self._outgoing.values():
                out.close()
            for source in self._incoming.values():
                source.close()
            self._changed.notify_all()
