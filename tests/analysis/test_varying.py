"""The timing model of rates that change at instants, against hand-computed cases, an exact lock-step simulation, and
the model of rates that do not change."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from analysis.model.varying import Instants, Varying
from hosts.collectives.schedule import Transfer
from tests.analysis.test_fluid import Case, alone, arrays, lock_step, random_case


def times(case: Case, rows: Sequence[Sequence[int]], *, until: float, every: float) -> Instants:
    """The case under rows of capacities, of which the last holds for ever."""
    (links,), _, (delay,) = arrays([case])
    model = Varying(case.transfers, flows=len(case.links), slot_bytes=1 / 8)

    def rates(count: int) -> np.ndarray:
        return np.array([rows[min(row, len(rows) - 1)] for row in range(count)], float).reshape(count, -1)

    return model.times(links, rates, until_s=until, every_s=every, delay_s=delay)


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


def test_from_a_change_on_what_is_left_passes_the_links_there_are_then_and_has_their_delay() -> None:
    """Two flows share link 0 at 1 each until 2 s; then one passes link 1, which has 4, and the other is alone."""
    model = Varying(alone((6, 10), ((0,), (0,)), (2, 4)).transfers, flows=2, slot_bytes=1 / 8)
    links, delays = np.array([[[0], [0]], [[0], [1]]]), np.array([[5.0, 5.0], [5.0, 7.0]])
    found = model.times(links, lambda rows: np.tile([2.0, 4.0], (rows, 1)), until_s=2, every_s=2, delay_s=delays)
    assert found.leaves_s.tolist() == [4, 4]
    assert found.arrives_s.tolist() == [9, 11]


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
        np.testing.assert_allclose(found.leaves_s, np.array(exact, float), rtol=1e-9)


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
