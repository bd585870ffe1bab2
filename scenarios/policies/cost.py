"""Reconfiguration time: the predicted time from the moment conditions are known until placement and paths are in use.

Connections are modelled as the communicator makes them. The ranks connect one after the other, and each connection
takes a round trip for its handshake. Then every rank waits for the first message on each of its incoming connections
and answers it, and every rank waits for the answers. Paths take a round trip from the controller to the switches whose
rules change, if the controller has a delay. Processing takes no virtual time.

New connections are made before the switches have the new paths, so their packets take the rules in force. A route is a
rule for the packets from one rank to another, of whatever connection. So a packet from rank a to rank b takes the path
of the preceding collective's crossing from a to b, if there was one and the mode chooses paths, and otherwise the path
of the default rules. That holds for each direction of a connection on its own: the SYN and the first message may take
the path of one crossing, and the SYN-ACK and the answer the path of another one, or the default path. The rules by
which the fabric's routing spreads flows name a flow's TCP port, and match no packet of another connection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from controller.routing.switch_paths import FabricPaths, return_paths
from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Stream
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import NO_CABLES, Cables, failed_links

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]

_Rule = tuple[int, ...]
"""A rule that depends on decisions: the rank at whose leaf it is, and what distinguishes it from other rules."""


def connecting_s(workload: Workload, placement: Ranks, delay_s: Floats) -> Floats:
    """Return the time to make all connections between the ranks for each of these placements [K, n]: [K] s.

    `delay_s` are the one-way delays from rank to rank meanwhile (`delays_between_s`), [K, n, n] or [1, n, n] s.
    """
    begins, ends = np.array(
        [
            pair
            for flow, pair in zip(workload.schedule.flows, zip(*workload.schedule.ends, strict=True), strict=True)
            if not isinstance(flow, Stream) and pair[0] != pair[1]
        ]
    ).T
    src, dst = placement[:, begins], placement[:, ends]
    order = np.argsort(src, axis=1, kind="stable")
    src, dst = np.take_along_axis(src, order, axis=1), np.take_along_axis(dst, order, axis=1)
    row = np.arange(len(placement))[:, None] if len(delay_s) > 1 else 0
    there_s, back_s = delay_s[row, src, dst], delay_s[row, dst, src]
    connected_s = np.cumsum(there_s + back_s, axis=1)
    all_connected_s = connected_s[:, -1:]
    first_message_s = np.maximum(connected_s + there_s, all_connected_s)
    accepted_s = np.zeros(placement.shape)  # by rank, when it has the first message of every incoming connection
    np.maximum.at(accepted_s, (np.arange(len(placement))[:, None], dst), first_message_s)
    answered_s = np.take_along_axis(np.maximum(accepted_s, all_connected_s), dst, axis=1) + back_s
    ready_s: Floats = np.maximum(accepted_s.max(axis=1), answered_s.max(axis=1))
    return ready_s


def delays_between_s(
    router: Router, workload: Workload, placement: Ranks, path: Ranks, *, routed: bool, dead: Cables = NO_CABLES
) -> Floats:
    """Return the one-way delays of packets from each rank to each other, [K, n, n] s, while the rules of these
    collectives are in force: their placements [K, n] and the paths of their flows [K, F], without the cables `dead`.

    `routed`: paths belong to pairs of ranks, and not to single flows. A placement of -1 is none; it has no routes.
    """
    delay_s = np.repeat(default_delays_s(router, dead)[None], len(placement), axis=0)
    if dead:
        for row, delay in enumerate(delay_s):
            routes = _routes(router.fabric, workload, placement[row], path[row], routed=routed, dead=dead)
            for pair, index in routes.items():
                delay[pair] = router.delay_s(index, *pair)
    elif routed:
        begins, ends = map(list, workload.schedule.ends)
        src, dst = placement[:, begins], placement[:, ends]
        at = ((path >= 0) & (src >= 0)).nonzero()
        delay_s[at[0], src[at], dst[at]] = router.delay_s(path[at], src[at], dst[at])
    return delay_s


def default_delays_s(router: Router, dead: Cables = NO_CABLES) -> Floats:
    """Return the one-way delays from each rank to each other by the default rules, [n, n] s; 0 without a path."""
    fabric = router.fabric
    paths, ranks = FabricPaths(fabric, dead), np.arange(len(fabric.gpus))
    src, dst = np.meshgrid(ranks, ranks, indexing="ij")
    delay_s: Floats = np.where(fabric.intra_index >= 0, router.delays_s[np.maximum(fabric.intra_index, 0)], 0.0)
    sites = fabric.gpu_sites
    for a, b in (pair for pair, between in fabric.paths_between.items() if between):
        crossing = (sites[src] == a) & (sites[dst] == b)
        delay_s[crossing] = router.delay_s(paths.fixed(a, b).index, src[crossing], dst[crossing])
    return delay_s


@lru_cache(maxsize=64)
def _paths(fabric: Fabric, dead: Cables) -> tuple[FabricPaths, frozenset[int]]:
    """Return the paths through a fabric without the cables `dead`, and the logical links that have failed."""
    return FabricPaths(fabric, dead), frozenset(failed_links(fabric, dead))


def _routes(
    fabric: Fabric, workload: Workload, placement: Ranks, path: Ranks, *, routed: bool, dead: Cables = NO_CABLES
) -> dict[tuple[int, int], int]:
    """Return the paths of the pairs of ranks off the default rules, as `Forwarding.reconcile` installs them.

    Crossings whose path has failed, and acknowledgements while a cable is dead, take their first path that is up.
    """
    paths, failed = _paths(fabric, dead)
    ends = zip(*workload.schedule.ends, path.tolist(), strict=True)
    crossings = {(int(placement[a]), int(placement[b])): index for a, b, index in ends if index >= 0}
    crossings = {pair: index for pair, index in crossings.items() if min(pair) >= 0}
    chosen = dict(crossings) if routed else {}
    for pair, index in chosen.items():
        if failed and not failed.isdisjoint(fabric.edge_links(pair[0], pair[1], index)):
            first = paths.first(*pair)
            chosen[pair] = index if first is None else first.index
    routes = {**return_paths(paths, crossings), **chosen}
    return {pair: index for pair, index in routes.items() if index != paths.default(*pair)}


@dataclass(frozen=True, eq=False)
class _Collective:
    """What rules follow from: a placement [n], the paths of its flows [F], the collective before which its connections
    were made, and the placement whose crossings have rules for probes (None: no probes)."""

    placement: Ranks
    path: Ranks
    connected: int
    probed: Ranks | None


def _rules(
    fabric: Fabric, workload: Workload, of: _Collective, *, routed: bool, spread: bool, dead: Cables
) -> set[_Rule]:
    """Return the rules beside the default ones: those of routes, of probes and, if flows are `spread`, of flows.

    A flow's rule names the TCP port of its connection.
    """
    placement, path = of.placement, of.path
    routes = _routes(fabric, workload, placement, path, routed=routed, dead=dead)
    rules: set[_Rule] = {(*pair, index) for pair, index in routes.items()}
    ends = np.array(workload.schedule.ends)
    if of.probed is not None:
        src, dst = of.probed[ends]
        crosses = fabric.gpu_sites[src] != fabric.gpu_sites[dst]
        rules |= set(zip(src[crosses].tolist(), dst[crosses].tolist(), strict=True))
    if spread and placement[0] >= 0:
        leaves = np.array([gpu.leaf for gpu in fabric.gpus])
        src, dst = placement[ends]
        passes = leaves[src] != leaves[dst] if fabric.spec.grain == "physical" else path >= 0
        for flow in np.flatnonzero(passes).tolist():
            rules.add((int(src[flow]), int(dst[flow]), flow, int(path[flow]), of.connected))
    return rules


def probing_s(router: Router, probes: Ranks, takes_s: Floats, *, delay_s: Floats) -> float:
    """Return the total time, in seconds, of probes [P, 3] (source, destination, path) with transit times `takes_s` [P].

    All connections are made at once, in two round trips; then each probe waits for the answer to the previous one. A
    probe takes its own path, and its answer the rules in force, with the one-way delays `delay_s` [n, n] s.
    """
    if not len(probes):
        return 0.0
    src, dst, path = probes.T
    there_s, back_s = router.delay_s(path, src, dst), delay_s[dst, src]
    return float(2 * (there_s + back_s).max() + (takes_s + back_s).sum())


def reconfiguring_s(
    router: Router,
    workload: Workload,
    *,
    placement: Ranks,
    path: Ranks,
    before: tuple[Ranks, Ranks],
    chooses: npt.NDArray[np.bool_],
    routed: bool,
    spread: bool = False,
    reconnects: bool = False,
    control_s: Sequence[float] = (),
    probed_in: Ranks | None = None,
    dead: Sequence[Cables] = (),
) -> Floats:
    """Return how long each of K consecutive collectives waits for its placement [K, n] and paths [K, F]: [K] s.

    `before` holds placement and paths of the preceding collective, [1, n] and [1, F]; for the first collective the
    placement is empty, [0, n], and the paths are the fixed ones. The result is NaN where `chooses`, [K], is False, that
    is where nothing was chosen. `routed`: paths belong to pairs of ranks (`delays_between_s`); `spread`: flows have
    rules of their own. `reconnects`: connections are made again for every collective. `control_s` are the one-way
    delays from the controller to each site; empty if it has none. `probed_in` is given where candidate paths are
    probed: then the crossings of the placement in force have rules for their probes, before the first collective those
    of `probed_in`. `dead` are the cables that are down in each collective, empty if there are none; those of the first
    one also count as down before it.
    """
    begins_anew = not len(before[0])
    last = np.concatenate([np.full_like(placement[:1], -1) if begins_anew else before[0], placement[:-1]])
    last_path = np.concatenate([before[1], path[:-1]])
    connects = (placement != last).any(axis=1) | reconnects
    waits_s = np.zeros(len(placement))
    of_row = dead or [NO_CABLES] * len(placement)
    if control_s:
        moves = (path != last_path).any(axis=1) | (placement != last).any(axis=1) | (connects & spread)
        for row in np.flatnonzero(moves).tolist():
            probed: tuple[Ranks | None, Ranks | None] = None, None
            if probed_in is not None:
                probed = (last[row] if last[row, 0] >= 0 else probed_in, placement[row])
            old = _Collective(last[row], last_path[row], -1, probed[0])
            new = _Collective(placement[row], path[row], row if connects[row] else -1, probed[1])
            rules = (
                _rules(router.fabric, workload, of, routed=routed, spread=spread, dead=of_row[row]) for of in (old, new)
            )
            sites = {int(router.fabric.gpu_sites[src]) for src, *_ in set.symmetric_difference(*rules)}
            waits_s[row] += 2 * max((control_s[site] for site in sites), default=0.0)
    for down in dict.fromkeys(of_row):
        rows = np.flatnonzero(connects & np.array([one == down for one in of_row]))
        if not rows.size:
            continue
        if routed or down:
            delay_s = delays_between_s(router, workload, last[rows], last_path[rows], routed=routed, dead=down)
            waits_s[rows] += connecting_s(workload, placement[rows], delay_s)
        else:  # the default rules alone, so few placements differ
            different, which = np.unique(placement[rows], axis=0, return_inverse=True)
            delay_s = default_delays_s(router)[None]
            waits_s[rows] += connecting_s(workload, different, delay_s)[which.ravel()]
    return np.where(chooses, waits_s, np.nan)
