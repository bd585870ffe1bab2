"""A GPU's process: carries out commands of the communicator, over TCP connections to and from other GPUs.

An agent lives in its host's network namespace (`launcher` puts it there). It is told a program, connects as that says,
and then carries it out (`execution`) as often as it is told to.

Everything that can be seen from outside is fixed: no port, address or order of events depends on a process id, on
earlier runs or on the speed of the machine.
"""

import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from hosts.agent import messages, transport
from hosts.agent.buffers import Buffers
from hosts.agent.clock import now_ns, sleep_until
from hosts.agent.execution import AgentError, Execution, reason
from hosts.agent.handshake import Listener
from hosts.agent.payload import Payload
from hosts.agent.program import Program
from hosts.agent.transport import Limits, Transport
from topologies.shaping.netlink import RtNetlink

PORT = 4791  # RoCE's, so that captures are easy to read
_FIRST_SOURCE_PORT, _SOURCE_PORTS = 20000, 10000  # others for every epoch: no segment of an old one fits a new one
_READY = b"\1"  # the byte that a receiver sends once its window is open


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all agents of a communicator are started with.

    Slots have `slot_bytes`; `windows`, `window_bytes` and `sums` are of the payload; `channels` are the source
    ports that an epoch needs, and `dscp` is that of each where they differ. `deadline_s` is the longest wait for
    another GPU, `token` is in hexadecimal.
    """

    slot_bytes: int
    windows: int
    window_bytes: int
    sums: bool
    channels: int
    dscp: Sequence[int]
    deadline_s: float
    token: str
    transport: Transport
    limits: Limits


def source_port(channel: int, *, epoch: int, channels: int) -> int:
    """The TCP source port of a connection of this channel, of so many, in epoch number `epoch`."""
    return _FIRST_SOURCE_PORT + (epoch * channels + channel) % _SOURCE_PORTS


class Agent:
    """One GPU: its buffers, its listener, and its connections.

    The public methods below are the commands: they return the answer, None for an empty one, and raise AgentError and
    OSError.
    """

    def __init__(self, *, rank: int, address: str, interface: str, job: Job, payload: Payload) -> None:
        self._rank, self._address, self._interface = rank, address, interface
        self._job, self._payload = job, payload
        scratch_bytes = min(payload.part_bytes, job.window_bytes)
        self._buffers = Buffers(job.slot_bytes, scratch_bytes=scratch_bytes, is_added_to=job.sums)
        self._program = Program()
        self._outgoing: list[socket.socket] = []
        self._incoming: list[socket.socket] = []
        self._routes: list[str] = []
        transport.set_sysctls(job.transport, job.limits)
        transport.check_mtu(interface, mtu_bytes=job.transport.mtu_bytes)
        self.listener = Listener(self._socket(PORT), token=bytes.fromhex(job.token), name=f"GPU {rank}")

    def abort(self) -> None:
        """Leave all connections at once. They end by a reset, which leaves nothing behind at either end."""
        for connection in (*self._outgoing, *self._incoming):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        self._outgoing, self._incoming = [], []
        for address in self._routes:
            self._set_route(address, None)
        self._routes = []

    def connect(
        self, *, epoch: int, program: Mapping[str, Any], addresses: Sequence[str], segments: Sequence[int]
    ) -> None:
        """Connect as the program says in epoch number `epoch`; `addresses` are all GPUs', by rank.

        `segments` are the bytes of the segments of each connection, or none where they are the interface's.
        """
        self._program = Program.from_json(program)
        if self._payload.sums is not None:
            self._payload.sums.multiply(self._program.multiplier)
        self._buffers.prepare(self._program.buffers)
        token = bytes.fromhex(self._job.token)
        if self._job.transport.line_rate:  # before all connections, which would take the interface's segments again
            self._routes = list(dict.fromkeys(addresses[rank] for rank, _, _ in self._program.sends))
            for address in self._routes:
                self._set_route(address, self._job.limits.initial_segments)
        for number, (rank, channel, _) in enumerate(self._program.sends):
            address = addresses[rank]
            if segments:
                with closing(RtNetlink()) as kernel:
                    kernel.set_segment_bytes(self._interface, segments[number])
            port = source_port(channel, epoch=epoch, channels=self._job.channels)
            connection = self._socket(port)
            transport.allow_lending(connection)
            self._outgoing.append(connection)
            if self._job.dscp:
                connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self._job.dscp[channel] << 2)
            try:
                connection.connect((address, PORT))
            except OSError as error:
                raise AgentError(f"cannot connect to GPU {rank} at {address}: {reason(error)}") from None
            connection.sendall(messages.hello(epoch=epoch, rank=self._rank, channel=channel, token=token))

    def accept(self, *, epoch: int) -> None:
        """Wait for the connections that the program receives on, and acknowledge them."""
        deadline_s = self._job.deadline_s
        peers = [(epoch, rank, channel) for rank, channel, _ in self._program.receives]
        found = self.listener.admit(peers, timeout_s=deadline_s)
        self._incoming = list(found.values())
        for peer in peers:
            if peer not in found:
                raise AgentError(f"received nothing from GPU {peer[1]} within {deadline_s:g} s")
        for connection in self._incoming:
            self._tune(connection)
            connection.sendall(_READY)

    def confirm(self) -> None:
        """Wait until all connections are acknowledged; check that they can start at line rate."""
        for connection in self._outgoing:
            if connection.recv(1) != _READY:
                raise AgentError("received no answer from a GPU that it sends to")
            congestion, announced = transport.windows(connection)
            wanted = self._job.limits.window_bytes
            if self._job.transport.line_rate and min(congestion, announced) < wanted * 15 // 16:
                raise AgentError(
                    f"cannot start at line rate: its windows are {congestion} and {announced} bytes, not {wanted}"
                )

    def touch(self) -> None:
        """Exchange a byte on every connection, so that every switch on the path has the flow in its fast path.

        A switch that has not forwards packets through user space, where the first packets of a burst are overtaken by
        those behind them, or lost.
        """
        for there, back in ((self._outgoing, self._incoming), (self._incoming, self._outgoing)):
            for connection in there:
                connection.sendall(_READY)
            for connection in back:
                if connection.recv(1) != _READY:
                    raise AgentError("received nothing from a GPU that it is connected to")

    def retransmitted(self) -> Mapping[str, object]:
        """The `bytes` that TCP has retransmitted to others since the connections were made."""
        return {"bytes": sum(map(transport.retransmitted_bytes, self._outgoing))}

    def run(self, *, collective: int, start_ns: int, flip: Sequence[int]) -> Mapping[str, object]:
        """Carry out the program, from `start_ns` on; `flip` is [task, byte] to damage on arrival, or [].

        The answer is that of `Execution.run`.
        """
        execution = Execution(
            self._program,
            collective=collective,
            outgoing=self._outgoing,
            incoming=self._incoming,
            payload=self._payload,
            buffers=self._buffers,
            slot_bytes=self._job.slot_bytes,
            deadline_s=self._job.deadline_s,
            flip=flip,
        )
        late_ns = now_ns() - start_ns
        if late_ns > 0:
            raise AgentError(f"received the command to begin {late_ns} ns too late")
        sleep_until(start_ns)
        return execution.run(now_ns())

    def _set_route(self, address: str, initial_segments: int | None) -> None:
        with closing(RtNetlink()) as kernel:
            kernel.set_route(self._interface, address, initial_segments=initial_segments)

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
