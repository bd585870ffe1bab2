"""The links that flows from rank to rank pass, in two grains: logical links, or the directed ports of cables. Pure.

The spines of a flow are those of the controller's forwarding rules (`controller.routing.switch_paths`), which match
addresses only:

    within a site, between leaves   the spine that the destination's index in the site selects
    up to a border router           the spine that the source's index selects
    down from a border router       the spine that the destination's index selects

An index selects the spine with that index modulo the number of spines, or the next one whose two cables are not dead.
So all flows from a GPU to border routers share one spine, and so do all channels between two GPUs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric, LogicalLink
from topologies.fabric.failures import NO_CABLES, Cables, cable, failed_links, spines
from topologies.fabric.link_names import node_of, number_of

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int32]
Integers = npt.NDArray[np.integer[Any]]

PORT_KINDS = ("gpu_leaf", "leaf_gpu", "leaf_spine", "spine_leaf", "spine_br", "br_spine", "wan")
_ABBREVIATED = {"border": "br"}


@dataclass(frozen=True, kw_only=True)
class DirectedPort(LogicalLink):
    """One direction of a cable: the port of the node `src` that sends to `dst`; `kind` is one of `PORT_KINDS`, and the
    name is such as "s0l0>s0p1"."""


def select_spine(tier: Sequence[str], index: int, ends: tuple[str, str], dead: Cables) -> int:
    """Return which of a site's spines, `tier`, lies between the nodes `ends` for the GPU with this index in the site.

    It is the first spine whose cables to both nodes are not dead, in cyclic order from spine `index` modulo the number
    of spines on; if there is none, it is that first one.
    """
    first = index % len(tier)
    order = [(first + step) % len(tier) for step in range(len(tier))]
    whole = (spine for spine in order if all(cable(tier[spine], end) not in dead for end in ends))
    return next(whole, first)


class Links:
    """The logical links of a fabric, and those that flows pass; the counterpart of `Ports` in the logical grain."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.all: tuple[LogicalLink, ...] = fabric.links

    def of(self, src: Integers, dst: Integers, path: Integers) -> Indices:
        """Return the links from rank to rank over a WAN path (path -1: within a site); otherwise as `Ports.of`."""
        return links_of(self.fabric, src, dst, path)

    def edge(self, src: int, dst: int, path: int = -1) -> tuple[int, ...]:
        """Return the links from one rank to another, in order; raises as `Fabric.edge_links`."""
        return self.fabric.edge_links(src, dst, path)

    def failed(self, dead: Cables) -> tuple[int, ...]:
        """Return the indices of the links that have no path left without the cables `dead`."""
        return failed_links(self.fabric, dead)

    def slowest_bps(self, rates_bps: Floats) -> Floats:
        """Return the rates of logical links, [..., links] bit/s: `rates_bps` itself."""
        return rates_bps

    def delays_s(self, delays_s: Floats) -> Floats:
        """Return the delays of logical links, [links] s: `delays_s` itself."""
        return delays_s


class Ports:
    """The directed ports of a fabric, two for each cable in the order of `Fabric.cables`, and those that flows pass.

    Flows avoid the cables in `dead` in the same way as the forwarding rules.
    """

    def __init__(self, fabric: Fabric, dead: Cables = NO_CABLES) -> None:
        tier = {switch.name: _ABBREVIATED.get(switch.kind, switch.kind) for switch in fabric.switches}
        tier |= {gpu.name: "gpu" for gpu in fabric.gpus}
        ends = [pair for c in fabric.cables for pair in c.directions]
        kinds = [f"{tier[a]}_{tier[node_of(b)]}" for a, b in ends]
        self.fabric = fabric
        self.all = tuple(
            DirectedPort(
                index=index,
                kind=kind if kind in PORT_KINDS else "wan",
                src=src,
                dst=node_of(far),
                number=number_of(far),
            )
            for index, (kind, (src, far)) in enumerate(zip(kinds, ends, strict=True))
        )
        self._port = {pair: index for index, pair in enumerate(ends)}
        self._tiers = [spines(fabric, site) for site in range(len(fabric.gpus_per_site))]
        self._make_tables(dead)

    def _make_tables(self, dead: Cables) -> None:
        """Make the tables that `of` indexes: ports by rank, by leaf or border router and spine, and by path."""
        gpus, routers = self.fabric.gpus, self.fabric.border_routers
        leaves = [switch for switch in self.fabric.switches if switch.kind == "leaf"]
        leaf_names = [leaf.name for leaf in leaves]
        above = [*((leaf.name, leaf.site) for leaf in leaves), *zip(routers, self.fabric.br_sites, strict=True)]
        row = {name: index for index, (name, _) in enumerate(above)}
        self._leaf_index = np.array([leaf_names.index(gpu.leaf) for gpu in gpus], np.int32)
        self._first_router = len(leaves)
        self._nic_ports = np.array([(self._port[g.name, g.leaf], self._port[g.leaf, g.name]) for g in gpus], np.int32)
        # [leaf or border router, spine]: the port to the spine, and the port back; -1 beyond the number of spines
        self._to_spine = np.full((len(above), max(map(len, self._tiers))), -1, np.int32)
        self._from_spine = self._to_spine.copy()
        # [rank, leaf or border router]: the spine between it and the rank's leaf; -1 in other sites
        self._spine = np.full((len(gpus), len(above)), -1, np.int32)
        for name, site in above:
            assert site is not None
            for index, spine in enumerate(self._tiers[site]):
                self._to_spine[row[name], index] = self._port[name, spine]
                self._from_spine[row[name], index] = self._port[spine, name]
            local = [gpu for gpu in gpus if gpu.site == site]
            for index, gpu in enumerate(local):
                self._spine[gpu.rank, row[name]] = select_spine(self._tiers[site], index, (gpu.leaf, name), dead)
        links, longest = self.fabric.links, max((len(path.links) for path in self.fabric.paths), default=0)
        # Path -1 selects the last row, which is additional: a fabric of one site has no paths.
        self._wan = np.full((len(self.fabric.paths) + 1, longest), -1, np.int32)
        for path in self.fabric.paths:
            hops = [links[link] for link in path.links]
            self._wan[path.index, : len(hops)] = [self._port[link.src, link.far_end] for link in hops]
        self._path_ends = np.array([*((path.src_br, path.dst_br) for path in self.fabric.paths), (-1, -1)], np.int32)

    def of(self, src: Integers, dst: Integers, path: Integers, spine: Integers | None = None) -> Indices:
        """Return the ports from rank to rank over a WAN path (path -1: within a site): [..., H], in order.

        Entries of -1 are unused hops. `src`, `dst` and `path` have one shape. `spine` [..., 2] overrides the spines in
        the source's and in the destination's site, by index in the site; -1 leaves the forwarding rules' choice. Within
        a site both must be the same spine. Raises ValueError for a path that does not lead from `src` to `dst`, and for
        a spine that does not exist.
        """
        _check_paths(self.fabric, src, dst, path)
        crosses, over = path >= 0, np.maximum(path, -1)
        up_end = np.where(crosses, self._first_router + self._path_ends[over, 0], self._leaf_index[dst])
        down_end = np.where(crosses, self._first_router + self._path_ends[over, 1], self._leaf_index[src])
        down = self._spine[dst, down_end]
        up = np.where(crosses, self._spine[src, up_end], down)
        if spine is not None:
            up, down = np.where(spine[..., 0] < 0, up, spine[..., 0]), np.where(spine[..., 1] < 0, down, spine[..., 1])
            self._check_spines(src, up)
            self._check_spines(dst, down)
            if (wrong := ~crosses & (up != down)).any():
                raise ValueError(f"spines {up[wrong][0]} and {down[wrong][0]} within a site; allowed: the same spine")
        ports = np.full((*src.shape, 6 + self._wan.shape[1]), -1, np.int32)
        climbs = crosses | (self._leaf_index[src] != self._leaf_index[dst])
        ports[..., 0], ports[..., -1] = self._nic_ports[src, 0], self._nic_ports[dst, 1]
        ports[..., 1] = np.where(climbs, self._to_spine[self._leaf_index[src], up], -1)
        ports[..., 2] = np.where(crosses, self._from_spine[up_end, up], -1)
        ports[..., 3:-3] = self._wan[over]
        ports[..., -3] = np.where(crosses, self._to_spine[down_end, down], -1)
        ports[..., -2] = np.where(climbs, self._from_spine[self._leaf_index[dst], down], -1)
        return ports

    def edge(self, src: int, dst: int, path: int = -1, spine: tuple[int, int] = (-1, -1)) -> tuple[int, ...]:
        """Return the ports from one rank to another, in order; arguments and errors as for `of`."""
        ports = self.of(np.array(src), np.array(dst), np.array(path), np.array(spine))
        return tuple(int(port) for port in ports if port >= 0)

    def failed(self, dead: Cables) -> tuple[int, ...]:
        """Return the indices of these cables' ports."""
        return tuple(port.index for port in self.all if cable(port.src, port.far_end) in dead)

    def slowest_bps(self, rates_bps: Floats) -> Floats:
        """Return the rates of logical links, [..., links] bit/s: each has the rate of the slowest port on its path."""
        return np.where(self._link_ports >= 0, rates_bps[..., self._link_ports], np.inf).min(axis=-1)  # type: ignore[no-any-return]

    def delays_s(self, delays_s: Floats) -> Floats:
        """Return the delays of logical links, [links] s: each has the sum of the delays of the ports on its path."""
        return delays_of(self._link_ports, delays_s)

    @cached_property
    def _link_ports(self) -> Indices:
        """The ports on the path of each logical link, [links, H], padded with -1."""
        rank = {gpu.name: gpu.rank for gpu in self.fabric.gpus}
        router = {name: self._first_router + index for index, name in enumerate(self.fabric.border_routers)}
        ports = np.full((len(self.fabric.links), 6 + self._wan.shape[1]), -1, np.int32)
        src, dst = np.nonzero(self.fabric.intra_index >= 0)
        ports[self.fabric.intra_index[src, dst]] = self.of(src, dst, np.full(src.shape, -1))
        for link in self.fabric.links:
            if link.kind == "wan":
                ports[link.index, 0] = self._port[link.src, link.far_end]
            elif link.kind != "intra":
                is_up = link.kind == "to_br"
                gpu, end = (rank[link.src], router[link.dst]) if is_up else (rank[link.dst], router[link.src])
                leaf, spine = self._leaf_index[gpu], self._spine[gpu, end]
                up = self._nic_ports[gpu, 0], self._to_spine[leaf, spine], self._from_spine[end, spine]
                down = self._to_spine[end, spine], self._from_spine[leaf, spine], self._nic_ports[gpu, 1]
                ports[link.index, :3] = up if is_up else down
        return ports

    def _check_spines(self, ranks: Integers, chosen: Integers) -> None:
        allowed = np.array([len(tier) for tier in self._tiers])[self.fabric.gpu_sites[ranks]]
        if (wrong := chosen >= allowed).any():
            raise ValueError(f"spine {chosen[wrong][0]}; allowed: 0 to {allowed[wrong][0] - 1} in that site")


def shares_of_rate(fabric: Fabric) -> Floats:
    """Return the rate of each port as a fraction of its declared rate, [ports].

    Without rails and oversubscription all fractions are 1. With R rails, every port of a plane has 1/R. In a tier that
    is oversubscribed r to 1, the ports up together have 1/r of the rate of the ports down (of leaves: of the ports down
    of the site's leaf with the most GPUs).
    """
    spec, below = fabric.spec, Counter(gpu.leaf for gpu in fabric.gpus)
    site_of = {switch.name: switch.site for switch in fabric.switches if switch.site is not None}
    of_site: list[tuple[float, float]] = []
    for site in range(len(fabric.gpus_per_site)):
        leaves = [switch.name for switch in fabric.switches if (switch.site, switch.kind) == (site, "leaf")]
        up = border = 1 / (spec.rails or 1)
        ratios = list(spec.oversubscription)
        if ratios and spec.rails is None:
            up = max(below[leaf] for leaf in leaves) / (len(spines(fabric, site)) * ratios.pop(0))
        if ratios:
            border = len(leaves) * up / (fabric.br_sites.count(site) * ratios.pop(0))
        of_site.append((up, border))
    tier = {"leaf_spine": 0, "spine_leaf": 0, "spine_br": 1, "br_spine": 1}
    shares = [of_site[site_of[port.src]][tier[port.kind]] if port.kind in tier else 1.0 for port in Ports(fabric).all]
    return np.array(shares)


def links_of(fabric: Fabric, src: Integers, dst: Integers, path: Integers) -> Indices:
    """Return the logical links from rank to rank over a WAN path (path -1: within a site); otherwise as `Ports.of`."""
    _check_paths(fabric, src, dst, path)
    crosses, over = path >= 0, np.maximum(path, 0)
    if not fabric.paths:
        return fabric.intra_index[src, dst][..., None].astype(np.int32)
    longest = max(len(each.links) for each in fabric.paths)
    wan = np.array([[*each.links, *[-1] * (longest - len(each.links))] for each in fabric.paths], np.int32)
    src_br, dst_br = np.array([(each.src_br, each.dst_br) for each in fabric.paths]).T
    links = np.full((*src.shape, 2 + longest), -1, np.int32)
    links[..., 0] = np.where(crosses, fabric.to_br_index[src, src_br[over]], fabric.intra_index[src, dst])
    links[..., 1:-1] = np.where(crosses[..., None], wan[over], -1)
    links[..., -1] = np.where(crosses, fabric.from_br_index[dst_br[over], dst], -1)
    return links


SharedLinks = Links | Ports
"""What flows share, and what has a rate and a delay: the logical links or the ports of a fabric."""


@lru_cache(maxsize=64)
def links_in_grain(fabric: Fabric, dead: Cables = NO_CABLES) -> SharedLinks:
    """Return what flows share in the fabric's grain while these cables, which the forwarding rules avoid, are dead."""
    return Ports(fabric, dead) if fabric.spec.grain == "physical" else Links(fabric)


def delays_of(links: Indices, delays_s: Floats) -> Floats:
    """Return the delay of flows over these links or ports, [...] s, from the delays of links or ports, [links] s."""
    return np.where(links >= 0, delays_s[links], 0.0).sum(axis=-1)  # type: ignore[no-any-return]


def _check_paths(fabric: Fabric, src: Integers, dst: Integers, path: Integers) -> None:
    path_sites = np.array([*((each.src_site, each.dst_site) for each in fabric.paths), (-1, -1)])[np.maximum(path, -1)]
    sites = np.stack([fabric.gpu_sites[src], fabric.gpu_sites[dst]], axis=-1)
    fits = np.where(path >= 0, (sites == path_sites).all(axis=-1), (sites[..., 0] == sites[..., 1]) & (src != dst))
    if not fits.all():
        wrong = np.unravel_index(int(np.argmin(fits)), fits.shape)
        raise ValueError(f"no path {path[wrong]} leads from rank {src[wrong]} to rank {dst[wrong]}")
