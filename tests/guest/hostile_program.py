"""Runs as a rank of a program: each rank does a different kind of harm."""

import os
import signal
import sys
import time
from pathlib import Path


def ignores_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1e6)


def prints_without_end() -> None:
    block = b"x" * 65536
    for _ in range(1000):
        sys.stdout.buffer.write(block)


def fills_the_disk() -> None:
    with Path("large").open("wb") as file:
        while True:
            file.write(bytes(1 << 20))


def forks() -> None:
    made = 0
    try:
        while True:
            if os.fork() == 0:
                time.sleep(1e6)
            made += 1
    except BlockingIOError:
        print(made)


def takes_all_memory() -> None:
    held = []
    while True:
        held.append(b"x" * (1 << 26))


def touches_the_system() -> None:
    refused = 0
    for path in ("/etc/passwd", "/usr/x", "/proc/sys/net/ipv4/ip_forward", "/run/x", "/dev/x", "/dev/console"):
        try:
            Path(path).open("a").close()
        except OSError:
            refused += 1
    print(refused, sorted(one.name for one in Path("/sys/class/net").iterdir()), os.getuid() != 0)


if __name__ == "__main__":
    kinds = [ignores_signals, prints_without_end, fills_the_disk, takes_all_memory, touches_the_system, forks]
    number = int(os.environ["RANK"])
    kinds[number]()
