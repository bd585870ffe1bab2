"""Runs inside the VM: prints the kernel's completions for memory sent with MSG_ZEROCOPY, before and after it is read.

A completion is (first, last, whether it was copied after all).
"""

import mmap
import socket
import struct
import subprocess
import time

SIZE = 1 << 20


def completions(connection: socket.socket) -> list[tuple[int, int, int]]:
    """Return the completions since the last call."""
    try:
        _, ((_, _, error),), _, _ = connection.recvmsg(0, 64, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return []
    return [(*struct.unpack_from("=II", error, 8), error[6])]


subprocess.run(["ip", "link", "set", "dev", "lo", "up"], check=True)
with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sender:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * SIZE)
    sender.setsockopt(socket.SOL_SOCKET, 60, 1)  # SO_ZEROCOPY
    sender.connect(server.getsockname())
    receiver, _ = server.accept()
    memory = mmap.mmap(-1, SIZE)
    memory[:] = b"a" * SIZE
    sender.sendmsg([memory], (), 0x4000000)  # MSG_ZEROCOPY
    time.sleep(1)
    print(completions(sender))
    memory[:] = b"b" * SIZE  # no program may do this; it shows which memory the receiver reads
    found = receiver.recv(SIZE, socket.MSG_WAITALL)
    time.sleep(1)
    print(completions(sender), found.count(b"b") > SIZE // 2)
    receiver.close()
