"""What the VM's kernel has logged about processes' memory, read inside the VM."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8192
_DISCARDED = re.compile(r";(.+)\[\d+\] needs more mappings than the host allows")  # of 15-host-mappings.patch
_REFUSED = "UML ran out of memory on the host side"
_KILLED = re.compile(r"[Oo]ut of memory: Killed process \d+ \((.+)\) total-vm:")  # __oom_kill_process in mm/oom_kill.c


def memory_troubles() -> dict[str, object]:
    """Return the names of processes that `needed_mappings`, more than this machine keeps for one, whether one was ended
    because it `was_refused_mappings` although it had few, and the names of those that Linux killed because they
    `exhausted_memory` of the VM, one for each."""
    records = list(_records())
    names = {match[1] for record in records if (match := _DISCARDED.search(record))}
    return {
        "needed_mappings": sorted(names),
        "was_refused_mappings": any(_REFUSED in record for record in records),
        "exhausted_memory": [match[1] for record in records if (match := _KILLED.search(record))],
    }


def _records() -> Iterator[str]:
    log = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                yield os.read(log, _RECORD_BYTES).decode(errors="replace")
            except BrokenPipeError:  # the next records were overwritten; later ones follow
                continue
    except BlockingIOError:  # there are no more
        return
    finally:
        os.close(log)
