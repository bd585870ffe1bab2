"""Flow rules: which paths packets take, and that none is lost after any message of a change."""

import random
from collections import Counter
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.forwarding import rules
from controller.forwarding.flow_mods import Message, Stage
from controller.routing.switch_paths import FabricPaths, return_paths
from tests.fakes.flowtables import Packet, crossing_pairs, fabrics, wan_of, with_default_rules
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.failures import cable
from topologies.fabric.wan import WanSpec


@st.composite
def choices(draw: st.DrawFn, fabric: Fabric) -> dict[tuple[int, int], int]:
    """Draw a path for each of a few pairs of GPUs."""
    some = draw(st.lists(st.sampled_from(crossing_pairs(fabric)), max_size=4, unique=True))
    sites = fabric.gpu_sites
    return {(src, dst): draw(st.sampled_from(fabric.paths_between[sites[src], sites[dst]])).index for src, dst in some}


MESH = build_fabric(FabricSpec())


def any_order(stage: Stage, chance: random.Random) -> list[Message]:
    """Return a stage's messages in a possible order of effect: in order at each switch, in any across switches."""
    queues: dict[str, list[Message]] = {}
    for message in stage:
        queues.setdefault(message.switch, []).append(message)
    found = []
    while queues:
        switch = chance.choice(sorted(queues))
        found.append(queues[switch].pop(0))
        if not queues[switch]:
            del queues[switch]
    return found


def messages(change: rules.Change) -> list[Message]:
    return [message for stage in change.stages for message in stage]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fabrics())
def test_default_rules_route_every_pair_over_its_fixed_path(fabric: Fabric) -> None:
    network = with_default_rules(FabricPaths(fabric))
    for a, b in permutations(fabric.gpus, 2):
        if a.site == b.site:
            assert len(network.walk(network.sent(a.rank, b.rank))) == (1 if a.leaf == b.leaf else 3)
        elif fabric.paths_between[a.site, b.site]:
            passed = network.walk(network.sent(a.rank, b.rank))
            assert wan_of(fabric, passed) == fabric.paths_between[a.site, b.site][0].name
            assert len(set(passed)) == len(passed)


def test_pairs_on_different_leaves_are_spread_evenly_over_the_spines() -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(8, 8), leaves=2, spines=4))
    network = with_default_rules(FabricPaths(fabric))
    used = Counter(
        network.walk(network.sent(a.rank, b.rank))[1]
        for a, b in permutations(fabric.gpus, 2)
        if a.site == b.site and a.leaf != b.leaf
    )
    assert len(used) == 8 and set(used.values()) == {8}


def test_packets_between_sites_without_a_wan_path_are_dropped_and_others_arrive() -> None:
    links = (("s0b0", "s1b0"), ("s1b0", "s2b0"), ("s2b0", "s3b0"), ("s3b0", "s0b0"))
    spec = FabricSpec(gpus_per_site=(2, 2, 2, 2), border_routers=1, wan=WanSpec(preset=None, links=links))
    network = with_default_rules(FabricPaths(build_fabric(spec)))
    assert network.walk(network.sent(0, 2))
    with pytest.raises(AssertionError, match="a black hole: no rule at s0l0"):
        network.walk(network.sent(0, 4))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_after_every_message_of_an_update_packets_take_the_old_or_the_new_path(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    ways = FabricPaths(fabric)
    network = with_default_rules(ways)
    pairs, sites = crossing_pairs(fabric), fabric.gpu_sites
    fixed = {(src, dst): fabric.paths_between[sites[src], sites[dst]][0].index for src, dst in pairs}
    routes: tuple[rules.Route, ...] = ()
    tunnels: frozenset[int] = frozenset()
    old: dict[tuple[int, int], int] = {}
    on_the_way: list[Packet] = []
    for generation in range(1, data.draw(st.integers(2, 4))):
        new = data.draw(choices(fabric))
        change = rules.change(ways, routes, new, generation=generation, tunnels=tunnels)
        assert len(change.stages) <= (1 if change.tunnels == tunnels else 2)
        for stage in change.stages:
            for message in any_order(stage, chance):
                network.apply(message)
                for src, dst in pairs:
                    took = wan_of(fabric, network.walk(network.sent(src, dst)))
                    allowed = {fabric.paths[way.get((src, dst), fixed[src, dst])].name for way in (old, new)}
                    assert took in allowed, f"{src} to {dst} took {took}"
                on_the_way = [network.step(p) if chance.random() < 0.3 else p for p in on_the_way]
                on_the_way = [packet for packet in on_the_way if not network.arrived(packet)]
                on_the_way.append(network.sent(*chance.choice([*old, *new, pairs[0]])))
        routes, tunnels, old = change.routes, change.tunnels, new
        for src, dst in pairs:
            took = wan_of(fabric, network.walk(network.sent(src, dst)))
            assert took == fabric.paths[new.get((src, dst), fixed[src, dst])].name
        # Only the default rules, the tunnels, and one rule for each pair off its fixed path remain.
        left = sum(len(table) for table in network.tables.values())
        names = [switch.name for switch in fabric.switches]
        should = sum(len(rules.default_rules(ways, name)) for name in names)
        should += sum(len(rules.tunnel_rules(ways, name, path)) for name in names for path in tunnels)
        assert left == should + sum(path != fixed[pair] for pair, path in new.items())
    for packet in on_the_way:
        network.walk(packet)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_packet_in_flight_during_any_route_changes_still_arrives(data: st.DataObject) -> None:
    """Packets wait at any switch while whole generations of routes are installed and removed."""
    fabric = data.draw(fabrics())
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    ways = FabricPaths(fabric)
    network = with_default_rules(ways)
    routes: tuple[rules.Route, ...] = ()
    tunnels: frozenset[int] = frozenset()
    packets: list[Packet] = []
    for generation in range(1, 5):
        change = rules.change(ways, routes, data.draw(choices(fabric)), generation=generation, tunnels=tunnels)
        for stage in change.stages:
            for message in any_order(stage, chance):
                network.apply(message)
                for route in (*routes, *change.routes):
                    packets.append(network.sent(route.src, route.dst))
                moved = [network.step(p) if chance.random() < 0.2 else p for p in packets]
                packets = [packet for packet in moved if not network.arrived(packet)]
        routes, tunnels = change.routes, change.tunnels
    longest = 2 * len(fabric.switches)
    for packet in packets:
        assert len(network.walk(packet)) <= longest


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_connecting_switch_gets_exactly_its_rules_without_packet_loss_meanwhile(data: st.DataObject) -> None:
    """Switches that reconnect in any order with an earlier controller's routes end with exactly the current rules."""
    fabric = data.draw(fabrics())
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    ways = FabricPaths(fabric)
    tunnels = range(len(fabric.paths)) if data.draw(st.booleans()) else ()
    network = with_default_rules(ways, tunnels)
    earlier = rules.change(ways, (), data.draw(choices(fabric)), generation=7, tunnels=tunnels)
    current = rules.change(ways, (), data.draw(choices(fabric)), generation=1, tunnels=tunnels)
    network.apply(*messages(earlier))
    switches, pairs = [switch.name for switch in fabric.switches], crossing_pairs(fabric)
    chance.shuffle(switches)
    # The controller starts; later, connections are lost and come back.
    for routes, standing in (((), tunnels), (current.routes, current.tunnels)):
        for name in switches:
            for stage in rules.greeting(ways, name, routes, standing):
                for message in stage:
                    network.apply(message)
                    routed = [(route.src, route.dst) for route in (*earlier.routes, *current.routes)]
                    for src, dst in (*routed, chance.choice(pairs)):
                        network.walk(network.sent(src, dst))
    expected = with_default_rules(ways, earlier.tunnels | current.tunnels)  # the earlier controller's tunnels stay
    expected.apply(*messages(current))
    for name, table in network.tables.items():
        assert set(table) == set(expected.tables[name])


# --- Tunnels, fallbacks and acknowledgements -------------------------------------------------------------------------


def test_a_packet_that_left_its_tunnel_does_not_loop_back_into_it() -> None:
    """T has lost its tunnel rules and has default rules, which send the packet back to A, where the tunnel still is: if
    the packet kept its tag, it would loop for ever."""
    detour = (("A", "T"), ("T", "U"), ("U", "V"), ("V", "s1b1"))
    links = (("s0b0", "A"), ("s0b1", "A"), ("A", "s1b0"), *detour)
    fabric = build_fabric(FabricSpec(wan=WanSpec(preset=None, routers=("A", "T", "U", "V"), links=links)))
    ways = FabricPaths(fabric)
    network = with_default_rules(ways)
    (path,) = (path.index for path in fabric.paths if path.name == "s0b0>A>T>U>V>s1b1")
    network.apply(*messages(rules.change(ways, (), {(0, 4): path}, generation=1, tunnels=())))
    assert wan_of(fabric, network.walk(network.sent(0, 4))) == "s0b0>A>T>U>V>s1b1"
    network.tables["T"] = with_default_rules(ways).tables["T"]
    passed = network.walk(network.sent(0, 4))
    assert passed == ("s0l0", "s0p0", "s0b0", "A", "T", "A", "s1b0", "s1p0", "s1l0")


def test_fallback_next_hops_never_lead_into_a_border_router_of_the_source_site() -> None:
    links = (("s0b0", "A"), ("s0b1", "A"), ("A", "s1b0"), ("A", "s1b1"), ("s0b1", "T"))
    ways = FabricPaths(build_fabric(FabricSpec(wan=WanSpec(preset=None, routers=("A", "T"), links=links))))
    assert ways.fallback(0, 1) == {"s0b0": "A", "s0b1": "A", "A": "s1b0"}
    assert ways.fallback(1, 0) == {"s1b0": "A", "s1b1": "A", "A": "s0b0", "T": "s0b1"}


def test_a_route_change_is_one_message_per_pair_when_the_tunnels_exist() -> None:
    ways, tunnels = FabricPaths(MESH), frozenset(range(len(MESH.paths)))
    pairs = [pair for pair in crossing_pairs(MESH) if pair[0] < 4]
    routes: tuple[rules.Route, ...] = ()
    for generation, path in enumerate([1, 2, 3, 1, 0], 1):
        change = rules.change(ways, routes, dict.fromkeys(pairs, path), generation=generation, tunnels=tunnels)
        (stage,) = change.stages
        assert len(stage) == len(pairs) == 16
        assert {message.switch for message in stage} == {"s0l0", "s0l1"}
        routes = change.routes
    assert routes == ()  # path 0 is the default path


def test_every_pair_with_a_working_path_has_a_working_path_for_acknowledgements() -> None:
    """With s0l0-s0p0 and s0p1-s0b0 failed, only the GPUs of s0l1 can use the default path through s0b0."""
    cables = [cable(c.a, c.b) for c in MESH.cables if c.a.startswith("s0") or c.b.startswith("s0")]
    assert FabricPaths(MESH, frozenset({cable("s0l0", "s0p0"), cable("s0p1", "s0b0")})).first(0, 4).name == "s0b1>s1b0"
    for dead in combinations(cables, 2):
        ways = FabricPaths(MESH, frozenset(dead))
        there = {(src, dst): ways.first(src, dst) for src, dst in ((0, 4), (2, 7))}
        wanted = {pair: path.index for pair, path in there.items() if path is not None}
        network = with_default_rules(ways)
        network.apply(*messages(rules.change(ways, (), return_paths(ways, wanted) | wanted, generation=1, tunnels=())))
        for src, dst in wanted:
            for a, b in ((src, dst), (dst, src)):
                passed = (MESH.gpus[a].name, *network.walk(network.sent(a, b)), MESH.gpus[b].name)
                assert not {cable(*ends) for ends in pairwise(passed)} & ways.dead
