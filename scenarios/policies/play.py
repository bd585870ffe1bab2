"""The one loop: a policy with its belief plays in a world, the model's or the testbed, a collective after the other."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from scenarios.policies.outcome import Outcome
from scenarios.policies.policy import Mode, When
from scenarios.policies.rules import Cost, decide, no_cost_s
from scenarios.policies.situation import Action, Choices, Ended, InForce, Options, Placement, Ranks, Situation
from scenarios.policies.stretches import Stretches
from scenarios.policies.user_policy import UserPolicy
from topologies.conditions.sampler import Sampler

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


class Belief(Protocol):
    """What a policy believes about the rates of links. A kind of knowledge is one class (`beliefs`)."""

    def before(self, number: int) -> Floats:
        """Return the believed rates of the logical links before a collective, [links] bit/s; 0 for a failed one."""

    def ahead(self, number: int) -> Floats:
        """Return the rates as `before` does, followed by those for the next collectives, as far as they are known:
        [K, links], K at least 1."""

    def cables_changed(self, number: int) -> bool:
        """Return whether the set of failed cables differs from that of the previous collective."""

    def observes(self, number: int) -> bool:
        """Return whether the belief learns from this collective, so that it has to be measured."""

    def after(self, outcome: Outcome) -> None:
        """Learn from a collective that has ended."""


class Given:
    """The belief in rates that depend on the conditions alone, not on what the policy did before.

    `believed` yields the rates of logical links, and `struck(start, count)` whether the set of failed cables changed
    before each collective (None: it never does). The rates are drawn for `ahead` collectives at a time; with `struck`,
    for one.
    """

    def __init__(self, believed: Sampler, struck: Callable[[int, int], Flags] | None = None, *, ahead: int = 1) -> None:
        # With faults only one: a later one may leave no path under which options could be computed.
        self._believed, self._ahead = believed, ahead if struck is None else 1
        self._rates = self._rows(believed.rates_bps)
        self._changes = None if struck is None else self._rows(struck)

    def before(self, number: int) -> Floats:
        """As `Belief.before`."""
        return self._rates(number)[0]  # type: ignore[no-any-return]

    def ahead(self, number: int) -> Floats:
        """As `Belief.ahead`."""
        return self._rates(number)

    def cables_changed(self, number: int) -> bool:
        """As `Belief.cables_changed`."""
        return self._changes is not None and bool(self._changes(number)[0])

    def observes(self, number: int) -> bool:
        """As `Belief.observes`: nothing is learnt."""
        return False

    def after(self, outcome: Outcome) -> None:
        """As `Belief.after`: nothing is learnt."""

    def _rows(self, draw: Callable[[int, int], npt.NDArray[Any]]) -> Callable[[int], npt.NDArray[Any]]:
        """Return a function of a collective that returns rows of `draw` from it on, drawn several at a time."""
        first, rows = 0, np.empty(0)

        def rows_from(number: int) -> npt.NDArray[Any]:
            nonlocal first, rows
            if self._ahead == 1:  # not kept: in a later attempt, other faults may be in force
                return draw(number, 1)
            if not first <= number < first + len(rows):
                limit = self._believed.limit
                count = self._ahead if limit is None else max(1, min(self._ahead, limit - number))
                first, rows = number, draw(number, count)
            return rows[number - first :]

        return rows_from


Result_co = TypeVar("Result_co", bound=Outcome, covariant=True)


class World(Protocol[Result_co]):
    """Where collectives run. A new world is a class with this one method."""

    def run(self, number: int, decide: Callable[[], Action]) -> Result_co:
        """Run collective `number`: put its conditions into force, carry out what `decide` returns, and run it.

        `decide` may be asked again if an attempt is lost; the outcome has the action that was in force at the end.
        """


class Player:
    """A policy with its belief and what is in force; `placement`, [n], is the first one (default: ranks in order). In a
    world that `repeats`, an attempt may be lost, and the policy is then asked about the same collective again. `count`
    is how many collectives there are, if that is known."""

    def __init__(
        self,
        mode: Mode,
        choices: Choices,
        belief: Belief,
        *,
        reembed_every: int,
        cost_s: Cost = no_cost_s,
        placement: Ranks | None = None,
        repeats: bool = False,
        count: int | None = None,
    ) -> None:
        first = choices.in_order if placement is None else placement
        self.belief, self.in_force = belief, InForce(Placement(-1, None, lambda: first))
        self._mode, self._count = mode, count
        self._options = Options(choices, belief.ahead, reroutes=mode.reroutes, count=count)
        self._every, self._cost_s = reembed_every, cost_s
        self._own = None if mode.function is None else UserPolicy(mode.function, repeats=repeats)
        self._last: Ended | None = None
        self._stretches = Stretches(mode, choices, self._options, reembed_every=reembed_every, cost_s=cost_s)

    def face(self, choices: Choices) -> None:
        """Have the next decisions be about other choices, which have the same places and flows."""
        self._options = Options(choices, self.belief.ahead, reroutes=self._mode.reroutes, count=self._count)

    def decide(self, number: int) -> Action:
        """Return what the policy chooses before this collective; nothing changes until `take`. Raises the errors of
        `rules.decide` and of `UserPolicy.ask`."""
        cables_changed = self._mode.reroutes and self.belief.cables_changed(number)
        now = Situation(number, self.in_force, self._options, cables_changed=cables_changed, last=self._last)
        if self._own is not None:
            return self._own.ask(now)
        return decide(self._mode, now, reembed_every=self._every, cost_s=self._cost_s)

    def decide_ahead(self, number: int, most: int) -> Numbers:
        """Decide before up to `most` collectives from this one on, and take the actions.

        Return before which collectives placement and paths were chosen that are in force in each, [2, K]. K may be 0;
        then `decide` decides before the first one.
        """
        believed_bps = self.belief.ahead(number)[:most]
        if len(believed_bps) < 2:  # nothing is known of later collectives, perhaps because cables may fail
            return np.zeros((2, 0), np.int64)
        moments, self.in_force = self._stretches.decide(number, believed_bps, self.in_force)
        return moments

    def take(self, action: Action) -> None:
        """Record that an action was carried out."""
        self.in_force = self.in_force.after(action)

    def learn(self, outcome: Outcome) -> None:
        """Record the action of a collective that has ended, and learn from it."""
        self.take(outcome.action)
        self.ended(outcome)
        self.belief.after(outcome)

    def ended(self, last: Ended) -> None:
        """Show the policy that a collective has ended."""
        self._last = last


def play(world: World[Result_co], player: Player, numbers: Iterable[int]) -> Iterator[Result_co]:
    """Run collectives in a world, as the player's policy decides; yield the outcome of each.

    `numbers` are their indices, one after the other, from the first that the player has not seen.
    """
    for number in numbers:
        outcome = world.run(number, partial(player.decide, number))
        player.learn(outcome)
        yield outcome


@dataclass(frozen=True)
class Moments:
    """For K consecutive collectives, before which collective placement and paths were chosen, [K] each; -1: never."""

    embedded: Numbers
    routed: Numbers


def periodic(mode: Mode, reembed_every: int, start: int, count: int) -> Moments:
    """Return the moments of a policy with rules `every` and `never` for collectives start .. start+count-1.

    It is the closed form of what `Player` decides for such a policy, for many collectives at once.
    """
    number, never = np.arange(start, start + count), np.full(count, -1)

    def latest(rule: When) -> Numbers:
        period = rule.period(reembed_every)
        return number // period * period

    embedded = latest(mode.reembed) if mode.reembeds else never
    routed = np.maximum(latest(mode.reroute), embedded) if mode.reroutes else never
    return Moments(embedded, routed)


class Timeline:
    """The moments of a player whose belief is `Given`, from collective 0 on, extended on demand and kept.

    Its decisions need no outcomes, so no collective is run.
    """

    def __init__(self, player: Player) -> None:
        self._player = player
        self._times = np.full((2, 256), -1)  # row 0 embedding, row 1 routing; doubled when it is full
        self._done = 0

    def moments(self, start: int, count: int) -> Moments:
        """Return the moments of collectives start .. start+count-1; raises the errors of `Player.decide`."""
        player, until = self._player, start + count
        if until > self._times.shape[1]:
            self._times = np.concatenate([self._times, np.full((2, 2 * until), -1)], axis=1)
        while self._done < until:
            moments = player.decide_ahead(self._done, until - self._done)
            if not moments.size:
                player.take(player.decide(self._done))
                placement, routing = player.in_force
                moments = np.array([[placement.number], [-1 if routing is None else routing.number]])
            decided = self._done + moments.shape[1]
            self._times[:, self._done : decided] = moments
            self._done = decided
        embedded, routed = self._times[:, start:until]
        return Moments(embedded, routed)
