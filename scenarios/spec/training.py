"""Training as a scenario declares it, in [training], and where forwards are to hide a cut, how many more. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import times
from controller.routing.path_choice import Router
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Flow
from hosts.collectives.training import Training, most_more, workload
from scenarios.policies.decide import Chooser
from scenarios.policies.policy import MODES
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.ports import shared_by

_MOST_TRIED, _LEAST_TRIED = 100_000, 4
"""Transfers of all schedules that are compared, and how many schedules are in any case."""


@dataclass(frozen=True)
class TrainingPlan:
    """A training where it is to run; `seed` is that of the conditions."""

    training: Training
    fabric: FabricSpec
    conditions: ConditionsSpec
    seed: int

    def workload(self, ranks: Sequence[int]) -> Workload:
        """The iteration on these GPUs, in the order of their places; raises ScheduleError where it makes no sense."""
        return _planned(self, tuple(ranks))[1]

    def more(self, ranks: Sequence[int]) -> int:
        """How many more forwards than 1F1B stages before a cut begin with; raises ScheduleError likewise.

        Of all numbers that can help and that memory allows (of large schedules only some of them), the least for which
        an iteration is predicted to be shortest with each flow on its own, on its best path, with the mean rates of its
        links.
        """
        return _planned(self, tuple(ranks))[0]


def sites_of(ranks: Sequence[int], sites: Sequence[int]) -> tuple[int, ...]:
    """How many ranks in a row are of one site: the sites of their places."""
    site = [index for index, gpus in enumerate(sites) for _ in range(gpus)]
    return tuple(len(list(row)) for _, row in groupby(site[rank] for rank in ranks if rank < len(site)))


@lru_cache(maxsize=64)
def _planned(plan: TrainingPlan, ranks: tuple[int, ...]) -> tuple[int, Workload]:
    sites = sites_of(ranks, plan.fabric.gpus_per_site)
    found = workload(plan.training, sites)
    if plan.training.pipeline != "overlapped":
        return 0, found
    alpha_s, beta_s = _flows(found, plan, ranks)
    training = plan.training
    # So many hide a message's way there and back; those behind that would wait.
    way_s = float((alpha_s + beta_s * training.activation_bytes)[_messages(found)].max())
    hides = math.ceil(2 * way_s / (training.forward_s + training.backward_s)) + 2
    most = min(most_more(training, sites), hides)
    count = max(_LEAST_TRIED, _MOST_TRIED // len(found.schedule.transfers))
    tried = sorted({round(number) for number in np.linspace(0, most, min(most + 1, count)).tolist()})
    times_s = [_time_s(workload(training, sites, more=more), plan, ranks) for more in tried]
    more = tried[int(np.flatnonzero(np.array(times_s) <= min(times_s) * (1 + 1e-9))[0])]
    return more, workload(training, sites, more=more)


def _time_s(found: Workload, plan: TrainingPlan, ranks: tuple[int, ...]) -> float:
    """How long an iteration is predicted to take under mean conditions, s."""
    alpha_s, beta_s = _flows(found, plan, ranks)
    return float(times(found.schedule.transfers, alpha_s[:, None], beta_s[:, None]).arrives_s.max())


def _messages(found: Workload) -> npt.NDArray[np.bool_]:
    return np.array([isinstance(flow, Flow) for flow in found.schedule.flows])


def _flows(
    found: Workload, plan: TrainingPlan, ranks: tuple[int, ...]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The delay of every flow under mean conditions and its time for a byte, [F] s; of a stream 0 and 1."""
    fabric = build_fabric(plan.fabric)
    shared = shared_by(fabric)
    mean_bps = shared.slowest_bps(sampler(fabric, plan.conditions, seed=plan.seed).mean_bps[None])
    of_links_s = shared.delays_s(delays_s(fabric, plan.conditions))
    choices = Chooser(Router(fabric, of_links_s), MODES["joint"], found, "cycle time")
    (cost_s,), (delay_s,) = choices.edges_s(mean_bps)
    begins, ends = (np.array(ranks)[places] for places in found.schedule.ends)
    is_sent, between = _messages(found), (begins, ends)
    beta_s = (cost_s - delay_s)[between] / found.largest_message_bytes
    return np.where(is_sent, delay_s[between], 0.0), np.where(is_sent, beta_s, 1.0)
