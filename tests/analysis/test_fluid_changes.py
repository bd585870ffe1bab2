"""The fluid timing model of a network that changes while a schedule runs, against hand-computed cases, an exact
lock-step simulation, a packet simulation, and the model of constant conditions."""

import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from analysis.model import fluid
from analysis.model.evaluator import Evaluator, Shared, Unshared
from hosts.collectives.kinds import schedule
from hosts.collectives.schedule import Transfer
from tests.analysis.test_fluid import Case, alone, lock_step, random_case
from tests.conftest import PROJECT


@dataclass(frozen=True, kw_only=True)
class Found:
    """The times of transfers, [T] each."""

    begins_s: np.ndarray
    leaves_s: np.ndarray
    arrives_s: np.ndarray


def times(
    case: Case,
    rows: Sequence[Sequence[int]],
    *,
    until: float,
    every: float,
    moves: Sequence[tuple[float, Case]] = (),
    packet: float = 0,
    classes: fluid.Classes | None = None,
) -> Found:
    """Return the times of a case under rows of capacities; the last row holds for ever. From the instant of each of
    `moves` on, flows have the links and delays of its case."""
    cases = [case, *(moved for _, moved in moves)]
    width = max(1, *(len(own) for one in cases for own in one.links))
    wide = [np.array([[*own, *[-1] * (width - len(own))] for own in one.links]).reshape(-1, width) for one in cases]
    network = wide[0][None], np.array([rows[0]], float), np.array([case.delays], float)
    (run,) = fluid.runs(case.transfers, *network, slot_bytes=1 / 8, classes=classes, packet_bytes=packet / 8)
    changes: list[tuple[float, str, int]] = [(until + k * every, "rate", k + 1) for k in range(len(rows) - 1)]
    changes += [(at, "path", k + 1) for k, (at, _) in enumerate(moves)]
    row, path, is_over = 0, 0, False
    for at, what, index in [*sorted(changes), (np.inf, "end", 0)]:
        is_over = is_over or run.advance(
            np.array([at]),
            capacity_bps=np.array([rows[row]], float),
            links=wide[path][None],
            delay_s=np.array([cases[path].delays], float),
        )
        row, path = index if what == "rate" else row, index if what == "path" else path
    assert is_over
    found = run.times
    return Found(begins_s=found.begins_s[:, 0], leaves_s=found.leaves_s[:, 0], arrives_s=found.arrives_s[:, 0])


@pytest.mark.parametrize(
    ("sizes", "links", "rows", "until", "leaves"),
    [
        ((10,), ((0,),), [(1,), (4,)], 2, [4]),  # 2 in 2 s, then 8 at 4
        ((10,), ((0,),), [(1,), (2,), (3,)], 3, [6]),  # 3, then 2 for 2 s, then 3
        ((2,), ((0,),), [(1,), (9,)], 2, [2]),  # ends at the instant of the change
        ((8,), ((0, 1),), [(2, 9), (9, 1)], 3, [5]),  # the bottleneck moves to the other link
        # Two share link 0 at 1 each until 2 s; then at 2 each until the first ends at 4 s; then the other has 4.
        ((6, 10), ((0,), (0,)), [(2,), (4,)], 2, [4, 5]),
        # The parking lot at 1/2 each; from 2 s on link 1 has 3, so that its flows have 1/2 and 5/2.
        ((4, 4, 6), ((0, 1), (0,), (1,)), [(1, 1), (1, 3)], 2, [8, 8, 4]),
    ],
)
def test_the_rest_of_a_transfer_is_sent_at_the_new_rates_after_a_change(sizes, links, rows, until, leaves) -> None:
    case = alone(sizes, links, rows[0])
    found = times(case, rows, until=until, every=2)
    np.testing.assert_allclose(found.leaves_s, leaves, rtol=1e-12)


@pytest.mark.parametrize(
    ("sizes", "links", "rows", "leaves"),
    [
        ((12,), ((0, 1),), [(9, 1), (1, 9)], [9]),  # 2 in 2 s; two packets have passed link 0, which sends one
        ((12,), ((0, 1),), [(1, 9), (9, 1)], [11]),  # only the packet that link 1 sends at once is past it
        ((12,), ((0, 1),), [(1, 9), (2, 9)], [7]),  # the bottleneck stays
        # The first flow had 1 of link 1, then has half of link 0; the packet that this sends at once is half its own.
        ((12, 16), ((0, 1), (0,)), [(4, 1), (2, 9)], [9.5, 10.75]),
        # It shares link 0, and then has 1 of link 1. Its two packets pass link 0 before others of the second flow.
        ((12, 16), ((0, 1), (0,)), [(2, 9), (4, 1)], [11, 2 + 16 / 3]),
    ],
)
def test_packets_already_past_a_new_bottleneck_do_not_cross_it_again(sizes, links, rows, leaves) -> None:
    case = alone(sizes, links, rows[0])
    found = times(case, rows, until=2, every=2, packet=1)
    np.testing.assert_allclose(found.leaves_s, leaves, rtol=1e-12)


PACKETS = 600  # in a message


def packet_leaves(ways: Sequence[Sequence[int]], rows: np.ndarray, *, until: float, every: float) -> list[float]:
    """Return when the last of each flow's PACKETS leaves its last link; rows of rates are in packets/s.

    Links serve flows in turn, one packet each, and forward a packet when its sending time begins. If rates change, the
    rest of this time is scaled so that the bytes stay the same. A flow has two packets under way, and sends the next
    when one has left the last link. There is no delay.
    """
    waiting = [defaultdict[int, list[int]](list) for _ in rows[0]]  # per link, in turn by flow: the hops of packets
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


def test_times_under_changing_rates_agree_with_a_round_robin_packet_simulation() -> None:
    """Flows over the same links, and others that leave or join them, under 15 to 20 changes. A model that ignores
    packets (`packet` 0) predicts ends that are 1 to 3 % too late."""
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


def test_rate_changes_affect_neither_delays_computations_nor_waiting_transfers() -> None:
    # 2 of 4 until 2 s, the rest at 2 until 3 s; then 5 s of delay, in which rates change again; then 1 s of computing.
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
def test_times_under_changing_rates_equal_an_exact_lock_step_simulation(seed: int) -> None:
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
    """Return a case with the links and delays of another; computations stay computations."""
    ways = tuple(b or a if a else () for a, b in zip(case.links, other.links, strict=True))
    delays = tuple(b if way else a for way, a, b in zip(ways, case.delays, other.delays, strict=True))
    return replace(case, links=ways, delays=delays)


@pytest.mark.parametrize("seed", range(6))
def test_times_of_rerouted_flows_equal_an_exact_lock_step_simulation(seed: int) -> None:
    """Flows move at random instants at which nothing else happens, and deliver in order over the old and new ways."""
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


def test_a_message_rerouted_midway_arrives_when_the_parts_on_both_ways_have_arrived() -> None:
    """10 bits: 4 at 1 bit/s over a way of 30 s, then 6 at 2 bit/s over one without delay; later messages wait, too."""
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
def test_times_under_unchanged_rates_equal_the_fluid_model(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        case = random_case(rng, flows=5, links=4, delays=(0, 1e-7, 1.5))
        found, steady = times(case, [case.capacities], until=0.7, every=0.3), case.times()
        for name in ("begins_s", "leaves_s", "arrives_s"):
            np.testing.assert_allclose(getattr(found, name), getattr(steady, name)[:, 0], rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_times_over_links_that_fail_and_come_back_equal_an_exact_lock_step_simulation(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        flows, links = rng.randint(1, 6), rng.randint(1, 5)
        case = random_case(rng, flows=flows, links=links, delays=(0, 0, 0.25, 1.5))
        rows = [tuple(rng.choice((0, 0, 1, 2, 3)) for _ in range(links)) for _ in range(9)] + [case.capacities]
        until, every = rng.choice((0.125, 0.5, 1.0, 3.0)), rng.choice((0.25, 0.5, 1.0, 2.0))
        found = times(case, rows, until=until, every=every)
        exact = lock_step(case, rows=rows, until=until, every=every)
        np.testing.assert_allclose((found.leaves_s, found.arrives_s), np.array(exact, float), rtol=1e-9)


def test_a_transfer_over_a_link_that_stays_down_never_leaves() -> None:
    found = times(alone([4, 4], ((0,), (1,)), (2, 1)), [(2, 1), (0, 1)], until=1, every=1)
    assert found.leaves_s.tolist() == [np.inf, 4]


def test_classes_are_served_in_order_under_changing_rates() -> None:
    """Gold sends 2 of its 3 bits until 1 s, nothing while the link is down, and the last one until 2.5 s; then bronze
    sends its 4. With half of the link assured to bronze, both have 1 bit/s while gold sends."""
    case = alone([3, 4], ((0,), (0,)), (2,))
    gold_first = {"of_flow": [0, 1], "serves": [True], "ceilings": [1, 1]}
    for assured, leaves in ((0, [2.5, 4.5]), (0.5, [4, 4.5])):
        classes = fluid.Classes(**gold_first, assured=[0, assured])
        found = times(case, [(2,), (0,), (2,)], until=1, every=1, classes=classes)
        np.testing.assert_allclose(found.leaves_s, leaves, rtol=1e-9)


EXAMPLES = """
import random, sys
import numpy as np
from tests.analysis.test_fluid import random_case
from tests.analysis.test_fluid_changes import times

rng = random.Random(1)
for _ in range(20):
    case = random_case(rng, flows=5, links=4, delays=(0, 0.25, 1.5))
    rows = [case.capacities, *(tuple(rng.randint(1, 4) for _ in range(4)) for _ in range(9))]
    print(case.times().arrives_s.tobytes().hex(), times(case, rows, until=0.7, every=0.3, packet=1).arrives_s.tolist())
print("numba" in sys.modules)
"""


def test_the_event_loop_gives_the_same_times_without_its_compiler() -> None:
    found = []
    for compiles in ("1", "0"):
        environment = {**os.environ, "LONGHAUL_COMPILE": compiles}
        command = [sys.executable, "-W", "error", "-c", EXAMPLES]
        done = subprocess.run(command, cwd=PROJECT, env=environment, check=True, capture_output=True, text=True)
        found.append(done.stdout.splitlines())
    (*compiled, with_numba), (*plain, without) = found
    assert (with_numba, without) == ("True", "False")
    assert compiled == plain


def test_the_recursion_for_flows_that_share_nothing_gives_the_same_bits_as_the_event_loop() -> None:
    ring, rng = schedule("allgather", "ring", sites=(4, 4)), np.random.default_rng(1)
    flows = len(ring.flows)
    capacity_bps, delay_s = rng.uniform(1e9, 1e11, (50, flows)), rng.uniform(0, 1e-3, (50, flows))
    evaluator = Evaluator(ring.transfers, flows=flows, slot_bytes=8e6)
    shared = Shared(np.arange(flows)[None, :, None], capacity_bps, delay_s)
    unshared = Unshared(delay_s, 8 * 8e6 / capacity_bps)
    assert (evaluator.completion_s(shared) == evaluator.completion_s(unshared)).all()
    for name in ("begins_s", "leaves_s", "arrives_s"):
        assert (getattr(evaluator.times(shared), name) == getattr(evaluator.times(unshared), name)).all()


@pytest.mark.parametrize(("queued_at", "ends_s"), [([0, 0], 1 + 95 / 2), (None, 1 + (95 - 3 * 10) / 2)])
def test_packets_of_a_tunnel_wait_at_the_port_where_it_begins(queued_at: list[int] | None, ends_s: float) -> None:
    """A flow of 100 bits passes a port (link 0) of 10 bit/s into a tunnel (link 1) of 5 bit/s; after 1 s the port has 2
    bit/s. Behind the port, two packets of 10 bits would have passed it already, and it would send a third at once."""
    (run,) = fluid.runs(
        [SimpleNamespace(flow=0, amount=100.0, after=())],
        np.array([[[0, 1]]]),
        np.array([[10.0, 5.0]]),
        np.zeros((1, 1)),
        slot_bytes=1 / 8,
        packet_bytes=10 / 8,
        queued_at=None if queued_at is None else np.array(queued_at, np.int32),
    )
    assert not run.advance(np.array([1.0]), capacity_bps=np.array([[10.0, 5.0]]))
    run.advance(np.array([np.inf]), capacity_bps=np.array([[2.0, 5.0]]))
    assert run.times.arrives_s[0, 0] == pytest.approx(ends_s)
