"""Splits the time of a step into computing, exposed communication and waiting. Pure, and without torch."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

Interval = tuple[int, int]
"""Begin and end in ns, the end excluded."""


class Breakdown(NamedTuple):
    """What a rank did in a step, in ns: `computing_ns` + `exposed_ns` + `waiting_ns` is the step's time.

    `computing_ns` is the time in which at least one kernel ran, `communication_ns` that of at least one collective,
    `overlap_ns` that of both, `exposed_ns` that of a collective without a kernel, and `waiting_ns` that of neither.
    `exposed_of` is the part of each collective in `exposed_ns`.
    """

    computing_ns: int
    communication_ns: int
    overlap_ns: int
    exposed_ns: int
    waiting_ns: int
    exposed_of: tuple[int, ...]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as disjoint ones in order, those that touch in one; empty ones are left out."""
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if begin >= end:
            continue
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((begin, end))
    return union


def breakdown(begin_ns: int, end_ns: int, kernels: Iterable[Interval], collectives: Sequence[Interval]) -> Breakdown:
    """Return what a step from `begin_ns` to `end_ns` consists of; what lies outside it does not count.

    Where several collectives run at once, the time counts for the one that began first, of several the first given.
    """

    def within(intervals: Iterable[Interval]) -> list[Interval]:
        return [(max(begin, begin_ns), min(end, end_ns)) for begin, end in intervals]

    busy = merged(within(kernels))
    begins = [begin for begin, _ in busy]
    sums = [0, *accumulate(end - begin for begin, end in busy)]

    def computed_before(at_ns: int) -> int:
        index = bisect_right(begins, at_ns)
        return sums[index] - max(0, busy[index - 1][1] - at_ns) if index else 0

    communication_ns = overlap_ns = 0
    exposed_of = [0] * len(collectives)
    covered_ns = begin_ns  # until here a collective that began earlier has run
    for _, index in sorted((begun_ns, index) for index, (begun_ns, _) in enumerate(collectives)):
        begun_ns, ended_ns = collectives[index]
        from_ns, to_ns = max(begun_ns, covered_ns), min(ended_ns, end_ns)
        if from_ns >= to_ns:
            continue
        computed_ns = computed_before(to_ns) - computed_before(from_ns)
        communication_ns += to_ns - from_ns
        overlap_ns += computed_ns
        exposed_of[index] = to_ns - from_ns - computed_ns
        covered_ns = to_ns
    computing_ns, exposed_ns = sums[-1], communication_ns - overlap_ns
    waiting_ns = max(0, end_ns - begin_ns) - computing_ns - exposed_ns
    return Breakdown(computing_ns, communication_ns, overlap_ns, exposed_ns, waiting_ns, tuple(exposed_of))
