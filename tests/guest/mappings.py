"""Runs inside the VM: fills and frees memory, and breaks up what a process has, for the host to count its mappings.

Prints `held BYTES` while a process holds memory that it has filled and freed for a while, and waits for a line. It then
reads or writes a page of every block of memory, in more pieces than the host gives mappings, and prints `kept` and how
many blocks were wrong, in this process and in a fork. It then starts a process that prints `small` and takes memory
after another line, and prints `ended` with that process's status and what the kernel has logged.
"""

import ctypes
import json
import mmap
import os
import random
import subprocess
import sys

from scenarios.program.kernel_log import memory_troubles

BLOCK, BLOCKS = 1 << 16, 66_000  # no mapping is longer than a block; 4.3 GB, of which few are written
ROUNDS, MOST = 24, 50 << 20
STEP, READ = 66, 11  # a block in so many is written, and read again
SMALL = "print('small', flush=True); input(); bytearray(1 << 24)"

MAP_NORESERVE = 0x4000  # not in Python 3.11's module

libc = ctypes.CDLL(None, use_errno=True)


def filled_and_freed(seed: int) -> list[mmap.mmap]:
    """Fill and free buffers of 1 to 8 MB, as training does; return those that are left, whose pages are all used."""
    draw, held, total = random.Random(seed), list[mmap.mmap](), 0
    for _ in range(ROUNDS):
        size = draw.choice((1, 2, 4, 8)) << 20
        while total + size > MOST:
            freed = held.pop(draw.randrange(len(held)))
            total -= len(freed)
            freed.close()
        buffer = mmap.mmap(-1, size)
        buffer.write(bytes(size))
        held.append(buffer)
        total += size
    return held


def write(memory: mmap.mmap, number: int) -> None:
    """Write the address plus `number` to one block in STEP."""
    for at in range(0, len(memory), STEP * BLOCK):
        memory[at : at + 8] = (at + number).to_bytes(8)


def wrong(memory: mmap.mmap, number: int) -> int:
    """Return how many of the blocks that are read again do not have what `write` has written, or, if it has not, 0."""
    starts = range(0, len(memory), READ * BLOCK)
    return sum(memory[at : at + 8] != (at + number if at % (STEP * BLOCK) == 0 else 0).to_bytes(8) for at in starts)


def broken_up() -> tuple[int, ...]:
    """Return numbers of wrong blocks, in memory of which no two blocks are neighbours on the host."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    with mmap.mmap(-1, BLOCKS * BLOCK, flags=flags) as memory:
        empty = sum(memory[at] != 0 for at in range(0, len(memory), BLOCK))
        write(memory, 3)
        before = wrong(memory, 3)
        if (child := os.fork()) == 0:
            write(memory, 5)
            os._exit(min(wrong(memory, 5), 255))
        of_child = os.waitpid(child, 0)[1] >> 8
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for rights in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
            libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), rights)
        in_parent = wrong(memory, 3)
        write(memory, 7)
        return empty, before, of_child, in_parent + wrong(memory, 7)


if __name__ == "__main__":
    held = filled_and_freed(1)
    print("held", sum(map(len, held)), flush=True)
    sys.stdin.readline()
    print("kept", *broken_up(), flush=True)
    small = subprocess.run([sys.executable, "-S", "-c", SMALL], check=False)
    print("ended", small.returncode, json.dumps(memory_troubles()), flush=True)
