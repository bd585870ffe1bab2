"""Executes a rank's part of a collective on the slots of its buffers: sends, receives and adds messages.

It follows the plan's program as the testbed's own agents do (`hosts.agent.execution`): a message is sent as soon as
everything it waits for has arrived and the message before it on its connection has been handed over. What the kernel
does not take at once is handed over as its buffers empty, while messages are received.
"""

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from . import wire
from .blank import Buffer, in_memory, new, put
from .connections import Connections, Outgoing, await_bytes
from .errors import GroupError, LostRank, ShutDown, TimedOut, ranks_text
from .planner import Message, Plan
from .waking import Wake

_MAX_VIEWS = 1000  # Linux accepts at most 1024 buffers in one recvmsg()
_IDLE_S = 1.0  # after which a rank looks at what has come

Add = Callable[[Buffer, Buffer], None]
"""Adds the second slot to the first."""


class Slots:
    """The slots of a rank's buffers in a collective.

    `views` has the bytes of each slot that this rank uses, `filled` the slots that have contents at the beginning: a
    message that is added to any other slot is copied to it.
    """

    def __init__(self, views: Mapping[int, Buffer], filled: set[int], slot_bytes: int) -> None:
        self._views, self._filled, self._slot_bytes = dict(views), filled, slot_bytes
        self._any: Buffer = next(iter(self._views.values()), memoryview(b""))

    def view(self, slot: int) -> Buffer:
        """Return the bytes of a slot; a scratch slot gets its memory when it is first used."""
        if slot not in self._views:
            self._views[slot] = new(self._slot_bytes, self._any)
        return self._views[slot]

    def has_contents(self, slot: int) -> bool:
        """Return whether a slot has contents."""
        return slot in self._filled

    def fill(self, slot: int) -> None:
        """Note that a slot has contents."""
        self._filled.add(slot)


class _Arrival:
    """A message that is arriving: where its bytes and its label go."""

    def __init__(self, message: Message, slots: Slots) -> None:
        self.message = message
        targets = [slots.view(slot) for slot in message.slots]
        if message.adds:
            targets = [new(len(view), view) for view in targets]
        self.targets, self.label = targets, memoryview(bytearray(wire.LABEL_BYTES))
        self.size_bytes = sum(map(len, targets))
        self.got_bytes = 0
        self._memory = [*in_memory(targets), self.label]
        self._left = deque(view for view in self._memory if len(view))

    def read(self, source: socket.socket) -> bool:
        """Read what has come of the message; return whether it is whole. Raises OSError and EOFError."""
        while self._left:
            try:
                got = source.recvmsg_into(list(islice(self._left, _MAX_VIEWS)), 0, socket.MSG_DONTWAIT)[0]
            except BlockingIOError:
                return False
            if not got:
                raise EOFError
            self.got_bytes += got
            while self._left and got >= len(self._left[0]):
                got -= len(self._left.popleft())
            if got:
                self._left[0] = self._left[0][got:]
        return True

    @property
    def left_bytes(self) -> int:
        """The bytes of the message and its label that have not come."""
        return self.size_bytes + wire.LABEL_BYTES - self.got_bytes

    def so_far(self) -> bytes:
        """Return the bytes that have come."""
        return b"".join(self._memory)[: self.got_bytes]

    def ends_early(self) -> wire.Label | None:
        """Return the label of a message that is shorter than the expected one, if that is what has come."""
        if self.got_bytes < wire.LABEL_BYTES:
            return None
        tail, stop = bytearray(), self.size_bytes + wire.LABEL_BYTES
        first = self.got_bytes - wire.LABEL_BYTES  # the label's place, in bytes from the message's start
        for view in reversed(self._memory):
            start = stop - len(view)
            tail[:0] = view[max(0, first - start) : max(0, self.got_bytes - start)]
            stop = start
            if start <= first:
                break
        found = wire.parse_label(bytes(tail))
        return found if found is not None and found.size_bytes == self.got_bytes - wire.LABEL_BYTES else None


class Execution:
    """The execution of one collective on one rank; call `run` once.

    `collective` is the field of its labels (`wire.collective_of`). `wake` is set when a connection has come in, or
    when the group is over.
    """

    def __init__(
        self, plan: Plan, *, collective: int, slots: Slots, add: Add | None, connections: Connections, wake: Wake
    ) -> None:
        self._collective, self._slots, self._add = collective, slots, add
        self._connections, self._wake = connections, wake
        self.sent_ns = time.monotonic_ns()
        # By task: when each message was handed over and its bytes, and when each one had arrived.
        self.sent, self.arrived = dict[int, tuple[int, int]](), dict[int, int]()
        self._outgoing: list[Outgoing] = [
            connections.outgoing(wire.COLLECTIVES, rank, channel) for rank, channel, _ in plan.sends
        ]
        self._sends = [deque(messages) for _, _, messages in plan.sends]
        self._sources = [(rank, channel) for rank, channel, _ in plan.receives]
        self._receives = [deque(messages) for _, _, messages in plan.receives]
        self._incoming: list[socket.socket | None] = [None] * len(self._sources)
        self._arrivals: list[_Arrival | None] = [None] * len(self._sources)
        self._done = set[int]()
        self._sends_after: dict[int, list[int]] = {}
        for index, messages in enumerate(self._sends):
            for task in {task for message in messages for task in message.after}:
                self._sends_after.setdefault(task, []).append(index)

    def waits_for(self) -> list[int]:
        """Return the world's ranks from which messages are missing, or else those that do not take this rank's."""
        ranks = self._connections.ranks
        missing = {ranks[rank] for (rank, _), left in zip(self._sources, self._receives, strict=True) if left}
        return sorted(missing or {one.rank for one in self._outgoing if not one.is_empty})

    def run(self, deadline: float) -> None:
        """Execute until everything has arrived and been handed over; `deadline` is in seconds of `time.monotonic`.

        Raises GroupError: LostRank, TimedOut, or that ranks disagree about the collective.
        """
        with select.epoll() as epoll:
            epoll.register(self._wake, select.EPOLLIN)
            senders = {one.fileno(): index for index, one in enumerate(self._outgoing)}
            receivers: dict[int, int] = {}
            pushing = set[int]()
            self._start_ready(epoll, pushing, range(len(self._sends)))
            self._take_arrived(epoll, receivers)
            while any(self._receives) or pushing:
                ready = dict(epoll.poll(max(0.0, min(deadline - time.monotonic(), _IDLE_S))))
                is_late = not ready and time.monotonic() >= deadline
                if not ready:  # another message than the expected one may be shorter, and wait to be looked at
                    ready = dict.fromkeys(receivers, select.EPOLLIN)
                if ready.pop(self._wake.fileno(), 0):
                    self._wake.clear()
                    if self._wake.is_over:
                        raise ShutDown
                    self._take_arrived(epoll, receivers)
                for index in sorted(senders[fd] for fd in ready if fd in senders):
                    self._push(epoll, pushing, index)
                for index in sorted(receivers[fd] for fd in ready if fd in receivers):
                    self._serve(epoll, receivers, pushing, index, deadline)
                if is_late:
                    raise TimedOut(f"nothing came from {ranks_text(self.waits_for())}")

    # --- sending -----------------------------------------------------------------------------------------------------

    def _start_ready(self, epoll: select.epoll, pushing: set[int], indices: Sequence[int]) -> None:
        now_ns = time.monotonic_ns()
        for index in indices:
            sends, out = self._sends[index], self._outgoing[index]
            is_any = False
            while sends and self._done.issuperset(sends[0].after):
                message = sends.popleft()
                views = [self._slots.view(slot) for slot in message.slots]
                size = sum(map(len, views))
                label = wire.label(collective=self._collective, task=message.task, size_bytes=size)
                out.queue(views, label, self._handed_over)
                self.sent[message.task] = now_ns, size
                is_any = True
            if is_any and index not in pushing:
                pushing.add(index)
                epoll.register(out, select.EPOLLOUT)
                self._push(epoll, pushing, index)

    def _handed_over(self) -> None:
        self.sent_ns = time.monotonic_ns()

    def _push(self, epoll: select.epoll, pushing: set[int], index: int) -> None:
        self._outgoing[index].push()
        if self._outgoing[index].is_empty and index in pushing:
            pushing.remove(index)
            epoll.unregister(self._outgoing[index])

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _take_arrived(self, epoll: select.epoll, receivers: dict[int, int]) -> None:
        """Poll the connections that have come in and are to be read."""
        for index, (rank, channel) in enumerate(self._sources):
            if self._incoming[index] is None and self._receives[index]:
                found = self._connections.incoming(wire.COLLECTIVES, rank, channel)
                if found is not None:
                    self._incoming[index] = found
                    receivers[found.fileno()] = index
                    epoll.register(found, select.EPOLLIN)

    def _serve(
        self, epoll: select.epoll, receivers: dict[int, int], pushing: set[int], index: int, deadline: float
    ) -> None:
        """Read of the next message of a connection; once it is whole, start what waits for it."""
        source, receives = self._incoming[index], self._receives[index]
        rank = self._connections.ranks[self._sources[index][0]]
        assert source is not None
        arrival = self._arrivals[index]
        if arrival is None:
            arrival = self._arrivals[index] = _Arrival(receives[0], self._slots)
        try:
            if not arrival.read(source):
                if (short := arrival.ends_early()) is not None:
                    raise self._disagreement(rank, arrival, short)
                await_bytes(source, arrival.left_bytes)
                return
        except (OSError, EOFError):
            raise LostRank(f"rank {rank} ended or closed its connections") from None
        message = arrival.message
        found = wire.parse_label(bytes(arrival.label))
        if found != wire.Label(message.task, self._collective, arrival.size_bytes):
            raise self._disagreement(rank, arrival, found or self._true_label(source, arrival, deadline))
        for slot, target in zip(message.slots, arrival.targets, strict=True):
            if message.adds:
                self._add_to(slot, target)
            self._slots.fill(slot)
        receives.popleft()
        self.arrived[message.task] = time.monotonic_ns()
        self._arrivals[index] = None
        self._done.add(message.task)
        # What has come of the next message is read at once: Linux acknowledges unread bytes after up to 40 ms only, and
        # the sender would wait for that.
        await_bytes(source, 1)
        if not receives:
            del receivers[source.fileno()]
            epoll.unregister(source)
        self._start_ready(epoll, pushing, self._sends_after.get(message.task, ()))

    def _add_to(self, slot: int, data: Buffer) -> None:
        if self._slots.has_contents(slot):
            if self._add is None:
                raise GroupError("the run's plan adds messages where nothing is reduced")
            self._add(self._slots.view(slot), data)
        else:
            put(data, self._slots.view(slot))

    # --- disagreement ------------------------------------------------------------------------------------------------

    def _true_label(self, source: socket.socket, arrival: _Arrival, deadline: float) -> wire.Label | None:
        """Read on until the label of the message that a rank really sends; None if none comes."""
        data = bytearray(arrival.so_far())
        await_bytes(source, 1)
        poll = select.poll()
        poll.register(source, select.POLLIN)
        with suppress(OSError):
            while (found := wire.find_label(bytes(data))) is None:
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
                    break
                more = source.recv(1 << 20, socket.MSG_DONTWAIT)
                if not more:
                    break
                data += more
            return found
        return None

    def _disagreement(self, rank: int, arrival: _Arrival, found: wire.Label | None) -> GroupError:
        due = wire.described(wire.Label(arrival.message.task, self._collective, arrival.size_bytes))
        sent = "bytes without a label" if found is None else wire.described(found)
        return GroupError(f"rank {rank} sent {sent}, where {due} was due")
