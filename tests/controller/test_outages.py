"""Failures are routed around: by the default rules, by routes, by path choice and by the controller as it runs."""

from collections.abc import Iterable
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.forwarding import rules
from controller.forwarding.state import Forwarding, State
from controller.forwarding.switches import SwitchError
from controller.routing import link_state as controller_outages
from controller.routing.link_state import Outages
from controller.routing.path_choice import NoPathError, Router
from controller.routing.paths import Ways
from tests.fakes.flowtables import FakeNetwork, crossing_pairs, fabrics, wan_of, with_default_rules
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import Fabric, FabricSpec, WanPath, build_fabric
from topologies.fabric.failures import NONE, Cables, around, cable, failed_links
from topologies.fabric.wan import WanSpec

FABRIC = build_fabric(FabricSpec())


@st.composite
def deaths(draw: st.DrawFn, fabric: Fabric) -> Cables:
    """Some cables, and all those of some switches."""
    cables = [cable(c.a, c.b) for c in fabric.cables]
    dead = set(draw(st.lists(st.sampled_from(cables), max_size=4)))
    for switch in draw(st.lists(st.sampled_from(fabric.switches), max_size=2)):
        dead |= around(fabric, switch.name)
    return frozenset(dead)


def whole(fabric: Fabric, dead: Cables, path: WanPath, src: int, dst: int) -> bool:
    gone = set(failed_links(fabric, dead))
    up, down = fabric.to_br_index[src, path.src_br], fabric.from_br_index[path.dst_br, dst]
    return not gone & {int(up), int(down), *path.links}


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_after_every_outage_what_can_arrive_does_and_passes_nothing_dead(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    ways = Ways(fabric)
    network = with_default_rules(ways)
    routes: tuple[rules.Route, ...] = ()
    for generation in range(1, 4):
        new = Ways(fabric, data.draw(deaths(fabric)))
        for switch in fabric.switches:
            for message in rules.detour(ways, new, switch.name):
                network.apply(message)
        pairs = data.draw(st.lists(st.sampled_from(crossing_pairs(fabric)), max_size=3, unique=True))
        wanted = {}
        for src, dst in pairs:
            between = fabric.paths_between[fabric.gpus[src].site, fabric.gpus[dst].site]
            open_ones = [path for path in between if whole(fabric, new.dead, path, src, dst)]
            if open_ones:
                wanted[src, dst] = data.draw(st.sampled_from(open_ones)).index
        change = rules.change(new, routes, wanted, generation=generation)
        for stage in change.stages:
            for message in stage:
                network.apply(message)
        routes, ways = change.routes, new
        check(fabric, network, new, wanted)


def check(fabric: Fabric, network: FakeNetwork, ways: Ways, wanted: dict[tuple[int, int], int]) -> None:
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
                if not whole(fabric, ways.dead, path, a.rank, b.rank):
                    continue
            passed = network.walk(network.sent(a.rank, b.rank))
            for ends in pairwise((a.name, *passed, b.name)):
                assert cable(*ends) not in ways.dead
            assert path is None or wan_of(fabric, passed) == path.name


def test_the_fixed_path_is_the_first_that_is_whole() -> None:
    paths = FABRIC.paths_between[0, 1]
    assert Ways(FABRIC).fixed(0, 1) is paths[0]
    assert Ways(FABRIC, frozenset({cable("s0b0", "s1b0")})).fixed(0, 1) is paths[1]
    assert Ways(FABRIC, around(FABRIC, "s0b0")).fixed(0, 1) is paths[2]
    assert Ways(FABRIC, around(FABRIC, "s0b0") | around(FABRIC, "s0b1")).fixed(0, 1) is paths[0]


@pytest.mark.parametrize("dead", [{cable("s0b0", "s1b0")}, around(FABRIC, "s0b0"), around(FABRIC, "s0p0"), NONE])
def test_a_link_that_is_down_is_never_chosen(dead: Cables) -> None:
    rates = sampler(FABRIC, ConditionsSpec(), seed=3).rates_bps(0, 50)
    rates[:, list(failed_links(FABRIC, frozenset(dead)))] = 0.0
    router = Router(FABRIC, delays_s(FABRIC, ConditionsSpec()))
    src, dst = np.full(50, 2), np.full(50, 5)
    best, fixed = router.best(rates, src, dst, chunk_bytes=10**6), router.fixed(rates, src, dst)
    first = next(p for p in FABRIC.paths_between[0, 1] if whole(FABRIC, frozenset(dead), p, 2, 5))
    assert set(fixed.path) == {first.index}
    for routes, is_fixed in ((best, False), (fixed, True)):
        assert (routes.rate_bps > 0).all()
        assert all(whole(FABRIC, frozenset(dead), FABRIC.paths[index], 2, 5) for index in routes.path)
        cost, delay = router.crossings(rates, chunk_bytes=10**6, fixed=is_fixed)
        assert (cost[:, 2, 5] == routes.delay_s + 8e6 / routes.rate_bps).all()
        assert (delay[:, 2, 5] == routes.delay_s).all()


def test_where_nothing_is_left_the_crossing_is_named() -> None:
    rates = np.full((1, len(FABRIC.links)), 1e9)
    rates[:, [link.index for link in FABRIC.links if link.kind == "wan"]] = 0.0
    router = Router(FABRIC, delays_s(FABRIC, ConditionsSpec()))
    for choose in (router.fixed, lambda *given: router.best(*given, chunk_bytes=1)):
        with pytest.raises(NoPathError, match="no path leads over the WAN from rank 1 to rank 6"):
            choose(rates, np.array([1]), np.array([6]))
    cost, _ = router.crossings(rates, chunk_bytes=1, fixed=True)
    assert np.isinf(cost[0, 1, 6])


def test_the_link_state_is_what_ports_and_switches_report() -> None:
    outages = Outages(FABRIC)
    assert outages.dead() == NONE
    port = next(p.number for s in FABRIC.switches if s.name == "s0b0" for p in s.ports if p.peer == "s1b0")
    outages.reported("s0b0", [(port, True), (99, True), (0xFFFFFFFE, True)])
    link = frozenset({cable("s0b0", "s1b0")})
    assert outages.dead() == link
    begun = outages.begin(NONE, link)
    assert (begun.died, begun.back) == (["s0b0-s1b0"], []) and begun.seen_ns > 0
    outages.left("s1b1")
    assert outages.dead() == link | around(FABRIC, "s1b1")
    outages.came("s1b1")
    outages.reported("s0b0", [(port, False)])
    assert outages.dead() == NONE
    assert outages.begin(link, NONE).back == ["s0b0-s1b0"]
    assert [outage["died"] for outage in outages.told()] == [["s0b0-s1b0"], []]


def wan_cables(fabric: Fabric) -> list[tuple[str, str]]:
    kinds = {switch.name: switch.kind for switch in fabric.switches}
    over_wan = ("border", "transit")
    return [cable(c.a, c.b) for c in fabric.cables if kinds.get(c.a) in over_wan and kinds.get(c.b) in over_wan]


def test_a_new_controller_leads_right_whatever_was_down_in_the_last_ones_time() -> None:
    fabric = build_fabric(FabricSpec(wan=WanSpec(preset="five-router")))
    now = Ways(fabric)
    for dead in combinations(wan_cables(fabric), 2):
        network = with_default_rules(Ways(fabric, frozenset(dead)))
        for switch in fabric.switches:
            for stage in rules.greeting(now, switch.name, ()):
                for message in stage:
                    network.apply(message)
        check(fabric, network, now, {})


class FailingSwitches:
    """Switches that do as they are told, but for the `fails`-th stage and those after it, which reach nobody."""

    def __init__(self, network: FakeNetwork) -> None:
        self.network, self.fails = network, 10**6

    def send(self, stages: Iterable[rules.Stage], **_: float) -> None:
        for stage in stages:
            self.fails -= 1
            if self.fails <= 0:
                raise SwitchError("the switch s0b0 has disconnected")
            for message in stage:
                self.network.apply(message)


@pytest.mark.parametrize("fails", [1, 2, 3, 4])
def test_after_a_change_that_failed_anywhere_the_next_one_leads_right(fails: int) -> None:
    network = with_default_rules(Ways(FABRIC))
    switches = FailingSwitches(network)
    forwarding = Forwarding(FABRIC, switches)  # type: ignore[arg-type]
    forwarding.ready = {switch.name for switch in FABRIC.switches}
    before = {(3, 4): 1, (7, 0): 5}
    forwarding.reconcile(forwarding.ways, before)
    around_it = Ways(FABRIC, frozenset({cable("s0b0", "s1b0")}))
    switches.fails = fails
    with pytest.raises(SwitchError):
        forwarding.reconcile(around_it, {(3, 4): 2})
    assert forwarding.state is State.IN_DOUBT
    switches.fails = 10**6
    whole_again = forwarding.ways
    forwarding.reconcile(whole_again, {(3, 4): 3})
    assert forwarding.state is State.CONFIRMED
    check(FABRIC, network, whole_again, {(3, 4): 3})
    assert (forwarding.path(3, 4), forwarding.path(7, 0)) == (3, 4)


def test_an_outage_was_seen_when_the_first_report_of_it_came(monkeypatch):
    now = [100]
    monkeypatch.setattr(controller_outages.time, "monotonic_ns", lambda: now[0])
    found, link = Outages(FABRIC), frozenset({cable("s0b0", "s1b0")})
    port = next(p.number for s in FABRIC.switches if s.name == "s0b0" for p in s.ports if p.peer == "s1b0")
    found.reported("s0b0", [(port, True)])
    now[0] = 200
    found.left("s1b1")  # a second word of the same change
    now[0] = 300
    assert found.begin(NONE, link).seen_ns == 100
    now[0] = 400
    found.came("s1b1")
    now[0] = 500
    assert found.begin(link, NONE).seen_ns == 400
    now[0] = 600
    found.left("s1b1")
    found.nothing_new()
    now[0] = 700
    found.left("s1b1")
    now[0] = 800
    assert found.begin(NONE, link).seen_ns == 700
    assert [outage["done_ns"] for outage in found.told()] == [0, 0, 0]
