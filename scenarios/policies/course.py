"""The course of a point's policy: shared by the plan and the testbed."""

from functools import lru_cache

from controller.routing.path_choice import Router
from scenarios.policies.conditions import conditions_of
from scenarios.policies.decide import Chooser
from scenarios.policies.timing import Course, Moments, periodic
from scenarios.spec.scenario import Scenario


@lru_cache(maxsize=8)
def course_of(setting: Scenario, mode: str) -> Course:
    """The course of a mode in a configuration without faults: made once, and gone on with where it is asked for."""
    conditions, chosen_by = conditions_of(setting), setting.mode(mode)
    return Course(
        chosen_by,
        Chooser(Router(conditions.fabric, conditions.delays_s), chosen_by, setting.workload),
        conditions.believed(chosen_by.knowledge),
        reembed_every=setting.collective.reembed_every,
    )


def moments_of(setting: Scenario, mode: str, start: int, count: int) -> Moments:
    """The moments of collectives start .. start+count-1 of a mode in a configuration."""
    chosen_by = setting.mode(mode)
    if chosen_by.is_periodic:
        return periodic(chosen_by, setting.collective.reembed_every, start, count)
    return course_of(setting, mode).moments(start, count)
