"""The timing model of decoupled DiLoCo (arXiv 2604.21428): sites that train on, and a syncer that waits for a quorum.

Every site computes steps on its own. Fragment by fragment, in turn, it sends the syncer what its steps have changed,
`overlap` steps before the sum is due. The syncer merges a fragment once it has it from `quorum` sites, and a grace time
is over or all have sent theirs; then it sends the result to all sites. A site goes on meanwhile, and begins the step
after a sum is due when it has the result. So nobody waits for a slow or dead site unless the quorum lacks it. What
arrives late is merged with the next fragment. A site that dies loses what it has not sent; when it is back, it loads
the model, and goes on with the sum that is pending then. What a site sends or loads shares no link with others.

A schedule (`hosts.collectives.schedule`) says in advance for which messages each one waits. The first K of M are not
known in advance, so this is a recurrence of its own: from one sum to the next, over the sites.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_MOST_ROUNDS = 1 << 40

Outages = Sequence[tuple[float, float]]
"""When a site dies and is back, in s, in order; infinite if it never is."""


@dataclass(frozen=True, kw_only=True)
class Decoupled:
    """A training. `step_s` has the time of a step of each site; `up_s` and `down_s` are the times of a fragment to the
    syncer and from it. `every`, `fragments` and `overlap` are as in `hosts.collectives.training.Training`. `load_s` is
    how long a site that is back loads the model."""

    step_s: Sequence[float]
    quorum: int
    every: int
    fragments: int = 1
    overlap: int = 0
    up_s: float = 0.0
    down_s: float = 0.0
    grace_s: float = 0.0
    load_s: float = 0.0

    def __post_init__(self) -> None:
        sites = len(self.step_s)
        if not 1 <= self.quorum <= sites:
            raise ValueError(f"a quorum of {self.quorum} of {sites} sites; allowed: 1 to {sites}")
        if not 1 <= self.fragments <= self.every:
            raise ValueError(f"{self.fragments} fragments in {self.every} steps; allowed: 1 to {self.every}")
        if not 0 <= self.overlap <= self.every // self.fragments:
            allowed = self.every // self.fragments
            raise ValueError(f"an overlap of {self.overlap} steps; allowed: 0 to {allowed}, the steps between two sums")

    def due(self, number: int) -> int:
        """Return the step, counted from the beginning, after which a sum is due."""
        rounds, fragment = divmod(number, self.fragments)
        return rounds * self.every + (fragment + 1) * self.every // self.fragments


@dataclass(frozen=True)
class Trained:
    """What came of a training, by site: its time in s, how long it computed what it has sent and what it has lost by
    dying (s), and how many sums had its part in time. `quorum_lost` is whether it stands for ever."""

    time_s: tuple[float, ...]
    kept_s: tuple[float, ...]
    lost_s: tuple[float, ...]
    in_time: tuple[int, ...]
    quorum_lost: bool = False

    @property
    def goodput(self) -> float:
        """The part of the sites' time in which they computed what they have sent."""
        shares = [kept_s / time_s for kept_s, time_s in zip(self.kept_s, self.time_s, strict=True) if time_s]
        return sum(shares) / len(self.time_s)


class _Now(NamedTuple):
    """The state of a site at the end of a round."""

    at_s: float
    step: int
    away: bool
    kept_s: float
    in_time: int
    deaths: int


class _Site:
    """A site between two sums: at `at_s` it has done all steps up to `step`, of which what took `unsent_s` has not been
    sent. It is `away` from its death until it has done the steps up to a sum again."""

    def __init__(self, step_s: float, outages: Outages, load_s: float) -> None:
        self._step_s, self._outages, self._load_s, self._next = step_s, outages, load_s, 0
        self.at_s, self.step, self.away = 0.0, 0, False
        self.unsent_s = self.kept_s = self.lost_s = 0.0
        self.in_time = 0

    def reaches(self, step: int, before: int) -> float:
        """Return when it has done a step, if it does nothing else until then. If it dies before, it begins again from
        the step `before`, the one of the last sum, once it is back and has loaded. Infinite if it never is."""
        at_s, done, outage = self.at_s, before if self.away else self.step, self._next
        while (ends_s := at_s + (step - done) * self._step_s) > self._dies_s(outage):
            at_s, done, outage = self._outages[outage][1] + self._load_s, before, outage + 1
        return ends_s

    def goes_for(self, step: int, before: int, merged_s: float) -> bool:
        """Have it do the steps up to a sum that is merged at `merged_s`, and return whether it has done them: not if it
        is back only after that."""
        while not (self.away and merged_s <= self.at_s):
            if self.away:
                self.step = before
            ends_s = self.at_s + (step - self.step) * self._step_s
            if ends_s <= self._dies_s(self._next):
                self.do(step, ends_s)
                return True
            self._die()
        return False

    def do(self, step: int, at_s: float) -> None:
        """Note when it has done a step."""
        self.unsent_s += (step - self.step) * self._step_s
        self.at_s, self.step = at_s, step

    def send(self) -> None:
        """Note that it has sent what it had not sent; it is not away any more."""
        self.kept_s += self.unsent_s
        self.unsent_s, self.away = 0.0, False

    def go_on(self, due: int) -> None:
        """Have it do further steps beside a sum, unless it dies."""
        ends_s = self.at_s + (due - self.step) * self._step_s
        if ends_s > self._dies_s(self._next):
            self._die()
        else:
            self.do(due, ends_s)

    def wait(self, merged_s: float, until_s: float) -> None:
        """Have it wait for a sum that is merged at `merged_s` and has come at `until_s`. It may die meanwhile; if it is
        back after the merging, it has loaded the sum."""
        while True:
            goes_on_s = self.at_s if self.away and self.at_s >= merged_s else max(self.at_s, until_s)
            if self._dies_s(self._next) >= goes_on_s:
                break
            self._die(computes=False)
        self.at_s = goes_on_s

    def _dies_s(self, outage: int) -> float:
        return self._outages[outage][0] if outage < len(self._outages) else math.inf

    @property
    def next_death_s(self) -> float:
        """When it dies next."""
        return self._dies_s(self._next)

    def now(self) -> "_Now":
        """Return its present state."""
        return _Now(self.at_s, self.step, self.away, self.kept_s, self.in_time, self._next)

    def skip(self, rounds: int, was: "_Now") -> None:
        """Have it do as many further rounds like the last one, at the beginning of which it was like this."""
        if self.away:
            return
        self.at_s += rounds * (self.at_s - was.at_s)
        self.step += rounds * (self.step - was.step)
        self.kept_s += rounds * (self.kept_s - was.kept_s)
        self.in_time += rounds * (self.in_time - was.in_time)

    def _die(self, *, computes: bool = True) -> None:
        dies_s, back_s = self._outages[self._next]
        self._next += 1
        self.lost_s += self.unsent_s + (max(0.0, dies_s - self.at_s) if computes else 0.0)
        self.at_s, self.away, self.unsent_s = back_s + self._load_s, True, 0.0


def trained(spec: Decoupled, sums: int, outages: Sequence[Outages] = ()) -> Trained:
    """Return what comes of a training of so many sums, in which the sites have these outages (none by default)."""
    sites = [
        _Site(step_s, of, spec.load_s)
        for step_s, of in zip(spec.step_s, outages or [()] * len(spec.step_s), strict=True)
    ]
    before, end_s, number, quorum_lost = 0, 0.0, 0, False
    was, was_s = list[_Now](), 0.0  # at the end of the round before
    while number < sums:
        if number % spec.fragments == 0:
            took_s = end_s - was_s
            rounds = _rounds_alike(sites, was, end_s, took_s) if was else 0
            rounds = min(rounds, (sums - number) // spec.fragments)
            for site, state in zip(sites, was, strict=False):
                site.skip(rounds, state)
            number, before = number + rounds * spec.fragments, before + rounds * spec.every
            end_s += rounds * took_s
            was, was_s = [site.now() for site in sites] if number else [], end_s
            if number == sums:
                break
        due = spec.due(number)
        begins, number = due - spec.overlap, number + 1
        done_s = [site.reaches(begins, before) for site in sites]
        order = sorted(at_s + spec.up_s for at_s in done_s)
        enough_s = order[spec.quorum - 1]
        if math.isinf(enough_s):
            quorum_lost = True
            break
        merged_s = max(enough_s, min(enough_s + spec.grace_s, order[-1]))
        end_s = merged_s + spec.down_s
        for site, at_s in zip(sites, done_s, strict=True):
            if not site.goes_for(begins, before, merged_s):
                continue  # it comes back for a later sum
            site.in_time += at_s + spec.up_s <= merged_s
            site.send()
            site.go_on(due)
            site.wait(merged_s, end_s)
        before = begins
    return Trained(
        # A slow site does its steps of these sums later; one that is away has not done them.
        tuple(end_s if site.away else max(end_s, site.at_s) for site in sites),
        tuple(site.kept_s for site in sites),
        tuple(site.lost_s for site in sites),
        tuple(site.in_time for site in sites),
        quorum_lost,
    )


def _rounds_alike(sites: Sequence[_Site], before: Sequence[_Now], end_s: float, took_s: float) -> int:
    """Return how many further rounds are like the last one, which began with the sites as they were `before`, ended at
    `end_s` and took `took_s`: those in which nobody dies or comes back."""
    spare_s = math.inf
    for site, was in zip(sites, before, strict=True):
        if (site.away, site.now().deaths) != (was.away, was.deaths):
            return 0
        if site.away:  # it is back after these rounds
            spare_s = min(spare_s, site.at_s - end_s)
        elif math.isclose(site.at_s - was.at_s, took_s, rel_tol=1e-9):
            spare_s = min(spare_s, site.next_death_s - site.at_s)
        else:
            return 0
    return int(min(spare_s / took_s, _MOST_ROUNDS)) if took_s else 0


def drawn_outages(sites: int, until_s: float, *, between_s: float, outage_s: float, seed: int) -> list[Outages]:
    """Return outages of each site until an instant: exponential times of mean `between_s` that it runs, and of mean
    `outage_s` that it is dead."""
    found = list[Outages]()
    for site in range(sites):
        draw, at_s, of = np.random.default_rng([seed, site]), 0.0, list[tuple[float, float]]()
        while (dies_s := at_s + float(draw.exponential(between_s))) < until_s:
            at_s = dies_s + float(draw.exponential(outage_s))
            of.append((dies_s, at_s))
        found.append(of)
    return found


def availability_goodput(sites: int, quorum: int, available: float) -> float:
    """Return the goodput of sites that are each there for this part of the time, independently of each other, if they
    compute whenever the quorum is there and lose nothing: the sum over k of k / M P(k sites are there)."""
    return sum(
        there / sites * math.comb(sites, there) * available**there * (1 - available) ** (sites - there)
        for there in range(quorum, sites + 1)
    )
