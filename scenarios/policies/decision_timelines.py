"""The decision times of a point's policy, computed in the same way for the plan and for the testbed."""

from functools import lru_cache

from scenarios.policies import cost
from scenarios.policies.conditions import Conditions, chooser_of, conditions_of
from scenarios.policies.decision_times import DecisionTimeline, DecisionTimes, periodic
from scenarios.spec.scenario import Scenario


@lru_cache(maxsize=8)
def timeline_of(config: Scenario, mode: str) -> DecisionTimeline:
    """Return the timeline of a mode in a configuration, assuming that no collective is lost to a fault. It is cached,
    and later calls extend it."""
    conditions = conditions_of(config)
    return new_timeline(config, mode, conditions.believed(config.mode(mode).knowledge))


def new_timeline(config: Scenario, mode: str, believed: Conditions) -> DecisionTimeline:
    """Create the timeline of a mode in a configuration under believed conditions."""
    chosen_by = config.mode(mode)
    chooser = chooser_of(config, chosen_by, believed)
    exchange_s = 2 * max(config.control_delays_s, default=0.0)
    delay_s = cost.default_delays_s(chooser.router)[None]
    connecting_s = float(cost.connecting_s(config.workload, chooser.in_order[None], delay_s)[0])

    def cost_s(embeds: bool, routes: bool) -> float:
        if not config.control.counted:
            return 0.0
        return embeds * connecting_s + routes * exchange_s

    return DecisionTimeline(
        chosen_by,
        chooser,
        believed,
        reembed_every=config.collective.reembed_every,
        cost_s=cost_s,
        struck=believed.are_struck,
    )


def decision_times_of(
    config: Scenario, mode: str, start: int, count: int, *, timeline: DecisionTimeline | None = None
) -> DecisionTimes:
    """Return the decision times of collectives start .. start+count-1; `timeline` defaults to `timeline_of`."""
    chosen_by = config.mode(mode)
    if not config.has_timeline(mode):
        return periodic(chosen_by, config.collective.reembed_every, start, count)
    return (timeline or timeline_of(config, mode)).moments(start, count)
