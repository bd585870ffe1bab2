"""What a GPU's process does: one side of the control connection, and both ends of its ring connections.

An agent lives in its host's network namespace (`nursery` puts it there) and holds one chunk at a time: what has
arrived whole is handed to the kernel for the successor at once, is then compared with what was due, byte for byte,
and gives its place to the next. Nothing is lost by that, as the send buffer holds all that a collective can bring: an
agent never waits to send, so it always receives, and its chunks leave one after the other over the one connection to
its successor. The comparison takes no time where computing takes none (virtual time); on a wall clock it is part of
what is measured.

Every number that can be seen from outside is fixed: no port, address or order of events depends on a process id, on
what ran before or on how fast the machine is.
"""

import ctypes
import errno
import mmap
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hosts import transport, wire
from hosts.content import Content
from hosts.door import Door, Refusals

PORT = 4791  # RoCE's, for those who look at a capture
_FIRST_SOURCE_PORT, _SOURCE_PORTS = 20000, 10000  # another for every ring: no segment of an old ring fits a new one
_TIMER_ABSTIME = 1
_clock_nanosleep = ctypes.CDLL(None).clock_nanosleep
_MSG_EOR = 0x80  # Python 3.11 has no name for it
_READY = b"\1"  # the byte that a receiver sends once its window is open


class AgentError(Exception):
    """What keeps an agent from doing what it was told, as a sentence without a subject."""


class Agent:
    """One GPU: its buffer, its door, and a connection from its predecessor and one to its successor.

    `rank`, `address` and `interface` say who it is; `reply_s` is how long it waits for anything from a neighbour.
    `token` is the run's: who does not know it does not get in, and is told of to `refusals`.
    """

    def __init__(
        self,
        *,
        rank: int,
        address: str,
        interface: str,
        settings: transport.Transport,
        limits: transport.Limits,
        content: Content,
        chunk_bytes: int,
        reply_s: float,
        token: bytes,
        refusals: Refusals,
    ) -> None:
        self._rank, self._address, self._interface = rank, address, interface
        self._settings, self._limits, self._content = settings, limits, content
        self._chunk_bytes, self._token, self._reply_s = chunk_bytes, token, reply_s
        self._reply = struct.pack("ll", int(reply_s), int(reply_s % 1 * 1e6))
        # Filled by the kernel in one go: a process that touches its pages one by one pays for each of them in the VM.
        self._memory = mmap.mmap(-1, chunk_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._chunk, self._label = memoryview(self._memory), bytearray(wire.LABEL_BYTES)
        self._predecessor: socket.socket | None = None
        self._successor: socket.socket | None = None
        self._route: str | None = None
        transport.set_sysctls(transport.sysctls(settings, limits))
        transport.check_mtu(interface, mtu_bytes=settings.mtu_bytes)
        self.door = Door(self._socket(PORT), token=token, refusals=refusals)

    def obey(self, command: Mapping[str, Any]) -> Mapping[str, object]:
        """Do as a checked command says and return the answer; raises AgentError and OSError."""
        actions: dict[str, Callable[..., Mapping[str, object] | None]] = {
            "connect": self._connect,
            "accept": self._accept,
            "confirm": self._confirm,
            "touch": self._touch,
            "abort": self.abort,
            "again": self._again,
            "allgather": self._allgather,
        }
        arguments = {key: value for key, value in command.items() if key != "do"}
        return actions[command["do"]](**arguments) or {}

    def abort(self) -> None:
        """Leave the ring at once. Both connections end by a reset, which leaves nothing behind at either end."""
        for connection in (self._successor, self._predecessor):
            if connection is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
        self._successor = self._predecessor = None
        if self._route is not None:
            transport.change_route(address=self._route, interface=self._interface, initial_segments=None)
            self._route = None

    def _connect(self, *, epoch: int, successor: int, address: str) -> None:
        if self._settings.line_rate:
            segments = self._limits.initial_segments
            transport.change_route(address=address, interface=self._interface, initial_segments=segments)
            self._route = address
        self._successor = self._socket(_FIRST_SOURCE_PORT + epoch % _SOURCE_PORTS)
        try:
            self._successor.connect((address, PORT))
        except OSError as error:
            raise AgentError(f"cannot connect to GPU {successor} at {address}: {reason(error)}") from None
        self._successor.sendall(wire.greeting(epoch=epoch, rank=self._rank, token=self._token))

    def _accept(self, *, epoch: int, predecessor: int) -> None:
        self._predecessor = self.door.admit(epoch=epoch, rank=predecessor, deadline_s=self._reply_s)
        if self._predecessor is None:
            raise AgentError(f"heard nothing from GPU {predecessor} within {self._reply_s:g} s")
        self._tune(self._predecessor)
        self._predecessor.sendall(_READY)

    def _confirm(self) -> Mapping[str, object]:
        assert self._successor is not None
        if self._successor.recv(1) != _READY:
            raise AgentError("heard nothing back from its successor")
        congestion, announced = transport.windows(self._successor)
        wanted = self._limits.window_bytes
        if self._settings.line_rate and min(congestion, announced) < wanted * 15 // 16:
            raise AgentError(
                f"cannot start at line rate: its windows are {congestion} and {announced} bytes, not {wanted}"
            )
        return {"congestion_window_bytes": congestion, "announced_window_bytes": announced}

    def _touch(self) -> None:
        """Exchange a byte with both neighbours, so that every switch on the way has the flow in its fast path.

        A switch that has not sends what arrives through user space, where the first packets of a burst are overtaken
        by those behind them, or lost.
        """
        if self._predecessor is None or self._successor is None:
            raise AgentError("is in no ring")
        self._successor.sendall(_READY)
        if self._predecessor.recv(1) != _READY:
            raise AgentError("heard nothing from its predecessor")
        self._predecessor.sendall(_READY)
        if self._successor.recv(1) != _READY:
            raise AgentError("heard nothing back from its successor")

    def _again(self) -> Mapping[str, object]:
        if self._successor is None:
            raise AgentError("is in no ring")
        return {"bytes": transport.retransmitted_bytes(self._successor)}

    def _allgather(
        self, *, collective: int, start_ns: int, arrivals: Sequence[int], flip: Sequence[int]
    ) -> Mapping[str, object]:
        """Send the own chunk, forward all that arrive but the last; tell when it began, when each had arrived
        whole, and what was wrong."""
        if self._predecessor is None or self._successor is None:
            raise AgentError("is in no ring")
        own = self._content.views(rank=self._rank, collective=collective)
        label = wire.label(collective=collective, rank=self._rank, chunk_bytes=self._chunk_bytes)
        late_ns = now_ns() - start_ns
        if late_ns > 0:
            raise AgentError(f"was told to begin {late_ns} ns too late")
        sleep_until(start_ns)
        began_ns = now_ns()
        self._send(label, own)
        faults, arrived_ns = [], []
        for step, rank in enumerate(arrivals, 1):
            self._receive(step)
            arrived_ns.append(now_ns())
            if flip and flip[0] == step:
                self._chunk[flip[1]] ^= 1
            if step < len(arrivals):
                self._send(self._label, [self._chunk])
            if (fault := self._fault(collective, rank)) is not None:
                faults.append({"step": step, "chunk": rank, "text": fault})
        return {"start_ns": began_ns, "arrived_ns": arrived_ns, "faults": faults}

    def _send(self, label: bytes | bytearray, chunk: Sequence[memoryview]) -> None:
        """Send a chunk and its label, which is in a packet of its own after the chunk's last.

        A shaper sends a packet first and makes those behind it wait for what it cost, so a chunk's last packet
        arrives too early by its own length. The one behind it arrives when the chunk is paid for.
        """
        assert self._successor is not None
        try:
            sent = self._successor.sendmsg(chunk, (), _MSG_EOR)  # nothing may be appended to the last packet
            sent += self._successor.sendmsg([label])
        except OSError as error:
            raise AgentError(f"lost its successor: {reason(error)}") from None
        if sent != wire.LABEL_BYTES + self._chunk_bytes:
            raise AgentError(f"could queue {sent} of {wire.LABEL_BYTES + self._chunk_bytes} bytes for its successor")

    def _receive(self, step: int) -> None:
        assert self._predecessor is not None
        try:
            got, *_ = self._predecessor.recvmsg_into([self._chunk, self._label], 0, socket.MSG_WAITALL)
        except OSError as error:
            raise AgentError(f"lost its predecessor in step {step}: {reason(error)}") from None
        wanted = wire.LABEL_BYTES + self._chunk_bytes
        if got != wanted:
            raise AgentError(f"had {got} of {wanted} bytes in step {step} when its predecessor fell silent")

    def _fault(self, collective: int, rank: int) -> str | None:
        """What is wrong with what has arrived, where the chunk of this rank was due."""
        label = wire.label_fault(bytes(self._label), collective=collective, rank=rank, chunk_bytes=self._chunk_bytes)
        if label is not None:
            return label
        at = self._content.first_difference(self._at, rank=rank, collective=collective)
        return None if at is None else f"byte {at} is wrong"

    def _socket(self, port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._tune(made)
        made.bind((self._address, port))
        return made

    def _tune(self, made: socket.socket) -> None:
        name = self._settings.congestion_control
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except FileNotFoundError:
            raise AgentError(f"has no congestion control called {name!r}") from None
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Python's own timeouts make a socket non-blocking, and MSG_WAITALL is for blocking ones.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, self._reply)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, self._reply)


def now_ns() -> int:
    """The clock that all hosts of the VM share, in ns."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def sleep_until(instant_ns: int) -> None:
    """Sleep until that instant on the same clock; time.sleep() would read the clock, which takes time in the VM."""
    instant = (ctypes.c_long * 2)(*divmod(instant_ns, 1_000_000_000))  # struct timespec
    while (error := _clock_nanosleep(time.CLOCK_MONOTONIC, _TIMER_ABSTIME, instant, None)) != 0:
        if error != errno.EINTR:
            raise OSError(error, "the agent cannot sleep")


def reason(error: OSError) -> str:
    """An OSError in words."""
    if isinstance(error, BlockingIOError):
        return "it did not answer in time"
    return error.strerror or str(error)
