"""The decision times of a point's policy, computed in the same way for the plan and for the testbed."""

from functools import lru_cache

from scenarios.policies import cost
from scenarios.policies.conditions import Conditions, chooser_of, conditions_of
from scenarios.policies.timing import Course, Moments, periodic
from scenarios.spec.scenario import Scenario


@lru_cache(maxsize=8)
def course_of(setting: Scenario, mode: str) -> Course:
    """Return the course of a mode in a configuration, assuming that no collective is lost to a fault. It is cached, so
    that later calls extend the same course instead of beginning again."""
    conditions = conditions_of(setting)
    return new_course(setting, mode, conditions.believed(setting.mode(mode).knowledge))


def new_course(setting: Scenario, mode: str, believed: Conditions) -> Course:
    """Create the course of a mode in a configuration under believed conditions."""
    chosen_by = setting.mode(mode)
    choices = chooser_of(setting, chosen_by, believed)
    exchange_s = 2 * max(setting.control_delays_s, default=0.0)
    connecting_s = float(cost.connecting_s(choices.router, setting.workload, choices.in_order[None])[0])

    def cost_s(embeds: bool, routes: bool) -> float:
        if not setting.control.counted:
            return 0.0
        return embeds * connecting_s + routes * exchange_s

    return Course(
        chosen_by,
        choices,
        believed,
        reembed_every=setting.collective.reembed_every,
        cost_s=cost_s,
        struck=believed.are_struck,
    )


def moments_of(setting: Scenario, mode: str, start: int, count: int, *, course: Course | None = None) -> Moments:
    """Return the decision times of collectives start .. start+count-1; `course` replaces `course_of(setting, mode)`."""
    chosen_by = setting.mode(mode)
    if not setting.has_course(mode):
        return periodic(chosen_by, setting.collective.reembed_every, start, count)
    return (course or course_of(setting, mode)).moments(start, count)
