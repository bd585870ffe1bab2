"""The WAN between the sites: the routers and links that join the border routers, and the candidate paths over them.

Nodes are names; links may have lengths and capacities. Ports, addresses and conditions are elsewhere. The VM imports
this module at every start, so networkx, whose import takes twice as long as all other imports there, is imported only
when shortest paths are computed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, compress, islice, pairwise, permutations, product
from math import fsum
from statistics import median
from typing import Any

from topologies.errors import FabricError, Mistake, did_you_mean, format_value, list_first
from topologies.fabric.link_names import both, end, node_of, number_of, numbers

WAN_PRESETS = ("mesh", "five-router")
MAX_PATHS = 1024
"""Most candidate paths from one site to another: the controller compares all of them for every collective."""
MAX_ALL_PATHS = 2**15 - 1
"""Most candidate paths of a fabric: a path's index is stored in 16 bits for every flow of every collective."""
_MAX_FLAWS = 20  # wrong links that are listed
_MAX_PARTIAL_PATHS = 100_000  # limits the search, as a dense WAN has far more dead ends than paths
MAP_PATHS = 4
"""Default number of candidate paths between two border routers of a WAN whose links have lengths."""
KM_PER_MS = 204.2
"""Speed of light in fibre, km/ms: c = 299,792.458 km/s divided by a group index of 1.468."""

MAX_IDLE_ROUTERS, MAX_IDLE_LINKS = 128, 512
"""In a larger WAN, the routers and links that no candidate path passes are left out: they would be switches and cables
without traffic."""

_ROUTER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,8}")
_RESERVED_NAME = re.compile(r"g\d+|s\d+[blnp]\d+")
_FIVE_ROUTER_LINKS = (("R0", "R1"), ("R0", "R4"), ("R1", "R2"), ("R2", "R3"), ("R2", "R4"), ("R3", "R4"))

Links = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class WanSpec:
    """The WAN as declared: a preset, or a list of transit routers and links (then `preset` is None).

    `mesh` links every border router to every border router of every other site. `five-router` (two sites) puts the
    transit routers R0..R4 between the sites, with the border routers of site 0 linked to R0 and those of site 1 to R3;
    each of its links, those to the border routers included, is a WAN link with a rate and a delay.
    A link's end is the name of a transit router or of a border router ("s0b1": border router 1 of site 0). Two nodes
    may have several links, each with a cable of its own.

    `delays_s` are the delays of all links (None: `conditions.wan_delay`), or empty. `km` are the lengths of all links
    (None: unknown), or empty; `rates_bps` are the links' capacities (0: none), or empty. They hold for both directions,
    unless `back_km` and `back_rates_bps` have those from a link's second end to its first. For a map
    (`topologies.fabric.maps`), `name` is the map's name, `titles` are its names of the routers, and `places` their
    longitudes and latitudes in degrees. If it `is_direct`, its links were measured from end to end: those between two
    sites join their border routers, and there are no transit routers. `ids` are the nodes' ids in the map's file,
    `notes` tell what reading the map left out or assumed, and `flaws` what is wrong with a link's data, by the link's
    index.
    """

    preset: str | None = "mesh"
    routers: tuple[str, ...] = ()
    links: Links = ()
    name: str = ""
    is_direct: bool = False
    titles: tuple[str, ...] = ()
    places: tuple[tuple[float, float], ...] = ()
    km: tuple[float | None, ...] = ()
    rates_bps: tuple[int, ...] = ()
    back_km: tuple[float | None, ...] = ()
    back_rates_bps: tuple[int, ...] = ()
    delays_s: tuple[float | None, ...] = ()
    ids: tuple[str, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    flaws: tuple[tuple[int, str], ...] = ()

    def nodes_named(self, name: str) -> tuple[int, ...]:
        """Return the indices of the routers with that title or, if there is none, with that name.

        Case and punctuation are ignored, unless that leaves several of which one is spelled exactly so.
        """
        for names in (self.titles, self.routers):
            alike = [index for index, known in enumerate(names) if _normalized(known) == _normalized(name)]
            exact = [index for index in alike if names[index] == name]
            if alike:
                return tuple(exact if len(exact) == 1 else alike)
        return ()


def _normalized(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold())) or name


@dataclass(frozen=True)
class WanGraph:
    """The WAN as a graph: border routers by site, transit routers, and undirected links in the order of declaration.

    `km` are the lengths of all links (None: unknown), or empty, and `back_km` those of the second directions if they
    differ; `delays_s` are the links' own delays, or empty. `capacity_bps` maps directed links, "A>B", to declared
    capacities. `notes` tell what was left out, and `unmeasured` are the links without a length that candidate paths
    pass.
    """

    border_routers: tuple[tuple[str, ...], ...]
    routers: tuple[str, ...]
    links: Links
    km: tuple[float | None, ...] = ()
    capacity_bps: Mapping[str, int] = field(default_factory=dict)
    back_km: tuple[float | None, ...] = ()
    notes: tuple[str, ...] = ()
    unmeasured: Links = ()
    delays_s: tuple[float | None, ...] = ()

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Which of the links between its two nodes each link is, from 1 on."""
        return numbers(self.links)

    @cached_property
    def names(self) -> tuple[tuple[str, str], ...]:
        """The names of both directions of each link, "A>B" and "B>A"."""
        return link_names(self.links)

    @cached_property
    def delay_s(self) -> Mapping[str, float]:
        """The delays of links with delays or lengths by directed link, "A>B": whole nanoseconds, in seconds."""
        delays = {
            name: delay_s
            for names, delay_s in zip(self.names, self.delays_s, strict=False)
            for name in names
            if delay_s is not None
        }
        lengths = {
            name: km
            for names, *each in zip(self.names, self.km, self.back_km or self.km, strict=False)
            for name, km in zip(names, each, strict=True)
        }
        return delays | {name: round(km / KM_PER_MS * 1e6) / 1e9 for name, km in lengths.items() if km is not None}

    @cached_property
    def path_km(self) -> tuple[float, ...]:
        """The length of every link for the choice of candidate paths, the mean of both directions; empty if links have
        no lengths. A link of unknown length counts as the median of the others."""
        ways = zip(self.km, self.back_km or self.km, strict=True)
        means = [None if there is None or back is None else (there + back) / 2 for there, back in ways]
        transit = {*self.routers}
        known = [km for km, ends in zip(means, self.links, strict=False) if km is not None and transit.issuperset(ends)]
        usual = median(known) if known else 1.0
        return tuple(usual if km is None else km for km in means)

    def without(self, routers: Set[str], why: str, links: Set[tuple[str, str]] = frozenset()) -> "WanGraph":
        """Return the graph without these routers, their links and these links, with a note that they were left out."""
        kept = [routers.isdisjoint(ends) and ends not in links for ends in self.links]
        named = [name for name in self.routers if name in routers]
        what = [f"{len(named):,} router{'s' * (len(named) != 1)} ({list_first(named, 3)})"] if named else []
        if gone := kept.count(False):
            what.append(f"{gone:,} link{'s' * (gone != 1)}")
        return replace(
            self,
            routers=tuple(name for name in self.routers if name not in routers),
            links=tuple(compress(self.links, kept)),
            km=tuple(compress(self.km, kept)),
            back_km=tuple(compress(self.back_km, kept)),
            delays_s=tuple(compress(self.delays_s, kept)),
            notes=(*self.notes, f"{' and '.join(what)} of the WAN {why} and are left out"),
        )

    def neighbours(self) -> dict[str, tuple[str, ...]]:
        """Return every node's neighbours as it knows them (`link_names.end`), in the order in which the links were
        declared."""
        nodes = (*(name for site in self.border_routers for name in site), *self.routers)
        neighbours: dict[str, list[str]] = {name: [] for name in nodes}
        for (a, b), number in zip(self.links, self.numbers, strict=True):
            neighbours[a].append(end(b, number))
            neighbours[b].append(end(a, number))
        return {name: tuple(others) for name, others in neighbours.items()}


def is_router_name(name: str) -> bool:
    """Return whether a transit router may have that name; the forms of names of nodes in sites are reserved."""
    return _ROUTER_NAME.fullmatch(name) is not None and _RESERVED_NAME.fullmatch(name) is None


def link_names(links: Links) -> tuple[tuple[str, str], ...]:
    """Return the names of both directions of each of these links."""
    return tuple(both(*ends, number) for ends, number in zip(links, numbers(links), strict=True))


def resolve_wan(spec: WanSpec, border_routers: tuple[tuple[str, ...], ...], sites: tuple[str, ...] = ()) -> WanGraph:
    """Build the declared graph over these border routers (names by site).

    `sites` gives each site a router, by name or title: a link of length 0 joins each of the site's border routers to
    it, and the router still carries transit traffic; of a direct WAN the links between the sites are left, from border
    router to border router. Routers without a connection to the sites are left out, with their links.

    Raises FabricError for an unknown preset, a preset with routers or sites, a router name that is malformed, reserved
    or given twice, a link that joins a node to itself or has an unknown end, a site without a known router or with a
    name that several have, and border routers that are not connected.
    """
    if spec.preset is None:
        mistakes = list(_site_mistakes(spec, sites, len(border_routers)))
        if spec.is_direct and sites and not mistakes:
            return resolve_wan(_between_sites(spec, border_routers, sites), border_routers)
        nodes = [spec.routers[spec.nodes_named(name)[0]] for name in sites] if not mistakes else []
        access = tuple((br, router) for brs, router in zip(border_routers, nodes, strict=False) for br in brs)
        no_km = (0.0,) * len(access)
        km, back_km, delays_s = (((*each, *no_km) if each else ()) for each in (spec.km, spec.back_km, spec.delays_s))
        links = (*spec.links, *access)
        graph = WanGraph(border_routers, spec.routers, links, km, _capacities(spec), back_km, delays_s=delays_s)
        mistakes += [*_router_mistakes(spec.routers), *_link_mistakes(graph)]
    else:
        mistakes = list(_preset_mistakes(spec, len(border_routers)))
        if sites:
            text = f"the WAN {format_value(spec.preset)} has no nodes for sites; allowed: a map or a table of routers"
            mistakes.append(Mistake("fabric.sites", text))
        graph = _preset(spec.preset, border_routers) if not mistakes else WanGraph((), (), ())
    if not mistakes:
        reached = _reached(graph)
        mistakes = list(_connection_mistakes(graph, reached))
        if cut_off := [name for name in graph.routers if name not in reached]:
            graph = graph.without({*cut_off}, "have no connection to the sites")
    if mistakes:
        raise FabricError(mistakes)
    return graph


def _between_sites(spec: WanSpec, border_routers: tuple[tuple[str, ...], ...], sites: tuple[str, ...]) -> WanSpec:
    """Return the WAN of a direct one's links between these sites, each from every border router to every one."""
    site = {spec.routers[spec.nodes_named(name)[0]]: index for index, name in enumerate(sites)}
    ends = [
        (index, (a, b))
        for index, (near, far) in enumerate(spec.links)
        if near in site and far in site
        for a in border_routers[site[near]]
        for b in border_routers[site[far]]
    ]

    def kept(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(values[index] for index, _ in ends) if values else ()

    return WanSpec(
        preset=None,
        links=tuple(pair for _, pair in ends),
        km=kept(spec.km),
        back_km=kept(spec.back_km),
        rates_bps=kept(spec.rates_bps),
        back_rates_bps=kept(spec.back_rates_bps),
        delays_s=kept(spec.delays_s),
    )


def _capacities(spec: WanSpec) -> dict[str, int]:
    """Return the declared capacities by directed link, "A>B"."""
    ways = zip(spec.rates_bps, spec.back_rates_bps or spec.rates_bps, strict=True)
    named = (zip(names, rates, strict=True) for names, rates in zip(link_names(spec.links), ways, strict=False))
    return {name: rate_bps for pairs in named for name, rate_bps in pairs if rate_bps}


def with_measured_paths(
    graph: WanGraph, candidates: Mapping[tuple[int, int], tuple[tuple[str, ...], ...]], spec: WanSpec
) -> WanGraph:
    """Return the graph that is declared by `spec` with its `unmeasured` links, for these candidate paths.

    In a WAN of more than MAX_IDLE_ROUTERS or MAX_IDLE_LINKS, what no candidate path passes is left out. Raises
    FabricError for a candidate path over a link whose data are wrong (`spec.flaws`).
    """
    used = {frozenset(map(node_of, hop)) for paths in candidates.values() for path in paths for hop in pairwise(path)}
    flaws = {frozenset(spec.links[index]): text for index, text in spec.flaws}
    if wrong := [text for ends, text in flaws.items() if ends in used]:
        raise FabricError(Mistake("fabric.wan", text) for text in wrong[:_MAX_FLAWS])
    lengths = zip(graph.links, graph.km, graph.back_km or graph.km, strict=True) if graph.km else ()
    unmeasured = tuple(ends for ends, *each in lengths if None in each and frozenset(ends) in used)
    graph = replace(graph, unmeasured=unmeasured)
    if flaws:
        text = (
            f"the data of {len(flaws):,} links that no candidate path passes are not used: {next(iter(flaws.values()))}"
        )
        graph = replace(graph, notes=(*graph.notes, text))
    if len(graph.routers) <= MAX_IDLE_ROUTERS and len(spec.links) <= MAX_IDLE_LINKS:
        return graph
    idle, unused = {*graph.routers}.difference(*used), {ends for ends in graph.links if frozenset(ends) not in used}
    return graph.without(idle, "lie on no candidate path", unused) if idle or unused else graph


def _preset(name: str, border_routers: tuple[tuple[str, ...], ...]) -> WanGraph:
    if name == "five-router":
        near, far = border_routers
        access = (*((router, "R0") for router in near), *((router, "R3") for router in far))
        return WanGraph(border_routers, ("R0", "R1", "R2", "R3", "R4"), (*_FIVE_ROUTER_LINKS, *access))
    links = tuple(
        (a, b)
        for site, near in enumerate(border_routers)
        for far in border_routers[site + 1 :]
        for a in near
        for b in far
    )
    return WanGraph(border_routers, (), links)


def _preset_mistakes(spec: WanSpec, sites: int) -> Iterator[Mistake]:
    if spec.preset not in WAN_PRESETS:
        yield Mistake(
            "fabric.wan", f"unknown WAN {format_value(spec.preset)}; allowed: {', '.join(WAN_PRESETS)}, or a table"
        )
    elif spec.routers or spec.links:
        text = f"the WAN {format_value(spec.preset)} has its own routers and links; allowed: a preset or a table"
        yield Mistake("fabric.wan", text)
    elif spec.preset == "five-router" and sites != 2:
        yield Mistake("fabric.wan", f"the five-router WAN joins two sites, not {sites}; allowed: mesh or a table")


def _site_mistakes(spec: WanSpec, sites: Sequence[str], count: int) -> Iterator[Mistake]:
    key, nodes = "fabric.sites", spec.titles or spec.routers
    if sites and len(sites) != count:
        text = f"has {len(sites)} for the {count} sites of fabric.gpus; allowed: one node for each site"
        yield Mistake(key, text)
    elif not sites and spec.name:
        yield Mistake(key, f"is missing; allowed: a node of {spec.name} for each site: {list_first(nodes, 8)}")
    found = [spec.nodes_named(name) for name in sites]
    for name, indices in zip(sites, found, strict=True):
        if not indices:
            near = did_you_mean(name, nodes)
            text = f"{format_value(name)} is not a node of this WAN; allowed: {list_first(nodes, 8)}{near}"
            yield Mistake(key, text)
        elif len(indices) > 1:
            routers = [spec.routers[index] for index in indices]
            ids = [
                f"{spec.routers[index]} (node {format_value(id_)})" for index in indices for id_ in spec.ids[index:][:1]
            ]
            text = (
                f"{format_value(name)} is the name of {len(indices)} nodes of this WAN: {list_first(ids or routers, 8)}"
            )
            yield Mistake(key, f"{text}; allowed: the name of one router, such as {routers[0]}")
    for site, (name, indices) in enumerate(zip(sites, found, strict=True)):
        if len(indices) == 1 and indices in found[:site]:
            yield Mistake(key, f"{format_value(name)} is the node of two sites; allowed: each node once")


def _router_mistakes(routers: Sequence[str]) -> Iterator[Mistake]:
    key = "fabric.wan.routers"
    for position, name in enumerate(routers):
        if not _ROUTER_NAME.fullmatch(name):
            allowed = "one to nine letters, digits or _, a letter first"
            yield Mistake(key, f"{format_value(name)} is not a name for a router; allowed: {allowed}")
        elif _RESERVED_NAME.fullmatch(name):
            names = "GPUs (g0), NICs (s0n0), leaves (s0l0), spines (s0p0), BRs (s0b0)"
            yield Mistake(key, f"{format_value(name)} is reserved for {names}; allowed: another name")
        elif name in routers[:position]:
            yield Mistake(key, f"the router {format_value(name)} is named twice; allowed: once")


def _link_mistakes(graph: WanGraph) -> Iterator[Mistake]:
    key = "fabric.wan.links"
    nodes = {*(name for site in graph.border_routers for name in site), *graph.routers}
    for a, b in graph.links:
        unknown = [end for end in (a, b) if end not in nodes]
        if unknown:
            allowed = ", ".join(sorted(nodes))
            yield Mistake(key, f"{format_value(unknown[0])} is not a router of this WAN; allowed: {allowed}")
        elif a == b:
            yield Mistake(key, f"a link joins {format_value(a)} to itself; allowed: two routers")


def _reached(graph: WanGraph) -> set[str]:
    """Return the nodes with links that are connected to the first border router, over the WAN or through sites."""
    neighbours = graph.neighbours()
    of_site = {name: names for names in graph.border_routers for name in names}
    start = next(iter(neighbours))
    reached, frontier = {start}, [start]
    while frontier:
        name = frontier.pop()
        joined = [*map(node_of, neighbours[name]), *(other for other in of_site.get(name, ()) if neighbours[other])]
        fresh = [other for other in dict.fromkeys(joined) if other not in reached]
        reached.update(fresh)
        frontier.extend(fresh)
    return reached


def _connection_mistakes(graph: WanGraph, reached: Set[str]) -> Iterator[Mistake]:
    border_routers = [name for site in graph.border_routers for name in site]
    cut_off = [name for name in border_routers if name not in reached]
    if cut_off:
        text = f"the WAN is not connected: no link leads from {border_routers[0]} to {list_first(cut_off, 8)}"
        fewer = _linked_counts(graph, reached)
        numbers = str(fewer[0] if len({*fewer}) == 1 else fewer)
        allowed = "; allowed: links to every border router" + f", or fabric.border_routers = {numbers}" * bool(fewer)
        yield Mistake("fabric.wan.links", text + allowed)


def _linked_counts(graph: WanGraph, reached: Set[str]) -> list[int]:
    """Return with how many border routers of each site the WAN would be connected; empty if fewer are no remedy."""
    neighbours = graph.neighbours()
    linked = [[name for name in site if neighbours[name]] for site in graph.border_routers]
    pairs = zip(linked, graph.border_routers, strict=True)
    are_first = all(names and names == [*site[: len(names)]] for names, site in pairs)
    are_reached = all(name in reached for names in linked for name in names)
    return [len(names) for names in linked] if are_first and are_reached else []


def candidate_paths(graph: WanGraph, most: int | None = None) -> Mapping[tuple[int, int], tuple[tuple[str, ...], ...]]:
    """Return the candidate paths from each site to each other: loop-free lists of routers, border routers included. All
    but the first are named as the one before knows them (`link_names.end`): links between the same routers make paths
    of their own.

    `most` limits the paths between every two border routers to the shortest ones: by length, or by hops if links have
    no lengths. By default all paths are candidates; if links have lengths, MAP_PATHS are and, for each link that all of
    those pass, the shortest path without it, so that a single link failure leaves a candidate path whenever the WAN has
    any. Only transit routers may lie between the two border routers: a border router is the edge of its site and
    carries no transit traffic. Paths are sorted by source border router, destination border router, length, hops, and
    order of declaration, of their routers and then of their links. The first is the fixed path: the shortest from
    border router 0 to border router 0 (if no path joins those two, the first that exists). Raises FabricError for more
    than MAX_PATHS paths between two sites, and for more than MAX_ALL_PATHS in all.
    """
    neighbours = graph.neighbours()
    position = {name: index for index, name in enumerate(neighbours)}
    km = {name: km for names, km in zip(graph.names, graph.path_km, strict=False) for name in names}
    shortest = _shortest_paths(graph, most or MAP_PATHS, spares=most is None) if most or km else None

    def order(path: tuple[str, ...]) -> tuple[int, int, float, int, list[int], list[int]]:
        length = fsum(km[f"{node_of(a)}>{b}"] for a, b in pairwise(path)) if km else 0.0
        at = [position[node_of(name)] for name in path]
        return at[0], at[-1], length, len(path), at, list(map(number_of, path))

    candidates: dict[tuple[int, int], tuple[tuple[str, ...], ...]] = {}
    for (a, near), (b, far) in permutations(enumerate(graph.border_routers), 2):
        if shortest is None:
            paths = list(islice(_all_paths(neighbours, graph.routers, near, far), MAX_PATHS + 1))
        else:
            paths = [path for ends in product(near, far) for path in shortest[ends]]
        if len(paths) > MAX_PATHS:
            text = f"more than {MAX_PATHS} loop-free paths lead from site {a} to site {b}; remove links"
            raise FabricError([Mistake("fabric.wan", text if shortest is None else f"{text}, or lower fabric.paths")])
        candidates[a, b] = tuple(sorted(paths, key=order))
    if (count := sum(map(len, candidates.values()))) > MAX_ALL_PATHS:
        text = f"{count:,} paths lead from site to site; allowed: {MAX_ALL_PATHS:,}, so fewer border routers or sites"
        raise FabricError([Mistake("fabric.wan", text if shortest is None else f"{text}, or a lower fabric.paths")])
    return candidates


def _shortest_paths(graph: WanGraph, most: int, *, spares: bool) -> Mapping[tuple[str, str], list[tuple[str, ...]]]:
    """Return the `most` shortest paths between every two border routers of different sites, the same both ways.

    With `spares` they include, for each link that all of them pass, the shortest path without it. networkx finds them
    by the algorithm of Yen (Management Science 17, 1971).
    """
    import networkx

    whole, lengths = networkx.Graph(), graph.path_km or [1.0] * len(graph.links)
    for (a, b), number, km in zip(graph.links, graph.numbers, lengths, strict=True):
        # A further link between two nodes gets a node in its middle, as a graph has one edge between two nodes.
        through = (a, b) if number == 1 else (a, (a, b, number), b)
        networkx.add_path(whole, through, km=km / (len(through) - 1))
    middles = [node for node in whole if not isinstance(node, str)]
    shortest: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for near, far in combinations(graph.border_routers, 2):
        for ends in product(near, far):
            among = [*graph.routers, *ends, *middles]
            between = whole.subgraph(among).copy() if {*ends} <= {*whole} else networkx.Graph()
            try:
                found = [*islice(networkx.shortest_simple_paths(between, *ends, weight="km"), most)]
            except (networkx.NetworkXNoPath, networkx.NodeNotFound):
                found = []
            for link in pairwise(found[0]) if spares and found else ():
                if all(frozenset(link) in map(frozenset, pairwise(path)) for path in found):
                    without = networkx.restricted_view(between, [], [link])
                    if networkx.has_path(without, *ends):
                        found.append(networkx.shortest_path(without, *ends, weight="km"))
            paths = list(dict.fromkeys(map(_over_links, found)))
            shortest[ends] = paths
            shortest[ends[::-1]] = [_turned(path) for path in paths]
    return shortest


def _over_links(path: Sequence[Any]) -> tuple[str, ...]:
    """Return a path through nodes and the middles of links, each two nodes with the link's number, as
    `candidate_paths` does."""
    hops = [(before, name) for before, name in pairwise(path) if isinstance(name, str)]
    names = (name if isinstance(before, str) else end(name, before[2]) for before, name in hops)
    return (path[0], *names)


def _turned(path: Sequence[str]) -> tuple[str, ...]:
    """Return a path in the other direction, over the same cables."""
    nodes = [node_of(name) for name in path[::-1]]
    return (nodes[0], *(end(name, number_of(far)) for name, far in zip(nodes[1:], path[:0:-1], strict=True)))


def _all_paths(
    neighbours: Mapping[str, Sequence[str]], routers: Sequence[str], near: Sequence[str], far: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Yield all loop-free paths from border routers `near` to `far` over transit routers, by depth-first search."""
    transit, goal = frozenset(routers), frozenset(far)
    stack: list[tuple[str, ...]] = [(name,) for name in near]
    for _ in range(_MAX_PARTIAL_PATHS):
        if not stack:
            return
        path = stack.pop()
        for name in neighbours[node_of(path[-1])]:
            node = node_of(name)
            if node in goal:
                yield (*path, name)
            elif node in transit and node not in map(node_of, path):
                stack.append((*path, name))
    raise FabricError([Mistake("fabric.wan", f"the WAN of {len(routers)} routers is too dense to list its paths")])
