"""The agent, the process of one GPU: executes the communicator's commands over TCP connections to and from other GPUs.

An agent runs in its host's network namespace, where `launcher` starts it. The communicator sends it a program; the
agent opens the connections that the program needs, and executes the program (`execution`) once per `run` command.

Everything observable from outside is deterministic: no port, address or order of events depends on a process id, on
earlier runs or on the speed of the machine.
"""

import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hosts.agent import messages, transport
from hosts.agent.buffers import Buffers
from hosts.agent.clock import now_ns, sleep_until
from hosts.agent.connections import Incoming, Outgoing, TcpIncoming, TcpOutgoing
from hosts.agent.execution import AgentError, Execution, reason
from hosts.agent.handshake import Listener
from hosts.agent.payload import Payload
from hosts.agent.rank_program import Program, message_bytes
from hosts.agent.transport import VERBS, Limits, Transport
from topologies.shaping.netlink import RtNetlink

if TYPE_CHECKING:
    from hosts.agent.queue_pairs import QueuePairs

PORT = 4791  # the port of RoCE, so that captures are easy to read
# Every epoch uses new source ports, so that a late segment of an old connection never matches a new one.
_FIRST_SOURCE_PORT, _SOURCE_PORTS = 20000, 10000
_READY = b"\1"  # the byte that a receiver sends once its window is open


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings that all agents of a communicator share.

    `sites` are the sites of all GPUs, by rank. A slot of the buffer has `slot_bytes`. `windows`, `window_bytes` and
    `sums` are parameters of the payload. An epoch uses one source port per channel, of which there are `channels`;
    `dscp` is the DSCP of each channel, and `controls` the congestion control of each, "" for the transport's; both are
    empty if no channel has one. `deadline_s` is the longest wait for another
    GPU, and `token` is the run's token in hexadecimal. `loses` tells that packets may be lost.
    """

    sites: Sequence[int]
    slot_bytes: int
    windows: int
    window_bytes: int
    sums: bool
    channels: int
    dscp: Sequence[int]
    controls: Sequence[str]
    deadline_s: float
    token: str
    transport: Transport
    limits: Limits
    loses: bool


def _queue_pairs(address: str) -> "QueuePairs":
    from hosts.agent.queue_pairs import QueuePairs  # here: importing is slow in the VM

    return QueuePairs(address)


def source_port(channel: int, *, epoch: int, channels: int) -> int:
    """Return the TCP source port of channel `channel`, out of `channels`, in epoch `epoch`."""
    return _FIRST_SOURCE_PORT + (epoch * channels + channel) % _SOURCE_PORTS


class Agent:
    """One GPU with its buffers, its listener and its connections.

    The public methods are the communicator's commands. They return the answer, or None for an empty answer, and raise
    AgentError and OSError.
    """

    def __init__(self, *, rank: int, address: str, interface: str, job: Job, payload: Payload) -> None:
        self._rank, self._address, self._interface = rank, address, interface
        self._job, self._payload = job, payload
        scratch_bytes = min(payload.part_bytes, job.window_bytes)
        self._buffers = Buffers(job.slot_bytes, scratch_bytes=scratch_bytes, is_added_to=job.sums)
        self._program = Program()
        self._outgoing: list[socket.socket] = []
        self._incoming: list[socket.socket] = []
        self._pairs = _queue_pairs(address) if job.transport.protocol == VERBS else None
        self._routes: list[str] = []
        self._rto_min_s: float | None = None
        transport.set_sysctls(job.transport, job.limits)
        transport.check_mtu(interface, mtu_bytes=job.transport.mtu_bytes)
        self.listener = Listener(
            self._socket(PORT, self._listening_control), token=bytes.fromhex(job.token), name=f"GPU {rank}"
        )

    def abort(self) -> None:
        """Reset all connections (SO_LINGER 0), so that neither end keeps state, and remove their routes."""
        for connection in (*self._outgoing, *self._incoming):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        self._outgoing, self._incoming = [], []
        if self._pairs is not None:
            self._pairs.close()
        for address in self._routes:
            self._set_route(address, None, None, None)
        self._routes = []

    def connect(
        self,
        *,
        epoch: int,
        program: Mapping[str, Any],
        addresses: Sequence[str],
        segments: Sequence[int],
        rto_min_s: float | None,
    ) -> None:
        """Store `program` and open the connections on which it sends, in epoch `epoch`.

        `addresses` are the addresses of all GPUs, by rank. `segments` is the largest segment of each connection in
        bytes, in the order of `program.sends`; where it is empty, the interface's segment size holds. `rto_min_s` is
        the lower bound of the connections' retransmission timeout, None for that of the transport.
        """
        self._program, self._rto_min_s = Program.from_json(program), rto_min_s
        if self._payload.sums is not None:
            self._payload.sums.multiply(self._program.multiplier)
        self._buffers.prepare(self._program.buffers)
        token = bytes.fromhex(self._job.token)
        initial_segments = self._job.limits.initial_segments if self._job.transport.line_rate else None
        transport.make_long_segments(always=rto_min_s is not None)
        if initial_segments is not None or rto_min_s is not None:
            # First: routes set later would make connections take the interface's segment size.
            for rank in dict.fromkeys(rank for rank, _, _ in self._program.sends):
                self._routes.append(addresses[rank])
                # The host's programs take these routes, too.
                control = self._job.transport.congestion_control.of_route(crosses=self._crosses(rank))
                self._set_route(addresses[rank], initial_segments, rto_min_s, control)
        for index, (rank, channel, _) in enumerate(self._program.sends):
            address = addresses[rank]
            if segments:
                with closing(RtNetlink()) as kernel:
                    kernel.set_segment_bytes(self._interface, segments[index])
            port = source_port(channel, epoch=epoch, channels=self._job.channels)
            connection = self._socket(port, self._control(rank, channel))
            transport.allow_lending(connection)
            self._outgoing.append(connection)
            if self._job.dscp:
                connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self._job.dscp[channel] << 2)
            try:
                connection.connect((address, PORT))
            except OSError as error:
                raise AgentError(f"cannot connect to GPU {rank} at {address}: {reason(error)}") from None
            connection.sendall(messages.hello(epoch=epoch, rank=self._rank, channel=channel, token=token))
            if self._pairs is not None:
                self._pairs.offer(connection, messages=len(self._program.sends[index][2]))

    def accept(self, *, epoch: int) -> None:
        """Wait for the connections on which the program receives, and acknowledge each with one byte."""
        deadline_s = self._job.deadline_s
        peers = [(epoch, rank, channel) for rank, channel, _ in self._program.receives]
        admitted = self.listener.admit(peers, timeout_s=deadline_s)
        self._incoming = list(admitted.values())
        for peer in peers:
            if peer not in admitted:
                raise AgentError(f"received nothing from GPU {peer[1]} within {deadline_s:g} s")
        for ((_, rank, channel), connection), receives in zip(admitted.items(), self._program.receives, strict=True):
            self._tune(connection, self._control(rank, channel))
            connection.sendall(_READY)
            if self._pairs is not None:
                sizes = [message_bytes(one, dict(self._program.sizes), self._job.slot_bytes) for one in receives[2]]
                self._pairs.accept(connection, sizes, dscp=self._dscp(channel), deadline_s=self._job.deadline_s)

    def confirm(self) -> None:
        """Wait until the receivers have acknowledged all connections, and check that they can start at line rate."""
        for connection in self._outgoing:
            if connection.recv(1) != _READY:
                raise AgentError("received no answer from a GPU to which it sends")
            congestion, announced = transport.windows(connection)
            wanted = self._job.limits.window_bytes
            if self._job.transport.line_rate and min(congestion, announced) < wanted * 15 // 16:
                raise AgentError(
                    f"cannot start at line rate: its windows are {congestion} and {announced} bytes, not {wanted}"
                )
        if self._pairs is not None:
            dscps = [self._dscp(channel) for _, channel, _ in self._program.sends]
            self._pairs.confirm(self._outgoing, dscps, [self._wait_s(one) for one in self._outgoing])

    def touch(self) -> None:
        """Exchange one byte each way on every connection, so that every switch on the path caches the flow.

        A switch forwards packets of an uncached flow through user space, where later packets of a burst overtake the
        first ones, or the first ones are lost.
        """
        for senders, receivers in ((self._outgoing, self._incoming), (self._incoming, self._outgoing)):
            for connection in senders:
                connection.sendall(_READY)
            for connection in receivers:
                if connection.recv(1) != _READY:
                    raise AgentError("received nothing from a GPU to which it is connected")
        if self._pairs is not None:
            self._pairs.touch()

    def retransmitted(self) -> Mapping[str, object]:
        """Return `bytes`, the bytes that TCP has retransmitted on the outgoing connections since they were opened; None
        where messages are carried by queue pairs, which count no bytes."""
        if self._pairs is not None:
            return {"bytes": None}
        return {"bytes": sum(map(transport.retransmitted_bytes, self._outgoing))}

    def run(self, *, collective: int, start_ns: int, flip: Sequence[int]) -> Mapping[str, object]:
        """Execute the program from `start_ns` on, and return the answer of `Execution.run`.

        `flip` is [task, byte], the byte of a message to corrupt on arrival (fault injection), or [].
        """
        outgoing: Sequence[Outgoing] = [*map(TcpOutgoing, self._outgoing)]
        incoming: Sequence[Incoming] = [*map(TcpIncoming, self._incoming)]
        if self._pairs is not None:
            outgoing, incoming = self._pairs.outgoing, self._pairs.incoming
            self._pairs.begin()
        execution = Execution(
            self._program,
            collective=collective,
            outgoing=outgoing,
            incoming=incoming,
            payload=self._payload,
            buffers=self._buffers,
            slot_bytes=self._job.slot_bytes,
            deadline_s=self._job.deadline_s,
            flip=flip,
            is_windowed=self._job.limits.is_windowed and self._pairs is None,
        )
        late_ns = now_ns() - start_ns
        if late_ns > 0:
            raise AgentError(f"received the command to begin {late_ns} ns too late")
        sleep_until(start_ns)
        return execution.run(now_ns())

    def _set_route(
        self, address: str, initial_segments: int | None, rto_min_s: float | None, control: str | None
    ) -> None:
        with closing(RtNetlink()) as kernel:
            kernel.set_route(
                self._interface,
                address,
                initial_segments=initial_segments,
                rto_min_s=rto_min_s,
                congestion_control=control,
            )

    @property
    def _listening_control(self) -> str:
        """The congestion control of the listener. A connection uses ECN only if its listener does: dctcp's listener
        accepts connections of all others, too."""
        chosen = self._job.transport.congestion_control
        return "dctcp" if chosen.heeds_marks else chosen.intra

    def _control(self, rank: int, channel: int) -> str:
        """Return the congestion control of a connection with a rank."""
        if self._job.controls and self._job.controls[channel]:
            return self._job.controls[channel]
        return self._job.transport.congestion_control.of(crosses=self._crosses(rank))

    def _wait_s(self, connection: socket.socket) -> float:
        """Return after which time a queue pair beside a TCP connection sends again what is not acknowledged.

        Where nothing is lost, sending again what waits in a queue would only be wrong.
        """
        if not self._job.loses:
            return self._job.deadline_s
        return max(self._job.transport.rto_min_s, self._rto_min_s or 0.0) + 2 * transport.round_trip_s(connection)

    def _dscp(self, channel: int) -> int:
        return self._job.dscp[channel] if self._job.dscp else 0

    def _crosses(self, rank: int) -> bool:
        """Return whether connections with a rank cross to another site."""
        return self._job.sites[rank] != self._job.sites[self._rank]

    def _socket(self, port: int, algorithm: str) -> socket.socket:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._tune(bound, algorithm)
        bound.bind((self._address, port))
        return bound

    def _tune(self, connection: socket.socket, algorithm: str) -> None:
        wait_s = self._job.deadline_s
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
        except FileNotFoundError:
            raise AgentError(f"has no congestion control called {algorithm!r}") from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Not settimeout(), which makes a socket non-blocking: MSG_WAITALL needs a blocking one.
        timeout = struct.pack("ll", int(wait_s), int(wait_s % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
