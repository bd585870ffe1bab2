"""Lists the processes of this machine; a Popen that a failing test does not wait for, and a wait with a limit."""

import subprocess
import time
from collections.abc import Callable

import psutil


class Process(subprocess.Popen):
    """A process that is killed if an exception leaves its context, as it might never end."""

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, trace)


def await_that(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until a condition holds; fail after so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.01)


def living() -> dict[int, int]:
    """Return the id of every process that has not ended, with its parent's."""
    found = psutil.process_iter(["ppid", "status"])
    return {one.pid: one.info["ppid"] for one in found if one.info["status"] != psutil.STATUS_ZOMBIE}


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process that have not ended, parents first."""
    parents, found = living(), [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]
