"""The WAN between the sites: which routers and links join the border routers, and the paths a collective may take.

Graphs of names alone, without ports, addresses and conditions. The VM imports this module at every start, so it does
without networkx, which takes twice as long to import as all that it needs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations

from topologies.errors import FabricError, Mistake

WAN_PRESETS = ("mesh", "five-router")
MAX_PATHS = 1024
"""Most candidate paths from one site to another: the controller compares all of them for every collective."""
_MAX_PARTIAL_PATHS = 100_000  # bounds the search: a dense WAN has far more dead ends than paths

_ROUTER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,8}")
_RESERVED_NAME = re.compile(r"g\d+|s\d+[blp]\d+")
_FIVE_ROUTER_LINKS = (("R0", "R1"), ("R0", "R4"), ("R1", "R2"), ("R2", "R3"), ("R2", "R4"), ("R3", "R4"))

Links = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class WanSpec:
    """The WAN as declared: a preset, or its own transit routers and links (then `preset` is None).

    `mesh` links every border router to every border router of every other site. `five-router` (two sites) puts the
    transit routers R0..R4 between them, the border routers of site 0 on R0 and those of site 1 on R3; each of its
    links, those to the border routers included, is a WAN link with a bandwidth and a delay of its own.
    A link's end is a router's name or a border router's, as in "s0b1": border router 1 of site 0.
    """

    preset: str | None = "mesh"
    routers: tuple[str, ...] = ()
    links: Links = ()


@dataclass(frozen=True)
class WanGraph:
    """The WAN resolved: border routers by site, transit routers, and undirected links in the order declared."""

    border_routers: tuple[tuple[str, ...], ...]
    routers: tuple[str, ...]
    links: Links

    def neighbours(self) -> dict[str, tuple[str, ...]]:
        """Every node's neighbours, in the order in which the links were declared."""
        found: dict[str, list[str]] = {name: [] for site in self.border_routers for name in site}
        found |= {name: [] for name in self.routers}
        for a, b in self.links:
            found[a].append(b)
            found[b].append(a)
        return {name: tuple(others) for name, others in found.items()}


def resolve_wan(spec: WanSpec, border_routers: tuple[tuple[str, ...], ...]) -> WanGraph:
    """The graph `spec` declares over these border routers (names by site).

    Raises FabricError for an unknown preset, a preset with routers of its own, a router's name that is malformed,
    reserved or given twice, a link that is given twice, ends nowhere or where it began, and a graph in pieces.
    """
    if spec.preset is None:
        graph = WanGraph(border_routers, spec.routers, spec.links)
        mistakes = [*_router_mistakes(spec.routers), *_link_mistakes(graph)]
    else:
        mistakes = list(_preset_mistakes(spec, len(border_routers)))
        graph = _preset(spec.preset, border_routers) if not mistakes else WanGraph((), (), ())
    if not mistakes:
        mistakes = list(_connection_mistakes(graph))
    if mistakes:
        raise FabricError(mistakes)
    return graph


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
        yield Mistake("fabric.wan", f"no WAN is called {spec.preset!r}; allowed: {', '.join(WAN_PRESETS)}, or a table")
    elif spec.routers or spec.links:
        yield Mistake("fabric.wan", f"the WAN {spec.preset!r} has its own routers and links; give a preset or a table")
    elif spec.preset == "five-router" and sites != 2:
        yield Mistake("fabric.wan", f"the five-router WAN joins two sites, not {sites}; use mesh or a table")


def _router_mistakes(routers: Sequence[str]) -> Iterator[Mistake]:
    key = "fabric.wan.routers"
    for position, name in enumerate(routers):
        if not _ROUTER_NAME.fullmatch(name):
            yield Mistake(key, f"{name!r} is not a name for a router: one to nine letters, digits or _, a letter first")
        elif _RESERVED_NAME.fullmatch(name):
            yield Mistake(
                key, f"the name {name!r} is reserved for GPUs (g0), leaves (s0l0), spines (s0p0) and BRs (s0b0)"
            )
        elif name in routers[:position]:
            yield Mistake(key, f"the router {name!r} is named twice")


def _link_mistakes(graph: WanGraph) -> Iterator[Mistake]:
    key = "fabric.wan.links"
    nodes = {*(name for site in graph.border_routers for name in site), *graph.routers}
    seen: set[frozenset[str]] = set()
    for a, b in graph.links:
        unknown = [end for end in (a, b) if end not in nodes]
        if unknown:
            yield Mistake(key, f"{unknown[0]!r} is not a router of this WAN; its routers: {', '.join(sorted(nodes))}")
        elif a == b:
            yield Mistake(key, f"a link joins {a!r} to itself")
        elif frozenset((a, b)) in seen:
            yield Mistake(key, f"the link {a}-{b} is given twice; one link carries both directions")
        seen.add(frozenset((a, b)))


def _connection_mistakes(graph: WanGraph) -> Iterator[Mistake]:
    neighbours = graph.neighbours()
    start = next(iter(neighbours))
    reached, frontier = {start}, [start]
    while frontier:
        fresh = [name for name in neighbours[frontier.pop()] if name not in reached]
        reached.update(fresh)
        frontier.extend(fresh)
    cut_off = [name for name in neighbours if name not in reached]
    if cut_off:
        yield Mistake("fabric.wan.links", f"the WAN is in pieces: no link leads from {start} to {', '.join(cut_off)}")


def candidate_paths(graph: WanGraph) -> Mapping[tuple[int, int], tuple[tuple[str, ...], ...]]:
    """Every loop-free path from each site to each other, as the routers passed, both border routers included.

    Transit routers alone may lie between the two: a border router is the edge of its site, and no path leads through
    one on the way to another. The order is by source border router, destination border router, hops, then the order
    of declaration; the first is the fixed path: border router 0 to border router 0 with the fewest hops (where no
    path joins these two, the first that exists). Raises FabricError beyond MAX_PATHS paths between two sites.
    """
    neighbours = graph.neighbours()
    position = {name: index for index, name in enumerate(neighbours)}
    found: dict[tuple[int, int], tuple[tuple[str, ...], ...]] = {}
    for (a, near), (b, far) in permutations(enumerate(graph.border_routers), 2):
        paths = list(islice(_paths(neighbours, graph.routers, near, far), MAX_PATHS + 1))
        if len(paths) > MAX_PATHS:
            text = f"more than {MAX_PATHS} loop-free paths lead from site {a} to site {b}; remove links"
            raise FabricError([Mistake("fabric.wan", text)])
        paths.sort(key=lambda path: (position[path[0]], position[path[-1]], len(path), [position[n] for n in path]))
        found[a, b] = tuple(paths)
    return found


def _paths(
    neighbours: Mapping[str, Sequence[str]], routers: Sequence[str], near: Sequence[str], far: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Depth first from every border router of `near`; a path ends at the first border router it meets."""
    transit, goal = frozenset(routers), frozenset(far)
    stack: list[tuple[str, ...]] = [(name,) for name in near]
    for _ in range(_MAX_PARTIAL_PATHS):
        if not stack:
            return
        path = stack.pop()
        for name in neighbours[path[-1]]:
            if name in goal:
                yield (*path, name)
            elif name in transit and name not in path:
                stack.append((*path, name))
    raise FabricError([Mistake("fabric.wan", f"the WAN of {len(routers)} routers is too dense to list its paths")])
