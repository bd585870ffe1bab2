"""Decides before many consecutive collectives at once, for policies whose rates are known beforehand.

The loop is compiled (`stretches_jit`); this module turns what a policy chooses from into arrays, and what the loop
found into what is in force.
"""

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scenarios.policies.arrays import Anew
from scenarios.policies.policy import Mode
from scenarios.policies.rules import GAIN, Cost, horizon_of, rule_of
from scenarios.policies.situation import Choices, InForce, Options, Placement, Ranks, Routing

if TYPE_CHECKING:
    from scenarios.policies.stretches_jit import Latest, Policy, Times

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Stretches:
    """Decides before consecutive collectives as `rules.decide` does before each; `options` are what is chosen from."""

    def __init__(self, mode: Mode, choices: Choices, options: Options, *, reembed_every: int, cost_s: Cost) -> None:
        self._mode, self._choices, self._options = mode, choices, options
        self._every, self._cost_s = reembed_every, cost_s

    def decide(self, number: int, believed_bps: Floats, in_force: InForce) -> tuple[Ints, InForce]:
        """Decide before collectives from `number` on under the rates believed before them, [K, links], of which no
        cable fails. Return before which collectives placement and paths were chosen that are in force in each, [2, L],
        and what is in force after them.

        L is less than K if a collective cannot be decided here: the policy is a function, or compares paths that share
        links or that the fabric's routing spreads.
        """
        moments = np.zeros((2, len(believed_bps)), np.int64)
        if self._policy is None:
            return moments[:, :0], in_force
        from scenarios.policies.stretches_jit import Coming, stretch

        latest, times = self._latest(in_force, believed_bps), None
        if self._compares:
            times = self._times(number, in_force, believed_bps)
            if self._mode.reembeds:  # a block that ends sooner may have been computed before
                believed_bps = believed_bps[: len(times.anew.seconds)]
        count = stretch(self._policy, Coming(number, np.ascontiguousarray(believed_bps)), latest, times, moments)
        return moments[:, :count], self._after(in_force, latest, times) if count else in_force

    @cached_property
    def _compares(self) -> bool:
        """Whether a rule of the policy compares predicted times."""
        return any(rule_of(when, self._every).kind == GAIN for when in (self._mode.reroute, self._mode.reembed))

    @cached_property
    def _policy(self) -> "Policy | None":
        """The policy as numbers; None if the compiled loop cannot decide for it."""
        mode = self._mode
        if mode.function is not None or (self._compares and self._choices.arrays is None):
            return None
        from scenarios.policies.stretches_jit import Policy

        return Policy(
            rule_of(mode.reroute, self._every),
            rule_of(mode.reembed, self._every),
            route_cost_s=float(self._cost_s(False, True)),
            embed_cost_s=float(self._cost_s(True, mode.reroutes)),
            horizon=horizon_of(mode, self._every),
            reroutes=mode.reroutes,
            reembeds=mode.reembeds,
        )

    def _latest(self, in_force: InForce, believed_bps: Floats) -> "Latest":
        from scenarios.policies.stretches_jit import Latest

        placement, routing = in_force
        numbers, then_bps = np.array([placement.number, -1]), np.zeros((2, believed_bps.shape[1]))
        if placement.rates_bps is not None:
            then_bps[0] = placement.rates_bps
        if routing is not None:
            numbers[1], then_bps[1] = routing.number, routing.rates_bps
        return Latest(numbers, then_bps)

    def _times(self, number: int, in_force: InForce, believed_bps: Floats) -> "Times":
        from scenarios.policies.stretches_jit import Room, Times

        assert self._choices.arrays is not None
        network, work = self._choices.arrays
        ranks, flows = in_force.placement.ranks, work.src.size
        if in_force.routing is None:
            (path,) = self._choices.paths(ranks[None], believed_bps[:1], chosen=False)
        else:
            path = in_force.routing.path
        anew = Anew(np.zeros((0, ranks.size), np.int16), np.zeros((0, flows), np.int16), np.zeros(0))
        if self._mode.reembeds:
            anew = self._options.anew_of(number, believed_bps)
        room = Room(
            path=np.zeros(flows, np.int64),
            alpha_s=np.zeros(flows),
            beta_s=np.zeros(flows),
            free_s=np.zeros(flows),
            arrives_s=np.zeros(work.flow.size),
            users=np.zeros(network.delay_s.size, np.int64),
        )
        return Times(ranks.astype(np.int64), path.astype(np.int64), anew, network, work, room)

    def _after(self, before: InForce, latest: "Latest", times: "Times | None") -> InForce:
        """Return what is in force once the compiled loop has made the latest choices."""
        placement, routing = before
        embedded, routed = latest.numbers.tolist()
        if (embedded, routed) == (placement.number, -1 if routing is None else routing.number):
            return before  # the same object, by which options are found that were computed before
        if embedded != placement.number:
            placement = self._placement(embedded, latest.then_bps[0], times)
        if routed != (-1 if routing is None else routing.number):
            routing = self._routing(placement, routed, latest.then_bps[1], times)
        return InForce(placement, routing)

    def _placement(self, number: int, rates_bps: Floats, times: "Times | None") -> Placement:
        if times is None:
            return Placement(number, rates_bps, lambda: self._choices.placements(rates_bps[None])[0])
        ranks: Ranks = times.ranks.astype(np.int16)
        return Placement(number, rates_bps, lambda: ranks)

    def _routing(self, placement: Placement, number: int, rates_bps: Floats, times: "Times | None") -> Routing:
        if times is None:

            def choose() -> Ranks:
                (path,) = self._choices.paths(placement.ranks[None], rates_bps[None], chosen=True)
                return path  # type: ignore[no-any-return]

            return Routing(number, rates_bps, choose)
        path: Ranks = times.path.astype(np.int16)
        return Routing(number, rates_bps, lambda: path)
