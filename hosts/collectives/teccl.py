"""Reads the schedules that TE-CCL writes (Liu et al., "Rethinking Machine Learning Collective Communication as a
Multi-Commodity Flow Problem", SIGCOMM 2024): JSON whose "7-Flows" are lines such as "Chunk 0 from 9 traveled over
9->5 in epoch 0".
"""

import json
import re
from pathlib import Path

from hosts.collectives.schedule import Builder, Schedule, ScheduleError

MOST_BYTES, MOST_GPUS, MOST_CHUNKS, MOST_FLOWS = 64 * 2**20, 1024, 1024, 100_000

_FLOW = re.compile(r"Chunk (\d{1,6}) from (\d{1,6}) traveled over (\d{1,6})->(\d{1,6}) in epoch (\d{1,9})")


def read(path: Path) -> Schedule:
    """The schedule in a file: GPU g is place g, and chunk c of source s is slot s * chunks + c, as of an allgather.

    Of a link's flows in one epoch the order is that of the file. Raises ScheduleError, one sentence that begins with
    the file, for what cannot be read, is not such a schedule, is too large, or sends a chunk that is not there.
    """
    flows = sorted((_flow(line, path) for line in _lines(path)), key=lambda flow: flow[4])
    gpus = 1 + max(max(flow[1:4]) for flow in flows)
    chunks = 1 + max(flow[0] for flow in flows)
    if gpus > MOST_GPUS or chunks > MOST_CHUNKS:
        raise ScheduleError(
            f"{path}: {gpus} GPUs with {chunks} chunks each: allowed are {MOST_GPUS} and {MOST_CHUNKS} at most"
        )
    builder = Builder(places=gpus, slots=gpus * chunks)
    there = {(gpu, gpu * chunks + chunk) for gpu in range(gpus) for chunk in range(chunks)}
    for chunk, source, src, dst, epoch in flows:
        slot = source * chunks + chunk
        if src == dst or (src, slot) not in there:
            raise ScheduleError(
                f"{path}: chunk {chunk} from {source} is sent over {src}->{dst} in epoch {epoch}, and GPU {src} does "
                "not have it by then"
            )
        there.add((dst, slot))
        builder.send(src, dst, [slot])
    try:
        return builder.done()
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ScheduleError(f"{path}: {path.stat().st_size:,} bytes: allowed are {MOST_BYTES:,} at most")
        found = json.loads(path.read_text(encoding="utf-8"))
        lines = found["7-Flows"]
    except OSError as error:
        raise ScheduleError(f"{path}: it cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise (
            error
            if isinstance(error, ScheduleError)
            else ScheduleError(f'{path}: it is not JSON with a list "7-Flows", as TE-CCL writes it')
        ) from None
    if not isinstance(lines, list) or not 0 < len(lines) <= MOST_FLOWS or not all(isinstance(x, str) for x in lines):
        raise ScheduleError(f'{path}: "7-Flows" is not a list of 1 to {MOST_FLOWS:,} lines of text')
    return lines


def _flow(line: str, path: Path) -> tuple[int, int, int, int, int]:
    """Chunk, source, from, to and epoch of a line."""
    match = _FLOW.fullmatch(line)
    if match is None:
        raise ScheduleError(
            f"{path}: {line[:80]!r} is not a flow: allowed is 'Chunk C from S traveled over I->J in epoch E'"
        )
    chunk, source, src, dst, epoch = map(int, match.groups())
    return chunk, source, src, dst, epoch
