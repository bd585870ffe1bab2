"""Path choice: decides which WAN path each crossing of a collective takes. A crossing is a pair of ranks in two sites.

A path leads from a GPU to a border router of its site, over WAN links, and from a border router of the other site to
a GPU there. Border routers and transit routers are cut-through, so a path costs the sum of its delays plus the
transmission time of the chunk on its slowest link: sum(alpha) + max(beta), where beta = 8 chunk_bytes / rate. A link
that is down has rate 0. The fixed path is the first in the fabric's order without such a link.

The paths of one collective's crossings are chosen together (`Router.choose_jointly`); a link that n of them take gives
each 1/n of its rate. This is a bottleneck routing game, in which best responses in turn converge (Banner and Orda,
"Bottleneck Routing Games in Communication Networks", IEEE JSAC 25(6), 2007), but not always if paths differ in delay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.routing.network import Network
from topologies.fabric.fabric import Fabric, WanPath

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Ranks = npt.NDArray[np.integer[Any]]


MAX_COMBINATIONS = 1024
"""Crossings that can share links are compared in all combinations of their paths up to this number of combinations."""
_MAX_TURNS = 16
_CELLS = 1 << 20  # size of the arrays in which combinations are compared


class NoPathError(ValueError):
    """Raised for a crossing without a path; the message is one sentence that names its ranks."""


@dataclass(frozen=True, kw_only=True)
class Routes:
    """The paths of crossings, in arrays of their shape: index in `Fabric.paths`, delay, rate of the slowest link."""

    path: Indices
    delay_s: Floats
    rate_bps: Floats


class Router:
    """Chooses among the candidate paths of a fabric whose links have the propagation delays `delays_s`, [links]."""

    def __init__(self, fabric: Fabric, delays_s: Floats) -> None:
        self.fabric, self.delays_s = fabric, delays_s
        self._wan_delay_s = np.array([delays_s[list(path.links)].sum() for path in fabric.paths])
        self._links = _Links(fabric)

    def choose_jointly(self, rates_bps: Floats, src: Ranks, dst: Ranks, *, chunk_bytes: int) -> Routes:
        """Choose the paths of the C crossings of each of K collectives together; return them as [K, C].

        `rates_bps` is [K, links]; the crossings of a collective are distinct pairs of ranks in two sites, src[k, c] to
        dst[k, c]. A crossing takes the time delay + 8 chunk_bytes / min(rate / n), with the minimum over its links,
        each of which is used by n of the collective's crossings. Crossings that can share a link, directly or through
        others, form a group. Each group's largest time is minimized, and then the sum of its times; ties are broken
        by the fabric's order of paths, for the first crossing first. If the best paths of the crossings alone share no
        link, these are taken.

        The result is exact for groups of at most MAX_COMBINATIONS combinations of paths (`is_exact`). In a larger group
        crossings with one candidate path take it first. Each of the others takes its best path given these and the
        crossings before it, in order, and then again in turns until none gains; likewise in reverse order. The best of
        these two choices and of the best paths alone is taken. Raises NoPathError if a crossing has no path that is up.
        """
        alone = self.best(rates_bps, src, dst, chunk_bytes=chunk_bytes)
        if not self._links.has_choice(src, dst).any():
            return alone
        rows = np.flatnonzero(self._links.overlap(alone.path, src, dst))
        if not rows.size:
            return alone
        path, delay_s, rate_bps = alone.path.copy(), alone.delay_s.copy(), alone.rate_bps.copy()
        ends, collective = np.unique(np.stack([src[rows], dst[rows]], axis=1), axis=0, return_inverse=True)
        for index, (a, b) in enumerate(ends):
            here = rows[collective.ravel() == index]
            rates = _with_no_link(rates_bps[here])
            for members in self._links.groups(a, b):
                cells, group = np.ix_(here, members), _Group(self, self._links, a[members], b[members])
                path[cells] = group.choose(path[cells], rates, bits=8 * chunk_bytes)
            links = self._links.of(path[here], a, b)
            rate_bps[here] = rates[np.arange(here.size)[:, None, None], links].min(axis=2)
            delay_s[here] = self.delay_s(path[here], a, b)
        return Routes(path=path, delay_s=delay_s, rate_bps=rate_bps)

    def redirected(
        self, path: Indices, src: Ranks, dst: Ranks, given: Mapping[tuple[int, int], int], rates_bps: Floats
    ) -> Indices:
        """Return the paths of crossings, [C], with those in `given`, by pair of ranks, in place of the chosen ones,
        except for given paths with a link whose rate, [links], is 0."""
        redirected = np.array(path)
        for crossing, pair in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
            if pair in given and min(rates_bps[list(self.fabric.edge_links(*pair, given[pair]))]) > 0:
                redirected[crossing] = given[pair]
        return redirected

    def is_exact(self, src: Ranks, dst: Ranks) -> bool:
        """Return whether `choose_jointly` compares all combinations of paths of these crossings, [C] ranks each."""
        groups = self._links.groups(src, dst)
        return all(_Group(self, self._links, src[group], dst[group]).is_small for group in groups)

    def best(self, rates_bps: Floats, src: Ranks, dst: Ranks, *, chunk_bytes: int) -> Routes:
        """Return the path of least cost for each crossing alone, on ties the first one in the fabric's order.

        `rates_bps` is [K, links]; `src` and `dst`, [K] or [K, C], are the ranks of the crossings under these rates, in
        two sites. Raises NoPathError if a crossing has no path that is up.
        """
        return self._routes(rates_bps, src, dst, chunk_bytes=chunk_bytes, fixed=False)

    def fixed(self, rates_bps: Floats, src: Ranks, dst: Ranks) -> Routes:
        """Return the fixed path of each crossing, the first whose links are all up; arguments and errors as `best`."""
        return self._routes(rates_bps, src, dst, chunk_bytes=1, fixed=True)

    def crossings(self, rates_bps: Floats, *, chunk_bytes: int, fixed: bool) -> tuple[Floats, Floats]:
        """Return cost and delay, [K, n, n] seconds each, of crossing from every rank to every rank of another site.

        Each pair of ranks takes its best path or, with `fixed`, its fixed one. The cost is infinite, and the delay 0,
        where there is no path: within a site, and between sites without one.
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

    def network(self) -> Network:
        """Return the fabric as arrays."""

        def indices(table: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
            return np.ascontiguousarray(table, np.int64)

        fabric, links = self.fabric, self._links
        return Network(
            site=indices(fabric.gpu_sites),
            inside=indices(fabric.intra_index),
            up=indices(fabric.to_br_index),
            down=indices(fabric.from_br_index),
            between=indices(links.between),
            ends=indices(links.border_routers),
            wan=indices(np.where(links.wan == links.none, -1, links.wan)),
            wan_delay_s=self._wan_delay_s,
            delay_s=np.asarray(self.delays_s, np.float64),
        )

    def delay_s(self, path: Any, src: Any, dst: Any) -> Any:
        """Return the delay in seconds from rank to rank over the path with index `path`; arrays are broadcast."""
        up, down = self._links.ends(path, src, dst)
        return self.delays_s[up] + self._wan_delay_s[path] + self.delays_s[down]

    def delay_and_rate(
        self, rates_bps: Floats, row: Indices, src: Ranks, dst: Ranks, path: Ranks
    ) -> tuple[Floats, Floats]:
        """Return delays, [C] s, and rates, [C] bit/s, of crossings over given paths, under the rates of `row`, [C]."""
        links = self._links.of(path.astype(np.intp), src, dst)
        return self.delay_s(path, src, dst), _with_no_link(rates_bps)[row[:, None], links].min(axis=1)

    def shared_times_s(
        self, rates_bps: Floats, src: Ranks, dst: Ranks, path: npt.NDArray[np.integer[Any]], *, chunk_bytes: int
    ) -> Floats:
        """Return the times, [K, C] s, of C crossings that share links over given paths, [K, C]; see
        `choose_jointly`."""
        links, row = self._links.of(path.astype(np.intp), src, dst), np.arange(len(path))[:, None, None]
        loads = np.zeros((len(path), self._links.none + 1))
        np.add.at(loads, (row, links), 1)
        share_bps = (_with_no_link(rates_bps)[row, links] / loads[row, links]).min(axis=-1)
        times_s: Floats = self.delay_s(path, src, dst) + 8 * chunk_bytes / share_bps
        return times_s

    def _routes(self, rates_bps: Floats, src: Ranks, dst: Ranks, *, chunk_bytes: int, fixed: bool) -> Routes:
        path, delay_s, rate_bps = np.full(src.shape, -1), np.zeros(src.shape), np.zeros(src.shape)
        sites = self.fabric.gpu_sites
        for (a, b), paths in self.fabric.paths_between.items():
            here = (sites[src] == a) & (sites[dst] == b)
            if here.any():
                at = here.nonzero()
                pairs = at[0], src[at], dst[at]
                choice = self._choose(paths, rates_bps, *pairs, chunk_bytes=chunk_bytes, fixed=fixed)
                path[at], delay_s[at], rate_bps[at] = choice.path, choice.delay_s, choice.rate_bps
        if (path < 0).any():
            lost = np.unravel_index(np.argmin(path), path.shape)
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
        """Return the best of these paths or, with `fixed`, the first that is up, from src to dst.

        `row` are indices of rows of `rates_bps`, broadcast with the ranks `src` and `dst` to the result's shape.
        """
        shape = np.broadcast_shapes(row.shape, src.shape, dst.shape)
        path, cost_s = np.full(shape, -1), np.full(shape, np.inf)
        delay_s, rate_bps = np.zeros(shape), np.zeros(shape)
        for candidate in paths:
            up, down = self._links.ends(candidate.index, src, dst)
            wan = reduce(np.minimum, (rates_bps[:, link] for link in candidate.links))
            rate = np.minimum(np.minimum(rates_bps[row, up], rates_bps[row, down]), wan[row])
            delay = self.delay_s(candidate.index, src, dst)
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
    """Routes with their costs; where no path is up, the path is -1, the cost infinite and the delay 0."""

    cost_s: Floats


def _with_no_link(rates_bps: Floats) -> Floats:
    """Append an infinite rate for the index `_Links.none` to the rates of links, [K, links]."""
    return np.append(rates_bps, np.full((len(rates_bps), 1), np.inf), axis=1)


class _Links:
    """The logical links of crossings by path; the index `none`, one after the last link, means no link."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.none = fabric, len(fabric.links)
        self._src_br = np.array([path.src_br for path in fabric.paths], dtype=np.intp)
        self._dst_br = np.array([path.dst_br for path in fabric.paths], dtype=np.intp)
        most = max((len(path.links) for path in fabric.paths), default=0)
        wan = [(*path.links, *[self.none] * (most - len(path.links))) for path in fabric.paths]
        self.wan = np.array(wan, dtype=np.intp).reshape(len(wan), most)
        sites, between = len(fabric.gpus_per_site), fabric.paths_between
        self.between = np.full((sites, sites, max(map(len, between.values()), default=0)), -1)
        for pair, paths in between.items():
            self.between[pair][: len(paths)] = [path.index for path in paths]

    @property
    def border_routers(self) -> Indices:
        """The border routers at both ends of each path, [paths, 2]."""
        return np.stack([self._src_br, self._dst_br], axis=1)

    def ends(self, path: Any, src: Any, dst: Any) -> tuple[Any, Any]:
        """Return the links from `src` to a path's first border router and from its last to `dst`, arrays broadcast."""
        up, down = self._src_br[path], self._dst_br[path]
        return self.fabric.to_br_index[src, up], self.fabric.from_br_index[down, dst]

    def of(self, path: Indices, src: Any, dst: Any) -> Indices:
        """Return the links from ranks `src` to `dst` over these paths, [..., H]; all three are broadcast."""
        up, down = self.ends(path, src, dst)
        return np.concatenate([up[..., None], self.wan[path], down[..., None]], axis=-1)

    def overlap(self, path: Indices, src: Ranks, dst: Ranks) -> Flags:
        """Return for each row of crossings, [K, C], whether any two of them share a link: [K]."""
        used = np.sort(self.of(path, src, dst).reshape(len(path), -1), axis=1)
        shared: Flags = ((used[:, 1:] == used[:, :-1]) & (used[:, 1:] != self.none)).any(axis=1)
        return shared

    def candidates(self, src: Ranks, dst: Ranks) -> Indices:
        """Return the indices of the paths of each of C crossings, [C, P]; -1 after its last path."""
        return self.between[self.fabric.gpu_sites[src], self.fabric.gpu_sites[dst]]

    def has_choice(self, src: Ranks, dst: Ranks) -> Flags:
        """Return for crossings, in arrays of any shape, whether each has several candidate paths."""
        several = (self.between >= 0).sum(axis=-1) > 1
        chooses: Flags = several[self.fabric.gpu_sites[src], self.fabric.gpu_sites[dst]]
        return chooses

    def groups(self, src: Ranks, dst: Ranks) -> list[Indices]:
        """Return the groups of two and more crossings, [C], that can share a link directly or through others. Groups
        in which no crossing has a choice are left out."""
        if not self.has_choice(src, dst).any():
            return []
        path = self.candidates(src, dst)
        links = np.where(path[..., None] < 0, self.none, self.of(path, src[:, None], dst[:, None]))
        links = links.reshape(src.size, -1)
        group = np.arange(src.size)  # of each crossing: the lowest crossing that is known to be in its group
        while True:
            of_link = np.full(self.none + 1, src.size)
            np.minimum.at(of_link, links, group[:, None])
            of_link[self.none] = src.size
            lowest = of_link[links].min(axis=1)
            if (lowest == group).all():
                break
            group = lowest
        chooses = np.zeros(src.size, dtype=bool)
        np.logical_or.at(chooses, group, self.has_choice(src, dst))
        several = np.bincount(group, minlength=src.size) > 1
        return [np.flatnonzero(group == first) for first in np.flatnonzero(several & chooses)]


class _Group:
    """C crossings that can share links, each with up to P paths; those with several are *free*.

    `_paths` [C, P] are indices in `Fabric.paths`, -1 after the last path; `_links` [C, P, H] are the paths' links and
    `_delays_s` [C, P] their delays. Links are numbered within the group: `_used` [L] are their numbers in the fabric,
    and the last one means no link. A choice, [..., C], is one column of these for each crossing. Loads, [..., L], are
    the numbers of crossings on each link. Rates are [R, L], infinite in the last column.
    """

    def __init__(self, router: "Router", links: _Links, src: Ranks, dst: Ranks) -> None:
        self._paths = links.candidates(src, dst)
        missing, ends = self._paths < 0, (src[:, None], dst[:, None])
        self._counts = (~missing).sum(axis=1)
        self._combinations: int = prod(self._counts.tolist())  # exact, however many
        self._free = np.flatnonzero(self._counts > 1)
        of_paths = np.where(missing[..., None], links.none, links.of(self._paths, *ends))
        used = np.union1d(of_paths, links.none)
        self._used, self._links = used, np.searchsorted(used, of_paths)
        self._delays_s = np.where(missing, np.inf, router.delay_s(self._paths, *ends))
        self._each = np.arange(src.size)

    @property
    def is_small(self) -> bool:
        """Whether all choices are compared."""
        return self._combinations <= MAX_COMBINATIONS

    def choose(self, alone: Indices, rates_bps: Floats, *, bits: int) -> Indices:
        """Return the crossings' paths, [R, C], for messages of `bits`; `alone`, [R, C], are the best paths alone, and
        `rates_bps`, [R, links + 1], the rates of the fabric's links and of no link."""
        begin = alone - self._paths[:, 0]  # the paths between two sites have consecutive indices
        loads = self._loads(begin)
        loads[:, -1] = 0
        links = self._links[self._free, begin[:, self._free]].reshape(len(begin), -1)
        contended = np.flatnonzero((np.take_along_axis(loads, links, axis=1) > 1).any(axis=1))
        choose = self._compare_all if self.is_small else self._greedy
        chosen, rates_bps = alone.copy(), rates_bps[np.ix_(contended, self._used)]
        with np.errstate(divide="ignore"):  # a link that is down
            chosen[contended] = self._paths[self._each, choose(begin[contended], rates_bps, bits)]
        return chosen

    def _compare_all(self, _: Indices, rates_bps: Floats, bits: int) -> Indices:
        """Return the best of all choices, [R, C]."""
        choices = np.zeros((self._combinations, self._each.size), dtype=np.intp)
        choices[:, self._free] = np.indices(self._counts[self._free]).reshape(self._free.size, -1).T
        loads = self._loads(choices)
        varies = (loads != loads[0]).any(axis=0)[self._links].any(axis=(1, 2))  # whether a crossing's time may vary
        best = np.empty((len(rates_bps), self._each.size), dtype=np.intp)
        step = max(1, _CELLS // (self._links.shape[2] * len(choices)))
        for start in range(0, len(rates_bps), step):
            rates = rates_bps[start : start + step]
            constant_s = self._times_s(choices[:1], rates, bits)[:, ~varies]
            largest = np.tile(constant_s.max(axis=1, initial=0)[:, None], len(choices))
            total = np.zeros_like(largest)  # of the times that vary
            for crossing in np.flatnonzero(varies):
                columns = choices[:, crossing]
                links = self._links[crossing, columns]
                share_bps = rates[:, links] / np.take_along_axis(loads, links, axis=1)
                time_s = self._delays_s[crossing, columns] + bits / share_bps.min(axis=-1)
                largest, total = np.maximum(largest, time_s), total + time_s
            total[largest > largest.min(axis=1, keepdims=True)] = np.inf
            best[start : start + step] = choices[total.argmin(axis=1)]
        return best

    def _greedy(self, alone: Indices, rates_bps: Floats, bits: int) -> Indices:
        """Return the best of `alone` and of the choices that settle in the crossings' order and in reverse, [R, C]."""
        best, (largest, total) = alone, self._cost(alone, rates_bps, bits)
        for order in (self._free, self._free[::-1]):
            choice = self._settled(rates_bps, bits, order)
            new_largest, new_total = self._cost(choice, rates_bps, bits)
            better = (new_largest < largest) | ((new_largest == largest) & (new_total < total))
            best = np.where(better[:, None], choice, best)
            largest, total = np.where(better, new_largest, largest), np.where(better, new_total, total)
        return best

    def _settled(self, rates_bps: Floats, bits: int, order: Indices) -> Indices:
        """Return the choice, [R, C], after the free crossings, in this order, took their best paths until none
        gains."""
        row, fixed = np.arange(len(rates_bps)), np.flatnonzero(self._counts == 1)
        loads = np.tile(np.bincount(self._links[fixed, 0].ravel(), minlength=self._used.size), (row.size, 1))
        choice = np.zeros((row.size, self._each.size), dtype=np.intp)
        for turn in range(_MAX_TURNS):
            before = choice.copy()
            for crossing in order:
                links, now = self._links[crossing], choice[:, crossing]
                if turn:
                    loads[row[:, None], links[now]] -= 1
                time_s = self._delays_s[crossing] + bits / (rates_bps[:, links] / (loads[:, links] + 1)).min(axis=-1)
                column = time_s.argmin(axis=1)
                if turn:
                    column = np.where(time_s[row, column] < time_s[row, now], column, now)
                choice[:, crossing] = column
                loads[row[:, None], links[column]] += 1
            if turn and (choice == before).all():
                break
        return choice

    def _cost(self, choice: Indices, rates_bps: Floats, bits: int) -> tuple[Floats, Floats]:
        """Return the largest time and the sum of the times of one choice per row of rates, [R] each."""
        times_s = self._times_s(choice, rates_bps, bits)
        return times_s.max(axis=1), times_s.sum(axis=1)

    def _times_s(self, choice: Indices, rates_bps: Floats, bits: int) -> Floats:
        """Return the crossings' times, [R, C], with one choice per row of rates, or the same for all rows."""
        links, row = self._links[self._each, choice].reshape(len(choice), -1), np.arange(len(rates_bps))[:, None]
        load = np.take_along_axis(self._loads(choice), links, axis=1)
        share_bps = (rates_bps[row, links] / load).reshape(len(rates_bps), self._each.size, -1).min(axis=-1)
        times_s: Floats = self._delays_s[self._each, choice] + bits / share_bps
        return times_s

    def _loads(self, choice: Indices) -> Indices:
        used, width = self._links[self._each, choice].reshape(len(choice), -1), self._used.size
        cells = used + width * np.arange(len(choice))[:, None]
        return np.bincount(cells.ravel(), minlength=len(choice) * width).reshape(len(choice), width)
