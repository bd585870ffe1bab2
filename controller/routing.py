"""Path choice: which way over the WAN each site-crossing edge of a ring takes.

A path leads from a GPU to a border router of its site, over WAN links, and from a border router of the other site to
a GPU there. Border routers and transit routers cut through, so it costs the sum of its delays plus the transmission
of the chunk over its slowest link: sum(alpha) + max(beta), where beta = 8 chunk_bytes / rate.

A link's rate is what is available to one crossing; a rate of 0 is a link that is down, and the fixed path is then the
first in the fabric's order without such a link. With three sites or more two crossings of a ring may share a WAN
link; here neither slows the other, and each is routed as if alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.fabric import Fabric, WanPath

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Ranks = npt.NDArray[np.integer[Any]]


class NoPathError(ValueError):
    """A crossing that no path is left for: one sentence that names it."""


@dataclass(frozen=True, kw_only=True)
class Routes:
    """The path of each of K crossings: its index in `Fabric.paths`, its delay and its slowest link's rate, [K] each."""

    path: Indices
    delay_s: Floats
    rate_bps: Floats


class Router:
    """Weighs the candidate paths of a fabric whose links have these propagation delays, [links] seconds."""

    def __init__(self, fabric: Fabric, delays_s: Floats) -> None:
        self.fabric, self.delays_s = fabric, delays_s
        self._wan_delay_s = np.array([delays_s[list(path.links)].sum() for path in fabric.paths])

    def best(self, rates_bps: Floats, src: Ranks, dst: Ranks, *, chunk_bytes: int) -> Routes:
        """The path of least cost for each crossing, the first in the fabric's order on ties.

        `rates_bps` is [K, links]; crossing k leads from rank src[k] to rank dst[k] in another site. Raises
        NoPathError where no path between the two is up.
        """
        return self._choose(rates_bps, src, dst, chunk_bytes=chunk_bytes, fixed=False)

    def fixed(self, rates_bps: Floats, src: Ranks, dst: Ranks) -> Routes:
        """The fixed path of each crossing under these conditions; arguments and errors as for `best`."""
        return self._choose(rates_bps, src, dst, chunk_bytes=0, fixed=True)

    def crossings(self, rates_bps: Floats, *, chunk_bytes: int, fixed: bool) -> tuple[Floats, Floats]:
        """Cost and delay, [K, n, n] seconds each, of crossing from every rank to every rank of another site.

        Over the best path of each pair, or over the fixed one. The cost is infinite, and the delay 0, where no path
        leads: within a site and between sites without one.
        """
        shape = (len(rates_bps), *self.fabric.intra_index.shape)
        cost_s, delay_s = np.full(shape, np.inf), np.zeros(shape)
        sites = self.fabric.gpu_sites
        for (a, b), paths in self.fabric.paths_between.items():
            near, far = np.flatnonzero(sites == a), np.flatnonzero(sites == b)
            block = np.ix_(np.arange(len(rates_bps)), near, far)
            cost, delay = cost_s[block], delay_s[block]
            for path in paths:
                rate, path_delay = self._over(path, rates_bps, near[:, None], far[None, :])
                with np.errstate(divide="ignore"):
                    candidate = path_delay + 8 * chunk_bytes / rate
                wins = np.isinf(cost) if fixed else candidate < cost
                cost, delay = np.where(wins, candidate, cost), np.where(wins, path_delay, delay)
                if fixed and np.isfinite(cost).all():
                    break
            delay = np.where(np.isinf(cost), 0.0, delay)
            cost_s[block], delay_s[block] = cost, delay
        return cost_s, delay_s

    def _over(self, path: WanPath, rates_bps: Floats, src: Ranks, dst: Ranks) -> tuple[Floats, Floats]:
        """The rate, [K, *pairs], and the delay, [*pairs], of a path from src to dst (arrays of ranks, broadcast)."""
        up, down = self.fabric.to_br_index[src, path.src_br], self.fabric.from_br_index[path.dst_br, dst]
        wan = rates_bps[:, list(path.links)].min(axis=1)
        rate = np.minimum(np.minimum(rates_bps[:, up], rates_bps[:, down]), wan.reshape(-1, *(1,) * up.ndim))
        return rate, self.delays_s[up] + self._wan_delay_s[path.index] + self.delays_s[down]

    def _choose(self, rates_bps: Floats, src: Ranks, dst: Ranks, *, chunk_bytes: int, fixed: bool) -> Routes:
        count = len(rates_bps)
        path, delay_s, rate_bps = np.full(count, -1), np.zeros(count), np.zeros(count)
        sites = self.fabric.gpu_sites
        for (a, b), paths in self.fabric.paths_between.items():
            here = np.flatnonzero((sites[src] == a) & (sites[dst] == b))
            if paths and here.size:
                rates = rates_bps if here.size == count else rates_bps[here]
                weigh = self._first if fixed else partial(self._least, chunk_bytes=chunk_bytes)
                path[here], delay_s[here], rate_bps[here] = weigh(rates, src[here], dst[here], paths)
        if (path < 0).any():
            lost = int(np.argmin(path))
            raise NoPathError(f"no path leads over the WAN from rank {src[lost]} to rank {dst[lost]}")
        return Routes(path=path, delay_s=delay_s, rate_bps=rate_bps)

    def _first(
        self, rates_bps: Floats, src: Ranks, dst: Ranks, paths: Sequence[WanPath]
    ) -> tuple[Indices, Floats, Floats]:
        """The first of these paths that is up for each crossing: its index (or -1), delay and rate, [K] each."""
        index, delay_s, rate_bps = self._along(paths[0], rates_bps, src, dst)
        for path in paths[1:]:
            down = np.flatnonzero(index < 0)
            if not down.size:
                break
            index[down], delay_s[down], rate_bps[down] = self._along(path, rates_bps[down], src[down], dst[down])
        return index, delay_s, rate_bps

    def _along(self, path: WanPath, rates_bps: Floats, src: Ranks, dst: Ranks) -> tuple[Indices, Floats, Floats]:
        """One path for all crossings: its index (-1 where a link of it is down), its delay and its rate, [K] each."""
        row = np.arange(len(rates_bps))
        up, down = self.fabric.to_br_index[src, path.src_br], self.fabric.from_br_index[path.dst_br, dst]
        rate = np.minimum(rates_bps[row, up], rates_bps[row, down])
        for link in path.links:
            np.minimum(rate, rates_bps[:, link], out=rate)
        delay = self.delays_s[up] + self._wan_delay_s[path.index] + self.delays_s[down]
        return np.where(rate > 0, path.index, -1), delay, rate

    def _least(
        self, rates_bps: Floats, src: Ranks, dst: Ranks, paths: Sequence[WanPath], *, chunk_bytes: int
    ) -> tuple[Indices, Floats, Floats]:
        """The cheapest of these paths for each crossing: its index (-1 where none is up), delay and rate, [K] each."""
        best_cost = np.full(len(rates_bps), np.inf)
        index, delay_s, rate_bps = np.full(best_cost.size, -1), np.zeros(best_cost.size), np.zeros(best_cost.size)
        for path in paths:
            _, delay, rate = self._along(path, rates_bps, src, dst)
            with np.errstate(divide="ignore"):
                cost = delay + 8 * chunk_bytes / rate
            wins = cost < best_cost
            best_cost[wins], index[wins], delay_s[wins], rate_bps[wins] = (
                cost[wins],
                path.index,
                delay[wins],
                rate[wins],
            )
        return index, delay_s, rate_bps
