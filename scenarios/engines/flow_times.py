"""What a schedule meets on a fabric: the delay and the rate of each of its flows, and the links that flows share."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from controller.routing.path_choice import Router
from hosts.collectives.schedule import Flow, Schedule

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowTimes:
    """The flows of K instances of a schedule: `alpha_s` and `beta_s`, [flows, K], are each one's delay and the time to
    send one slot as if it were alone; `shared_links` are logical links that several flows of one instance take."""

    alpha_s: Floats
    beta_s: Floats
    shared_links: tuple[int, ...]


def flow_times(
    schedule: Schedule,
    router: Router,
    rates_bps: Floats,
    *,
    placement: npt.NDArray[np.int16],
    slot_bytes: float,
    reroutes: bool,
) -> FlowTimes:
    """The flows of a schedule under K conditions: `rates_bps` is [K, links], `placement` [K, n] the rank at each place.

    A flow within a site takes its logical link; a flow between sites the best path for its largest message, or the
    fixed one, chosen as if it were alone. Raises NoPathError where there is none.
    """
    fabric, count = router.fabric, len(rates_bps)
    largest = Counter[int]()
    for transfer in schedule.transfers:
        largest[transfer.flow] = max(largest[transfer.flow], len(transfer.slots))
    alpha_s, beta_s = np.empty((2, len(schedule.flows), count))
    used: list[Counter[int]] = [Counter() for _ in range(count)]
    for index, flow in enumerate(schedule.flows):
        assert isinstance(flow, Flow)
        src, dst = placement[:, flow.src], placement[:, flow.dst]
        link = fabric.intra_index[src, dst]
        alpha_s[index] = router.delays_s[link]
        rate_bps = rates_bps[np.arange(count), np.maximum(link, 0)]
        away = np.flatnonzero(link < 0)
        if away.size:
            message_bytes = max(1, round(largest[index] * slot_bytes))
            routes = (
                router.best(rates_bps[away], src[away], dst[away], chunk_bytes=message_bytes)
                if reroutes
                else router.fixed(rates_bps[away], src[away], dst[away])
            )
            alpha_s[index, away], rate_bps[away] = routes.delay_s, routes.rate_bps
            for row, path in zip(away, routes.path, strict=True):
                used[row].update(_links(router, int(src[row]), int(dst[row]), int(path)))
        for row in np.flatnonzero(link >= 0):
            used[row][int(link[row])] += 1
        beta_s[index] = 8 * slot_bytes / rate_bps
    shared = {link for links in used for link, flows in links.items() if flows > 1}
    return FlowTimes(alpha_s=alpha_s, beta_s=beta_s, shared_links=tuple(sorted(shared)))


def _links(router: Router, src: int, dst: int, path: int) -> Sequence[int]:
    chosen = router.fabric.paths[path]
    up, down = router.fabric.to_br_index[src, chosen.src_br], router.fabric.from_br_index[chosen.dst_br, dst]
    return (int(up), *chosen.links, int(down))
