"""The predicted time of one collective alone in the network, for any group of GPUs."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from analysis.model.evaluator import Evaluator, Shared, Unshared
from scenarios.policies.decide import Chooser
from topologies.fabric.ports import SharedLinks

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]


def seconds_alone(
    chooser: Chooser,
    placement: Ranks,
    path: Ranks,
    shared: SharedLinks,
    shared_bps: Floats,
    *,
    gpus: Sequence[int] | None = None,
) -> float:
    """Return the time of a collective with this placement [n] and these paths [F] in s, if links keep their rates.

    `shared` are the links or ports of the whole fabric that flows share, with rates `shared_bps` [links or ports].
    `gpus` are the chooser's ranks as GPUs of the whole fabric (`topologies.fabric.groups`), by default the same. Flows
    are routed over the fabric's fixed spines. Raises NoPathError for a flow over a link that is down.
    """
    workload = chooser.workload
    alpha_s, beta_s = chooser.flows(placement[None], path[None], shared.slowest_bps(shared_bps[None]))
    places = placement if gpus is None else np.array(gpus)[placement]
    src, dst = (places[list(ends)] for ends in workload.schedule.ends)
    sends = np.flatnonzero(src != dst)  # a computation begins and ends at the same place
    of_sends = shared.of(src[sends], dst[sends], path[sends])
    links = np.full((src.size, of_sends.shape[-1]), -1, of_sends.dtype)
    links[sends] = of_sends
    by_flow = np.unique(np.arange(len(links))[:, None] * (len(shared.all) + 1) + links[:, :] + 1)
    users = np.bincount(by_flow % (len(shared.all) + 1), minlength=len(shared.all) + 1)
    network: Unshared | Shared = Unshared(alpha_s, beta_s)
    if users[1:].max() > 1:  # entry 0 counts unused columns
        network = Shared(links[None], shared_bps[None], alpha_s)
    evaluator = Evaluator(
        workload.schedule.transfers, flows=len(workload.schedule.flows), slot_bytes=workload.slot_bytes
    )
    return float(evaluator.completion_s(network)[0])
