"""Exports the schedule of a configuration to files that other tools read."""

from dataclasses import replace

from hosts.collectives import chakra_writer, goal, msccl
from hosts.collectives.schedule import ScheduleError
from scenarios.engines.prediction import plan_of
from scenarios.spec.scenario import Scenario


def exported(scenario: Scenario, form: str) -> list[bytes]:
    """Return the files of the first collective's schedule in the first mode, placed by that mode.

    It is one file for goal and msccl, and one of each rank for chakra. Sizes in GOAL and Chakra's traces are bytes;
    chunks in MSCCL have no size. Raises ScheduleError for a scenario with several configurations, for messages as MSCCL
    XML, for computations as Chakra's traces, and for a placement that is not planned in advance.
    """
    configs = scenario.configurations()
    if len(configs) > 1:
        raise ScheduleError(f"the sweep has {len(configs)} configurations; allowed: one")
    config, mode = configs[0], configs[0].run.modes[0]
    workload, first = config.workload, replace(config, collective=replace(config.collective, count=1))
    placement = [int(rank) for rank in plan_of(first, mode).decisions.placement[0]]
    if form == "chakra":
        return chakra_writer.messages(workload.schedule, placement=placement, slot_bytes=workload.slot_bytes)
    if form == "msccl":
        return [msccl.text(workload.schedule, kind=workload.kind, placement=placement).encode()]
    return [goal.text(workload.schedule, placement=placement, slot_bytes=workload.slot_bytes).encode()]
