"""Training iterations: closed forms without transfer times, an independent event simulation with them, and memory."""

import heapq
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model.max_plus import completion_s
from hosts.collectives.kinds import schedule
from hosts.collectives.rank_programs import programs
from hosts.collectives.schedule import ScheduleError, Stream, final_contents
from hosts.collectives.training import (
    PIPELINES,
    Training,
    cuts,
    extra_forwards_by_stage,
    in_flight,
    max_extra_forwards,
    workload,
)
from scenarios.spec.training import TrainingPlan
from topologies.conditions.sampler import ConditionsSpec
from topologies.fabric.fabric import FabricSpec

FORWARD_S, BACKWARD_S = 10e-3, 20e-3
SIZES = [(p, m) for p in (2, 4, 8) for m in (p, 2 * p, 4 * p)]


def time_s(found, delay_s=None, byte_s=None):
    """Return the model's time of an iteration with these delays and times per byte between places; None means zero."""
    streams = [isinstance(flow, Stream) for flow in found.schedule.flows]
    n = found.schedule.places
    delay_s, byte_s = (np.zeros((n, n)) if one is None else one for one in (delay_s, byte_s))
    ends = tuple(map(list, found.schedule.ends))
    alpha_s, beta_s = np.where(streams, 0, delay_s[ends]), np.where(streams, 1, byte_s[ends])
    return completion_s(found.schedule.transfers, alpha_s[:, None], beta_s[:, None])[0]


def bubble(training, stages, **options):
    found = workload(training, (stages // 2, stages // 2), **options)
    return 1 - training.micro_batches * (training.forward_s + training.backward_s) / time_s(found)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_without_transfer_times_the_pipeline_bubble_equals_its_closed_form(p: int, m: int) -> None:
    for pipeline, more in (("gpipe", 0), ("1f1b", 0), ("overlapped", 0), ("overlapped", 3)):
        found = bubble(Training(pipeline=pipeline, micro_batches=m), p, extra=more)
        assert found == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
    for v in (2, 4):
        found = bubble(Training(pipeline="interleaved", micro_batches=m, chunks=v), p)
        assert found == pytest.approx((p - 1) / (v * m + p - 1), abs=1e-12)
    for backward_s in (10e-3, 15e-3, 20e-3):  # Qi et al., table 2: (p - 1) (F + B - W) is idle
        found = bubble(Training(pipeline="zero-bubble", micro_batches=m, backward_s=backward_s), p)
        idle_s = (p - 1) * FORWARD_S
        assert found == pytest.approx(idle_s / (m * (FORWARD_S + backward_s) + idle_s), abs=1e-12)
    for weights_s in (1e-3, 5e-3, 10e-3):
        training = Training(pipeline="zero-bubble", micro_batches=m, backward_s=20e-3, weights_s=weights_s)
        idle_s = (p - 1) * (FORWARD_S + 20e-3 - 2 * weights_s)
        assert bubble(training, p) == pytest.approx(idle_s / (m * (FORWARD_S + 20e-3) + idle_s), abs=1e-12)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_activations_in_flight_equal_the_formulas_of_each_pipeline(p: int, m: int) -> None:
    for stage in range(p):
        of = {name: in_flight(Training(pipeline=name, micro_batches=m), stage, p) for name in PIPELINES}
        assert (of["gpipe"], of["1f1b"], of["overlapped"]) == (m, min(m, p - stage), min(m, p - stage))
        assert of["zero-bubble"] == p  # as 1F1B's first stage, because the others defer weight gradients
        assert in_flight(Training(micro_batches=m), stage, p, 2) == min(m, p - stage + 2)
        for v in (2, 4):
            ahead = 2 * (p - stage - 1) + (v - 1) * p + 1
            found = in_flight(Training(pipeline="interleaved", micro_batches=m, chunks=v), stage, p)
            assert found == min(m * v, ahead) / v


def simulated_s(training, limits, delay_s, byte_s):
    """Simulate an iteration of one replica on consecutive places by events, and return its time in seconds.

    This does not use the orders of the module. A stage takes a forward while fewer than `limits` of its chunks'
    micro-batches are in flight, else a backward, and waits for its input. A connection sends one message at a time.
    """
    p, v, m = len(limits), training.chunks, training.micro_batches
    parts = {"F": training.forward_s / v, "B": training.backward_s / v, "W": 0.0}
    if training.pipeline == "zero-bubble":
        weights_s = training.backward_s / 2 if training.weights_s is None else training.weights_s
        parts |= {"B": training.backward_s - weights_s, "W": weights_s}
    turns = sorted(((c, i) for c in range(v) for i in range(m)), key=lambda one: (one[1] // p, one[0], one[1] % p))
    if v == 1:
        turns = [(0, i) for i in range(m)]
    state = [{"F": 0, "B": 0, "W": 0, "busy": False} for _ in range(p)]
    there = {("F", 0, i) for i in range(m)} | {("B", p * v - 1, i) for i in range(m)}
    queues, sending = {}, set()
    events, count, last_s = [], 0, 0.0

    def later(at_s, *what):
        nonlocal count
        count += 1
        heapq.heappush(events, (at_s, count, what))

    def wanted(stage):
        one = state[stage]
        owed = one["B"] if one["B"] == m else max(0, one["B"] - stage)
        if training.pipeline == "zero-bubble" and one["W"] < owed:
            return "W"
        if one["F"] < m * v and one["F"] - one["B"] < limits[stage]:
            return "F"
        return "B" if one["B"] < m * v else None

    def begin(stage, now_s):
        one, what = state[stage], wanted(stage)
        if one["busy"] or what is None:
            return
        chunk, micro = turns[one[what]]
        virtual = (v - 1 - chunk if what == "B" else chunk) * p + stage
        if what != "W" and (what, virtual, micro) not in there:
            return
        one["busy"] = True
        later(now_s + parts[what], "done", stage, what, virtual, micro)

    def send(src, dst, now_s):
        queue = queues[src, dst]
        if (src, dst) in sending or not queue:
            return
        sending.add((src, dst))
        left_s = now_s + byte_s[src][dst] * training.activation_bytes
        later(left_s, "left", src, dst)
        later(left_s + delay_s[src][dst], "arrived", dst, queue.popleft())

    for stage in range(p):
        begin(stage, 0.0)
    while events:
        now_s, _, (what, *rest) = heapq.heappop(events)
        last_s = now_s if what == "done" else last_s
        if what == "done":
            stage, kind, virtual, micro = rest
            state[stage][kind] += 1
            state[stage]["busy"] = False
            to = virtual + {"F": 1, "B": -1, "W": p * v}[kind]
            if 0 <= to < p * v:
                queues.setdefault((stage, to % p), deque()).append((kind, to, micro))
                send(stage, to % p, now_s)
            begin(stage, now_s)
        elif what == "left":
            sending.discard(tuple(rest))
            send(*rest, now_s)
        else:
            there.add(rest[1])
            begin(rest[0], now_s)
    assert all(one["F"] == one["B"] == m * v for one in state)
    return last_s


@st.composite
def trainings(draw):
    """Draw a training of one replica, the stages in its two sites, and delays and times per byte between places."""
    pipeline, p = draw(st.sampled_from(PIPELINES)), draw(st.integers(2, 7))
    chunks = draw(st.integers(2, 4)) if pipeline == "interleaved" else 1
    m = p * draw(st.integers(1, 3)) if chunks > 1 else draw(st.integers(1, 12))
    seconds = st.floats(1e-4, 50e-3)
    backward_s = draw(seconds)
    training = Training(
        pipeline=pipeline,
        micro_batches=m,
        chunks=chunks,
        forward_s=draw(seconds),
        backward_s=backward_s,
        weights_s=draw(st.none() | st.floats(0.01, 0.99).map(lambda part: part * backward_s)),
        activation_bytes=4 * draw(st.integers(1, 10**7)),
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.0, 1e-3, 20e-3]))
    delay_s, byte_s = scale * random.random((p, p)), random.uniform(1e-11, 1e-9, (p, p))
    return training, (first := draw(st.integers(1, p - 1)), p - first), delay_s, byte_s


@settings(max_examples=1000, deadline=None)
@given(trainings(), st.integers(0, 6))
def test_training_iteration_times_equal_an_independent_event_simulation(case, more) -> None:
    training, sites, delay_s, byte_s = case
    p, m, v = sum(sites), training.micro_batches, training.chunks
    more = more if training.pipeline == "overlapped" else 0
    limits = {
        "gpipe": [m] * p,
        "interleaved": [2 * (p - 1 - stage) + (v - 1) * p + 1 for stage in range(p)],
        "overlapped": [p - stage + more * (stage < sites[0]) for stage in range(p)],
    }.get(training.pipeline, [p - stage for stage in range(p)])
    found_s = time_s(workload(training, sites, extra=more), delay_s, byte_s)
    assert found_s == pytest.approx(simulated_s(training, limits, delay_s, byte_s), rel=1e-12)


def test_gradient_sums_add_the_time_of_the_last_buckets_allreduce_to_an_iteration() -> None:
    """A pipeline of one stage, whose replicas all end their backward at once, before the last AllReduce."""
    n, byte_s, delay_s = 4, np.full((4, 4), 1e-9), np.full((4, 4), 1e-3)
    training = Training(replicas=n, gradient_bytes=1_600_000)
    computing_s = training.micro_batches * (FORWARD_S + BACKWARD_S)
    for buckets in (1, 2):
        alone_s = 2 * (n - 1) * (training.gradient_bytes / buckets / n * 1e-9 + 1e-3)
        found = workload(replace(training, buckets=buckets), (2, 2))
        assert time_s(found, delay_s, byte_s) == pytest.approx(computing_s + alone_s, rel=1e-12)
        sums = [one for one in found.schedule.transfers if one.slots]
        assert len(sums) == buckets * len(schedule("allreduce", "ring", sites=(2, 2)).transfers)
    several = workload(replace(training, every=5), (2, 2))
    assert time_s(several, delay_s, byte_s) == pytest.approx(5 * computing_s + 6 * (4e-4 + 1e-3), rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(2, 6),
    every=st.integers(1, 24),
    fragments=st.integers(1, 8),
    overlap=st.integers(0, 24),
    bits=st.sampled_from([4, 16, 32]),
    sum_s=st.floats(1e-4, 0.3),
)
def test_a_round_of_diloco_takes_its_steps_and_what_overlap_does_not_hide_of_each_fragments_sum(
    n: int, every: int, fragments: int, overlap: int, bits: int, sum_s: float
) -> None:
    """Data parallelism, DiLoCo and Streaming DiLoCo: the round is H c + P max(0, T - tau c), where T is the alpha-beta
    time of a ring's AllReduce of one fragment, and sums of different fragments do not meet."""
    fragments = min(fragments, every)
    overlap = min(overlap, every // fragments - 1) if every // fragments > 1 else 0
    delay_s, step_s = 1e-3, 2 * (FORWARD_S + BACKWARD_S)
    values = n * fragments * 1000  # of 32 bits; a multiple of what a message has
    byte_s = sum_s / (2 * (n - 1) * values * bits / 8 / fragments / n)
    training = Training(
        micro_batches=2, replicas=n, gradient_bytes=4 * values, every=every, fragments=fragments, overlap=overlap
    )
    found = workload(replace(training, bits=bits), (n // 2, n - n // 2))
    took_s = time_s(found, np.full((n, n), delay_s), np.full((n, n), byte_s))
    fragment_s = sum_s + 2 * (n - 1) * delay_s
    wanted_s = every * step_s + fragments * max(0.0, fragment_s - overlap * step_s)
    assert took_s == pytest.approx(wanted_s, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    each=st.integers(1, 6), fragments=st.integers(1, 6), message_s=st.floats(1e-4, 0.3), delay_s=st.floats(1e-6, 0.3)
)
def test_fragments_that_are_summed_without_a_pause_queue_on_the_network(
    each: int, fragments: int, message_s: float, delay_s: float
) -> None:
    """The largest overlap: the sum of a fragment begins when the one before is due. Two replicas exchange two messages
    a fragment; the recurrence has a link that sends one message at a time, and a GPU that waits for what is due."""
    every, step_s = each * fragments, 2 * (FORWARD_S + BACKWARD_S)
    size = round(message_s / 1e-9 / 4) * 4
    training = Training(
        micro_batches=2, replicas=2, gradient_bytes=2 * size * fragments, every=every, fragments=fragments, overlap=each
    )
    delays_s, bytes_s = np.full((2, 2), delay_s), np.full((2, 2), 1e-9)
    now_s = computed_s = free_s = 0.0
    for _ in range(fragments):
        arrived_s = computed_s  # when the fragment's turn begins, which may be before the one that is due has arrived
        for _ in range(2):
            free_s = max(arrived_s, free_s) + size * 1e-9
            arrived_s = free_s + delay_s
        computed_s = now_s + each * step_s
        now_s = max(computed_s, arrived_s)
    took_s = time_s(workload(training, (1, 1)), delays_s, bytes_s)
    assert took_s == pytest.approx(now_s, rel=1e-9)


@pytest.mark.parametrize("across", ["pipeline", "data"])
@pytest.mark.parametrize("gradients", ["ring", "hierarchical"])
@pytest.mark.parametrize("streaming", [{}, {"every": 6, "fragments": 3, "overlap": 2, "bits": 4}])
def test_every_replica_ends_with_exactly_the_sum_of_its_stages_gradients(
    across: str, gradients: str, streaming: dict[str, int]
) -> None:
    training = Training(replicas=4, across=across, gradients=gradients, buckets=2, micro_batches=2, **streaming)
    found = workload(training, (4, 4))
    slots = found.schedule.slots
    ends = final_contents(found.schedule, found.initial_contents)
    for stage in range(2):
        places = [training.place(stage, replica, 2) for replica in range(4)]
        assert {place // 4 for place in places} == ({stage} if across == "pipeline" else {0, 1})
        for slot in range(slots):
            wanted = sum(1 << (place * slots + slot) for place in places)
            assert all(ends[place][slot] == wanted for place in places)
    assert len(programs(found, range(8))) == 8
    assert all(len({place // 4 for place in group}) == 1 for group in found.groups)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 8),
    st.integers(1, 16),
    st.floats(1e-3, 30e-3),
    st.floats(1e-5, 30e-3),
    st.integers(1, 100),
    st.one_of(st.none(), st.integers(2, 12)),
)
def test_overlapped_uses_the_fastest_number_of_early_forwards_that_fits_in_memory(
    each, m, forward_s, delay_s, rate, room
):
    """Against all numbers of forwards before the cut, timed by the event simulation under the planned conditions."""
    sites = (each, each)
    training = Training(
        pipeline="overlapped",
        micro_batches=m,
        forward_s=forward_s,
        backward_s=2 * forward_s,
        memory_bytes=None if room is None else (room + 2 * each) * 8_000_000,
    )
    rates = {"wan_rate_bps": (rate * 10**9,) * 2, "intra_rate_bps": (200 * 10**9,) * 2}
    plan = TrainingPlan(
        training, FabricSpec(gpus_per_site=sites), ConditionsSpec(wan_delay_s=delay_s, intra_delay_s=1e-6, **rates), 1
    )
    more = plan.more(range(2 * each))
    site = np.arange(2 * each) // each
    crosses = site[:, None] != site
    delays_s, bytes_s = np.where(crosses, delay_s + 2e-6, 1e-6), np.where(crosses, 8e-9 / min(rate, 200), 4e-11)

    def timed_s(number: int) -> float:
        limits = [2 * each - stage + number * (stage < each) for stage in range(2 * each)]
        return simulated_s(training, limits, delays_s, bytes_s)

    allowed = range(m + 1) if room is None else [n for n in range(m + 1) if min(m, 2 * each + n) <= room + 2 * each]
    assert timed_s(more) <= min(map(timed_s, allowed)) * (1 + 1e-6)
    held = [
        in_flight(training, stage, 2 * each, n)
        for stage, n in enumerate(extra_forwards_by_stage(training, sites, more))
    ]
    assert training.memory_bytes is None or max(held) * training.activation_bytes <= training.memory_bytes


def test_inconsistent_or_too_large_trainings_are_refused() -> None:
    for changes, sites, says in (
        ({"replicas": 3}, (4, 4), "3 replicas on 8 GPUs"),
        ({"chunks": 2}, (4, 4), "1f1b with 2 chunks"),
        ({"pipeline": "interleaved"}, (4, 4), "interleaved with 1 chunk a stage"),
        ({"pipeline": "interleaved", "chunks": 2, "micro_batches": 9}, (4, 4), "9 micro-batches on 8 stages"),
        ({"micro_batches": 4096}, (4, 4), "transfers"),
        ({"every": 4, "fragments": 5}, (4, 4), "training.fragments of 5 with training.every of 4; allowed: 1 to 4"),
        (
            {"every": 9, "fragments": 4, "overlap": 3},
            (4, 4),
            "training.overlap of 3 with training.every of 9 and training.fragments of 4; allowed: 0 to 2",
        ),
        ({"replicas": 32, "buckets": 256}, (32, 32), "1,018,368 transfers and 524,288 slots of all GPUs together"),
        (
            {"pipeline": "zero-bubble", "weights_s": 0.02},
            (4, 4),
            "training.weights of 20 ms; allowed: less than training.backward, 20 ms",
        ),
        (
            {"pipeline": "gpipe", "memory_bytes": 63_999_999},
            (4, 4),
            "64 MB of activations in stage 0; allowed: training.memory, 63.999999 MB",
        ),
        (
            {"held_bytes": 10**9, "memory_bytes": 10**9},
            (4, 4),
            "8 GB of activations in stage 0; allowed: training.memory, 1 GB",
        ),
    ):
        with pytest.raises(ScheduleError, match=says):
            workload(Training(**changes), sites)
    assert cuts(Training(), (2, 3, 3)) == (1, 4)
    assert extra_forwards_by_stage(Training(), (2, 3, 3), 2) == (4, 4, 2, 2, 2, 0, 0, 0)
    assert max_extra_forwards(Training(micro_batches=8, memory_bytes=10 * 8_000_000), (2, 2)) == 8
    assert max_extra_forwards(Training(micro_batches=20, memory_bytes=10 * 8_000_000), (2, 2)) == 6
