"""The timing model of rates that change at instants, against hand-computed cases, an exact lock-step simulation, one by
packets, and the model of rates that do not change."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from analysis.model import varying_kernel
from analysis.model.varying import PathChanges, TimeVaryingModel, TransferTimes
from hosts.collectives.schedule import Transfer
from tests.analysis.test_fluid import Case, alone, arrays, lock_step, random_case


def times(
    case: Case,
    rows: Sequence[Sequence[int]],
    *,
    until: float,
    every: float,
    moves: Sequence[tuple[float, Case]] = (),
    packet: float = 0,
) -> TransferTimes:
    """The case under rows of capacities, of which the last holds for ever, with the links and delays of others from
    instants on."""
    (links,), _, (delay,) = arrays([case])
    model = TimeVaryingModel(case.transfers, flows=len(case.links), slot_bytes=1 / 8, packet_bytes=packet / 8)

    def rates(count: int) -> np.ndarray:
        return np.array([rows[min(row, len(rows) - 1)] for row in range(count)], float).reshape(count, -1)

    def moved(count: int) -> PathChanges:
        """Those before the first row that is not there."""
        known = [one for one in moves if one[0] < until + (count - 1) * every]
        ways = [(found[0][0], found[2][0]) for found in (arrays([one]) for _, one in known)]
        width = max([links.shape[1], *(way.shape[1] for way, _ in ways)])
        wide = [np.pad(way, ((0, 0), (0, width - way.shape[1])), constant_values=-1) for way, _ in ways]
        at_s, delays = np.array([at for at, _ in known]), np.array([one for _, one in ways])
        return PathChanges(at_s, np.array(wide).reshape(-1, len(links), width), delays.reshape(-1, len(links)))

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


@pytest.mark.parametrize(
    ("sizes", "links", "rows", "leaves"),
    [
        ((12,), ((0, 1),), [(9, 1), (1, 9)], [9]),  # 2 in 2 s; two packets wait behind link 0 then, which sends one
        ((12,), ((0, 1),), [(1, 9), (9, 1)], [11]),  # all but what link 1 sends at once are before it
        ((12,), ((0, 1),), [(1, 9), (2, 9)], [7]),  # the same link
        # The first flow had 1 of link 1, and then has half of link 0; the packet that this sends is half its own.
        ((12, 16), ((0, 1), (0,)), [(4, 1), (2, 9)], [9.5, 10.75]),
        # It shares link 0, and then has 1 of link 1. Its two packets pass link 0 before others of the second flow.
        ((12, 16), ((0, 1), (0,)), [(2, 9), (4, 1)], [11, 2 + 16 / 3]),
    ],
)
def test_packets_that_are_queued_behind_a_new_bottleneck_have_passed_it(sizes, links, rows, leaves) -> None:
    case = alone(sizes, links, rows[0])
    found = times(case, rows, until=2, every=2, packet=1)
    np.testing.assert_allclose(found.leaves_s, leaves, rtol=1e-12)


PACKETS = 600  # of a message


def packet_leaves(ways: Sequence[Sequence[int]], rows: np.ndarray, *, until: float, every: float) -> list[float]:
    """When the last of each flow's PACKETS has left its last link; rows of rates are in packets/s.

    Links serve flows in turn, a packet each, and send it on as its time begins. What is left of that time when rates
    change is as many bytes as before. A flow has two packets under way, and sends the next when one has left the last
    link. There is no delay.
    """
    waiting = [defaultdict[int, list[int]](list) for _ in rows[0]]  # of each link, in turn by flow: packets' hops
    free, unsent, passed = [0.0] * len(rows[0]), [PACKETS] * len(ways), [0] * len(ways)
    leaves: dict[int, float] = {}
    row, change, now = 0, until, 0.0

    def put(flow: int, hop: int) -> None:
        if hop < len(ways[flow]):
            waiting[ways[flow][hop]][flow].append(hop)
            return
        passed[flow] += 1
        if passed[flow] == PACKETS:
            leaves[flow] = now
        send(flow)

    def send(flow: int) -> None:
        if unsent[flow]:
            unsent[flow] -= 1
            put(flow, 0)

    for flow in (*range(len(ways)), *range(len(ways))):
        send(flow)
    while len(leaves) < len(ways):
        at, link = min((max(free[link], now), link) for link, flows in enumerate(waiting) if flows)
        if at >= change:
            for link in range(len(free)):
                free[link] = change + max(0.0, free[link] - change) * rows[row, link] / rows[row + 1, link]
            row, now = row + 1, change
            change = until + row * every
            continue
        now, flow = at, next(iter(waiting[link]))
        hop, *others = waiting[link].pop(flow)
        if others:
            waiting[link][flow] = others
        free[link] = now + 1 / rows[row, link]
        put(flow, hop + 1)
    return [leaves[flow] for flow in range(len(ways))]


def test_packets_in_turn_at_every_link_whose_rates_change_take_as_long() -> None:
    """Flows over the same links, and others that leave them or join them, 15 to 20 changes; without packets in the
    model they end 1 to 3 % before it says."""
    off = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        ways = [(0, 1, 2, 3)] * 8 + [tuple(range(rng.integers(1, 4))) for _ in range(seed % 3)] + [(2, 3)] * (seed % 2)
        rows = rng.integers(100, 1000, (200, 4)).astype(float)
        exact = packet_leaves(ways, rows, until=1.0, every=1.0)
        case = Case(
            transfers=tuple(Transfer(flow=flow, size=8 * PACKETS) for flow in range(len(ways))),
            links=tuple(ways),
            capacities=(1,) * 4,
            delays=(0,) * len(ways),
        )
        found = [times(case, 8 * rows, until=1.0, every=1.0, packet=packet) for packet in (0, 8)]
        off.append([one.leaves_s.max() / max(exact) - 1 for one in found])
    fluid, queued = np.transpose(off)
    assert fluid.min() > 0.01
    assert abs(queued).max() < 0.01 and abs(queued).mean() < 0.25 * fluid.mean()


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


def test_whole_seconds_take_what_is_compiled_for_others() -> None:
    """Set-up compiles what takes 8 s, for numbers of one type."""
    case = Case(transfers=(Transfer(flow=0, size=4),), links=((0,),), capacities=(1,), delays=(0,))
    for until, every in ((1, 1), (0.5, 0.5)):
        times(case, [(1,), (2,), (3,)], until=until, every=every)
    assert len(varying_kernel.run.signatures) == 1


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
