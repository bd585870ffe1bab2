"""ECMP and spraying: which routes flows take, and that flow rules put them there without losing a packet."""

import random
from collections import Counter
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.api.protocol import RouteRequest
from controller.forwarding import rules
from controller.forwarding.state import choose_flow_paths
from controller.routing.multipath import Multipath, hashed, multipath
from controller.routing.switch_paths import FabricPaths
from controller.routing.wan_path_choice import NoPathError
from scenarios.studies.permutation import ecmp, spray
from tests.controller.test_rules import any_order
from tests.fakes.flowtables import FakeNetwork, Packet, fabrics, failures, hops_of, usable, with_default_rules
from topologies.fabric.fabric import GRAINS, ROUTINGS, Fabric, FabricSpec, build_fabric
from topologies.fabric.failures import NO_CABLES, cable, cables_of, failed_links, reachable
from topologies.fabric.ports import Ports

Flow = tuple[int, int, int]  # two ranks and a channel

MESH = FabricSpec(gpus_per_site=(8, 8), leaves=2, spines=4)


def with_routing(spec: FabricSpec, routing: str, grain: str = "physical", seed: int = 1) -> tuple[Fabric, Multipath]:
    fabric = build_fabric(replace(spec, routing=routing, grain=grain, hash_seed=seed))
    found = multipath(fabric)
    assert found is not None
    return fabric, found


def route_request(fabric: Fabric, flows: "list[Flow]") -> RouteRequest:
    """Return a request for the routes of these flows; the source port of each is 20000 + its index."""
    number = len(fabric.links)
    return RouteRequest(
        crossings=(),
        rates_bps=(1e9,) * number,
        delays_s=(0.0,) * number,
        chunk_bytes=1,
        best=False,
        flows=tuple((*flow, 20000 + place) for place, flow in enumerate(flows)),
        asks=((0, np.inf),) * len(flows),
        kept=(0.0,),
    )


def walked(network: FakeNetwork, packet: Packet) -> "list[str]":
    """Return the ports that a packet passes, starting at its GPU."""
    passed = network.walk(packet)
    gpu = {gpu.ip: gpu.name for gpu in network.fabric.gpus}
    nodes = [gpu[packet.src], *passed, gpu[packet.dst]]
    return [f"{a}>{b}" for a, b in hops_of(nodes)]


def test_single_path_routing_has_no_multipath_plan() -> None:
    assert multipath(build_fabric(FabricSpec())) is None


@pytest.mark.parametrize(("grain", "ways"), [("logical", 4), ("physical", 16)])
def test_the_sprayed_pieces_of_a_message_use_every_route_exactly_once(grain: str, ways: int) -> None:
    fabric, found = with_routing(MESH, "spray", grain)
    assert (found.pieces(0, 1), found.width) == (ways, ways)
    assert found.pieces(0, 0) == (4 if grain == "physical" else 1)
    src, dst, channel = np.full(ways, 1), np.full(ways, 9), np.arange(ways) + 3 * ways
    path = found.paths(src, dst, channel)
    spine = found.spines(src, dst, path, channel)
    taken = Counter((*ends,) for ends in zip(path.tolist(), *spine.T.tolist(), strict=True))
    paths = [one.index for one in fabric.paths_between[0, 1]]
    spines = [(one, one) for one in (range(4) if grain == "physical" else (-1,))]
    assert taken == Counter((path, *pair) for path, pair in product(paths, spines))


def test_the_ecmp_hash_spreads_flows_evenly_and_depends_on_seed_and_channel() -> None:
    _, found = with_routing(MESH, "ecmp")
    ends = [pair for pair in permutations(range(16), 2) if (pair[0] < 8) != (pair[1] < 8)]
    src, dst = np.repeat(np.array(ends), 64, axis=0).T
    channel = np.tile(np.arange(64), len(ends))
    path = found.paths(src, dst, channel)
    spine = found.spines(src, dst, path, channel)
    counts = np.array([*Counter(zip(path % 4, *spine.T, strict=True)).values()])
    expected = len(src) / 64
    assert len(counts) == 64 and ((counts - expected) ** 2 / expected).sum() < 110  # 63 degrees: 1 in 4,000
    for other in (found.paths(src, dst, channel + 1), with_routing(MESH, "ecmp", seed=2)[1].paths(src, dst, channel)):
        assert (path == other).mean() == pytest.approx(1 / 4, abs=0.02)


def test_multipath_routes_match_those_of_the_permutation_study() -> None:
    fabric, found = with_routing(MESH, "ecmp", seed=77)
    src = np.arange(16)
    dst = np.random.default_rng(3).permutation(16)
    src, dst = src[src != dst], dst[src != dst]
    ways = ecmp(fabric, 4, src, dst, seed=77)
    path = found.paths(src, dst, 0)
    climbs = np.array([fabric.gpus[a].leaf != fabric.gpus[b].leaf for a, b in zip(src, dst, strict=True)])
    assert path.tolist() == ways.path.tolist()
    assert found.spines(src, dst, path, 0)[climbs].tolist() == ways.spine[climbs].tolist()
    fabric, found = with_routing(MESH, "spray")
    pieces = spray(fabric, 4, np.array([2]), np.array([12]))
    path = found.paths(np.full(16, 2), np.full(16, 12), np.arange(16))
    assert path.tolist() == pieces.path.tolist()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_flows_use_only_working_routes_and_the_flow_rules_follow_the_planned_ports(data: st.DataObject) -> None:
    """Packets pass the planned ports under any failures; the fixed spines and paths would be different ones."""
    spec = data.draw(fabrics()).spec
    routing, grain = data.draw(st.sampled_from(ROUTINGS[1:])), data.draw(st.sampled_from(GRAINS))
    if grain == "physical" and (rails := data.draw(st.sampled_from([None, 2, 4]))) is not None:
        spec, routing = replace(spec, leaves=2, spines=2, rails=rails), data.draw(st.sampled_from(ROUTINGS))
    fabric, found = with_routing(spec, routing, grain)
    dead = data.draw(failures(fabric))
    pairs = list(permutations(range(len(fabric.gpus)), 2))
    sites = fabric.gpu_sites
    reach = reachable(fabric, dead)
    inside = fabric.spec.grain == "physical"
    flows = [
        (*pair, channel)
        for pair in pairs
        for channel in range(3)
        if reach[pair] and (sites[pair[0]] != sites[pair[1]] or inside)
    ]
    ways = choose_flow_paths(fabric, route_request(fabric, flows), dead)[0]
    now = FabricPaths(fabric, dead)
    network = with_default_rules(now)
    change = rules.change(now, (), {}, generation=1, tunnels=(), of_flows=ways)
    network.apply(*(message for stage in change.stages for message in stage))
    names = [port.name for port in Ports(fabric, dead).all]
    for (src, dst, port), (_, _, channel) in zip(ways, flows, strict=True):
        way = ways[src, dst, port]
        if sites[src] != sites[dst]:
            assert usable(fabric, dead, fabric.paths[way.path], src, dst)
        ends = np.array(src), np.array(dst)
        path = np.array(way.path) if found.engineers else found.paths(*ends, channel, failed_links(fabric, dead))
        spine = found.spines(*ends, path, channel, dead)
        planned = [names[one] for one in Ports(fabric, dead).of(*ends, path, spine) if one >= 0]
        took = walked(network, network.sent(src, dst, port))
        assert took == planned
        assert not {cable(*hop.split(">")) for hop in took} & dead
        if inside:
            assert planned == [names[one] for one in found.links(*ends, path, channel, dead) if one >= 0]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_while_flow_routes_change_every_packet_takes_the_old_or_the_new_route(data: st.DataObject) -> None:
    spec = data.draw(fabrics()).spec
    fabric, _ = with_routing(spec, "spray")
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    ways = FabricPaths(fabric)
    network = with_default_rules(ways)
    reach = reachable(fabric, NO_CABLES)
    pairs = [pair for pair in permutations(range(len(fabric.gpus)), 2) if reach[pair]]
    some = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=3, unique=True))
    routes: tuple[rules.Route, ...] = ()
    tunnels: frozenset[int] = frozenset()
    on_the_way: list[Packet] = []
    old = {pair: walked(network, network.sent(*pair, 20000)) for pair in some}
    for generation in (1, 2, 3):
        channel = data.draw(st.integers(0, 15))
        request = replace(route_request(fabric, []), flows=tuple((*pair, channel, 20000) for pair in some))
        wanted = choose_flow_paths(fabric, request, NO_CABLES)[0]
        change = rules.change(ways, routes, {}, generation=generation, tunnels=tunnels, of_flows=wanted)
        after = with_default_rules(ways)
        alone = rules.change(ways, (), {}, generation=1, tunnels=(), of_flows=wanted)
        after.apply(*(message for stage in alone.stages for message in stage))
        new = {pair: walked(after, after.sent(*pair, 20000)) for pair in some}
        for stage in change.stages:
            for message in any_order(stage, chance):
                network.apply(message)
                for pair in some:
                    assert walked(network, network.sent(*pair, 20000)) in (old[pair], new[pair])
                on_the_way = [network.step(p) if chance.random() < 0.3 else p for p in on_the_way]
                on_the_way = [packet for packet in on_the_way if not network.arrived(packet)]
                on_the_way.append(network.sent(*chance.choice(some), 20000))
        routes, tunnels, old = change.routes, change.tunnels, new
    for packet in on_the_way:
        network.walk(packet)
    gone = rules.change(ways, routes, {}, generation=4, tunnels=tunnels)
    network.apply(*(message for stage in gone.stages for message in stage))
    assert gone.routes == ()
    fixed = with_default_rules(ways)
    for pair in some:
        assert walked(network, network.sent(*pair, 20000)) == walked(fixed, fixed.sent(*pair, 20000))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_packet_is_lost_while_connections_are_spread_otherwise(data: st.DataObject) -> None:
    """Those of other pairs, over another number of channels, and at last of none; every packet arrives at any time, and
    those sent after a change take the path of their channel."""
    spec = data.draw(fabrics()).spec
    fabric, found = with_routing(spec, data.draw(st.sampled_from(["ecmp", "spray"])))
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    ways = FabricPaths(fabric)
    network = with_default_rules(ways)
    pairs = [pair for pair in permutations(range(len(fabric.gpus)), 2) if reachable(fabric, NO_CABLES)[pair]]
    sent = [(*data.draw(st.sampled_from(pairs)), chance.randrange(1024, 65536)) for _ in range(6)]
    routes: tuple[rules.Route, ...] = ()
    tunnels: frozenset[int] = frozenset()
    for generation in range(1, 5):
        some = [one[:2] for one in sent if generation < 4 and chance.random() < 0.7]
        channels = data.draw(st.sampled_from([1, 2, 5, 8]))
        request = replace(route_request(fabric, []), connections=tuple(dict.fromkeys(some)), channels=channels)
        wanted = choose_flow_paths(fabric, request, NO_CABLES)[0]
        change = rules.change(ways, routes, {}, generation=generation, tunnels=tunnels, of_flows=wanted)
        for stage in change.stages:
            for message in any_order(stage, chance):
                network.apply(message)
                for one in sent:
                    network.walk(network.sent(*one))
        allowed = {
            (src, dst): {
                tuple(names_of(fabric, found, src, dst, channel))
                for channel in (range(channels) if (src, dst) in some else ())
            }
            for src, dst, _ in sent
        }
        fixed = with_default_rules(ways)
        for src, dst, port in sent:
            took = tuple(walked(network, network.sent(src, dst, port)))
            assert took in (allowed[src, dst] or {tuple(walked(fixed, fixed.sent(src, dst, port)))})
        routes, tunnels = change.routes, change.tunnels
    assert routes == ()


def names_of(fabric: Fabric, found: Multipath, src: int, dst: int, channel: int) -> list[str]:
    """Return the ports that the plan gives a channel, by name."""
    ends = np.array(src), np.array(dst)
    path = found.paths(*ends, channel)
    names = [link.name for link in Ports(fabric).all]
    return [names[one] for one in Ports(fabric).of(*ends, path, found.spines(*ends, path, channel)) if one >= 0]


def test_a_new_source_port_gets_a_rule_and_the_old_ports_rule_is_removed() -> None:
    fabric, _ = with_routing(MESH, "ecmp")
    ways = FabricPaths(fabric)
    first = choose_flow_paths(fabric, route_request(fabric, [(0, 8, 0)]), NO_CABLES)[0]
    before = rules.change(ways, (), {}, generation=1, tunnels=(), of_flows=first)
    other = {(0, 8, 20001): first[0, 8, 20000]}
    change = rules.change(ways, before.routes, {}, generation=2, tunnels=before.tunnels, of_flows=other)
    (stage,) = change.stages
    network = with_default_rules(ways)
    network.apply(*(message for one in before.stages for message in one), *stage)
    of_flows = [rule for rule in network.tables["s0l0"] if rule.match.tcp_src is not None]
    assert [rule.match.tcp_src for rule in of_flows] == [20001]


def test_the_cost_of_sprayed_crossings_is_that_of_the_slowest_piece_and_of_the_path_with_two_pieces() -> None:
    """Four pieces over four paths, one of which is slow; then over three paths, one of which has two pieces."""
    fabric, found = with_routing(FabricSpec(gpus_per_site=(2, 2)), "spray", "logical")
    slow, delays_s = fabric.paths_between[0, 1][1].links[0], np.full(len(fabric.links), 1e-3)
    rates_bps = np.full((2, len(fabric.links)), 8e9)
    rates_bps[:, slow] = 2e9, 0
    cost_s, delay_s = found.crossings(delays_s, rates_bps, chunk_bytes=4_000_000)
    assert delay_s[:, 0, 2].tolist() == pytest.approx([3e-3, 3e-3])
    assert (cost_s - delay_s)[:, 0, 2].tolist() == pytest.approx([4e-3, 2e-3])  # 1 MB at 2 Gbit/s, 2 MB at 8 Gbit/s
    assert np.isinf(cost_s[:, 0, 1]).all()


def test_removing_a_pairs_route_keeps_the_rules_of_its_flows() -> None:
    fabric, _ = with_routing(MESH, "ecmp")
    ways = FabricPaths(fabric)
    flows = choose_flow_paths(fabric, route_request(fabric, [(0, 8, 0)]), NO_CABLES)[0]
    before = rules.change(ways, (), {(0, 8): 3}, generation=1, tunnels=(), of_flows=flows)
    after = rules.change(ways, before.routes, {}, generation=2, tunnels=before.tunnels, of_flows=flows)
    network = with_default_rules(ways)
    network.apply(*(message for stage in (*before.stages, *after.stages) for message in stage))
    of_routes = [rule.match.tcp_src for rule in network.tables["s0l0"] if rule.priority > 110]
    assert of_routes == [20000]


@pytest.mark.parametrize(("rails", "pieces"), [(2, 2), (4, 12), (8, 24)])
def test_pieces_are_spread_evenly_over_the_rails_that_work(rails: int, pieces: int) -> None:
    spec = FabricSpec(gpus_per_site=(2, 2), border_routers=1, rails=rails)
    fabric, found = with_routing(spec, "spray")
    assert found.pieces(0, 0) == found.pieces(0, 1) == found.width == pieces
    src, dst, piece = np.zeros(pieces, int), np.ones(pieces, int), np.arange(pieces)
    for dead, left in (
        (NO_CABLES, rails),
        (cables_of(fabric, "s0p1"), rails - 1),
        ({cable("s0n1", "s0p0")}, rails - 1),
    ):
        planes = found.spines(src, dst, np.full(pieces, -1), piece, frozenset(dead))
        assert (planes[:, 0] == planes[:, 1]).all()
        used = Counter(planes[:, 0].tolist())
        assert len(used) == left and max(used.values()) == -(-pieces // left)


def test_with_rails_each_channel_uses_its_own_plane_on_the_chosen_wan_path() -> None:
    fabric, _ = with_routing(FabricSpec(gpus_per_site=(2, 2), rails=4), "single")
    crossings, flows = ((0, 2), (3, 1)), [(0, 2, 0), (0, 2, 1), (0, 2, 6), (3, 1, 7)]
    request = replace(route_request(fabric, flows), crossings=crossings)
    paths = [fabric.paths_between[0, 1][3].index, fabric.paths_between[1, 0][2].index]
    wanted, _ = choose_flow_paths(fabric, request, NO_CABLES, paths)
    found = [(way.path, way.up, way.down) for way in wanted.values()]
    assert found == [(paths[0], 0, 0), (paths[0], 1, 1), (paths[0], 2, 2), (paths[1], 3, 3)]
    ways = FabricPaths(fabric)
    change = rules.change(ways, (), dict(zip(crossings, paths, strict=True)), generation=1, tunnels=(), of_flows=wanted)
    network = with_default_rules(ways)
    network.apply(*(message for stage in change.stages for message in stage))
    near, far = fabric.paths[paths[0]].name.split(">")
    took = walked(network, network.sent(0, 2, 20002))
    assert took == ["g0>s0n0", "s0n0>s0p2", f"s0p2>{near}", f"{near}>{far}", f"{far}>s1p2", "s1p2>s1n0", "s1n0>g2"]


@pytest.mark.parametrize("grain", GRAINS)
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_after_a_failure_only_affected_pieces_move_evenly_over_the_working_paths(
    grain: str, data: st.DataObject
) -> None:
    fabric, found = with_routing(FabricSpec(gpus_per_site=(2, 2), leaves=2, spines=2), "spray", grain)
    cables = sorted({tuple(sorted(cable(a, b))) for a, b in fabric.wan.links})
    dead = frozenset(cable(*one) for one in data.draw(st.sets(st.sampled_from(cables), max_size=len(cables) - 1)))
    paths = len(fabric.paths_between[0, 1])
    rank = data.draw(st.integers(0, 100))
    piece = rank * found.width + np.arange(found.width)
    usual, now = (found.paths(np.array(0), np.array(3), piece, failed_links(fabric, one)) for one in (NO_CABLES, dead))
    hit = np.array([bool({*fabric.paths[path].links} & {*failed_links(fabric, dead)}) for path in usual])
    assert (now[~hit] == usual[~hit]).all()
    left = Counter(now[hit].tolist())
    up = {path for path, is_hit in zip(usual.tolist(), hit.tolist(), strict=True) if not is_hit}
    assert {*left} <= up
    dealt = [left[path] for path in up] if hit.any() else [0]
    assert max(dealt) - min(dealt) <= found.width // paths


def test_the_channels_of_a_piece_get_different_substitute_paths() -> None:
    fabric, found = with_routing(FabricSpec(gpus_per_site=(2, 2)), "spray", "logical")
    failed = failed_links(fabric, {cable("s0b0", "s1b0")})
    taken = [int(found.paths(np.array(0), np.array(2), 4 * round_, failed)) for round_ in range(5)]
    assert len({*taken}) == 3 and taken[4] == taken[0]


def test_a_flow_between_disconnected_ranks_is_refused_naming_the_ranks() -> None:
    fabric, _ = with_routing(MESH, "spray")
    with pytest.raises(NoPathError, match="no path leads over the WAN from rank 0 to rank 8"):
        choose_flow_paths(fabric, route_request(fabric, [(0, 8, 0)]), cables_of(fabric, "g8"))


def test_the_ecmp_hash_depends_on_seed_hop_and_channel() -> None:
    src, dst = np.array([3]), np.array([5])
    assert hashed(1, src, dst, 0, 0) == hashed(1, src, dst, 0) and hashed(1, src, dst, 0) != hashed(2, src, dst, 0)
    assert hashed(1, src, dst, 0, 1) not in (hashed(1, src, dst, 0), hashed(1, src, dst, 1))
