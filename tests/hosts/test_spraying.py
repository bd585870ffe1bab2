"""Spraying: the pieces of messages deliver the same data as the messages, over connections of their own."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model import fluid
from hosts.collectives.jobs import combine
from hosts.collectives.kinds import ALGORITHMS, MESSAGES, Workload, workload
from hosts.collectives.rank_programs import message_bytes, programs
from hosts.collectives.schedule import Flow, Schedule, ScheduleError, Stream, Transfer, final_contents
from hosts.collectives.spraying import sprayed
from tests.hosts.test_jobs import some_jobs
from tests.hosts.test_program import Agents

SITES = (3, 4)
KINDS = [(kind, algorithm) for kind, algorithms in ALGORITHMS.items() for algorithm in algorithms]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw the workload of one collective or of several concurrent jobs."""
    if draw(st.booleans()):
        return combine(draw(some_jobs()), SITES)
    kind, algorithm = draw(st.sampled_from(KINDS))
    return workload(kind, algorithm, sites=SITES, size_bytes=draw(st.integers(1, 5000)))


def some_pieces(draw: st.DrawFn, whole: Workload) -> "list[int]":
    """Draw the number of pieces per message for each flow; flows between the same GPUs have the same number."""
    numbers: dict[object, int] = {}
    return [
        1 if isinstance(flow, Stream) else numbers.setdefault((flow.src, flow.dst), draw(st.integers(1, 4)))
        for flow in whole.schedule.flows
    ]


def contributions(contents: "list[list[int]]", slots: int) -> "list[list[set[tuple[int, int]]]]":
    """Return for each slot of each place the (place, slot) pairs whose data it holds."""
    return [
        [{divmod(bit, slots) for bit in range(bits.bit_length()) if bits >> bit & 1} for bits in of_place]
        for of_place in contents
    ]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_part_of_a_slot_ends_with_the_same_part_of_the_unsprayed_result(data: st.DataObject) -> None:
    whole = data.draw(workloads())
    pieces = some_pieces(data.draw, whole)
    found = sprayed(whole, pieces, width=4, substitutes=4)
    slots, parts = whole.schedule.slots, found.schedule.slots // whole.schedule.slots
    before = contributions(final_contents(whole.schedule, whole.initial_contents), slots)
    after = contributions(final_contents(found.schedule, found.initial_contents), slots * parts)
    for of_place, now in zip(before, after, strict=True):
        for slot, holds in enumerate(of_place):
            for part in range(parts):
                assert now[slot * parts + part] == {(place, one * parts + part) for place, one in holds}
    assert found.unsprayed is whole and whole.unsprayed is whole


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_message_is_cut_evenly_into_pieces_on_separate_channels(data: st.DataObject) -> None:
    whole = data.draw(workloads())
    pieces = some_pieces(data.draw, whole)
    found = sprayed(whole, pieces, width=4, substitutes=4)
    assert len(set(found.schedule.flows)) == len(found.schedule.flows)
    of_flow = dict(zip(whole.schedule.flows, pieces, strict=True))
    sent: dict[Flow, list[int]] = {}
    for flow, transfer in found.schedule.sends():
        key = Flow(flow.src, flow.dst, flow.channel // 4)
        assert flow.channel % 4 < of_flow[key]
        sent.setdefault(key, []).append(message_bytes(found, transfer))
    unit, parts = whole.unit_bytes, found.schedule.slots // whole.schedule.slots
    for key, sizes in sent.items():
        mine = [one for flow, one in whole.schedule.sends() if flow == key]
        total = sum(message_bytes(whole, one) for one in mine)
        room = sum(len(one.slots) for one in mine) * parts * unit  # the most that rounding up the parts adds
        assert total <= sum(sizes) < total + max(1, room)


def test_a_dependent_of_a_message_waits_for_all_of_its_pieces() -> None:
    whole = workload("broadcast", "chain", sites=(2, 1), size_bytes=1000)
    found = sprayed(whole, [2, 4], width=4, substitutes=4)
    assert [len(one.after) for one in found.schedule.transfers] == [0, 0, 2, 2, 2, 2]


def messages(*sizes: int) -> Workload:
    transfers = tuple(Transfer(flow=0, size=one) for one in sizes)
    schedule = Schedule(places=2, slots=0, flows=(Flow(0, 1),), transfers=transfers)
    return Workload(kind=MESSAGES, algorithm="own", schedule=schedule, slot_bytes=1)


def test_pieces_of_messages_without_slots_differ_by_at_most_a_byte_and_none_is_empty() -> None:
    found = sprayed(messages(10, 3, 1, 0), [4], width=4, substitutes=4)
    sizes = [(found.schedule.flows[one.flow].channel, one.size) for one in found.schedule.transfers]  # type: ignore[union-attr]
    assert sizes == [(0, 3), (1, 3), (2, 2), (3, 2), (0, 1), (1, 1), (2, 1), (0, 1), (0, 0)]


@pytest.mark.parametrize(("links", "seconds"), [([0, 0, 0, 0], 8e-3), ([0, 1, 2, 3], 2e-3), ([0, 0, 1, 1], 4e-3)])
def test_pieces_take_the_time_given_by_the_links_that_they_share(links: Sequence[int], seconds: float) -> None:
    """8 Mbit in four pieces over links of 1 Gbit/s."""
    found = sprayed(messages(1_000_000), [4], width=4, substitutes=4)
    on = np.array(links, np.int32)[None, :, None]
    time_s = fluid.completion_s(found.schedule.transfers, on, np.full((1, 4), 1e9), np.zeros((1, 4)), slot_bytes=1)
    assert time_s[0] == pytest.approx(seconds)


def test_pieces_that_need_too_many_connections_or_channels_are_refused() -> None:
    whole = workload("alltoall", "direct", sites=(8, 8), size_bytes=16_000)
    with pytest.raises(ScheduleError, match="has 122,880 connections; allowed: 65,536"):
        sprayed(whole, [512] * 240, width=512, substitutes=4)
    with pytest.raises(ScheduleError, match="has 6,000 channels; allowed: 5,000"):
        sprayed(messages(10_000), [6000], width=6000, substitutes=4)


@pytest.mark.parametrize(("kind", "algorithm"), [("alltoall", "direct"), ("allreduce", "ring"), ("broadcast", "chain")])
def test_agents_over_loopback_deliver_every_piece_without_faults(kind: str, algorithm: str) -> None:
    whole = workload(kind, algorithm, sites=(2, 2), size_bytes=40_004)
    found = sprayed(whole, [1 + flow % 3 for flow in range(len(whole.schedule.flows))], width=3, substitutes=4)
    answers, faults = Agents(found, programs(found, (2, 0, 3, 1))).run()
    arrived = Counter(task for answer in answers for task, _ in answer["arrived_ns"])
    assert faults == [] and arrived == Counter(range(len(found.schedule.transfers)))
