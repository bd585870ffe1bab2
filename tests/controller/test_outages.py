"""Routing around failures: default rules, routes, the link state, and updates that fail."""

from collections.abc import Iterable
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.forwarding import rules, state
from controller.forwarding.state import Forwarding, State
from controller.forwarding.switches import SwitchError
from controller.routing import link_state
from controller.routing.link_state import LinkState
from controller.routing.switch_paths import FabricPaths
from tests.fakes.flowtables import (
    FakeNetwork,
    crossing_pairs,
    fabrics,
    failures,
    hops_of,
    usable,
    wan_of,
    with_default_rules,
)
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.failures import NO_CABLES, cable, cables_of, failed_links
from topologies.fabric.wan import WanSpec

FABRIC = build_fabric(FabricSpec())


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_after_every_outage_packets_on_usable_paths_arrive_and_avoid_failed_cables(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    ways = FabricPaths(fabric)
    network = with_default_rules(ways)
    routes: tuple[rules.Route, ...] = ()
    tunnels: frozenset[int] = frozenset()
    for generation in range(1, 4):
        new = FabricPaths(fabric, data.draw(failures(fabric)))
        for switch in fabric.switches:
            for message in rules.detour(ways, new, switch.name):
                network.apply(message)
        pairs = data.draw(st.lists(st.sampled_from(crossing_pairs(fabric)), max_size=3, unique=True))
        wanted = {}
        for src, dst in pairs:
            between = fabric.paths_between[fabric.gpus[src].site, fabric.gpus[dst].site]
            open_ones = [path for path in between if usable(fabric, new.dead, path, src, dst)]
            if open_ones:
                wanted[src, dst] = data.draw(st.sampled_from(open_ones)).index
        change = rules.change(new, routes, wanted, generation=generation, tunnels=tunnels)
        for stage in change.stages:
            for message in stage:
                network.apply(message)
        routes, tunnels, ways = change.routes, change.tunnels, new
        check(fabric, network, new, wanted)


def check(fabric: Fabric, network: FakeNetwork, ways: FabricPaths, wanted: dict[tuple[int, int], int]) -> None:
    gone = set(failed_links(fabric, ways.dead))
    for a in fabric.gpus:
        for b in fabric.gpus:
            if a is b:
                continue
            if a.site == b.site:
                if int(fabric.intra_index[a.rank, b.rank]) in gone:
                    continue
                path = None
            elif not ways.joined(a.site, b.site):
                continue
            else:
                index = wanted.get((a.rank, b.rank), ways.fixed(a.site, b.site).index)
                path = fabric.paths[index]
                if not usable(fabric, ways.dead, path, a.rank, b.rank):
                    continue
            passed = network.walk(network.sent(a.rank, b.rank))
            for ends in hops_of((a.name, *passed, b.name)):
                assert cable(*ends) not in ways.dead
            assert path is None or wan_of(fabric, passed) == path.name


def test_the_fixed_path_is_the_first_working_one_or_the_first_if_none_works() -> None:
    paths = FABRIC.paths_between[0, 1]
    assert FabricPaths(FABRIC).fixed(0, 1) is paths[0]
    assert FabricPaths(FABRIC, frozenset({cable("s0b0", "s1b0")})).fixed(0, 1) is paths[1]
    assert FabricPaths(FABRIC, cables_of(FABRIC, "s0b0")).fixed(0, 1) is paths[2]
    assert FabricPaths(FABRIC, cables_of(FABRIC, "s0b0") | cables_of(FABRIC, "s0b1")).fixed(0, 1) is paths[0]


def test_link_state_follows_port_and_switch_reports_and_dates_a_change_from_the_first(monkeypatch):
    now = [100]
    monkeypatch.setattr(link_state.time, "monotonic_ns", lambda: now[0])
    state, link = LinkState(FABRIC), frozenset({cable("s0b0", "s1b0")})
    port = next(p.number for s in FABRIC.switches if s.name == "s0b0" for p in s.ports if p.peer == "s1b0")
    assert state.dead() == NO_CABLES
    state.reported("s0b0", [(port, True), (99, True), (0xFFFFFFFE, True)])
    assert state.dead() == link
    now[0] = 200
    state.disconnected("s1b1")  # a second report of the same change
    assert state.dead() == link | cables_of(FABRIC, "s1b1")
    begun = state.begin(NO_CABLES, link)
    assert (begun.died, begun.back, begun.seen_ns) == (["s0b0-s1b0"], [], 100)
    now[0] = 300
    state.connected("s1b1")
    now[0] = 400
    state.reported("s0b0", [(port, False)])
    assert state.dead() == NO_CABLES
    begun = state.begin(link, NO_CABLES)
    assert (begun.died, begun.back, begun.seen_ns) == ([], ["s0b0-s1b0"], 300)
    now[0] = 500
    state.disconnected("s1b1")
    state.nothing_new()
    now[0] = 600
    state.disconnected("s1b1")
    assert state.begin(NO_CABLES, link).seen_ns == 600
    assert [(outage["died"], outage["done_ns"]) for outage in state.recent()] == [
        (["s0b0-s1b0"], 0),
        ([], 0),
        (["s0b0-s1b0"], 0),
    ]


def wan_cables(fabric: Fabric) -> list[tuple[str, str]]:
    kinds = {switch.name: switch.kind for switch in fabric.switches}
    over_wan = ("border", "transit")
    return [cable(c.a, c.b) for c in fabric.cables if kinds.get(c.a) in over_wan and kinds.get(c.b) in over_wan]


def test_a_new_controller_corrects_the_rules_left_from_earlier_outages() -> None:
    fabric = build_fabric(FabricSpec(wan=WanSpec(preset="five-router")))
    now = FabricPaths(fabric)
    for dead in combinations(wan_cables(fabric), 2):
        network = with_default_rules(FabricPaths(fabric, frozenset(dead)))
        for switch in fabric.switches:
            for stage in rules.greeting(now, switch.name, (), ()):
                for message in stage:
                    network.apply(message)
        check(fabric, network, now, {})


class FailingSwitches:
    """Switches that apply every stage before the `fails`-th; this one and all later ones raise SwitchError."""

    def __init__(self, network: FakeNetwork) -> None:
        self.network, self.fails, self.elsewhere = network, 10**6, dict[str, float]()

    def send(self, stages: Iterable[rules.Stage], **_: float) -> None:
        for stage in stages:
            self.fails -= 1
            if self.fails <= 0:
                raise SwitchError("the switch s0b0 has disconnected")
            for message in stage:
                self.network.apply(message)


@pytest.mark.parametrize(("tunnels_stand", "fails"), [(True, 1), (True, 2), (False, 1), (False, 2), (False, 3)])
def test_routes_are_correct_after_an_update_that_follows_a_failed_update(
    tunnels_stand: bool, fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages of an update: default rules, tunnels if they are not installed from the start, and leaves."""
    if not tunnels_stand:
        monkeypatch.setattr(state, "_STANDING_TUNNELS", 7)
    paths = range(len(FABRIC.paths)) if tunnels_stand else ()
    network = with_default_rules(FabricPaths(FABRIC), paths)
    switches = FailingSwitches(network)
    forwarding = Forwarding(FABRIC, switches)  # type: ignore[arg-type]
    assert forwarding.tunnels == set(paths)
    forwarding.ready = {switch.name for switch in FABRIC.switches}
    before = {(3, 4): 1, (7, 0): 5}
    forwarding.reconcile(forwarding.paths, before)
    around_it = FabricPaths(FABRIC, frozenset({cable("s0b0", "s1b0")}))
    switches.fails = fails
    with pytest.raises(SwitchError):
        forwarding.reconcile(around_it, {(3, 4): 2})
    assert forwarding.state is State.IN_DOUBT
    switches.fails = 10**6
    whole_again = forwarding.paths
    forwarding.reconcile(whole_again, {(3, 4): 3})
    assert forwarding.state is State.CONFIRMED
    check(FABRIC, network, whole_again, {(3, 4): 3})
    assert (forwarding.path(3, 4), forwarding.path(7, 0)) == (3, 4)
