"""Spraying: cuts the messages of a workload into pieces, each on its own connection.

A message of n pieces becomes n messages on n channels. It has arrived when all pieces have, so a transfer that depended
on the message depends on all pieces. The network may thus send each piece over a different path, and the schedule still
does the same.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import lcm
from typing import TypeVar

from hosts.collectives.kinds import MAX_TRANSFERS, SELF_SIZED_KINDS, Workload
from hosts.collectives.schedule import Contents, Flow, Schedule, ScheduleError, Stream, Transfer, own_contributions

_Value = TypeVar("_Value")

MAX_CONNECTIONS = 2**16
_MAX_CHANNELS = 5_000  # so that two epochs have enough source ports


def sprayed(whole: Workload, pieces: Sequence[int], *, width: int, substitutes: int) -> Workload:
    """Return the workload with the messages of flow f cut into `pieces[f]` pieces; `pieces` is 1 for a stream.

    The pieces of channel c use channels c * width, c * width + 1, and so on. A flow that is confined to a path is one
    piece, on a channel that is congruent to its `Workload.pinned_channels` modulo width * substitutes.

    Slots are cut into equal parts, each rounded up to a whole byte or word. Pieces of a message without slots differ by
    at most a byte or word; a message with fewer bytes or words than pieces has fewer pieces. Raises ScheduleError for
    too many transfers, connections or channels.
    """
    schedule, unit = whole.schedule, whole.unit_bytes
    parts = lcm(*(number for number, flow in zip(pieces, schedule.flows, strict=True) if isinstance(flow, Flow)))
    flows = _flows(whole, pieces, width=width, period=width * substitutes)
    first_flow = [0, *accumulate(pieces)]
    # The exact number of transfers, checked below, is at least this one, which is cheap to compute.
    least = sum(pieces[transfer.flow] if transfer.slots else 1 for transfer in schedule.transfers)
    channels = 1 + max(flow.channel for flow in flows if isinstance(flow, Flow))
    for count, most, what in (
        (least, MAX_TRANSFERS, "transfers"),
        (len(flows), MAX_CONNECTIONS, "connections"),
        (channels, _MAX_CHANNELS, "channels"),
    ):
        if count > most:
            raise ScheduleError(f"sprayed over all paths, the workload has {count:,} {what}; allowed: {most:,}")
    pieces_of = [_cut(whole, transfer, pieces[transfer.flow], parts, unit) for transfer in schedule.transfers]
    ends = [0, *accumulate(map(len, pieces_of))]
    if ends[-1] > MAX_TRANSFERS:
        raise ScheduleError(
            f"sprayed over all paths, the workload has {ends[-1]:,} transfers; allowed: {MAX_TRANSFERS:,}"
        )
    transfers = [
        replace(
            transfer,
            flow=first_flow[transfer.flow] + piece,
            slots=slots,
            size=size,
            after=tuple(
                index for dependency in transfer.after for index in range(ends[dependency], ends[dependency + 1])
            ),
        )
        for transfer, pieces_of_one in zip(schedule.transfers, pieces_of, strict=True)
        for piece, (slots, size) in enumerate(pieces_of_one)
    ]
    return replace(
        whole,
        schedule=Schedule(
            places=schedule.places,
            slots=schedule.slots * parts,
            flows=tuple(flows),
            transfers=tuple(transfers),
            scratch=schedule.scratch * parts,
            notes=schedule.notes,
        ),
        slot_bytes=_slot_bytes(whole, parts, unit),
        slot_sizes=tuple(_part(size, parts, unit) for size in whole.slot_sizes for _ in range(parts)),
        contents=None if whole.contents is None else _contents(whole.contents, parts),
        jobs=tuple(
            replace(job, transfers=range(ends[job.transfers.start], ends[job.transfers.stop])) for job in whole.jobs
        ),
        dscp=_repeated(whole.dscp, pieces),
        pinned_channels=(),
        guaranteed_share=_repeated(whole.guaranteed_share, pieces),
        demand_bps=_repeated([bps / count for bps, count in zip(whole.demand_bps, pieces, strict=False)], pieces),
        before_spraying=whole,
    )


def _flows(whole: Workload, pieces: Sequence[int], *, width: int, period: int) -> list[Flow | Stream]:
    """Return the flows of all pieces; `period` is the number of channels after which paths repeat."""
    flows = whole.schedule.flows
    pins = whole.pinned_channels or (-1,) * len(flows)
    free = [flow.channel for flow, pin in zip(flows, pins, strict=True) if isinstance(flow, Flow) and pin < 0]
    first = (1 + max(free, default=-1)) * width  # the first channel that no unconfined flow uses
    taken: Counter[tuple[int, int, int]] = Counter()  # pinned flows so far, by (source, destination, channel)
    split: list[Flow | Stream] = []
    for flow, pin, count in zip(flows, pins, pieces, strict=True):
        if isinstance(flow, Flow) and pin >= 0:
            channel = first + (pin - first) % period + taken[flow.src, flow.dst, pin] * period
            split.append(replace(flow, channel=channel))
            taken[flow.src, flow.dst, pin] += 1
        elif isinstance(flow, Flow):
            split += [replace(flow, channel=flow.channel * width + piece) for piece in range(count)]
        else:
            split.append(flow)
    return split


def _repeated(values: Sequence[_Value], pieces: Sequence[int]) -> tuple[_Value, ...]:
    """Return each flow's value once per piece; empty if flows have no values."""
    return tuple(value for value, count in zip(values, pieces, strict=False) for _ in range(count))


def over_planes(whole: Workload, planes: int) -> Workload:
    """Return the workload with channels renumbered to spread its flows over `planes`: channel c is on plane c % planes.

    The channels of a ring are on different planes already. In any other workload, channel c between places a and b
    becomes c * planes + (a + b + c) % planes, so that a place's flows to several others are on different planes, too.
    Raises ScheduleError for too many channels.
    """
    if whole.is_ring:
        return whole
    flows = tuple(
        replace(flow, channel=flow.channel * planes + (flow.src + flow.dst + flow.channel) % planes)
        if isinstance(flow, Flow)
        else flow
        for flow in whole.schedule.flows
    )
    if (channels := 1 + max(flow.channel for flow in flows if isinstance(flow, Flow))) > _MAX_CHANNELS:
        raise ScheduleError(f"over {planes} rails, the workload has {channels:,} channels; allowed: {_MAX_CHANNELS:,}")
    return replace(whole, schedule=replace(whole.schedule, flows=flows))


def _slot_bytes(whole: Workload, parts: int, unit: int) -> int:
    """Return the bytes of a slot of the sprayed workload; 1 for kinds whose messages have their own sizes."""
    return whole.slot_bytes if whole.kind in SELF_SIZED_KINDS else _part(whole.slot_bytes, parts, unit)


def _part(size_bytes: int, parts: int, unit: int) -> int:
    """Return the bytes of each part of a slot."""
    return -(-size_bytes // (parts * unit)) * unit


def _cut(
    whole: Workload, transfer: Transfer, count: int, parts: int, unit: int
) -> list[tuple[tuple[tuple[int, int], ...], float]]:
    """Return the slots and the size of each piece of a transfer, in the unit of the new schedule."""
    if isinstance(whole.schedule.flows[transfer.flow], Stream):
        return [((), transfer.size)]
    if not transfer.slots:
        words, rest = divmod(round(transfer.size * whole.slot_bytes), unit)
        each, more = divmod(words, count)
        sizes = [(each + 1 if piece < more else each) * unit for piece in range(count)]
        sizes[0] += rest
        slot_bytes = _slot_bytes(whole, parts, unit)
        return [((), size / slot_bytes) for piece, size in enumerate(sizes) if size or piece == 0]
    share = parts // count
    cut = []
    size = 0.0
    if transfer.size:
        size = sum(_part(whole.slot_sizes[here], parts, unit) * share for here, _ in transfer.slots)
    for piece in range(count):
        own = range(piece * share, (piece + 1) * share)
        slots = tuple((here * parts + part, there * parts + part) for here, there in transfer.slots for part in own)
        cut.append((slots, size))
    return cut


def _contents(contents: Contents, parts: int) -> Contents:
    """Return the contents of the parts of all slots; each slot is empty or holds a contribution of its own."""
    slots = len(contents[0]) * parts
    return own_contributions([{s for s in range(slots) if of_place[s // parts]} for of_place in contents], slots)
