"""Ranks of a program: each of ranks 1, 2, ... sends BYTES to rank 0 over one TCP connection, all from one instant on.

    python -m scenarios.studies.programs.flows BYTES

Rank 0 prints a JSON object by rank: the ns since that instant at which each further MESSAGE_BYTES of the rank had
arrived. The others print the congestion control of their connection and the bytes that they have sent again.
"""

import json
import mmap
import os
import socket
import struct
import sys
import threading
import time

PORT = 5201
MESSAGE_BYTES = 1_000_000
LEAD_NS = 100_000_000  # from the last connection to the common instant: more than a round trip
_RANK = struct.Struct("=I")
_INSTANT = struct.Struct("=Q")
_RETRANSMITTED_AT = 208  # of tcpi_bytes_retrans in struct tcp_info


def receive(senders: int, total_bytes: int) -> dict[int, list[int]]:
    """Receive from all senders; return by rank when each further message had arrived, in ns since the start."""
    listener = socket.create_server(("", PORT), backlog=senders)
    connections = [listener.accept()[0] for _ in range(senders)]
    ranks = [_RANK.unpack(connection.recv(_RANK.size, socket.MSG_WAITALL))[0] for connection in connections]
    start_ns = time.monotonic_ns() + LEAD_NS
    for connection in connections:
        connection.sendall(_INSTANT.pack(start_ns))
    arrived: dict[int, list[int]] = {rank: [] for rank in ranks}

    def drain(connection: socket.socket, instants_ns: list[int]) -> None:
        buffer = bytearray(MESSAGE_BYTES)
        for _ in range(total_bytes // MESSAGE_BYTES):
            # MSG_TRUNC: the kernel drops the payload, which saves a copy.
            if connection.recv_into(buffer, MESSAGE_BYTES, socket.MSG_TRUNC | socket.MSG_WAITALL) < MESSAGE_BYTES:
                raise ConnectionError("a sender has ended early")
            instants_ns.append(time.monotonic_ns() - start_ns)

    pairs = zip(connections, ranks, strict=True)
    threads = [threading.Thread(target=drain, args=(one, arrived[rank])) for one, rank in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return arrived


def send(rank: int, total_bytes: int) -> dict[str, object]:
    """Send to rank 0; return the connection's congestion control and the bytes sent again."""
    while True:
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], PORT))
            break
        except ConnectionRefusedError:  # rank 0 does not listen yet
            time.sleep(0.01)
    connection.sendall(_RANK.pack(rank))
    (start_ns,) = _INSTANT.unpack(connection.recv(_INSTANT.size, socket.MSG_WAITALL))
    message = mmap.mmap(-1, MESSAGE_BYTES)
    time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
    for _ in range(total_bytes // MESSAGE_BYTES):
        connection.sendall(message)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)  # until rank 0 has everything
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    control = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return {
        "control": control.split(b"\0")[0].decode(),
        "retransmitted_bytes": struct.unpack_from("=Q", info, _RETRANSMITTED_AT)[0],
    }


def main() -> None:
    """Be the rank that the environment names."""
    rank, total_bytes = int(os.environ["RANK"]), int(sys.argv[1])
    found = send(rank, total_bytes) if rank else receive(int(os.environ["WORLD_SIZE"]) - 1, total_bytes)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
