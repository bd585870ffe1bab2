"""From routes to flow rules, and from old routes to new without losing a packet.

Standing rules lead from every GPU to every other: by the destination alone within its site, by the pair of sites over
the WAN, on the fixed path. A route puts one pair of GPUs on another path. Its first leaf tags the pair's packets (in
place of the destination's MAC address, so the IP header stays as it was), the switches further along match the tag and
the port that the route comes in by, and the last leaf puts the MAC address back. There are two tags, and a pair that
changes its route takes the one that it has not: with a new one every time, switches would remember their decisions for
each of them, and review them all at every change.

Why nothing is lost while routes change, not even a packet on its way:
- no packet carries a new route's tag until every switch past the first leaf has the rules for it; then the first leaf
  changes over in one message; so each packet sees the old route or the new one, never a mixture, even where the two
  pass the same switches in opposite order;
- a packet whose tag a switch no longer knows falls to the standing rules there, which every router of every candidate
  path has. They clear the tag, so no route draws the packet back, and lead to the destination without a circle;
- a packet so slow that its tag is another route's by now follows that one where it comes in as that one does, and the
  standing rules everywhere else; a switch would drop what it is to send back where it came from.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from controller.flows import (
    IN_PORT,
    ROUTE_PRIORITY,
    ROUTES_COOKIE,
    ROUTES_MASK,
    STANDING_COOKIE,
    STANDING_PRIORITY,
    TURN_PRIORITY,
    Install,
    Match,
    Message,
    Remove,
    Rule,
    Stage,
    route_cookie,
    tag,
)
from controller.ways import Ways
from topologies.wiring import Switch


@dataclass(frozen=True, kw_only=True)
class Route:
    """A pair of ranks that is on a path other than the fixed one, the generation that put it there, the number of its
    packets' tag (1 or 2), and the switches it passes."""

    src: int
    dst: int
    path: int
    generation: int
    tag: int
    passed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Change:
    """The stages that lead from some routes to others, and the routes in force once all are done."""

    stages: tuple[Stage, ...]
    routes: tuple[Route, ...]


def standing(ways: Ways, switch: str) -> tuple[Rule, ...]:
    """The standing rules of a switch, for every pair of GPUs that the WAN joins."""
    here = ways.switches[switch]
    rules = [*_inwards(ways, here)]
    if here.kind == "leaf":
        rules += _outwards_from_leaf(ways, here)
    elif here.kind == "spine":
        rules += _outwards_from_spine(ways, here)
    else:
        rules += _over_wan(ways, here)
    return tuple(rules)


def change(ways: Ways, old: Collection[Route], wanted: Mapping[tuple[int, int], int], *, generation: int) -> Change:
    """How to go from the routes in force to these paths, by pair of ranks; every other pair returns to the fixed path.

    A route that stays keeps its generation and is left alone, and a pair on the fixed path needs no route. New routes
    get `generation`, which no route in force may have.
    """
    before = {(route.src, route.dst): route for route in old}
    stay, fresh = [], []
    for (src, dst), path in wanted.items():
        current, passed = before.get((src, dst)), ways.over(src, dst, path)
        if current is not None and current.passed == passed:
            stay.append(current)
        elif path != _fixed_path(ways, src, dst):
            other = 1 if current is None or current.tag == 2 else 2
            fresh.append(Route(src=src, dst=dst, path=path, generation=generation, tag=other, passed=passed))
    gone = [route for route in old if route not in stay]
    replaced = {(route.src, route.dst) for route in fresh}
    further = [tuple(reversed(installs(ways, route)[1:])) for route in fresh]  # from the destination backwards
    first: list[Message] = [installs(ways, route)[0] for route in fresh]
    first += [_removal(ways, route)[0] for route in gone if (route.src, route.dst) not in replaced]
    behind = [_removal(ways, route)[1:] for route in gone]
    stages = (tuple(m for ms in further for m in ms), tuple(first), tuple(m for ms in behind for m in ms))
    return Change(stages=tuple(stage for stage in stages if stage), routes=(*stay, *fresh))


def detour(old: Ways, new: Ways, switch: str) -> Stage:
    """What a switch with the standing rules of `old` is told so that it has those of `new`.

    A rule that turns packets round must go, as it would send back what a new rule sends here; any other that has no
    use any more leads to where nothing comes from.
    """
    before, after = standing(old, switch), standing(new, switch)
    fresh = [Install(switch=switch, rule=rule) for rule in after if rule not in before]
    turns = {rule.match for rule in before if rule.match.in_port is not None} - {rule.match for rule in after}
    gone = [rule.match for rule in before if rule.match in turns]
    return (*fresh, *(Remove(switch=switch, cookie=STANDING_COOKIE, match=match) for match in gone))


def greeting(ways: Ways, switch: str, routes: Collection[Route]) -> tuple[Stage, Stage, Stage]:
    """What a switch is told when it connects, whatever it holds: the standing rules, and these routes alone.

    Between the second stage and the third its packets are on the standing rules; none is lost.
    """
    mine = tuple(message for route in routes for message in installs(ways, route)[::-1] if message.switch == switch)
    rules = standing(ways, switch)
    laid = tuple(Install(switch=switch, rule=rule) for rule in rules)
    return laid, (*_other_turns(ways, switch, rules), no_routes(switch)), mine


def _other_turns(ways: Ways, switch: str, rules: Collection[Rule]) -> Iterator[Remove]:
    """What takes away every rule that turns packets round but these; others of old do no harm, as `detour` says."""
    kept = {rule.match for rule in rules}
    for a, b in ways.fabric.paths_between:
        for port in ways.switches[switch].ports:
            match = Match(src=ways.networks[a], dst=ways.networks[b], in_port=port.number)
            if match not in kept:
                yield Remove(switch=switch, cookie=STANDING_COOKIE, match=match)


def no_routes(switch: str) -> Remove:
    """The message that takes every route of every generation off a switch."""
    return Remove(switch=switch, cookie=ROUTES_COOKIE, mask=ROUTES_MASK)


def installs(ways: Ways, route: Route) -> tuple[Install, ...]:
    """A route's rules, in the order in which its packets meet them: one for each switch passed."""
    src, dst = ways.fabric.gpus[route.src], ways.fabric.gpus[route.dst]
    label = tag(route.tag)
    found = []
    for place, (switch, peer) in enumerate(zip(route.passed, (*route.passed[1:], dst.name), strict=True)):
        before = ways.port(switch, route.passed[place - 1]) if place else None
        match = Match(src=src.ip, dst=dst.ip, in_port=before, eth_dst=label if place else None)
        rewrite = label if place == 0 else dst.mac if peer == dst.name else None
        rule = Rule(
            priority=ROUTE_PRIORITY,
            cookie=route_cookie(route.generation),
            match=match,
            out_port=ways.port(switch, peer),
            eth_dst=rewrite,
        )
        found.append(Install(switch=switch, rule=rule))
    return tuple(found)


def _removal(ways: Ways, route: Route) -> tuple[Remove, ...]:
    """What takes a route away, switch by switch from its source on; other routes of its generation stay."""
    src, dst = ways.fabric.gpus[route.src], ways.fabric.gpus[route.dst]
    pair, cookie = Match(src=src.ip, dst=dst.ip), route_cookie(route.generation)
    return tuple(Remove(switch=switch, cookie=cookie, match=pair) for switch in route.passed)


def _fixed_path(ways: Ways, src: int, dst: int) -> int:
    return ways.fixed(ways.fabric.gpus[src].site, ways.fabric.gpus[dst].site).index


def _inwards(ways: Ways, here: Switch) -> Iterator[Rule]:
    """To every GPU of the switch's own site; its leaf puts the MAC address back."""
    for gpu in ways.gpus_in(here.site):
        if here.kind == "leaf":
            peer = gpu.name if gpu.leaf == here.name else ways.spine(gpu, here.name)
        else:
            peer = gpu.leaf if here.kind == "spine" else ways.spine(gpu, here.name)
        yield _standing(Match(dst=gpu.ip), ways.port(here.name, peer), eth_dst=gpu.mac if peer == gpu.name else None)


def _outwards_from_leaf(ways: Ways, here: Switch) -> Iterator[Rule]:
    for gpu in ways.fabric.gpus:
        if gpu.leaf == here.name:
            for site, network in enumerate(ways.networks):
                if ways.joined(gpu.site, site):
                    first = ways.over_wan(ways.fixed(gpu.site, site))[0]
                    yield _standing(Match(src=gpu.ip, dst=network), ways.port(here.name, ways.spine(gpu, first)))


def _outwards_from_spine(ways: Ways, here: Switch) -> Iterator[Rule]:
    assert here.site is not None
    for site, network in enumerate(ways.networks):
        if ways.joined(here.site, site):
            first = ways.over_wan(ways.fixed(here.site, site))[0]
            match = Match(src=ways.networks[here.site], dst=network)
            yield _standing(match, ways.port(here.name, first), eth_dst=tag(0))


def _over_wan(ways: Ways, here: Switch) -> Iterator[Rule]:
    for a, b in ways.fabric.paths_between:
        peer = ways.fallback(a, b).get(here.name)
        if peer is None:
            continue
        port, match = ways.port(here.name, peer), Match(src=ways.networks[a], dst=ways.networks[b])
        yield _standing(match, port, eth_dst=tag(0))
        # A packet that has lost its route may have to go back where it came from.
        back = Match(src=match.src, dst=match.dst, in_port=port)
        yield Rule(priority=TURN_PRIORITY, cookie=STANDING_COOKIE, match=back, out_port=IN_PORT, eth_dst=tag(0))


def _standing(match: Match, out_port: int, *, eth_dst: str | None = None) -> Rule:
    return Rule(priority=STANDING_PRIORITY, cookie=STANDING_COOKIE, match=match, out_port=out_port, eth_dst=eth_dst)
