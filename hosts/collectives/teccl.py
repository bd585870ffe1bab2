"""Reads the schedules that TE-CCL writes (Liu et al., "Rethinking Machine Learning Collective Communication as a
Multi-Commodity Flow Problem", SIGCOMM 2024): AllGathers and AlltoAlls, as JSON.

An output lists flows, such as "Chunk 0 from 9 traveled over 9->5 in epoch 0 via switches 0", under "7-Flows"; older
ones list an AlltoAll's under "6-Flows". An AlltoAll's flows are fractions of chunks ("with volume 0.25"), and its paths
are under "8-Chunk paths" or "7-chunk paths". The flows of an AllGather by the A* formulation visit switches one by one.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hosts.collectives.schedule import Builder, Schedule, ScheduleError
from hosts.collectives.untrusted_file import MAX_GPUS, MAX_TASKS_WITH_SLOTS, check_size
from topologies.errors import list_first

MAX_SLOTS = 2**16
"""Maximum number of slots of all GPUs together; without sums a slot's content is one contribution."""
MAX_PARTS = 64
"""Maximum number of parts into which chunks are cut."""
EXACT = 1e-3
"""The error of a volume, as a fraction of a chunk, that is not mentioned."""

_HOP = (
    r"(\d{1,6})->(\d{1,6})(?: with volume ([0-9.]{1,24}(?:e-?\d{1,3})?))? in epoch (\d{1,9})"
    r"(?: via switches (\d{1,6}(?:(?:->|, ?| )\d{1,6})*))?"
)
_FLOW = re.compile(rf"Chunk (\d{{1,6}}) from (\d{{1,6}}) traveled over {_HOP}", re.ASCII)
_PATH_HOP = re.compile(_HOP, re.ASCII)
_DEMAND = re.compile(r"Demand at (\d{1,6}) for chunk (\d{1,6}) from (\d{1,6}) met by epoch \d{1,9}", re.ASCII)
_FLOW_KEYS = ("7-Flows", "6-Flows")
_PATH_KEYS = ("8-Chunk paths", "7-chunk paths")


@dataclass(frozen=True, kw_only=True)
class _Hop:
    """A part of a chunk that a node sends to another in an epoch; `switches` are those in between."""

    src: int
    dst: int
    volume: float
    epoch: int
    switches: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _Flow:
    """A hop of chunk `chunk` of the GPU `source`."""

    chunk: int
    source: int
    hop: _Hop


@dataclass(frozen=True, kw_only=True)
class _Path:
    """A path of a part of an AlltoAll's chunk, from the GPU `source` to `dest`."""

    source: int
    dest: int
    chunk: int
    hops: tuple[_Hop, ...]


def read(path: Path, content: str) -> tuple[str, Schedule]:
    """Return the kind of collective and the schedule in a file's text.

    GPUs are the nodes that send chunks of their own, and become the places 0, 1, 2 ... in the order of their numbers.
    All other nodes are switches; a chunk that passes some is one message from GPU to GPU. Messages on a flow are in the
    order of epochs, and of the file within one. An AlltoAll's chunks are cut into equal parts, at most MAX_PARTS, to
    which the volumes of paths are rounded. The schedule's notes say what was left out or rounded.

    Raises ScheduleError, one sentence that begins with the path, if the text is not such a schedule, is too large, or
    sends a chunk from a node that does not have it.
    """
    found = _object(path, content)
    flows = [_flow(line, path) for line in _lines(path, found)]
    gpus = sorted({flow.source for flow in flows})
    if not 2 <= len(gpus) <= MAX_GPUS:
        raise ScheduleError(
            f"{path}: {len(gpus):,} of its nodes send a chunk of their own; allowed: 2 to {MAX_GPUS:,} GPUs"
        )
    place = {gpu: number for number, gpu in enumerate(gpus)}
    is_alltoall = any("with volume" in line for line in found[_key(found, _FLOW_KEYS)])
    try:
        schedule = _alltoall(path, _paths(path, found, place), place) if is_alltoall else _allgather(path, flows, place)
    except ScheduleError as error:
        text = str(error)
        raise ScheduleError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    hops = [flow.hop for flow in flows]
    switches = {node for hop in hops for node in (hop.src, hop.dst, *hop.switches)} - {*gpus}
    return "alltoall" if is_alltoall else "allgather", replace(
        schedule, notes=(*_numbering_notes(gpus, sorted(switches)), *schedule.notes)
    )


def _numbering_notes(gpus: Sequence[int], switches: Sequence[int]) -> Iterator[str]:
    if switches:
        named = list_first(list(map(str, switches)), 8)
        plural = len(switches) > 1
        yield (
            f"the file's switch{'es' * plural} {named} {'are' if plural else 'is'} left out, as the fabric has its "
            "own; of its epochs only the order counts"
        )
    if list(gpus) != list(range(len(gpus))):
        named = list_first([f"{gpu} is GPU {number}" for number, gpu in enumerate(gpus) if gpu != number], 3)
        yield f"GPUs are numbered without gaps: the file's node {named}"


# --- an AllGather -----------------------------------------------------------------------------------------------------


def _allgather(path: Path, flows: Sequence[_Flow], place: Mapping[int, int]) -> Schedule:
    """Return an AllGather: chunk c of the GPU at place p is slot p * chunks + c."""
    gpus, chunks = len(place), 1 + max(flow.chunk for flow in flows)
    check_size(path, gpus=gpus, slots=gpus * chunks, tasks=len(flows))
    builder = Builder(places=gpus, slots=gpus * chunks)
    # The nodes that have a chunk, by (source, chunk). A switch has it from the GPU that sent it there last.
    holders: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    repeated = 0
    for flow in sorted(flows, key=lambda flow: flow.hop.epoch):
        hop, held = flow.hop, holders[flow.source, flow.chunk]
        held.setdefault(flow.source, flow.source)
        if hop.src == hop.dst or hop.src not in held:
            raise ScheduleError(
                f"{path}: chunk {flow.chunk} from {flow.source} is sent over {hop.src}->{hop.dst} in epoch "
                f"{hop.epoch}, and {hop.src} does not have it by then; allowed: a node sends what it has received"
            )
        if hop.dst not in place:
            held[hop.dst] = held[hop.src]
        elif hop.dst in held:
            repeated += 1
        else:
            sender = held[hop.src]
            held[hop.dst] = hop.dst
            builder.send(place[sender], place[hop.dst], [place[flow.source] * chunks + flow.chunk])
    schedule = builder.done()
    note = f"{repeated:,} of the file's flows are left out: they bring a chunk to a GPU that has it already"
    return replace(schedule, notes=(note,)) if repeated else schedule


# --- an AlltoAll ------------------------------------------------------------------------------------------------------


def _alltoall(path: Path, paths: Sequence[_Path], place: Mapping[int, int]) -> Schedule:
    """Return an AlltoAll: every path takes whole parts of a chunk, and parts at a GPU in between are in scratch."""
    gpus = len(place)
    pairs: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for one in paths:
        pairs[one.source, one.dest].add(one.chunk)
    chunks = max(map(len, pairs.values()))
    if len(pairs) < gpus * (gpus - 1) or any(len(found) < chunks for found in pairs.values()):
        raise ScheduleError(
            f"{path}: it has chunks for {len(pairs):,} pairs of {gpus:,} GPUs; allowed: equally many for each of the "
            f"{gpus * (gpus - 1):,} pairs"
        )
    number = {(*pair, chunk): k for pair, found in pairs.items() for k, chunk in enumerate(sorted(found))}
    between = _most_between(paths)
    parts, error = _parts([one.hops[-1].volume for one in paths], (MAX_SLOTS // gpus) // (2 * gpus * chunks + between))
    taken = _rounded(paths, parts)
    block = chunks * parts  # slots of a block
    scratch = [2 * gpus * block] * gpus  # by place, its first unused slot
    messages: dict[tuple[int, int, int, int, int, int], list[tuple[int, int]]] = {}
    for one, of_chunk in zip(paths, taken, strict=True):
        offsets = [number[one.source, one.dest, one.chunk] * parts + part for part in of_chunk]
        slots = [place[one.dest] * block + offset for offset in offsets]
        for hop in one.hops if offsets else ():
            at = place[hop.dst]
            if hop.dst == one.dest:
                there = [(gpus + place[one.source]) * block + offset for offset in offsets]
            else:
                there = list(range(scratch[at], scratch[at] + len(offsets)))
                scratch[at] += len(offsets)
            # Parts of a chunk that leave for the same GPU in the same epoch are one message.
            key = (hop.epoch, place[hop.src], at, place[one.source], place[one.dest], one.chunk)
            messages.setdefault(key, []).extend(zip(slots, there, strict=True))
            slots = there
    check_size(path, gpus=gpus, slots=max(scratch), tasks=len(messages), most_slots=MAX_SLOTS)
    builder = Builder(places=gpus, slots=max(scratch))
    for (_, src, dst, *_), pairs_of_slots in sorted(messages.items(), key=lambda message: message[0][0]):
        builder.send(src, dst, pairs_of_slots)
    schedule = replace(builder.done(), scratch=max(scratch) - 2 * gpus * block)
    left_out = sum(not one for one in taken)
    rounded = f"the volumes of its paths are rounded to 1/{parts} of a chunk, by up to {error:.2g} of a chunk"
    dropped = f"; {left_out:,} of {len(paths):,} paths are left out, as they round to nothing" if left_out else ""
    return replace(schedule, notes=(rounded + dropped,)) if error > EXACT else schedule


def _most_between(paths: Sequence[_Path]) -> int:
    """Return an upper bound on the chunks for which a GPU in between needs scratch at once."""
    between: defaultdict[int, float] = defaultdict(float)
    for one in paths:
        for hop in one.hops[:-1]:
            between[hop.dst] += hop.volume
    return math.ceil(max(between.values(), default=0) * 1.1)


def _parts(volumes: Sequence[float], most: int) -> tuple[int, float]:
    """Return the smallest number of equal parts of a chunk in which all volumes are nearly whole, at most `most` and
    MAX_PARTS, or the best of these, and the largest error in chunks."""
    distinct = sorted({round(volume, 6) for volume in volumes})
    best, least = 1, math.inf
    for parts in range(1, max(1, min(most, MAX_PARTS)) + 1):
        error = max(abs(volume * parts - round(volume * parts)) / parts for volume in distinct)
        if error <= EXACT:
            return parts, error
        if error < least:
            best, least = parts, error
    return best, least


def _rounded(paths: Sequence[_Path], parts: int) -> list[list[int]]:
    """Return the parts of its chunk that every path takes: volumes are rounded by largest remainders, so that the paths
    of a chunk take all of its parts."""
    of_chunk: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for index, one in enumerate(paths):
        of_chunk[one.source, one.dest, one.chunk].append(index)
    taken: list[list[int]] = [[] for _ in paths]
    for indices in of_chunk.values():
        total = sum(paths[index].hops[-1].volume for index in indices)
        wanted = {index: parts * paths[index].hops[-1].volume / total for index in indices}
        counts = {index: math.floor(share + 1e-6) for index, share in wanted.items()}
        by_remainder = sorted(indices, key=lambda index: counts[index] - wanted[index])
        for index in by_remainder[: parts - sum(counts.values())]:
            counts[index] += 1
        first = 0
        for index in indices:
            taken[index] = list(range(first, first + counts[index]))
            first += counts[index]
    return taken


# --- JSON -------------------------------------------------------------------------------------------------------------


def _object(path: Path, content: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not any(key in found for key in _FLOW_KEYS):
        raise ScheduleError(
            f'{path}: it is not JSON with a list "{_FLOW_KEYS[0]}", as TE-CCL writes its schedules; allowed: its output'
        )
    return found


def _key(found: Mapping[str, Any], keys: Sequence[str]) -> str:
    return next((key for key in keys if key in found), keys[0])


def _lines(path: Path, found: Mapping[str, Any]) -> list[str]:
    key = _key(found, _FLOW_KEYS)
    lines = found[key]
    if (
        not isinstance(lines, list)
        or not 0 < len(lines) <= MAX_TASKS_WITH_SLOTS
        or not all(isinstance(x, str) for x in lines)
    ):
        raise ScheduleError(f'{path}: "{key}" is not a list of 1 to {MAX_TASKS_WITH_SLOTS:,} lines of text')
    return lines


def _flow(line: str, path: Path) -> _Flow:
    match = _FLOW.fullmatch(line)
    if match is None:
        raise ScheduleError(
            f"{path}: {line[:80]!r} is not a flow; allowed: 'Chunk C from S traveled over I->J [with volume V] in "
            "epoch E [via switches K->L]'"
        )
    chunk, source, *hop = match.groups()
    return _Flow(chunk=int(chunk), source=int(source), hop=_hop(hop))


def _hop(groups: Sequence[str | None]) -> _Hop:
    src, dst, volume, epoch, switches = groups
    assert src is not None and dst is not None and epoch is not None
    try:
        amount = float(volume or 1)
    except ValueError:
        amount = math.nan
    between = tuple(map(int, re.findall(r"\d+", switches or "")))
    return _Hop(src=int(src), dst=int(dst), volume=amount, epoch=int(epoch), switches=between)


def _paths(path: Path, found: Mapping[str, Any], place: Mapping[int, int]) -> list[_Path]:
    """Return the paths of an AlltoAll's chunks, in the order of the file."""
    demands = found.get(_key(found, _PATH_KEYS))
    if not isinstance(demands, dict):
        raise ScheduleError(
            f'{path}: it is an AlltoAll without "{_PATH_KEYS[0]}", which say which fraction of a chunk takes which '
            "path; allowed: with them, as TE-CCL writes it"
        )
    paths = []
    for name, listed in demands.items():
        match = _DEMAND.fullmatch(name)
        if match is None or not isinstance(listed, list):
            raise ScheduleError(
                f"{path}: {name[:80]!r} is not a demand; allowed: 'Demand at D for chunk C from S met by epoch E'"
            )
        dest, chunk, source = map(int, match.groups())
        for hops in listed:
            paths.append(_Path(source=source, dest=dest, chunk=chunk, hops=_hops(path, name, hops)))
            _check_path(path, name, paths[-1], place)
    if len(paths) > MAX_TASKS_WITH_SLOTS:
        raise ScheduleError(f"{path}: it has {len(paths):,} paths; allowed: {MAX_TASKS_WITH_SLOTS:,}")
    return paths


def _hops(path: Path, name: str, listed: object) -> tuple[_Hop, ...]:
    """Return the hops of a path, a list of pairs [epoch, text]."""
    hops = []
    for one in listed if isinstance(listed, list) else ():
        text = one[-1] if isinstance(one, list) and one else one
        match = _PATH_HOP.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ScheduleError(
                f"{path}: {str(text)[:80]!r} of {name!r} is not a hop; allowed: 'I->J with volume V in epoch E'"
            )
        hops.append(_hop(match.groups()))
    return tuple(hops)


def _check_path(path: Path, name: str, one: _Path, place: Mapping[int, int]) -> None:
    """Raise ScheduleError unless a path leads from its source over GPUs to its destination, in the order of epochs."""
    ends = [(hop.src, hop.dst) for hop in one.hops]
    nodes = [one.source, *(dst for _, dst in ends)]
    epochs = [hop.epoch for hop in one.hops]
    if (
        not ends
        or nodes[-1] != one.dest
        or [src for src, _ in ends] != nodes[:-1]
        or len({*nodes}) < len(nodes)
        or not {*nodes} <= {*place}
        or epochs != sorted({*epochs})
        or not all(0 < hop.volume <= 1 + EXACT for hop in one.hops)
    ):
        shown = list_first([f"{hop.src}->{hop.dst} in epoch {hop.epoch}" for hop in one.hops], 8)
        raise ScheduleError(
            f"{path}: {name!r} has the path {shown or 'without hops'}; allowed: from its source over other GPUs to its "
            "destination, with later and later epochs, and a volume of 1 at most"
        )
