"""Schedules of collectives: which chunk every GPU sends to whom, step by step.

A schedule is the same whatever the network does; how long its steps take is left to the network or to a model of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """In one step, the GPU `src` sends the chunk that began at GPU `chunk` to the GPU `dst`; all three are ranks."""

    step: int
    src: int
    dst: int
    chunk: int


def ring_allgather(ring: Sequence[int]) -> Iterator[Transfer]:
    """The ring AllGather over these ranks, step by step: n-1 steps of n transfers.

    In step 1 every rank sends its own chunk to its successor; in each later step it forwards the chunk it received in
    the step before. A transfer may begin once its chunk has arrived whole and the sender's transfer of the step before
    is done; steps are no barriers. Raises ValueError for a ring with fewer than two ranks or with one twice.
    """
    n = len(ring)
    if n < 2 or len(set(ring)) != n:
        raise ValueError(f"{list(ring)} is no ring: it needs two ranks or more, each once")
    for step in range(1, n):
        for place in range(n):
            yield Transfer(step=step, src=ring[place], dst=ring[(place + 1) % n], chunk=ring[(place - step + 1) % n])
