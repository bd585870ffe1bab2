"""Paths through the fabric at the level of switches: the switches that a packet passes, and their output ports.

A packet goes up to the spine that the source's index in its site selects, and comes down from the spine that the
destination's index selects. Traffic is thus spread over the spines, and a GPU's traffic to and from all border routers
shares one spine. Between the two spines lies a candidate path over the WAN. If a cable on the way is dead, the next
spine or candidate path without dead cables is used.
"""

from collections.abc import Iterable
from functools import cache
from heapq import heappop, heappush
from ipaddress import IPv4Network
from itertools import pairwise

from topologies.fabric.addressing import Gpu
from topologies.fabric.fabric import Fabric, WanPath
from topologies.fabric.failures import NO_CABLES, Cables, cable, failed_links, spines
from topologies.fabric.link_names import node_of
from topologies.fabric.ports import select_spine

_SITE_PREFIX = 23  # length of the address prefix that identifies a site: up to 256 GPUs, from 10.S.0.1 on


class FabricPaths:
    """The paths through one fabric, some of whose cables may be `dead`.

    Where every path has a dead cable, the default path has one, too. `networks` are the sites', such as "10.0.0.0/23".
    """

    def __init__(self, fabric: Fabric, dead: Cables = NO_CABLES) -> None:
        self.fabric, self.dead = fabric, dead
        sites = range(len(fabric.gpus_per_site))
        self.switches = {switch.name: switch for switch in fabric.switches}
        site_of = {gpu.site: gpu for gpu in fabric.gpus}
        self.networks = tuple(str(IPv4Network(f"{site_of[site].ip}/{_SITE_PREFIX}", strict=False)) for site in sites)
        self._ports = {(switch.name, port.peer): port.number for switch in fabric.switches for port in switch.ports}
        self._spines = [spines(fabric, site) for site in sites]
        self._first_rank = [sum(fabric.gpus_per_site[:site]) for site in sites]
        self._failed_links = set(failed_links(fabric, dead))
        self.fallback = cache(self._fallback)

    def port(self, switch: str, peer: str) -> int:
        """Return the number of the switch's port whose cable leads to `peer`, a switch or a GPU, perhaps with the
        cable's number (`link_names.end`)."""
        return self._ports[switch, peer]

    def spine(self, gpu: Gpu, towards: str) -> str:
        """Return the spine, in both directions, between a GPU's leaf and `towards`, another leaf or a border router."""
        tier, index = self._spines[gpu.site], gpu.rank - self._first_rank[gpu.site]
        return tier[select_spine(tier, index, (gpu.leaf, towards), self.dead)]

    def spines(self, site: int) -> tuple[str, ...]:
        """Return the spines of a site, in order."""
        return self._spines[site]

    def alive(self, a: str, b: str) -> bool:
        """Return whether the cable between two nodes is not dead."""
        return cable(a, b) not in self.dead

    def routers_of(self, path: WanPath) -> tuple[str, ...]:
        """Return the routers of a candidate path, including both border routers. All but the first are named as the one
        before knows them (`link_names.end`)."""
        links = [self.fabric.links[index] for index in path.links]
        return (links[0].src, *(link.far_end for link in links))

    def joined(self, src_site: int, dst_site: int) -> bool:
        """Return whether the WAN has a path from one site to the other."""
        return bool(self.fabric.paths_between.get((src_site, dst_site)))

    def fixed(self, src_site: int, dst_site: int) -> WanPath:
        """Return the default path from one site to another: the first candidate without dead cables, or the first of
        all. The sites must be `joined`."""
        paths = self.fabric.paths_between[src_site, dst_site]
        return next((path for path in paths if self._whole(path)), paths[0])

    def default(self, src: int, dst: int) -> int:
        """Return the index of the default path between two ranks in different sites."""
        return self.fixed(self.fabric.gpus[src].site, self.fabric.gpus[dst].site).index

    def first(self, src: int, dst: int) -> WanPath | None:
        """Return the first path between two ranks in different sites on which no link has failed, or None.

        It may differ from the default path where a leaf and a border router have lost their last common spine.
        """
        to_br, from_br, gpus = self.fabric.to_br_index, self.fabric.from_br_index, self.fabric.gpus
        for path in self.fabric.paths_between[gpus[src].site, gpus[dst].site]:
            links = (int(to_br[src, path.src_br]), *path.links, int(from_br[path.dst_br, dst]))
            if self._failed_links.isdisjoint(links):
                return path
        return None

    def _whole(self, path: WanPath) -> bool:
        routers = self.routers_of(path)
        ends = ((routers[0], path.src_site), (node_of(routers[-1]), path.dst_site))
        hops = ((node_of(a), b) for a, b in pairwise(routers))
        return all(self.alive(a, b) for a, b in hops) and all(self._open(*end) for end in ends)

    def _open(self, border_router: str, site: int) -> bool:
        """Return whether a border router has a live cable to a spine of its site."""
        return any(self.alive(border_router, spine) for spine in self._spines[site])

    def _fallback(self, src_site: int, dst_site: int) -> dict[str, str]:
        """Return the next hop towards `dst_site`, as it knows it, of every router that a path between the two sites may
        pass.

        Invariant: the number of remaining hops falls at every step, so no packet loops. The routers of the default path
        follow it, even where it is not the shortest; every other router takes the fewest remaining hops given these
        (Dijkstra). Packets enter border routers of the source's site only from the site. Empty for sites not `joined`.
        """
        if not self.joined(src_site, dst_site):
            return {}
        fixed = self.routers_of(self.fixed(src_site, dst_site))
        near = set(self._border_routers(src_site))
        towards = {node_of(name): following for name, following in pairwise(fixed)}
        fixed = tuple(map(node_of, fixed))
        hops = {name: 0 for name in self._border_routers(dst_site) if self._open(name, dst_site)}
        hops |= {name: left for left, name in enumerate(reversed(fixed))}
        frontier = sorted((left, name) for name, left in hops.items() if name not in near)
        while frontier:
            left, name = heappop(frontier)
            for other, following in self._into(name):
                enters = other in near or self.switches[other].kind == "transit"
                if enters and other not in fixed and left + 1 < hops.get(other, left + 2):
                    hops[other], towards[other] = left + 1, following
                    if other not in near:
                        heappush(frontier, (left + 1, other))
        return towards

    def _border_routers(self, site: int) -> tuple[str, ...]:
        names = zip(self.fabric.border_routers, self.fabric.br_sites, strict=True)
        return tuple(name for name, where in names if where == site)

    def _into(self, router: str) -> tuple[tuple[str, str], ...]:
        """Return the routers that have a live WAN link to this one, each with this one as it knows it."""
        links = [link for link in self.fabric.links if link.kind == "wan" and link.dst == router]
        return tuple((link.src, link.far_end) for link in links if self.alive(link.src, link.far_end))


def return_paths(paths: FabricPaths, crossings: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return the index of the first usable path back of every crossing that has one; empty if no cable is dead.

    The default rules have one path for all GPUs of a site, and a GPU may be cut off from just that path: TCP data would
    then arrive, but its acknowledgements would not.
    """
    back = {(dst, src): paths.first(dst, src) for src, dst in crossings} if paths.dead else {}
    return {pair: path.index for pair, path in back.items() if path is not None}
