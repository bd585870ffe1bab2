"""The result of a run in one sentence: what was compared, which mode is fastest, by how much, and how surely."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from analysis.statistics.claims import claims
from analysis.statistics.intervals import Interval, Series, gain, summarise
from topologies.errors import list_all

COLLECTIVE_NAMES = {
    "allgather": "AllGather",
    "reducescatter": "ReduceScatter",
    "allreduce": "AllReduce",
    "alltoall": "AllToAll",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "gather": "Gather",
    "scatter": "Scatter",
    "jobs": "round",
    "training": "iteration",
}
"""The name in text of each kind of collective."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """The completion times of the modes of one configuration in one engine.

    `index` is the index of the configuration, `kind` its kind of collective, and `times` are the modes' times by name.
    """

    index: int
    label: str
    kind: str
    is_measured: bool
    times: Mapping[str, Series]

    @property
    def collectives(self) -> int:
        """How many collectives every mode has."""
        return min(series.number.size for series in self.times.values())


def answer(comparisons: Sequence[Comparison]) -> str:
    """Return the sentence for one or more comparisons, whether or not they have the same modes.

    If both engines ran a configuration, the measured times count, unless the model has more collectives.
    """
    by_size = sorted(comparisons, key=lambda one: (one.index, one.collectives, one.is_measured))
    comparisons = list({one.index: one for one in by_size}.values())  # the last of each configuration
    modes = list(dict.fromkeys(mode for comparison in comparisons for mode in comparison.times))
    where = comparisons[0].label if len(comparisons) == 1 else f"{len(comparisons)} configurations"
    if len(modes) == 1:
        means = sorted((summarise(one.times[modes[0]]).mean_s for one in comparisons), key=lambda mean_s: mean_s.value)
        text = f"a mean of {_ms(means[0].value)} ms{_interval(means[0], _ms, ' ms')}"
        if len(comparisons) > 1:
            text = f"means of {_ms(means[0].value)} to {_ms(means[-1].value)} ms"
        return f"{where}: {text} in {modes[0]} over {_counted(comparisons)}; no mode to compare it with."
    by_fastest: dict[tuple[str, ...], list[Comparison]] = {}
    for comparison in comparisons:
        by_fastest.setdefault(_fastest(comparison), []).append(comparison)
    groups = sorted(by_fastest.items(), key=lambda item: -len(item[1]))
    outcomes = [_outcome(fastest, group, len(comparisons)) for fastest, group in groups]
    return f"{list_all(modes)} compared over {_counted(comparisons)}, {where}: {'; '.join(outcomes)}."


def _fastest(comparison: Comparison) -> tuple[str, ...]:
    """Return the fastest mode, followed by the modes that do not differ from it significantly."""
    tested = claims(comparison.times)
    best = [tested.order[-1]]
    for mode, relation in zip(reversed(tested.order[:-1]), reversed(tested.relations), strict=True):
        if relation == ">":
            break
        best.append(mode)
    return tuple(best)


def _outcome(fastest: Sequence[str], group: Sequence[Comparison], total: int) -> str:
    """Return the outcome of a group of comparisons, out of `total`, in which the same modes are fastest."""
    where = f" at all {total}" if len(group) == total else f" at {len(group)} of {total}"
    if total == 1:
        where = ""
    gains = [gain(one.times["base"], one.times[fastest[0]]) for one in group if "base" in one.times]
    known = [interval for interval in gains if interval is not None]
    winner = f"{fastest[0]} is fastest{where}"
    if len(fastest) > 1:
        winner = f"{fastest[0]} has the lowest mean{where}, not distinguishable from {list_all(fastest[1:])}"
    if not known or fastest[0] == "base":
        return winner
    least, most = min(known, key=lambda interval: interval.value), max(known, key=lambda interval: interval.value)
    if len(known) == 1:
        return f"{winner}, {_percent(least.value)} % below base{_interval(least, _percent, ' %')}"
    ends = [end for interval in known for end in (interval.low, interval.high)]
    why = next((interval.why for interval in known if interval.why), "")
    range_of_all = Interval(value=0, low=math.nan if why else min(ends), high=max(ends), why=why)
    span = f"{_percent(least.value)} % to {_percent(most.value)} % below base"
    return f"{winner}, {span}{_interval(range_of_all, _percent, ' %', 's within')}"


def _interval(interval: Interval, text: Callable[[float], str], unit: str, word: str = "") -> str:
    if math.isnan(interval.low):
        return f" ({interval.why})"
    return f" (95 % interval{word} {text(interval.low)} to {text(interval.high)}{unit})"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"


def _ms(seconds: float) -> str:
    """Return a time in ms, with four digits or all those before the decimal point."""
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.4g}"


def _counted(comparisons: Sequence[Comparison]) -> str:
    """Return the number of collectives and where they come from: "100,000 AllGathers (timing model)"."""
    counts = [comparison.collectives for comparison in comparisons]
    number = f"{min(counts):,}" if len(set(counts)) == 1 else f"{min(counts):,} to {max(counts):,}"
    engines = dict.fromkeys("measured" if comparison.is_measured else "timing model" for comparison in comparisons)
    each = " each" if len(comparisons[0].times) > 1 or len(comparisons) > 1 else ""
    names = {COLLECTIVE_NAMES.get(comparison.kind, "collective") for comparison in comparisons}
    name = names.pop() if len(names) == 1 else "collective"
    return f"{number} {name}{'' if max(counts) == 1 else 's'}{each} ({list_all(list(engines))})"
