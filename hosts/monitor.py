"""Whether a machine can keep up with an experiment in real time: timer latency, and what its hosts can send; and probes
of what paths carry.

`TimerLatency` measures during a run by how much a thread that sleeps 2 ms at a time oversleeps: then the machine is
overloaded, the kernel's packets and the agents are late too, and shaping is not accurate. `throughput_bps` measures
before a run what all GPUs' hosts can send at once, as fast as TCP over the switches allows. `probe` times a message
over each of some paths, one after another, as the Network Weather Service does (Wolski, Spring and Hayes, Future
Generation Computer Systems 15, 1999).
"""

import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from hosts.agent.clock import now_ns, sleep_until
from topologies.fabric.fabric import Fabric
from topologies.mininet_network import inside

PORT = 4792
PROBE_PORT = 4793
_MSG_EOR, _SO_SNDBUFFORCE = 0x80, 32  # Python 3.11 has no names for them
_PERIOD_NS = 2_000_000
_BUFFER_BYTES = 1 << 20
_WARM_S, _MEASURED_S = 0.2, 0.5
_CONNECT_S = 10
_PROBE_S = 60  # that a message may take


class TimerLatency:
    """Measures in a thread, for as long as it is open, by how much the thread oversleeps."""

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
        """The largest latency since the last call, in s, including that of a wake-up that is overdue now."""
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
    """A connection over which one host sends to another for as long as it is open."""

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
    """The payload, in bit/s, that all GPUs together receive while each sends to the next rank without a pause.

    The links must not be shaped. Raises OSError where the hosts cannot connect.
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
    fabric: Fabric, host_pids: Sequence[int], probes: Sequence[tuple[int, int, int]], *, size_bytes: int
) -> list[tuple[int, int]]:
    """When each of these probes was sent and had arrived, CLOCK_MONOTONIC, ns: a source and a destination by rank, and
    the TCP source port that tells its path.

    All connections are made at once, in two round trips. Then each probe, a message of so many bytes, is sent when the
    answer to the one before it has come, so that no two take from each other. Raises OSError.
    """
    took = []
    with ExitStack() as stack:
        listeners = {}
        for dst in dict.fromkeys(dst for _, dst, _ in probes):
            with inside(host_pids[dst]):
                made = socket.create_server((fabric.gpus[dst].ip, PROBE_PORT), backlog=len(probes))
            listeners[dst] = stack.enter_context(made)
        out = [stack.enter_context(_prober(fabric, host_pids[src], src, port, size_bytes)) for src, _, port in probes]
        for connection, (_, dst, _) in zip(out, probes, strict=True):
            connection.connect_ex((fabric.gpus[dst].ip, PROBE_PORT))  # EINPROGRESS
        into: dict[tuple[int, str, int], socket.socket] = {}
        for dst in (dst for _, dst, _ in probes):  # as many as each is to have
            if not select.select([listeners[dst]], [], [], _CONNECT_S)[0]:
                raise OSError(f"GPU {dst} was not reached by a probe within {_CONNECT_S} s")
            accepted, (address, port) = listeners[dst].accept()
            into[dst, address, port] = stack.enter_context(_that_waits(accepted))
            accepted.send(b"\0")  # with which the window is announced: that of a handshake is 64 kB at most
        for connection, (src, dst, _) in zip(out, probes, strict=True):
            _answer(_that_waits(connection), src, dst)
        for connection, (src, dst, port) in zip(out, probes, strict=True):
            there, data = into[dst, fabric.gpus[src].ip, port], bytearray(size_bytes + 1)
            sent_ns = now_ns()
            # The byte behind it, a packet of its own, arrives when the message is paid for (`topologies.shaping`).
            sent = connection.send(memoryview(data)[:size_bytes], _MSG_EOR) + connection.send(b"\0")
            if sent != len(data) or there.recv_into(data, 0, socket.MSG_WAITALL) != len(data):
                raise OSError(f"a probe from GPU {src} to GPU {dst} did not arrive whole within {_PROBE_S} s")
            took.append((sent_ns, now_ns()))
            there.send(b"\0")
            _answer(connection, src, dst)
    return took


def _answer(connection: socket.socket, src: int, dst: int) -> None:
    """Wait for a byte that answers."""
    if not connection.recv(1):
        raise OSError(f"GPU {dst} did not answer a probe from GPU {src}")


def _prober(fabric: Fabric, host_pid: int, src: int, port: int, size_bytes: int) -> socket.socket:
    """A socket of a GPU's host, bound to this port, which does not wait for its connection; closed, it leaves nothing
    behind, and has room for a whole probe."""
    with inside(host_pid):
        made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 * size_bytes)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setblocking(False)
    made.bind((fabric.gpus[src].ip, port))
    return made


def _that_waits(connection: socket.socket) -> socket.socket:
    """The socket, which now waits for what is sent and received, but not for ever."""
    connection.setblocking(True)
    for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, which, struct.pack("ll", _PROBE_S, 0))
    return connection
