"""Runs inside the VM: how long waits with a timeout take, in ns of virtual time, as JSON.

Sockets' own timeouts (SO_RCVTIMEO, SO_SNDTIMEO) by their length in us, and what a wait that a message ends leaves.
"""

import json
import socket
import struct
import threading
import time

TIMEOUTS_US = (1, 1_000, 1_001, 3_000, 7_000, 50_000, 200_000, 1_000_000, 30_000_000)


def waited(kind: int, option: int, timeout_us: int) -> int:
    """Return how long a socket without data to receive, or without room to send, waits for it."""
    near, far = socket.socketpair(socket.AF_UNIX, kind)
    with near, far:
        if option == socket.SO_SNDTIMEO:
            near.setblocking(False)
            try:
                while True:
                    near.send(bytes(4096))
            except BlockingIOError:
                near.setblocking(True)
        near.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", *divmod(timeout_us, 1_000_000)))
        time.sleep(0.0123)  # the wait begins between two ticks
        began_ns = time.monotonic_ns()
        try:
            near.send(b"x") if option == socket.SO_SNDTIMEO else near.recv(1)
        except BlockingIOError:
            return time.monotonic_ns() - began_ns
    raise AssertionError("the socket did not wait")


def received_after(timeout_us: int, sent_s: float) -> int:
    """Return how long a socket with a timeout waits for a byte that is sent before the timeout."""
    near, far = socket.socketpair()
    with near, far:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", *divmod(timeout_us, 1_000_000)))

        def send() -> None:
            time.sleep(sent_s)
            far.send(b"x")

        sender = threading.Thread(target=send)
        began_ns = time.monotonic_ns()
        sender.start()
        assert near.recv(1) == b"x"
        took_ns = time.monotonic_ns() - began_ns
        sender.join()
    return took_ns


if __name__ == "__main__":
    report = {
        "receive": [waited(socket.SOCK_STREAM, socket.SO_RCVTIMEO, us) for us in TIMEOUTS_US],
        "datagram": [waited(socket.SOCK_DGRAM, socket.SO_RCVTIMEO, us) for us in TIMEOUTS_US],
        "send": [waited(socket.SOCK_STREAM, socket.SO_SNDTIMEO, us) for us in TIMEOUTS_US],
        "received": received_after(50_000, 0.020),
    }
    print(json.dumps(report))
