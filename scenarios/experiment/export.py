"""Exports the schedule of a configuration to a file that other tools read."""

from dataclasses import replace

from hosts.collectives import goal, msccl
from hosts.collectives.schedule import ScheduleError
from scenarios.engines.prediction import plan_of
from scenarios.spec.scenario import Scenario


def exported(scenario: Scenario, form: str) -> str:
    """Return the schedule of the first collective in the first mode, placed by that mode, as goal or msccl.

    Sizes in GOAL are bytes; chunks in MSCCL have no size. Raises ScheduleError for a scenario with several
    configurations, for messages as MSCCL XML, and for a placement that is not planned in advance.
    """
    configs = scenario.configurations()
    if len(configs) > 1:
        raise ScheduleError(f"the sweep of {scenario.name} has {len(configs)} configurations; allowed: one")
    config, mode = configs[0], configs[0].run.modes[0]
    workload, first = config.workload, replace(config, collective=replace(config.collective, count=1))
    placement = [int(rank) for rank in plan_of(first, mode).decisions.placement[0]]
    if form == "msccl":
        return msccl.text(workload.schedule, kind=workload.kind, placement=placement)
    return goal.text(workload.schedule, placement=placement, slot_bytes=workload.slot_bytes)
