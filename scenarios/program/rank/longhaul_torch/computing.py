"""What a group knows of the GPU whose time the script takes (`longhaul_gpu`), and tells it, if it is active."""

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any


def ready_ns() -> int:
    """Return when the tensors that the script has now are computed, in ns of CLOCK_MONOTONIC, and now at the least."""
    active = sys.modules.get("longhaul_gpu")
    return max(time.monotonic_ns(), 0 if active is None else active.ready_ns())


def sleep_until(instant_ns: int) -> None:
    """Sleep until an instant of CLOCK_MONOTONIC."""
    while (left_ns := instant_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)


def is_fake(tensor: Any) -> bool:
    """Return whether a tensor has no values, so that its memory is neither read nor written."""
    active = sys.modules.get("longhaul_gpu")
    return active is not None and bool(active.is_fake(tensor))


def make_alike(tensors: Iterable[Any]) -> None:
    """Leave tensors of one collective without values if one of them has none."""
    tensors = list(tensors)
    if any(map(is_fake, tensors)):
        sys.modules["longhaul_gpu"].make_fake(tensors)


def awaited() -> tuple[int, tuple[int, ...], tuple[Any, ...]]:
    """Return what a collective waits for that the script issues now: an instant in ns of CLOCK_MONOTONIC, now at the
    least, the ids of what has ended by then, and what is due (`longhaul_gpu.streams.Due`)."""
    active = sys.modules.get("longhaul_gpu")
    end_ns, after, due = (0, (), ()) if active is None else active.awaited()
    return max(time.monotonic_ns(), end_ns), after, due


def deferred(work: Any) -> bool:
    """Have a stream of the GPU wait for work in place of the host, if it may; return whether it does."""
    active = sys.modules.get("longhaul_gpu")
    return active is not None and bool(active.defer(work))


def joined(ids: Sequence[int]) -> None:
    """Have what the script computes next begin now at the earliest, as it has waited for the collectives with these
    ids."""
    active = sys.modules.get("longhaul_gpu")
    if active is not None:
        active.joined(tuple(ids))


def settled(ids: Sequence[int]) -> None:
    """Note that the futures of the collectives with these ids have their results."""
    recorder = _recorder()
    if recorder is not None:
        recorder.settled(ids)


def begun(group: str, ranks: Sequence[int], **fields: Any) -> Any:
    """Note that a collective has begun (`Recorder.begun`); return its record, for `ended`."""
    recorder = _recorder()
    return None if recorder is None else recorder.begun(group, ranks, **fields)


def ended(record: Any, ended_ns: int) -> None:
    """Note the end of a collective."""
    recorder = _recorder()
    if recorder is not None:
        recorder.ended(record, ended_ns)


def _recorder() -> Any:
    active = sys.modules.get("longhaul_gpu")
    return None if active is None else active.recorder()
