"""The timing model of rates that change at instants, against hand-computed cases, an exact lock-step simulation, and
the model of rates that do not change."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from analysis.model.varying import Instants, Moves, Varying
from hosts.collectives.schedule import Transfer
from tests.analysis.test_fluid import Case, alone, arrays, lock_step, random_case


def times(
    case: Case,
    rows: Sequence[Sequence[int]],
    *,
    until: float,
    every: float,
    moves: Sequence[tuple[float, Case]] = (),
) -> Instants:
    """The case under rows of capacities, of which the last holds for ever, with the links and delays of others from
    instants on."""
    (links,), _, (delay,) = arrays([case])
    model = Varying(case.transfers, flows=len(case.links), slot_bytes=1 / 8)

    def rates(count: int) -> np.ndarray:
        return np.array([rows[min(row, len(rows) - 1)] for row in range(count)], float).reshape(count, -1)

    def moved(count: int) -> Moves:
        """Those before the first row that is not there."""
        known = [one for one in moves if one[0] < until + (count - 1) * every]
        ways = [(found[0][0], found[2][0]) for found in (arrays([one]) for _, one in known)]
        width = max([links.shape[1], *(way.shape[1] for way, _ in ways)])
        wide = [np.pad(way, ((0, 0), (0, width - way.shape[1])), constant_values=-1) for way, _ in ways]
        at_s, delays = np.array([at for at, _ in known]), np.array([one for _, one in ways])
        return Moves(at_s, np.array(wide).reshape(-1, len(links), width), delays.reshape(-1, len(links)))

    width = moved(1 << 20).links.shape[2]
    links = np.pad(links, ((0, 0), (0, width - links.shape[1])), constant_values=-1)
    return model.times(links, rates, until_s=until, every_s=every, delay_s=delay, moves=moved if moves else None)


@pytest.mark.parametrize(
    ("sizes", "links", "rows", "until", "leaves"),
    [
        ((10,), ((0,),), [(1,), (4,)], 2, [4]),  # 2 in 2 s, then 8 at 4
        ((10,), ((0,),), [(1,), (2,), (3,)], 3, [6]),  # 3, then 2 for 2 s, then 3
        ((2,), ((0,),), [(1,), (9,)], 2, [2]),  # over as rates change
        ((8,), ((0, 1),), [(2, 9), (9, 1)], 3, [5]),  # another link limits it
        # Two share link 0 at 1 each until 2 s; then at 2 until the first is done at 4 s; then the other has 4.
        ((6, 10), ((0,), (0,)), [(2,), (4,)], 2, [4, 5]),
        # The parking lot at 1/2 each; from 2 s link 1 has 3: its flows have 1/2 and 5/2.
        ((4, 4, 6), ((0, 1), (0,), (1,)), [(1, 1), (1, 3)], 2, [8, 8, 4]),
    ],
)
def test_what_is_left_is_served_at_the_new_rates(sizes, links, rows, until, leaves) -> None:
    case = alone(sizes, links, rows[0])
    found = times(case, rows, until=until, every=2)
    np.testing.assert_allclose(found.leaves_s, leaves, rtol=1e-12)


def test_delays_computations_and_what_waits_are_not_touched_by_a_change() -> None:
    # 2 of 4 until 2 s, the rest at 2 until 3 s; on the way for 5 s, in which rates change once more; 1 s of computing.
    case = Case(
        transfers=(
            Transfer(flow=0, size=4),
            Transfer(flow=1, size=1, after=(0,)),  # a computation
            Transfer(flow=0, size=3, after=(1,)),
            Transfer(flow=0, size=0),
        ),
        links=((0,), ()),
        capacities=(1,),
        delays=(5, 0),
    )
    found = times(case, [(1,), (2,), (3,)], until=2, every=4)
    assert found.begins_s.tolist() == [0, 8, 9, 10]
    assert found.leaves_s.tolist() == [3, 9, 10, 10]
    assert found.arrives_s.tolist() == [8, 9, 15, 15]


@pytest.mark.parametrize("seed", range(10))
def test_it_is_the_exact_lock_step_simulation_on_random_graphs(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        flows, links = rng.randint(1, 6), rng.randint(1, 5)
        case = random_case(rng, flows=flows, links=links, delays=(0, 0, 0.25, 1.5))
        rows = [case.capacities, *(tuple(rng.randint(1, 4) for _ in range(links)) for _ in range(9))]
        until, every = rng.choice((0.125, 0.5, 1.0, 3.0)), rng.choice((0.25, 0.5, 1.0, 2.0))
        found = times(case, rows, until=until, every=every)
        exact = lock_step(case, rows=rows, until=until, every=every)
        np.testing.assert_allclose((found.leaves_s, found.arrives_s), np.array(exact, float), rtol=1e-9)


def _elsewhere(case: Case, other: Case) -> Case:
    """A case with the links and delays of another; what is a computation stays one."""
    ways = tuple(b or a if a else () for a, b in zip(case.links, other.links, strict=True))
    delays = tuple(b if way else a for way, a, b in zip(ways, case.delays, other.delays, strict=True))
    return replace(case, links=ways, delays=delays)


@pytest.mark.parametrize("seed", range(6))
def test_flows_that_take_other_ways_meanwhile_are_the_exact_lock_step_simulation(seed: int) -> None:
    """At random instants at which nothing else happens: what was sent before comes first, on whatever way."""
    rng = random.Random(seed)
    for _ in range(60):
        flows, links = rng.randint(1, 5), rng.randint(1, 5)
        case = random_case(rng, flows=flows, links=links, delays=(0, 0, 0.25, 1.5))
        rows = [case.capacities, *(tuple(rng.randint(1, 4) for _ in range(links)) for _ in range(9))]
        until, every = rng.choice((0.125, 0.5, 1.0, 3.0)), rng.choice((0.25, 0.5, 1.0, 2.0))
        at = sorted({until + rng.choice((0.0137, 0.1007)) + every * rng.randint(0, 6) for _ in range(4)})
        moves = [
            (when, _elsewhere(case, random_case(rng, flows=flows, links=links, delays=(0, 0.25, 1.5)))) for when in at
        ]
        found = times(case, rows, until=until, every=every, moves=moves)
        exact = lock_step(case, rows=rows, until=until, every=every, moves=moves)
        np.testing.assert_allclose((found.leaves_s, found.arrives_s), np.array(exact, float), rtol=1e-9)


def test_a_message_that_moves_comes_whole_over_both_ways() -> None:
    """10 bits at 1 bit/s: 4 over a way of 5 s, and then 6 over one without delay; the message behind it waits, too."""
    case = Case(
        transfers=(Transfer(flow=0, size=10), Transfer(flow=0, size=1), Transfer(flow=0, size=9)),
        links=((0,),),
        capacities=(1, 2),
        delays=(30,),
    )
    other = replace(case, links=((1,),), delays=(0,))
    found = times(case, [(1, 2)], until=4, every=4, moves=[(4, other)])
    assert found.leaves_s.tolist() == [7, 7.5, 12]
    assert found.arrives_s.tolist() == [34, 34, 34]


@pytest.mark.parametrize("seed", range(3))
def test_rates_that_change_to_what_they_were_are_those_of_the_fluid(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        case = random_case(rng, flows=5, links=4, delays=(0, 1e-7, 1.5))
        found, steady = times(case, [case.capacities], until=0.7, every=0.3), case.times()
        for name in ("begins_s", "leaves_s", "arrives_s"):
            np.testing.assert_allclose(getattr(found, name), getattr(steady, name)[:, 0], rtol=1e-9)


@pytest.mark.parametrize(
    ("rows", "until", "says"),
    [([(0,)], 1.0, "a rate of 0 bit/s; allowed: more than 0"), ([(1,)], 0.0, "after 0 s")],
)
def test_what_cannot_be_is_refused(rows: Sequence[Sequence[int]], until: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        times(alone([1], ((0,),), (1,)), rows, until=until, every=1.0)
