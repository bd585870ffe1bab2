"""Checks of a scenario's transfers: their ends, jobs beside them, and whether TCP recovers in the reserved time."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

from hosts.collectives.schedule import ScheduleError
from scenarios.spec.admission import ADMITTING_ROUTING, least_recovery_s
from scenarios.spec.jobs import TRANSFER, JobSpec
from scenarios.spec.scenario import Scenario
from topologies.errors import Mistake
from topologies.fabric.fabric import build_fabric
from topologies.units import format_delay


def check(config: Scenario) -> Iterator[Mistake]:
    """Yield what is wrong with a configuration that has transfers."""
    transfers = [(number, job) for number, job in enumerate(config.jobs, 1) if job.kind == TRANSFER]
    if not transfers:
        return
    yield from _check_ends(config, transfers)
    yield from _check_class(transfers)
    if config.fabric.routing != ADMITTING_ROUTING:
        return
    yield from _check_other_jobs(config, transfers)
    yield from _check_faults(config)
    yield from _check_recovery(config, [job for _, job in transfers])


def _check_recovery(config: Scenario, jobs: Sequence[JobSpec]) -> Iterator[Mistake]:
    """Yield a mistake if TCP may need longer than `recovery_s` to recover from the failure of a WAN link."""
    plan, recovery_s = config.admission_plan, config.admission.recovery_s
    if plan is None or recovery_s is None or not plan.spec.protects:
        return
    connections = 1
    with suppress(ScheduleError):  # which is reported later
        connections = len(config.workload.schedule.flows)
    needed_s = {
        job: least_recovery_s(plan, job, config.transport, config.control_delays_s, connections=connections)
        for job in jobs
        if plan.joins(job)
    }
    if needed_s and recovery_s < (least_s := max(needed_s.values())):
        job = max(needed_s, key=needed_s.__getitem__)
        rounded_s = math.ceil(least_s * 100) / 100
        text = f"{format_delay(recovery_s)} is less than TCP may need on the paths of {job.name} if a link fails"
        yield Mistake("admission.recovery", f"{text}; allowed: {format_delay(rounded_s)} or more")


def _check_faults(config: Scenario) -> Iterator[Mistake]:
    failing = sum(map(config.is_promised_for, config.faults))
    if config.admission.protects and failing > 1:
        yield Mistake("fault", f'{failing} links fail, but admission.protect "link" protects from one; allowed: one')


def _check_ends(config: Scenario, transfers: list[tuple[int, JobSpec]]) -> Iterator[Mistake]:
    fabric = build_fabric(config.fabric)
    sites = [gpu.site for gpu in fabric.gpus]
    for number, job in transfers:
        src, dst = job.ranks or (0, 0)
        if max(src, dst) < len(sites) and not fabric.paths_between.get((sites[src], sites[dst])):
            why = "are in one site" if sites[src] == sites[dst] else "have no WAN path"
            text = f"ranks {src} and {dst} {why}; allowed: ranks of two sites that the WAN joins"
            yield Mistake(f"job[{number}].ranks", text)


def _check_class(transfers: list[tuple[int, JobSpec]]) -> Iterator[Mistake]:
    first = transfers[0][1].traffic_class
    for number, job in transfers:
        if job.traffic_class != first:
            text = f"{job.traffic_class or 'none'} is not the class of the first transfer"
            yield Mistake(f"job[{number}].class", f"{text}; allowed: {first or 'none'}, one for all")


def _check_other_jobs(config: Scenario, transfers: list[tuple[int, JobSpec]]) -> Iterator[Mistake]:
    """Yield the jobs that are served before admitted transfers or together with them."""
    others = [job for job in config.jobs if job.kind != TRANSFER]
    priorities = {each.name: each.priority for each in config.classes}
    first = transfers[0][1].traffic_class
    for job in others:
        own, other = priorities.get(first or "", 101), priorities.get(job.traffic_class or "", 102)
        if first is None or own > other:
            text = f"{job.name} is served before transfers or together with them"
            yield Mistake("job", f"{text}; allowed: a [[class]] for the transfers alone, served first (priority 0)")
