"""What parallel TCP connections carry between two ranks, and how long an AllReduce of the two takes over them.

``parallel_connections BUFFER SIZE CASE...``: BUFFER is a receiver's buffer of a connection, and SIZE that of the
AllReduce, in bytes. A case is CONNECTIONS:WARM:COUNTED: bytes count for COUNTED seconds, after WARM seconds. Rank 0
prints a line of JSON for each case. The AllReduce is a reduce-scatter and an AllGather of halves, both ways at once.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable

PORT, PIECE = 7000, 1 << 20
WARM_ROUNDS, ROUNDS = 4, 3  # of the AllReduce, on connections of its own that begin with Linux's small window
RANK, HOSTS = int(os.environ["RANK"]), os.environ["LONGHAUL_HOSTS"].split()


def limited(connection: socket.socket, buffer: int) -> socket.socket:
    """Give a socket, and the connections that it accepts, a receiver's buffer of this size: Linux doubles what is
    asked for. A TCP_WINDOW_CLAMP does not last, as Linux sets it anew when it measures how full frames are."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer // 2)
    return connection


def connected(server: socket.socket, buffer: int, count: int) -> list[socket.socket]:
    """Return connections between the two ranks, in one order on both."""
    made = list[socket.socket]()
    for number in range(count):
        if RANK:
            connection, _ = server.accept()
        else:
            connection = limited(socket.socket(), buffer)
            connection.connect((HOSTS[1], PORT))
            connection.sendall(number.to_bytes(2, "big"))
        # Otherwise the last segment of a message waits until that of the message before is acknowledged.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.append(connection)
    if RANK:
        made.sort(key=lambda connection: connection.recv(2, socket.MSG_WAITALL))
    return made


def at_once(work: Callable[[socket.socket], object], connections: list[socket.socket]) -> None:
    """Call `work` with each connection, all at once; wait for all."""
    threads = [threading.Thread(target=work, args=(one,)) for one in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def received(connection: socket.socket, count: int) -> None:
    """Read `count` bytes without keeping them."""
    room = bytearray(PIECE)
    while count:
        count -= connection.recv_into(room, min(count, PIECE), socket.MSG_TRUNC)


def exchange_s(connections: list[socket.socket], size: int) -> float:
    """Return how long this rank takes to send `size` bytes to the other, and to receive as many."""
    share = bytes(size // len(connections))
    begin = time.monotonic()
    receiving = threading.Thread(target=at_once, args=(lambda one: received(one, len(share)), connections))
    receiving.start()
    at_once(lambda one: one.sendall(share), connections)
    receiving.join()
    return time.monotonic() - begin


def sent(connection: socket.socket, until: float) -> None:
    """Send until an instant, and end."""
    piece = bytes(PIECE)
    while time.monotonic() < until:
        connection.send(piece)
    connection.shutdown(socket.SHUT_WR)


def counted(connections: list[socket.socket], since: float, until: float) -> int:
    """Return the bytes that arrive between two instants."""
    counts = list[int]()

    def read(connection: socket.socket) -> None:
        room, count = bytearray(PIECE), 0
        while length := connection.recv_into(room, PIECE, socket.MSG_TRUNC):
            count += length if since <= time.monotonic() < until else 0
        counts.append(count)

    at_once(read, connections)
    return sum(counts)


def measure(server: socket.socket, buffer: int, size: int, case: list[str]) -> None:
    """Measure a case, and print it on rank 0."""
    count, warm, measured = int(case[0]), float(case[1]), float(case[2])
    connections = connected(server, buffer, count)
    begin = time.monotonic()
    if RANK:
        carried = counted(connections, begin + warm, begin + warm + measured)
        connections[0].sendall(carried.to_bytes(8, "big"))
    else:
        at_once(lambda one: sent(one, begin + warm + measured), connections)
        carried = int.from_bytes(connections[0].recv(8, socket.MSG_WAITALL), "big")
    connections = connected(server, buffer, count)
    times = [sum(exchange_s(connections, size // 2) for _ in range(2)) for _ in range(WARM_ROUNDS + ROUNDS)]
    if not RANK:
        print(
            json.dumps({"bps": carried * 8 / measured, "allreduce_s": sorted(times[WARM_ROUNDS:])[ROUNDS // 2]}),
            flush=True,
        )


def main(buffer: str, size: str, *cases: str) -> None:
    with socket.create_server((HOSTS[RANK], PORT), backlog=256) as server:
        limited(server, int(buffer))
        for case in cases:
            measure(server, int(buffer), int(size), case.split(":"))


main(*sys.argv[1:])
