"""Flow rules: where they lead, and that nothing is lost while they change, message by message."""

import random
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller import rules
from controller.flows import Install, Message, Stage
from controller.ways import Ways
from tests.flowtables import FakeNetwork, Packet
from topologies.errors import FabricError
from topologies.fabric import Fabric, FabricSpec, build_fabric
from topologies.wan import WanSpec


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """Small fabrics of every kind: mesh of two or three sites, five-router, and any WAN that is allowed."""
    kind = draw(st.sampled_from(["mesh", "five-router", "any", "any"]))
    sites = 2 if kind == "five-router" else draw(st.integers(2, 3))

    def counts(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(sites))

    gpus, leaves, spines, routers = counts(2, 4), counts(1, 3), counts(1, 3), counts(1, 2)
    wan = WanSpec(preset=kind) if kind != "any" else draw(wans(routers))
    spec = FabricSpec(gpus_per_site=gpus, leaves=leaves, spines=spines, border_routers=routers, wan=wan)
    try:
        return build_fabric(spec)
    except FabricError:  # a WAN in pieces, or one no ring can go round: join every border router to one more router
        ends = [f"s{site}b{index}" for site, count in enumerate(routers) for index in range(count)]
        links = {*wan.links, *((end, "Z") for end in ends), *((name, "Z") for name in wan.routers)}
        wan = WanSpec(preset=None, routers=(*wan.routers, "Z"), links=tuple(sorted(links)))
        return build_fabric(
            FabricSpec(gpus_per_site=gpus, leaves=leaves, spines=spines, border_routers=routers, wan=wan)
        )


@st.composite
def wans(draw: st.DrawFn, border_routers: tuple[int, ...]) -> WanSpec:
    routers = tuple(f"T{index}" for index in range(draw(st.integers(1, 4))))
    ends = [*(f"s{site}b{index}" for site, count in enumerate(border_routers) for index in range(count)), *routers]
    possible = [(a, b) for place, a in enumerate(ends) for b in ends[place + 1 :]]
    links = tuple(link for link in possible if draw(st.booleans()))
    return WanSpec(preset=None, routers=routers, links=links)


def crossing_pairs(fabric: Fabric) -> list[tuple[int, int]]:
    gpus = fabric.gpus
    return [(a.rank, b.rank) for a, b in permutations(gpus, 2) if fabric.paths_between.get((a.site, b.site))]


@st.composite
def choices(draw: st.DrawFn, fabric: Fabric) -> dict[tuple[int, int], int]:
    """A path for each of a few pairs of GPUs."""
    some = draw(st.lists(st.sampled_from(crossing_pairs(fabric)), max_size=4, unique=True))
    sites = fabric.gpu_sites
    return {(src, dst): draw(st.sampled_from(fabric.paths_between[sites[src], sites[dst]])).index for src, dst in some}


def wan_of(fabric: Fabric, passed: tuple[str, ...]) -> str:
    """The WAN part of a walk, named as the fabric names its paths."""
    kinds = {switch.name: switch.kind for switch in fabric.switches}
    return ">".join(name for name in passed if kinds[name] in ("border", "transit"))


def with_standing_rules(ways: Ways) -> FakeNetwork:
    network = FakeNetwork(ways.fabric)
    for switch in ways.fabric.switches:
        for rule in rules.standing(ways, switch.name):
            network.apply(Install(switch=switch.name, rule=rule))
    return network


def any_order(stage: Stage, chance: random.Random) -> list[Message]:
    """The stage's messages as they may take effect: in order at one switch, in any order between switches."""
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


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fabrics())
def test_standing_rules_lead_every_pair_over_the_fixed_path_alone(fabric: Fabric) -> None:
    network = with_standing_rules(Ways(fabric))
    for a, b in permutations(fabric.gpus, 2):
        if a.site == b.site:
            assert len(network.walk(network.sent(a.rank, b.rank))) == (1 if a.leaf == b.leaf else 3)
        elif fabric.paths_between[a.site, b.site]:
            passed = network.walk(network.sent(a.rank, b.rank))
            assert wan_of(fabric, passed) == fabric.paths_between[a.site, b.site][0].name
            assert len(set(passed)) == len(passed)


def test_cross_leaf_pairs_are_spread_over_the_spines() -> None:
    fabric = build_fabric(FabricSpec(gpus_per_site=(8, 8), leaves=2, spines=4))
    network = with_standing_rules(Ways(fabric))
    used = Counter(
        network.walk(network.sent(a.rank, b.rank))[1]
        for a, b in permutations(fabric.gpus, 2)
        if a.site == b.site and a.leaf != b.leaf
    )
    assert len(used) == 8 and set(used.values()) == {8}


def test_a_pair_whose_sites_are_not_joined_is_dropped_and_no_other() -> None:
    links = (("s0b0", "s1b0"), ("s1b0", "s2b0"), ("s2b0", "s3b0"), ("s3b0", "s0b0"))
    spec = FabricSpec(gpus_per_site=(2, 2, 2, 2), border_routers=1, wan=WanSpec(preset=None, links=links))
    network = with_standing_rules(Ways(build_fabric(spec)))
    assert network.walk(network.sent(0, 2))
    with pytest.raises(AssertionError, match="a black hole: no rule at s0l0"):
        network.walk(network.sent(0, 4))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_after_every_single_message_every_packet_takes_the_old_way_or_the_new(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    ways = Ways(fabric)
    network = with_standing_rules(ways)
    pairs, sites = crossing_pairs(fabric), fabric.gpu_sites
    fixed = {(src, dst): fabric.paths_between[sites[src], sites[dst]][0].index for src, dst in pairs}
    routes: tuple[rules.Route, ...] = ()
    old: dict[tuple[int, int], int] = {}
    on_the_way: list[Packet] = []
    for generation in range(1, data.draw(st.integers(2, 4))):
        new = data.draw(choices(fabric))
        change = rules.change(ways, routes, new, generation=generation)
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
        routes, old = change.routes, new
        for src, dst in pairs:
            took = wan_of(fabric, network.walk(network.sent(src, dst)))
            assert took == fabric.paths[new.get((src, dst), fixed[src, dst])].name
        # Nothing but the standing rules and one rule a switch for each route is left.
        left = sum(len(table) for table in network.tables.values())
        should = sum(len(rules.standing(ways, switch.name)) for switch in fabric.switches)
        off_fixed = [(pair, path) for pair, path in new.items() if path != fixed[pair]]
        assert left == should + sum(len(fabric.paths[path].links) + 5 for _, path in off_fixed)
    for packet in on_the_way:
        network.walk(packet)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_packet_overtaken_by_any_changes_still_arrives(data: st.DataObject) -> None:
    """Packets wait anywhere on their way while whole generations come and go under them."""
    fabric = data.draw(fabrics())
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    ways = Ways(fabric)
    network = with_standing_rules(ways)
    routes: tuple[rules.Route, ...] = ()
    packets: list[Packet] = []
    for generation in range(1, 5):
        change = rules.change(ways, routes, data.draw(choices(fabric)), generation=generation)
        for stage in change.stages:
            for message in any_order(stage, chance):
                network.apply(message)
                for route in (*routes, *change.routes):
                    packets.append(network.sent(route.src, route.dst))
                moved = [network.step(p) if chance.random() < 0.2 else p for p in packets]
                packets = [packet for packet in moved if not network.arrived(packet)]
        routes = change.routes
    longest = 2 * len(fabric.switches)
    for packet in packets:
        assert len(network.walk(packet)) <= longest


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_greeting_makes_any_switch_whole_and_loses_nothing_meanwhile(data: st.DataObject) -> None:
    """Switches that come back with an earlier controller's routes, in any order, end with exactly what they should."""
    fabric = data.draw(fabrics())
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    ways = Ways(fabric)
    network = with_standing_rules(ways)
    earlier = rules.change(ways, (), data.draw(choices(fabric)), generation=7)
    current = rules.change(ways, (), data.draw(choices(fabric)), generation=1)
    for message in (m for stage in earlier.stages for m in stage):
        network.apply(message)
    switches, pairs = [switch.name for switch in fabric.switches], crossing_pairs(fabric)
    chance.shuffle(switches)
    for routes in ((), current.routes):  # the controller starts; later, connections are lost and come back
        for name in switches:
            for stage in rules.greeting(ways, name, routes):
                for message in stage:
                    network.apply(message)
                    routed = [(route.src, route.dst) for route in (*earlier.routes, *current.routes)]
                    for src, dst in (*routed, chance.choice(pairs)):
                        network.walk(network.sent(src, dst))
    expected = with_standing_rules(ways)
    for message in (m for stage in current.stages for m in stage):
        expected.apply(message)
    for name, table in network.tables.items():
        assert set(table) == set(expected.tables[name])
