"""The [collective] table, and its workload: a schedule, generated or read from a file, with sizes."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from controller.routing.multipath import SUBSTITUTES, multipath
from hosts.collectives import chakra
from hosts.collectives.kinds import (
    ALGORITHMS,
    MESSAGES,
    ROOTED,
    SELF_SIZED_KINDS,
    TRACE,
    TRAINING,
    Workload,
    blocks,
    sized,
    workload,
)
from hosts.collectives.schedule import Flow, ScheduleError, Transfer
from hosts.collectives.schedule_files import read
from hosts.collectives.spraying import over_planes, sprayed
from scenarios.spec.emulated import Emulated
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.shaping.rate_scale import FULL_SCALE, RateScale
from topologies.units import format_size


@dataclass(frozen=True, kw_only=True)
class CollectiveSpec:
    """The collective that is repeated: its kind, algorithm, size and count, and after how many a new ring is chosen.

    `algorithm` None means the first of the kind. `pieces` None means that the timing model chooses the number in each
    configuration (`pieces.chosen_pieces`), whose `chooses` then tells so; outside of configurations it is 1. The size
    is given as that of a block, `chunk_bytes`, or of the whole buffer, `size_bytes`. If `size_bytes` is given, the
    `chunk_bytes` of a configuration are computed from it. `schedule` is a file from which the schedule is read instead
    of being generated; the kind "messages" takes its sizes from there too. For a trace, `algorithm` is that of its
    collectives, and `tflops` is the speed of a GPU in 10^12 operations per second. `ring` is the objective by which
    rings are chosen (`hosts.embedding.ring`). `emulated` is which collectives the emulation measures: a number of them,
    from the first on, or an `Emulated`. In its configurations, `measured` are their numbers. `budget_s` is how long a
    collective should take at most; it affects reports only.
    """

    kind: str = "allgather"
    algorithm: str | None = None
    channels: int = 1
    pieces: int | None = None
    chooses: bool = field(default=False, compare=False)
    schedule: Path | None = None
    tflops: float | None = None
    chunk_bytes: int = 8_000_000
    size_bytes: int | None = None
    count: int = 100_000
    reembed_every: int = 10
    ring: str = "cycle time"
    emulated: int | Emulated = 20
    measured: range | None = None
    budget_s: float | None = None

    @property
    def numbers(self) -> range:
        """The numbers of the collectives that run: those that are `measured`, or all."""
        return range(self.count) if self.measured is None else self.measured

    def words(self, gpus: int) -> str:
        """Return the sizes of a block and of the buffer for this number of GPUs: "8 MB blocks, 64 MB buffer"."""
        sizes = self.with_chunk(gpus)
        buffer_bytes = sizes.size_bytes or sizes.chunk_bytes * blocks(self.kind, gpus)
        buffer = f"{format_size(buffer_bytes)} buffer"
        if blocks(self.kind, gpus) == 1:
            return buffer
        return f"{format_size(round(float(f'{sizes.chunk_bytes:.4g}')))} blocks, {buffer}"

    def with_chunk(self, gpus: int) -> "CollectiveSpec":
        """Return this spec with the `chunk_bytes` that follow from `size_bytes` for this number of GPUs."""
        if self.size_bytes is None:
            return self
        return replace(self, chunk_bytes=-(-self.size_bytes // blocks(self.kind, gpus)))


@lru_cache(maxsize=64)
def workload_of(spec: CollectiveSpec, sites: tuple[int, ...]) -> Workload:
    """Return the workload of each collective over the GPUs of these sites, proven correct; raises ScheduleError if the
    values do not fit together."""
    if spec.schedule is not None:
        return _imported_workload(spec, spec.schedule, sites)
    if spec.kind == TRAINING:
        raise ScheduleError(f"{TRAINING} needs a run; allowed: {', '.join(ALGORITHMS)}")
    if spec.kind in (MESSAGES, TRACE):
        of = "a GOAL file" if spec.kind == MESSAGES else "Chakra's files"
        raise ScheduleError(f"{spec.kind} needs {of}, and none is given; allowed: one as collective.schedule")
    return workload(
        spec.kind,
        spec.algorithm or ALGORITHMS[spec.kind][0],
        sites=sites,
        size_bytes=spec.size_bytes or spec.chunk_bytes * blocks(spec.kind, sum(sites)),
        channels=spec.channels,
        pieces=spec.pieces or 1,
    )


@lru_cache(maxsize=64)
def routed(workload: Workload, spec: FabricSpec) -> Workload:
    """Return the workload as a fabric's GPUs send it: messages split into pieces if the fabric sprays or engineers
    traffic, or spread over its planes.

    All messages of a ring have the same number of pieces, because any flow of the ring may cross the WAN. Raises
    ScheduleError for too many pieces.
    """
    paths = multipath(build_fabric(spec))
    if paths is None or not (paths.sprays or paths.engineers):
        return over_planes(workload, spec.rails or 1) if spec.has_planes and spec.routing == "single" else workload
    site = [site for site, gpus in enumerate(spec.gpus_per_site) for _ in range(gpus)]
    ends = zip(*workload.schedule.ends, strict=True)
    pieces = [paths.width if workload.is_ring else paths.pieces(site[src], site[dst]) for src, dst in ends]
    pieces = (
        [1 if pinned >= 0 else n for pinned, n in zip(workload.pinned_channels, pieces, strict=True)]
        if workload.pinned_channels
        else pieces
    )
    streams = [not isinstance(flow, Flow) for flow in workload.schedule.flows]
    return sprayed(
        workload,
        [1 if is_stream else n for is_stream, n in zip(streams, pieces, strict=True)],
        width=paths.width,
        substitutes=SUBSTITUTES,
    )


def _imported_workload(spec: CollectiveSpec, path: Path, sites: tuple[int, ...]) -> Workload:
    """Return the workload of a schedule file or of a trace, which replaces a generated schedule."""
    gpus = sum(sites)
    if spec.kind == TRACE:
        if (spec.channels, spec.pieces or 1) != (1, 1):
            raise ScheduleError(
                f"{path} cannot be combined with channels or pieces; allowed: a trace with an algorithm"
            )
        return chakra.read(path, sites=sites, algorithm=spec.algorithm, tflops=spec.tflops)
    if "*" in path.name and chakra.files_of(path):
        raise ScheduleError(
            f"{path}: it has a file for each rank, which the kind {spec.kind} cannot read; allowed: {TRACE}"
        )
    if (spec.algorithm, spec.channels, spec.pieces or 1) != (None, 1, 1):
        raise ScheduleError(f"{path} has its own algorithm, channels and pieces; allowed: the file alone")
    imported = Workload(
        kind=spec.kind,
        algorithm=path.name,
        schedule=read(path, kind=spec.kind, gpus=gpus, chunk_bytes=spec.chunk_bytes),
        slot_bytes=1,
        is_rooted=spec.kind in ROOTED,
    )
    if spec.kind == MESSAGES:
        return imported
    return sized(imported, spec.size_bytes or spec.chunk_bytes * blocks(spec.kind, gpus))


def scaled_workload(workload: Workload, scale: RateScale) -> Workload:
    """Return the workload that the emulation carries at a rate scale; raises ScaleError if a slot has less than a byte.

    Messages are scaled one by one; computations keep their durations.
    """
    if workload.kind in SELF_SIZED_KINDS:
        return workload if scale == FULL_SCALE else _smaller(workload, scale)
    slot_bytes = scale.chunk_bytes(workload.slot_bytes)
    return replace(workload, slot_bytes=-(-slot_bytes // workload.unit_bytes) * workload.unit_bytes)


def _smaller(workload: Workload, scale: RateScale) -> Workload:
    """Scale every message, and slots of several sizes; raises ScaleError if one has less than a byte.

    Messages of background traffic keep at least a byte, as some of their exponentially distributed sizes are small at
    any scale.
    """
    flows, unit = workload.schedule.flows, workload.unit_bytes
    background = {index for job in workload.jobs if job.is_background for index in job.transfers}

    def carried_bytes(size: float) -> int:
        if not size:  # an empty message stays one
            return 0
        return -(-scale.chunk_bytes(round(size)) // unit) * unit

    slot_sizes = tuple(map(carried_bytes, workload.slot_sizes))

    def carried_transfer(index: int, transfer: Transfer) -> Transfer:
        if not isinstance(flows[transfer.flow], Flow):
            return transfer
        if transfer.slots:
            return replace(transfer, size=sum(slot_sizes[slot] for slot, _ in transfer.slots))
        least = scale.divisor if index in background else 0
        return replace(transfer, size=carried_bytes(max(transfer.size, least)))

    transfers = tuple(carried_transfer(*each) for each in enumerate(workload.schedule.transfers))
    return replace(workload, slot_sizes=slot_sizes, schedule=replace(workload.schedule, transfers=transfers))
