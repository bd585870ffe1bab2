"""Training as a scenario declares it, in [training], and where forwards are to hide a cut, how many more. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np

from analysis.model.max_plus import completion_s
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Stream
from hosts.collectives.training import Training, most_more, workload
from scenarios.policies.decide import edges_s
from topologies.conditions.sampler import ConditionsSpec, delays_s, sampler
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.ports import shared_by


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

        Of all numbers that memory allows, the least for which an iteration is predicted to be shortest with each flow
        on its own, on its best path, with the mean rates of its links.
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
    several = [found, *(workload(plan.training, sites, more=n + 1) for n in range(most_more(plan.training, sites)))]
    times_s = [_time_s(one, plan, ranks) for one in several]
    more = int(np.flatnonzero(np.array(times_s) <= min(times_s) * (1 + 1e-9))[0])
    return more, several[more]


def _time_s(found: Workload, plan: TrainingPlan, ranks: tuple[int, ...]) -> float:
    """How long an iteration is predicted to take under mean conditions, s."""
    fabric = build_fabric(plan.fabric)
    shared = shared_by(fabric)
    mean_bps = shared.slowest_bps(sampler(fabric, plan.conditions, seed=plan.seed).mean_bps[None])
    of_links_s = shared.delays_s(delays_s(fabric, plan.conditions))
    (cost_s,), (delay_s,) = edges_s(fabric, of_links_s, mean_bps, found)
    begins, ends = (np.array(ranks)[places] for places in found.schedule.ends)
    streams = np.array([isinstance(flow, Stream) for flow in found.schedule.flows])
    alpha_s = np.where(streams, 0.0, delay_s[begins, ends])
    beta_s = np.where(streams, 1.0, (cost_s - delay_s)[begins, ends] / found.largest_message_bytes)
    return float(completion_s(found.schedule.transfers, alpha_s[:, None], beta_s[:, None])[0])
