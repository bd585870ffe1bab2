"""A GPU's process: carries out commands of the communicator, over TCP connections from its predecessor and to its
successor in the ring.

An agent lives in its host's network namespace (`launcher` puts it there) and holds one chunk at a time: a chunk that
has arrived whole is handed to the kernel for the successor at once, is then compared with the expected bytes, and its
memory is used for the next one. The send buffer holds all that a collective can bring, so an agent never waits to
send and always receives, and its chunks leave one after the other over the one connection to its successor. The
comparison takes no time where computing takes none (virtual time); on a wall clock it is part of what is measured.

Everything that can be seen from outside is fixed: no port, address or order of events depends on a process id, on
earlier runs or on the speed of the machine.
"""

import ctypes
import errno
import mmap
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from hosts.agent import messages, transport
from hosts.agent.handshake import Listener
from hosts.agent.payload import Payload
from hosts.agent.transport import Limits, Transport
from topologies.shaping.netlink import RtNetlink

PORT = 4791  # RoCE's, so that captures are easy to read
_FIRST_SOURCE_PORT, _SOURCE_PORTS = 20000, 10000  # another for every ring: no segment of an old ring fits a new one
_TIMER_ABSTIME = 1
_clock_nanosleep = ctypes.CDLL(None).clock_nanosleep
_MSG_EOR = 0x80  # Python 3.11 has no name for it
_READY = b"\1"  # the byte that a receiver sends once its window is open


class AgentError(Exception):
    """Why an agent cannot carry out a command, as a sentence without a subject."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all agents of a communicator are started with; `deadline_s` is the longest wait for a neighbour, `token`
    is in hexadecimal."""

    chunk_bytes: int
    deadline_s: float
    token: str
    transport: Transport
    limits: Limits


class Agent:
    """One GPU: its buffer, its listener, and a connection from its predecessor and one to its successor.

    The public methods below are the commands: they return the answer, None for an empty one, and raise AgentError and
    OSError.
    """

    def __init__(self, *, rank: int, address: str, interface: str, job: Job, payload: Payload) -> None:
        self._rank, self._address, self._interface = rank, address, interface
        self._job, self._payload = job, payload
        self._message_bytes = job.chunk_bytes + messages.LABEL_BYTES
        # Filled by the kernel in one go: a process that touches its pages one by one pays for each of them in the VM.
        self._memory = mmap.mmap(-1, job.chunk_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        self._memory_address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._chunk, self._label = memoryview(self._memory), bytearray(messages.LABEL_BYTES)
        self._predecessor: socket.socket | None = None
        self._successor: socket.socket | None = None
        self._route: str | None = None
        transport.set_sysctls(job.transport, job.limits)
        transport.check_mtu(interface, mtu_bytes=job.transport.mtu_bytes)
        self.listener = Listener(self._socket(PORT), token=bytes.fromhex(job.token), name=f"GPU {rank}")

    def abort(self) -> None:
        """Leave the ring at once. Both connections end by a reset, which leaves nothing behind at either end."""
        for connection in (self._successor, self._predecessor):
            if connection is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
        self._successor = self._predecessor = None
        if self._route is not None:
            self._set_route(self._route, None)
            self._route = None

    def connect(self, *, epoch: int, successor: int, address: str) -> None:
        """Connect to the successor in ring number `epoch`."""
        if self._job.transport.line_rate:
            self._set_route(address, self._job.limits.initial_segments)
            self._route = address
        self._successor = self._socket(_FIRST_SOURCE_PORT + epoch % _SOURCE_PORTS)
        try:
            self._successor.connect((address, PORT))
        except OSError as error:
            raise AgentError(f"cannot connect to GPU {successor} at {address}: {reason(error)}") from None
        token = bytes.fromhex(self._job.token)
        self._successor.sendall(messages.hello(epoch=epoch, rank=self._rank, token=token))

    def accept(self, *, epoch: int, predecessor: int) -> None:
        """Wait for the predecessor's connection in ring number `epoch`, and acknowledge it."""
        deadline_s = self._job.deadline_s
        self._predecessor = self.listener.admit(epoch=epoch, rank=predecessor, timeout_s=deadline_s)
        if self._predecessor is None:
            raise AgentError(f"received nothing from GPU {predecessor} within {deadline_s:g} s")
        self._tune(self._predecessor)
        self._predecessor.sendall(_READY)

    def confirm(self) -> None:
        """Wait for the successor's acknowledgement; check that the connection can start at line rate."""
        assert self._successor is not None
        if self._successor.recv(1) != _READY:
            raise AgentError("received no answer from its successor")
        congestion, announced = transport.windows(self._successor)
        wanted = self._job.limits.window_bytes
        if self._job.transport.line_rate and min(congestion, announced) < wanted * 15 // 16:
            raise AgentError(
                f"cannot start at line rate: its windows are {congestion} and {announced} bytes, not {wanted}"
            )

    def touch(self) -> None:
        """Exchange a byte with both neighbours, so that every switch on the path has the flow in its fast path.

        A switch that has not forwards packets through user space, where the first packets of a burst are overtaken by
        those behind them, or lost.
        """
        predecessor, successor = self._neighbours()
        successor.sendall(_READY)
        if predecessor.recv(1) != _READY:
            raise AgentError("received nothing from its predecessor")
        predecessor.sendall(_READY)
        if successor.recv(1) != _READY:
            raise AgentError("received no answer from its successor")

    def retransmitted(self) -> Mapping[str, object]:
        """The `bytes` that TCP has retransmitted to the successor since the ring was made."""
        _, successor = self._neighbours()
        return {"bytes": transport.retransmitted_bytes(successor)}

    def allgather(
        self, *, collective: int, start_ns: int, arrivals: Sequence[int], flip: Sequence[int]
    ) -> Mapping[str, object]:
        """Send the own chunk at `start_ns`, and forward all that arrive but the last.

        `arrivals` are the ranks that the arriving chunks began at, `flip` is [step, byte] to damage or []. The answer:
        when it began and when each chunk had arrived whole, in ns, and which were wrong.
        """
        predecessor, successor = self._neighbours()
        own = self._payload.views(rank=self._rank, collective=collective)
        label = messages.label(collective=collective, rank=self._rank, chunk_bytes=self._job.chunk_bytes)
        late_ns = now_ns() - start_ns
        if late_ns > 0:
            raise AgentError(f"received the command to begin {late_ns} ns too late")
        sleep_until(start_ns)
        began_ns = now_ns()
        self._send(successor, label, own)
        faults, arrived_ns = [], []
        for step, rank in enumerate(arrivals, 1):
            damage = flip[1] if flip and flip[0] == step else None
            fault = self._receive(predecessor, step, collective=collective, rank=rank, damage=damage)
            arrived_ns.append(now_ns())
            if step < len(arrivals):
                self._send(successor, self._label, [self._chunk])
            if fault is not None:
                faults.append({"step": step, "chunk": rank, "text": fault})
        return {"start_ns": began_ns, "arrived_ns": arrived_ns, "faults": faults}

    def _neighbours(self) -> tuple[socket.socket, socket.socket]:
        if self._predecessor is None or self._successor is None:
            raise AgentError("is in no ring")
        return self._predecessor, self._successor

    def _set_route(self, address: str, initial_segments: int | None) -> None:
        with closing(RtNetlink()) as kernel:
            kernel.set_route(self._interface, address, initial_segments=initial_segments)

    def _send(self, successor: socket.socket, label: bytes | bytearray, chunk: Sequence[memoryview]) -> None:
        """Send a chunk and its label, which is in a packet of its own after the chunk's last.

        A shaper sends a packet first and delays those behind it by its cost, so a chunk's last packet arrives too
        early by its own length. The packet after it, the label's, arrives when the whole chunk is paid for.
        """
        try:
            sent = successor.sendmsg(chunk, (), _MSG_EOR)  # nothing may be appended to the last packet
            sent += successor.sendmsg([label])
        except OSError as error:
            raise AgentError(f"lost its successor: {reason(error)}") from None
        if sent != self._message_bytes:
            raise AgentError(f"could queue {sent} of {self._message_bytes} bytes for its successor")

    def _receive(
        self, predecessor: socket.socket, step: int, *, collective: int, rank: int, damage: int | None
    ) -> str | None:
        """Receive a chunk whole; return how it differs from that of this rank, as a sentence, or None.

        It is compared part by part, each while the processor's caches still hold it: read again from memory, a large
        chunk takes a quarter more of an AllGather's time. `damage` is the byte to change first.
        """
        wrong, chunk_bytes = None, self._job.chunk_bytes
        got = 0
        try:
            for part in self._payload.parts:
                got += predecessor.recv_into(self._chunk[part.start : part.stop], 0, socket.MSG_WAITALL)
                if damage is not None and damage in part:
                    self._chunk[damage] ^= 1
                if wrong is None and got == part.stop:
                    wrong = self._payload.first_difference(self._memory_address, part, rank=rank, collective=collective)
            got += predecessor.recv_into(self._label, 0, socket.MSG_WAITALL)
        except OSError as error:
            raise AgentError(f"lost its predecessor in step {step}: {reason(error)}") from None
        if got != self._message_bytes:
            raise AgentError(f"had {got} of {self._message_bytes} bytes in step {step} and then nothing")
        label = bytes(self._label)
        if fault := messages.label_fault(label, collective=collective, rank=rank, chunk_bytes=chunk_bytes):
            return fault
        return None if wrong is None else f"byte {wrong} is wrong"

    def _socket(self, port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._tune(made)
        made.bind((self._address, port))
        return made

    def _tune(self, made: socket.socket) -> None:
        name, wait_s = self._job.transport.congestion_control, self._job.deadline_s
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except FileNotFoundError:
            raise AgentError(f"has no congestion control called {name!r}") from None
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Python's own timeouts make a socket non-blocking, and MSG_WAITALL is for blocking ones.
        timeout = struct.pack("ll", int(wait_s), int(wait_s % 1 * 1e6))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)


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
    """The message of an OSError."""
    if isinstance(error, BlockingIOError):
        return "it did not answer in time"
    return error.strerror or str(error)
