"""The declared fabric: everything about the network that is fixed before an experiment begins.

`build_fabric` turns a FabricSpec into a Fabric: names, ranks, ports, datapath ids and addresses, the logical links
whose conditions are sampled, and the candidate paths over the WAN. The conditions are in `topologies.conditions`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count, pairwise, permutations

import numpy as np
import numpy.typing as npt

from topologies.errors import FabricError, Mistake, format_value
from topologies.fabric.addressing import Cable, Gpu, Switch, wire
from topologies.fabric.link_names import end, node_of
from topologies.fabric.wan import WanGraph, WanSpec, candidate_paths, resolve_wan, with_measured_paths

MAX_SITES = 10
MAX_GPUS_PER_SITE = 256
MAX_SWITCHES_PER_TIER = 32

_GPUS = re.compile(r"[0-9]{1,6}(\+[0-9]{1,6})*")

GRAINS = ("logical", "physical")
"""The links that have conditions and that flows share: logical links (in a site one for every two GPUs and direction),
or the ports of cables."""

ROUTINGS = ("single", "ecmp", "spray", "te")
"""How flows are routed if the mode does not choose their paths: "single": over the fixed path of their two GPUs;
"ecmp": over a path chosen by a hash of the flow; "spray": in pieces over all paths (`controller.routing.multipath`);
"te": in pieces over rate-limited tunnels (`controller.routing.traffic_engineering`)."""

TE_OBJECTIVES = ("delay", "utilisation")
"""What the split of demands over tunnels minimises, at the rates that demands get: the mean delay, or the highest
utilisation of a WAN link and, of all splits with the least, the mean delay."""

MAX_PIECES = 64
"""Most pieces into which a message is divided over tunnels."""

MAX_HASH_SEED = 2**63 - 1

IndexTable = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class FabricSpec:
    """A fabric as declared: `gpus_per_site[i]` GPUs in site i; the other counts are one number, or one per site.

    A single site has no WAN: no border routers, whatever `border_routers` and `wan` say, and no paths between sites.
    `grain` is one of GRAINS (`topologies.fabric.ports`) and `routing` one of ROUTINGS. `hash_seed` (0 to
    MAX_HASH_SEED) seeds the hash of "ecmp", `pieces` (1 to MAX_PIECES) is the number of pieces of "te" and
    `objective` its objective, one of TE_OBJECTIVES. `sites` names the WAN router at each site (`wan.resolve_wan`),
    and `paths` is the number of candidate paths between two border routers (`wan.candidate_paths`). With `rails`,
    planes replace leaves and spines: each GPU has a NIC with one port on each of `rails` planes, and a plane is one
    switch in each site, cabled to the site's border routers. `oversubscription` gives, for each tier of switches
    within a site from the bottom up, the ratio of its capacity down to its capacity up (`ports.shares_of_rate`); it
    is empty if all ports within the sites have the same rate.
    """

    gpus_per_site: tuple[int, ...] = (4, 4)
    leaves: int | tuple[int, ...] = 2
    spines: int | tuple[int, ...] = 2
    border_routers: int | tuple[int, ...] = 2
    wan: WanSpec = field(default_factory=WanSpec)
    grain: str = "logical"
    routing: str = "single"
    hash_seed: int = 1
    pieces: int = 16
    objective: str = TE_OBJECTIVES[0]
    sites: tuple[str, ...] = ()
    paths: int | None = None
    rails: int | None = None
    oversubscription: tuple[float, ...] = ()

    @property
    def has_planes(self) -> bool:
        """Whether GPUs are on several planes; flows are then spread over the planes under every routing."""
        return self.rails is not None and self.rails > 1

    @classmethod
    def parse(
        cls, *, gpus: int | str = 8, leaves: int = 2, spines: int = 2, border_routers: int = 2, wan: str = "mesh"
    ) -> "FabricSpec":
        """Make the spec of a fabric declared on a command line, the same for `mn --topo` and for the controller.

        `gpus` is a total that is divided over two sites, or a number per site: "3+5". `wan` is the name of a preset.
        Raises FabricError if `gpus` is malformed; `build_fabric` checks whether the fabric can be built.
        """
        text = str(gpus)
        if _GPUS.fullmatch(text) is None:
            wrong = f'"{text[:40]}" is not a number of GPUs; give a total, or one number per site such as 3+5'
            raise FabricError([Mistake("fabric.gpus", wrong)])
        return cls(
            gpus_per_site=tuple(int(count) for count in text.split("+")) if "+" in text else even_split(int(text)),
            leaves=leaves,
            spines=spines,
            border_routers=border_routers,
            wan=WanSpec(preset=wan),
        )


@dataclass(frozen=True, kw_only=True)
class LogicalLink:
    """A directed link whose conditions are sampled.

    `kind` is "intra" (GPU to GPU in one site), "to_br" (GPU to border router), "from_br" (border router to GPU) or
    "wan"; `index` is the link's column in every array over links. `number` tells the links between the same two nodes
    apart, from 1 on.
    """

    index: int
    kind: str
    src: str
    dst: str
    number: int = 1

    @property
    def name(self) -> str:
        """The link's name in traces and reports: "g0>g1", "s0b0>s1b0#2"."""
        return f"{self.src}>{self.far_end}"

    @property
    def far_end(self) -> str:
        """The destination as the source knows it (`link_names.end`)."""
        return end(self.dst, self.number)

    @property
    def near_end(self) -> str:
        """The source as the destination knows it."""
        return end(self.src, self.number)


@dataclass(frozen=True, kw_only=True)
class WanPath:
    """A candidate path: from a border router of one site, over WAN links, to a border router of another.

    `index` is its index in `Fabric.paths`; `src_br` and `dst_br` are indices into `Fabric.border_routers`; `links` are
    indices of logical links.
    """

    index: int
    src_site: int
    dst_site: int
    src_br: int
    dst_br: int
    links: tuple[int, ...]
    name: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Fabric:
    """A valid fabric: GPUs in rank order, switches, cables, logical links and candidate paths.

    `border_routers` are the names of all sites' border routers, `br_sites` the site of each. `paths_between[a, b]` are
    the candidate paths from site a to site b, the fixed path first; `paths` are all candidate paths. `site_cycle` is
    the order in which the fixed ring visits the sites: 0, 1, 2 ... if the WAN allows it; None if no ring can visit
    every site once. `wan` is the WAN's graph.
    """

    spec: FabricSpec
    wan: WanGraph
    gpus: tuple[Gpu, ...]
    switches: tuple[Switch, ...]
    cables: tuple[Cable, ...]
    border_routers: tuple[str, ...]
    br_sites: tuple[int, ...]
    links: tuple[LogicalLink, ...]
    paths: tuple[WanPath, ...]
    paths_between: Mapping[tuple[int, int], tuple[WanPath, ...]]
    site_cycle: tuple[int, ...] | None

    @property
    def gpus_per_site(self) -> tuple[int, ...]:
        """The number of GPUs in each site; ranks are numbered through site 0 first, then site 1, and so on."""
        return self.spec.gpus_per_site

    @cached_property
    def gpu_sites(self) -> IndexTable:
        """The site of every rank, [n]."""
        return np.array([gpu.site for gpu in self.gpus], dtype=np.intp)

    @cached_property
    def intra_index(self) -> IndexTable:
        """The logical link from rank to rank, [n, n]; -1 between different sites and from a GPU to itself."""
        return self._index_table("intra", self._gpu_names, self._gpu_names)

    @cached_property
    def to_br_index(self) -> IndexTable:
        """The logical link from rank to border router, [n, B]; -1 across sites."""
        return self._index_table("to_br", self._gpu_names, self.border_routers)

    @cached_property
    def from_br_index(self) -> IndexTable:
        """The logical link from border router to rank, [B, n]; -1 across sites."""
        return self._index_table("from_br", self.border_routers, self._gpu_names)

    @property
    def unjoined_sites(self) -> tuple[tuple[int, int], ...]:
        """The pairs of sites, the smaller number first, that no candidate path joins."""
        return tuple(pair for pair, paths in self.paths_between.items() if not paths and pair[0] < pair[1])

    def edge_links(self, src: int, dst: int, path: int) -> tuple[int, ...]:
        """Return the logical links, in order, from rank to rank over the WAN path of that index, -1 within a site.

        Raises ValueError if the path does not lead from `src` to `dst`, IndexError if there is no such rank or path.
        """
        links = [self.intra_index[src, dst]]
        if path >= 0:
            over = self.paths[path]
            links = [self.to_br_index[src, over.src_br], *over.links, self.from_br_index[over.dst_br, dst]]
        if min(links) < 0:
            raise ValueError(f"no path {path} leads from rank {src} to rank {dst}")
        return tuple(int(link) for link in links)

    @property
    def _gpu_names(self) -> tuple[str, ...]:
        return tuple(gpu.name for gpu in self.gpus)

    def _index_table(self, kind: str, rows: tuple[str, ...], columns: tuple[str, ...]) -> IndexTable:
        row = {name: index for index, name in enumerate(rows)}
        column = {name: index for index, name in enumerate(columns)}
        table = np.full((len(rows), len(columns)), -1, dtype=np.intp)
        for link in self.links:
            if link.kind == kind and link.src in row and link.dst in column:  # a part of a fabric has not all of them
                table[row[link.src], column[link.dst]] = link.index
        table.setflags(write=False)
        return table


def even_split(gpus: int) -> tuple[int, int]:
    """Divide this number of GPUs evenly over two sites; raises FabricError for an odd number."""
    if gpus % 2:
        text = f"{gpus} GPUs do not divide over 2 sites; allowed: an even number, or one number for each site"
        raise FabricError([Mistake("fabric.gpus", text)])
    return gpus // 2, gpus // 2


@lru_cache(maxsize=4)
def build_fabric(spec: FabricSpec) -> Fabric:
    """Build the declared fabric; the latest few fabrics are cached.

    Raises FabricError with every mistake found: a count out of range, a WAN that `resolve_wan` refuses, too many
    candidate paths, and interface names too long for Linux.
    """
    mistakes = [mistake for tier in _TIERS for mistake in _count_mistakes(spec, *tier)]
    if not 1 <= (sites := len(spec.gpus_per_site)) <= MAX_SITES:
        given = f"{format_value(list(spec.gpus_per_site))} has {sites} sites"
        mistakes.insert(0, Mistake("fabric.gpus", f"{given}; allowed: 1 to {MAX_SITES}, one number for each"))
    elif sites == 1 and spec.gpus_per_site[0] == 1:
        mistakes.append(Mistake("fabric.gpus", "1 GPU alone has nothing to send to; allowed: 2 or more in all"))
    mistakes += _port_mistakes(spec)
    if mistakes:
        raise FabricError(mistakes)
    leaves, spines, brs = (_per_site(counts, sites) for counts in (spec.leaves, spec.spines, spec.border_routers))
    border_routers = tuple(tuple(f"s{site}b{index}" for index in range(brs[site])) for site in range(sites))
    graph = resolve_wan(spec.wan, border_routers, spec.sites) if sites > 1 else WanGraph(((),), (), ())
    candidates = candidate_paths(graph, spec.paths)
    graph = with_measured_paths(graph, candidates, spec.wan)
    site_cycle = first_cycle(sites, candidates)
    if spec.rails is not None:
        leaves, spines = spec.gpus_per_site, (spec.rails,) * sites
    gpus, switches, cables = wire(
        gpus_per_site=spec.gpus_per_site, leaves=leaves, spines=spines, wan=graph, nics=spec.rails is not None
    )
    links = _logical_links(gpus, graph)
    paths_between = _wan_paths(candidates, links, graph)
    return Fabric(
        spec=spec,
        wan=graph,
        gpus=gpus,
        switches=switches,
        cables=cables,
        border_routers=tuple(name for site in graph.border_routers for name in site),
        br_sites=tuple(site for site, names in enumerate(graph.border_routers) for _ in names),
        links=links,
        paths=tuple(path for paths in paths_between.values() for path in paths),
        paths_between=paths_between,
        site_cycle=site_cycle,
    )


_TIERS = (
    # scenario key, field of FabricSpec, least and greatest number per site
    ("gpus", "gpus_per_site", 1, MAX_GPUS_PER_SITE),
    ("leaves", "leaves", 1, MAX_SWITCHES_PER_TIER),
    ("spines", "spines", 1, MAX_SWITCHES_PER_TIER),
    ("border_routers", "border_routers", 1, MAX_SWITCHES_PER_TIER),
)


def _count_mistakes(spec: FabricSpec, key: str, name: str, least: int, most: int) -> Iterator[Mistake]:
    sites = len(spec.gpus_per_site)
    counts = _per_site(getattr(spec, name), sites)
    wrong = [count for count in counts if not least <= count <= most]
    if wrong and (sites > 1 or key != "border_routers"):
        yield Mistake(f"fabric.{key}", f"{wrong[0]} {key} in a site; a site has {least} to {most}")
    elif len(counts) != sites:
        given = f"{format_value(list(counts))} has {len(counts)} for {sites} sites"
        yield Mistake(f"fabric.{key}", f"{given}; allowed: one number, or {sites}")


def _port_mistakes(spec: FabricSpec) -> Iterator[Mistake]:
    """Yield the mistakes in rails and oversubscription, which both need the physical grain."""
    rails, tiers = spec.rails, len(spec.oversubscription)
    if rails is not None and not 1 <= rails <= MAX_SWITCHES_PER_TIER:
        yield Mistake("fabric.rails", f"{rails} rails; allowed: 1 to {MAX_SWITCHES_PER_TIER}")
    if rails is not None and (spec.leaves, spec.spines) != (FabricSpec.leaves, FabricSpec.spines):
        given = f"{rails} rail{'s' * (rails != 1)} together with leaves or spines"
        text = f"{given}, which rails replace; allowed: one of the two"
        yield Mistake("fabric.rails", text)
    if rails is not None and tiers > 1:
        text = f"{tiers} tiers; allowed: with fabric.rails one number, for the plane's switches"
        yield Mistake("fabric.oversubscription", text)
    if len(spec.gpus_per_site) == 1 and tiers == (2 if rails is None else 1):
        allowed = "one number, for the leaves" if rails is None else "none with rails"
        text = f"{list(spec.oversubscription)[-1]:g} for the switches below border routers, which a single site lacks"
        yield Mistake("fabric.oversubscription", f"{text}; allowed: {allowed}")
    for key, is_given in (("rails", rails is not None), ("oversubscription", tiers)):
        if is_given and spec.grain != "physical":
            text = f"applies to ports, which the {spec.grain} grain does not have; allowed: with fabric.grain physical"
            yield Mistake(f"fabric.{key}", text)


def _per_site(count: int | tuple[int, ...], sites: int) -> tuple[int, ...]:
    """Expand a count that may be given once for all sites to one number per site."""
    return (count,) * sites if isinstance(count, int) else count


def first_cycle(sites: int, candidates: Mapping[tuple[int, int], Sequence[object]]) -> tuple[int, ...] | None:
    """Return the lexicographically first order in which a ring can visit every site once, from site 0 back to it, given
    the candidate paths from site to site; None if there is none."""
    for rest in permutations(range(1, sites)):
        if sites == 1 or all(candidates[a, b] for a, b in pairwise((0, *rest, 0))):
            return (0, *rest)
    return None


def _logical_links(gpus: tuple[Gpu, ...], graph: WanGraph) -> tuple[LogicalLink, ...]:
    ends: list[tuple[str, str, str, int]] = []
    for site, border_routers in enumerate(graph.border_routers):
        local = [gpu.name for gpu in gpus if gpu.site == site]
        ends += [("intra", a, b, 1) for a in local for b in local if a != b]
        ends += [("to_br", gpu, router, 1) for gpu in local for router in border_routers]
        ends += [("from_br", router, gpu, 1) for router in border_routers for gpu in local]
    for (a, b), number in zip(graph.links, graph.numbers, strict=True):
        ends += [("wan", a, b, number), ("wan", b, a, number)]
    return tuple(
        LogicalLink(index=index, kind=kind, src=src, dst=dst, number=number)
        for index, (kind, src, dst, number) in enumerate(ends)
    )


def _wan_paths(
    candidates: Mapping[tuple[int, int], tuple[tuple[str, ...], ...]], links: tuple[LogicalLink, ...], graph: WanGraph
) -> dict[tuple[int, int], tuple[WanPath, ...]]:
    link_index = {(link.src, link.far_end): link.index for link in links}
    br_index = {name: index for index, name in enumerate(name for site in graph.border_routers for name in site)}
    indices = count()
    return {
        (a, b): tuple(
            WanPath(
                index=next(indices),
                src_site=a,
                dst_site=b,
                src_br=br_index[route[0]],
                dst_br=br_index[node_of(route[-1])],
                links=tuple(link_index[node_of(near), far] for near, far in pairwise(route)),
                name=">".join(route),
            )
            for route in routes
        )
        for (a, b), routes in candidates.items()
    }
