"""Two ranks of torch over Gloo: the last one streams tensors to rank 0, over a connection for each group.

``torch_stream.py SECONDS [DSCP...]``, with as many groups as there are values, one without: the packets of a group's
connection get its DSCP. Rank 0 prints a line for each tensor: the time since its start, the group, and the bytes of
the group so far.
"""

import os
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path

import torch
import torch.distributed as dist

SIZE, AHEAD = 250_000, 16  # bytes of a tensor, and how many are under way at a time


def sockets() -> set[int]:
    """Return the descriptors of this process's sockets."""
    return {int(one.name) for one in Path("/proc/self/fd").iterdir() if one.is_socket()}


def stream(group: dist.ProcessGroup, number: int) -> None:
    """Send to rank 0, or receive, until the process ends."""
    rank, under_way, total = dist.get_rank(), deque[tuple[dist.Work, torch.Tensor]](), 0
    while True:
        if len(under_way) == AHEAD:
            under_way.popleft()[0].wait()
            total += SIZE
            if not rank:
                print(time.monotonic() - began, number, total, flush=True)
        data = torch.empty(SIZE, dtype=torch.uint8)
        work = dist.isend(data, 0, group=group) if rank else dist.irecv(data, 1, group=group)
        under_way.append((work, data))


began = time.monotonic()
seconds, dscp = float(sys.argv[1]), [int(word) for word in sys.argv[2:]] or [0]
dist.init_process_group("gloo")
groups = []
for code in dscp:
    before = sockets()
    groups.append(dist.new_group())
    for fd in sockets() - before:
        with socket.socket(fileno=os.dup(fd)) as own:
            if own.family == socket.AF_INET:
                own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, code << 2)
dist.barrier()
for one in enumerate(groups):
    threading.Thread(target=stream, args=one[::-1], daemon=True).start()
time.sleep(began + seconds - time.monotonic())
os._exit(0)
