"""Means without what faults cost, in words: faults hit alternatives unequally, so that means with them may compare the
faults. A mean is that of the attempts that succeeded, so the time of failed ones is in none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.statistics.contests import (
    Contest,
    Place,
    Setting,
    as_in_sentences,
    contests_of,
    repetitions,
    shared_words,
)
from analysis.statistics.fault_costs import FaultResult, costs_words
from analysis.statistics.fault_outcomes import MOST_COSTS
from analysis.statistics.intervals import ascending
from analysis.statistics.number_words import all_words, at_words, milliseconds, percent, share_words
from topologies.errors import list_all, list_first

Floats = npt.NDArray[np.float64]

_BEGIN = "Without what faults cost"
_TELLING = 1e-3  # of the time that faults cost, and by which means differ
_MOST = 4  # alternatives, and groups of configurations, that are told


class Means(NamedTuple):
    """The mean time of a point with and without what its faults cost, s, over how many collectives, and how many
    attempts failed because of them."""

    with_s: float
    without_s: float
    collectives: int
    attempts_lost: int = 0


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A contest whose means without faults are all known, by the names of its alternatives."""

    contest: Contest
    means: Mapping[str, Means]

    @property
    def order(self) -> list[str]:
        """The names, the lowest mean without faults first, of equal ones the baseline."""
        return ascending({name: mean.without_s for name, mean in self.means.items()}, self.contest.baseline)

    @property
    def best(self) -> tuple[str, ...]:
        """What has the lowest mean without faults, and all that is as low."""
        order = self.order
        lowest_s = self.means[order[0]].without_s
        return tuple(name for name in order if self.means[name].without_s - lowest_s <= _TELLING * lowest_s)

    @property
    def below(self) -> float:
        """How far the best is below the baseline, as a share of that; negative: how much longer the next takes."""
        first, following = self.order[:2]
        over = self.contest.baseline
        if first == over:
            return 1 - self.means[following].without_s / self.means[first].without_s
        return 1 - self.means[first].without_s / self.means[over].without_s


def mean_without_s(
    number: npt.NDArray[np.int64], completion_s: Floats, predicted_s: Floats, faults: Sequence[FaultResult]
) -> float | None:
    """Return the mean time of a point's collectives without what its faults cost: of those that a fault hit the time
    that is predicted without any; None without faults, and where that is not known for all of them. Of those that
    predicted times have nothing of, they are such times.

    `number`, `completion_s` and `predicted_s`, [K], are the collectives' numbers, and their measured and predicted
    times with the faults that were in force when they began.
    """
    has_faults, faults = bool(faults), [one for one in faults if not one.is_absent]
    if not has_faults or any(one.costs is None or one.cost_s is None or one.collectives is not None for one in faults):
        return None
    without_s = completion_s.copy()
    for one in faults:
        for part in one.costs or ():
            hit = number == part["collective"]
            without_s[hit] = predicted_s[hit] - part["lasting_cost_s"]
    rest_s = 0.0
    for one in faults:
        if len(one.costs or ()) == MOST_COSTS:  # and perhaps hit more collectives than are told one by one
            if len(faults) > 1:
                return None
            rest_s = (one.cost_s or 0.0) - sum(float(part["cost_s"]) for part in one.costs or ())
    return float((without_s.sum() - rest_s) / without_s.size)


def without_faults_sentence(settings: Sequence[Setting], means: Mapping[Place, Means], of: str = "") -> str:
    """Return what would have the lowest mean without what faults cost, or what the means would be where nothing
    competes; "" without faults, and where some mean without them is not known.

    `means` are those of all points in the engine that counts; of points without faults both are the same. `of` is the
    word for that engine's times ("measured", "predicted") where the other one's are over other collectives.
    """
    contests = as_in_sentences(contests_of(settings))
    cases = [case for case in (_case(one, means) for one in contests) if case is not None]
    told = [mean for case in cases for mean in case.means.values()] or [*means.values()]
    if not told or len(means) < len({Place(one.index, mode) for one in settings for mode in one.modes}):
        return ""
    if all(abs(one.with_s - one.without_s) < _TELLING * one.with_s for one in told):
        lost = sum(one.attempts_lost for one in means.values())
        apart = f": it is failed attempts, {lost:,}, which are in no mean"
        return f"{_BEGIN}, means would differ by less than {percent(_TELLING)} %{apart}." if lost else ""
    if not cases:
        return _alone(settings, means)
    if not all(case.contest.is_rivalry for case in cases):
        return f"{_BEGIN}{_apart(means.values(), ', ')}, {'; '.join(map(_side_by_side, cases))}."
    if len(cases) > 1:
        return f"{_BEGIN}{_apart(means.values(), ', ')}, {_groups(cases)}."
    (case,) = cases
    costs = ", ".join(f"{name} {_cost(mean)}" for name, mean in case.means.items())
    over = {mean.collectives for mean in case.means.values()}
    whose = f"; {of} over {over.pop():,} collectives{' each' * (len(case.means) > 1)}" if of and len(over) == 1 else ""
    return f"{_BEGIN} in all ({costs}{whose}{_apart(means.values(), '; ')}), {_outcome([case])}."


def _case(contest: Contest, means: Mapping[Place, Means]) -> _Case | None:
    """Return a contest with the means of its alternatives, pooled over seeds; None if fewer than two are known."""
    known = contest.known_places(means)
    if len(known) < 2 or contest.baseline not in known:
        return None
    pooled = {name: _pooled([means[place] for place in by_seed.values()]) for name, by_seed in known.items()}
    return _Case(contest=contest, means=pooled)


def _pooled(means: Sequence[Means]) -> Means:
    count = sum(one.collectives for one in means)
    with_s = sum(one.with_s * one.collectives for one in means) / count
    without_s = sum(one.without_s * one.collectives for one in means) / count
    return Means(with_s, without_s, count, sum(one.attempts_lost for one in means))


def _cost(mean: Means) -> str:
    return costs_words([(mean.with_s - mean.without_s) * mean.collectives], 0.0)


def _apart(means: Iterable[Means], begin: str) -> str:
    return f"{begin}failed attempts, which are in no mean, apart" if any(one.attempts_lost for one in means) else ""


def _alone(settings: Sequence[Setting], means: Mapping[Place, Means]) -> str:
    """Return the means without faults of points of which no two compete."""
    parts = []
    groups = repetitions(settings)
    for group in groups:
        places = [Place(one.index, mode) for one in group for mode in one.modes]
        mean = _pooled([means[place] for place in places])
        where = f" ({shared_words([one.label for one in group])})" if len(groups) > 1 else ""
        parts.append(f"{milliseconds(mean.without_s)} ms{where}, not {milliseconds(mean.with_s)}")
    return f"{_BEGIN}{_apart(means.values(), ', ')}, the mean would be {list_first(parts, _MOST, separator='; ')}."


def _side_by_side(case: _Case) -> str:
    """Return the mean without faults of each alternative of a contest that is none."""
    told = [f"{milliseconds(mean.without_s)} ms {at_words(name)}" for name, mean in case.means.items()]
    return f"the mean would be {list_first(told, 2 * _MOST, separator='; ')}"


def _groups(cases: Sequence[_Case]) -> str:
    """Return what would be best in several contests, those with the same best together."""
    alike: dict[tuple[str, ...], list[_Case]] = {}
    for case in cases:
        alike.setdefault(case.best, []).append(case)
    return "; ".join(_outcome(group, _where(group, len(cases))) for group in alike.values())


def _where(group: Sequence[_Case], total: int) -> str:
    if len(group) == total:
        return f" at {all_words(total)}"
    names = [", ".join(value.words for value in case.contest.at) for case in group]
    return f" at {len(group)} of {total} ({list_first(names, _MOST, separator='; ')})"


def _outcome(group: Sequence[_Case], where: str = "") -> str:
    """Return what would be best in contests in which it is the same."""
    best, baseline = group[0].best, group[0].contest.baseline
    low, high = (share_words(end) for end in (min(case.below for case in group), max(case.below for case in group)))
    if all(len(best) == len(case.means) for case in group):
        mean = f", {milliseconds(group[0].means[best[0]].without_s)} ms" if len(group) == 1 else ""
        return f"{list_all([*best])} would have the same mean{where}{mean}"
    if baseline not in best:
        means = "means" if len(best) > 1 else "mean"
        return f"{list_all([*best])} would have the lowest {means}{where}, {_span(low, high)} % below {baseline}"
    if len(best) > 1:
        return f"{list_all([*best])} would have the lowest means{where}"
    longer = sorted(abs(case.below) for case in group)
    following = dict.fromkeys(case.order[1] for case in group)
    then = f"{next(iter(following))}, the next," if len(following) == 1 else "the next"
    span = _span(share_words(longer[0]), share_words(longer[-1]))
    return f"{best[0]} would have the lowest mean{where}, and {then} would take {span} % longer"


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
