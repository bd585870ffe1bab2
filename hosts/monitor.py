"""Whether a machine can keep up with an experiment in real time: timer latency, and what its hosts can send.

`TimerLatency` measures during a run by how much a thread that sleeps 2 ms at a time oversleeps: then the machine is
overloaded, the kernel's packets and the agents are late too, and shaping is not accurate. `throughput_bps` measures
before a run what all GPUs' hosts can send at once, as fast as TCP over the switches allows.
"""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from hosts.agent.clock import now_ns, sleep_until
from topologies.fabric.fabric import Fabric
from topologies.mininet_network import inside

PORT = 4792
_PERIOD_NS = 2_000_000
_BUFFER_BYTES = 1 << 20
_WARM_S, _MEASURED_S = 0.2, 0.5
_CONNECT_S = 10


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
