"""The order of the alternatives of each contest, slowest first; contests with the same order share a line."""

from collections.abc import Iterable, Mapping, Sequence

from analysis.statistics.claims import claims
from analysis.statistics.contests import MODE, Contest, shared_words
from analysis.statistics.intervals import Series

SIGNS = "> where the 95 % interval of the difference excludes zero, ~ where it includes zero, ? where there is none"
"""What the signs between alternatives mean."""


def orders_of(contests: Iterable[tuple[Contest, Mapping[str, Series]]]) -> list[tuple[str, str]]:
    """Return each order with the contests that have it, both in words, given the times of the alternatives by name."""
    groups: dict[str, list[Contest]] = {}
    for contest, times in contests:
        groups.setdefault(claims(times, contest.baseline).order_text, []).append(contest)
    total = sum(map(len, groups.values()))
    return [(_where(group, total), order) for order, group in groups.items()]


def _where(group: Sequence[Contest], total: int) -> str:
    """Return which contests, out of `total`, these are: the label of a single one, or what several share and which."""
    if len(group) == 1:
        return _label(group[0])
    shared = shared_words([_label(one) for one in group])
    if len(group) == total:
        return ", ".join(filter(None, [shared, f"all {total} configurations"]))
    known = shared.split(", ")
    which = "; ".join(", ".join(value.words for value in one.at if value.words not in known) for one in group)
    return ", ".join(filter(None, [shared, f"{len(group)} of {total} configurations ({which})"]))


def _label(contest: Contest) -> str:
    """Return what the alternatives of a contest share, in words."""
    at = [value.words for value in contest.at] if contest.key != MODE else []
    return ", ".join(filter(None, [contest.label, *(words for words in at if words not in contest.label.split(", "))]))
