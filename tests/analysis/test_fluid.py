"""The fluid timing model of flows that share links, against hand-computed cases, the definition of max-min fairness, a
lexicographic linear programme, an exact lock-step simulation, a time-stepped simulation, a packet simulation, and the
max-plus model where no link is shared."""

import random
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from analysis.model import fluid, max_plus
from hosts.collectives.kinds import schedule
from hosts.collectives.schedule import Transfer
from tests.conftest import PROJECT
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.ports import Ports, links_of

Links = tuple[tuple[int, ...], ...]  # for each flow, the links that it uses


@dataclass(frozen=True, kw_only=True)
class Case:
    """One instance. A slot is one bit, so that capacities are in slots per second."""

    transfers: tuple[Transfer, ...]
    links: Links
    capacities: tuple[int, ...]
    delays: tuple[float, ...]

    def times(self) -> fluid.SharedTimes:
        return fluid.times(self.transfers, *arrays([self]), slot_bytes=1 / 8)


def arrays(cases: Sequence[Case]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return links [K, F, H], capacities [K, links] and delays [K, F] of K cases that have as many flows and links."""
    most = max(1, *(len(links) for case in cases for links in case.links))
    links = [[[*own, *[-1] * (most - len(own))] for own in case.links] for case in cases]
    return np.array(links), np.array([c.capacities for c in cases], float), np.array([c.delays for c in cases], float)


def alone(sizes: Sequence[float], links: Links, capacities: Sequence[int]) -> Case:
    """Return a case with one transfer per flow, all at time 0, without delays."""
    transfers = tuple(Transfer(flow=flow, size=size) for flow, size in enumerate(sizes))
    return Case(transfers=transfers, links=links, capacities=tuple(capacities), delays=(0.0,) * len(links))


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "links", "capacities", "leaves"),
    [
        ((4, 4), ((0,), (0,)), (1,), (8, 8)),
        ((2, 6), ((0,), (0,)), (1,), (4, 8)),
        # Link 1 limits flow 0 to 2; flow 1 gets the other 8 until it ends, and flow 0 gets no more after that.
        ((4, 8), ((0, 1), (0,)), (10, 2), (2, 1)),
        # The parking lot: a flow over both links, and one over each.
        ((2, 1, 3), ((0, 1), (0,), (1,)), (1, 1), (4, 2, 5)),
        # The same with a second link of twice the capacity: 1/2, 1/2 and 3/2 until 2 s; then 1 and 1 until 3 s; then 2.
        ((2, 1, 6), ((0, 1), (0,), (1,)), (1, 2), (3, 2, 4)),
        # Two links, four flows: the rates 1/3, 1/3, 1/3 and 2/3 (Bertsekas and Gallager, example 6.3, without a link).
        ((1, 1, 1, 2), ((0,), (0,), (0, 1), (1,)), (1, 1), (3, 3, 3, 3)),
    ],
)
def test_fair_shares_of_small_networks_equal_hand_computed_times(sizes, links, capacities, leaves) -> None:
    np.testing.assert_allclose(alone(sizes, links, capacities).times().leaves_s[:, 0], leaves, rtol=1e-12)


def test_a_later_flow_shares_from_its_start_and_dependents_begin_at_its_arrival() -> None:
    # Flow 0 has sent 3 of 5 at 3 s; then flows 0 and 2 send at 1/2 each; flow 0 ends at 7 s with 2 of flow 2's 4 sent.
    case = Case(
        transfers=(
            Transfer(flow=0, size=5),
            Transfer(flow=1, size=3),  # a computation
            Transfer(flow=2, size=4, after=(1,)),
            Transfer(flow=0, size=1, after=(2,)),
        ),
        links=((0,), (), (0,)),
        capacities=(1,),
        delays=(0.25, 0, 0.5),
    )
    found = case.times()
    assert found.begins_s[:, 0].tolist() == [0, 0, 3, 9.5]
    assert found.leaves_s[:, 0].tolist() == [7, 3, 9, 10.5]
    assert found.arrives_s[:, 0].tolist() == [7.25, 3, 9.5, 10.75]
    assert [step.transfer for step in max_plus.critical_path(case.transfers, found)] == [1, 2, 3]


def test_the_bottleneck_is_the_link_that_limits_a_transfer_for_the_longest_time() -> None:
    # Link 0 limits flow 0 to a rate of 2 until flow 1 ends at 1 s; then link 1 limits it to 3 for 3 s.
    found = alone((11, 2, 100), ((0, 1), (0,), (2,)), (4, 3, 50)).times()
    assert found.leaves_s[:, 0].tolist() == [4, 1, 2]
    assert found.bottleneck[:, 0].tolist() == [1, 0, 2]
    assert found.bottleneck_s[:, 0].tolist() == [3, 1, 2]
    # Flow 1 shares link 0 with flow 0 at 1.5 until 2 s, then link 1 with flow 2 at 2 until 7 s.
    found = alone((3, 13, 99), ((0,), (0, 1), (1,)), (3, 4)).times()
    assert found.leaves_s[:2, 0].tolist() == [2, 7]
    assert (found.bottleneck[1, 0], found.bottleneck_s[1, 0]) == (1, 5)


def test_transfers_over_a_failed_link_never_arrive_and_others_are_unaffected() -> None:
    case = Case(
        transfers=(
            Transfer(flow=0, size=2),
            Transfer(flow=1, size=2),
            Transfer(flow=2, size=2),
            Transfer(flow=1, size=0, after=(0,)),
            Transfer(flow=3, size=1, after=(2,)),
            Transfer(flow=3, size=1, after=(3,)),
        ),
        links=((0, 1), (0,), (0, 1), (2,)),
        capacities=(1, 0, 1),
        delays=(0, 0, 0, 0),
    )
    found, never = case.times(), np.inf
    assert found.leaves_s[:, 0].tolist() == [never, 2, never, never, never, never]
    assert found.begins_s[:, 0].tolist() == [0, 0, 0, never, never, never]
    assert found.bottleneck[[0, 2], 0].tolist() == [1, 1]
    assert fluid.completion_s(case.transfers, *arrays([case]), slot_bytes=1).tolist() == [never]


def test_empty_transfers_take_no_time_and_delay_no_other_transfer() -> None:
    chain = tuple(Transfer(flow=index % 2, size=0, after=(index - 1,) if index else ()) for index in range(50))
    case = Case(
        transfers=(*chain, Transfer(flow=0, size=3, after=(49,)), Transfer(flow=1, size=3)),
        links=((0,), (0,)),
        capacities=(1,),
        delays=(0, 0),
    )
    found = case.times()
    assert found.leaves_s[:, 0].tolist() == [0] * 50 + [6, 6]
    assert fluid.times((), *arrays([case]), slot_bytes=1).leaves_s.shape == (0, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"links": [[[0, 2]]]}, "link 2; allowed: 0 to 1"),
        ({"links": [[[-2, 0]]]}, "link -2; allowed: 0 to 1"),
        ({"links": [[[1, 1]]]}, "flow 0 of instance 0 uses a link twice"),
        ({"links": [[0, 1]]}, r"links \(1, 2\), capacities \(1, 2\)"),
        ({"links": [[[0, 1]]] * 2}, r"links \(2, 1, 2\)"),
        ({"capacity_bps": [[1, -1]]}, "a capacity of -1 bit/s"),
        ({"capacity_bps": [[1, np.inf]]}, "a capacity of inf bit/s"),
        ({"delay_s": [[-1]]}, "a delay of -1 s"),
        ({"delay_s": [[np.nan]]}, "a delay of nan s"),
        ({"slot_bytes": 0}, "slots of 0 bytes"),
        ({"transfers": [Transfer(flow=1, size=1)]}, "transfer 0 is on flow 1; allowed: 0 to 0"),
        ({"transfers": [Transfer(flow=0, size=-1)]}, "transfer 0 is of -1 slots"),
        ({"links": [[[2**32, 1]]]}, "link 4294967296; allowed: 0 to 1"),
        ({"transfers": [Transfer(flow=0, size=1, after=(0,))]}, "transfer 0 waits for transfer 0"),
    ],
)
def test_invalid_arguments_of_the_fluid_model_are_refused(change: Mapping[str, object], says: str) -> None:
    right = {"links": [[[0, 1]]], "capacity_bps": [[1, 1]], "delay_s": [[0]], "slot_bytes": 1}
    given = {"transfers": [Transfer(flow=0, size=1)], **right, **change}
    given |= {name: np.array(given[name]) for name in ("links", "capacity_bps", "delay_s")}
    with pytest.raises(ValueError, match=says):
        fluid.times(**given)


def test_importing_the_fluid_model_does_not_import_numba() -> None:
    code = "import sys, analysis.model.fluid; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=False).returncode == 0


# --- rates -----------------------------------------------------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> tuple[Links, tuple[int, ...]]:
    capacities = draw(st.lists(st.one_of(st.integers(0, 12), st.integers(1, 10**12)), min_size=1, max_size=8))
    some = st.lists(st.integers(0, len(capacities) - 1), min_size=1, max_size=5, unique=True).map(tuple)
    return tuple(draw(st.lists(some, min_size=1, max_size=12))), tuple(capacities)


@settings(deadline=None, max_examples=1000)
@given(networks())
def test_rates_satisfy_the_definition_of_max_min_fairness(network: tuple[Links, tuple[int, ...]]) -> None:
    """No link exceeds its capacity, and every flow crosses a full link on which no other flow is faster."""
    links, capacities = network
    padded, capacity_bps, _ = arrays([alone([1] * len(links), links, capacities)])
    rates, bottleneck = fluid.fair_rates(padded[0], capacity_bps[0])
    on = {link: [flow for flow, own in enumerate(links) if link in own] for link in range(len(capacities))}
    for link, flows in on.items():
        assert rates[flows].sum() <= capacities[link] * (1 + 1e-9)
    for flow, link in enumerate(bottleneck):
        assert link in links[flow]
        assert rates[on[link]].sum() >= capacities[link] * (1 - 1e-9)
        assert rates[flow] >= rates[on[link]].max() * (1 - 1e-9)


def lexicographic_rates(links: Links, capacities: Sequence[int]) -> np.ndarray:
    """Return the lexicographically greatest sorted rates: the lowest is as high as possible, then the next, and so on.

    Each linear programme maximises the lowest rate of the flows that are not fixed yet, and fixes the flows that have
    this rate in all of its solutions: those whose bound has a dual price (complementary slackness). Max-min fair rates
    are the lexicographically greatest (Bertsekas and Gallager, "Data Networks", 2nd edition, 6.5.2).
    """
    rates = np.zeros(len(links))
    on = np.array([[link in own for own in links] for link in range(len(capacities))], float)
    free = np.arange(len(links))
    while free.size:
        room = np.array(capacities, float) - on @ rates
        # Variables: the free flows' rates, and their minimum. No link exceeds its room, no rate is below the minimum.
        least_first = np.hstack([-np.eye(free.size), np.ones((free.size, 1))])
        found = linprog(
            [0.0] * free.size + [-1.0],
            A_ub=np.vstack([np.hstack([on[:, free], np.zeros((len(on), 1))]), least_first]),
            b_ub=np.concatenate([room, np.zeros(free.size)]),
            method="highs-ds",
        )
        assert found.status == 0, found.message
        fixed = -found.ineqlin.marginals[len(on) :] > 1e-9  # these prices add up to 1
        assert fixed.any()
        rates[free[fixed]] = found.x[-1]
        free = free[~fixed]
    return rates


@pytest.mark.parametrize("grain", ["logical", "physical"])
@pytest.mark.parametrize("sites", [(2, 2), (4, 4), (3, 2, 2)], ids=lambda sites: "+".join(map(str, sites)))
def test_rates_equal_the_solution_of_the_lexicographic_linear_programme(grain: str, sites: tuple[int, ...]) -> None:
    """168 random instances per case, 1,008 in all: flows between any GPUs over any paths, capacities with ties."""
    fabric = build_fabric(FabricSpec(gpus_per_site=sites))
    ports, rng, shared = Ports(fabric), np.random.default_rng(len(fabric.gpus)), 0
    for instance in range(168):
        ends = np.array([rng.choice(len(fabric.gpus), 2, replace=False) for _ in range(rng.integers(2, 13))])
        src, dst = ends.T
        path = np.array(
            [rng.choice(fabric.paths_between[a, b]).index if a != b else -1 for a, b in fabric.gpu_sites[ends].tolist()]
        )
        ways = ports.of(src, dst, path) if grain == "physical" else links_of(fabric, src, dst, path)
        count = len(ports.all) if grain == "physical" else len(fabric.links)
        most = 4 if instance % 2 else 10**6  # capacities with many ties, or with hardly any
        capacities = rng.integers(1, most, count, endpoint=True).tolist()
        links = tuple(tuple(int(link) for link in way if link >= 0) for way in ways)
        rates, _ = fluid.fair_rates(ways, np.array(capacities, float))
        np.testing.assert_allclose(rates, lexicographic_rates(links, capacities), rtol=1e-9)
        alone_bps = [min(capacities[link] for link in own) for own in links]
        shared += bool((rates < np.array(alone_bps) * 0.99).any())
    assert shared > 84, "flows share a link in half of the instances or fewer"


# --- whole schedules against other simulations -----------------------------------------------------------------------


def random_case(rng: random.Random, *, flows: int, links: int, delays: Sequence[float]) -> Case:
    """Return a random graph of transfers whose small whole sizes and capacities give many ties."""
    own = tuple(tuple(rng.sample(range(links), rng.randint(0, min(3, links)))) for _ in range(flows))
    return Case(
        transfers=tuple(
            Transfer(
                flow=rng.randrange(flows),
                size=rng.choice((0, 1, 1, 2, 3, 5)),
                after=tuple(sorted(rng.sample(range(index), min(index, rng.choice((0, 0, 1, 1, 2)))))),
            )
            for index in range(rng.randint(1, 20))
        ),
        links=own,
        capacities=tuple(rng.randint(1, 4) for _ in range(links)),
        delays=tuple(rng.choice(delays) for _ in range(flows)),
    )


def filled(flows: frozenset[int], case: Case) -> dict[int, Fraction]:
    """Return the rates of these flows by progressive filling: all rise together, until a link of a flow is full."""
    rates, rising = dict.fromkeys(flows, Fraction(0)), {flow for flow in flows if case.links[flow]}
    while rising:
        room = {}
        for link, capacity in enumerate(case.capacities):
            growing = sum(link in case.links[flow] for flow in rising)
            if growing:
                used = sum(rate for flow, rate in rates.items() if link in case.links[flow])
                room[link] = (capacity - used) / Fraction(growing)
        step = min(room.values())
        for flow in rising:
            rates[flow] += step
        full = {link for link, left in room.items() if left == step}
        rising = {flow for flow in rising if not full & set(case.links[flow])}
    return {flow: rate if case.links[flow] else Fraction(1) for flow, rate in rates.items()}


def lock_step(
    case: Case,
    *,
    rows: Sequence[tuple[int, ...]] = (),
    until: float = 0,
    every: float = 0,
    moves: Sequence[tuple[float, Case]] = (),
) -> tuple[list[Fraction], list[Fraction]]:
    """Return when every transfer leaves and arrives, exactly: all rates are computed again at every event.

    The first of `rows` of capacities holds until `until`, each later one for `every`, and the last for ever. From the
    instant of each of `moves` on, flows have the links and delays of its case; a flow still delivers in order.
    """
    queues = [deque(i for i, one in enumerate(case.transfers) if one.flow == f) for f in range(len(case.links))]
    left = [Fraction(one.amount) for one in case.transfers]
    leaves: dict[int, Fraction] = {}
    arrives: dict[int, Fraction] = {}
    changes = [Fraction(until) + row * Fraction(every) for row in range(len(rows) - 1)]
    now, left_to_move = Fraction(0), [(Fraction(at), other) for at, other in moves]
    last = [Fraction(0)] * len(case.links)  # for each flow, when everything that it has sent has arrived
    while len(leaves) < len(case.transfers):
        begun = True
        while begun:  # empty transfers leave at once, which may let others begin
            begun, serving = False, {}
            for flow, queue in enumerate(queues):
                if queue and all(arrives.get(one, now + 1) <= now for one in case.transfers[queue[0]].after):
                    if left[queue[0]] == 0:
                        leaves[queue[0]], begun = now, True
                        last[flow] = max(last[flow], now + Fraction(case.delays[flow]))
                        arrives[queue.popleft()] = last[flow]
                    else:
                        serving[flow] = queue[0]
        if left_to_move and left_to_move[0][0] <= now:
            for flow, transfer in serving.items():
                if left[transfer] < case.transfers[transfer].amount:
                    last[flow] = max(last[flow], now + Fraction(case.delays[flow]))
            case = replace(left_to_move.pop(0)[1], transfers=case.transfers)
            continue
        row = sum(change <= now for change in changes)
        rates = filled(frozenset(serving), replace(case, capacities=rows[row]) if rows else case)
        ends = [now + left[transfer] / rates[flow] for flow, transfer in serving.items() if rates[flow]]
        later = [at for at in (*arrives.values(), *changes, *(at for at, _ in left_to_move)) if at > now]
        if not ends and not later:
            break
        then = min([*ends, *later])
        for flow, transfer in serving.items():
            left[transfer] -= (then - now) * rates[flow]
        now = then
    return tuple([of[index] for index in range(len(case.transfers))] for of in (leaves, arrives))


@pytest.mark.parametrize("seed", range(10))
def test_fluid_times_equal_an_exact_lock_step_simulation_of_random_graphs(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        flows, links = rng.randint(1, 6), rng.randint(1, 5)
        case = random_case(rng, flows=flows, links=links, delays=(0, 0, 1e-7, 0.25, 1.5))
        found = case.times()
        np.testing.assert_allclose(found.leaves_s[:, 0], np.array(lock_step(case)[0], float), rtol=1e-9)
        for index, transfer in enumerate(case.transfers):
            link, own = found.bottleneck[index, 0], case.links[transfer.flow]
            assert link in own if own and transfer.amount else link == -1
            served_s = found.leaves_s[index, 0] - found.begins_s[index, 0]
            assert not own or served_s / 3 - 1e-9 <= found.bottleneck_s[index, 0] <= served_s + 1e-9
        path = max_plus.critical_path(case.transfers, found)
        last_s = found.arrives_s.max()
        assert sum(step.seconds for step in path) == pytest.approx(last_s, rel=1e-12, abs=1e-12)
        assert fluid.completion_s(case.transfers, *arrays([case]), slot_bytes=1 / 8)[0] == last_s


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("allgather", "ring"), ("allreduce", "hierarchical"), ("alltoall", "direct")],
)
def test_fluid_times_equal_an_exact_lock_step_simulation_on_physical_ports(kind: str, algorithm: str) -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(3, 3)))
    ports, found = Ports(fabric), schedule(kind, algorithm, sites=(3, 3))
    rng = np.random.default_rng(11)
    place = np.arange(6) if algorithm == "hierarchical" else rng.permutation(6)
    src, dst = place[[flow.src for flow in found.flows]], place[[flow.dst for flow in found.flows]]
    path = [
        rng.choice(fabric.paths_between[a, b]).index if a != b else -1
        for a, b in zip(fabric.gpu_sites[src], fabric.gpu_sites[dst], strict=True)
    ]
    case = Case(
        transfers=found.transfers,
        links=tuple(tuple(int(port) for port in own if port >= 0) for own in ports.of(src, dst, np.array(path))),
        capacities=tuple(rng.integers(1, 10, len(ports.all)).tolist()),
        delays=tuple(rng.choice([0.25, 0.5], len(found.flows)).tolist()),
    )
    leaves = np.array(lock_step(case)[0], float)
    np.testing.assert_allclose(case.times().leaves_s[:, 0], leaves, rtol=1e-9)
    alone_s = np.array([one.amount / min(case.capacities[p] for p in case.links[one.flow]) for one in case.transfers])
    assert (leaves - case.times().begins_s[:, 0] > 1.01 * alone_s).sum() >= 5, "fewer than 5 transfers share a port"


@pytest.mark.parametrize("seed", range(20))
def test_fluid_times_agree_with_a_simulation_in_10000_time_steps(seed: int) -> None:
    """In the simulation every transfer may begin a step late and leave a step late, hence the tolerance."""
    rng = random.Random(1000 + seed)
    case = random_case(rng, flows=5, links=4, delays=(0, 0.3, 1.1))
    found = case.times()
    step = float(found.arrives_s.max()) / 10_000
    if step == 0:
        return
    rates = cache(lambda flows: {flow: float(rate) for flow, rate in filled(flows, case).items()})
    count = len(case.transfers)
    left = [one.amount for one in case.transfers]
    order = [[i for i, one in enumerate(case.transfers) if one.flow == flow] for flow in range(5)]
    leaves, head, now = [np.inf] * count, [0] * 5, 0
    while min(len(order[flow]) - head[flow] for flow in range(5)) >= 0 and np.inf in leaves:
        serving = {}
        for flow, own in enumerate(order):
            if head[flow] < len(own):
                after = case.transfers[own[head[flow]]].after
                if all(leaves[one] + case.delays[case.transfers[one].flow] <= now * step for one in after):
                    serving[flow] = own[head[flow]]
        given_rates = rates(frozenset(serving))
        now += 1
        for flow, transfer in serving.items():
            left[transfer] -= given_rates[flow] * step
            if left[transfer] <= 1e-12:
                leaves[transfer] = now * step
                head[flow] += 1
        assert now < 11_000
    np.testing.assert_allclose(found.leaves_s[:, 0], leaves, rtol=0, atol=2 * count * step)


PACKETS = 400  # in a slot


def packet_leaves(case: Case) -> list[float]:
    """Return when the last packet of every transfer leaves its last link. Links serve flows in turn, one packet each.

    A flow has a window of two packets for each of its links. So its bottleneck has a packet to send at every turn, and
    the flow takes little more than that rate from earlier links. There is no delay (Hahne, "Round-robin scheduling for
    max-min fairness in data networks", IEEE JSAC 1991).
    """
    queues = [deque(i for i, one in enumerate(case.transfers) if one.flow == f) for f in range(len(case.links))]
    unsent = [int(one.amount * PACKETS) for one in case.transfers]
    not_through = list(unsent)
    leaves: dict[int, float] = {}
    in_flight = [0] * len(case.links)
    waiting: list[dict[int, deque[int]]] = [{} for _ in case.capacities]  # per link and flow: each packet's transfer
    turn: list[deque[int]] = [deque() for _ in case.capacities]
    busy = [False] * len(case.capacities)
    events: list[tuple[float, int, int, int, int]] = []
    now = 0.0

    def put(link: int, flow: int, transfer: int) -> None:
        queue = waiting[link].setdefault(flow, deque())
        if not queue:
            turn[link].append(flow)
        queue.append(transfer)
        serve(link)

    def serve(link: int) -> None:
        if not busy[link] and turn[link]:
            flow = turn[link].popleft()
            transfer = waiting[link][flow].popleft()
            if waiting[link][flow]:
                turn[link].append(flow)
            busy[link] = True
            heappush(events, (now + 1 / (case.capacities[link] * PACKETS), len(events), link, flow, transfer))

    def send() -> None:
        for flow, queue in enumerate(queues):
            while queue and all(one in leaves for one in case.transfers[queue[0]].after):
                transfer = queue[0]
                while unsent[transfer] and in_flight[flow] < 2 * len(case.links[flow]):
                    unsent[transfer] -= 1
                    in_flight[flow] += 1
                    put(case.links[flow][0], flow, transfer)
                if not_through[transfer]:
                    break
                leaves[queue.popleft()] = now

    send()
    while events:
        now, _, link, flow, transfer = heappop(events)
        busy[link] = False
        hop = case.links[flow].index(link)
        if hop + 1 < len(case.links[flow]):
            put(case.links[flow][hop + 1], flow, transfer)
        else:
            in_flight[flow] -= 1
            not_through[transfer] -= 1
            if not_through[transfer] == 0 and queues[flow][0] == transfer:
                leaves[transfer] = now
                queues[flow].popleft()
            send()
        serve(link)
    return [leaves[index] for index in range(len(case.transfers))]


@pytest.mark.parametrize("seed", range(12))
def test_fluid_times_agree_with_a_round_robin_packet_simulation(seed: int) -> None:
    rng = random.Random(2000 + seed)
    flows = 5
    links = tuple(tuple(rng.sample(range(4), rng.randint(1, 3))) for _ in range(flows))
    first = [Transfer(flow=flow, size=rng.choice((2, 3, 5))) for flow in range(flows)]
    then = [Transfer(flow=rng.randrange(flows), size=rng.choice((1, 2)), after=(i,)) for i in range(2)]
    capacities = tuple(rng.randint(1, 4) for _ in range(4))
    case = Case(transfers=(*first, *then), links=links, capacities=capacities, delays=(0,) * flows)
    np.testing.assert_allclose(case.times().leaves_s[:, 0], packet_leaves(case), rtol=0.01, atol=4 / PACKETS)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 10**6)), min_size=1, max_size=20),
    st.integers(1, 10**9),
    st.floats(0.1, 1e6),
)
def test_a_single_shared_bottleneck_is_busy_until_all_bytes_are_sent(
    sent: list[tuple[int, int]], capacity: int, slot_bytes: float
) -> None:
    transfers = [Transfer(flow=flow, size=size) for flow, size in sent]
    links = np.stack([np.arange(1, 7), np.zeros(6), np.arange(7, 13)], axis=-1)[None]  # own links around the shared one
    capacities = np.array([[capacity] + [2 * capacity] * 12], float)
    found = fluid.completion_s(transfers, links, capacities, np.zeros((1, 6)), slot_bytes=slot_bytes)
    assert found[0] == pytest.approx(8 * slot_bytes * sum(size for _, size in sent) / capacity, rel=1e-9)


# --- without shared links, and in batches -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "algorithm", "pieces"),
    [("allgather", "ring", 1), ("allreduce", "double-tree", 4), ("alltoall", "direct", 1)],
)
def test_without_shared_links_fluid_times_equal_the_max_plus_model(kind: str, algorithm: str, pieces: int) -> None:
    found = schedule(kind, algorithm, sites=(4, 4), pieces=pieces)
    rng = np.random.default_rng(7)
    flows, count = len(found.flows), 50
    links = rng.permutation(3 * flows).reshape(1, flows, 3)
    capacity_bps, delay_s = rng.uniform(1e9, 1e11, (count, 3 * flows)), rng.uniform(0, 1e-3, (count, flows))
    right = max_plus.times(found.transfers, delay_s.T, 8 * 1e5 / capacity_bps[:, links[0]].min(axis=2).T)
    ours = fluid.times(found.transfers, links, capacity_bps, delay_s, slot_bytes=1e5)
    for name in ("begins_s", "leaves_s", "arrives_s"):
        np.testing.assert_allclose(getattr(ours, name), getattr(right, name), rtol=1e-12)
    slowest = np.take(links[0], capacity_bps[:, links[0]].argmin(axis=2) + 3 * np.arange(flows))
    np.testing.assert_array_equal(ours.bottleneck, slowest.T[[one.flow for one in found.transfers]])


def test_a_link_faster_than_all_its_flows_together_does_not_limit_them() -> None:
    case = alone((3, 4, 5), ((0, 1), (0, 2), (0, 3)), (6, 1, 2, 3))
    found = case.times()
    np.testing.assert_allclose(found.leaves_s[:, 0], (3, 2, 5 / 3), rtol=1e-12)
    assert found.bottleneck[:, 0].tolist() == [1, 2, 3]


def test_every_instance_of_a_batch_has_the_times_it_has_alone() -> None:
    """Bit for bit, although the instances differ in links, rates and delays and some have failed links."""
    rng = random.Random(3)
    transfers = random_case(rng, flows=6, links=5, delays=(0,)).transfers
    cases = [random_case(rng, flows=6, links=5, delays=(0, 0.5)) for _ in range(100)]
    links, capacity_bps, delay_s = arrays(cases)
    capacity_bps[::3, 1] = 0
    together = fluid.times(transfers, links, capacity_bps, delay_s, slot_bytes=1)
    assert np.isinf(together.leaves_s).any()
    for index in range(100):
        own = slice(index, index + 1)
        single = fluid.times(transfers, links[own], capacity_bps[own], delay_s[own], slot_bytes=1)
        for name in ("begins_s", "leaves_s", "arrives_s", "bottleneck", "bottleneck_s"):
            np.testing.assert_array_equal(getattr(together, name)[:, own], getattr(single, name))
    ends = fluid.completion_s(transfers, links, capacity_bps, delay_s, slot_bytes=1)
    np.testing.assert_array_equal(ends, together.arrives_s.max(axis=0))
