"""Caches that cross a WAN: ``caches CONNECTIONS READY:BYTES...``, in the order of READY, in us from the start.

Rank 1 sends each cache when it is ready, by a connection that has none under way. Rank 0 prints for each, in that
order, how long it took until all of it was there, in s.
"""

import json
import os
import queue
import socket
import struct
import sys
import threading
import time

RANK, HOSTS, PORT, PIECE = int(os.environ["RANK"]), os.environ["LONGHAUL_HOSTS"].split(), 7000, 1 << 20
HEAD = struct.Struct("!IQd")  # the cache's number, its bytes, and when it was ready by the clock that both hosts share


def receive(connection: socket.socket, took_s: dict[int, float]) -> None:
    """Take caches from a connection, and tell the other rank when one is complete."""
    room = bytearray(PIECE)
    while head := connection.recv(HEAD.size, socket.MSG_WAITALL):
        number, left, ready_s = HEAD.unpack(head)
        while left:
            left -= connection.recv_into(room, min(left, PIECE), socket.MSG_TRUNC)
        took_s[number] = time.monotonic() - ready_s
        connection.sendall(b".")


def send(connection: socket.socket, caches: "queue.SimpleQueue[tuple[int, int, float] | None]") -> None:
    """Send caches of the queue one after another, until it has None."""
    piece = memoryview(bytes(PIECE))
    while cache := caches.get():
        connection.sendall(HEAD.pack(*cache))
        left = cache[1]
        while left:
            left -= connection.send(piece[: min(left, PIECE)])
        connection.recv(1)
    connection.shutdown(socket.SHUT_WR)


def main(connections: int, caches: list[tuple[int, int]]) -> None:
    took_s, waiting = dict[int, float](), queue.SimpleQueue["tuple[int, int, float] | None"]()
    with socket.create_server((HOSTS[RANK], PORT), backlog=connections) as server:
        # Without TCP_NODELAY the end of a cache might wait until the end of the cache before is acknowledged.
        made = [server.accept()[0] if RANK else socket.create_connection((HOSTS[1], PORT)) for _ in range(connections)]
    for one in made:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threads = [
        threading.Thread(target=send, args=(one, waiting))
        if RANK
        else threading.Thread(target=receive, args=(one, took_s))
        for one in made
    ]
    for thread in threads:
        thread.start()
    if RANK:
        begin_s = time.monotonic()
        for number, (ready_us, size) in enumerate(caches):
            ready_s = begin_s + ready_us / 1e6
            time.sleep(max(0.0, ready_s - time.monotonic()))
            waiting.put((number, size, ready_s))
        for _ in made:
            waiting.put(None)
    for thread in threads:
        thread.join()
    if not RANK:
        for number in range(len(caches)):
            print(json.dumps(took_s[number]), flush=True)


main(int(sys.argv[1]), [(int(ready), int(size)) for ready, size in (one.split(":") for one in sys.argv[2:])])
