"""The result of a program's runs in one sentence: what was compared, what is fastest, and by how much."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from analysis.statistics.answer import Verdict, outcomes, side_by_side
from analysis.statistics.contests import Contest, Place, Setting, as_in_sentences, contests_of, seeds_words
from analysis.statistics.intervals import Interval, ascending
from analysis.statistics.number_words import ROUNDING
from topologies.errors import list_all, list_first

_MAX_NAMES = 8


def program_answer(
    settings: Sequence[Setting], times_s: Mapping[Place, float], quantity: str, what_it_is: str = ""
) -> str:
    """Return the sentence on runs of a program, given one time of each, which is this `quantity` ("median step"), and
    what that is in more words.

    Of several seeds it is the mean. There are no intervals, as nothing is known but these runs. It is "" if no two runs
    are comparable.
    """
    contests = [(one, one.known_places(times_s)) for one in as_in_sentences(contests_of(settings))]
    found = [
        _verdict(
            one, {name: fmean(times_s[at] for at in by_seed.values()) for name, by_seed in known.items()}, quantity
        )
        for one, known in contests
        if len(known) > 1
    ]
    if not found:
        return ""
    names = list(dict.fromkeys(name for one in found for name in one.means_s))
    what = list_all(names) if len(names) <= _MAX_NAMES else list_first(names, _MAX_NAMES)
    seeds = min((seeds_words(one.contest.repetitions) for one in found), key=len)
    of_seeds = f", the mean of {seeds}" if seeds else ""
    where = found[0].contest.label if len(found) == 1 else f"{len(found)} configurations"
    are_rivals = all(one.contest.is_rivalry for one in found)
    outcome = outcomes(found) if are_rivals else "; ".join(map(side_by_side, found))
    measure = f"{quantity}{what_it_is and f' ({what_it_is})'}{of_seeds}"
    return f"{what} compared by the {measure}{where and f', {where}'}: {outcome}."


def _verdict(contest: Contest, means_s: Mapping[str, float], quantity: str) -> Verdict:
    order = ascending(means_s, contest.baseline)
    best, others = order[0], order[1:]
    equal = tuple(name for name in others if math.isclose(means_s[name], means_s[best], rel_tol=ROUNDING))
    following = next((name for name in others if name not in equal), None)
    baseline = contest.baseline
    is_best = baseline == best or baseline in equal
    return Verdict(
        contest=contest,
        best=best,
        means_s=means_s,
        equal=equal,
        tied=(),
        unsure={},
        loose=(),
        below=_gain(means_s[baseline], means_s[best]) if baseline in means_s and not is_best else None,
        next=following,
        below_next=None if following is None else _gain(means_s[following], means_s[best]),
        over_baseline={name: _gain(means_s[baseline], means_s[name]) for name in means_s if name != baseline}
        if baseline in means_s
        else {},
        over_others={name: _gain(means_s[name], means_s[best]) for name in others},
        quantity=quantity,
    )


def _gain(slower_s: float, faster_s: float) -> Interval:
    value = 1 - faster_s / slower_s if slower_s else 0.0
    return Interval(value=value, low=math.nan, high=math.nan)
