"""The workload of a round: what all jobs of a scenario do together."""

import math
from dataclasses import replace
from functools import lru_cache

from hosts.collectives.background import background, matrix_traffic
from hosts.collectives.jobs import Job, combine
from hosts.collectives.kinds import TRAINING, Workload
from hosts.collectives.schedule import ScheduleError
from scenarios.spec.admission import AdmissionPlan
from scenarios.spec.classes import ClassSpec, dscp_of
from scenarios.spec.collective import CollectiveSpec, workload_of
from scenarios.spec.jobs import REQUESTS, JobSpec
from scenarios.spec.requests import demand_bps, requests_workload
from scenarios.spec.training import TrainingPlan, sites_of


class JobError(ScheduleError):
    """A job that is not possible, the one with this `number` from 1 on."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number

    def __reduce__(self) -> tuple[type["JobError"], tuple[int, str]]:
        return type(self), (self.number, str(self))  # the default would rebuild it from its text alone


@lru_cache(maxsize=64)
def workload_of_jobs(
    jobs: tuple[JobSpec, ...],
    default: CollectiveSpec,
    classes: tuple[ClassSpec, ...],
    *,
    sites: tuple[int, ...],
    seed: int,
    training: TrainingPlan | None = None,
    admission: AdmissionPlan | None = None,
    number: int = 0,
    matrix_bps: tuple[tuple[float, ...], ...] = (),
) -> Workload:
    """Return the workload of all jobs together on the GPUs of these sites; raises JobError for the first that
    is not possible, and ScheduleError if no job is left or they are too many together.

    `default` is the scenario's [collective], `training` plans jobs of that kind, and `admission` admits transfers;
    refused and broken transfers are left out. Background traffic and requests are drawn from `seed` for the round of
    this number, and `matrix_bps` is what background traffic of a matrix sends from site to site in this round.
    """
    placed = []
    share = {each.name: each.share for each in classes}
    transfers = {} if admission is None else {each.job.name: each for each in admission.transfers(jobs)}
    for place, job in enumerate(jobs):
        if job.name not in transfers:
            placed_job = _job(
                job,
                place,
                default,
                sites=sites,
                number=number,
                seed=(seed, place, number),
                training=training,
                matrix_bps=matrix_bps,
            )
        elif (transfer := transfers[job.name]).workload is not None:
            assert job.ranks is not None
            placed_job = Job(name=job.name, workload=transfer.workload, places=job.ranks, start_s=transfer.start_s)
        else:
            continue
        assured = share.get(job.traffic_class or "", 0.0)
        placed.append(replace(placed_job, dscp=dscp_of(classes, job.traffic_class), guaranteed_share=assured))
    if not placed:
        raise ScheduleError("; ".join(transfer.sentence for transfer in transfers.values()))
    return combine(placed, sites)


def _job(
    job: JobSpec,
    place: int,
    default: CollectiveSpec,
    *,
    sites: tuple[int, ...],
    number: int,
    seed: tuple[int, ...],
    training: TrainingPlan | None,
    matrix_bps: tuple[tuple[float, ...], ...],
) -> Job:
    ranks, spec = job.ranks or tuple(range(sum(sites))), job.collective(default)
    site_of_gpu = [index for index, gpus in enumerate(sites) for _ in range(gpus)]
    wanted_bps, tokens = math.inf, None
    try:
        if job.sends_matrix:
            assert job.duration_s is not None
            workload = matrix_traffic(
                matrix_bps,
                sites=[site_of_gpu[rank] for rank in ranks],
                message_bytes=job.chunk_bytes or default.chunk_bytes,
                duration_s=job.duration_s,
                seed=seed,
            )
            wanted_bps = 0.0
        elif job.is_background:
            assert job.pattern is not None and job.rate_bps is not None and job.duration_s is not None
            workload = background(
                job.pattern,
                places=len(ranks),
                rate_bps=job.rate_bps,
                message_bytes=job.chunk_bytes or default.chunk_bytes,
                duration_s=job.duration_s,
                seed=seed,
            )
            wanted_bps = job.rate_bps / (len(ranks) - 1)
        elif job.kind == REQUESTS:
            of_ranks = [site_of_gpu[rank] for rank in ranks]
            workload, tokens = requests_workload(job, of_ranks, number=number, seed=seed)
            wanted_bps = demand_bps(job, len(ranks))
        elif spec.kind == TRAINING:
            assert training is not None
            workload = training.workload(ranks)
        else:
            workload = workload_of(spec, sites_of(ranks, sites))
    except ScheduleError as error:
        inherits = job.schedule is None and spec.schedule is not None
        own = ", or a schedule of its own in place of collective.schedule" * inherits
        raise JobError(place + 1, f"{job.name}: {error}{own}") from None
    return Job(
        name=job.name,
        workload=workload,
        places=ranks,
        start_s=job.start_s,
        count=1 if job.is_drawn else job.count,
        every_s=None if job.is_drawn or job.count == 1 else job.every_s,
        is_background=job.is_background,
        demand_bps=wanted_bps,
        first_tokens=tokens,
    )
