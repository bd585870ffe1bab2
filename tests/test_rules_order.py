"""In which order rules are laid and taken away: the changes that would lose a packet, one by one."""

from controller import rules
from controller.flows import Remove, tag
from controller.ways import Ways
from tests.test_rules import wan_of, with_standing_rules
from topologies.fabric import FabricSpec, build_fabric
from topologies.wan import WanSpec


def test_two_routes_that_pass_two_routers_in_opposite_order_do_not_loop() -> None:
    fabric = build_fabric(FabricSpec(wan=WanSpec(preset="five-router")))
    names = {path.name: path.index for path in fabric.paths}
    there, back = names["s0b0>R0>R1>R2>R4>R3>s1b0"], names["s0b0>R0>R4>R2>R3>s1b0"]
    ways = Ways(fabric)
    network = with_standing_rules(ways)
    first = rules.change(ways, (), {(0, 4): there}, generation=1)
    second = rules.change(ways, first.routes, {(0, 4): back}, generation=2)
    taken = []
    for message in (m for change in (first, second) for stage in change.stages for m in stage):
        network.apply(message)
        taken.append(wan_of(fabric, network.walk(network.sent(0, 4))))
    assert list(dict.fromkeys(taken)) == ["s0b0>R0>R4>R3>s1b0", fabric.paths[there].name, fabric.paths[back].name]


def test_a_packet_that_lost_its_route_is_not_drawn_back_into_it() -> None:
    """From T the standing rules lead back over A, where the route's rule still is: without end, if the tag stayed."""
    detour = (("A", "T"), ("T", "U"), ("U", "V"), ("V", "s1b1"))
    links = (("s0b0", "A"), ("s0b1", "A"), ("A", "s1b0"), *detour)
    fabric = build_fabric(FabricSpec(wan=WanSpec(preset=None, routers=("A", "T", "U", "V"), links=links)))
    ways = Ways(fabric)
    network = with_standing_rules(ways)
    (path,) = (path.index for path in fabric.paths if path.name == "s0b0>A>T>U>V>s1b1")
    route = rules.change(ways, (), {(0, 4): path}, generation=1)
    for message in (m for stage in route.stages for m in stage):
        network.apply(message)
    packet = network.sent(0, 4)
    while packet.at != "T":
        packet = network.step(packet)
    back = rules.change(ways, route.routes, {}, generation=2)
    for message in (m for stage in back.stages for m in stage):
        if message.switch == "T":  # the one switch that is quick
            network.apply(message)
    assert network.walk(packet) == ("s0l0", "s0p0", "s0b0", "A", "T", "A", "s1b0", "s1p0", "s1l0")


def test_a_packet_whose_tag_is_another_routes_by_now_is_not_sent_back() -> None:
    fabric = build_fabric(FabricSpec(wan=WanSpec(preset="five-router")))
    names = {path.name: path.index for path in fabric.paths}
    network = with_standing_rules(ways := Ways(fabric))
    first = rules.change(ways, (), {(0, 4): names["s0b0>R0>R1>R2>R4>R3>s1b0"]}, generation=1)
    for message in (message for stage in first.stages for message in stage):
        network.apply(message)
    packet = network.sent(0, 4)
    while packet.at != "R4":
        packet = network.step(packet)
    none = rules.change(ways, first.routes, {}, generation=2)
    again = rules.change(ways, none.routes, {(0, 4): names["s0b0>R0>R4>R2>R3>s1b0"]}, generation=3)
    assert again.routes[0].tag == first.routes[0].tag
    for message in (message for change in (none, again) for stage in change.stages for message in stage):
        network.apply(message)
    assert network.walk(packet)[-1] == "s1l0"


def test_no_router_falls_back_through_a_border_router_of_the_site_left() -> None:
    links = (("s0b0", "A"), ("s0b1", "A"), ("A", "s1b0"), ("A", "s1b1"), ("s0b1", "T"))
    ways = Ways(build_fabric(FabricSpec(wan=WanSpec(preset=None, routers=("A", "T"), links=links))))
    assert ways.fallback(0, 1) == {"s0b0": "A", "s0b1": "A", "A": "s1b0"}
    assert ways.fallback(1, 0) == {"s1b0": "A", "s1b1": "A", "A": "s0b0", "T": "s0b1"}


def test_rules_are_laid_from_the_destination_backwards_and_the_first_leaf_changes_last() -> None:
    fabric = build_fabric(FabricSpec())
    ways = Ways(fabric)
    other = fabric.paths_between[0, 1][3]
    before = rules.change(ways, (), {(3, 4): fabric.paths_between[0, 1][1].index}, generation=1)
    laid, switched, cleared = rules.change(ways, before.routes, {(3, 4): other.index}, generation=2).stages
    assert [message.switch for message in laid] == ["s1l0", "s1p0", "s1b1", "s0b1", "s0p1"]
    assert [message.switch for message in switched] == ["s0l1"]
    assert all(isinstance(message, Remove) for message in cleared)
    assert [message.switch for message in cleared] == ["s0p1", "s0b0", "s1b1", "s1p0", "s1l0"]


def test_a_pair_that_changes_its_route_again_and_again_has_two_tags_in_turn() -> None:
    """Switches cache a decision for each tag that they have seen, and keep it."""
    fabric = build_fabric(FabricSpec())
    ways, seen = Ways(fabric), []
    routes: tuple[rules.Route, ...] = ()
    for generation, path in enumerate([1, 2, 3, 1, 2], 1):
        wanted = {(3, 4): fabric.paths_between[0, 1][path].index, (7, 0): fabric.paths_between[1, 0][2].index}
        routes = rules.change(ways, routes, wanted, generation=generation).routes
        (changed,) = (route for route in routes if route.src == 3)
        seen.append({message.rule.match.eth_dst for message in rules.installs(ways, changed)} - {None})
    assert seen == [{tag(1)}, {tag(2)}, {tag(1)}, {tag(2)}, {tag(1)}]


def test_what_stays_the_same_is_left_alone() -> None:
    fabric = build_fabric(FabricSpec())
    ways = Ways(fabric)
    wanted = {(3, 4): fabric.paths_between[0, 1][2].index, (7, 0): fabric.paths_between[1, 0][0].index}
    first = rules.change(ways, (), wanted, generation=1)
    assert len(first.routes) == 1  # the fixed path is where the pair is anyhow
    again = rules.change(ways, first.routes, wanted, generation=2)
    assert (again.stages, again.routes) == ((), first.routes)


def test_a_greeting_is_for_the_switch_that_connects_alone() -> None:
    fabric = build_fabric(FabricSpec())
    ways = Ways(fabric)
    wanted = {(3, 4): fabric.paths_between[0, 1][3].index, (7, 0): fabric.paths_between[1, 0][2].index}
    routes = rules.change(ways, (), wanted, generation=1).routes
    for switch in fabric.switches:
        told = [message.switch for stage in rules.greeting(ways, switch.name, routes) for message in stage]
        assert set(told) == {switch.name}
