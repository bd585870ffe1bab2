"""The number of messages into which blocks are split where the user gives none: a collective library chooses one, too.

More pieces fill a pipeline sooner, but every piece waits for the delay of each link that it crosses.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from analysis.model.evaluator import Evaluator, Shared, Unshared
from controller.routing.wan_path_choice import NoPathError, Router
from hosts.collectives.kinds import SELF_SIZED_KINDS, Workload
from hosts.collectives.schedule import ScheduleError
from scenarios.policies.decide import Chooser, shared_links
from scenarios.policies.policy import MODES
from scenarios.spec.collective import CollectiveSpec, workload_of
from scenarios.spec.keys import MAX_CONFIGURATIONS
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.errors import SpecError
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.ports import links_in_grain
from topologies.shaping.rate_scale import FULL_SCALE, RateScale, ScaleError

CANDIDATES = (1, 2, 4, 8, 16, 32, 64)
ENOUGH = 0.01
"""The fewest pieces are chosen that are slower than the best number by at most this share of its time."""
_MOST_TRANSFERS = 20_000  # of a schedule that is tried, which bounds the time of a choice to about a second
_LEAST_SCALED_BYTES = 64_000  # of a message at a rate scale: on the wall clock each message costs real time


def chosen_pieces(spec: CollectiveSpec, fabric_spec: FabricSpec, conditions: ConditionsSpec, scale: RateScale) -> int:
    """Return the best of CANDIDATES for a collective, by the timing model: 1 if the collective is not possible.

    The model has the ranks in order, the fixed paths, and each link at its mean rate, so the number is the same for
    every mode and seed. The sizes are those of the spec.
    """
    if spec.kind in SELF_SIZED_KINDS or spec.schedule is not None:
        return 1
    # What does not matter is left out, so that a choice is made once for all configurations that share it.
    alike = replace(spec, count=1, reembed_every=1, emulated=1, measured=None, budget_s=None)
    return _chosen(alike, fabric_spec, conditions, scale)


def choices_begun() -> int:
    """Return how many choices this process has begun, which take most of the time of reading a large scenario."""
    return _chosen.cache_info().misses


@lru_cache(maxsize=2 * MAX_CONFIGURATIONS)  # a scenario is checked more than once
def _chosen(spec: CollectiveSpec, fabric_spec: FabricSpec, conditions: ConditionsSpec, scale: RateScale) -> int:
    try:
        whole = workload_of(replace(spec, pieces=1), fabric_spec.gpus_per_site)
        message_bytes, transfers = scale.chunk_bytes(round(whole.largest_message_bytes)), len(whole.schedule.transfers)
        times_s = {1: _seconds(whole, spec.ring, fabric_spec, conditions)}
        for pieces in CANDIDATES[1:]:
            is_small = scale != FULL_SCALE and message_bytes < pieces * _LEAST_SCALED_BYTES
            if is_small or pieces * transfers > _MOST_TRANSFERS or pieces > whole.largest_message_bytes:
                break
            cut = workload_of(replace(spec, pieces=pieces), fabric_spec.gpus_per_site)
            times_s[pieces] = _seconds(cut, spec.ring, fabric_spec, conditions)
            if times_s[pieces // 2] - times_s[pieces] < ENOUGH / 20 * times_s[pieces]:
                break  # with a + b / pieces, all larger numbers together gain no more than this one did
    except (SpecError, ScheduleError, NoPathError, ScaleError):  # which the checks of a scenario report
        return 1
    limit_s = min(times_s.values()) * (1 + ENOUGH)
    return next(pieces for pieces, seconds in times_s.items() if seconds <= limit_s)


def _seconds(workload: Workload, ring: str, fabric_spec: FabricSpec, conditions: ConditionsSpec) -> float:
    """Predict the time of a workload with ranks in order over the fixed paths of links at their mean rates."""
    fabric = build_fabric(replace(fabric_spec, routing="single"))
    shared, mode = links_in_grain(fabric), MODES["base"]
    mean_bps = np.array(sampler(fabric, conditions, seed=1).mean_bps)[None]
    delay_s = delays_s(fabric, conditions)
    chooser = Chooser(Router(fabric, shared.delays_s(delay_s)), mode, workload, ring)
    placement, rates_bps = chooser.in_order[None], shared.slowest_bps(mean_bps)
    path = chooser.paths(placement, rates_bps, chosen=False)
    alpha_s, beta_s = chooser.flows(placement, path, rates_bps)
    network: Unshared | Shared = Unshared(alpha_s, beta_s)
    if shared_links(fabric, workload, mode):
        src, dst = (placement[:, list(places)] for places in workload.schedule.ends)
        network = Shared(shared.of(src, dst, path), mean_bps, alpha_s)
    evaluator = Evaluator(
        workload.schedule.transfers, flows=len(workload.schedule.flows), slot_bytes=workload.slot_bytes
    )
    return float(evaluator.completion_s(network)[0])
