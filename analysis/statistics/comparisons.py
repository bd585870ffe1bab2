"""The comparisons behind the answer, the table's gains and the orders of a run, one by one: how much less time one
alternative takes than another, and whether that holds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from analysis.statistics.answer import Verdict, judged, verdict_of
from analysis.statistics.claims import claims
from analysis.statistics.contests import Contest, Place, Setting, contests_of
from analysis.statistics.intervals import Interval, Series
from analysis.statistics.number_words import ROUNDING


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of two alternatives of a contest in an engine: the gain of `name` over `over`, with their means over
    the collectives that all alternatives have, in s.

    `together` tells whether it holds if all `family` comparisons of the answer are to hold together with 95 %; both are
    None for a comparison that is not one of the answer's.
    """

    engine: str
    contest: Contest
    name: str
    over: str
    means_s: tuple[float, float]
    gain: Interval
    together: bool | None
    family: int | None

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as an object of JSON; without an interval its ends are None."""
        ends = (None, None) if self.gain.why else (self.gain.low, self.gain.high)
        return {
            "engine": self.engine,
            "settings": sorted({place.setting for place in self.contest.all_places}),
            "label": self.contest.where,
            "key": self.contest.key,
            "name": self.name,
            "over": self.over,
            "is_over_baseline": self.over == self.contest.baseline,
            "mean_s": self.means_s[0],
            "over_mean_s": self.means_s[1],
            "gain": None if math.isnan(self.gain.value) else self.gain.value,
            "gain_low": ends[0],
            "gain_high": ends[1],
            "no_interval": self.gain.why or None,
            "holds": _holds(self.gain),
            "holds_together": self.together,
            "comparisons_together": self.family,
        }


def comparisons_of(settings: Sequence[Setting], times: Mapping[tuple[str, Place], Series]) -> list[Comparison]:
    """Return the comparisons of each contest of a run in each engine, given the times by engine and point: of the best
    with all others, of each with the baseline, and of those that follow each other in the order."""
    contests = contests_of(settings)
    sentence = judged(contests, times)
    family = sum(len(measured.times) - 1 for measured, _ in sentence)
    found = list[Comparison]()
    for engine in dict.fromkeys(of for of, _ in times):
        known = {place: series for (of, place), series in times.items() if of == engine}
        for contest in contests:
            if len(series := contest.times(known)) < 2:
                continue
            told = [each for one, each in sentence if one.contest is contest and one.engine == engine]
            verdict = told[0] if told else verdict_of(contest, series)
            found += _of_contest(engine, verdict, series, family if told and contest.is_rivalry else None)
    return found


def _of_contest(engine: str, verdict: Verdict, series: Mapping[str, Series], family: int | None) -> list[Comparison]:
    """Return the comparisons of a contest, each pair once: over the baseline, if one of the two is it."""
    contest, best, gains = verdict.contest, verdict.best, dict[tuple[str, str], Interval]()
    if contest.is_choice or contest.is_named:
        gains |= {(name, contest.baseline): gain for name, gain in verdict.over_baseline.items()}
    if contest.is_rivalry:
        gains |= {(best, other): gain for other, gain in verdict.over_others.items() if (other, best) not in gains}
        order = claims(series, contest.baseline)
        for (slower, faster), gain in zip(
            pairwise(order.order), order.steps, strict=False
        ):  # none without a common one
            if (slower, faster) not in gains:
                gains.setdefault((faster, slower), gain)
    found = []
    for (name, over), gain in gains.items():
        other = {best: over}.get(name, name if over == best else None)
        of_answer = family is not None and other is not None
        found.append(
            Comparison(
                engine=engine,
                contest=contest,
                name=name,
                over=over,
                means_s=(verdict.means_s[name], verdict.means_s[over]),
                gain=gain,
                together=_together(verdict, other) if of_answer and other is not None else None,
                family=family if of_answer else None,
            )
        )
    return found


def _together(verdict: Verdict, other: str) -> bool | None:
    holds = _holds(verdict.over_others[other])
    return holds and other not in verdict.loose


def _holds(gain: Interval) -> bool | None:
    """Return whether the interval excludes zero; None without one."""
    return None if gain.why else gain.low > ROUNDING or gain.high < -ROUNDING
