"""What a machine can carry in real time: all GPUs' hosts send at once, as fast as TCP over the switches lets them."""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from topologies.fabric import Fabric
from topologies.network import inside

PORT = 4792
_BUFFER_BYTES = 1 << 20
_WARM_S, _MEASURED_S = 0.2, 0.5
_CONNECT_S = 10


class _Flow:
    """A connection over which one host sends to another for as long as it is open."""

    def __init__(self, src_pid: int, dst_pid: int, address: str) -> None:
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
        room = bytearray(_BUFFER_BYTES)
        with suppress(OSError):
            while got := self._into.recv_into(room):
                self.received_bytes += got


def carried_bps(fabric: Fabric, host_pids: Sequence[int]) -> float:
    """The payload, in bit/s, that all GPUs together receive while each sends to the next rank without a pause.

    The links must not be shaped. Raises OSError where the hosts cannot connect.
    """
    flows: list[_Flow] = []
    try:
        for place, pid in enumerate(host_pids):
            after = (place + 1) % len(host_pids)
            flows.append(_Flow(pid, host_pids[after], fabric.gpus[after].ip))
        time.sleep(_WARM_S)
        began_s, before = time.monotonic(), sum(flow.received_bytes for flow in flows)
        time.sleep(_MEASURED_S)
        received = sum(flow.received_bytes for flow in flows) - before
        return 8 * received / (time.monotonic() - began_s)
    finally:
        for flow in flows:
            flow.close()
