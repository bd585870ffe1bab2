"""The decisions: which ring and which WAN paths every collective uses, in each mode, from its conditions alone.

Planned in batches by `decide`. The testbed and the prompt take their rings from the same `choose_rings` at the same
times (`Mode.reembeds_at`, `Mode.routes_at`), and their paths from the controller, which compares them by the same
`Router`.
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.routing.path_choice import NoPathError, Router
from hosts.embedding.ring import best_rings, rank_order
from topologies.conditions.sampler import Sampler
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric

Floats = npt.NDArray[np.float64]
Rings = npt.NDArray[np.int16]

_RINGS_AT_A_TIME = 512  # rings chosen at a time: their cost matrices stay a few megabytes


@dataclass(frozen=True, kw_only=True)
class Mode:
    """What a mode chooses anew, and when: the WAN paths for every collective, the ring for every so many."""

    name: str
    reroutes: bool
    reembeds: bool

    def reembeds_at(self, number: Any, every: int) -> Any:
        """Whether the ring is chosen anew before the collective of this number: a bool, or an array for an array."""
        return self.reembeds & (number % every == 0)

    def routes_at(self, number: Any, every: int) -> Any:
        """Whether its paths are installed, chosen or fixed: a new ring may cross the WAN between other GPUs."""
        return self.reroutes | self.reembeds_at(number, every)


MODES = {
    mode.name: mode
    for mode in (
        Mode(name="base", reroutes=False, reembeds=False),
        Mode(name="ccl", reroutes=False, reembeds=True),
        Mode(name="wan", reroutes=True, reembeds=False),
        Mode(name="joint", reroutes=True, reembeds=True),
    )
}


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What K collectives in a row use, and what the timing model needs to know of it; all [K, n] or [K].

    `ring` are ranks, from rank 0 on. Edge r leads from position r of the ring to the next: `path` is the index in
    `Fabric.paths` of the path it takes over the WAN (-1 within a site), `edge_alpha_s` its delay and `edge_beta_s`
    the time to send one chunk over it. `reembedded` and `rerouted` are True where the ring and the paths were
    chosen anew, whether or not the choice came out the same.
    """

    ring: Rings
    path: npt.NDArray[np.int16]
    edge_alpha_s: Floats
    edge_beta_s: Floats
    reembedded: npt.NDArray[np.bool_]
    rerouted: npt.NDArray[np.bool_]


def decide(
    fabric: Fabric,
    conditions: Sampler,
    *,
    delays_s: Floats,
    mode: Mode,
    chunk_bytes: int,
    reembed_every: int,
    start: int,
    count: int,
) -> Decisions:
    """The decisions for collectives start .. start+count-1, each a function of the conditions and its number alone.

    `delays_s`, [links], are the propagation delays. A ring is chosen under the conditions of the last multiple of
    `reembed_every`, for the routes in force then: the fixed ones, or those a mode that re-routes is about to choose.
    Any start gives the same decisions; multiples of `reembed_every` spare a look back. Raises ValueError where a
    site has more GPUs than the ring choice takes, ConditionsError where a trace ends too early.
    """
    router = Router(fabric, delays_s)
    rates_bps = conditions.rates_bps(start, count)
    collective = np.arange(start, start + count)
    basis_bps, basis = rates_bps, np.arange(count)  # conditions that rings are chosen under; which is each collective's
    if mode.reembeds:
        lead = -start % reembed_every  # rows before the first ring chosen here; they use the ring chosen before
        basis_bps, basis = rates_bps[lead::reembed_every], collective // reembed_every - start // reembed_every
        if lead:
            basis_bps = np.concatenate([conditions.rates_bps(start - start % reembed_every, 1), basis_bps])
    ring = choose_rings(router, basis_bps, mode=mode, chunk_bytes=chunk_bytes)[basis]
    path, alpha_s, rate_bps = _edges(router, ring, rates_bps, chunk_bytes=chunk_bytes, reroutes=mode.reroutes)
    return Decisions(
        ring=ring,
        path=path,
        edge_alpha_s=alpha_s,
        edge_beta_s=8 * chunk_bytes / rate_bps,
        reembedded=mode.reembeds_at(collective, reembed_every),
        rerouted=np.full(count, mode.reroutes),
    )


def choose_rings(router: Router, rates_bps: Floats, *, mode: Mode, chunk_bytes: int) -> Rings:
    """The ring of a mode under each of these conditions [K, links], 0 for a link that is down: [K, n].

    The best one for the best paths where the mode re-routes, and for the fixed ones otherwise; in rank order where the
    mode does not re-embed. Raises ValueError where there is no ring, or a site has more GPUs than the choice takes.
    """
    fabric, delays_s = router.fabric, router.delays_s
    if not mode.reembeds:
        return np.tile(rank_order(fabric.gpus_per_site, fabric.site_cycle), (len(rates_bps), 1))
    rings = np.empty((len(rates_bps), len(fabric.gpus)), dtype=np.int16)
    inside = fabric.intra_index >= 0
    link = fabric.intra_index[inside]
    for start in range(0, len(rates_bps), _RINGS_AT_A_TIME):
        batch = rates_bps[start : start + _RINGS_AT_A_TIME]
        cost_s, delay_s = router.crossings(batch, chunk_bytes=chunk_bytes, fixed=not mode.reroutes)
        with np.errstate(divide="ignore"):  # a link that is down costs infinitely much
            cost_s[:, inside] = delays_s[link] + 8 * chunk_bytes / batch[:, link]
        delay_s[:, inside] = delays_s[link]
        rings[start : start + _RINGS_AT_A_TIME] = best_rings(cost_s, delay_s, gpus_per_site=fabric.gpus_per_site)
    return rings


@cache
def shared_wan_links(spec: FabricSpec, mode: str, *, detours: bool) -> tuple[str, ...]:
    """The directed WAN links that two crossings of one ring can use at once, by name in the fabric's order.

    Empty where every crossing has links of its own, whatever is chosen. With `detours` a mode on fixed paths may have
    to leave them, as faults take links down. No other link is ever shared: each GPU sends to one GPU and receives from
    one, and all other logical links are one GPU's own.
    """
    fabric, choice = build_fabric(spec), MODES[mode]
    used = {
        sites: {link for path in (paths if choice.reroutes or detours else paths[:1]) for link in path.links}
        for sites, paths in fabric.paths_between.items()
    }
    cycles = [fabric.site_cycle]  # the sites in the order in which a ring visits them
    if choice.reembeds:
        cycles = [(0, *rest) for rest in permutations(range(1, len(spec.gpus_per_site)))]
    crossings = [list(pairwise((*cycle, 0))) for cycle in cycles]
    together = {pair for ring in crossings if all(used[sites] for sites in ring) for pair in combinations(ring, 2)}
    shared = set().union(*(used[a] & used[b] for a, b in together))
    return tuple(link.name for link in fabric.links if link.index in shared)


def _edges(
    router: Router, ring: Rings, rates_bps: Floats, *, chunk_bytes: int, reroutes: bool
) -> tuple[npt.NDArray[np.int16], Floats, Floats]:
    """Path, delay and rate of every ring edge, [K, n] each."""
    after = np.roll(ring, -1, axis=1)
    link = router.fabric.intra_index[ring, after]
    _, column = np.nonzero(link < 0)
    path = np.full(ring.shape, -1, dtype=np.int16)
    alpha_s = router.delays_s[link]
    rate_bps = np.take_along_axis(rates_bps, np.maximum(link, 0), axis=1)
    # A ring crosses the WAN once per site; the crossings are taken one per ring, so that rows are conditions.
    crossings = len(router.fabric.gpus_per_site)
    for place in column.reshape(-1, crossings).T:
        here = np.arange(len(ring))
        src, dst = ring[here, place], after[here, place]
        if reroutes:
            routes = router.best(rates_bps, src, dst, chunk_bytes=chunk_bytes)
        else:
            routes = router.fixed(rates_bps, src, dst)
        path[here, place], alpha_s[here, place], rate_bps[here, place] = routes.path, routes.delay_s, routes.rate_bps
    if (rate_bps <= 0).any():
        at = tuple(np.argwhere(rate_bps <= 0)[0])
        raise NoPathError(f"no way leads from rank {ring[at]} to rank {after[at]}")
    return path, alpha_s, rate_bps
