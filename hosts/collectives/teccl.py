"""Reads the schedules that TE-CCL writes (Liu et al., "Rethinking Machine Learning Collective Communication as a
Multi-Commodity Flow Problem", SIGCOMM 2024): JSON whose "7-Flows" is a list of lines such as "Chunk 0 from 9 traveled
over 9->5 in epoch 0".
"""

import json
import re
from pathlib import Path

from hosts.collectives.schedule import Builder, Schedule, ScheduleError
from hosts.collectives.untrusted_file import MAX_TASKS_WITH_SLOTS, check_size

_FLOW = re.compile(r"Chunk (\d{1,6}) from (\d{1,6}) traveled over (\d{1,6})->(\d{1,6}) in epoch (\d{1,9})", re.ASCII)


def read(path: Path, content: str) -> Schedule:
    """Return the AllGather in a file's text: GPU g is place g, and chunk c of source s is slot s * chunks + c.

    Flows of one epoch keep the order of the file. Raises ScheduleError, one sentence that begins with the path, if the
    text is not such a schedule, is too large, or sends a chunk from a GPU that does not have it.
    """
    flows = sorted((_flow(line, path) for line in _lines(path, content)), key=lambda flow: flow[4])
    gpus = 1 + max(max(flow[1:4]) for flow in flows)
    chunks = 1 + max(flow[0] for flow in flows)
    check_size(path, gpus=gpus, slots=gpus * chunks, tasks=len(flows))
    builder = Builder(places=gpus, slots=gpus * chunks)
    present = {(gpu, gpu * chunks + chunk) for gpu in range(gpus) for chunk in range(chunks)}
    for chunk, source, src, dst, epoch in flows:
        slot = source * chunks + chunk
        if src == dst or (src, slot) not in present:
            raise ScheduleError(
                f"{path}: chunk {chunk} from {source} is sent over {src}->{dst} in epoch {epoch}, and GPU {src} does "
                "not have it by then"
            )
        present.add((dst, slot))
        builder.send(src, dst, [slot])
    try:
        return builder.done()
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None


def _lines(path: Path, content: str) -> list[str]:
    try:
        lines = json.loads(content)["7-Flows"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ScheduleError(f'{path}: it is not JSON with a list "7-Flows", as TE-CCL writes it') from None
    if (
        not isinstance(lines, list)
        or not 0 < len(lines) <= MAX_TASKS_WITH_SLOTS
        or not all(isinstance(x, str) for x in lines)
    ):
        raise ScheduleError(f'{path}: "7-Flows" is not a list of 1 to {MAX_TASKS_WITH_SLOTS:,} lines of text')
    return lines


def _flow(line: str, path: Path) -> tuple[int, int, int, int, int]:
    """Return chunk, source, sender, receiver and epoch of a line."""
    match = _FLOW.fullmatch(line)
    if match is None:
        raise ScheduleError(
            f"{path}: {line[:80]!r} is not a flow; allowed: 'Chunk C from S traveled over I->J in epoch E'"
        )
    chunk, source, src, dst, epoch = map(int, match.groups())
    return chunk, source, src, dst, epoch
