"""Bytes without contents, as those of fake tensors: they have a size, and as many bytes cross the network."""

from collections.abc import Iterable, Iterator

_SCRATCH = memoryview(bytearray(1 << 20))


class Blank:
    """So many bytes without contents, which take no memory."""

    __slots__ = ("_size",)

    def __init__(self, size_bytes: int) -> None:
        self._size = size_bytes

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> "Blank":
        return Blank(len(range(*part.indices(self._size))))


Buffer = memoryview | Blank
"""The bytes of a slot, a block or a message."""


def new(size_bytes: int, like: Buffer) -> Buffer:
    """Return new bytes: without contents if others are without."""
    return Blank(size_bytes) if isinstance(like, Blank) else memoryview(bytearray(size_bytes))


def put(data: Buffer, into: Buffer) -> None:
    """Copy bytes, unless either have no contents."""
    if not isinstance(into, Blank) and not isinstance(data, Blank):
        into[:] = data


def in_memory(buffers: Iterable[Buffer]) -> Iterator[memoryview]:
    """Yield memory to be sent or to be received into for these bytes.

    What has no contents shares one small piece of memory, whose contents mean nothing.
    """
    for one in buffers:
        if isinstance(one, Blank):
            whole, rest = divmod(len(one), len(_SCRATCH))
            yield from (_SCRATCH for _ in range(whole))
            yield _SCRATCH[:rest]
        else:
            yield one
