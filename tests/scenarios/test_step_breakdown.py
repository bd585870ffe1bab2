"""What a step consists of, against a count of instants on a fine grid."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scenarios.program.rank.longhaul_gpu.breakdown import Interval, breakdown, merged

INSTANTS = 40
INTERVALS = st.lists(st.tuples(st.integers(0, INSTANTS), st.integers(0, INSTANTS)), max_size=8)


def runs(interval: Interval, at: int) -> bool:
    return interval[0] <= at < interval[1]


@given(st.integers(0, INSTANTS), st.integers(0, INSTANTS), INTERVALS, INTERVALS)
def test_a_step_has_the_parts_that_a_count_of_its_instants_has(
    begin: int, end: int, kernels: list[Interval], collectives: list[Interval]
) -> None:
    found = breakdown(begin, end, kernels, collectives)
    computing = communication = overlap = waiting = 0
    exposed_of = [0] * len(collectives)
    for at in range(begin, end):
        computes = any(runs(kernel, at) for kernel in kernels)
        running = [(collective[0], index) for index, collective in enumerate(collectives) if runs(collective, at)]
        computing += computes
        communication += bool(running)
        overlap += computes and bool(running)
        waiting += not computes and not running
        if running and not computes:
            exposed_of[min(running)[1]] += 1
    assert found == (computing, communication, overlap, sum(exposed_of), waiting, tuple(exposed_of))
    assert found.computing_ns + found.exposed_ns + found.waiting_ns == max(0, end - begin)
    assert found.overlap_ns + found.exposed_ns == found.communication_ns


@given(INTERVALS)
def test_a_union_has_the_same_instants_in_disjoint_intervals(intervals: list[Interval]) -> None:
    union = merged(intervals)
    assert all(before[1] < after[0] for before, after in pairwise(union))
    for at in range(INSTANTS):
        assert any(runs(one, at) for one in union) == any(runs(one, at) for one in intervals)
