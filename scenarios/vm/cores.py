"""A core for each VM.

A VM is the work of one core that passes between processes all the time. Spread over several cores, every pass wakes a
core that sleeps, which on a virtual machine takes ten times as long as the pass itself.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_LOOK_S = 0.05
_IDLE = (3, 4)  # columns of a line of /proc/stat: idle, and waiting for a disk


@contextmanager
def taken(idle_ticks: Callable[[], Mapping[int, int]] | None = None) -> Iterator[int | None]:
    """Take a core that no other VM of this machine has, the idlest, for the time of the context.

    None where all are taken or this process may use one only: then the scheduler decides. `idle_ticks` tells for how
    long each core has been idle.
    """
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        yield None
        return
    look = idle_ticks or _idle_ticks
    before = look()
    time.sleep(_LOOK_S)
    now = look()
    for core in sorted(cores, key=lambda core: (now.get(core, 0) - before.get(core, 0), core), reverse=True):
        # A name that is bound and never listened on: whoever holds it may die in any way, and it is free again.
        with socket.socket(socket.AF_UNIX) as mark:
            try:
                mark.bind(f"\0longhaul-core-{core}")
            except OSError:
                continue
            yield core
            return
    yield None


def _idle_ticks() -> dict[int, int]:
    found = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name != "cpu":
            found[int(name[3:])] = sum(int(columns[place]) for place in _IDLE)
    return found
