"""What the model says of the network at hand: the links an edge crosses, what they carry, how long a ring takes. Pure.

Rates and chunks are the scenario's, not what is carried of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.timing import completion_s
from controller.ways import Ways
from topologies.fabric import Fabric, WanPath

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Way:
    """The logical links from one GPU to another, in order; their delays' sum; the rate of the slowest."""

    links: tuple[int, ...]
    delay_s: float
    rate_bps: float

    def cost_s(self, chunk_bytes: int) -> float:
        """How long a chunk takes over it."""
        return self.delay_s + 8 * chunk_bytes / self.rate_bps


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One AllGather: what it took, what the model says, and packets dropped anywhere meanwhile.

    `late`: the machine was too busy to keep time.
    """

    measured_s: float
    predicted_s: float
    drops: int
    late: bool


def way(fabric: Fabric, src: int, dst: int, path: int, *, rates_bps: Floats, delays_s: Floats) -> Way:
    """The way from rank to rank, over the WAN path of that index, or -1 within a site."""
    if path < 0:
        links = [int(fabric.intra_index[src, dst])]
    else:
        over = fabric.paths[path]
        links = [int(fabric.to_br_index[src, over.src_br]), *over.links, int(fabric.from_br_index[over.dst_br, dst])]
    return Way(links=tuple(links), delay_s=float(delays_s[links].sum()), rate_bps=float(rates_bps[links].min()))


def edges(ring: Sequence[int]) -> list[tuple[int, int]]:
    """The edges of a ring: from each rank to the next, and from the last to the first."""
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))


def crosses(fabric: Fabric, src: int, dst: int) -> bool:
    """Whether an edge leads to another site."""
    return fabric.gpus[src].site != fabric.gpus[dst].site


def candidates(fabric: Fabric, src: int, dst: int) -> tuple[WanPath, ...]:
    """The WAN paths that an edge could take, the fixed one first."""
    return fabric.paths_between.get((fabric.gpus[src].site, fabric.gpus[dst].site), ())


def paths_now(fabric: Fabric, pairs: Sequence[tuple[int, int]], status: Mapping[str, Any]) -> tuple[int, ...]:
    """The WAN path that each pair of ranks is on by the controller's status, -1 within a site.

    A pair without a route of its own is on the fixed path: the first that leads around what is dead.
    """
    sites = [gpu.site for gpu in fabric.gpus]
    routes = {(src, dst): path for src, dst, path, _ in status["routes"]}
    ways = Ways(fabric, frozenset(frozenset(cable) for cable in status["dead"]))
    return tuple(
        -1 if sites[src] == sites[dst] else routes.get((src, dst), ways.fixed(sites[src], sites[dst]).index)
        for src, dst in pairs
    )


def predicted_s(
    fabric: Fabric,
    ring: Sequence[int],
    paths: Sequence[int],
    *,
    rates_bps: Floats,
    delays_s: Floats,
    chunk_bytes: float,
) -> float:
    """How long an AllGather over this ring and these paths (-1 within a site) takes, by the model."""
    ways = [
        way(fabric, src, dst, path, rates_bps=rates_bps, delays_s=delays_s)
        for (src, dst), path in zip(edges(ring), paths, strict=True)
    ]
    alpha_s = np.array([[one.delay_s for one in ways]])
    beta_s = np.array([[8 * chunk_bytes / one.rate_bps for one in ways]])
    return float(completion_s(alpha_s, beta_s)[0])
