"""Whether means keep a time budget, in a sentence: along a number, or for each alternative."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from analysis.statistics.contests import Value
from topologies.errors import list_all
from topologies.units import format_delay

_MOST = 6  # lines, and points of a line, that are told

BUDGET = "collective.budget"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A point with a budget: the values of its swept keys, its mode, the budget, whether the mean keeps it, and how
    many of its collectives do."""

    at: tuple[Value, ...]
    mode: str
    budget_s: float
    is_kept: bool
    fitting: int
    collectives: int

    @property
    def share(self) -> str:
        """How many collectives keep it: "277 of 500 collectives do"; "" where the mean tells all."""
        if self.collectives == 1 or (self.fitting in (0, self.collectives) and (self.fitting > 0) is self.is_kept):
            return ""
        return f" ({self.fitting:,} of {self.collectives:,} collectives do)"


def budget_sentence(points: Sequence[Kept]) -> str:
    """Return where the mean keeps the budget, with the share of collectives that do where not all are alike; "" without
    a budget."""
    if not points:
        return ""
    key = _number_of(points)
    lines: dict[tuple[str, ...], list[Kept]] = {}
    modes, budgets = {one.mode for one in points}, {one.budget_s for one in points}
    for one in points:
        others = [value.words for value in one.at if value.key not in (key, BUDGET)]
        others += [format_delay(one.budget_s)] * (len(budgets) > 1) + [one.mode] * (len(modes) > 1 and key is not None)
        lines.setdefault(tuple(others) if key is not None or len(budgets) > 1 else (), []).append(one)
    what = format_delay(next(iter(budgets))) if len(budgets) == 1 else "the budget"
    if len(lines) > _MOST:
        kept = sum(one.is_kept for one in points)
        return f"The mean keeps {what} ({BUDGET}) at {kept:,} of {len(points):,} points."
    told = {", ".join(others): _along(line, key) for others, line in lines.items()}
    if len({*told.values()}) == 1:  # wherever that is
        told = {"": next(iter(told.values()))}
    texts = [f"{f'at {others}: ' if others else ''}{text}" for others, text in told.items()]
    return f"The mean keeps {what} ({BUDGET}) {'; '.join(texts)}."


def _number_of(points: Sequence[Kept]) -> str | None:
    """Return the key of a quantity with most values, along which is told; None without one."""
    keys = {value.key for one in points for value in one.at if value.key != BUDGET}
    values = {key: {value.number for one in points for value in one.at if value.key == key} for key in sorted(keys)}
    numbers = [key for key, found in values.items() if None not in found and len(found) > 1]
    return max(numbers, key=lambda key: len(values[key]), default=None)


def _along(line: Sequence[Kept], key: str | None) -> str:
    """Return at which points of a line the mean keeps the budget."""
    if key is None:
        names = [", ".join([*(value.words for value in one.at if value.key != BUDGET), one.mode]) for one in line]
        return _listed(line, names)
    value = {id(one): next(each for each in one.at if each.key == key) for one in line}
    ordered = sorted(line, key=lambda one: value[id(one)].number or 0)
    words = [value[id(one)].words for one in ordered]
    runs = [[*run] for _, run in groupby(range(len(ordered)), key=lambda at: ordered[at].is_kept)]
    if len(runs) == 1:
        where = "throughout" if ordered[0].is_kept else "nowhere"
        closest = min(ordered, key=lambda one: one.fitting / one.collectives)
        fewest = f", at {words[ordered.index(closest)]} with the fewest{closest.share}" if closest.share else ""
        return f"{where}{fewest}"
    if len(runs) > 2:
        return _listed(ordered, words)
    before, after = ordered[runs[0][-1]], ordered[runs[1][0]]
    last, first = words[runs[0][-1]], words[runs[1][0]]
    if before.is_kept:
        return f"up to {last}{before.share}, and not from {first} on{after.share}"
    return f"from {first} on{after.share}, and not up to {last}{before.share}"


def _listed(line: Sequence[Kept], points: Sequence[str]) -> str:
    """Return which points keep the budget and which do not."""
    if len(line) > _MOST:
        return f"at {sum(one.is_kept for one in line):,} of {len(line):,} points"
    kept = [f"{name}{one.share}" for one, name in zip(line, points, strict=True) if one.is_kept]
    late = [f"{name}{one.share}" for one, name in zip(line, points, strict=True) if not one.is_kept]
    where = [f"{word} {list_all(names)}" for word, names in (("at", kept), ("not at", late)) if names]
    return ", ".join(where)
