"""The result of a run in one sentence: what was compared, which mode is fastest, by how much, and how surely."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.statistics.claims import claims
from analysis.statistics.intervals import Interval, Series, gain, summarise
from topologies.errors import listed



@dataclass(frozen=True, kw_only=True, eq=False)
class Contest:
    """The completion times of the modes of one configuration; each mode ran `collectives` collectives of this name."""

    label: str
    collective: str
    collectives: int
    is_measured: bool
    times: Mapping[str, Series]


def answer(contests: Sequence[Contest]) -> str:
    """Return the result of one contest or more as a sentence; the contests may compare different modes."""
    if len(contests) == 1 and len(contests[0].times) == 1:
        ((mode, times),) = contests[0].times.items()
        mean_s = summarise(times).mean_s
        text = f"{mean_s.value * 1e3:,.4g} ms{_interval(mean_s, 1e3, ' ms')}"
        return f"{contests[0].label}: a mean of {text} in {mode} over {_counted(contests)}; no mode to compare it with."
    parts: dict[tuple[str, ...], list[Contest]] = {}
    for one in contests:
        parts.setdefault(_fastest(one), []).append(one)
    found = [
        _outcome(fastest, here, len(contests)) for fastest, here in sorted(parts.items(), key=lambda p: -len(p[1]))
    ]
    modes = list(dict.fromkeys(mode for one in contests for mode in one.times))
    where = contests[0].label if len(contests) == 1 else f"{len(contests)} configurations"
    return f"{listed(modes)} compared over {_counted(contests)}, {where}: {'; '.join(found)}."


def _fastest(contest: Contest) -> tuple[str, ...]:
    """Return the fastest mode, followed by the modes that do not differ from it significantly."""
    found = claims(contest.times)
    best = [found.order[-1]]
    for mode, relation in zip(reversed(found.order[:-1]), reversed(found.relations), strict=True):
        if relation == ">":
            break
        best.append(mode)
    return tuple(best)


def _outcome(fastest: Sequence[str], here: Sequence[Contest], of: int) -> str:
    where = "" if of == 1 else f" at all {of}" if len(here) == of else f" at {len(here)} of {of}"
    gains = [gain(one.times["base"], one.times[fastest[0]]) for one in here if "base" in one.times]
    known = [less for less in gains if less is not None]
    winner = f"{fastest[0]} is fastest{where}"
    if len(fastest) > 1:
        winner = f"{fastest[0]} has the least mean{where}, not distinguishable from {listed(fastest[1:])}"
    if not known or fastest[0] == "base":
        return winner
    least, most = min(known, key=lambda less: less.value), max(known, key=lambda less: less.value)
    if len(known) == 1:
        return f"{winner}, {least.value * 100:.1f} % below base{_interval(least, 100, ' %')}"
    ends = [end for less in known for end in (less.low, less.high)]
    sure = Interval(value=0, low=math.nan if any(map(math.isnan, ends)) else min(ends), high=max(ends))
    span = f"{least.value * 100:.1f} % to {most.value * 100:.1f} % below base"
    return f"{winner}, {span}{_interval(sure, 100, ' %', 's within')}"


def _interval(found: Interval, scale: float, unit: str, word: str = "") -> str:
    if math.isnan(found.low):
        return " (too few collectives for an interval)"
    digits = ".1f" if unit == " %" else ",.4g"
    return f" (95 % interval{word} {found.low * scale:{digits}} to {found.high * scale:{digits}}{unit})"


def _counted(contests: Sequence[Contest]) -> str:
    """Return the number of collectives and where they come from: "100,000 AllGathers (timing model)"."""
    counts = [one.collectives for one in contests]
    number = f"{min(counts):,}" if len(set(counts)) == 1 else f"{min(counts):,} to {max(counts):,}"
    engines = dict.fromkeys("measured" if one.is_measured else "timing model" for one in contests)
    each = " each" if len(contests[0].times) > 1 or len(contests) > 1 else ""
    names = {one.collective for one in contests}
    name = names.pop() if len(names) == 1 else "collective"
    return f"{number} {name}{'' if max(counts) == 1 else 's'}{each} ({listed(list(engines))})"
