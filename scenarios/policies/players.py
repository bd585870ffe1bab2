"""The player of a mode in a configuration: its policy, its belief, and the assumed cost of its choices."""

from dataclasses import replace
from functools import lru_cache

from scenarios.policies import cost
from scenarios.policies.beliefs import belief_of
from scenarios.policies.conditions import Conditions, chooser_of, conditions_of
from scenarios.policies.play import Player, Timeline
from scenarios.policies.policy import Mode, when
from scenarios.policies.rules import Cost, no_cost_s
from scenarios.spec.scenario import Scenario

_AHEAD = 256  # collectives whose believed rates are drawn together


def player_of(config: Scenario, mode: str, conditions: Conditions, *, ahead: int = 1) -> Player:
    """Create the player of a mode under these true conditions; `ahead` is as for `play.Given`."""
    chosen_by = config.mode(mode)
    return Player(
        chosen_by,
        chooser_of(config, chosen_by, conditions),
        belief_of(config, chosen_by, conditions, ahead=ahead),
        reembed_every=config.collective.reembed_every,
        cost_s=_cost_of(config, mode, conditions),
        repeats=bool(config.faults),
        count=None if config.program.is_given else config.collective.count,
    )


def _cost_of(config: Scenario, mode: str, conditions: Conditions) -> Cost:
    """Return the assumed cost of re-embedding, re-routing or both; 0 if reconfigurations are not counted."""
    if not config.control.counted:
        return no_cost_s
    chooser = chooser_of(config, config.mode(mode), conditions)
    exchange_s = 2 * max(config.control_delays_s, default=0.0)
    delay_s = cost.default_delays_s(chooser.router)[None]
    connecting_s = float(cost.connecting_s(config.workload, chooser.in_order[None], delay_s)[0])
    return lambda embeds, routes: embeds * connecting_s + routes * exchange_s


@lru_cache(maxsize=8)
def timeline_of(config: Scenario, mode: str) -> Timeline:
    """Return the timeline of a mode whose knowledge is not measured, assuming that no collective is lost to a fault. It
    is cached, and later calls extend it."""
    return Timeline(player_of(config, mode, conditions_of(config), ahead=_AHEAD))


if __name__ == "__main__":  # set-up runs this to fill numba's cache, so that no command has to wait for compilation
    for rule in map(when, ("drift 0.5", "gain 0.5")):
        policy = Mode(name="compiled", reroute=rule, reembed=rule)
        timeline_of(replace(Scenario(), policies=(policy,)), policy.name).moments(0, 2)
