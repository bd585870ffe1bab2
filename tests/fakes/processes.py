"""The processes of this machine."""

import psutil


def living() -> dict[int, int]:
    """Every process that has not ended, with its parent's."""
    found = psutil.process_iter(["ppid", "status"])
    return {one.pid: one.info["ppid"] for one in found if one.info["status"] != psutil.STATUS_ZOMBIE}


def descendants(pid: int) -> list[int]:
    """The processes below one, parents first, that have not ended."""
    parents, found = living(), [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]
