"""The processes of this machine, and one that a failing test does not wait for."""

import subprocess

import psutil


class Process(subprocess.Popen):
    """A process that is killed where its context is left by an exception, as waiting for it may have no end."""

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, trace)


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
