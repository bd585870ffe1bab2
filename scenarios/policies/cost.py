"""Reconfiguration time: the predicted time from the moment conditions are known until placement and paths are in use.

Connections are modelled as the communicator makes them. The ranks connect one after the other, and each connection
takes a round trip for its handshake. Then every rank waits for the first message on each of its incoming connections
and answers it, and every rank waits for the answers. Paths take a round trip from the controller to the switches whose
routes change, if the controller has a delay. Processing takes no virtual time. All delays are those of the fixed paths,
which the first packets take.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Stream

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]


def connecting_s(router: Router, workload: Workload, placement: Ranks) -> Floats:
    """Return the time to make all connections between the ranks for each of these placements [K, n]: [K] s."""
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
    there_s, back_s = _delay_s(router, src, dst), _delay_s(router, dst, src)
    connected_s = np.cumsum(there_s + back_s, axis=1)
    all_connected_s = connected_s[:, -1:]
    first_message_s = np.maximum(connected_s + there_s, all_connected_s)
    accepted_s = np.zeros(placement.shape)  # by rank, when it has the first message of every incoming connection
    np.maximum.at(accepted_s, (np.arange(len(placement))[:, None], dst), first_message_s)
    answered_s = np.take_along_axis(np.maximum(accepted_s, all_connected_s), dst, axis=1) + back_s
    ready_s: Floats = np.maximum(accepted_s.max(axis=1), answered_s.max(axis=1))
    return ready_s


def _delay_s(router: Router, src: Ranks, dst: Ranks) -> Floats:
    """Return the one-way delay from each rank to the other over the fixed path, seconds; shaped like `src`."""
    fabric = router.fabric
    link = fabric.intra_index[src, dst]
    fixed = np.zeros((len(fabric.gpus_per_site),) * 2, dtype=np.intp)
    for pair, paths in fabric.paths_between.items():
        if paths:
            fixed[pair] = paths[0].index
    path = fixed[fabric.gpu_sites[src], fabric.gpu_sites[dst]]
    delay_s: Floats = router.delays_s[np.maximum(link, 0)]
    crossing = (link < 0).nonzero()
    delay_s[crossing] = router.delay_s(path[crossing], src[crossing], dst[crossing])
    return delay_s


def _routes(router: Router, workload: Workload, placement: Ranks, path: Ranks) -> set[tuple[int, int, int]]:
    """Return the crossings that need flow rules, because their paths are not the fixed ones, as (src, dst, path). A
    placement of -1 stands for no placement and has none."""
    fabric, routes = router.fabric, set[tuple[int, int, int]]()
    for begin, end, index in zip(*workload.schedule.ends, path.tolist(), strict=True):
        src, dst = int(placement[begin]), int(placement[end])
        if index >= 0 and src >= 0:
            fixed, *_ = fabric.paths_between[fabric.gpus[src].site, fabric.gpus[dst].site]
            if index != fixed.index:
                routes.add((src, dst, index))
    return routes


def _crossings(router: Router, workload: Workload, placement: Ranks) -> set[tuple[int, int, int]]:
    """Return the pairs of ranks with a flow over the WAN as (src, dst, -1), where -1 stands for all paths."""
    site, (begins, ends) = router.fabric.gpu_sites, workload.schedule.ends
    pairs = zip(placement[list(begins)].tolist(), placement[list(ends)].tolist(), strict=True)
    return {(src, dst, -1) for src, dst in pairs if site[src] != site[dst]}


def probing_s(
    router: Router, workload: Workload, probes: Ranks, takes_s: Floats, *, in_force: tuple[Ranks, Ranks] | None
) -> float:
    """Return the total time, in seconds, of probes [P, 3] (source, destination, path) with transit times `takes_s` [P].

    All connections are made at once, in two round trips; then each probe waits for the answer to the previous one.
    Answers follow the routes `in_force`, given as placement [n] and paths [F], or the fixed paths if it is None.
    """
    if not len(probes):
        return 0.0
    src, dst, path = probes.T
    there_s, back_s = router.delay_s(path, src, dst), _delay_s(router, dst, src)
    routes = {(a, b): index for a, b, index in (_routes(router, workload, *in_force) if in_force else ())}
    for probe, answer in enumerate(zip(dst.tolist(), src.tolist(), strict=True)):
        if answer in routes:
            back_s[probe] = router.delay_s(routes[answer], *answer)
    return float(2 * (there_s + back_s).max() + (takes_s + back_s).sum())


def reconfiguring_s(
    router: Router,
    workload: Workload,
    *,
    placement: Ranks,
    path: Ranks,
    before: tuple[Ranks, Ranks],
    chooses: npt.NDArray[np.bool_],
    exchanges: bool,
    reconnects: bool = False,
    control_s: Sequence[float] = (),
    probed_in: Ranks | None = None,
) -> Floats:
    """Return how long each of K consecutive collectives waits for its placement [K, n] and paths [K, F]: [K] s.

    `before` holds placement and paths of the preceding collective, [1, n] and [1, F]; for the first collective the
    placement is empty, [0, n], and the paths are the fixed ones. The result is NaN where `chooses`, [K], is False, that
    is where nothing was chosen. `exchanges`: whether the mode ever chooses paths instead of leaving the default rules.
    `reconnects`: connections are made again for every collective. `control_s` are the one-way delays from the
    controller to each site; empty if it has none. `probed_in` is given where candidate paths are probed: then the
    crossings of the placement in force have rules for their probes, before the first collective those of `probed_in`.
    """
    last = np.concatenate([before[0] if len(before[0]) else np.full_like(placement[:1], -1), placement[:-1]])
    embeds = (placement != last).any(axis=1)
    waits_s = np.zeros(len(placement))
    if control_s and exchanges:
        last_path = np.concatenate([before[1], path[:-1]])
        for row in np.flatnonzero((path != last_path).any(axis=1) | embeds):
            old = _routes(router, workload, last[row], last_path[row])
            new = _routes(router, workload, placement[row], path[row])
            if probed_in is not None:
                old |= _crossings(router, workload, last[row] if last[row, 0] >= 0 else probed_in)
                new |= _crossings(router, workload, placement[row])
            sites = {int(router.fabric.gpu_sites[src]) for src, _, _ in old ^ new}
            waits_s[row] += 2 * max((control_s[site] for site in sites), default=0.0)
    connects = np.flatnonzero(embeds | reconnects)
    if connects.size:
        different, which = np.unique(placement[connects], axis=0, return_inverse=True)
        waits_s[connects] += connecting_s(router, workload, different)[which.ravel()]
    return np.where(chooses, waits_s, np.nan)
