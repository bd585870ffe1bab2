"""Beliefs: what a policy thinks the rates of links are before a collective, one class for each kind of knowledge.

Knowledge that does not depend on what the policy did (`knowledge`: oracle, stale, mean, ewma, ar) is `play.Given`.
Measured knowledge learns from the outcomes of collectives, or from probes just before them. Outcomes are evaluated only
when the next rates are asked for: a model's outcome costs nothing until then, and a replayed one may be filled in.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from scenarios.policies.conditions import Conditions
from scenarios.policies.knowledge import ENDS, PORTS, PROBED, Derived
from scenarios.policies.measured_knowledge import (
    is_observed,
    measured_demands,
    rates_from_counters,
    rates_from_messages,
    rates_from_probes,
    updated_rates,
)
from scenarios.policies.outcome import Outcome
from scenarios.policies.play import Belief, Given
from scenarios.policies.policy import Mode
from scenarios.spec.scenario import Scenario
from topologies.conditions.sampler import Sampler

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]


class Noted(Derived):
    """A sampler of rates that were noted last, [links or ports] bit/s; initially the long-run means."""

    def __init__(self, true: Sampler) -> None:
        super().__init__(true)
        self.noted_bps = np.array(true.mean_bps)

    def note(self, seen_bps: Floats) -> None:
        """Note rates that were seen, [links or ports] bit/s; NaN where none was, so that the noted one stays."""
        self.noted_bps = np.where(np.isnan(seen_bps), self.noted_bps, seen_bps)

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return the noted rates, [1, links or ports]; only for one collective, as nothing is known of later ones."""
        assert count == 1
        return self.noted_bps[None]


class _Measuring:
    """Base of beliefs that observe links; `conditions` are those believed, with the failed cables among the faults."""

    def __init__(self, config: Scenario, mode: Mode, conditions: Conditions) -> None:
        self._config, self._mode, self._true = config, mode, conditions
        self._noted = Noted(conditions.drawn)
        self.conditions = conditions.noting(self._noted)

    def before(self, number: int) -> Floats:
        """As `Belief.before`."""
        return self.conditions.rates_bps(number, 1)[0]  # type: ignore[no-any-return]

    def ahead(self, number: int) -> Floats:
        """As `Belief.ahead`: nothing is known of later collectives."""
        return self.before(number)[None]

    def cables_changed(self, number: int) -> bool:
        """As `Belief.cables_changed`."""
        return bool(self.conditions.are_struck(number, 1)[0])

    def observes(self, number: int) -> bool:
        """As `Belief.observes`."""
        in_force = self._true.in_force(number) if self._true.in_force else ()
        return is_observed(self._config.faults, in_force, number)


class MeasuredEnds(_Measuring):
    """Rates inferred from when messages were sent and had arrived; a link keeps its rate until it is used again.

    Between two choices the same links are used, so only the last outcome before a choice is evaluated.
    """

    def __init__(self, config: Scenario, mode: Mode, conditions: Conditions) -> None:
        super().__init__(config, mode, conditions)
        self._last: Outcome | None = None

    def before(self, number: int) -> Floats:
        """As `Belief.before`."""
        if (last := self._last) is not None:
            delays_s = self._true.shared_delays_s
            seen_bps = rates_from_messages(
                self._config.of_round(last.number).workload,
                last.links,
                delays_s,
                sent_s=last.sent_s,
                arrived_s=last.arrived_s,
            )
            self._noted.noted_bps = updated_rates(ENDS, self._noted.noted_bps, seen_bps, last.links)
            self._last = None
        return super().before(number)

    def after(self, outcome: Outcome) -> None:
        """As `Belief.after`."""
        if self.observes(outcome.number):
            self._last = outcome


class MeasuredPorts(_Measuring):
    """Rates inferred from the counters of switch ports. Every outcome counts, as each belief builds on the previous."""

    def __init__(self, config: Scenario, mode: Mode, conditions: Conditions) -> None:
        super().__init__(config, mode, conditions)
        self._unread: list[Outcome] = []

    def before(self, number: int) -> Floats:
        """As `Belief.before`."""
        links, fair = len(self._true.shared.all), self._config.fair_links(self._mode.name) is not None
        for outcome in self._unread:
            seen_bps = rates_from_counters(outcome.readings, links=links, fair=fair)
            self._noted.noted_bps = updated_rates(PORTS, self._noted.noted_bps, seen_bps, outcome.links)
        self._unread.clear()
        return super().before(number)

    def after(self, outcome: Outcome) -> None:
        """As `Belief.after`."""
        if self.observes(outcome.number):
            self._unread.append(outcome)


class Probed(_Measuring):
    """Rates that probes over the candidate paths measured just before a collective; links without a probe, and all
    links before a collective without probes, have their long-run mean rate."""

    def probed(self, number: int, probes: Ranks, took_s: Floats) -> None:
        """Note what probes [P, 3] (source, destination, path), with transit times [P] s, show before a collective."""
        seen_bps = rates_from_probes(self._true, number, probes, took_s, self._config.control.probe_bytes)
        self._noted.noted_bps = np.array(self._true.drawn.mean_bps)
        self._noted.note(seen_bps)

    def after(self, outcome: Outcome) -> None:
        """Forget the probes: they show the rates of one collective."""
        self._noted.noted_bps = np.array(self._true.drawn.mean_bps)


BELIEFS: dict[str, Callable[[Scenario, Mode, Conditions], "MeasuredEnds | MeasuredPorts | Probed"]] = {
    ENDS: MeasuredEnds,
    PORTS: MeasuredPorts,
    PROBED: Probed,
}
"""The kinds of knowledge that a world has to measure, each with its belief."""


def belief_of(config: Scenario, mode: Mode, conditions: Conditions, *, ahead: int = 1) -> Belief:
    """Return the belief of a policy under these true conditions; `ahead` is as for `Given`."""
    if mode.knowledge.kind in BELIEFS:
        return BELIEFS[mode.knowledge.kind](config, mode, conditions)
    believed = conditions.believed(mode.knowledge).held(config.collectives_per_rates(mode))
    return Given(believed, None if conditions.in_force is None else believed.are_struck, ahead=ahead)


class Demands:
    """The measured rates that a mode's demands want in each collective, as in `Traffic.with_demands`.

    Tunnel rates are kept for `te.collectives` collectives, and computed for the maximum demands of as many before.
    """

    def __init__(self, config: Scenario, conditions: Conditions) -> None:
        self._config, self._fabric = config, conditions.fabric
        self._outcomes: list[Outcome] = []
        self._estimates: list[Floats] = []

    def before(self, number: int) -> Floats | None:
        """Return the demands before a collective, [classes, sites, sites] bit/s; None in the first period."""
        every = self._config.te.collectives
        first = number - number % every
        while len(self._estimates) < first:
            read = self._outcomes[len(self._estimates)].readings
            self._estimates.append(
                measured_demands(self._fabric, self._config.workload, read, sample_s=self._config.te.sample_s)
            )
        return np.fmax.reduce(self._estimates[first - every : first]) if first else None

    def after(self, outcome: Outcome) -> None:
        """Learn from the readings of the tunnels in a collective; to be called for every one, in order."""
        assert outcome.number == len(self._outcomes)
        self._outcomes.append(outcome)
