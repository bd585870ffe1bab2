"""From routes to flow rules, and from old routes to new ones without losing a packet.

The default rules lead from every GPU to every other: by the destination alone within its
site, by the pair of sites over the WAN, on the default path. A route puts one pair of GPUs on another path. Its first
leaf tags the pair's packets (in the destination MAC, so the IP header stays as it is), the switches further along match
the tag and the route's input port, and the last leaf restores the MAC. There are two tags, and a pair that changes its
route takes the other one: with a new tag every time, switches would cache a decision for each and revalidate them all
at every change.

No packet is lost while routes change, not even one in flight:
- No packet carries a new route's tag until every switch past the first leaf has its rules; then the first leaf changes
  over in one message. So each packet sees the old route or the new one, never a mixture, even where the two pass the
  same switches in opposite order.
- A packet whose tag a switch no longer knows falls to the default rules, which every router of every candidate path
  has. They clear the tag, so that no route takes the packet back, and lead to the destination without a loop.
- A packet delayed until its tag was reused follows the new route where its input port matches that route, and the
  default rules elsewhere. Sending a packet back out of its input port needs OFPP_IN_PORT, hence TURN_PRIORITY.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from controller.forwarding import flows
from controller.forwarding.flows import Install, Match, Message, Remove, Rule, Stage, tag
from controller.routing.paths import Ways
from topologies.fabric.addressing import Switch


@dataclass(frozen=True, kw_only=True)
class Route:
    """A pair of ranks on a path other than the default one, the generation that installed it, the tag of its packets (1
    or 2), and the switches that it passes."""

    src: int
    dst: int
    path: int
    generation: int
    tag: int
    passed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Change:
    """The stages that lead from some routes to others, and the routes in force after the last stage."""

    stages: tuple[Stage, ...]
    routes: tuple[Route, ...]


def default_rules(ways: Ways, switch: str) -> tuple[Rule, ...]:
    """The default rules of a switch, for every pair of GPUs that the WAN joins."""
    here = ways.switches[switch]
    outwards = _outwards if here.kind in ("leaf", "spine") else _over_wan
    return (*_inwards(ways, here), *outwards(ways, here))


def change(ways: Ways, old: Collection[Route], wanted: Mapping[tuple[int, int], int], *, generation: int) -> Change:
    """From the routes in force to these paths, by pair of ranks; every other pair returns to the default path.

    A route that stays keeps its generation and its rules; a pair on the default path needs no route. New routes get
    `generation`, which no route in force may have.
    """
    before = {(route.src, route.dst): route for route in old}
    stay, fresh = [], []
    for (src, dst), path in wanted.items():
        current, passed = before.get((src, dst)), ways.over(src, dst, path)
        if current is not None and current.passed == passed:
            stay.append(current)
        elif path != ways.default(src, dst):
            other = 1 if current is None or current.tag == 2 else 2
            fresh.append(Route(src=src, dst=dst, path=path, generation=generation, tag=other, passed=passed))
    gone = [route for route in old if route not in stay]
    replaced = {(route.src, route.dst) for route in fresh}
    further = [tuple(reversed(installs(ways, route)[1:])) for route in fresh]  # from the destination back
    first: list[Message] = [installs(ways, route)[0] for route in fresh]
    first += [_removal(ways, route)[0] for route in gone if (route.src, route.dst) not in replaced]
    behind = [_removal(ways, route)[1:] for route in gone]
    stages = (tuple(m for ms in further for m in ms), tuple(first), tuple(m for ms in behind for m in ms))
    return Change(stages=tuple(stage for stage in stages if stage), routes=(*stay, *fresh))


def detour(old: Ways, new: Ways, switch: str) -> Stage:
    """The messages that replace the default rules of `old` at a switch by those of `new`.

    A rule that turns packets round is removed, as it would send back what a new rule sends here. Other unused rules
    match no traffic and stay.
    """
    before, after = default_rules(old, switch), default_rules(new, switch)
    fresh = [Install(switch=switch, rule=rule) for rule in after if rule not in before]
    turns = {rule.match for rule in before if rule.match.in_port is not None} - {rule.match for rule in after}
    gone = [rule.match for rule in before if rule.match in turns]
    return (*fresh, *(Remove(switch=switch, cookie=flows.DEFAULT_COOKIE, match=match) for match in gone))


def greeting(ways: Ways, switch: str, routes: Collection[Route]) -> tuple[Stage, Stage, Stage]:
    """The messages to a switch that connects, whatever rules it holds: the default rules, and these routes alone.

    Between the second stage and the third its packets follow the default rules; none is lost.
    """
    mine = tuple(message for route in routes for message in installs(ways, route)[::-1] if message.switch == switch)
    rules = default_rules(ways, switch)
    defaults = tuple(Install(switch=switch, rule=rule) for rule in rules)
    no_routes = Remove(switch=switch, cookie=flows.ROUTES_COOKIE, mask=flows.ROUTES_MASK)
    return defaults, (*_other_turns(ways, switch, rules), no_routes), mine


def _other_turns(ways: Ways, switch: str, rules: Collection[Rule]) -> Iterator[Remove]:
    """Removes every rule that turns packets round but these; other old rules are harmless, see `detour`."""
    kept = {rule.match for rule in rules}
    for a, b in ways.fabric.paths_between:
        for port in ways.switches[switch].ports:
            match = Match(src=ways.networks[a], dst=ways.networks[b], in_port=port.number)
            if match not in kept:
                yield Remove(switch=switch, cookie=flows.DEFAULT_COOKIE, match=match)


def installs(ways: Ways, route: Route) -> tuple[Install, ...]:
    """A route's rules, one for each switch, in the order in which packets pass them."""
    src, dst = ways.fabric.gpus[route.src], ways.fabric.gpus[route.dst]
    label = tag(route.tag)
    found = []
    for index, (switch, peer) in enumerate(zip(route.passed, (*route.passed[1:], dst.name), strict=True)):
        before = ways.port(switch, route.passed[index - 1]) if index else None
        match = Match(src=src.ip, dst=dst.ip, in_port=before, eth_dst=label if index else None)
        rewrite = label if index == 0 else dst.mac if peer == dst.name else None
        rule = Rule(
            priority=flows.ROUTE_PRIORITY,
            cookie=flows.route_cookie(route.generation),
            match=match,
            out_port=ways.port(switch, peer),
            eth_dst=rewrite,
        )
        found.append(Install(switch=switch, rule=rule))
    return tuple(found)


def _removal(ways: Ways, route: Route) -> tuple[Remove, ...]:
    """Removes a route, switch by switch from its source; other routes of its generation stay."""
    src, dst = ways.fabric.gpus[route.src], ways.fabric.gpus[route.dst]
    pair, cookie = Match(src=src.ip, dst=dst.ip), flows.route_cookie(route.generation)
    return tuple(Remove(switch=switch, cookie=cookie, match=pair) for switch in route.passed)


def _inwards(ways: Ways, here: Switch) -> Iterator[Rule]:
    """To every GPU of the switch's own site, if any; its leaf restores the MAC address."""
    for gpu in (gpu for gpu in ways.fabric.gpus if gpu.site == here.site):
        if gpu.leaf == here.name:
            yield _default_rule(Match(dst=gpu.ip), ways.port(here.name, gpu.name), eth_dst=gpu.mac)
        else:
            peer = gpu.leaf if here.kind == "spine" else ways.spine(gpu, here.name)
            yield _default_rule(Match(dst=gpu.ip), ways.port(here.name, peer))


def _outwards(ways: Ways, here: Switch) -> Iterator[Rule]:
    """From a leaf or a spine to the border router where the default path to every other site begins."""
    assert here.site is not None
    for site, network in enumerate(ways.networks):
        if not ways.joined(here.site, site):
            continue
        first = ways.over_wan(ways.fixed(here.site, site))[0]
        if here.kind == "spine":
            match = Match(src=ways.networks[here.site], dst=network)
            yield _default_rule(match, ways.port(here.name, first), eth_dst=tag(0))
        for gpu in (gpu for gpu in ways.fabric.gpus if gpu.leaf == here.name):
            yield _default_rule(Match(src=gpu.ip, dst=network), ways.port(here.name, ways.spine(gpu, first)))


def _over_wan(ways: Ways, here: Switch) -> Iterator[Rule]:
    for a, b in ways.fabric.paths_between:
        peer = ways.fallback(a, b).get(here.name)
        if peer is None:
            continue
        port, match = ways.port(here.name, peer), Match(src=ways.networks[a], dst=ways.networks[b])
        yield _default_rule(match, port, eth_dst=tag(0))
        # A packet that has lost its route may have to turn round.
        back = Match(src=match.src, dst=match.dst, in_port=port)
        yield Rule(
            priority=flows.TURN_PRIORITY,
            cookie=flows.DEFAULT_COOKIE,
            match=back,
            out_port=flows.IN_PORT,
            eth_dst=tag(0),
        )


def _default_rule(match: Match, out_port: int, *, eth_dst: str | None = None) -> Rule:
    return Rule(
        priority=flows.DEFAULT_PRIORITY, cookie=flows.DEFAULT_COOKIE, match=match, out_port=out_port, eth_dst=eth_dst
    )
