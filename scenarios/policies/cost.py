"""What it takes to change ring and paths: the predicted time from conditions being known to everything being ready.

New connections are made as the communicator makes them: rank by rank in turn, each of its connections by a handshake
that takes a round trip; then every rank waits for the first message on each connection that it receives on, and
answers, and every rank waits for the answers. Paths take a round trip from the controller to the switches whose routes
change, if the controller is given a delay; what processors do takes no virtual time. Delays are those of fixed paths,
which the first packets take.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from controller.routing.path_choice import Router
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Stream

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]


def connecting_s(router: Router, workload: Workload, placement: Ranks) -> Floats:
    """The time that it takes to connect the ranks at these placements, [K, n]: [K] s."""
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
    all_s = connected_s[:, -1:]
    first_s = np.maximum(connected_s + there_s, all_s)
    accepted_s = np.zeros(placement.shape)  # by rank
    np.maximum.at(accepted_s, (np.arange(len(placement))[:, None], dst), first_s)
    answered_s = np.take_along_axis(np.maximum(accepted_s, all_s), dst, axis=1) + back_s
    found: Floats = np.maximum(accepted_s.max(axis=1), answered_s.max(axis=1))
    return found


def _delay_s(router: Router, src: Ranks, dst: Ranks) -> Floats:
    """The delay from rank to rank over the fixed paths."""
    fabric = router.fabric
    link = fabric.intra_index[src, dst]
    fixed = np.zeros((len(fabric.gpus_per_site),) * 2, dtype=np.intp)
    for pair, paths in fabric.paths_between.items():
        if paths:
            fixed[pair] = paths[0].index
    path = fixed[fabric.gpu_sites[src], fabric.gpu_sites[dst]]
    within_s = router.delays_s[np.maximum(link, 0)]
    at = (link < 0).nonzero()
    found: Floats = within_s.copy()
    found[at] = router.delay_s(path[at], src[at], dst[at])
    return found


def _routes(router: Router, workload: Workload, placement: Ranks, path: Ranks) -> set[tuple[int, int, int]]:
    """The crossings that have rules of their own, as their paths are not the fixed ones: ranks and path; of a placement
    of -1 none."""
    fabric, found = router.fabric, set[tuple[int, int, int]]()
    for begin, end, over in zip(*workload.schedule.ends, path.tolist(), strict=True):
        src, dst = int(placement[begin]), int(placement[end])
        if over >= 0 and src >= 0:
            fixed, *_ = fabric.paths_between[fabric.gpus[src].site, fabric.gpus[dst].site]
            found |= {(src, dst, over)} if over != fixed.index else set()
    return found


def _crossings(router: Router, workload: Workload, placement: Ranks) -> set[tuple[int, int, int]]:
    """The pairs of ranks that flows join over the WAN, each with -1 for all paths."""
    site, (begins, ends) = router.fabric.gpu_sites, workload.schedule.ends
    both = zip(placement[list(begins)].tolist(), placement[list(ends)].tolist(), strict=True)
    return {(src, dst, -1) for src, dst in both if site[src] != site[dst]}


def probing_s(
    router: Router, workload: Workload, probes: Ranks, takes_s: Floats, *, in_force: tuple[Ranks, Ranks] | None
) -> float:
    """The time for probes, [P, 3] (source, destination, path), that are under way for `takes_s` each, [P] s.

    Their connections are made at once, in two round trips; then each probe waits for the answer to the one before it.
    Answers take the ways that are `in_force`, of a placement [n] and paths [F], or the fixed ones if there are none.
    """
    if not len(probes):
        return 0.0
    src, dst, path = probes.T
    there_s, back_s = router.delay_s(path, src, dst), _delay_s(router, dst, src)
    routes = {(a, b): over for a, b, over in (_routes(router, workload, *in_force) if in_force else ())}
    for place, back in enumerate(zip(dst.tolist(), src.tolist(), strict=True)):
        if back in routes:
            back_s[place] = router.delay_s(routes[back], *back)
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
    parts: bool = False,
    control_s: Sequence[float] = (),
    probed_in: Ranks | None = None,
) -> Floats:
    """The time that each of K collectives in a row waits for its placement [K, n] and paths [K, F], [K] s.

    `before` are placement and paths of the collective before them, [1, n] and [1, F]; an empty placement, [0, n],
    where there is none, and then the paths are the fixed ones. `chooses`, [K]: whether anything was chosen, else it
    is NaN. `exchanges`: whether paths are ever chosen, and not the fixed ones of default rules. `parts`: connections
    are new for every collective. `control_s` are the one-way delays from the controller to each site, if any. Where
    paths are probed, the crossings of the placement in force have rules for that; first of the placement `probed_in`.
    """
    last = np.concatenate([before[0] if len(before[0]) else np.full_like(placement[:1], -1), placement[:-1]])
    embeds = (placement != last).any(axis=1)
    found = np.zeros(len(placement))
    if control_s and exchanges:
        path_before = np.concatenate([before[1], path[:-1]])
        for row in np.flatnonzero((path != path_before).any(axis=1) | embeds):
            old, new = (
                _routes(router, workload, *one) for one in ((last[row], path_before[row]), (placement[row], path[row]))
            )
            if probed_in is not None:
                old |= _crossings(router, workload, last[row] if last[row, 0] >= 0 else probed_in)
                new |= _crossings(router, workload, placement[row])
            sites = {int(router.fabric.gpu_sites[src]) for src, _, _ in old ^ new}
            found[row] += 2 * max((control_s[site] for site in sites), default=0.0)
    connects = np.flatnonzero(embeds | parts)
    if connects.size:
        different, which = np.unique(placement[connects], axis=0, return_inverse=True)
        found[connects] += connecting_s(router, workload, different)[which.ravel()]
    return np.where(chooses, found, np.nan)
