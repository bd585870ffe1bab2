"""A time no collective of a kind can beat, whatever its schedule, on the logical links or ports of a fabric."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product

import numpy as np
import numpy.typing as npt

from topologies.fabric.fabric import Fabric
from topologies.fabric.ports import shared_by

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

_MAX_SIDES = 8  # sites and transit routers whose side of a cut is tried both ways: at most 2^8 cuts


class LowerBound:
    """Least time any collective of a kind can take on a fabric with these propagation delays, [links or ports].

    A block is what a GPU contributes to an allgather, and the n-th part of the buffer of any other kind but `broadcast`
    and `reduce`, whose buffer is one block; the root is rank 0. The schedule may be anything: chunks cut into pieces of
    any size and sent over all links at once, forwarded from the first bit on, copied, added or even coded on the way by
    any node. Assumed is only what the model assumes of a link: what enters link l at time t leaves it at t + delay_l,
    no more than rate_l bits enter it per second, and no two nodes are joined otherwise.

    Proof. Let X be a set of nodes (GPUs and routers), C the links that lead into X, and S the GPUs outside X. At the
    end the GPUs in X know B blocks that depend on what began in S (`_crossing`): of an allgather |S|, of an allreduce
    all n sums. However they are copied, added or coded, they do not follow from fewer bits received, so as many bits at
    least enter X over C in time for the GPUs x that need them. Let d be the least delay of any way from a GPU of S to
    such an x. Nothing of use enters a link l of C before the least delay from S to the tail of l, nor so late that
    delay_l and the least delay from the head of l to x are more than is left of the time T; these add up to d or more.
    So l is of use for at most T - d seconds, and

        8 B block_bytes <= (T - d) sum of rate_l over C,   T >= d + 8 B block_bytes / sum of rate_l over C.

    Where each x needs all B blocks this holds for every x in X, so for the one with the greatest d. The bound is the
    greatest over: each GPU as X (what it must take in); everything but one GPU as X (what must leave it); and the cuts
    of the WAN, X made of any sites, whole, and of any transit routers (of many routers, the first few vary and the
    others stay outside). Each of them is a cut, so those left out cost strength, not truth.

    In `fluid` and `optimum` a flow holds all of its links at once: its bits are on the last link as soon as they are on
    the first, and only then delayed. Flows of different delays then use one link for longer together than T - d. With
    `at_once` d is the least delay from any GPU outside X to any in X, which all that crosses has still before it when
    it has left: that bound is weaker, and true of both.
    """

    def __init__(self, fabric: Fabric, *, delays_s: Floats, kind: str, block_bytes: int, at_once: bool = False) -> None:
        nodes, links = _nodes(fabric), shared_by(fabric).all
        tail = np.array([nodes[link.src] for link in links])
        head = np.array([nodes[link.dst] for link in links])
        n = len(fabric.gpus)
        away_s = _least_delays_s(tail, head, delays_s, len(nodes))[:n, :n]
        least_s, bits, crossing = [], [], []
        for inside in _cuts(fabric, nodes):
            need = _crossing(kind, inside[:n])
            if need is not None:
                first_s = away_s[np.ix_(need.sources, need.sinks)].min(axis=0)
                if at_once:
                    first_s = away_s[np.ix_(~inside[:n], inside[:n])].min(axis=0)
                least_s.append(first_s.max() if need.all_each and not at_once else first_s.min())
                bits.append(8 * block_bytes * need.blocks)
                crossing.append(np.flatnonzero(~inside[tail] & inside[head]))
        self._least_s, self._bits = np.array(least_s), np.array(bits, dtype=np.float64)
        self._links = np.concatenate(crossing)
        self._starts = np.cumsum([0, *map(len, crossing[:-1])])

    def seconds(self, rates_bps: Floats) -> Floats:
        """The bound under each of these conditions, [K, links or ports]: [K] s, infinite without capacity."""
        capacity_bps = np.add.reduceat(np.take(rates_bps, self._links, axis=1), self._starts, axis=1)
        with np.errstate(divide="ignore"):
            found: Floats = (self._least_s + self._bits / capacity_bps).max(axis=1)
        return found


@dataclass(frozen=True, kw_only=True)
class _Need:
    """What must enter a set X: so many blocks, which depend on what began at `sources` and are needed at `sinks`;
    `all_each`: all of them at each sink."""

    blocks: int
    sources: Indices
    sinks: Indices
    all_each: bool


def _crossing(kind: str, inside: npt.NDArray[np.bool_]) -> _Need | None:
    """What must enter the set of the GPUs `inside`, [n], in a collective of a kind; None where nothing must."""
    outer, inner, root = np.flatnonzero(~inside), np.flatnonzero(inside), np.zeros(1, dtype=np.intp)
    if not outer.size or not inner.size:
        return None
    begins_at_root, ends_at_root = kind in ("broadcast", "scatter"), kind in ("reduce", "gather")
    if (begins_at_root and inside[0]) or (ends_at_root and not inside[0]):
        return None
    blocks = {
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
        blocks=blocks,
        sources=root if begins_at_root else outer,
        sinks=root if ends_at_root else inner,
        all_each=kind in ("allgather", "allreduce", "broadcast"),
    )


def _nodes(fabric: Fabric) -> dict[str, int]:
    """The ends of links or ports, numbered: the GPUs by rank, then all switches that are an end."""
    ends = {end for link in shared_by(fabric).all for end in (link.src, link.dst)}
    names = [*(gpu.name for gpu in fabric.gpus), *(one.name for one in fabric.switches if one.name in ends)]
    return {name: place for place, name in enumerate(names)}


def _cuts(fabric: Fabric, nodes: dict[str, int]) -> Iterator[npt.NDArray[np.bool_]]:
    """The sets X of the proof, [nodes] each."""
    n, sites = len(fabric.gpus), len(fabric.gpus_per_site)
    for gpu in range(n):
        alone = np.zeros(len(nodes), dtype=bool)
        alone[gpu] = True
        yield alone
        yield ~alone
    site = np.full(len(nodes), -1)
    site[:n] = fabric.gpu_sites
    for switch in fabric.switches:
        if switch.name in nodes and switch.site is not None:
            site[nodes[switch.name]] = switch.site
    free = np.flatnonzero(site < 0)[: max(0, _MAX_SIDES - sites)]
    for chosen in chain.from_iterable(combinations(range(sites), size) for size in range(1, sites)):
        for sides in product((False, True), repeat=free.size):
            inside = np.isin(site, chosen)
            inside[free] = sides
            yield inside


def _least_delays_s(tail: Indices, head: Indices, delays_s: Floats, nodes: int) -> Floats:
    """The least delay of any way from each node to each other, [nodes, nodes] (Floyd and Warshall, 1962)."""
    away_s = np.full((nodes, nodes), np.inf)
    np.fill_diagonal(away_s, 0)
    away_s[tail, head] = delays_s
    for via in range(nodes):
        np.minimum(away_s, away_s[:, via, None] + away_s[via], out=away_s)
    return away_s


# --- rounds of several jobs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a job does: a collective of a kind over these GPUs, by rank, the root first, `count` times back to back."""

    kind: str
    block_bytes: int
    gpus: tuple[int, ...]
    count: int = 1
    start_s: float = 0.0


class RoundBound(LowerBound):
    """Least time from the beginning of a round until all of its jobs are over, whatever their schedules.

    Jobs exchange no data, so what `LowerBound` says of the bits over a cut is true of each of them, with the d of flows
    that share links (`at_once`), counted from its start; done several times, all bits of the job come behind one d. All
    jobs that start at t or later have no more than T - t seconds, in which all of their bits together pass the cut:

        T >= t + (the sum of their bits) / sum of rate_l over C.

    The bound is the greatest over all cuts of both, the first for every job and the second for every start.
    """

    def __init__(self, fabric: Fabric, *, delays_s: Floats, demands: Sequence[Demand]) -> None:
        nodes, links = _nodes(fabric), shared_by(fabric).all
        tail = np.array([nodes[link.src] for link in links])
        head = np.array([nodes[link.dst] for link in links])
        away_s = _least_delays_s(tail, head, delays_s, len(nodes))
        least_s, bits, crossing = [], [], []
        for inside in _cuts(fabric, nodes):
            entering: list[tuple[float, float]] = []  # of each job its start and its bits
            limits: list[tuple[float, float]] = []
            for job in demands:
                gpus = np.array(job.gpus)
                need = _crossing(job.kind, inside[gpus])
                if need is not None:
                    delay_s = away_s[np.ix_(gpus[~inside[gpus]], gpus[inside[gpus]])].min()
                    entering.append((job.start_s, 8.0 * job.block_bytes * need.blocks * job.count))
                    limits.append((job.start_s + delay_s, entering[-1][1]))
            for start_s in {start_s for start_s, _ in entering}:
                limits.append((start_s, sum(more for later_s, more in entering if later_s >= start_s)))
            for at_s, amount in limits:
                least_s.append(at_s)
                bits.append(amount)
                crossing.append(np.flatnonzero(~inside[tail] & inside[head]))
        self._least_s, self._bits = np.array(least_s), np.array(bits)
        self._links = np.concatenate(crossing)
        self._starts = np.cumsum([0, *map(len, crossing[:-1])])
