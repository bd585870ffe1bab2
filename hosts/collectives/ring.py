"""Schedules of collectives: which chunk every GPU sends to whom, step by step.

A schedule does not depend on the network; how long its steps take is measured, or predicted by a model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hosts.collectives.schedule import Builder, Schedule


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """In step `step`, GPU `src` sends the chunk that began at GPU `chunk` to GPU `dst`; all three are ranks."""

    step: int
    src: int
    dst: int
    chunk: int


@dataclass(frozen=True, kw_only=True)
class TimedTransfer(Transfer):
    """A measured transfer: when `src` handed the chunk to its kernel, and when `dst` had received it whole, in ns."""

    start_ns: int
    end_ns: int


def timed(
    ring: Sequence[int], *, start_ns: Sequence[int], arrived_ns: Sequence[Sequence[int]]
) -> Iterator[TimedTransfer]:
    """The transfers of a ring AllGather in which rank r began at `start_ns[r]` and had received the chunk of step s
    whole at `arrived_ns[r][s - 1]`.

    A chunk is handed to the kernel as soon as it has arrived; it may be queued there behind the one before it.
    """
    for transfer in ring_allgather(ring):
        src, dst, step = transfer.src, transfer.dst, transfer.step
        handed_ns = start_ns[src] if step == 1 else arrived_ns[src][step - 2]
        yield TimedTransfer(
            step=step, src=src, dst=dst, chunk=transfer.chunk, start_ns=handed_ns, end_ns=arrived_ns[dst][step - 1]
        )


def ring_allgather(ring: Sequence[int]) -> Iterator[Transfer]:
    """The ring AllGather over these ranks, step by step: n-1 steps of n transfers.

    In step 1 every rank sends its own chunk to its successor; in each later step it forwards the chunk it received in
    the step before. A transfer may begin once its chunk has arrived whole and the sender's transfer of the step before
    is done; steps are no barriers. Raises ValueError for a ring with fewer than two ranks or with one twice.
    """
    n = len(ring)
    if n < 2 or len(set(ring)) != n:
        raise ValueError(f"{list(ring)} is not a ring: it needs two ranks or more, each once")
    for step in range(1, n):
        for index in range(n):
            yield Transfer(step=step, src=ring[index], dst=ring[(index + 1) % n], chunk=ring[(index - step + 1) % n])


def allgather(places: int, *, channels: int = 1, backwards: bool = False) -> Schedule:
    """The ring AllGather over places 0 .. n-1 as a schedule; block b has a slot on each channel.

    The first channel goes from place 0 to place 1, or the other way round if `backwards`; every other channel goes in
    the opposite direction. In step s = 1 .. n-1 a place sends on the block that it received in the step before, first
    its own.
    """
    builder = Builder(places=places, slots=places * channels)
    for step in range(1, places):
        for channel in range(channels):
            way = 1 if (channel % 2 == 0) != backwards else -1
            for place in range(places):
                block = (place - way * (step - 1)) % places
                builder.send(place, (place + way) % places, [block * channels + channel], channel=channel)
    return builder.done()
