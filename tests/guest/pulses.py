"""Rank 1 sends rank 0 a datagram of 8,000 B every millisecond; rank 0 prints when each was sent, in ns since the
start, and how long it took. Rank 2, if there is one, waits for ever."""

import os
import socket
import sys
import time

START_NS = time.monotonic_ns()  # no virtual time has passed since the ranks' start
PORT, SIZE, COUNT = 7000, 8000, int(sys.argv[1])
rank = int(os.environ["RANK"])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    if rank == 0:
        own.bind(("", PORT))
        own.settimeout(0.1)
        last = -1
        while last < COUNT - 1:
            try:
                data = own.recv(SIZE)
            except TimeoutError:
                continue
            last, sent_ns = (int(word) for word in data.split()[:2])
            print(sent_ns - START_NS, time.monotonic_ns() - sent_ns)
    elif rank == 1:
        for number in range(COUNT):
            time.sleep(max(0.0, (START_NS + number * 1_000_000 - time.monotonic_ns()) / 1e9))
            own.sendto(f"{number} {time.monotonic_ns()} ".encode().ljust(SIZE), (os.environ["MASTER_ADDR"], PORT))
    else:
        time.sleep(1000)
