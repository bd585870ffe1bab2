"""The rules of policies: whether placement and paths are chosen again before a collective.

`is_due` has the rules, as a function of numbers alone. `decide` asks it before one collective, and computes no number
that a rule does not need; `stretches_jit` compiles it and asks it before thousands.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scenarios.policies.policy import Mode, When
from scenarios.policies.situation import Action, Changed, Situation

Floats = npt.NDArray[np.float64]

_Seconds = Callable[[], float]

Cost = Callable[[bool, bool], float]
"""Maps whether the placement and whether paths are chosen to the assumed cost of that, in seconds."""

KINDS = ("never", "every", "drift", "gain")
"""The rules by name; `policy.When` describes them. In `Rule` a rule is its index."""
NEVER, EVERY, DRIFT, GAIN = range(4)


class Rule(NamedTuple):
    """A rule as numbers: its index in KINDS and its number, for `every` the period in collectives."""

    kind: int
    number: float


class Asked(NamedTuple):
    """What a rule may ask before collective `number`: the drift of the believed rates since the last choice, infinite
    if there was none; the predicted times without and with the choice; its cost in s; over how many collectives it
    counts. Only `drift` looks at the drift, and only `gain` at the times, the cost and the horizon."""

    number: int
    drift: float
    without_s: float
    with_s: float
    cost_s: float
    horizon: int


def is_due(rule: Rule, asked: Asked) -> bool:
    """Return whether a rule wants the choice that it is asked about.

    `every K` does for every K-th collective, `drift SHARE` if rates have drifted by the share, and `gain SHARE` if the
    gain over the horizon is at least the cost plus the share of the time without the choice. The gain is the predicted
    reduction of a collective's time, at least 0, times the horizon in collectives.
    """
    if rule.kind == EVERY:
        return asked.number % int(rule.number) == 0
    if rule.kind == DRIFT:
        return asked.drift >= rule.number
    if rule.kind == GAIN:
        gain_s = asked.horizon * max(asked.without_s - asked.with_s, 0.0)
        return gain_s >= asked.cost_s + rule.number * asked.horizon * asked.without_s
    return False


def drift(now_bps: Floats, then_bps: Floats) -> float:
    """Return by what share rates, [links], differ on average from those of then; at most 1."""
    total = 0.0
    for link in range(now_bps.size):
        larger = max(now_bps[link], then_bps[link], 1.0)  # 1 bit/s: a link that stays down has no drift
        total += abs(now_bps[link] - then_bps[link]) / larger
    return total / now_bps.size


def rule_of(when: When, reembed_every: int) -> Rule:
    """Return a policy's rule as numbers."""
    kind = KINDS.index(when.kind)
    return Rule(kind, float(when.period(reembed_every) if kind == EVERY else when.number or 0.0))


def no_cost_s(embeds: bool, routes: bool) -> float:
    """Return 0: the cost of choices that are not counted."""
    return 0.0


def horizon_of(mode: Mode, reembed_every: int) -> int:
    """Return over how many collectives `gain` counts in a policy."""
    return reembed_every if mode.horizon is None else mode.horizon


def decide(mode: Mode, now: Situation, *, reembed_every: int, cost_s: Cost = no_cost_s) -> Action:
    """Return what a policy chooses before a collective.

    A new placement implies new paths in a policy that re-routes, and so does a changed set of failed cables. Paths are
    compared with those in force, a placement with the one in force after any re-routing that is due. Raises NoPathError
    or ValueError if a choice that is compared does not exist.
    """
    placement, routing = now.in_force
    horizon = horizon_of(mode, reembed_every)

    def wants(when: When, then_bps: Floats | None, without_s: _Seconds, with_s: _Seconds, cost: _Seconds) -> bool:
        rule, drifted, times = rule_of(when, reembed_every), np.inf, (0.0, 0.0, 0.0)
        if rule.kind == DRIFT and then_bps is not None:
            drifted = drift(now.believed_bps, then_bps)
        if rule.kind == GAIN:
            times = without_s(), with_s(), cost()
        return is_due(rule, Asked(now.number, drifted, *times, horizon))

    routes = now.cables_changed or wants(
        mode.reroute,
        None if routing is None else routing.rates_bps,
        lambda: now.kept_s,
        lambda: now.rerouted_s,
        lambda: cost_s(False, True),
    )
    embeds = wants(
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
