"""Measurements of the machine and of paths: timer latency, throughput of the hosts, and probes.

`TimerLatency` measures during a run by how much a thread that sleeps 2 ms at a time oversleeps. If it oversleeps, the
machine is overloaded: packets in the kernel and agents are late, too, and shaping is not accurate. `throughput_bps`
measures before a run how much all GPUs' hosts can send at once, as fast as TCP over the switches allows. `probe` times
one message over each of several paths, one after another, as the Network Weather Service does (Wolski, Spring and
Hayes, Future Generation Computer Systems 15, 1999).
"""

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from hosts.agent.clock import now_ns, sleep_until
from topologies.fabric.fabric import Fabric
from topologies.mininet_network import inside

PORT = 4792
PROBE_PORT = 4793
_MSG_EOR, _SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 0x80, 32, 33  # not in Python 3.11's socket module
_PERIOD_NS = 2_000_000
_BUFFER_BYTES = 1 << 20
_WARM_S, _MEASURED_S = 0.2, 0.5
_CONNECT_S = 10
_PROBE_S = 60  # timeout of a probe's message


class TimerLatency:
    """Timer-latency monitor: a context manager whose thread measures by how much it oversleeps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worst_ns, self._due_ns = 0, now_ns() + _PERIOD_NS
        self._open = True
        self._thread = threading.Thread(target=self._measure, name="timer latency", daemon=True)

    def __enter__(self) -> "TimerLatency":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._thread.join()

    def worst_s(self) -> float:
        """Return the largest latency since the last call in seconds, including that of a currently overdue wake-up."""
        with self._lock:
            worst_ns = max(self._worst_ns, now_ns() - self._due_ns)
            self._worst_ns = 0
        return worst_ns / 1e9

    def _measure(self) -> None:
        while self._open:
            sleep_until(self._due_ns)
            with self._lock:
                self._worst_ns = max(self._worst_ns, now_ns() - self._due_ns)
                self._due_ns = now_ns() + _PERIOD_NS


class _Flow:
    """A connection over which one host sends to another without pause until it is closed."""

    def __init__(self, *, src_pid: int, dst_pid: int, address: str) -> None:
        self.received_bytes = 0
        with inside(str(dst_pid)):
            listener = socket.create_server((address, PORT), backlog=1)
        with listener, inside(str(src_pid)):
            self._out = socket.create_connection((address, PORT), timeout=_CONNECT_S)
            self._into, _ = listener.accept()
        self._out.settimeout(None)
        self._threads = [threading.Thread(target=part, daemon=True) for part in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for end in (self._out, self._into):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._out.close()
        self._into.close()

    def _send(self) -> None:
        data = bytes(_BUFFER_BYTES)
        with suppress(OSError):
            while True:
                self._out.sendall(data)

    def _receive(self) -> None:
        buffer = bytearray(_BUFFER_BYTES)
        with suppress(OSError):
            while got := self._into.recv_into(buffer):
                self.received_bytes += got


def throughput_bps(fabric: Fabric, host_pids: Sequence[int]) -> float:
    """Return the payload rate in bit/s that all GPUs together receive while each sends to the next rank without pause.

    The links must not be shaped. Raises OSError if the hosts cannot connect.
    """
    flows: list[_Flow] = []
    with ExitStack() as stack:
        for gpu, src_pid in zip(fabric.gpus, host_pids, strict=True):
            successor = (gpu.rank + 1) % len(host_pids)
            flow = _Flow(src_pid=src_pid, dst_pid=host_pids[successor], address=fabric.gpus[successor].ip)
            stack.callback(flow.close)
            flows.append(flow)
        time.sleep(_WARM_S)
        start_s, before = time.monotonic(), sum(flow.received_bytes for flow in flows)
        time.sleep(_MEASURED_S)
        received = sum(flow.received_bytes for flow in flows) - before
        return 8 * received / (time.monotonic() - start_s)


def probe(
    fabric: Fabric,
    host_pids: Mapping[int, int],
    probes: Sequence[tuple[int, int, int]],
    *,
    size_bytes: int,
    sets_buffers: bool = False,
    warms: bool = False,
    exchange: Callable[[Any], Sequence[Any]] = lambda value: [value],
    clock_ns: Callable[[], int] = now_ns,
) -> list[tuple[int, int]]:
    """Send probes; return when each one was sent and when it had arrived, in ns of `clock_ns` (CLOCK_MONOTONIC).

    A probe is (source rank, destination rank, TCP source port); the port determines its path. All connections are
    opened at once, in two round trips. Then each probe, a message of `size_bytes`, is sent after the answer to the
    previous one has arrived, so that probes do not compete. `sets_buffers`: receivers have room for a whole probe,
    whatever the hosts' settings are; otherwise these must give it. `warms`: each probe follows a message of its size
    that is not timed, after which a connection that has begun in slow start can send a whole one. `host_pids` are by
    rank; of a fabric that machines share, those of this machine, and `exchange` returns the values of all machines,
    each of which calls this alike. Raises OSError.
    """
    times = []
    senders = [(number, *ends) for number, ends in enumerate(probes) if ends[0] in host_pids]
    receivers = [(number, *ends) for number, ends in enumerate(probes) if ends[1] in host_pids]
    with ExitStack() as stack:
        listeners = {}
        for dst in dict.fromkeys(dst for _, _, dst, _ in receivers):
            with inside(host_pids[dst]):
                listener = socket.create_server((fabric.gpus[dst].ip, PROBE_PORT), backlog=len(probes))
            if sets_buffers:
                listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 4 * size_bytes)
            listeners[dst] = stack.enter_context(listener)
        exchange(None)  # all listen now
        out = {
            number: stack.enter_context(_prober(fabric, host_pids[src], src, port, size_bytes))
            for number, src, _, port in senders
        }
        for number, _, dst, _ in senders:
            out[number].connect_ex((fabric.gpus[dst].ip, PROBE_PORT))  # EINPROGRESS
        accepted_from: dict[tuple[int, str, int], socket.socket] = {}
        for _, _, dst, _ in receivers:  # one connection for each probe
            if not select.select([listeners[dst]], [], [], _CONNECT_S)[0]:
                raise OSError(f"GPU {dst} was not reached by a probe within {_CONNECT_S} s")
            accepted, (address, port) = listeners[dst].accept()
            accepted_from[dst, address, port] = stack.enter_context(_blocking(accepted))
            accepted.send(b"\0")  # announces the receive window: a handshake can announce at most 64 kB
        for number, src, dst, _ in senders:
            _answer(_blocking(out[number]), f"GPU {src} to GPU {dst}")
        for number, (src, dst, port) in enumerate(probes):
            sender, receiver = out.get(number), accepted_from.get((dst, fabric.gpus[src].ip, port))
            exchange(None)  # the answer to the previous one has arrived
            for _ in range(2 if warms else 1):
                sent_ns, arrived_ns = _one_probe(sender, receiver, f"GPU {src} to GPU {dst}", size_bytes, clock_ns)
            of_sender, of_receiver = zip(*exchange([sent_ns, arrived_ns]), strict=True)
            times.append((max(of_sender), max(of_receiver)))
    return times


def _one_probe(
    sender: socket.socket | None,
    receiver: socket.socket | None,
    ends: str,
    size_bytes: int,
    clock_ns: Callable[[], int],
) -> tuple[int, int]:
    """Send a probe from the sender, if it is here, and receive it at the receiver, if that is here; return when it was
    sent and had arrived, 0 for what another machine knows. Raises OSError."""
    data, sent_ns, arrived_ns = bytearray(size_bytes + 1), 0, 0
    lost = OSError(f"a probe from {ends} did not arrive whole within {_PROBE_S} s")
    if sender is not None:
        sent_ns = clock_ns()
        # The extra byte, a packet of its own, arrives when the shaper (HTB) has charged the message.
        if sender.send(memoryview(data)[:size_bytes], _MSG_EOR) + sender.send(b"\0") != len(data):
            raise lost
    if receiver is not None:
        if receiver.recv_into(data, 0, socket.MSG_WAITALL) != len(data):
            raise lost
        arrived_ns = clock_ns()
        receiver.send(b"\0")
    if sender is not None:
        _answer(sender, ends)
    return sent_ns, arrived_ns


def _answer(connection: socket.socket, ends: str) -> None:
    """Wait for the answer to a probe, one byte; raises OSError if the connection ends."""
    if not connection.recv(1):
        raise OSError(f"a probe from {ends} was not answered")


def _prober(fabric: Fabric, host_pid: int, src: int, port: int, size_bytes: int) -> socket.socket:
    """Return a non-blocking socket of a GPU's host, bound to `port`, whose send buffer holds a whole probe; closing it
    resets the connection, so that no state remains."""
    with inside(host_pid):
        connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    connection.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 * size_bytes)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    connection.bind((fabric.gpus[src].ip, port))
    return connection


def _blocking(connection: socket.socket) -> socket.socket:
    """Make the socket blocking, with a timeout of `_PROBE_S`, and return it."""
    connection.setblocking(True)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _PROBE_S, 0))
    return connection
