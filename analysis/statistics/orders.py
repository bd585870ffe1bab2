"""The order of the alternatives of each contest, slowest first; contests with the same order share a line."""

from collections.abc import Iterable, Mapping, Sequence

from analysis.statistics.claims import claims
from analysis.statistics.contests import Contest, shared_words, which_words
from analysis.statistics.intervals import Series
from analysis.statistics.number_words import all_words, quoted

SIGNS = (
    "> where the 95 % interval of the difference, by itself, excludes zero, ~ where it includes zero, ? where there is "
    "none, = where both take the same times"
)
"""What the signs between alternatives mean."""
_FEW = 4  # configurations that are told one by one


def orders_of(contests: Iterable[tuple[Contest, Mapping[str, Series]]]) -> list[tuple[str, str]]:
    """Return each order with the contests that have it, both in words, given the times of the alternatives by name."""
    groups: dict[str, list[Contest]] = {}
    for contest, times in contests:
        named = {quoted(name): series for name, series in times.items()}
        groups.setdefault(claims(named, quoted(contest.baseline)).order_text, []).append(contest)
    every = [one for group in groups.values() for one in group]
    return [(_where(group, every), order) for order, group in groups.items()]


def _where(group: Sequence[Contest], every: Sequence[Contest]) -> str:
    """Return which contests out of all these are: the label of a single one, or what several share and which."""
    total = len(every)
    if len(group) == 1:
        return group[0].where
    shared = shared_words([one.where for one in group])
    if len(group) == total:
        return ", ".join(filter(None, [shared, f"{all_words(total)} configurations"]))
    known = shared.split(", ")
    each = "; ".join(", ".join(value.words for value in one.at if value.words not in known) for one in group)
    which = (len(group) > _FEW and which_words(group, every)) or each
    return ", ".join(filter(None, [shared, f"{len(group)} of {total} configurations ({which})"]))
