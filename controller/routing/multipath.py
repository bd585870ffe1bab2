"""Multipath routing: the path of each flow of a collective, over the WAN and spines, in fabrics that spread flows.

    ecmp     a hash of the flow (its ranks and its channel) and the fabric's seed chooses the path
    spray    every message is cut into pieces, one for each path, each on its own channel (`hosts.collectives.spraying`)
    te       every message over the WAN is cut into `pieces` of the fabric, which are assigned to tunnels
             (`controller.routing.traffic_engineering`); spines are chosen by channel number

Over R rails, a flow of the routing "single" takes the fixed path, or the path that its mode chooses, and the plane with
the number of its channel modulo R (`hosts.collectives.spraying.over_planes`). A message is sprayed over R planes in
R (R - 1) pieces for each WAN path, at most 3 R. Where a plane is down, only its channels and pieces move: they are
spread over the remaining planes.

In the logical grain, paths differ only over the WAN, because every two GPUs of a site have their own link. In the
physical grain they also differ in the spine of each site, even within a site. Only paths that are up are used. A hash
selects among these; a piece keeps its path while that is up, and the pieces of failed paths are distributed over the
others. The controller and the plan call the same functions.
"""

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import NO_CABLES, Cables, cable, spines
from topologies.fabric.ports import Ports, delays_of, links_in_grain, links_of

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.integer[Any]]

SUBSTITUTES = 4
"""Number of substitutes for a failed path among which the channels of a piece are distributed: channel c takes
substitute c // width % SUBSTITUTES."""

ECMP_CHANNELS = 64
"""Over how many channels the connections of two GPUs are spread by "ecmp", if there are not too many GPUs."""

_MOST_CHANNELS = 8192  # of all pairs: the controller installs a rule for each, some 1,000 a second of wall time
_UP, _OVER, _DOWN = range(3)  # the hops that choose: the leaf, the spine, and the border router after the WAN
_HOP_BITS = 8


def hashed(seed: int, src: Integers, dst: Integers, hop: int, channel: Integers | int = 0) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each flow at this hop, by the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014)."""
    hop_and_channel = np.uint64(hop) | np.asarray(channel, np.uint64) << np.uint64(_HOP_BITS)
    mixed = np.zeros(src.shape, np.uint64)
    for part in (np.uint64(seed), hop_and_channel, src.astype(np.uint64), dst.astype(np.uint64)):
        with np.errstate(over="ignore"):  # numpy warns of overflow when the arrays have no dimensions
            mixed = (mixed ^ part) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


@lru_cache(maxsize=16)
def multipath(fabric: Fabric) -> "Multipath | None":
    """Return the multipath routing of a fabric, or None if each pair of GPUs has a single path."""
    spec = fabric.spec
    return Multipath(fabric, sprays=spec.routing == "spray") if spec.routing != "single" or spec.has_planes else None


def group_by_failures(rates_bps: Floats) -> Iterator[tuple[npt.NDArray[np.intp], tuple[int, ...]]]:
    """Group the rows of `rates_bps`, [K, links], by links that are down (rate 0); yield each group's rows and links."""
    down = rates_bps <= 0
    if not down.any():
        yield np.arange(len(rates_bps)), ()
        return
    sets, of_row = np.unique(down, axis=0, return_inverse=True)
    for index, links in enumerate(sets):
        yield np.flatnonzero(of_row.ravel() == index), tuple(np.flatnonzero(links).tolist())


class Multipath:
    """The multipath routing of one fabric: "ecmp", "spray", "te", or any routing over rails.

    A flow is given by its ranks and its channel; arrays of these have one shape or are broadcast.
    """

    def __init__(self, fabric: Fabric, *, sprays: bool) -> None:
        self.fabric = fabric
        self.sprays, self._seed = sprays, fabric.spec.hash_seed
        self.engineers = fabric.spec.routing == "te" and not sprays
        sites = range(len(fabric.gpus_per_site))
        self._tiers = [spines(fabric, site) for site in sites]
        self._by_spine = fabric.spec.grain == "physical"
        self._spines = max(map(len, self._tiers)) if self._by_spine else 1
        if (rails := fabric.spec.rails) is not None:
            self._spines = rails * max(1, min(rails - 1, 3))
        most = max((len(paths) for paths in fabric.paths_between.values()), default=1)
        self._candidates = np.full((len(sites), len(sites), most), -1)
        for pair, paths in fabric.paths_between.items():
            self._candidates[pair][: len(paths)] = [path.index for path in paths]
        self._ends = np.array([(path.src_br, path.dst_br) for path in fabric.paths]).reshape(-1, 2)
        leaves = [switch.name for switch in fabric.switches if switch.kind == "leaf"]
        self._nodes = [*leaves, *fabric.border_routers]
        self._leaf = np.array([leaves.index(gpu.leaf) for gpu in fabric.gpus])
        self._first_router = len(leaves)

    def pieces(self, src_site: int, dst_site: int) -> int:
        """Return into how many pieces a message between two sites, or within one, is cut."""
        if self.engineers:
            return 1 if src_site == dst_site else self.fabric.spec.pieces
        spines = max(len(self._tiers[site]) for site in (src_site, dst_site)) if self._by_spine else 1
        if self.fabric.spec.rails is not None:
            spines = self._spines
        return spines * max(1, len(self.fabric.paths_between.get((src_site, dst_site), ())))

    @property
    def width(self) -> int:
        """The most pieces of a message; the pieces of channel c have the channels c * width, c * width + 1, ..."""
        sites = range(len(self._tiers))
        return max(self.pieces(a, b) for a in sites for b in sites)

    def channels_of_connections(self, pairs: int) -> int:
        """Return over how many channels the connections of so many pairs of GPUs are spread: one for each piece of a
        message that is sprayed or engineered, one for each plane, or up to ECMP_CHANNELS, whose paths are hashed. A
        connection is not cut: it keeps the path of its channel."""
        if self.sprays or self.engineers:
            return self.width
        if self.fabric.spec.routing == "ecmp":
            return max(1, min(ECMP_CHANNELS, _MOST_CHANNELS // max(pairs, 1)))
        return self.fabric.spec.rails or 1

    def candidates(self, src: Integers, dst: Integers) -> Integers:
        """Return the indices of the WAN paths from rank to rank, [..., most paths]: the fixed path first, -1 after the
        last path and within a site."""
        candidates: Integers = self._candidates[self.fabric.gpu_sites[src], self.fabric.gpu_sites[dst]]
        return candidates

    def paths(self, src: Integers, dst: Integers, channel: Integers | int, failed: Collection[int] = ()) -> Integers:
        """Return the index of each flow's WAN path, -1 within a site; `failed` are the logical links that are down.

        Where no path is up, the flow gets a path that is down.
        """
        fabric = self.fabric
        src, dst, channel = np.broadcast_arrays(src, dst, channel)
        candidates = self.candidates(src, dst)
        up = exists = candidates >= 0
        if failed:
            alive = np.ones(len(fabric.links), dtype=bool)
            alive[list(failed)] = False
            whole = np.array([alive[list(path.links)].all() for path in fabric.paths])
            near, far = self._ends[candidates, 0], self._ends[candidates, 1]
            ends = alive[fabric.to_br_index[src[..., None], near]] & alive[fabric.from_br_index[far, dst[..., None]]]
            usable = exists & whole[candidates] & ends
            up = np.where(usable.any(axis=-1, keepdims=True), usable, exists)
        index = self._select(up, exists, src, dst, channel, hop=_OVER)
        chosen: Integers = np.take_along_axis(candidates, np.maximum(index, 0)[..., None], axis=-1)[..., 0]
        return chosen

    def spines(
        self, src: Integers, dst: Integers, path: Integers, channel: Integers | int, dead: Cables = NO_CABLES
    ) -> Integers:
        """Return the indices of flows' spines in the source's and the destination's site, given their paths: [..., 2].

        -1 is the spine that the default rules take: for all flows in the logical grain, and between GPUs of one leaf.
        """
        src, dst, path, channel = np.broadcast_arrays(src, dst, path, channel)
        chosen = np.full((*src.shape, 2), -1)
        if not self._by_spine:
            return chosen
        crosses, src_leaf, dst_leaf = path >= 0, self._leaf[src], self._leaf[dst]
        near, far = dst_leaf, src_leaf  # the nodes beyond the first and before the last spine
        if len(self._ends):
            ends = self._first_router + self._ends[np.maximum(path, 0)]
            near, far = np.where(crosses, ends[..., 0], near), np.where(crosses, ends[..., 1], far)
        alive, every = self._alive(dead), self._alive(NO_CABLES)
        up = self._select(alive[src_leaf] & alive[near], every[src_leaf] & every[near], src, dst, channel, hop=_UP)
        down = self._select(alive[dst_leaf] & alive[far], every[dst_leaf] & every[far], src, dst, channel, hop=_DOWN)
        climbs = crosses | (src_leaf != dst_leaf)
        chosen[..., 0] = np.where(climbs, up, -1)
        chosen[..., 1] = np.where(climbs, np.where(crosses, down, up), -1)
        return chosen

    def links(
        self, src: Integers, dst: Integers, path: Integers, channel: Integers | int, dead: Cables = NO_CABLES
    ) -> npt.NDArray[np.int32]:
        """Return the logical links or ports of flows over these paths, [..., H], as `fabric.ports.Ports.of` does."""
        shared = links_in_grain(self.fabric, dead)
        if isinstance(shared, Ports):
            return shared.of(src, dst, path, self.spines(src, dst, path, channel, dead))
        return shared.of(src, dst, path)

    def every_link(self, src: Integers, dst: Integers) -> npt.NDArray[np.int32]:
        """Return the logical links or ports of every path from rank to rank, [..., width, H], while all are up."""
        piece = np.arange(self.width)
        src, dst, piece = np.broadcast_arrays(src[..., None], dst[..., None], piece)
        every = self if self.sprays else Multipath(self.fabric, sprays=True)
        return every.links(src, dst, every.paths(src, dst, piece), piece)

    def crossings(self, delays_s: Floats, rates_bps: Floats, *, chunk_bytes: int) -> tuple[Floats, Floats]:
        """Return cost and delay, [K, n, n] seconds, of sending a chunk from each rank to each rank of another site.

        `delays_s`, [links], and `rates_bps`, [K, links], are those of logical links; a rate of 0 is a link that is
        down. Each pair sends alone, on channel 0; a chunk in pieces has the cost and delay of its last piece. The cost
        is infinite, and the delay 0, within a site, between sites without a path, and where all paths are down.
        """
        sites = self.fabric.gpu_sites
        src, dst = np.nonzero((sites[:, None] != sites) & (self._candidates[sites[:, None], sites, 0] >= 0))
        number = (self._candidates[sites[src], sites[dst]] >= 0).sum(axis=1) if self.sprays else np.ones(src.size, int)
        piece = np.arange(number.max(initial=1))[:, None] * self._spines  # one per path, each through spine 0
        cost_s = np.full((len(rates_bps), *self.fabric.intra_index.shape), np.inf)
        delay_s = np.zeros(cost_s.shape)
        for rows, failed in group_by_failures(rates_bps):
            path = self.paths(src, dst, piece, failed)
            links = np.stack([links_of(self.fabric, src, dst, of_piece) for of_piece in path])
            sent = np.arange(len(path))[:, None] < number
            sharing = ((path[:, None] == path[None]) & sent[None]).sum(axis=1)  # pieces on the same path
            rate_bps = np.where(links >= 0, rates_bps[rows][:, links], np.inf).min(axis=-1)
            alpha_s = delays_of(links, delays_s)
            with np.errstate(divide="ignore"):
                time_s = alpha_s + 8 * chunk_bytes * sharing / number / rate_bps
            time_s = np.where(sent, time_s, -np.inf)
            last = time_s.argmax(axis=1)[:, None]
            cost = np.take_along_axis(time_s, last, axis=1)[:, 0]
            delay = np.take_along_axis(np.broadcast_to(alpha_s, time_s.shape), last, axis=1)[:, 0]
            cost_s[rows[:, None], src, dst] = cost
            delay_s[rows[:, None], src, dst] = np.where(np.isinf(cost), 0.0, delay)
        return cost_s, delay_s

    def _select(
        self, up: Flags, exists: Flags, src: Integers, dst: Integers, channel: Integers | int, *, hop: int
    ) -> npt.NDArray[np.intp]:
        """Return the index of the candidate, a WAN path or a spine, that each flow takes at a hop, -1 if none is up.
        `up` and `exists`, [..., W], are whether each candidate is up, and whether there is one with this index."""
        rails, number = self.fabric.spec.rails, up.sum(axis=-1)
        hashes = not self.sprays and self.fabric.spec.routing == "ecmp"
        if self.sprays:
            of_message, piece = np.divmod(np.asarray(channel), self.width)
            selector = piece // self._spines if hop == _OVER else piece % self._spines
        elif hashes:
            selector = hashed(self._seed, src, dst, hop, channel)
        else:
            selector = np.asarray(channel) * (hop != _OVER)
        own = None
        if rails is not None and not hashes and hop != _OVER:  # the plane of its channel, if that is up
            own, selector = selector % rails, selector // rails
        elif self.sprays:
            own = selector % np.maximum(exists.sum(axis=-1), 1)
            down_before = np.take_along_axis(np.cumsum(exists & ~up, axis=-1), own[..., None], axis=-1)[..., 0]
            selector = np.maximum(down_before - 1, 0) + of_message % SUBSTITUTES
        chosen = (selector % np.maximum(number, 1).astype(selector.dtype)).astype(int)
        up_first = np.argsort(~up, axis=-1, kind="stable")
        index = np.take_along_axis(up_first, chosen[..., None], axis=-1)[..., 0]
        if own is not None:
            index = np.where(np.take_along_axis(up, own[..., None], axis=-1)[..., 0], own, index)
        return np.where(number > 0, index, -1)

    def _alive(self, dead: Cables) -> Flags:
        """Return whether each leaf and border router has a live cable to each spine of its site, [nodes, spines]."""
        sites = {switch.name: switch.site for switch in self.fabric.switches}
        alive = np.zeros((len(self._nodes), max(map(len, self._tiers))), dtype=bool)
        for row, name in enumerate(self._nodes):
            site = sites[name]
            assert site is not None
            for column, spine in enumerate(self._tiers[site]):
                alive[row, column] = cable(name, spine) not in dead
        return alive
