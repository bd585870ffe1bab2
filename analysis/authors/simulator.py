"""The authors' simulation of a pipelined ring AllGather, and their four policies over a sequence of collectives.

A ring consists of an open chain of each datacenter's GPUs and two bridges between the chains' ends. It is chosen by the
sum of its links' times for a chunk, transmission plus propagation. Every node on the path stores and forwards a chunk.
`Semantics` has the assumptions of the authors that another simulator could make differently.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from analysis.authors.fabric import BORDERS, CHAINS, GATES, GPUS, LINK, NODES, WAN_PATHS, delays_s

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MODES = ("base", "ccl", "wan", "joint")
REEMBED_EVERY = 10

_MAX_NODES = 4 + max(map(len, WAN_PATHS))  # on a bridge: two GPUs, two border switches and the routers
_SEGMENTS = 4  # of a ring per datacenter: three in the chain, then the bridge to the other datacenter


class Semantics(NamedTuple):
    """How a chunk crosses a segment of the ring; the defaults are the authors'.

    `shared_port`: a node sends on one port at a time. `busy_in_flight`: a link accepts the next chunk only when the
    previous one has arrived. `cut_through`: a segment is one pipe with the rate of its slowest link and the sum of the
    links' delays, and shares no link with other segments.
    """

    shared_port: bool = True
    busy_in_flight: bool = True
    cut_through: bool = False


AUTHORS = Semantics()


class Rings(NamedTuple):
    """A batch of n rings: `chains` [n, 2, 4] are the GPUs of the two chains in order; `borders` [n, 2, 2] the border
    switches (0 or 1 within the datacenter) of the first and the last GPU of each chain; `paths` [n] the WAN paths."""

    chains: Ints
    borders: Ints
    paths: Ints

    def at(self, rows: "Ints | slice") -> "Rings":
        """Select some of the rings."""
        return Rings(self.chains[rows], self.borders[rows], self.paths[rows])

    def over(self, paths: Ints) -> "Rings":
        """Return the same rings with other WAN paths."""
        return self._replace(paths=paths)


def best_rings(weights_s: Floats) -> Rings:
    """Return the cheapest ring for each row of link times, [n, links] s; of several equally cheap ones the first.

    A link costs the same in both directions. Both bridges therefore use the cheapest WAN path, in opposite directions,
    and share no directed link. Reversing a chain changes the cost of a ring only by the rounding of the sum, and that
    rounding decides the direction of the chains. Costs are therefore added link by link in the authors' order, so
    that the ring is theirs unless two paths cost the same.
    """
    rows = np.arange(len(weights_s))
    links = LINK[CHAINS[:, :, :-1], CHAINS[:, :, 1:]]
    order = np.cumsum(weights_s[:, links], axis=-1)[..., -1].argmin(axis=-1)
    chains = np.stack([CHAINS[site][order[:, site]] for site in range(2)], axis=1)
    to_border = np.stack([LINK[chains[:, site, [0, -1], None], BORDERS[site]] for site in range(2)], axis=1)
    to_gate = LINK[BORDERS, GATES[:, None]]
    borders = (weights_s[rows[:, None, None, None], to_border] + weights_s[:, to_gate][:, :, None]).argmin(axis=-1)
    along = np.zeros((len(WAN_PATHS), max(map(len, WAN_PATHS)) - 1, len(rows)))
    for path, routers in enumerate(WAN_PATHS):
        along[path, : len(routers) - 1] = weights_s[:, LINK[routers[:-1], routers[1:]]].T
    paths = along.sum(axis=1).argmin(axis=0)
    between = along[paths, :, rows]

    def bridge(site: int, end: int, far_end: int) -> Floats:
        """Return the cost of the bridge from one end of a site's chain to an end of the other site's chain, [n] s."""
        outer = []
        for at, gpu in ((site, end), (1 - site, far_end)):
            border = borders[:, at, gpu]
            outer_links = np.stack([to_border[rows, at, gpu, border], to_gate[at, border]], axis=-1)
            outer.append(weights_s[rows[:, None], outer_links])
        hops = [outer[0], between if site == 0 else between[:, ::-1], outer[1][:, ::-1]]
        return np.asarray(np.cumsum(np.concatenate(hops, axis=1), axis=1)[:, -1])

    reversals = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])  # whether each chain is reversed
    best = np.argmin([bridge(0, 1 - a, b) + bridge(1, 1 - b, a) for a, b in reversals], axis=0)
    for site in range(2):
        is_reversed = reversals[best, site] == 1
        chains[is_reversed, site] = chains[is_reversed, site, ::-1]
        borders[is_reversed, site] = borders[is_reversed, site, ::-1]
    return Rings(chains, borders, paths)


def nodes_of(rings: Rings) -> npt.NDArray[np.int8]:
    """Return the nodes of every segment of the rings, [n, 8, nodes]: from one GPU to the next, padded with -1."""
    chains, count = rings.chains, len(rings.paths)
    nodes = np.full((count, GPUS, _MAX_NODES), -1, np.int8)
    flat = chains.reshape(count, GPUS)
    nodes[:, :, 0] = flat
    nodes[:, :, 1] = np.roll(flat, -1, axis=1)
    for path, routers in enumerate(WAN_PATHS):
        rows = np.flatnonzero(rings.paths == path)
        for site, routers_on_path in ((0, routers), (1, routers[::-1])):
            other, last = 1 - site, len(routers_on_path) + 3
            bridge = nodes[rows, _SEGMENTS * (site + 1) - 1]
            bridge[:, 1] = BORDERS[site][rings.borders[rows, site, 1]]
            bridge[:, 2 : last - 1] = routers_on_path
            bridge[:, last - 1] = BORDERS[other][rings.borders[rows, other, 0]]
            bridge[:, last] = chains[rows, other, 0]
            nodes[rows, _SEGMENTS * (site + 1) - 1] = bridge
    return nodes


def by_mode(rings: Rings, initial: Rings, *, stale: int = 0) -> dict[str, Rings]:
    """Return the rings that each mode uses for collectives 1 to n - 1, given the best rings of draws 0 to n - 1.

    `initial` is the single initial ring. A decision for collective c uses the capacities of draw max(0, c - `stale`).
    """
    collectives = np.arange(1, len(rings.paths))
    known = np.maximum(collectives - stale, 0)
    rebuilt = np.maximum((collectives - 1) // REEMBED_EVERY * REEMBED_EVERY + 1 - stale, 0)
    base, ccl = initial.at(np.zeros(len(collectives), np.int64)), rings.at(rebuilt)
    paths = rings.paths[known]
    return {"base": base, "ccl": ccl, "wan": base.over(paths), "joint": ccl.over(paths)}


def weights_s(capacity_gbps: Floats, size_gbit: float, wan_delay_s: float) -> Floats:
    """Return the time of a chunk over each link, transmission plus propagation, [..., links] s."""
    return size_gbit / capacity_gbps + delays_s(wan_delay_s)


def times_s(
    rings: Rings, capacity_gbps: Floats, size_gbit: float, wan_delay_s: float, semantics: Semantics = AUTHORS
) -> Floats:
    """Return the completion times of n AllGathers, [n] s, each with its own ring and capacities, [n, links] Gbit/s."""
    return _times(nodes_of(rings), size_gbit / capacity_gbps, delays_s(wan_delay_s), LINK, semantics)


@njit(cache=True, error_model="numpy", nogil=True)
def _times(nodes: npt.NDArray[np.int8], sending_s: Floats, delay_s: Floats, link: Ints, semantics: Semantics) -> Floats:
    """Run an event loop for each collective: of all chunks waiting at GPUs, the one that arrived first is sent next.

    Sending reserves all hops of a segment at once, each from the time when the chunk is there and the hop is free. In
    the last step chunks return to their owners, which have them already: this uses links, but no transfer waits for it.
    """
    hops = nodes.shape[2] - 1
    completion_s = np.empty(nodes.shape[0])
    free = np.empty(max(NODES, GPUS * hops))  # when each resource is free: a node, or a hop of a segment
    # For each GPU and each of its chunks, when it arrived, and its position in the order of all arrivals.
    arrived, position = np.empty((GPUS, GPUS)), np.empty((GPUS, GPUS), np.int64)
    sent, received = np.empty(GPUS, np.int64), np.empty(GPUS, np.int64)
    for row in range(nodes.shape[0]):
        free[:] = 0.0
        arrived[:, 0] = 0.0
        position[:, 0] = np.arange(GPUS)
        sent[:], received[:] = 0, 1
        arrivals, end = GPUS, 0.0
        for _ in range(GPUS * GPUS):
            src, now, first = -1, np.inf, 0
            for gpu in range(GPUS):
                if sent[gpu] == received[gpu]:
                    continue
                at, order = arrived[gpu, sent[gpu]], position[gpu, sent[gpu]]
                if at < now or (at == now and order < first):
                    src, now, first = gpu, at, order
            sent[src] += 1
            slowest, delays = 0.0, 0.0
            for hop in range(hops):
                if nodes[row, src, hop + 1] < 0:
                    break
                over = link[nodes[row, src, hop], nodes[row, src, hop + 1]]
                if semantics.cut_through:
                    slowest, delays = max(slowest, sending_s[row, over]), delays + delay_s[over]
                    continue
                resource = nodes[row, src, hop] if semantics.shared_port else src * hops + hop
                begins = max(now, free[resource])
                now = begins + (sending_s[row, over] + delay_s[over])
                free[resource] = now if semantics.busy_in_flight else begins + sending_s[row, over]
            if semantics.cut_through:
                free[src] = max(now, free[src]) + slowest
                now = free[src] + delays
            if sent[src] < GPUS:
                dst = (src + 1) % GPUS
                arrived[dst, received[dst]], position[dst, received[dst]] = now, arrivals
                received[dst] += 1
                arrivals += 1
                end = max(end, now)
        completion_s[row] = end
    return completion_s
