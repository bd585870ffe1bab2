"""Several jobs as one workload: what each job delivers, its time by the model, and its bytes over loopback."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model import fluid, max_plus
from hosts.collectives.jobs import Job, combine
from hosts.collectives.kinds import ALGORITHMS, MESSAGES, Workload, contents, workload
from hosts.collectives.rank_programs import flow_bytes, message_bytes, programs, small_message_bytes
from hosts.collectives.schedule import Flow, Schedule, ScheduleError, Stream, Transfer, prove
from tests.hosts.test_program import Agents, on_numbers, receives

SITES = (3, 4)
KINDS = [(kind, algorithm) for kind, algorithms in ALGORITHMS.items() for algorithm in algorithms]


def job(kind="allgather", algorithm="ring", places=(0, 1, 2), *, size=240, **settings):
    found = workload(kind, algorithm, sites=(len(places) - 1, 1), size_bytes=size)
    return Job(name=f"{kind} {algorithm}", workload=found, places=tuple(places), **settings)


def messages(*sizes: float, places=(0, 1), **settings) -> Job:
    """Return a job that sends messages of these sizes from its first place to its second, one after the other."""
    schedule = Schedule(
        places=2, slots=0, flows=(Flow(0, 1),), transfers=tuple(Transfer(flow=0, size=one) for one in sizes)
    )
    found = Workload(kind=MESSAGES, algorithm="own", schedule=schedule, slot_bytes=1)
    return Job(name="messages", workload=found, places=places, **settings)


@st.composite
def some_jobs(draw):
    found = []
    for _ in range(draw(st.integers(1, 3))):
        kind, algorithm = draw(st.sampled_from(KINDS))
        places = draw(st.permutations(range(7)))[: draw(st.integers(2, 7))]
        start_s, count = draw(st.sampled_from([0.0, 1e-3])), draw(st.integers(1, 2))
        found.append(job(kind, algorithm, places, size=draw(st.integers(1, 400)), start_s=start_s, count=count))
    return found


def wanted_of(jobs: Sequence[Job], union: Workload) -> list[list[int]]:
    """Return what each job must deliver by the definition of its kind, among the slots of all jobs."""
    total = union.schedule.slots
    wanted = [[0] * total for _ in range(union.schedule.places)]
    first = 0
    for one in jobs:
        slots = one.workload.schedule.slots
        _, alone = contents(one.workload.kind, places=len(one.places), slots=slots)
        for _ in range(one.count):
            for place, of_place in zip(one.places, alone, strict=True):
                for slot, bits in enumerate(of_place):
                    for bit in range(bits.bit_length()):
                        if bits >> bit & 1:
                            by, where = divmod(bit, slots)
                            wanted[place][first + slot] |= 1 << (one.places[by] * total + first + where)
            first += slots
    return wanted


@settings(max_examples=60)
@given(jobs=some_jobs(), data=st.data())
def test_every_concurrent_job_delivers_the_result_of_its_kind(jobs, data):
    union = combine(jobs, SITES)
    prove(union.schedule, union.initial_contents, wanted_of(jobs, union))
    placement = data.draw(st.permutations(range(7)))
    on_numbers(union, programs(union, placement), data.draw(st.integers(0, 2**32)))  # in any order of messages


@settings(max_examples=60)
@given(jobs=some_jobs(), seed=st.integers(0, 2**32))
def test_a_job_that_shares_no_link_takes_the_same_time_as_alone(jobs, seed):
    """Without shared links the time of a collective depends only on the rates of its own flows."""
    union = combine(jobs, SITES)
    rng = np.random.default_rng(seed)
    of_pair = {(a, b): (rng.uniform(0, 1e-3), rng.uniform(1e-6, 1e-5)) for a in range(7) for b in range(7)}

    def arrivals_s(found: Workload, at: Sequence[int], slot_bytes: int) -> np.ndarray:
        pairs = [
            (0, 1) if a == b else (of_pair[at[a], at[b]][0], of_pair[at[a], at[b]][1] * slot_bytes)
            for a, b in zip(*found.schedule.ends, strict=True)
        ]
        alpha_s, beta_s = (np.array(column)[:, None] for column in zip(*pairs, strict=True))
        return max_plus.times(found.schedule.transfers, alpha_s, beta_s).arrives_s[:, 0]

    arrives_s = arrivals_s(union, range(7), 1)
    for one, span in zip(jobs, union.jobs, strict=True):
        if one.count == 1:
            sizes = {union.bytes_of(slot) for t in span.transfers for slot, _ in union.schedule.transfers[t].slots}
            (slot_bytes,) = sizes  # rounded up to words if another job makes sums
            alone_s = arrivals_s(one.workload, one.places, slot_bytes).max()
            assert math.isclose(max(arrives_s[t] for t in span.transfers) - one.start_s, alone_s, rel_tol=1e-9)


def fluid_ends(union: Workload, links: Sequence[Sequence[int]], capacity_bps: Sequence[float]) -> list[float]:
    """Return the time of each job by the fluid model, from its start to its end."""
    seen = fluid.times(
        union.schedule.transfers,
        np.array([links], dtype=np.int32),
        np.array([capacity_bps]),
        np.zeros((1, len(links))),
        slot_bytes=1,
    )
    return [max(seen.arrives_s[t, 0] for t in one.transfers) - one.start_s for one in union.jobs]


@pytest.mark.parametrize("tenants", [1, 2, 5])
def test_n_equal_jobs_on_one_link_take_n_times_as_long(tenants):
    union = combine([messages(3e6, 5e6) for _ in range(tenants)], (1, 1))
    assert fluid_ends(union, [[0]] * tenants, [8e9]) == pytest.approx([tenants * 8e-3] * tenants, rel=1e-12)


def test_a_later_job_shares_the_link_from_its_start_on_by_processor_sharing():
    """8 MB at 1 GB/s alone for 2 ms, then both jobs at half the rate. The second, of 3 MB, ends at 8 ms, when the first
    has 3 MB left."""
    union = combine([messages(8e6), messages(3e6, start_s=0.002)], (1, 1))
    streams = [isinstance(flow, Stream) for flow in union.schedule.flows]
    links = [[-1] if is_stream else [0] for is_stream in streams]
    assert fluid_ends(union, links, [8e9]) == pytest.approx([0.011, 0.006], rel=1e-12)


def test_three_successive_collectives_of_a_job_take_three_times_as_long_as_one():
    union = combine([job(places=(0, 1, 2, 3), size=4000, start_s=0.5, count=3)], (2, 2))
    streams = [isinstance(flow, Stream) for flow in union.schedule.flows]
    alpha_s = np.array([0 if stream else 1e-3 for stream in streams])[:, None]
    beta_s = np.array([1 if stream else 1e-6 for stream in streams])[:, None]
    completion_s = max_plus.completion_s(union.schedule.transfers, alpha_s, beta_s)
    assert completion_s[0] == pytest.approx(0.5 + 3 * 3 * (1e-3 + 1000e-6), rel=1e-12)


def test_a_place_starts_its_next_collective_after_receiving_all_of_the_previous_one():
    union = combine([job("alltoall", "direct", (0, 2, 4), count=2)], SITES)
    transfers, flows = union.schedule.transfers, union.schedule.flows
    half = [index for index, one in enumerate(transfers) if isinstance(flows[one.flow], Flow)]
    first, second = half[:6], half[6:]
    for index in second:
        src = flows[transfers[index].flow].src
        reached = {index}
        for one in range(index, -1, -1):  # all transfers that it depends on
            if one in reached:
                reached.update(transfers[one].after)
        assert {one for one in first if flows[transfers[one].flow].dst == src} <= reached


def test_concurrent_jobs_run_over_loopback_and_every_flipped_bit_is_found_in_its_job():
    jobs = [
        job("allgather", "direct", (6, 0, 1), size=3 * 70_001),
        job("allreduce", "ring", (0, 1, 2, 3), size=4 * 9_000, start_s=0.002, count=2),
        job("broadcast", "chain", (1, 0), size=1_300_000),
        messages(5_000, 11, places=(5, 0), start_s=0.001, is_background=True),
    ]
    union = combine(jobs, SITES)
    of_ranks = programs(union, range(7))
    agents = Agents(union, of_ranks)
    answers, faults = agents.run()
    assert faults == []
    arrived = dict(pair for answer in answers for pair in answer["arrived_ns"])
    assert sorted(arrived) == list(range(len(union.schedule.transfers)))
    rng = random.Random(1)
    for span in union.jobs:
        for _ in range(4):
            task = rng.choice([t for t in span.transfers if isinstance(_flow(union, t), Flow)])
            byte = rng.randrange(message_bytes(union, union.schedule.transfers[task]))
            _, faults = agents.run([task, byte])
            rank = _flow(union, task).dst
            assert task in receives(of_ranks[rank])
            assert (rank, task) in [(rank, task) for rank, task, _ in faults]
            assert {task for _, task, _ in faults} <= {*span.transfers}  # other jobs are unaffected
    assert agents.run()[1] == []
    assert {union.bytes_of(slot) for slot in range(union.schedule.slots)} == {70_004, 9_000, 1_300_000}


def _flow(union: Workload, task: int) -> Flow | Stream:
    return union.schedule.flows[union.schedule.transfers[task].flow]


def test_jobs_between_the_same_two_gpus_have_separate_connections():
    union = combine([messages(1e6), messages(2e6), job(places=(0, 1, 2))], SITES)
    flows = [flow for flow in union.schedule.flows if (flow.src, flow.dst) == (0, 1)]
    assert len(flows) == 3 and flow_bytes(union) == 2_000_000 + 24


def test_the_small_messages_of_a_job_are_told_beside_large_ones_of_another():
    assert small_message_bytes(combine([messages(2e4), messages(1e6)], SITES)) == 20_000
    assert small_message_bytes(combine([messages(1e6), messages(2e6)], SITES)) == 1_000_000


def test_only_places_of_a_site_with_the_same_role_in_every_job_may_swap_ranks():
    two = [job(places=(0, 1, 3, 4)), job("broadcast", "tree", (3, 4, 5, 6))]
    assert combine(two, SITES).groups == ((0, 1), (2,), (4,), (5, 6))  # 3 is a root, 2 idle
    fixed = messages(1.0, places=(5, 6), is_background=True)
    assert combine([job(places=range(7)), fixed], SITES).groups == ((0, 1, 2), (3, 4))


def test_the_transfers_that_a_round_waits_for_exclude_background_jobs():
    union = combine([messages(1.0, is_background=True), job(places=(0, 1, 2))], SITES)
    assert union.foreground_transfers == tuple(union.schedule.transfers[t] for t in union.jobs[1].transfers)
    assert [one.is_background for one in union.jobs] == [True, False]


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([messages(1.0, places=(0, 7))], r"at the places \[0, 7\]; allowed: 2 of 0 to 6"),
        ([messages(1.0, places=(3, 3))], "each once"),
        ([job(start_s=-1.0)], "begins at -1 s"),
        ([job(count=0)], "0 times"),
        ([job("alltoall", "direct", range(7), count=1000)], "14,000 slots|98,000 slots"),
    ],
)
def test_jobs_that_cannot_be_combined_are_refused_with_the_reason(jobs, words):
    with pytest.raises(ScheduleError, match=words):
        combine(jobs, SITES)
