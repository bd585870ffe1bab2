"""Training on a fabric: its workload, and how many more forwards than 1F1B the pipeline "overlapped" uses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import times
from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Flow
from hosts.collectives.training import Training, max_extra_forwards, workload
from scenarios.policies.decide import Chooser
from scenarios.policies.policy import MODES
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.ports import links_in_grain

_MAX_TRANSFERS, _MIN_SCHEDULES = 100_000, 4
"""Most transfers of all schedules that are compared; and how many schedules are compared in any case."""


@dataclass(frozen=True)
class TrainingPlan:
    """A training with the fabric and the conditions in which it runs; `seed` is the seed of the conditions."""

    training: Training
    fabric: FabricSpec
    conditions: ConditionsSpec
    seed: int

    def workload(self, ranks: Sequence[int]) -> Workload:
        """Return an iteration on these GPUs, in the order of places; raises ScheduleError if it is not possible."""
        return _planned_iteration(self, tuple(ranks))[1]

    def more(self, ranks: Sequence[int]) -> int:
        """Return how many more forwards than in 1F1B stages before a cut begin with; raises as `workload`.

        Candidates are all numbers that can help and that memory allows (for large schedules only some of them). The
        result is the smallest candidate with the shortest predicted iteration, where each flow is predicted alone, on
        its best path, with the mean rates of its links.
        """
        return _planned_iteration(self, tuple(ranks))[0]


def sites_of(ranks: Sequence[int], sites: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the sites of a job on these ranks: of each run of consecutive ranks in the same site."""
    site = [index for index, gpus in enumerate(sites) for _ in range(gpus)]
    return tuple(len(list(row)) for _, row in groupby(site[rank] for rank in ranks if rank < len(site)))


@lru_cache(maxsize=64)
def _planned_iteration(plan: TrainingPlan, ranks: tuple[int, ...]) -> tuple[int, Workload]:
    sites = sites_of(ranks, plan.fabric.gpus_per_site)
    iteration = workload(plan.training, sites)
    if plan.training.pipeline != "overlapped":
        return 0, iteration
    alpha_s, beta_s = _flow_costs_s(iteration, plan, ranks)
    training = plan.training
    # This many forwards hide the round trip of a message to the next site; any further ones would only wait.
    one_way_s = float((alpha_s + beta_s * training.activation_bytes)[_is_message(iteration)].max())
    hides = math.ceil(2 * one_way_s / (training.forward_s + training.backward_s)) + 2
    most = min(max_extra_forwards(training, sites), hides)
    count = max(_MIN_SCHEDULES, _MAX_TRANSFERS // len(iteration.schedule.transfers))
    tried = sorted({round(number) for number in np.linspace(0, most, min(most + 1, count)).tolist()})
    times_s = [_iteration_s(workload(training, sites, extra=more), plan, ranks) for more in tried]
    more = tried[int(np.flatnonzero(np.array(times_s) <= min(times_s) * (1 + 1e-9))[0])]
    return more, workload(training, sites, extra=more)


def _iteration_s(iteration: Workload, plan: TrainingPlan, ranks: tuple[int, ...]) -> float:
    """Return the predicted duration of an iteration under mean conditions, s."""
    alpha_s, beta_s = _flow_costs_s(iteration, plan, ranks)
    return float(times(iteration.schedule.transfers, alpha_s[:, None], beta_s[:, None]).arrives_s.max())


def _is_message(iteration: Workload) -> npt.NDArray[np.bool_]:
    return np.array([isinstance(flow, Flow) for flow in iteration.schedule.flows])


def _flow_costs_s(
    iteration: Workload, plan: TrainingPlan, ranks: tuple[int, ...]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return each flow's delay and its time per byte under mean conditions, [F] s each; for a stream 0 and 1."""
    fabric = build_fabric(plan.fabric)
    shared = links_in_grain(fabric)
    mean_bps = shared.slowest_bps(sampler(fabric, plan.conditions, seed=plan.seed).mean_bps[None])
    of_links_s = shared.delays_s(delays_s(fabric, plan.conditions))
    chooser = Chooser(Router(fabric, of_links_s), MODES["joint"], iteration, "cycle time")
    (cost_s,), (delay_s,) = chooser.edges_s(mean_bps)
    begins, ends = (np.array(ranks)[places] for places in iteration.schedule.ends)
    is_sent, between = _is_message(iteration), (begins, ends)
    beta_s = (cost_s - delay_s)[between] / iteration.largest_message_bytes
    return np.where(is_sent, delay_s[between], 0.0), np.where(is_sent, beta_s, 1.0)
