"""Executes a rank's program once, for one collective: sends and receives messages, verifies and adds them, computes.

A message that is ready is handed to the kernel at once and whole. The send buffers can hold everything that a rank
sends in a collective, so a rank never blocks in sending and always receives. Where they cannot (`is_windowed`), a rank
hands over as much as they hold, and the rest as they empty, while it receives and also while it waits for the rest of a
message. An arriving message is verified part by
part, while each part is still in the processor's caches: reading a large message from memory again would make a
collective take a quarter longer. In virtual time verification takes no time, like all computing; on a wall clock it is
part of the measured time.

A rank with a single incoming connection and no computations blocks in reading that connection. Any other rank polls
all its connections, each of which becomes readable when its next message has arrived whole (SO_RCVLOWAT), and serves
the readable ones in the program's order.
"""

import heapq
import select
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from hosts.agent import messages
from hosts.agent.buffers import MIN_LENT_BYTES, Buffers
from hosts.agent.clock import Timer, now_ns
from hosts.agent.connections import MAX_VIEWS, MSG_EOR, Incoming, Outgoing
from hosts.agent.payload import Payload
from hosts.agent.rank_program import Computation, Program, Receive, Send, Term, message_bytes


class AgentError(Exception):
    """Raised if an agent cannot execute a command; the message is a sentence without its subject, "GPU n"."""


class Execution:
    """The execution of one collective on one rank; call `run` once.

    `outgoing` and `incoming` are the connections in the order of `program.sends` and `program.receives`. `flip` is
    [task, byte], the byte of a message to corrupt on arrival (fault injection), or []. `is_windowed` tells that send
    buffers may be too small for what a connection sends in a collective.
    """

    def __init__(
        self,
        program: Program,
        *,
        collective: int,
        outgoing: Sequence[Outgoing],
        incoming: Sequence[Incoming],
        payload: Payload,
        buffers: Buffers,
        slot_bytes: int,
        deadline_s: float,
        flip: Sequence[int] = (),
        is_windowed: bool = False,
    ) -> None:
        self._is_windowed = is_windowed
        self._unsent = [deque[_Unsent]() for _ in outgoing]
        self._epoll: select.epoll | None = None
        self._program, self._collective, self._flip = program, collective, flip
        self._outgoing, self._incoming = outgoing, incoming
        self._payload, self._buffers = payload, buffers
        self._slot_bytes, self._sizes = slot_bytes, dict(program.sizes)
        self._deadline_ns = round(deadline_s * 1e9)
        self._scratch = buffers.scratch
        self._label = memoryview(bytearray(messages.LABEL_BYTES))
        self._own = dict(program.own)
        # Remaining work. Servers are numbered: first the outgoing connections, then the streams of computations.
        self._sends = [deque(sends) for _, _, sends in program.sends]
        self._streams = [deque(tasks) for tasks in program.computations]
        self._receives = [deque(receives) for _, _, receives in program.receives]
        self._servers_after = self._servers_by_dependency()
        self._running: list[tuple[int, int]] = []  # a heap of (end in ns, stream), one per running computation
        self._done = set[int]()
        self._polls = False
        # State of the slots: their current uses (an index into `program.uses`) and their buffers.
        self._tasks_left = [use.tasks for use in program.uses]
        self._arrivals_left = [use.arrivals for use in program.uses]
        self._use_of: dict[int, int] = {}
        self._buffer_of: dict[int, memoryview] = {}
        # Results.
        self._sent_ns, self._arrived_ns = dict[int, int](), dict[int, int]()
        self._faults: list[dict[str, object]] = []

    def run(self, began_ns: int) -> Mapping[str, object]:
        """Execute the program from `began_ns`, which is now, and return when all of its tasks are done.

        The answer holds `start_ns`; `sent_ns`, pairs [task, ns] of when a message was handed to the kernel or a
        computation began; `arrived_ns`, pairs [task, ns] of when a message had arrived whole or a computation ended;
        and `faults`, the messages that failed verification. The time at which a message is sent is the time at which
        the last task it depends on finished. Raises AgentError.
        """
        self._polls = len(self._incoming) != 1 or bool(self._streams) or self._is_windowed
        for connection in self._incoming:
            connection.begin(polls=self._polls, wait=self._await if self._is_windowed else None)
        self._start_ready(range(len(self._sends) + len(self._streams)), began_ns)
        if not self._polls:
            # Woken for parts of messages instead (SO_RCVLOWAT), 32 ranks over ports switch 2,286 times an AllGather in
            # place of 122,830. But in slow start an AllReduce of 0.4 s took 1.2 s: acknowledgements follow reading.
            while self._receives[0]:
                self._serve(0)
        else:
            self._serve_all(began_ns)
        return {
            "start_ns": began_ns,
            "sent_ns": list(self._sent_ns.items()),
            "arrived_ns": list(self._arrived_ns.items()),
            "faults": self._faults,
        }

    # --- order of tasks --------------------------------------------------------------------------------------------

    def _servers_by_dependency(self) -> dict[int, list[int]]:
        """Return, for each task, the servers with a task that depends on it."""
        servers_after: dict[int, list[int]] = {}
        servers: list[deque[Send] | deque[Computation]] = [*self._sends, *self._streams]
        for server, tasks in enumerate(servers):
            for dependency in {dependency for task in tasks for dependency in task.after}:
                servers_after.setdefault(dependency, []).append(server)
        return servers_after

    def _complete(self, task: int, now: int) -> None:
        self._arrived_ns[task] = now
        self._done.add(task)
        self._start_ready(self._servers_after.get(task, ()), now)

    def _start_ready(self, servers: Sequence[int], now: int) -> None:
        """Start every task of these servers that is ready, and of servers that a zero-length computation releases."""
        pending = deque(servers)
        while pending:
            server = pending.popleft()
            if server < len(self._sends):
                sends = self._sends[server]
                while sends and self._done.issuperset(sends[0].after):
                    self._sent_ns[sends[0].task] = now
                    self._send(server, sends.popleft())
                continue
            stream = server - len(self._sends)
            tasks = self._streams[stream]
            while tasks and tasks[0].task not in self._sent_ns and self._done.issuperset(tasks[0].after):
                task = tasks[0]
                self._sent_ns[task.task] = now
                if task.duration_ns:
                    heapq.heappush(self._running, (now + task.duration_ns, stream))
                    break
                self._arrived_ns[task.task] = now
                self._done.add(task.task)
                pending += self._servers_after.get(task.task, ())
                tasks.popleft()

    def _serve(self, connection: int) -> None:
        """Receive the next message of a connection, and start the tasks that depend on it."""
        receive = self._receives[connection][0]
        fault = self._receive(connection, receive)
        now = now_ns()
        self._receives[connection].popleft()
        self._complete(receive.task, now)
        if fault is not None:
            self._faults.append({"task": receive.task, "text": fault})

    def _serve_all(self, began_ns: int) -> None:
        """Receive from all connections and run all computations until no task remains."""
        with select.epoll() as epoll, Timer() as timer:
            epoll.register(timer, select.EPOLLIN)
            index_of = {connection.fileno(): index for index, connection in enumerate(self._incoming)}
            for index in range(len(self._incoming)):
                self._await_message(epoll, index, is_new=True)
            for index, unsent in enumerate(self._unsent):
                if unsent:
                    epoll.register(self._socket(index), select.EPOLLOUT)
            self._epoll = epoll
            numbers = range(len(self._outgoing)) if self._is_windowed else ()
            senders = {self._socket(index).fileno(): index for index in numbers}
            last_ns, alarm_ns = began_ns, 0
            while self._running or any(self._receives) or any(self._unsent):
                if self._running and alarm_ns != self._running[0][0]:
                    alarm_ns = self._running[0][0]
                    timer.set(alarm_ns)
                elif not self._running and alarm_ns <= last_ns:
                    alarm_ns = last_ns + self._deadline_ns
                    timer.set(alarm_ns)
                ready = {fd for fd, _ in epoll.poll()}
                if timer.fileno() in ready:
                    last_ns = self._alarm(last_ns)
                    alarm_ns = 0
                for fd in sorted(ready & senders.keys()):
                    last_ns = self._push(senders[fd]) or last_ns
                for fd in sorted(ready & index_of.keys(), key=index_of.__getitem__):
                    self._serve(index_of[fd])
                    self._await_message(epoll, index_of[fd])
                    last_ns = next(reversed(self._arrived_ns.values()))

    def _alarm(self, last_ns: int) -> int:
        """Finish the computations whose end has come; return the time of the last progress in ns (so far `last_ns`)."""
        now = now_ns()
        if not self._running and now - last_ns >= self._deadline_ns:
            connections = zip(self._program.receives, self._receives, strict=True)
            ranks = [rank for (rank, _, _), remaining in connections if remaining]
            raise AgentError(
                f"received nothing from GPU {' and '.join(map(str, ranks))} within {self._deadline_ns / 1e9:g} s"
            )
        while self._running and self._running[0][0] <= now:
            _, stream = heapq.heappop(self._running)
            self._complete(self._streams[stream].popleft().task, now)
            self._start_ready([len(self._sends) + stream], now)
            last_ns = now
        return last_ns

    def _await_message(self, epoll: select.epoll, index: int, *, is_new: bool = False) -> None:
        """Make a connection readable when its next message has arrived whole; stop polling it after the last one."""
        connection, remaining = self._incoming[index], self._receives[index]
        needed_bytes = self._size_bytes(remaining[0]) + messages.LABEL_BYTES if remaining else 1
        connection.expect(needed_bytes)
        if not remaining:
            epoll.unregister(connection)
        elif is_new:
            epoll.register(connection, select.EPOLLIN)

    def _size_bytes(self, task: Send | Receive) -> int:
        return message_bytes(task, self._sizes, self._slot_bytes)

    def _size_of(self, slot: int) -> int:
        return self._sizes.get(slot, self._slot_bytes)

    # --- bytes -----------------------------------------------------------------------------------------------------

    def _send(self, connection: int, send: Send) -> None:
        """Send a message and its label."""
        views = []
        for slot in send.slots:
            if slot in self._use_of:
                views.append(self._buffer_of[self._use_of[slot]][: self._size_of(slot)])
            else:
                views += self._views(self._own[slot], self._size_of(slot))
        if not send.slots:
            views = self._views(send.window, send.size_bytes)
        size, rank = self._size_bytes(send), self._program.sends[connection][0]
        label = messages.label(collective=self._collective, task=send.task, size_bytes=size)
        if self._is_windowed:
            self._queue(connection, send, views, label)
            return
        out = self._outgoing[connection]
        lent = self._lendable_use(send, out)
        try:
            sent = out.send(views, label, lent=lent is not None)
        except OSError as error:
            raise AgentError(f"lost GPU {rank}: {reason(error)}") from None
        if sent != size + messages.LABEL_BYTES:
            raise AgentError(f"could queue {sent} of {size + messages.LABEL_BYTES} bytes for GPU {rank}")
        if lent is not None and out.lender is not None:
            self._buffers.lend(self._buffer_of.pop(lent), out.lender)
        for slot in send.slots:
            if slot in self._use_of:
                self._release(self._use_of[slot])

    def _queue(self, connection: int, send: Send, views: Sequence[memoryview], label: bytes) -> None:
        """Queue a message and its label for a connection, and send as much as its buffer holds."""
        uses = [self._use_of[slot] for slot in send.slots if slot in self._use_of]
        if any(self._arrivals_left[use] for use in uses):  # the buffer may change before all of it is sent
            views = [memoryview(bytes(view)) for view in views]
        self._unsent[connection] += [_Unsent(deque(views), MSG_EOR, uses), _Unsent(deque([memoryview(label)]), 0, [])]
        if len(self._unsent[connection]) == 2:
            self._push(connection)
            if self._unsent[connection] and self._epoll is not None:
                self._epoll.register(self._socket(connection), select.EPOLLOUT)

    def _socket(self, connection: int) -> socket.socket:
        """Return the socket of an outgoing connection, which is one of TCP if senders' buffers limit it."""
        lender = self._outgoing[connection].lender
        assert lender is not None
        return lender

    def _push(self, connection: int) -> int:
        """Send as much of what is queued for a connection as its buffer holds; return the time in ns, 0 for nothing."""
        out, unsent, pushed_ns = self._socket(connection), self._unsent[connection], 0
        try:
            while unsent:
                pushed_ns = now_ns() if unsent[0].send(out) else pushed_ns
                if unsent[0].views:
                    return pushed_ns
                for use in unsent.popleft().uses:
                    self._release(use)
        except OSError as error:
            raise AgentError(f"lost GPU {self._program.sends[connection][0]}: {reason(error)}") from None
        if self._epoll is not None:
            with suppress(FileNotFoundError):  # it was sent before it had to wait
                self._epoll.unregister(out)
        return pushed_ns

    def _await(self, source: socket.socket) -> None:
        """Wait until more of a message can be read, while what is queued for other connections is sent."""
        while True:
            poll, waiting = (
                select.poll(),
                {self._socket(n).fileno(): n for n, left in enumerate(self._unsent) if left},
            )
            poll.register(source, select.POLLIN)
            for fd in waiting:
                poll.register(fd, select.POLLOUT)
            ready = [fd for fd, _ in poll.poll(self._deadline_ns / 1e6)]
            if not ready:
                raise BlockingIOError
            for fd in sorted(set(ready) & waiting.keys()):
                self._push(waiting[fd])
            if source.fileno() in ready:
                return

    def _lendable_use(self, send: Send, out: Outgoing) -> int | None:
        """Return the use whose buffer can be lent: that of one large slot that no later task needs; None to copy."""
        use = self._use_of.get(send.slots[0]) if len(send.slots) == 1 and out.lender is not None else None
        if use is None or self._tasks_left[use] > 1 or self._size_bytes(send) < MIN_LENT_BYTES:
            return None
        return use if self._buffers.can_lend() else None

    def _views(self, window: int, size_bytes: int) -> list[memoryview]:
        return self._payload.views(window, collective=self._collective, size_bytes=size_bytes)

    def _release(self, use: int) -> None:
        """Count one of a use's tasks as done, and free its buffer after the last one."""
        self._tasks_left[use] -= 1
        if self._tasks_left[use] == 0 and use in self._buffer_of:
            self._buffers.give_back(self._buffer_of.pop(use))

    def _receive(self, connection: int, receive: Receive) -> str | None:
        """Receive a whole message and verify it; return how it is wrong, as a sentence, or None."""
        size, source = self._size_bytes(receive), self._incoming[connection]
        rank = self._program.receives[connection][0]
        progress = _Progress(source)
        try:
            if receive.slots:
                for position in range(len(receive.slots)):
                    self._receive_slot(progress, receive, position)
            else:
                for part in self._payload.parts(size):
                    self._receive_part(progress, receive, self._scratch[: len(part)], part, terms=receive.terms[0])
            self._fill(progress, self._label)
        except OSError as error:
            raise AgentError(f"lost GPU {rank} in transfer {receive.task}: {reason(error)}") from None
        if progress.received_bytes != size + messages.LABEL_BYTES:
            raise AgentError(
                f"received {progress.received_bytes} of {size + messages.LABEL_BYTES} bytes of transfer {receive.task} "
                f"from GPU {rank} and then nothing"
            )
        label = bytes(self._label)
        fault = messages.label_fault(label, collective=self._collective, task=receive.task, size_bytes=size)
        return fault or progress.wrong

    def _receive_slot(self, progress: "_Progress", receive: Receive, position: int) -> None:
        """Receive slot `position` of a message; keep its data if a later task needs it, and add it for a sum."""
        slot, index, terms = receive.slots[position], receive.uses[position], receive.terms[position]
        use, sums = self._program.uses[index], self._payload.sums
        is_first = self._arrivals_left[index] == use.arrivals
        if is_first and use.tasks > 1:
            self._buffer_of[index] = self._buffers.take()
        buffer = self._buffer_of.get(index)
        size = self._size_of(slot)
        offset = position * size
        for part in self._payload.parts(size):
            target = self._scratch[: len(part)] if buffer is None else buffer[part.start : part.stop]
            into = self._scratch[: len(part)] if receive.adds and not is_first else target
            self._receive_part(progress, receive, into, part, terms=terms, offset=offset, where=f" of slot {slot}")
            if receive.adds and not is_first:
                assert sums is not None
                sums.add(target, into)
            elif receive.adds and slot in self._own:
                assert sums is not None
                sums.add_own(target, part, collective=self._collective, window=self._own[slot])
            if use.total and self._arrivals_left[index] == 1:
                self._check(progress, target, part, use.total, f" of the sum in slot {slot}")
        self._arrivals_left[index] -= 1
        self._use_of[slot] = index
        self._release(index)

    def _receive_part(
        self,
        progress: "_Progress",
        receive: Receive,
        into: memoryview,
        part: range,
        *,
        terms: Sequence[Term],
        offset: int = 0,
        where: str = "",
    ) -> None:
        """Receive a part of a slot and verify it; `offset` is the slot's offset in the message, in bytes."""
        self._fill(progress, into)
        if self._flip and self._flip[0] == receive.task and self._flip[1] - offset in part:
            into[self._flip[1] - offset - part.start] ^= 1
        if progress.received_bytes == offset + part.stop:  # otherwise the connection has ended
            self._check(progress, into, part, terms, where)

    def _fill(self, progress: "_Progress", into: memoryview) -> None:
        """Fill the buffer `into` from the connection; it stays partly filled only if the connection ends."""
        progress.received_bytes += progress.source.fill(into)

    def _check(self, progress: "_Progress", data: memoryview, part: range, terms: Sequence[Term], where: str) -> None:
        if progress.wrong is None:
            byte = self._payload.first_difference(data, part, collective=self._collective, terms=terms)
            progress.wrong = None if byte is None else f"byte {byte}{where} is wrong"


@dataclass
class _Unsent:
    """What is not sent yet of a message or a label: its bytes, the flags with which they end, and the uses that hold
    them."""

    views: deque[memoryview]
    flags: int
    uses: list[int]

    def send(self, out: socket.socket) -> int:
        """Send as much as the connection's buffer holds, and return how many bytes that are; raises OSError."""
        total = 0
        while self.views:
            batch = list(islice(self.views, MAX_VIEWS))
            flags = self.flags if len(batch) == len(self.views) else socket.MSG_MORE
            try:
                sent = out.sendmsg(batch, (), flags | socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            total += sent
            while self.views and sent >= len(self.views[0]):
                sent -= len(self.views.popleft())
            if sent:
                self.views[0] = self.views[0][sent:]
        return total


@dataclass
class _Progress:
    """How many bytes of a message have arrived, and the first error found in it."""

    source: Incoming
    received_bytes: int = 0
    wrong: str | None = None


def reason(error: OSError) -> str:
    """Return the reason of an OSError, as words for an error message."""
    if isinstance(error, BlockingIOError):
        return "it did not answer in time"
    return error.strerror or str(error)
