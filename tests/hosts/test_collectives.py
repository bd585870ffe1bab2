"""The ring AllGather schedule, carried out with sets of chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.collectives.ring import ring_allgather, timed


@given(st.permutations(range(9)).flatmap(lambda ranks: st.integers(2, 9).map(lambda n: ranks[:n])))
def test_every_rank_forwards_what_it_last_received_and_ends_with_every_chunk_once(ring: list[int]) -> None:
    held, last = {rank: {rank} for rank in ring}, {rank: rank for rank in ring}
    successor = dict(zip(ring, ring[1:] + ring[:1], strict=True))
    for step in range(1, len(ring)):
        transfers = [transfer for transfer in ring_allgather(ring) if transfer.step == step]
        assert sorted(transfer.src for transfer in transfers) == sorted(ring)
        assert all(t.dst == successor[t.src] and t.chunk == last[t.src] for t in transfers)
        assert all(t.chunk not in held[t.dst] for t in transfers)
        last = {t.dst: t.chunk for t in transfers}
        for rank, chunk in last.items():
            held[rank].add(chunk)
    assert all(chunks == set(ring) for chunks in held.values())


def test_a_timed_transfer_is_from_its_senders_arrival_to_its_receivers() -> None:
    arrived_ns = [[20, 50], [30, 40], [10, 60]]  # by rank, then by step
    found = [
        (t.step, t.src, t.dst, t.chunk, t.start_ns, t.end_ns)
        for t in timed([0, 2, 1], start_ns=[1, 2, 3], arrived_ns=arrived_ns)
    ]
    assert sorted(found) == [
        (1, 0, 2, 0, 1, 10),
        (1, 1, 0, 1, 2, 20),
        (1, 2, 1, 2, 3, 30),
        (2, 0, 2, 1, 20, 60),
        (2, 1, 0, 2, 30, 50),
        (2, 2, 1, 0, 10, 40),
    ]


@pytest.mark.parametrize("ring", [[], [0], [0, 1, 0]])
def test_what_is_not_a_ring_is_refused(ring: list[int]) -> None:
    with pytest.raises(ValueError, match="ring"):
        list(ring_allgather(ring))
