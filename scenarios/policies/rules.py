"""The rules of policies: whether placement and paths are chosen again before a collective."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scenarios.policies import user_policy
from scenarios.policies.policy import Mode, When
from scenarios.policies.situation import Action, Changed, Situation

Floats = npt.NDArray[np.float64]

_Seconds = Callable[[], float]

Cost = Callable[[bool, bool], float]
"""Maps whether the placement and whether paths are chosen to the assumed cost of that, in seconds."""


class Question(NamedTuple):
    """What a rule may ask before a collective: the believed rates at the last choice, None if there was none; the
    predicted times without and with the choice; the cost of the choice in s; over how many collectives it counts."""

    now: Situation
    every: int
    then_bps: Floats | None
    without_s: _Seconds
    with_s: _Seconds
    cost_s: _Seconds
    horizon: int


def _every(when: When, asked: Question) -> bool:
    """Every K collectives."""
    return bool(when.at(asked.now.number, asked.every))


def _drift(when: When, asked: Question) -> bool:
    """Before the first collective, and whenever rates differ on average by the share from those of the last choice."""
    now_bps, then_bps = asked.now.believed_bps, asked.then_bps
    if then_bps is None:
        return True
    larger = np.maximum(np.maximum(now_bps, then_bps), 1.0)  # 1 bit/s: a link that stays down has no drift
    return bool((np.abs(now_bps - then_bps) / larger).mean() >= (when.number or 0.0))


def _gain(when: When, asked: Question) -> bool:
    """If the gain over the horizon is at least the cost plus the share of the time without the choice.

    The gain is the predicted reduction of a collective's time, at least 0, times the horizon in collectives.
    """
    without_s = asked.without_s()
    gain_s = asked.horizon * max(without_s - asked.with_s(), 0.0)
    return gain_s >= asked.cost_s() + (when.number or 0.0) * asked.horizon * without_s


RULES: dict[str, Callable[[When, Question], bool]] = {
    "never": lambda _, __: False,
    "every": _every,
    "drift": _drift,
    "gain": _gain,
}
"""The rules by name; `policy.When` describes them."""


def no_cost_s(embeds: bool, routes: bool) -> float:
    """Return 0: the cost of choices that are not counted."""
    return 0.0


def decide(mode: Mode, now: Situation, *, reembed_every: int, cost_s: Cost = no_cost_s) -> Action:
    """Return what a policy chooses before a collective; the only place where anything is decided.

    A new placement implies new paths in a policy that re-routes, and so does a changed set of failed cables. Paths are
    compared with those in force, a placement with the one in force after any re-routing that is due. Raises SpecError
    if a user's function fails, NoPathError or ValueError if a choice that is compared does not exist.
    """
    if mode.function is not None:
        return user_policy.ask(mode.function, now)
    placement, routing = now.in_force
    horizon = reembed_every if mode.horizon is None else mode.horizon

    def is_due(when: When, then_bps: Floats | None, before: _Seconds, after: _Seconds, cost: _Seconds) -> bool:
        return RULES[when.kind](when, Question(now, reembed_every, then_bps, before, after, cost, horizon))

    routes = now.cables_changed or is_due(
        mode.reroute,
        None if routing is None else routing.rates_bps,
        lambda: now.kept_s,
        lambda: now.rerouted_s,
        lambda: cost_s(False, True),
    )
    embeds = is_due(
        mode.reembed,
        placement.rates_bps,
        lambda: now.rerouted_s if routes else now.kept_s,
        lambda: now.anew_s,
        lambda: cost_s(True, mode.reroutes) - (cost_s(False, True) if routes else 0.0),
    )
    if embeds:
        return Action(now.placed, now.newly_routed if mode.reroutes else None)
    return Action(routing=now.rerouted) if routes else Action()


def reacts(mode: Mode, event: Changed) -> bool:
    """Return whether a policy chooses paths again when the conditions change while a collective runs (`every TIME`)."""
    within_s = mode.reroute.within_s
    return within_s is not None and event.at_ns % round(within_s * 1e9) == 0
