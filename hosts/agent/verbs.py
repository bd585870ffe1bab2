"""Connections of agents over RDMA verbs: messages are sent and arrive on queue pairs, and wake their receiver.

A message and its label are one SEND each (InfiniBand Architecture Specification 1, 9.4). The sender copies both into
memory that its device may read, and goes on at once. The receiver has posted memory for the next messages in advance,
so that no sender waits for a credit. A completion makes a descriptor readable: an agent that waits takes no processor
time.
"""

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from hosts.agent.libibverbs import MOST_REQUESTS, Device, Memory, Peer, timeout_exponent
from hosts.agent.messages import LABEL_BYTES

_KEPT = 1  # memories for messages to come
_POSTED_BYTES, _POSTED_MESSAGES = 1 << 20, 64


def posted_messages(sizes_bytes: Sequence[int]) -> int:
    """Return for how many messages of a connection memory is posted in advance: two, and more if they are short."""
    most = max(2, _POSTED_BYTES // (max(sizes_bytes) + LABEL_BYTES))
    return min(most, _POSTED_MESSAGES, len(sizes_bytes))


class VerbsOutgoing:
    """The sending end of a connection, on which up to `messages` are sent before the first one has arrived."""

    def __init__(self, device: Device, *, messages: int) -> None:
        self._device, self._free, self._used = device, list[Memory](), deque[Memory]()
        room = min(2 * messages + 2, MOST_REQUESTS)
        self._done = device.queue(room)
        self._pair = device.queue_pair(sending=self._done, receiving=self._done, sends=room, receives=1)

    @property
    def end(self) -> Peer:
        """What the receiver must know of this end."""
        return self._pair.end

    def connect(self, peer: Peer, *, dscp: int, wait_s: float) -> None:
        """Connect it with its peer; what is not acknowledged within `wait_s` is sent again. Raises OSError."""
        self._pair.connect(peer, dscp=dscp, timeout=timeout_exponent(wait_s))

    def send(self, views: Sequence[memoryview], label: bytes, *, lent: bool = False) -> int:
        """Send a message and its label, from copies; return how many bytes that are. Raises OSError."""
        assert not lent
        size = sum(map(len, views))
        memory = self._memory(size + LABEL_BYTES)
        at = 0
        for view in (*views, memoryview(label)):
            memory.view[at : at + len(view)] = view
            at += len(view)
        if size:
            self._pair.send(memory, 0, size, identifier=None)
        self._pair.send(memory, size, len(label), identifier=1)
        self._used.append(memory)
        return at

    @property
    def lender(self) -> None:
        """Nothing is lent: messages are copied to memory of the device."""

    def touch(self) -> None:
        """Send a short message; raises OSError."""
        self.send([], bytes(LABEL_BYTES))

    def close(self) -> None:
        """Destroy the connection and its memory."""
        self._pair.close()
        self._device.free_queue(self._done)
        for one in (*self._free, *self._used):
            self._device.free(one)

    def _memory(self, size_bytes: int) -> Memory:
        """Return memory that no message uses; messages are done in the order in which they were sent.

        What is kept is little: memory for the most that waits at each slow link would be several times as much as waits
        at any time at all of them together.
        """
        for _ in self._device.completions(self._done):
            self._free.append(self._used.popleft())
        while len(self._free) > _KEPT:
            self._device.free(self._free.pop())
        found = next((one for one in self._free if len(one.view) >= size_bytes), None)
        if found is None:
            return self._device.memory(size_bytes)
        self._free.remove(found)
        return found


class VerbsIncoming:
    """The receiving end of a connection, for messages of `sizes_bytes` one after the other, again in each collective.

    Its descriptor is readable once the message that is expected has arrived whole, or the TCP `connection` beside it
    has ended: nobody tells a queue pair that the process at its other end has died.
    """

    def __init__(
        self, device: Device, connection: socket.socket, sizes_bytes: Sequence[int], *, deadline_s: float
    ) -> None:
        self._connection = connection
        self._device, self._sizes, self._deadline_s = device, list(sizes_bytes), deadline_s
        largest = max(sizes_bytes) + LABEL_BYTES
        self._ahead = posted_messages(sizes_bytes)
        self._memories = [device.memory(largest) for _ in range(self._ahead)]
        room = 2 * self._ahead + 2
        self._channel, self._events = device.channel()
        self._done = device.queue(room, self._channel)
        self._pair = device.queue_pair(sending=self._done, receiving=self._done, sends=1, receives=room)
        self._posted, self._read, self._arrived = 0, 0, 0  # messages of this collective
        self._at = 0  # bytes that were read of the present message
        # Readable on an event of the channel, or at once where a completion was found without one.
        self._found = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready = select.epoll()
        for fd in (self._events, self._found, connection.fileno()):
            self._ready.register(fd, select.EPOLLIN)

    @property
    def end(self) -> Peer:
        """What the sender must know of this end."""
        return self._pair.end

    def connect(self, peer: Peer, *, dscp: int, wait_s: float) -> None:
        """Connect it with its peer; `wait_s` is as for the sender. Raises OSError."""
        self._pair.connect(peer, dscp=dscp, timeout=timeout_exponent(wait_s))

    def fileno(self) -> int:
        """The descriptor that is readable once the expected message has arrived."""
        return self._ready.fileno()

    def begin_touch(self) -> None:
        """Post memory for a short message; raises OSError."""
        self._read = self._arrived = 0
        self._pair.receive(self._memories[0], 0, LABEL_BYTES, identifier=1)

    def end_touch(self) -> None:
        """Wait for the short message; raises OSError."""
        self._await()

    def post_first(self) -> None:
        """Post memory for the first messages of a collective; raises OSError."""
        self._posted = self._read = self._arrived = self._at = 0
        self._post()

    def begin(self, *, polls: bool, wait: Callable[[socket.socket], None] | None) -> None:
        """Do nothing: memory has been posted before the collective begins, and messages arrive whole."""

    def expect(self, size_bytes: int) -> None:
        """Make the descriptor readable once the next message, of `size_bytes` with its label, has arrived."""
        del size_bytes  # messages arrive whole
        self._look()

    def fill(self, into: memoryview) -> int:
        """Wait for the present message and copy its next bytes; return their number. Raises OSError."""
        self._await()
        memory = self._memories[self._read % self._ahead]
        into[:] = memory.view[self._at : self._at + len(into)]
        self._at += len(into)
        if self._at == self._sizes[self._read] + LABEL_BYTES:
            self._at, self._read = 0, self._read + 1
            self._post()
        return len(into)

    def close(self) -> None:
        """Destroy the connection and its memory."""
        self._pair.close()
        self._device.free_queue(self._done, self._channel)
        self._ready.close()
        os.close(self._found)
        for one in self._memories:
            self._device.free(one)

    def _post(self) -> None:
        while self._posted < min(self._read + self._ahead, len(self._sizes)):
            memory, size = self._memories[self._posted % self._ahead], self._sizes[self._posted]
            if size:
                self._pair.receive(memory, 0, size, identifier=0)
            self._pair.receive(memory, size, LABEL_BYTES, identifier=1)
            self._posted += 1

    def _look(self) -> None:
        """Count what has arrived, and ask for an event if the present message has not."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._found)
        self._device.take_events(self._channel, self._done)
        for is_asked in (False, True):
            self._arrived += sum(self._device.completions(self._done))
            if self._arrived > self._read:
                os.eventfd_write(self._found, 1)
                return
            if not is_asked:  # what arrives before this is found by looking once more
                self._device.ask_for_event(self._done)

    def _await(self) -> None:
        while self._arrived <= self._read:
            self._look()
            if self._arrived > self._read:
                return
            if self._has_ended():
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            if not self._ready.poll(self._deadline_s):
                raise BlockingIOError(errno.EAGAIN, "nothing has arrived")

    def _has_ended(self) -> bool:
        """Return whether the other end has closed the TCP connection, on which nothing is sent meanwhile."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
