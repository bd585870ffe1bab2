"""Connections between agents as an execution uses them: the protocol, and connections over TCP.

`hosts.agent.verbs` has those over RDMA.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from hosts.agent.transport import MAX_WINDOW_BYTES, MSG_ZEROCOPY

MSG_EOR = 0x80  # not in Python 3.11's socket module
MAX_VIEWS = 1000
"""Buffers in one sendmsg(); Linux accepts at most 1024."""


class Outgoing(Protocol):
    """The sending end of a connection."""

    @property
    def lender(self) -> socket.socket | None:
        """The socket to which memory can be lent (MSG_ZEROCOPY); None if it copies all."""

    def send(self, views: Sequence[memoryview], label: bytes, *, lent: bool) -> int:
        """Hand a message and its label over, whole; return how many bytes were taken. With `lent` the message is not
        copied. Raises OSError."""


class Incoming(Protocol):
    """The receiving end of a connection; its descriptor is readable once the message that is expected has arrived."""

    def fileno(self) -> int:
        """Return the descriptor."""

    def begin(self, *, polls: bool, wait: Callable[[socket.socket], None] | None) -> None:
        """Begin a collective: `polls` tells that messages are filled in once the descriptor was readable. `wait` is
        called to wait for the rest of a message, in place of blocking."""

    def expect(self, size_bytes: int) -> None:
        """Make the descriptor readable once so many bytes, a message with its label, have arrived."""

    def fill(self, into: memoryview) -> int:
        """Fill memory with the next bytes; return how many came, fewer only if the connection ends. Raises OSError."""


class TcpOutgoing:
    """The sending end of a TCP connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    @property
    def lender(self) -> socket.socket | None:
        """The connection, which takes lent memory."""
        return self.connection

    def send(self, views: Sequence[memoryview], label: bytes, *, lent: bool) -> int:
        """Hand a message over, and then its label in a separate packet.

        A shaper (HTB) sends a packet first and charges its cost to the packets after it, so a message's last packet
        arrives too early by its own transmission time. The label's packet arrives when the whole message is paid for.
        """
        sent = 0
        for first in range(0, len(views), MAX_VIEWS):
            is_last = first + MAX_VIEWS >= len(views)
            # MSG_EOR: the label must not be appended to the last packet of the message.
            flags = (MSG_EOR if is_last else socket.MSG_MORE) | (MSG_ZEROCOPY if lent else 0)
            sent += self.connection.sendmsg(views[first : first + MAX_VIEWS], (), flags)
        return sent + self.connection.sendmsg([label])


class TcpIncoming:
    """The receiving end of a TCP connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._polls = connection, False
        self._wait: Callable[[socket.socket], None] | None = None

    def fileno(self) -> int:
        """Return the connection's descriptor."""
        return self._connection.fileno()

    def begin(self, *, polls: bool, wait: Callable[[socket.socket], None] | None) -> None:
        """Begin a collective, as `Incoming.begin` says."""
        self._polls, self._wait = polls, wait

    def expect(self, size_bytes: int) -> None:
        """Make the connection readable once so many bytes have arrived, or as many as ever wait to be read."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(size_bytes, MAX_WINDOW_BYTES))

    def fill(self, into: memoryview) -> int:
        """Fill memory with the next bytes of the connection."""
        got = 0
        if self._polls:
            with suppress(BlockingIOError):
                got = self._connection.recv_into(into, 0, socket.MSG_WAITALL | socket.MSG_DONTWAIT)
            if got == len(into):
                return got
            # A connection with a nearly full window is readable before its message is whole. A blocking read would
            # wait for SO_RCVLOWAT bytes, and the rest of the message is less than that.
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            while self._wait and got < len(into):  # the rest may wait for a rank that waits for this one
                self._wait(self._connection)
                more = self._connection.recv_into(into[got:], 0, socket.MSG_DONTWAIT)
                if not more:
                    break
                got += more
            if self._wait:
                return got
        return got + self._connection.recv_into(into[got:], 0, socket.MSG_WAITALL)
