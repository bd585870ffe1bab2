"""Memory for what has arrived and is still needed: buffers of one size, made once and used again."""

import mmap


class Buffers:
    """A free list of buffers of `size_bytes`, more of which are made when it is empty; and `scratch`, so many bytes for
    what nobody keeps."""

    def __init__(self, size_bytes: int, *, scratch_bytes: int) -> None:
        self._size_bytes = size_bytes
        self.scratch = filled(scratch_bytes)
        self._free: list[memoryview] = []
        self.made = 0

    def prepare(self, count: int) -> None:
        """Have so many in all."""
        while self.made < count:
            self._free.append(self._make())

    def take(self) -> memoryview:
        """A buffer that nobody uses."""
        return self._free.pop() if self._free else self._make()

    def give_back(self, buffer: memoryview) -> None:
        """Let a buffer be used again."""
        self._free.append(buffer)

    def _make(self) -> memoryview:
        self.made += 1
        return filled(self._size_bytes)


def filled(size_bytes: int) -> memoryview:
    """Memory that the kernel has filled in one go: a process that touches its pages one by one pays for each of them
    in the VM."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return memoryview(mmap.mmap(-1, size_bytes, flags))
