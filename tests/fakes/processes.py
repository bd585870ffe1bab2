"""The processes of this machine, one that a failing test does not wait for, and waiting that has an end."""

import subprocess
import time
from collections.abc import Callable

import psutil


class Process(subprocess.Popen):
    """A process that is killed where its context is left by an exception, as waiting for it may have no end."""

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, trace)


def await_that(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until a condition holds; fails where that takes so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.01)


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
