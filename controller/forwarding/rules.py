"""Translates routes to flow rules, and changes routes without losing a packet.

The default rules connect every GPU with every other: they match the destination within its site, and the pair of sites
on the default path over the WAN. A tunnel is a candidate path over the WAN. Its packets carry its tag in the
destination MAC, so that the IP header is unchanged; the spines of the source's site and all routers of the path except
the last match only this tag. From the last router on, the default rules lead to the destination, whose leaf restores
the MAC. Some tunnels also fix the spine after the path, by a rule at the last router. The source MAC carries the tag,
too, up to the destination, where it shows which path a packet has taken.

A route puts a pair of GPUs, or one of their flows, into a tunnel, by a rule at the source's leaf; the TCP source port
identifies the flow. Within a site, the route of a flow only selects its spine. Connections whose ports nobody knows
beforehand are spread: a rule of the pair gives each packet a channel, by a hash of its addresses and ports, and every
channel has a route in the leaf's second table, as if it were a flow.

No packet is lost while routes change, not even one in flight:
- The rules of a tunnel are confirmed before a leaf sends packets into it, and they are never changed or removed. Every
  packet therefore follows the old route or the new one, never a mixture, and one message to a leaf changes a route.
- The default rules of a leaf set the same fields as routes. Otherwise the first route of a pair would change the fields
  that Open vSwitch's cached decision depends on, and it would discard that decision: at full rate, more packets arrive
  before the next decision than can be queued for it.
- A packet with a tag that a switch does not know, because it has lost its rules, matches the default rules, which every
  router of every candidate path has. They clear the tag, so that the packet enters no tunnel again, and lead to the
  destination without a loop. A rule can only send a packet back out of its input port by OFPP_IN_PORT; such rules have
  TURN_PRIORITY.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from controller.forwarding import flow_mods
from controller.forwarding.flow_mods import NO_TUNNEL, Install, Match, Message, Remove, Rule, Stage, tunnel_tag
from controller.routing.switch_paths import FabricPaths
from topologies.fabric.addressing import Switch
from topologies.fabric.link_names import node_of


@dataclass(frozen=True, kw_only=True)
class FlowPath:
    """The path of a flow, as indices: its WAN `path`, -1 within a site, and the spine that it takes `up` in the
    source's site and `down` in the destination's site, -1 for the spine that the default rules take."""

    path: int
    up: int = -1
    down: int = -1


@dataclass(frozen=True, kw_only=True)
class Route:
    """The route of a pair of ranks that is off the default path: the index of its path, the name of the spine that the
    source's leaf sends to, and the generation that installed the route.

    With `port` it is the route of the pair's flow with that TCP source port, on any path (-1 within a site), and `down`
    is the index of the spine after the path, as in `FlowPath`. A `port` below 0 stands for a channel (`of_channel`),
    and SPREADING with a number of `channels` for the rule that gives them to the pair's packets.
    """

    src: int
    dst: int
    path: int
    spine: str
    generation: int
    port: int | None = None
    down: int = -1
    channels: int = 0

    @property
    def channel(self) -> int | None:
        """The channel whose route this is; None for another route."""
        return None if self.port is None or self.port >= 0 else -1 - self.port

    @property
    def is_of_flow(self) -> bool:
        """Whether this is the route of one flow."""
        return self.port is not None and self.port > SPREADING

    @property
    def key(self) -> tuple[int, int, int | None]:
        """The key of this route among the routes in force."""
        return self.src, self.dst, self.port

    @property
    def tunnel(self) -> int:
        """The number of the route's tunnel."""
        return flow_mods.tunnel_over(self.path, self.down)


SPREADING = 0
"""In place of a TCP source port: the rule that spreads a pair's packets over channels."""


def of_channel(channel: int) -> int:
    """Return what stands for a channel in place of a TCP source port."""
    return -1 - channel


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of routes, as `stages` of messages; `routes` and `tunnels` (numbers) are those installed after the last
    stage. `moves` are the messages of the last stage that need not wait for another stage, because they lead into
    tunnels whose rules are already installed."""

    stages: tuple[Stage, ...]
    moves: Stage
    routes: tuple[Route, ...]
    tunnels: frozenset[int]


def default_rules(paths: FabricPaths, switch: str) -> tuple[Rule, ...]:
    """Return the default rules of a switch, for all pairs of GPUs in one site or in two sites that the WAN joins."""
    here = paths.switches[switch]
    outwards = _outwards if here.kind in ("leaf", "spine") else _over_wan
    return (*_inwards(paths, here), *outwards(paths, here))


def tunnel_rules(paths: FabricPaths, switch: str, tunnel: int) -> tuple[Rule, ...]:
    """Return the rules of a tunnel, given its number, at a switch.

    There is one rule at every spine of the source's site, at every router of the path except the last, and at the last
    router if the tunnel fixes the spine after it. The rules do not depend on which cables are dead.
    """
    index, spine = flow_mods.path_and_spine(tunnel)
    path = paths.fabric.paths[index]
    here, routers = paths.switches[switch], paths.routers_of(path)
    passed = [node_of(name) for name in routers]
    if switch in passed[:-1]:
        peer = routers[passed.index(switch) + 1]
    elif switch == passed[-1] and spine >= 0:
        peer = paths.spines(path.dst_site)[spine]
    elif here.kind == "spine" and here.site == path.src_site:
        peer = routers[0]
    else:
        return ()
    rule = Rule(
        priority=flow_mods.TUNNEL_PRIORITY,
        cookie=flow_mods.TUNNEL_COOKIE,
        match=Match(eth_dst=tunnel_tag(tunnel)),
        out_port=paths.port(switch, peer),
    )
    return (rule,)


def change(
    paths: FabricPaths,
    old: Collection[Route],
    wanted: Mapping[tuple[int, int], int],
    *,
    generation: int,
    tunnels: Collection[int],
    of_flows: Mapping[tuple[int, int, int], FlowPath] = MappingProxyType({}),
) -> Change:
    """Return the change from the routes in force, `old`, to the `wanted` path of each pair of ranks.

    All other pairs return to the default path. `of_flows` are the paths of flows, by ranks and TCP source port, and of
    channels (`of_channel`); other flows take their pair's path. `tunnels` are those whose rules are installed. A route
    that does not change keeps its generation and its rule; a pair on the default path needs no route. New routes get
    `generation`, which no route in force may have.
    """
    before = {route.key: route for route in old}
    stay, fresh = list[Route](), list[Route]()
    for (src, dst), path in wanted.items():
        current = before.get((src, dst, None))
        spine = paths.spine(paths.fabric.gpus[src], paths.routers_of(paths.fabric.paths[path])[0])
        if current is not None and (current.path, current.spine) == (path, spine):
            stay.append(current)
        elif path != paths.default(src, dst):
            fresh.append(Route(src=src, dst=dst, path=path, spine=spine, generation=generation))
    for key, flow_path in of_flows.items():
        if flow_path.path < 0 and flow_path.up < 0:  # both GPUs at one leaf, or one is cut off
            continue
        route = _route_of_flow(paths, key, flow_path, generation)
        current = before.get(key)
        if current is not None and replace(current, generation=generation) == route:
            stay.append(current)
        else:
            fresh.append(route)
    for route in _spreading(fresh, stay, of_flows, generation):
        current = before.get(route.key)
        if current is not None and replace(current, generation=generation) == route:
            stay.append(current)
        else:
            fresh.append(route)
    new_tunnels = {route.tunnel for route in fresh if route.path >= 0}.difference(tunnels)
    return Change(
        stages=_stages(paths, before, stay, fresh, new_tunnels),
        moves=tuple(install(paths, route) for route in fresh if route.path >= 0 and route.tunnel not in new_tunnels),
        routes=(*stay, *fresh),
        tunnels=frozenset(new_tunnels.union(tunnels)),
    )


def _stages(
    paths: FabricPaths,
    before: Mapping[tuple[int, int, int | None], Route],
    stay: Collection[Route],
    fresh: Collection[Route],
    new_tunnels: Collection[int],
) -> tuple[Stage, ...]:
    """Return the stages from the routes `before`, by key, to those that `stay` and the `fresh` ones: new tunnels and
    channels first, then what sends packets into them, at last the removal of channels that no packet takes any more."""
    keys = {route.key for route in (*stay, *fresh)}
    gone = [route for key, route in before.items() if key not in keys]
    ahead = [route for route in fresh if route.channel is not None and route.key not in before]
    switches = [switch.name for switch in paths.fabric.switches]
    first: list[Message] = [one for switch in switches for one in _tunnel_installs(paths, switch, new_tunnels)]
    first += [install(paths, route) for route in ahead]
    leaves: list[Message] = [install(paths, route) for route in fresh if route not in ahead]
    leaves += [_removal(paths, route) for route in gone if route.channel is None]
    last = [_removal(paths, route) for route in gone if route.channel is not None]
    return tuple(tuple(stage) for stage in (first, leaves, last) if stage)


def _spreading(
    fresh: Collection[Route],
    stay: Collection[Route],
    of_flows: Mapping[tuple[int, int, int], FlowPath],
    generation: int,
) -> Iterator[Route]:
    """Yield the spreading rule of every pair all of whose channels have a route."""
    routed = Counter(route.key[:2] for route in (*fresh, *stay) if route.channel is not None)
    channels = Counter((src, dst) for src, dst, port in of_flows if port < 0)
    for (src, dst), count in channels.items():
        if routed[src, dst] == count:
            yield Route(src=src, dst=dst, path=-1, spine="", generation=generation, port=SPREADING, channels=count)


def _route_of_flow(paths: FabricPaths, key: tuple[int, int, int], flow_path: FlowPath, generation: int) -> Route:
    src, dst, port = key
    gpu = paths.fabric.gpus[src]
    if flow_path.up >= 0:
        spine = paths.spines(gpu.site)[flow_path.up]
    else:
        spine = paths.spine(gpu, paths.routers_of(paths.fabric.paths[flow_path.path])[0])
    return Route(
        src=src, dst=dst, path=flow_path.path, spine=spine, generation=generation, port=port, down=flow_path.down
    )


def detour(old: FabricPaths, new: FabricPaths, switch: str) -> Stage:
    """Return the messages that replace the default rules of `old` at a switch by those of `new`.

    Obsolete rules that send packets back out of their input port are removed, because they would return packets that a
    new rule sends to this switch. Other obsolete rules match no traffic and stay.
    """
    before, after = default_rules(old, switch), default_rules(new, switch)
    fresh = [Install(switch=switch, rule=rule) for rule in after if rule not in before]
    matches = {rule.match for rule in after}
    gone = [rule.match for rule in before if rule.match.in_port is not None and rule.match not in matches]
    return (*fresh, *(Remove(switch=switch, cookie=flow_mods.DEFAULT_COOKIE, match=match) for match in gone))


def greeting(
    paths: FabricPaths, switch: str, routes: Collection[Route], tunnels: Collection[int]
) -> tuple[Stage, Stage, Stage]:
    """Return the messages to a switch that has connected, which may hold any rules: they install the default rules and
    the rules of these tunnels, and replace all routes by these.

    Between the second stage and the third its packets follow the default rules; none is lost.
    """
    own_routes = tuple(message for message in (install(paths, route) for route in routes) if message.switch == switch)
    rules = default_rules(paths, switch)
    defaults = tuple(Install(switch=switch, rule=rule) for rule in rules)
    no_routes = Remove(switch=switch, cookie=flow_mods.ROUTES_COOKIE, mask=flow_mods.ROUTES_MASK)
    permanent = (*defaults, *_tunnel_installs(paths, switch, tunnels))
    return permanent, (*_obsolete_turns(paths, switch, rules), no_routes), own_routes


def _obsolete_turns(paths: FabricPaths, switch: str, rules: Collection[Rule]) -> Iterator[Remove]:
    """Yield the removal of every rule that sends packets back out of their input port, except those in `rules`; other
    old rules are harmless (see `detour`)."""
    kept = {rule.match for rule in rules}
    for a, b in paths.fabric.paths_between:
        for port in paths.switches[switch].ports:
            match = Match(src=paths.networks[a], dst=paths.networks[b], in_port=port.number)
            if match not in kept:
                yield Remove(switch=switch, cookie=flow_mods.DEFAULT_COOKIE, match=match)


def install(paths: FabricPaths, route: Route) -> Install:
    """Return the message that installs a route's rule, at the source's leaf."""
    leaf, of_flow = paths.fabric.gpus[route.src].leaf, route.port is not None
    tag = tunnel_tag(route.tunnel) if route.path >= 0 else None
    if route.port == SPREADING:
        rule = Rule(
            priority=flow_mods.SPREADING_PRIORITY,
            cookie=_cookie(route),
            match=_match(paths, route),
            channels=route.channels,
            seed=paths.fabric.spec.hash_seed,
        )
    else:
        rule = Rule(
            priority=flow_mods.FLOW_PRIORITY if of_flow else flow_mods.ROUTE_PRIORITY,
            cookie=_cookie(route),
            match=_match(paths, route),
            out_port=paths.port(leaf, route.spine),
            eth_dst=tag,
            eth_src=tag,
        )
    return Install(switch=leaf, rule=rule)


def _cookie(route: Route) -> int:
    if route.port is None or route.port > 0:
        return flow_mods.route_cookie(route.generation, of_flow=route.port is not None)
    return flow_mods.route_cookie(route.generation, of_flow=route.port < 0, of_channels=True)


def _match(paths: FabricPaths, route: Route) -> Match:
    src, dst = paths.fabric.gpus[route.src], paths.fabric.gpus[route.dst]
    return Match(src=src.ip, dst=dst.ip, tcp_src=route.port if route.is_of_flow else None, channel=route.channel)


def _removal(paths: FabricPaths, route: Route) -> Remove:
    """Return the message that removes a route's rule and keeps other routes of its generation."""
    leaf = paths.fabric.gpus[route.src].leaf
    return Remove(switch=leaf, cookie=_cookie(route), match=_match(paths, route))


def _tunnel_installs(paths: FabricPaths, switch: str, tunnels: Collection[int]) -> tuple[Install, ...]:
    return tuple(
        Install(switch=switch, rule=rule) for tunnel in tunnels for rule in tunnel_rules(paths, switch, tunnel)
    )


def _inwards(paths: FabricPaths, here: Switch) -> Iterator[Rule]:
    """Yield the rules to every GPU of the switch's site, if it has one; a GPU's leaf restores the MAC address."""
    for gpu in (gpu for gpu in paths.fabric.gpus if gpu.site == here.site):
        if gpu.leaf == here.name:
            yield _default_rule(Match(dst=gpu.ip), paths.port(here.name, gpu.name), eth_dst=gpu.mac)
        else:
            peer = gpu.leaf if here.kind == "spine" else paths.spine(gpu, here.name)
            yield _default_rule(Match(dst=gpu.ip), paths.port(here.name, peer))


def _outwards(paths: FabricPaths, here: Switch) -> Iterator[Rule]:
    """Yield the rules of a leaf or a spine towards the first border router of the default path to every other site."""
    assert here.site is not None
    for site, network in enumerate(paths.networks):
        if not paths.joined(here.site, site):
            continue
        first = paths.routers_of(paths.fixed(here.site, site))[0]
        if here.kind == "spine":
            match = Match(src=paths.networks[here.site], dst=network)
            yield _default_rule(match, paths.port(here.name, first), eth_dst=NO_TUNNEL)
        for gpu in (gpu for gpu in paths.fabric.gpus if gpu.leaf == here.name):
            port = paths.port(here.name, paths.spine(gpu, first))
            rule = _default_rule(Match(src=gpu.ip, dst=network), port, eth_dst=NO_TUNNEL)
            yield replace(rule, eth_src=NO_TUNNEL)


def _over_wan(paths: FabricPaths, here: Switch) -> Iterator[Rule]:
    for a, b in paths.fabric.paths_between:
        peer = paths.fallback(a, b).get(here.name)
        if peer is None:
            continue
        port, match = paths.port(here.name, peer), Match(src=paths.networks[a], dst=paths.networks[b])
        yield _default_rule(match, port, eth_dst=NO_TUNNEL)
        # A packet that has lost its route may have to go back to the router that sent it.
        back = _default_rule(replace(match, in_port=port), flow_mods.IN_PORT, eth_dst=NO_TUNNEL)
        yield replace(back, priority=flow_mods.TURN_PRIORITY)


def _default_rule(match: Match, out_port: int, *, eth_dst: str | None = None) -> Rule:
    return Rule(
        priority=flow_mods.DEFAULT_PRIORITY,
        cookie=flow_mods.DEFAULT_COOKIE,
        match=match,
        out_port=out_port,
        eth_dst=eth_dst,
    )
