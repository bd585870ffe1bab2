"""Runs inside the VM: in which order a fair queue serves sockets, some at the memory addresses of closed sockets.

UDP sockets with a port each send a packet, in the order of their ports, into a fair queue that is still busy. Prints
the ports in the order in which the packets arrive, as JSON.
"""

import json
import socket
import time

from tests.guest.network import sh
from topologies.shaping.classes import FQ

SOCKETS = 40
SINK = ("127.0.0.1", 9)
FIRST_PORT = 20000
PACKET = bytes(1000)


def source(port: int) -> socket.socket:
    """Return a socket that sends from this port; it is connected, as the queue classifies others by a hash."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", port))
    made.connect(SINK)
    return made


def main() -> None:
    for line in (
        "qdisc add dev lo root handle 1: htb default 1",
        "class add dev lo parent 1: classid 1:1 htb rate 10mbit burst 2000 cburst 2000 quantum 60000",
        f"qdisc add dev lo parent 1:1 {FQ}",
    ):
        sh(f"tc {line}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(SINK)
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        # The queue keeps the turns of these sockets after their packets have left; then their memory is freed.
        gone = [source(port) for port in range(30000, 30000 + SOCKETS)]
        for one in gone:
            one.send(PACKET)
        for _ in gone:
            sink.recv(2000)
        for one in gone:
            one.close()
        time.sleep(1)
        busy = source(FIRST_PORT - 1)
        made = [source(FIRST_PORT + number) for number in range(SOCKETS)]
        for one in (busy, busy, *made):
            one.send(PACKET)
        print(json.dumps([sink.recvfrom(2000)[1][1] for _ in range(SOCKETS + 2)]))


if __name__ == "__main__":
    main()
