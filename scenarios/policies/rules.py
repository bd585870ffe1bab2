"""The rules of policies: whether placement and paths are chosen again before a collective."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scenarios.policies import user_policy
from scenarios.policies.policy import Mode, When
from scenarios.policies.situation import Action, Changed, InForce, Situation

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


def _has_drifted(when: When, now_bps: Floats, then_bps: Floats) -> npt.NDArray[np.bool_]:
    """Return for each row of rates, [K, links], whether they differ on average by the share from those of then."""
    larger = np.maximum(np.maximum(now_bps, then_bps), 1.0)  # 1 bit/s: a link that stays down has no drift
    has_drifted: npt.NDArray[np.bool_] = (np.abs(now_bps - then_bps) / larger).mean(axis=1) >= (when.number or 0.0)
    return has_drifted


def _drift(when: When, asked: Question) -> bool:
    """Before the first collective, and whenever rates differ on average by the share from those of the last choice."""
    return asked.then_bps is None or bool(_has_drifted(when, asked.now.believed_bps[None], asked.then_bps)[0])


def _gain(when: When, asked: Question) -> bool:
    """If the gain over the horizon is at least the cost plus the share of the time without the choice.

    The gain is the predicted reduction of a collective's time, at least 0, times the horizon in collectives.
    """
    without_s = asked.without_s()
    gain_s = asked.horizon * max(without_s - asked.with_s(), 0.0)
    return gain_s >= asked.cost_s() + (when.number or 0.0) * asked.horizon * without_s


class Coming(NamedTuple):
    """What is known of the coming collectives, from `number` on: the rates believed before each, [K, links], and those
    at the last choice."""

    number: int
    every: int
    rates_bps: Floats
    then_bps: Floats | None


def _until_multiple(when: When, coming: Coming) -> int:
    return -coming.number % when.period(coming.every)


def _until_drift(when: When, coming: Coming) -> int:
    if coming.then_bps is None:
        return 0
    has_drifted = _has_drifted(when, coming.rates_bps, coming.then_bps)
    return int(has_drifted.argmax()) if has_drifted.any() else len(has_drifted)


class Rule(NamedTuple):
    """A rule: whether it is due, and for how many coming collectives, at most K, it certainly is not; the latter saves
    time, and is 0 for a rule that cannot tell without predicted times."""

    is_due: Callable[[When, Question], bool]
    quiet: Callable[[When, Coming], int] = lambda _, __: 0


RULES = {
    "never": Rule(lambda _, __: False, lambda _, coming: len(coming.rates_bps)),
    "every": Rule(_every, _until_multiple),
    "drift": Rule(_drift, _until_drift),
    "gain": Rule(_gain),
}
"""The rules by name; `policy.When` describes them."""


def quiet(mode: Mode, in_force: InForce, number: int, rates_bps: Floats, *, reembed_every: int) -> int:
    """Return before how many collectives, from `number` on, `decide` certainly chooses nothing if no cables change. The
    rates believed before them are `rates_bps`, [K, links]; the result is at most K."""
    if mode.function is not None:
        return 0
    placement, routing = in_force
    then_bps = (None if routing is None else routing.rates_bps), placement.rates_bps
    for when, then in zip((mode.reroute, mode.reembed), then_bps, strict=True):
        coming = Coming(number, reembed_every, rates_bps, then)
        rates_bps = rates_bps[: RULES[when.kind].quiet(when, coming)]
    return len(rates_bps)


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
        return RULES[when.kind].is_due(when, Question(now, reembed_every, then_bps, before, after, cost, horizon))

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
