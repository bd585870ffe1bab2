"""The processes of this machine, as the kernel tells of them."""

import contextlib
from pathlib import Path


def living() -> dict[int, int]:
    """Every process that has not ended, with its parent's."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":  # the dead that nobody has waited for yet
                found[int(process.name)] = int(parent)
    return found


def children(pid: int) -> list[int]:
    """The processes that one has started itself."""
    return [child for child, parent in living().items() if parent == pid]


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    below = children(pid)
    return [*below, *(grandchild for child in below for grandchild in descendants(child))]
