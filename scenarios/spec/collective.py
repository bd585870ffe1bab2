"""The `[collective]` settings, and the workload that they name: a schedule, generated or from a file, and its bytes."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from hosts.collectives.kinds import ALGORITHMS, MESSAGES, Workload, blocks, workload
from hosts.collectives.schedule import ScheduleError
from topologies.shaping.rate_scale import RateScale


@dataclass(frozen=True, kw_only=True)
class CollectiveSpec:
    """The collective that is repeated: kind, algorithm and size, how often, and how often its placement is chosen anew.

    `algorithm` None is the kind's first. The size is that of a block, `chunk_bytes`, or of the whole buffer,
    `size_bytes`, which then decides: of a configuration `chunk_bytes` follows from it. `schedule` is a file that the
    schedule is read from. `emulated` is how many collectives the emulation measures, from the first, where it is less
    than `count`.
    """

    kind: str = "allgather"
    algorithm: str | None = None
    channels: int = 1
    pieces: int = 1
    schedule: Path | None = None
    chunk_bytes: int = 8_000_000
    size_bytes: int | None = None
    count: int = 100_000
    reembed_every: int = 10
    emulated: int = 20

    def with_chunk(self, gpus: int) -> "CollectiveSpec":
        """The same for so many GPUs, with `chunk_bytes` as `size_bytes` has it."""
        if self.size_bytes is None:
            return self
        return replace(self, chunk_bytes=-(-self.size_bytes // blocks(self.kind, gpus)))


@lru_cache(maxsize=64)
def workload_of(spec: CollectiveSpec, sites: tuple[int, ...]) -> Workload:
    """What every collective does over the GPUs of these sites, proven; raises ScheduleError where it makes no sense."""
    if spec.kind == MESSAGES:
        raise ScheduleError(f"{MESSAGES} have no schedule of their own: allowed is the kind of a collective")
    return workload(
        spec.kind,
        spec.algorithm or ALGORITHMS[spec.kind][0],
        sites=sites,
        size_bytes=spec.size_bytes or spec.chunk_bytes * blocks(spec.kind, sum(sites)),
        channels=spec.channels,
        pieces=spec.pieces,
    )


def carried(found: Workload, scale: RateScale) -> Workload:
    """The workload that the emulation carries at a rate scale; raises ScaleError where a slot is less than a byte."""
    slot_bytes = scale.chunk_bytes(found.slot_bytes)
    return replace(found, slot_bytes=-(-slot_bytes // found.unit_bytes) * found.unit_bytes)
