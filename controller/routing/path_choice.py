"""Path choice: which path over the WAN each site-crossing edge of a ring takes.

A path leads from a GPU to a border router of its site, over WAN links, and from a border router of the other site to
a GPU there. Border routers and transit routers cut through, so it costs the sum of its delays plus the transmission
of the chunk over its slowest link: sum(alpha) + max(beta), where beta = 8 chunk_bytes / rate.

A link's rate is what is available to one crossing; a rate of 0 is a link that is down, and the fixed path is then the
first in the fabric's order without such a link. With three sites or more two crossings of a ring may share a WAN
link; here neither slows the other, and each is routed as if alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric, WanPath

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Ranks = npt.NDArray[np.integer[Any]]


class NoPathError(ValueError):
    """A crossing without a path: one sentence that names it."""


@dataclass(frozen=True, kw_only=True)
class Routes:
    """The path of each of K crossings: its index in `Fabric.paths`, its delay and its slowest link's rate, [K] each."""

    path: Indices
    delay_s: Floats
    rate_bps: Floats


class Router:
    """Compares the candidate paths of a fabric whose links have these propagation delays, [links] seconds."""

    def __init__(self, fabric: Fabric, delays_s: Floats) -> None:
        self.fabric, self.delays_s = fabric, delays_s
        self._wan_delay_s = np.array([delays_s[list(path.links)].sum() for path in fabric.paths])

    def best(self, rates_bps: Floats, src: Ranks, dst: Ranks, *, chunk_bytes: int) -> Routes:
        """The path of least cost for each crossing, the first in the fabric's order on ties.

        `rates_bps` is [K, links]; crossing k leads from rank src[k] to rank dst[k] in another site. Raises
        NoPathError where no path between the two is up.
        """
        return self._routes(rates_bps, src, dst, chunk_bytes=chunk_bytes, fixed=False)

    def fixed(self, rates_bps: Floats, src: Ranks, dst: Ranks) -> Routes:
        """The fixed path of each crossing, the first whose links are all up; arguments and errors as for `best`."""
        return self._routes(rates_bps, src, dst, chunk_bytes=1, fixed=True)

    def crossings(self, rates_bps: Floats, *, chunk_bytes: int, fixed: bool) -> tuple[Floats, Floats]:
        """Cost and delay, [K, n, n] seconds each, of crossing from every rank to every rank of another site.

        Over the best path of each pair, or over the fixed one. The cost is infinite, and the delay 0, where there is
        no path: within a site, and between sites without one.
        """
        shape = (len(rates_bps), *self.fabric.intra_index.shape)
        cost_s, delay_s = np.full(shape, np.inf), np.zeros(shape)
        row, sites = np.arange(len(rates_bps)), self.fabric.gpu_sites
        for (a, b), paths in self.fabric.paths_between.items():
            near, far = np.flatnonzero(sites == a), np.flatnonzero(sites == b)
            pairs = row[:, None, None], near[:, None], far
            choice = self._choose(paths, rates_bps, *pairs, chunk_bytes=chunk_bytes, fixed=fixed)
            cost_s[np.ix_(row, near, far)], delay_s[np.ix_(row, near, far)] = choice.cost_s, choice.delay_s
        return cost_s, delay_s

    def _routes(self, rates_bps: Floats, src: Ranks, dst: Ranks, *, chunk_bytes: int, fixed: bool) -> Routes:
        count, sites = len(rates_bps), self.fabric.gpu_sites
        path, delay_s, rate_bps = np.full(count, -1), np.zeros(count), np.zeros(count)
        for (a, b), paths in self.fabric.paths_between.items():
            here = np.flatnonzero((sites[src] == a) & (sites[dst] == b))
            if here.size:
                rates = rates_bps if here.size == count else rates_bps[here]
                pairs = np.arange(here.size), src[here], dst[here]
                choice = self._choose(paths, rates, *pairs, chunk_bytes=chunk_bytes, fixed=fixed)
                path[here], delay_s[here], rate_bps[here] = choice.path, choice.delay_s, choice.rate_bps
        if (path < 0).any():
            lost = int(np.argmin(path))
            raise NoPathError(f"no path leads over the WAN from rank {src[lost]} to rank {dst[lost]}")
        return Routes(path=path, delay_s=delay_s, rate_bps=rate_bps)

    def _choose(
        self,
        paths: Sequence[WanPath],
        rates_bps: Floats,
        row: Indices,
        src: Ranks,
        dst: Ranks,
        *,
        chunk_bytes: int,
        fixed: bool,
    ) -> "_Choice":
        """The best of these paths, or the first that is up, from src to dst under the rates of each row.

        `row` are the rows of `rates_bps`, [K] or [K, 1, 1]; it is broadcast with the ranks `src` and `dst` to the
        shape of the result.
        """
        shape = np.broadcast_shapes(row.shape, src.shape, dst.shape)
        path, cost_s = np.full(shape, -1), np.full(shape, np.inf)
        delay_s, rate_bps = np.zeros(shape), np.zeros(shape)
        for candidate in paths:
            up, down = self.fabric.to_br_index[src, candidate.src_br], self.fabric.from_br_index[candidate.dst_br, dst]
            wan = reduce(np.minimum, (rates_bps[:, link] for link in candidate.links))
            rate = np.minimum(np.minimum(rates_bps[row, up], rates_bps[row, down]), wan.reshape(row.shape))
            delay = self.delays_s[up] + self._wan_delay_s[candidate.index] + self.delays_s[down]
            with np.errstate(divide="ignore"):
                cost = delay + 8 * chunk_bytes / rate
            wins = np.isinf(cost_s) & (rate > 0) if fixed else cost < cost_s
            path, cost_s = np.where(wins, candidate.index, path), np.where(wins, cost, cost_s)
            delay_s, rate_bps = np.where(wins, delay, delay_s), np.where(wins, rate, rate_bps)
            if fixed and (path >= 0).all():
                break
        return _Choice(path=path, cost_s=cost_s, delay_s=delay_s, rate_bps=rate_bps)


@dataclass(frozen=True, kw_only=True)
class _Choice(Routes):
    """Routes and what they cost; path -1, infinite cost and delay 0 where no path is up."""

    cost_s: Floats
