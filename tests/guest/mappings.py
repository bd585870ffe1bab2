"""Runs inside the VM: fills and frees memory, and breaks up what a process has, for the host to count its mappings.

Prints `held BYTES` while a process holds memory that it has filled and freed for a while, and waits for a line. It then
makes every second page of `PAGES` pages a page of its own for the host, in more pieces than the host gives mappings,
and prints `kept` and how many pages were wrong, in this process and in a fork. (Where the host allows more mappings
than Linux does by itself, 65,530, this only checks the memory.)
"""

import ctypes
import mmap
import os
import random
import sys

PAGE, PAGES = 4096, 66_000
ROUNDS, MOST = 24, 50 << 20
STEP = 33  # a page in so many is written again

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


def wrong(memory: mmap.mmap, number: int) -> int:
    """Return how many pages do not begin with their address, to which `number` was added in one page of STEP."""
    starts = range(0, len(memory), PAGE)
    return sum(memory[at : at + 8] != (at + number * (at // PAGE % STEP == 0)).to_bytes(8) for at in starts)


def broken_up() -> tuple[int, ...]:
    """Return numbers of wrong pages, in memory of which no two neighbours are neighbours on the host."""
    with mmap.mmap(-1, PAGES * PAGE) as memory:
        for at in range(0, len(memory), PAGE):
            memory[at : at + 8] = at.to_bytes(8)
        for at in range(0, len(memory), 2 * PAGE):
            memory.madvise(mmap.MADV_DONTNEED, at, PAGE)
        empty = sum(memory[at] != 0 for at in range(0, len(memory), 100 * PAGE))
        for at in range(0, len(memory), 2 * PAGE):
            memory[at : at + 8] = at.to_bytes(8)
        before = wrong(memory, 0)
        if (child := os.fork()) == 0:
            for at in range(0, len(memory), STEP * PAGE):
                memory[at : at + 8] = (at + 5).to_bytes(8)
            os._exit(min(wrong(memory, 5), 255))
        of_child = os.waitpid(child, 0)[1] >> 8
        # A right that is taken away and given back, page by page, is one more piece of each.
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for rights in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
            libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), rights)
        for at in range(0, len(memory), STEP * PAGE):
            memory[at : at + 8] = (at + 7).to_bytes(8)
        return empty, before, of_child, wrong(memory, 7)


if __name__ == "__main__":
    held = filled_and_freed(1)
    print("held", sum(map(len, held)), flush=True)
    sys.stdin.readline()
    print("kept", *broken_up(), flush=True)
