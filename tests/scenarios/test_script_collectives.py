"""The collectives of a script: planned as the testbed's own, for any group of GPUs, and served over a rank's socket."""

import csv
import json
import selectors
import socket
import sys
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import ALGORITHMS, ROOTED, contents
from scenarios.engines.prediction import FluidWorld, plan_of
from scenarios.policies.beliefs import Noted
from scenarios.policies.conditions import conditions_of
from scenarios.policies.play import play
from scenarios.policies.policy import when
from scenarios.program.collective_server import CollectiveServer
from scenarios.program.collectives import CollectiveRefusedError, Group, Request, Surroundings, content_of
from scenarios.program.message_times import RankMessages
from scenarios.spec.collective import CollectiveSpec
from scenarios.spec.load import scenario_of
from tests.fakes.runs import ended
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.failures import NO_CABLES
from topologies.fabric.groups import in_order_of_sites, part_of

FABRIC = build_fabric(FabricSpec(gpus_per_site=(4, 4)))
MODES = {name: scenario_of("").mode(name) for name in ("base", "wan", "ccl", "joint")}


def surroundings(fabric, rates_bps, delays_s):
    return Surroundings(
        believed_bps=lambda: rates_bps,
        true_bps=lambda: rates_bps,
        dead=lambda: NO_CABLES,
        mean_bps=rates_bps,
        delays_s=delays_s,
    )


def drawn(fabric, seed):
    draw = np.random.default_rng(seed)
    return draw.uniform(1e9, 40e9, len(fabric.links)), draw.choice([1e-5, 1e-3, 2e-2], len(fabric.links))


def group(gpus, *, mode="joint", seed=1, fabric=FABRIC, **spec):
    now = surroundings(fabric, *drawn(fabric, seed))
    return Group(fabric, now, mode=MODES[mode], spec=CollectiveSpec(**spec), gpus=gpus)


@pytest.mark.parametrize("mode", [*MODES])
@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast"])
def test_all_gpus_get_what_the_testbed_gives_its_own_collective(kind, mode):
    text = f'[collective]\nkind = "{kind}"\nsize = "64 MB"\ncount = 1\n[run]\nmodes = ["{mode}"]\n'
    (config,) = scenario_of(text).configurations()
    plan = plan_of(config, mode)
    conditions = plan.conditions
    now = surroundings(conditions.fabric, conditions.rates_bps(0, 1)[0], conditions.delays_s)
    now = Surroundings(**{**vars(now), "mean_bps": conditions.mean_bps})
    ours = Group(conditions.fabric, now, mode=MODES[mode], spec=CollectiveSpec(), gpus=range(8))
    planned = ours.plan(Request(kind, 64_000_000, 4, 0))
    assert planned.workload.slot_bytes == config.workload.slot_bytes
    assert planned.placement == tuple(plan.decisions.placement[0].tolist())
    assert planned.predicted_s == pytest.approx(float(plan.completion_s()[0]), rel=1e-12)
    begins, ends = config.workload.schedule.ends
    of_flow = zip(begins, ends, plan.decisions.path[0].tolist(), strict=True)
    paths = {(planned.placement[src], planned.placement[dst]): path for src, dst, path in of_flow if path >= 0}
    assert planned.crossings == paths


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 1000),
    st.permutations(range(8)),
    st.integers(2, 7),
    st.sampled_from(["allreduce", "allgather", "alltoall", "broadcast", "scatter"]),
    st.sampled_from(["base", "wan", "joint"]),
)
def test_a_group_gets_what_a_fabric_of_these_gpus_alone_would_give(seed, order, size, kind, mode):
    """The oracle is a fabric that is built with so many GPUs, whose links have the rates of the group's."""
    chosen, root = order[:size], size - 1
    ours = group(chosen, mode=mode, seed=seed, pieces=1)
    rates_bps, delays_s = ours.now.true_bps(), ours.now.delays_s
    members = in_order_of_sites(FABRIC, chosen, first=chosen[root] if kind in ROOTED else None)
    sites = list(dict.fromkeys(FABRIC.gpus[gpu].site for gpu in members))
    sizes = tuple(sum(FABRIC.gpus[gpu].site == site for gpu in members) for site in sites)
    if sizes == (1,):
        return
    alone = build_fabric(FabricSpec(gpus_per_site=sizes))

    def original(name):
        """The node of the whole fabric that a node of the small one stands for."""
        return f"g{members[int(name[1:])]}" if name[0] == "g" else f"s{sites[int(name[1])]}{name[2:]}"

    index = {(link.src, link.dst): link.index for link in FABRIC.links}
    same = [index[original(link.src), original(link.dst)] for link in alone.links]
    small = Group(
        alone,
        surroundings(alone, rates_bps[same], delays_s[same]),
        mode=MODES[mode],
        spec=CollectiveSpec(pieces=1),
        gpus=range(size),
    )
    request = Request(kind, 8_000_000, 4, root)
    planned, expected = ours.plan(request), small.plan(Request(kind, 8_000_000, 4, 0))
    assert planned.predicted_s == pytest.approx(expected.predicted_s, rel=1e-9)
    assert [chosen[rank] for rank in planned.placement] == [members[rank] for rank in expected.placement]
    names = {
        (members[a], members[b]): [original(alone.links[link].src) for link in alone.paths[path].links]
        for (a, b), path in expected.crossings.items()
    }
    found = {
        pair: [FABRIC.links[link].src for link in FABRIC.paths[path].links] for pair, path in planned.crossings.items()
    }
    assert found == names
    if kind in ROOTED:
        assert planned.placement[0] == root


def test_the_ring_of_a_group_is_the_best_of_all_rings_by_brute_force():
    gpus = [1, 6, 3, 4]
    for seed in range(5):
        ours = group(gpus, seed=seed, pieces=1, ring="sum")
        planned = ours.plan(Request("allgather", 4_000_000, 4, 0))
        router = Router(FABRIC, ours.now.delays_s)
        rates_bps = ours.now.true_bps()[None]

        def edge_s(a, b, router=router, rates_bps=rates_bps):
            if FABRIC.gpus[a].site == FABRIC.gpus[b].site:
                link = FABRIC.intra_index[a, b]
                return router.delays_s[link] + 8e6 / rates_bps[0, link]
            cost_s, _ = router.crossings(rates_bps, chunk_bytes=1_000_000, fixed=False)
            return cost_s[0, a, b]

        def total_s(ring, edge_s=edge_s):
            return sum(edge_s(ring[i - 1], ring[i]) for i in range(len(ring)))

        def is_ring(ring):
            """Whether a ring crosses the WAN twice, as the rings to choose from do."""
            sites = [FABRIC.gpus[gpu].site for gpu in ring]
            return sum(sites[i - 1] != sites[i] for i in range(len(ring))) == 2

        least_s = min(total_s(ring) for ring in permutations(gpus) if is_ring(ring))
        assert total_s([gpus[rank] for rank in planned.placement]) == pytest.approx(least_s, rel=1e-9)


def test_a_policy_counts_the_collectives_of_a_group_by_kind():
    ours = group(range(8), reembed_every=3)
    kinds = ["allreduce", "allgather"] * 4
    chosen = [ours.plan(Request(kind, 1_000_000, 4, 0)) for kind in kinds]
    assert [one.reembedded for one in chosen] == [True, True, False, False, False, False, True, True]
    assert all(one.rerouted for one in chosen)


def test_the_ring_of_a_barrier_is_not_kept_for_gradients():
    """The oracle is a group without barriers. Sizes within a factor of two share their ring."""
    sizes = [4, 8_000_000, 4, 7_000_000, 8_388_607]
    ours, other = group(range(4), reembed_every=10), group(range(4), reembed_every=10)
    chosen = [ours.plan(Request("allreduce", size, 4, 0)) for size in sizes]
    alone = other.plan(Request("allreduce", 8_000_000, 4, 0))
    assert [one.reembedded for one in chosen] == [True, True, False, False, False]
    assert {one.placement for one in chosen[1::2]} | {chosen[4].placement} == {alone.placement}


@pytest.mark.parametrize("kind", [*ALGORITHMS])
@pytest.mark.parametrize("unit", [1, 2, 8, 16])
def test_slots_hold_whole_elements_and_programs_deliver_what_the_kind_requires(kind, unit):
    """Executed by hand, message by message in the order of tasks, on sets of contributions."""
    ours = group([5, 0, 2, 7, 1], seed=3)
    planned = ours.plan(Request(kind, 999, unit, 3))
    of = planned.workload
    places, slots = of.schedule.places, of.schedule.slots
    assert of.slot_bytes % unit == 0
    now, wanted = contents(kind, places=places, slots=slots)
    sends, receives = {}, {}
    for rank in range(places):
        program = content_of(planned, rank)["program"]
        sends |= {one["task"]: (rank, one["slots"]) for _, _, tasks in program["sends"] for one in tasks}
        receives |= {one["task"]: (rank, one) for _, _, tasks in program["receives"] for one in tasks}
    assert sends.keys() == receives.keys()
    place = {rank: number for number, rank in enumerate(planned.placement)}
    for task in sorted(sends):
        (src, mine), (dst, one) = sends[task], receives[task]
        for sent, kept in zip(mine, one["slots"], strict=True):
            content, at = now[place[src]][sent], now[place[dst]]
            at[kept] = content | (at[kept] if one["adds"] else 0)
    for place_of, required in enumerate(wanted):
        for slot, content in enumerate(required):
            assert content == 0 or now[place_of][slot] == content


def test_what_cannot_be_had_is_refused_with_a_sentence():
    with pytest.raises(CollectiveRefusedError, match=r"allreduce of 100 bytes of 1 ranks is not possible: .*2 or more"):
        group([3]).plan(Request("allreduce", 100, 4, 0))
    with pytest.raises(ValueError, match=r"\[0, 4, 1\] are not in the order of their sites"):
        part_of(FABRIC, [0, 4, 1])


# --- the rule gain ----------------------------------------------------------------------------------------------------


def changing(gpus, rule, *, fabric, horizon=3, install_s=0.0, delay_s=1e-3, slow, channels=1):
    """Return a group, and what slows it: rates that its last argument maps to those of now."""
    rates_bps, delays_s = drawn(fabric, 4)[0], np.full(len(fabric.links), delay_s)
    now = {"bps": rates_bps}
    around = {**vars(surroundings(fabric, rates_bps, delays_s)), "install_s": install_s}
    around |= {"believed_bps": lambda: now["bps"], "true_bps": lambda: now["bps"]}
    mode = replace(MODES["base"], name="mine", reroute=when("never"), reembed=when("never"), horizon=horizon)
    spec = CollectiveSpec(pieces=1, reembed_every=2, channels=channels)
    ours = Group(fabric, Surroundings(**around), mode=replace(mode, **rule), spec=spec, gpus=gpus)
    return ours, lambda: now.update(bps=slow(rates_bps))


def second(rule, request, *, gpus=range(8), **options):
    """Return the plan of a group's second collective, before which links become slow."""
    ours, slow_down = changing(gpus, rule, **options)
    ours.plan(request)
    slow_down()
    return ours.plan(request)


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_gain_chooses_paths_if_it_saves_more_than_the_wait_for_them(share):
    """The times with and without new paths are those of policies that choose anyway and never."""
    request = Request("allreduce", 8_000_000, 4, 0)

    def slow(rates_bps):
        wan = [link.index for link in FABRIC.links if link.kind == "wan"]
        return np.where(np.isin(np.arange(rates_bps.size), wan[::2]), rates_bps / 50, rates_bps)

    def of(rule, **more):
        return second({"reroute": when(rule)}, request, fabric=FABRIC, slow=slow, **more)

    kept_s, best_s = of("never").predicted_s, of("every 1").predicted_s
    assert kept_s > 2 * best_s
    install_s = share * 3 * (kept_s - best_s)
    found = of("gain 0", install_s=install_s)
    assert found.rerouted == (share < 1)
    assert found.predicted_s == (best_s if share < 1 else kept_s)


@pytest.mark.parametrize(("gpus", "channels", "waits"), [(8, 1, False), (8, 2, True), (20, 1, True)])
def test_gain_chooses_a_ring_if_it_saves_more_than_a_handshake_where_connections_are_made(gpus, channels, waits):
    """All links take 1 ms, and so a handshake with another site 2 x 3 ms."""
    fabric = build_fabric(FabricSpec(gpus_per_site=(gpus // 2 + 1, gpus // 2)))
    request, members = Request("allreduce", 10_000 * gpus, 4, 0), range(1, gpus + 1)

    def slow(rates_bps):
        return np.where(np.arange(rates_bps.size) == fabric.intra_index[1, 2], rates_bps / 20, rates_bps)

    def of(rule, horizon):
        rules = {"reembed": when(rule)}
        return second(rules, request, gpus=members, fabric=fabric, horizon=horizon, slow=slow, channels=channels)

    saves_s = of("never", 1).predicted_s - of("every 1", 1).predicted_s
    least = int(np.ceil(6e-3 / saves_s))
    assert least > 2
    assert of("gain 0", least).reembedded
    assert of("gain 0", least - 1).reembedded == (not waits)


# --- measured ends ----------------------------------------------------------------------------------------------------

ENDS = """
[fabric]
grain = "{grain}"
gpus = [3, 3]
[collective]
kind = "{kind}"
size = "24 MB"
count = 12
[conditions]
sampler = "markov"
mean_stay = 2
wan_rate = "1-10 Gbit/s"
[run]
modes = ["ends"]
[[policy]]
name = "ends"
reroute = "every 1"
reembed = "every 2"
knowledge = "measured ends"
"""


def told_by(ranks, schedule, placement, slot_bytes, outcome):
    """Return what ranks tell of the messages of an outcome of the testbed's collectives."""
    begins, ends = schedule.ends
    told = [RankMessages({}, {}) for _ in range(ranks)]
    for task, transfer in enumerate(schedule.transfers):
        sent_ns, arrived_ns = (times[task] * 1e9 for times in (outcome.sent_s, outcome.arrived_s))  # not rounded
        told[placement[begins[transfer.flow]]].sent[task] = sent_ns, transfer.amount * slot_bytes
        told[placement[ends[transfer.flow]]].arrived[task] = arrived_ns
    return told


@pytest.mark.parametrize("grain", ["logical", "physical"])
@pytest.mark.parametrize("kind", ["allreduce", "allgather", "alltoall"])
def test_a_script_learns_from_its_messages_as_the_testbed_from_its_own(kind, grain):
    """The oracle are the choices of the same policy for the testbed's collectives, under changing conditions in the
    model. The script's messages take the times that they take there."""
    (config,) = scenario_of(ENDS.format(kind=kind, grain=grain)).configurations()
    conditions = conditions_of(config)
    world, noted, number = FluidWorld(config, "ends", conditions), Noted(conditions.drawn), 0
    believed = conditions.noting(noted)
    now = Surroundings(
        believed_bps=lambda: believed.known_bps(0, ()),
        true_bps=lambda: conditions.shared_bps(number, 1)[0],
        dead=lambda: NO_CABLES,
        mean_bps=conditions.drawn.mean_bps,
        delays_s=conditions.delays_s,
        learn=noted.note,
        shared_delays_s=conditions.shared_delays_s,
    )
    spec = CollectiveSpec(pieces=1)
    ours = Group(conditions.fabric, now, mode=config.mode("ends"), spec=spec, gpus=range(6))
    chosen = set()
    for outcome in play(world, world.player, range(12)):
        number = outcome.number
        planned = ours.plan(Request(kind, 24_000_000, 4, 0))
        schedule, placement = planned.workload.schedule, planned.placement
        assert placement == tuple(outcome.placement.tolist())
        begins, ends = schedule.ends
        of_flow = zip(begins, ends, outcome.path.tolist(), strict=True)
        assert planned.crossings == {(placement[a], placement[b]): path for a, b, path in of_flow if path >= 0}
        chosen.add((placement, *planned.crossings.items()))
        ours.observed(planned, told_by(6, schedule, placement, planned.workload.slot_bytes, outcome))
    # In the physical grain a GPU's own port, on all of its paths, is believed to be as slow as the slowest link.
    assert len(chosen) > 3 or (grain, kind) in {("physical", "allreduce"), ("physical", "allgather")}


def learning(seen, dead=lambda: NO_CABLES, mode="wan"):
    """Return a group over the GPUs 0, 1, 4 and 5 that appends what it learns to `seen`."""
    rates_bps, delays_s = drawn(FABRIC, 1)
    now = {**vars(surroundings(FABRIC, rates_bps, delays_s)), "dead": dead}
    now = Surroundings(**{**now, "learn": seen.append, "shared_delays_s": delays_s})
    return Group(FABRIC, now, mode=MODES[mode], spec=CollectiveSpec(pieces=1), gpus=(0, 1, 4, 5))


def at_rate(planned, rate_bps, only=None):
    """Return what ranks tell of messages that were each alone on links of this rate, a second apart, or of some."""
    begins, ends = planned.workload.schedule.ends
    told = [RankMessages({}, {}) for _ in planned.placement]
    _, delays_s = drawn(FABRIC, 1)
    for task, transfer in enumerate(planned.workload.schedule.transfers):
        if only is not None and task not in only:
            continue
        src, dst = planned.placement[begins[transfer.flow]], planned.placement[ends[transfer.flow]]
        size, pair = transfer.amount * planned.workload.slot_bytes, tuple([0, 1, 4, 5][rank] for rank in (src, dst))
        hops = FABRIC.edge_links(*pair, planned.crossings.get(pair, -1))
        told[src].sent[task] = task * 10**9, size
        told[dst].arrived[task] = round(task * 1e9 + 8e9 * size / rate_bps + 1e9 * sum(delays_s[[*hops]]))
    return told


def test_messages_of_less_than_a_packet_show_nothing_and_larger_ones_their_rate():
    for size, shows in ((4, False), (4 * 9_008, False), (4 * 100_000, True)):
        seen = []
        ours = learning(seen)
        planned = ours.plan(Request("allreduce", size, 1, 0))
        ours.observed(planned, at_rate(planned, 2e9))
        (rates_bps,) = seen
        known = rates_bps[~np.isnan(rates_bps)]
        assert (known.size > 0) == shows
        assert known == pytest.approx(np.full(known.size, 2e9), rel=1e-4)


def test_nothing_is_learnt_once_a_cable_has_failed_and_a_message_that_nobody_tells_is_named():
    seen, dead = [], {"cables": NO_CABLES}
    ours = learning(seen, dead=lambda: dead["cables"])
    planned = ours.plan(Request("allreduce", 4_000_000, 4, 0))
    with pytest.raises(CollectiveRefusedError, match="1 messages were sent and 1 have arrived; allowed: 24 each"):
        ours.observed(planned, at_rate(planned, 2e9, only=[3]))
    dead["cables"] = frozenset({("s0b0", "s1b0")})
    ours.observed(planned, at_rate(planned, 2e9))
    assert seen == []


# --- the socket -------------------------------------------------------------------------------------------------------


class Paths:
    """Records the paths that are asked for; they are in force once a test says so."""

    def __init__(self):
        self.asked, self.futures = [], []

    def direct(self, paths):
        self.asked.append(dict(paths))
        self.futures.append(Future())
        return self.futures[-1]


class Served:
    """A server for ranks 0 to n - 1 on GPUs 0, 4, 1, ..., and a client of each."""

    def __init__(self, folder, ranks, mode, new_group=None):
        self.selector, self.paths, self.ended, self.folder = selectors.SelectSelector(), Paths(), [], folder
        gpus = [0, 4, 1, 5, 2][:ranks]
        listeners, self.clients = {}, []
        for rank in range(ranks):
            listeners[rank] = socket.socket(socket.AF_UNIX)
            listeners[rank].bind(str(folder / str(rank)))
            listeners[rank].listen()
        self.server = CollectiveServer(
            listeners,
            self.selector,
            paths=self.paths,
            new_group=new_group or (lambda ranks: group([gpus[rank] for rank in ranks], mode=mode)),
            record=self.ended.append,
        )
        for rank in range(ranks):
            self.clients.append(socket.socket(socket.AF_UNIX))
            self.clients[rank].connect(str(folder / str(rank)))

    def say(self, rank, **message):
        self.clients[rank].sendall(json.dumps(message).encode() + b"\n")
        return self.answers(rank)

    def answers(self, rank):
        """Let the server work, and return what it has said to a rank."""
        while events := self.selector.select(0.05):
            for key, _ in events:
                key.data()
        self.clients[rank].setblocking(False)
        try:
            data = self.clients[rank].recv(1 << 20)
        except BlockingIOError:
            return []
        finally:
            self.clients[rank].setblocking(True)
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def served(tmp_path: Path):
    made = []

    def make(ranks=2, mode="base", new_group=None):
        made.append(Served(tmp_path, ranks, mode, new_group))
        return made[-1]

    yield make
    for one in made:
        one.server.close()
        for client in one.clients:
            client.close()
        assert not one.selector.get_map()


ASK = {"ask": "plan", "group": "w", "number": 0, "kind": "allreduce", "bytes": 4096, "unit": 4, "root": 0}


def test_a_plan_is_sent_to_a_rank_once_and_the_end_on_all_ranks_is_recorded(served):
    run = served()
    for rank in range(2):
        assert run.say(rank, ask="group", group="w", made="a", ranks=[0, 1]) == [{"group": "w", "connect": True}]
        assert not run.server.runs()
        (answer,) = run.say(rank, **ASK)
        assert (run.server.runs(), answer["plan"]) == (rank == 1, 0)
        assert answer["content"]["placement"] == [0, 1]
    assert run.say(1, **{**ASK, "number": 1}) == [{"plan": 0, "content": None}]
    assert run.say(0, tell="ended", group="w", number=0, asked_ns=1, begun_ns=5, ended_ns=30) == []
    assert run.ended == []
    assert run.say(1, tell="ended", group="w", number=0, asked_ns=2, begun_ns=9, ended_ns=20) == []
    (ended,) = run.ended
    assert (ended["asked_ns"], ended["begun_ns"], ended["ended_ns"]) == ([1, 2], [5, 9], 30)
    assert (ended["kind"], ended["size_bytes"], ended["ranks"]) == ("allreduce", 4096, (0, 1))
    assert run.paths.asked == []  # base leaves paths alone
    assert run.server.unfinished() == 1


def end_with_messages(run, number, planned):
    """Have all four ranks tell the end of a collective and of its messages."""
    for rank, told in enumerate(at_rate(planned, 2e9)):
        sent = [[task, at_ns, size] for task, (at_ns, size) in told.sent.items()]
        arrived = [[task, at_ns] for task, at_ns in told.arrived.items()]
        times = {"asked_ns": 1, "begun_ns": 5, "ended_ns": 30, "sent": sent, "arrived": arrived}
        assert run.say(rank, tell="ended", group="w", number=number, **times) == []


def test_ranks_are_asked_for_the_times_of_messages_unless_another_collective_has_moved_them(served):
    seen, groups = [], []

    def new_group(ranks):
        groups.append(learning(seen))
        return groups[-1]

    run = served(ranks=4, new_group=new_group)
    asked = {**ASK, "bytes": 4_000_000}
    for rank in range(4):
        for name in ("w", "v"):
            run.say(rank, ask="group", group=name, made="a", ranks=[0, 1, 2, 3])
        assert run.say(rank, **asked) == []
    run.paths.futures[0].set_result(1)
    assert [answer["messages"] for rank in range(4) for answer in run.answers(rank)] == [True] * 4
    planned = learning([]).plan(Request("allreduce", 4_000_000, 4, 0))
    end_with_messages(run, 0, planned)
    assert len(seen) == 1 and not np.isnan(seen[0]).all()

    # While collective 1 is under way, one of the other group has its pairs' paths changed.
    for rank in range(4):
        run.say(rank, **{**asked, "number": 1})
    other = groups[1].now.believed_bps()
    other[[link for path in planned.crossings.values() for link in FABRIC.paths[path].links]] /= 100
    run.say(0, **{**asked, "group": "v"})
    assert run.paths.asked[-1] != run.paths.asked[-2]
    end_with_messages(run, 1, planned)
    assert len(run.ended) == 2 and len(seen) == 1


def test_a_second_process_of_a_rank_gets_the_content_of_plans_again(served):
    run = served()
    for number in range(2):
        run.say(0, ask="group", group="w", made=str(number), ranks=[0, 1])
        (answer,) = run.say(0, **{**ASK, "number": number})
        assert answer["content"] is not None


def test_ranks_that_start_again_after_one_had_failed_early_are_one_group(served):
    """Rank 1 ended before it announced the group; a launcher then starts both again."""
    run = served()
    run.say(0, ask="group", group="w", made="a", ranks=[0, 1])
    assert run.say(0, **ASK)[0]["plan"] == 0
    run.clients[0].close()
    assert run.answers(1) == []
    assert run.server.unfinished() == 1
    run.clients[0] = socket.socket(socket.AF_UNIX)
    run.clients[0].connect(str(run.folder / "0"))
    for rank in range(2):
        run.say(rank, ask="group", group="w", made="b", ranks=[0, 1])
        run.say(rank, **ASK)
        run.say(rank, tell="ended", group="w", number=0, asked_ns=1, begun_ns=5, ended_ns=30)
    assert len(run.ended) == 1
    assert run.server.unfinished() == 1


def test_plans_of_ever_new_sizes_are_forgotten_in_the_order_of_their_last_use(served):
    run, had = served(), {}
    run.say(0, ask="group", group="w", made="a", ranks=[0, 1])
    for number in range(700):
        size = 4096 if number % 100 == 0 else 4096 + 8 * number
        (answer,) = run.say(0, **{**ASK, "number": number, "bytes": size})
        run.say(0, tell="failed", group="w", number=number, why="")
        if answer["content"] is not None:
            had[answer["plan"]] = answer["content"]
        assert had[answer["plan"]]["slot_bytes"] * 2 == size
        had.pop(answer.get("forget"), None)
        assert len(had) <= 256
    assert len(had) == 256


def test_the_parts_of_an_alltoall_may_differ_and_the_size_of_another_collective_may_not(served):
    run = served()
    for rank in range(2):
        run.say(rank, ask="group", group="w", made="a", ranks=[0, 1])
    asked = {**ASK, "kind": "alltoall"}
    plans = [run.say(rank, **{**asked, "bytes": 800 + 800 * rank})[0]["plan"] for rank in range(2)]
    assert plans == [0, 0]
    run.say(0, **{**ASK, "number": 1})
    assert "another rank" in run.say(1, **{**ASK, "number": 1, "bytes": 800})[0]["error"]


def test_an_answer_waits_until_the_paths_are_in_force(served):
    run = served(mode="joint")
    for rank in range(2):
        run.say(rank, ask="group", group="w", made="a", ranks=[0, 1])
        assert run.say(rank, **ASK) == []
    assert [{*asked} for asked in run.paths.asked] == [{(0, 4), (4, 0)}]
    run.paths.futures[0].set_result(4)
    assert [answer["plan"] for rank in range(2) for answer in run.answers(rank)] == [0, 0]
    for rank in range(2):
        run.say(rank, tell="ended", group="w", number=0, asked_ns=0, begun_ns=1, ended_ns=2)
    assert run.ended[0]["messages"] == 4


def test_a_controller_that_fails_ends_the_collective_with_its_sentence(served):
    run = served(mode="joint")
    run.say(0, ask="group", group="w", made="a", ranks=[0, 1])
    assert run.say(0, **ASK) == []
    run.paths.futures[0].set_exception(OSError("the controller has ended"))
    assert run.answers(0) == [{"error": "allreduce of 4,096 bytes has no paths: the controller has ended"}]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            {**ASK, "bytes": 8192},
            "asks for allreduce of 8,192 bytes as its collective 0, and another rank for ",
        ),
        ({**ASK, "kind": "allsum"}, '"kind" is allsum; allowed: allgather, '),
        ({**ASK, "kind": []}, '"kind" is []; allowed: allgather, '),
        ({**ASK, "kind": None}, '"kind" is None; allowed: allgather, '),
        ({**ASK, "root": {}}, '"root" is {}; allowed: 0 to 1'),
        ({**ASK, "bytes": 0}, '"bytes" is 0; allowed: 1 to '),
        ({**ASK, "bytes": "1"}, '"bytes" is 1; allowed: 1 to '),
        ({**ASK, "root": 2}, '"root" is 2; allowed: 0 to 1'),
        ({**ASK, "number": -1}, '"number" is -1; allowed: 0 to '),
        ({**ASK, "group": "v"}, "the group v is not known"),
        ({**ASK, "group": 7}, '"group" is 7; allowed: a text'),
        ({"ask": "group", "group": "x", "ranks": [0, 9]}, "the ranks [0, 9]; allowed: a list of ranks from 0 to 1"),
        ({"ask": "group", "group": "x", "ranks": [0]}, "allowed: each once, and rank 1 among them"),
        ({"ask": "group", "group": "x", "ranks": [1, 1]}, "allowed: each once, and rank 1 among them"),
        ({"tell": "joke", "group": "w", "number": 0}, 'neither "ask" is'),
    ],
)
def test_a_wrong_message_is_answered_with_a_sentence_and_the_others_go_on(served, message, words):
    run = served()
    for rank in range(2):
        run.say(rank, ask="group", group="w", made="a", ranks=[0, 1])
    run.say(0, **ASK)
    (answer,) = run.say(1, **message)
    assert words in answer["error"]
    assert run.say(1, **ASK)[0]["plan"] == 0


def test_what_is_no_message_is_refused_and_an_endless_line_ends_the_connection(served):
    run = served()
    run.clients[0].sendall(b"\xff{]\n[1]\n")
    assert ["is not a JSON object" in answer["error"] for answer in run.answers(0)] == [True, True]
    run.clients[0].sendall(b"x" * 100_000)
    run.clients[1].setblocking(True)
    for _ in range(12):
        run.answers(1)
        try:
            run.clients[0].sendall(b"x" * 100_000)
        except (BrokenPipeError, ConnectionResetError):
            break
    else:
        pytest.fail("the connection was kept")
    assert run.say(1, ask="group", group="w", made="a", ranks=[0, 1]) == [{"group": "w", "connect": True}]


# --- in a run ---------------------------------------------------------------------------------------------------------

ASKS = """
import json, os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
run = socket.socket(socket.AF_UNIX)
run.connect(os.environ["LONGHAUL_COLLECTIVES"])
lines = run.makefile("rwb")
def say(**message):
    lines.write(json.dumps(message).encode() + b"\\n")
    lines.flush()
say(ask="group", group="all", made="a", ranks=[*range(size)])
lines.readline()
begin = time.monotonic_ns()
for number in range(12):
    time.sleep(max(0, begin + number * 20_000_000 - time.monotonic_ns()) / 1e9)
    asked = time.monotonic_ns()
    say(ask="plan", group="all", number=number, kind="allgather", bytes=32_000_000, unit=4, root=0)
    answer = json.loads(lines.readline())
    assert answer["plan"] in range(12), answer
    say(tell="ended", group="all", number=number, asked_ns=asked, begun_ns=time.monotonic_ns(),
        ended_ns=time.monotonic_ns())
time.sleep(0.001)
"""


def test_ranks_wait_for_new_paths_as_long_as_the_controllers_messages_take(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    sets = ('conditions.every="20 ms"', 'control.delay="3 ms"', "fabric.gpus=4")
    options = [word for one in sets for word in ("--set", one)]
    command = f"{sys.executable} asks.py"
    ended("paper", "--modes", "wan", *options, "--out", "run", "--exec", command, cwd=tmp_path)
    with (tmp_path / "run" / "collectives.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [int(row["number"]) for row in found] == [*range(12)]
    waits_ms = [(float(row["begun_s"]) - float(row["first_asked_s"])) * 1e3 for row in found]
    changed = [before["paths"] != row["paths"] for before, row in pairwise(found)]
    assert 3 <= sum(changed) < 11
    for is_new, row, wait_ms in zip(changed, found[1:], waits_ms[1:], strict=True):
        assert (int(row["openflow_messages"]) > 0) == is_new
        # Each stage of messages goes to a switch and is confirmed: a round trip of 6 ms.
        assert 6 <= wait_ms < 40 if is_new else wait_ms < 0.001


@pytest.mark.parametrize("counted", ["true", "false"])
def test_a_run_takes_longer_by_what_its_changes_of_paths_take(tmp_path: Path, counted: str) -> None:
    """Each rank pauses for 20 ms after each plan. The oracle is the same run with a controller beside the switches."""
    paced = ASKS.replace("begin + number * 20_000_000 - time.monotonic_ns()", "20_000_000")
    assert paced != ASKS
    (tmp_path / "asks.py").write_text(paced)
    sets = (f"control.counted={counted}", "fabric.gpus=4", 'conditions.every="20 ms"')

    def run(name: str, *more: str) -> tuple[float, int]:
        options = [word for one in (*sets, *more) for word in ("--set", one)]
        command = (*options, "--out", name, "--exec", f"{sys.executable} asks.py")
        ended("paper", "--modes", "wan", *command, cwd=tmp_path)
        with (tmp_path / name / "collectives.csv").open() as file:
            rows = list(csv.DictReader(file))
        return float(rows[-1]["ended_s"]), sum(int(row["openflow_messages"]) > 0 for row in rows)

    at_once_s, _ = run("beside")
    later_s, changes = run("far", 'control.delay="3 ms"')
    assert 3 <= changes < 12
    assert later_s - at_once_s == pytest.approx(changes * 6e-3, abs=2e-4)


# --- what was found by attacking it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("routing", ["ecmp", "spray"])
def test_groups_of_some_sites_are_planned_where_the_fabric_spreads_flows(routing):
    fabric = build_fabric(FabricSpec(gpus_per_site=(2, 2, 2), routing=routing))
    for gpus in ([2, 3, 4, 5], [0, 1, 4, 5], [5, 0]):
        ours = group(gpus, mode="ccl", fabric=fabric, pieces=1)
        for kind in ("allreduce", "broadcast", "alltoall"):
            planned = ours.plan(Request(kind, 1_000_000, 4, len(gpus) - 1))
            assert sorted(planned.placement) == [*range(len(gpus))]
            sites = [{fabric.gpus[gpu].site for gpu in pair} for pair in planned.crossings]
            ends = [{fabric.paths[path].src_site, fabric.paths[path].dst_site} for path in planned.crossings.values()]
            assert ends == sites


def test_a_collective_that_fails_on_a_rank_fails_on_those_that_wait_for_its_paths(served):
    run = served(mode="joint")
    for rank in range(2):
        run.say(rank, ask="group", group="w", made="a", ranks=[0, 1])
        assert run.say(rank, **ASK) == []
    run.say(0, tell="failed", group="w", number=0, kind="allreduce", why="a timeout")
    assert run.answers(1) == [{"error": "the collective has failed on rank 0: a timeout"}]
    run.paths.futures[0].set_result(1)
    assert run.answers(1) == []
    assert run.server.unfinished() == 0


@pytest.mark.parametrize("mode", [*MODES])
def test_a_collective_waits_on_what_is_in_force_while_its_sites_are_cut_off(mode):
    rates_bps, delays_s = drawn(FABRIC, 1)
    cut_bps = rates_bps.copy()
    cut_bps[[link.index for link in FABRIC.links if link.kind == "wan"]] = 0.0
    now = {"bps": cut_bps, "dead": frozenset({("s0b0", "s1b0")})}
    ours = Group(
        FABRIC,
        Surroundings(
            believed_bps=lambda: now["bps"],
            true_bps=lambda: now["bps"],
            dead=lambda: now["dead"],
            mean_bps=rates_bps,
            delays_s=delays_s,
        ),
        mode=MODES[mode],
        spec=CollectiveSpec(pieces=1),
        gpus=range(8),
    )
    request = Request("allreduce", 1_000_000, 4, 0)
    first = ours.plan(request)
    assert (first.placement, first.is_directed, first.predicted_s) == ((0, 1, 2, 3, 4, 5, 6, 7), False, None)
    now |= {"bps": rates_bps, "dead": NO_CABLES}
    back = ours.plan(request)
    assert back.predicted_s > 0
    assert back.is_directed == MODES[mode].reroutes
    now |= {"bps": cut_bps, "dead": frozenset({("s0b0", "s1b0")})}
    assert ours.plan(request).placement == back.placement
