"""The `[collective]` settings, and the workload that they name: a schedule, generated or from a file, and its bytes."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from controller.routing.multipath import RANKS, multipath
from hosts.collectives import chakra
from hosts.collectives.files import read
from hosts.collectives.kinds import (
    ALGORITHMS,
    MESSAGES,
    OWN_SIZES,
    ROOTED,
    TRACE,
    TRAINING,
    Workload,
    blocks,
    sized,
    workload,
)
from hosts.collectives.schedule import Flow, ScheduleError, Transfer
from hosts.collectives.spraying import over_planes, sprayed
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.shaping.rate_scale import EVERYTHING, RateScale


@dataclass(frozen=True, kw_only=True)
class CollectiveSpec:
    """The collective that is repeated: kind, algorithm and size, how often, and how often its placement is chosen anew.

    `algorithm` None is the kind's first. The size is that of a block, `chunk_bytes`, or of the whole buffer,
    `size_bytes`, which then decides: of a configuration `chunk_bytes` follows from it. `schedule` is a file that the
    schedule is read from, in place of an algorithm; messages have the sizes that it says. Of a trace the algorithm is
    that of its collectives, and `tflops` are 10^12 operations a second of a GPU.
    `ring` is what a ring is chosen by (`hosts.embedding.ring`).
    `emulated` is how many collectives the emulation measures, from the first, where it is less than `count`.
    `budget_s` is what a collective should take at most; it changes nothing but what is told.
    """

    kind: str = "allgather"
    algorithm: str | None = None
    channels: int = 1
    pieces: int = 1
    schedule: Path | None = None
    tflops: float | None = None
    chunk_bytes: int = 8_000_000
    size_bytes: int | None = None
    count: int = 100_000
    reembed_every: int = 10
    ring: str = "cycle time"
    emulated: int = 20
    budget_s: float | None = None

    def with_chunk(self, gpus: int) -> "CollectiveSpec":
        """The same for so many GPUs, with `chunk_bytes` as `size_bytes` has it."""
        if self.size_bytes is None:
            return self
        return replace(self, chunk_bytes=-(-self.size_bytes // blocks(self.kind, gpus)))


@lru_cache(maxsize=64)
def workload_of(spec: CollectiveSpec, sites: tuple[int, ...]) -> Workload:
    """What every collective does over the GPUs of these sites, proven; raises ScheduleError where it makes no sense."""
    if spec.schedule is not None:
        return _imported(spec, spec.schedule, sites)
    if spec.kind == TRAINING:
        raise ScheduleError(f"{TRAINING} is of a run; allowed: {', '.join(ALGORITHMS)}")
    if spec.kind in (MESSAGES, TRACE):
        of = "those of a GOAL file" if spec.kind == MESSAGES else "that of Chakra's files"
        raise ScheduleError(f"{spec.kind} is {of}, and none is given; allowed: one as collective.schedule")
    return workload(
        spec.kind,
        spec.algorithm or ALGORITHMS[spec.kind][0],
        sites=sites,
        size_bytes=spec.size_bytes or spec.chunk_bytes * blocks(spec.kind, sum(sites)),
        channels=spec.channels,
        pieces=spec.pieces,
    )


@lru_cache(maxsize=64)
def routed(found: Workload, spec: FabricSpec) -> Workload:
    """The workload as a fabric's GPUs send it: with its messages in pieces where the fabric divides them, or over its
    planes.

    A ring's have as many everywhere, as any of its flows may cross the WAN. Raises ScheduleError for too many pieces.
    """
    ways = multipath(build_fabric(spec))
    if ways is None or not (ways.sprays or ways.engineers):
        return over_planes(found, spec.rails or 1) if spec.has_planes and spec.routing == "single" else found
    site = [site for site, gpus in enumerate(spec.gpus_per_site) for _ in range(gpus)]
    ends = zip(*found.schedule.ends, strict=True)
    pieces = [ways.width if found.is_ring else ways.pieces(site[src], site[dst]) for src, dst in ends]
    pieces = [1 if way >= 0 else n for way, n in zip(found.ways, pieces, strict=True)] if found.ways else pieces
    streams = [not isinstance(flow, Flow) for flow in found.schedule.flows]
    return sprayed(
        found,
        [1 if is_stream else n for is_stream, n in zip(streams, pieces, strict=True)],
        width=ways.width,
        ranks=RANKS,
    )


def _imported(spec: CollectiveSpec, path: Path, sites: tuple[int, ...]) -> Workload:
    """The workload of a schedule's file, which is named in place of an algorithm, or of a trace's."""
    gpus = sum(sites)
    if spec.kind == TRACE:
        if (spec.channels, spec.pieces) != (1, 1):
            raise ScheduleError(f"{path} is beside channels or pieces; allowed: an algorithm beside a trace")
        return chakra.read(path, sites=sites, algorithm=spec.algorithm, tflops=spec.tflops)
    if "*" in path.name and chakra.files_of(path):
        raise ScheduleError(f"{path}: it is a file for every rank, asked for as {spec.kind}; allowed: the kind {TRACE}")
    if (spec.algorithm, spec.channels, spec.pieces) != (None, 1, 1):
        raise ScheduleError(
            f"{path} is beside an algorithm, channels or pieces; allowed: the file alone, which has its own"
        )
    found = Workload(
        kind=spec.kind,
        algorithm=path.name,
        schedule=read(path, kind=spec.kind, gpus=gpus),
        slot_bytes=1,
        is_rooted=spec.kind in ROOTED,
    )
    return (
        found if spec.kind == MESSAGES else sized(found, spec.size_bytes or spec.chunk_bytes * blocks(spec.kind, gpus))
    )


def carried(found: Workload, scale: RateScale) -> Workload:
    """The workload that the emulation carries at a rate scale; raises ScaleError where a slot is less than a byte.

    Of messages each is smaller for itself; computations take as long as they do.
    """
    if found.kind in OWN_SIZES:
        return found if scale == EVERYTHING else _smaller(found, scale)
    slot_bytes = scale.chunk_bytes(found.slot_bytes)
    return replace(found, slot_bytes=-(-slot_bytes // found.unit_bytes) * found.unit_bytes)


def _smaller(found: Workload, scale: RateScale) -> Workload:
    """The messages, and slots of several sizes, at a rate scale; raises ScaleError where one is less than a byte.

    Those of background traffic have a byte at least: of exponential sizes some are small at any scale.
    """
    flows, unit = found.schedule.flows, found.unit_bytes
    background = {index for job in found.jobs if job.is_background for index in job.transfers}

    def carried_bytes(size: float) -> int:
        return -(-scale.chunk_bytes(round(size)) // unit) * unit

    slot_sizes = tuple(map(carried_bytes, found.slot_sizes))

    def transfer(index: int, one: Transfer) -> Transfer:
        if not isinstance(flows[one.flow], Flow):
            return one
        if one.slots:
            return replace(one, size=sum(slot_sizes[slot] for slot, _ in one.slots))
        return replace(one, size=carried_bytes(max(one.size, scale.divisor) if index in background else one.size))

    transfers = tuple(transfer(index, one) for index, one in enumerate(found.schedule.transfers))
    return replace(found, slot_sizes=slot_sizes, schedule=replace(found.schedule, transfers=transfers))
