"""Lower bounds: a time that no schedule of a collective can beat on the logical links or ports of a fabric."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric
from topologies.fabric.ports import links_in_grain

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

_MAX_SIDES = 8  # sites and transit routers that are tried on both sides of a cut: at most 2^8 cuts


class LowerBound:
    """The least time that a collective of a kind can take on a fabric with these propagation delays, [links or ports].

    A block is the contribution of a GPU to an allgather, the whole buffer of a `broadcast` or `reduce`, and 1/n of the
    buffer of any other kind; the root is rank 0. Any schedule is allowed: it may cut chunks into pieces of any size,
    send them over all links at once and forward them from the first bit on, and any node may copy, add or even code
    them. The bound assumes only what the model assumes of a link: bits that enter link l at time t leave it at
    t + delay_l, at most rate_l bits enter it per second, and nodes have no other connections.

    Proof. Let X be a set of nodes (GPUs and routers), C the links that lead into X, and S the GPUs outside X. At the
    end, the GPUs in X know B blocks that depend on data that started in S (`_crossing`): in an allgather |S| blocks, in
    an allreduce all n sums. Copying, adding or coding cannot recover them from fewer received bits, so at least as many
    bits enter X over C, in time for the GPUs x that need them. Let d be the least delay of any path from a GPU in S to
    such an x, and T the completion time. No useful bit enters a link l of C before the least delay from S to the tail
    of l, or later than T minus delay_l minus the least delay from the head of l to x; these three delays add up to at
    least d. So l is useful for at most T - d seconds, and

        8 B block_bytes <= (T - d) sum of rate_l over C,   T >= d + 8 B block_bytes / sum of rate_l over C.

    If each x needs all B blocks, this holds for every x in X, hence for the one with the greatest d. The bound is the
    maximum over these sets X: each single GPU (what it must receive); all nodes but one GPU (what that GPU must send);
    and the cuts of the WAN, where X consists of whole sites and any transit routers (if there are many routers, only
    the first few vary and the others stay outside). Any cut gives a valid bound, so trying fewer only weakens it.

    In `fluid` and `optimal_schedule` a flow holds all of its links at once: its bits are on the last link as soon as
    they are on the first, and are delayed only after that. Flows with different delays can then together use a link for
    longer than T - d. With `at_once`, d is the least delay from any GPU outside X to any GPU in X, which every bit that
    crosses still has ahead of it when it has left its sender. This bound is weaker, and holds in both models.
    """

    def __init__(self, fabric: Fabric, *, delays_s: Floats, kind: str, block_bytes: int, at_once: bool = False) -> None:
        graph = _Graph(fabric, delays_s)
        limits: list[_Limit] = []
        for inside, entering in graph.cuts():
            need = _crossing(kind, inside)
            if need is None:
                continue
            if at_once:
                delay_s = graph.delays_s[np.ix_(~inside, inside)].min()
            else:
                first_s = graph.delays_s[np.ix_(need.sources, need.sinks)].min(axis=0)
                delay_s = first_s.max() if need.all_each else first_s.min()
            limits.append(_Limit(delay_s, 8.0 * block_bytes * need.blocks, entering))
        self._set(limits)

    def _set(self, limits: "Sequence[_Limit]") -> None:
        """Store the limits as arrays, with the links of all limits concatenated."""
        self._after_s = np.array([limit.after_s for limit in limits])
        self._bits = np.array([limit.bits for limit in limits])
        self._links = np.concatenate([limit.links for limit in limits])
        self._starts = np.cumsum([0, *(len(limit.links) for limit in limits[:-1])])

    def seconds(self, rates_bps: Floats) -> Floats:
        """Return the bound under K sets of rates, [K, links or ports]: [K] s, infinite if a cut has no capacity."""
        capacity_bps = np.add.reduceat(np.take(rates_bps, self._links, axis=1), self._starts, axis=1)
        with np.errstate(divide="ignore"):
            bound_s: Floats = (self._after_s + self._bits / capacity_bps).max(axis=1)
        return bound_s


class _Limit(NamedTuple):
    """A bound by one cut: `after_s` + `bits` / the sum of the rates of `links`, in s."""

    after_s: float
    bits: float
    links: Indices


@dataclass(frozen=True, kw_only=True)
class _Need:
    """The number of blocks that must enter a set X. They depend on data that started at the GPUs `sources` and are
    needed by the GPUs `sinks`; with `all_each`, each sink needs all of them."""

    blocks: float
    sources: Indices
    sinks: Indices
    all_each: bool


def _crossing(kind: str, inside: Bools) -> _Need | None:
    """Return the blocks that must enter the set of the GPUs `inside`, [n], in a collective of a kind; None if none."""
    outer, inner, root = np.flatnonzero(~inside), np.flatnonzero(inside), np.zeros(1, dtype=np.intp)
    if not outer.size or not inner.size:
        return None
    begins_at_root, ends_at_root = kind in ("broadcast", "scatter"), kind in ("reduce", "gather")
    if (begins_at_root and inside[0]) or (ends_at_root and not inside[0]):
        return None
    if kind in ("sendrecv", "alltoallv"):
        away = (inner[:, None] - outer) % inside.size  # from each GPU outside to each inside
        blocks = np.sum(away == 1) if kind == "sendrecv" else away.sum() * 2 / (inside.size - 1)
        return _Need(blocks=float(blocks), sources=outer, sinks=inner, all_each=False)
    needed = {
        "allgather": outer.size,
        "allreduce": inside.size,
        "reducescatter": inner.size,
        "alltoall": outer.size * inner.size,
        "broadcast": 1,
        "reduce": 1,
        "gather": outer.size,
        "scatter": inner.size,
    }[kind]
    return _Need(
        blocks=needed,
        sources=root if begins_at_root else outer,
        sinks=root if ends_at_root else inner,
        all_each=kind in ("allgather", "allreduce", "broadcast"),
    )


class _Graph:
    """The links or ports of a fabric as a graph, with the least delay from each GPU to each other, [n, n] s."""

    def __init__(self, fabric: Fabric, delays_s: Floats) -> None:
        links = links_in_grain(fabric).all
        ends = {end for link in links for end in (link.src, link.dst)}
        names = [*(gpu.name for gpu in fabric.gpus), *(one.name for one in fabric.switches if one.name in ends)]
        self._nodes = {name: index for index, name in enumerate(names)}  # the GPUs come first, by rank
        self._tail = np.array([self._nodes[link.src] for link in links])
        self._head = np.array([self._nodes[link.dst] for link in links])
        self._fabric, n = fabric, len(fabric.gpus)
        self.delays_s = _least_delays_s(self._tail, self._head, delays_s, len(self._nodes))[:n, :n]

    def cuts(self) -> Iterator[tuple[Bools, Indices]]:
        """Yield the GPUs in each set X of the proof, a mask [n], and the links that lead into X."""
        for inside in self._sets():
            yield inside[: len(self._fabric.gpus)], np.flatnonzero(~inside[self._tail] & inside[self._head])

    def _sets(self) -> Iterator[Bools]:
        """Yield the sets X of the proof, each a mask [nodes]."""
        n, sites = len(self._fabric.gpus), len(self._fabric.gpus_per_site)
        for gpu in range(n):
            alone = np.zeros(len(self._nodes), dtype=bool)
            alone[gpu] = True
            yield alone
            yield ~alone
        site = np.full(len(self._nodes), -1)
        site[:n] = self._fabric.gpu_sites
        for switch in self._fabric.switches:
            if switch.name in self._nodes and switch.site is not None:
                site[self._nodes[switch.name]] = switch.site
        free = np.flatnonzero(site < 0)[: max(0, _MAX_SIDES - sites)]
        for chosen in chain.from_iterable(combinations(range(sites), size) for size in range(1, sites)):
            for sides in product((False, True), repeat=free.size):
                inside = np.isin(site, chosen)
                inside[free] = sides
                yield inside


def _least_delays_s(tail: Indices, head: Indices, delays_s: Floats, nodes: int) -> Floats:
    """Return the least delay of any path between each two nodes, [nodes, nodes] (Floyd and Warshall, 1962)."""
    away_s = np.full((nodes, nodes), np.inf)
    np.fill_diagonal(away_s, 0)
    np.minimum.at(away_s, (tail, head), delays_s)  # links may be parallel
    for via in range(nodes):
        np.minimum(away_s, away_s[:, via, None] + away_s[via], out=away_s)
    return away_s


# --- rounds of several jobs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RoundJob:
    """A job: a collective of a kind among these GPUs (ranks, the root first), `count` times back to back."""

    kind: str
    block_bytes: int
    gpus: tuple[int, ...]
    count: int = 1
    start_s: float = 0.0


class RoundBound(LowerBound):
    """The least time from the start of a round until all of its jobs are complete, for any schedules.

    Jobs exchange no data, so the bound of `LowerBound` for a cut holds for each job on its own, counted from its start
    and with the d of flows that share links (`at_once`). If a job repeats its collective, d counts once for all of its
    bits. All jobs that start at t or later have at most T - t seconds, in which all of their bits cross the cut:

        T >= t + (the sum of their bits) / sum of rate_l over C.

    The bound is the maximum of both over all cuts, the first for every job and the second for every start time.
    """

    def __init__(self, fabric: Fabric, *, delays_s: Floats, demands: Sequence[RoundJob]) -> None:
        graph = _Graph(fabric, delays_s)
        limits: list[_Limit] = []
        for inside, entering in graph.cuts():
            starts_and_bits: list[tuple[float, float]] = []  # of each job that crosses the cut
            for job in demands:
                gpus = np.array(job.gpus)
                need = _crossing(job.kind, inside[gpus])
                if need is not None:
                    delay_s = graph.delays_s[np.ix_(gpus[~inside[gpus]], gpus[inside[gpus]])].min()
                    bits = 8.0 * job.block_bytes * need.blocks * job.count
                    starts_and_bits.append((job.start_s, bits))
                    limits.append(_Limit(job.start_s + delay_s, bits, entering))
            for start_s in {start_s for start_s, _ in starts_and_bits}:
                total_bits = sum(bits for later_s, bits in starts_and_bits if later_s >= start_s)
                limits.append(_Limit(start_s, total_bits, entering))
        self._set(limits)
