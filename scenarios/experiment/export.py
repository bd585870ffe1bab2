"""The schedule of a configuration as a file that other tools read."""

from dataclasses import replace

from hosts.collectives import goal, msccl
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import ScheduleError
from hosts.embedding.ring import rank_order
from scenarios.engines.prediction import planned
from scenarios.policies.decide import MODES
from scenarios.spec.scenario import Scenario
from topologies.fabric.fabric import build_fabric


def exported(scenario: Scenario, form: str) -> str:
    """The schedule of the first collective in the first mode, as goal or msccl, ranks where the mode has them.

    Sizes in GOAL are bytes; MSCCL's chunks have none. Raises ScheduleError for a scenario of several configurations,
    for messages as MSCCL's XML, and for a placement that is not planned.
    """
    settings = scenario.settings()
    if len(settings) > 1:
        raise ScheduleError(f"the sweep of {scenario.name} has {len(settings)} configurations: allowed is one")
    setting, mode = settings[0], settings[0].run.modes[0]
    workload = setting.workload
    placement = _placement(setting, mode, workload)
    if form == "msccl":
        return msccl.text(workload.schedule, kind=workload.kind, placement=placement)
    return goal.text(workload.schedule, placement=placement, slot_bytes=workload.slot_bytes)


def _placement(setting: Scenario, mode: str, workload: Workload) -> list[int]:
    """The rank at each place in the first collective."""
    if MODES[mode].reembeds:
        if not workload.is_ring:
            raise ScheduleError(f"{mode} places rings, and {workload.algorithm} is none: allowed are base and wan")
        first = replace(setting, collective=replace(setting.collective, count=1))
        return [int(rank) for rank in planned(first, mode).ring[0]]
    if workload.is_ring:
        return [int(rank) for rank in rank_order(setting.fabric.gpus_per_site, build_fabric(setting.fabric).site_cycle)]
    return list(range(workload.schedule.places))
