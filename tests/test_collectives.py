"""The ring AllGather schedule, carried out with chunks that can be looked at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.collectives import ring_allgather, timed


@given(st.permutations(range(9)).flatmap(lambda ranks: st.integers(2, 9).map(lambda n: ranks[:n])))
def test_every_rank_ends_with_every_chunk_and_gets_none_twice(ring: list[int]) -> None:
    held = {rank: {rank} for rank in ring}
    successor = dict(zip(ring, ring[1:] + ring[:1], strict=True))
    for step in range(1, len(ring)):
        transfers = [transfer for transfer in ring_allgather(ring) if transfer.step == step]
        assert sorted(transfer.src for transfer in transfers) == sorted(ring)
        before = {rank: set(chunks) for rank, chunks in held.items()}
        for transfer in transfers:
            assert transfer.dst == successor[transfer.src]
            assert transfer.chunk in before[transfer.src]  # held when the step begins
            assert transfer.chunk not in before[transfer.dst]
            held[transfer.dst].add(transfer.chunk)
    assert all(chunks == set(ring) for chunks in held.values())


@given(st.integers(2, 12))
def test_a_rank_forwards_what_it_last_received(n: int) -> None:
    received = {rank: rank for rank in range(n)}
    for step in range(1, n):
        transfers = [transfer for transfer in ring_allgather(range(n)) if transfer.step == step]
        assert all(transfer.chunk == received[transfer.src] for transfer in transfers)
        received = {transfer.dst: transfer.chunk for transfer in transfers}


def test_a_timed_transfer_goes_from_when_its_sender_had_the_chunk_to_when_its_receiver_has_it() -> None:
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
def test_what_is_no_ring_is_refused(ring: list[int]) -> None:
    with pytest.raises(ValueError, match="no ring"):
        list(ring_allgather(ring))
