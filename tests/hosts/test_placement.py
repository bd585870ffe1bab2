"""The choice of a placement: against all placements, against its neighbours, and against itself in other batches."""

from itertools import combinations, permutations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model.max_plus import Compiled, times
from hosts.collectives.kinds import schedule
from hosts.collectives.schedule import Flow, Schedule, Stream, Transfer
from hosts.embedding.placement import best_placements

Floats = npt.NDArray[np.float64]

ALGORITHMS = [
    ("broadcast", "tree", 1),
    ("broadcast", "chain", 3),
    ("allreduce", "double-tree", 2),
    ("allreduce", "halving-doubling", 1),
    ("allreduce", "hierarchical", 1),
]


def ends(flow: Flow | Stream) -> tuple[int, int]:
    return (flow.src, flow.dst) if isinstance(flow, Flow) else (flow.place, flow.place)


def matrices(count: int, n: int, seed: int) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    return random.uniform(0, 1, (count, n, n)), random.uniform(0.2, 2, (count, n, n))


def best(found: Schedule, delay_s: Floats, slot_s: Floats, **options: object) -> npt.NDArray[np.int16]:
    flows = [ends(flow) for flow in found.flows]
    given = {"start": range(found.places), **options}
    return best_placements(Compiled(found.transfers).completion_s, flows, delay_s=delay_s, slot_s=slot_s, **given)


def time_s(found: Schedule, ranks: npt.ArrayLike, delay_s: Floats, slot_s: Floats) -> float:
    """The time of one placement of one instance; `delay_s` and `slot_s` are [n, n]."""
    ranks = np.asarray(ranks)
    edges = [(ranks[src], ranks[dst]) for src, dst in map(ends, found.flows)]
    is_stream = [isinstance(flow, Stream) for flow in found.flows]
    alpha = [[0.0 if alone else delay_s[edge]] for edge, alone in zip(edges, is_stream, strict=True)]
    beta = [[1.0 if alone else slot_s[edge]] for edge, alone in zip(edges, is_stream, strict=True)]
    return float(times(found.transfers, np.array(alpha), np.array(beta)).arrives_s.max())


def is_allowed(ranks: tuple[int, ...], *, sites: tuple[int, ...] | None, root_stays: bool) -> bool:
    if root_stays and ranks[0] != 0:
        return False
    site = np.repeat(np.arange(len(sites or [0])), sites or [len(ranks)])
    return bool((site[list(ranks)] == site).all())


@pytest.mark.parametrize(("kind", "algorithm", "pieces"), ALGORITHMS)
def test_of_few_gpus_it_is_nearly_always_the_best_of_all_placements(kind: str, algorithm: str, pieces: int) -> None:
    sites, count = (3, 2), 40
    found = schedule(kind, algorithm, sites=sites, pieces=pieces)
    held = {"sites": sites if algorithm == "hierarchical" else None, "root_stays": kind == "broadcast"}
    delay_s, slot_s = matrices(count, 5, seed=3)
    chosen = best(found, delay_s, slot_s, **held)
    allowed = [one for one in permutations(range(5)) if is_allowed(one, **held)]
    ratios = []
    for ranks, delay, slot in zip(chosen.tolist(), delay_s, slot_s, strict=True):
        assert is_allowed(tuple(ranks), **held) and sorted(ranks) == list(range(5))
        least_s = min(time_s(found, one, delay, slot) for one in allowed)
        ratios.append(time_s(found, ranks, delay, slot) / least_s)
    assert np.mean(np.array(ratios) < 1 + 1e-12) >= 0.9 and np.mean(ratios) < 1.01


@pytest.mark.parametrize(("kind", "algorithm", "pieces"), ALGORITHMS)
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 9), starts=st.integers(1, 3))
def test_it_is_no_slower_than_the_start_and_no_swap_makes_it_faster(
    kind: str, algorithm: str, pieces: int, seed: int, n: int, starts: int
) -> None:
    sites = (n - n // 2, n // 2)
    found = schedule(kind, algorithm, sites=sites, pieces=pieces)
    held = {"sites": sites if algorithm == "hierarchical" else None, "root_stays": kind == "broadcast"}
    delay_s, slot_s = matrices(3, n, seed)
    chosen = best(found, delay_s, slot_s, starts=starts, **held)
    for ranks, delay, slot in zip(chosen, delay_s, slot_s, strict=True):
        found_s = time_s(found, ranks, delay, slot)
        assert found_s <= time_s(found, range(n), delay, slot)
        for pair in combinations(range(n), 2):
            swapped = ranks.copy()
            swapped[list(pair)] = ranks[list(pair[::-1])]
            if is_allowed(tuple(swapped), **held):
                assert found_s <= time_s(found, swapped, delay, slot)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.booleans())
def test_the_placement_of_an_instance_does_not_depend_on_its_batch(seed: int, equal: bool) -> None:
    found = schedule("allreduce", "double-tree", sites=(3, 3))
    random = np.random.default_rng(seed)
    delay_s = random.integers(0, 3, (20, 6, 6)).astype(float)
    slot_s = random.integers(1, 4, (20, 6, 6)).astype(float)
    if equal:
        delay_s[3:], slot_s[3:] = 1.0, 1.0
    together = best(found, delay_s, slot_s)
    alone = [best(found, delay_s[k : k + 1], slot_s[k : k + 1])[0] for k in range(20)]
    assert (together == np.array(alone)).all()
    shuffled = random.permutation(20)
    assert (best(found, delay_s[shuffled], slot_s[shuffled]) == together[shuffled]).all()
    if equal:
        assert (together[3:] == np.arange(6)).all()  # nothing is better than the start


def test_missing_edges_are_not_used_where_a_placement_can_do_without() -> None:
    found = schedule("broadcast", "chain", sites=(3, 3))
    delay_s, slot_s = matrices(50, 6, seed=1)
    random = np.random.default_rng(2)
    missing = random.random(slot_s.shape) < 0.4
    for k in range(50):
        chain = random.permutation(6)
        missing[k, chain[:-1], chain[1:]] = False
    slot_s[missing] = np.inf
    chosen = best(found, delay_s, slot_s)
    assert not missing[np.arange(50)[:, None], chosen[:, :-1], chosen[:, 1:]].any()


def test_computations_take_their_seconds_wherever_they_are() -> None:
    """A place computes and then sends over the one fast edge: how long it computes does not depend on its rank."""
    found = Schedule(
        places=3,
        slots=1,
        flows=(Stream(0), Flow(0, 1)),
        transfers=(Transfer(flow=0, size=5.0), Transfer(flow=1, size=1.0, after=(0,))),
    )
    delay_s, slot_s = np.zeros((1, 3, 3)), np.full((1, 3, 3), 2.0)
    slot_s[0, 2, 1] = 1.0
    (ranks,) = best(found, delay_s, slot_s).tolist()
    assert ranks[:2] == [2, 1] and time_s(found, ranks, delay_s[0], slot_s[0]) == 6.0


def test_what_cannot_be_is_refused() -> None:
    found = schedule("broadcast", "chain", sites=(2, 2))
    delay_s, slot_s = matrices(2, 4, seed=1)
    with pytest.raises(ValueError, match=r"both must be \[K, 4, 4\]"):
        best(found, delay_s, slot_s[:1])
    with pytest.raises(ValueError, match="each of the ranks 0 to 3 once"):
        best(found, delay_s, slot_s, start=[0, 1, 1, 3])
    with pytest.raises(ValueError, match="must be 4 together"):
        best(found, delay_s, slot_s, sites=(2, 3))
    slot_s[1, 2, :] = slot_s[1, :, 2] = np.inf
    with pytest.raises(ValueError, match="instance 1: every placement"):
        best(found, delay_s, slot_s)
