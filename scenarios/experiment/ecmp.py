"""What ECMP alone would gain over fixed paths, beside what re-routing gains: predicted by the timing model.

The seed of the hash decides which flows share a path, so that one seed says little. Several are predicted, of which
some may give the same paths. Each gain has an interval as the others do, from pairs of the same collectives, if there
are enough independent blocks of them; seeds of the conditions are pooled.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from analysis.statistics.contests import Setting, repetitions, with_short_tables
from analysis.statistics.intervals import (
    ALL_SAME,
    FEW_BLOCKS,
    MIN_COLLECTIVES,
    MIN_UNEVEN_BLOCKS,
    Interval,
    Series,
    are_equal,
    gain,
    pooled,
    series_of,
)
from analysis.statistics.number_words import at_words, fixed, is_alike
from controller.routing.wan_path_choice import NoPathError
from hosts.collectives.schedule import ScheduleError
from scenarios.engines.prediction import plan_of
from scenarios.policies.decide import has_choice_of_paths
from scenarios.policies.knowledge import ORACLE
from scenarios.spec.exclusions import exclusions
from scenarios.spec.labels import setting_of
from scenarios.spec.scenario import Scenario
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.units import format_count

HASH_SEEDS = range(1, 9)
"""The seeds of the hash that are predicted."""
_MOST_COLLECTIVES = 2000  # of a configuration
_MOST_TRANSFERS = 4_000_000  # that are predicted in all, which takes about ten seconds
_WIDE = 0.1  # a range of gains is told in whole percent from here on
_NARROW = 0.01  # half an interval of a gain that is told in tenths of a percent at most
_LEAST = 0.0005  # a gain that is told as a number
_EQUAL = "equal to base"
_ROUNDING = 1e-12  # of the sums of equal times


@dataclass(frozen=True, kw_only=True)
class EcmpGain:
    """The gain of ECMP over fixed paths in base, a share, with each of HASH_SEEDS, over the first `collectives` of a
    configuration, which has `whole`, with each of `seeds` seeds. Its faults are left out (`intact` if it has any).
    `outcomes` is how many of the seeds differ in the time of a collective."""

    setting: Setting
    intervals: tuple[Interval, ...]
    collectives: int
    whole: int
    intact: bool
    outcomes: int
    seeds: int = 1

    @property
    def gains(self) -> tuple[float, ...]:
        """The gains without their intervals."""
        return tuple(one.value for one in self.intervals)

    @property
    def median(self) -> float:
        """The median gain of the seeds."""
        return median(self.gains)


def ecmp_gains(configs: Iterable[tuple[int, Scenario]]) -> list[EcmpGain]:
    """Return the gains for each of these configurations, with their indices, in which a mode that re-routes is compared
    with base over several WAN paths; none if some of them spread flows by ECMP, as these are compared. Faults are left
    out."""
    first = dict[int, Scenario]()
    for index, config in configs:
        first.setdefault(index, config)
    if any(config.fabric.routing == "ecmp" for config in first.values()):
        return []
    asked = {index: config for index, config in first.items() if _is_asked(config)}
    alone = {index: _base_alone(config) for index, config in asked.items()}
    distinct = dict.fromkeys(alone.values())
    most = _MOST_TRANSFERS // (max(1, len(distinct)) * (1 + len(HASH_SEEDS)))
    known = {config: _times(config, most) for config in distinct}
    found = []
    for group in repetitions(with_short_tables([setting_of(index, config) for index, config in asked.items()])):
        of_seed = [times for one in dict.fromkeys(alone[one.index] for one in group) if (times := known[one])]
        if of_seed:
            single, *spread = (pooled(dict(enumerate(times))) for times in zip(*of_seed, strict=True))
            found.append(
                EcmpGain(
                    setting=group[0],
                    intervals=tuple(_gain(single, one) for one in spread),
                    collectives=min(times[0].number.size for times in of_seed),
                    whole=max(asked[one.index].collective.count for one in group),
                    intact=any(asked[one.index].faults for one in group),
                    outcomes=_different(spread),
                    seeds=len(of_seed),
                )
            )
    return found


def _different(series: Sequence[Series]) -> int:
    """Return how many of these series differ from each other in more than rounding errors."""
    found = list[Series]()
    for one in series:
        if not any(are_equal(one, other) for other in found):
            found.append(one)
    return len(found)


def _gain(single: Series, spread: Series) -> Interval:
    # Where conditions last, these collectives are a few long blocks, and one with a slow link outweighs the others.
    found = gain(single, spread, least_blocks=MIN_UNEVEN_BLOCKS)
    assert found is not None  # they have the same collectives
    return found


def lines_of(gains: Sequence[EcmpGain]) -> Iterator[str]:
    """Yield the line that tells these gains, if there are any."""
    known = [one for one in gains if any(map(_is_known, one.intervals))]
    few, gains = len(gains) - len(known) if known else 0, known or gains
    if not gains:
        return
    groups = dict[tuple[str, ...], list[EcmpGain]]()
    for one in gains:  # configurations that differ only in what does not concern base have the same gains
        groups.setdefault(tuple(fixed(gain, 6) for gain in one.gains), []).append(one)
    of = [_seeds([one.outcomes for one in gains]), *[f"{len(groups)} configurations"] * (len(groups) > 1)]
    of += ["timing model", _counted([one.collectives for one in gains], max(one.whole for one in gains))]
    of += [f"with each of {gains[0].seeds} seeds"] * (gains[0].seeds > 1)
    of += ["without faults"] * any(one.intact for one in gains)
    of.append(_noise([each for one in gains for each in one.intervals]))
    of += [f"{few} more {'configuration has' if few == 1 else 'configurations have'} no intervals"] * bool(few)
    yield (
        f"ECMP alone, without re-routing, would be {_outcome(list(groups.values()))}{_doubt(gains)} "
        f"({', '.join(of)}; --set fabric.routing=ecmp)"
    )


def _is_known(gain: Interval) -> bool:
    """Return whether a gain has an interval, or is none in any collective."""
    return not gain.why or gain.why == ALL_SAME


def _doubt(gains: Sequence[EcmpGain]) -> str:
    """Return that these gains are from few collectives, or that none can be told from zero."""
    intervals, least = [each for one in gains for each in one.intervals], min(one.collectives for one in gains)
    if any(map(_is_known, intervals)):
        ends = [(one.low, one.high) for one in intervals if not one.why]
        is_told = bool(ends) and max(abs(one.value) for one in intervals) > _LEAST
        return ", which no interval tells from base" if is_told and all(low <= 0 <= high for low, high in ends) else ""
    return f", over {format_count(least, 'collective')} alone" if least < MIN_COLLECTIVES else ""


def _widest(intervals: Iterable[Interval]) -> float:
    """Return how far the widest of these intervals reaches from its gain, NaN without any."""
    return max((max(one.value - one.low, one.high - one.value) for one in intervals if not one.why), default=math.nan)


def _noise(intervals: Sequence[Interval]) -> str:
    """Return how wide the intervals of gains are, or why there are none."""
    lacking = [why_none(one) for one in intervals if not _is_known(one)]
    if not lacking and all(one.why or is_alike(one) for one in intervals):
        return "the same in every collective"
    if all(one.why for one in intervals):
        return f"without intervals: {lacking[0]}"
    without = f", {len(lacking)} of {len(intervals)} without one: {lacking[0]}" if lacking else ""
    most = _widest(intervals) * 100
    return f"each to within {fixed(most, 1 if most < _WIDE * 100 else 0)} points, 95 % interval{without}"


def why_none(gain: Interval) -> str:
    """Return why a gain has no interval; a table of more collectives, or of means, may have intervals."""
    if gain.why != FEW_BLOCKS:
        return gain.why
    number, needs = int(gain.blocks), f"and this gain needs {MIN_UNEVEN_BLOCKS}"
    these = "this is" if number == 1 else "these are"
    return f"{these} {format_count(number, 'independent block of collectives')}, {needs}"


def _outcome(groups: Sequence[Sequence[EcmpGain]]) -> str:
    """Return the range of all gains, with the configurations at its ends where others are far from these, and their
    median, or the lowest and the highest one of several configurations."""
    gains = [gain for group in groups for gain in group[0].gains]
    is_narrow = _widest(each for group in groups for each in group[0].intervals) < _NARROW
    digits = 1 if is_narrow and max(gains) - min(gains) < _WIDE else 0
    least, most = (_sided(gain, digits) for gain in (min(gains), max(gains)))
    if least == most:
        is_close = least == _EQUAL and max(map(abs, gains)) > _ROUNDING
        return f"{f'less than {0.5 / 10**digits:g} % from base' if is_close else least} with every seed"
    keys = _varied([one.setting for group in groups for one in group])
    span = f"{_span(min(gains), max(gains), digits)}{_ends(groups, keys, digits)}"
    ordered = sorted(groups, key=lambda group: group[0].median)
    is_mixed = span.startswith("between")
    low, high = (_middle(group[0].median, digits, is_mixed) for group in (ordered[0], ordered[-1]))
    if low == high:
        return f"{span}, median {low}"
    return f"{span}, median from {low}{_where(ordered[0], keys)} to {high}{_where(ordered[-1], keys)}"


def _share(gain: float, digits: int) -> str:
    """Return a gain without its sign: "8 %"."""
    return f"{fixed(abs(gain) * 100, digits)} %"


def _sided(gain: float, digits: int) -> str:
    """Return a gain in words: "8 % below base"."""
    share = _share(gain, digits)
    if share == _share(0, digits):
        return _EQUAL
    return f"{share} {'below' if gain > 0 else 'above'} base"


def _middle(gain: float, digits: int, is_mixed: bool) -> str:
    """Return a median gain, with its side if others are on the other one: "8 %", "8 % below base"."""
    share = _share(gain, digits)
    return _sided(gain, digits) if is_mixed and share != _share(0, digits) else share


def _span(least: float, most: float, digits: int) -> str:
    """Return a range of gains in words: "0 to 67 % below base", "between 8 % above and 10 % below base"."""
    low, high = (fixed(end * 100, digits) for end in (least, most))
    if not low.startswith("-"):
        return f"{low} to {high} % below base"
    if high == fixed(0, digits) or high.startswith("-"):
        return f"{high.removeprefix('-')} to {low.removeprefix('-')} % above base"
    return f"between {low.removeprefix('-')} % above and {high} % below base"


def _ends(groups: Sequence[Sequence[EcmpGain]], keys: set[str], digits: int) -> str:
    """Return at which configurations the ends of the range are that others do not reach: " (67 % at 1 ms)"."""
    words = []
    for end in (min, max):
        ends = [end(group[0].gains) for group in groups]
        gain = end(ends)
        if max(ends) - min(ends) >= _WIDE and (where := _where(groups[ends.index(gain)], keys)):
            words.append(f"{_share(gain, digits)}{where}")
    return f" ({', '.join(words)})" * bool(words)


def _varied(settings: Sequence[Setting]) -> set[str]:
    """Return the swept keys that have several values."""
    words = {value.key: value.words for value in settings[0].at}
    return {value.key for one in settings for value in one.at if words.get(value.key) != value.words}


def _where(group: Sequence[EcmpGain], keys: set[str]) -> str:
    """Return the values by which configurations with the same gains differ from the others: " at 50 ms"."""
    differing = keys - _varied([one.setting for one in group])
    words = [value.words for value in group[0].setting.at if value.key in differing]
    return f" {at_words(', '.join(words))}" if words else ""


def _seeds(outcomes: Sequence[int]) -> str:
    """Return how many seeds there are, and how many of them differ: "8 hash seeds with 5 different outcomes"."""
    seeds, least, most = len(HASH_SEEDS), min(outcomes), max(outcomes)
    if least == seeds:
        return f"{seeds} hash seeds"
    number = f"{most}" if least == most else f"{least} to {most}"
    return f"{seeds} hash seeds with {'the same outcome' if most == 1 else f'{number} different outcomes'}"


def _counted(counts: Sequence[int], whole: int) -> str:
    least, most = f"{min(counts):,}", f"{max(counts):,}"
    number = most if least == most else f"{least} to {most}"
    if most == "1":
        return "the first collective"
    return f"the first {number}{f' of {whole:,}' if max(counts) < whole else ''} collectives"


def _is_asked(config: Scenario) -> bool:
    """Return whether a comparison leaves open what ECMP alone would gain."""
    modes = config.run.modes
    if "base" not in modes or config.fabric.routing != "single" or len(config.fabric.gpus_per_site) == 1:
        return False
    if not any(config.mode(mode).reroutes for mode in modes):
        return False
    return has_choice_of_paths(build_fabric(config.fabric), config.workload)


def _base_alone(config: Scenario) -> Scenario:
    """Return what concerns base in a configuration."""
    run, control = replace(config.run, modes=("base",), baseline=()), replace(config.control, knowledge=ORACLE)
    fabric = replace(config.fabric, hash_seed=FabricSpec().hash_seed)  # which only ECMP has
    return replace(config, faults=(), policies=(), sweep=(), at=(), run=run, control=control, fabric=fabric)


def _times(config: Scenario, most: int) -> list[Series]:
    """Return the times over fixed paths and with each hash seed, of so many collectives that each prediction has
    at most `most` transfers; none if flows cannot be spread there."""
    count = max(1, min(config.collective.count, _MOST_COLLECTIVES, most // len(config.workload.schedule.transfers)))
    spread = [
        replace(config, fabric=replace(config.fabric, routing="ecmp", hash_seed=hash_seed)) for hash_seed in HASH_SEEDS
    ]
    try:
        if any(exclusions(spread[0])):
            return []
        of_routing = [plan_of(one, "base", count).completion_s() for one in (config, *spread)]
    except (NoPathError, ScheduleError):
        return []
    kept = np.zeros(count, dtype=bool)  # base chooses nothing
    return [
        series_of(
            np.arange(count),
            times_s,
            config.conditions,
            reembedded=kept,
            rerouted=kept,
            exact_from=config.exact_from("model"),
        )
        for times_s in of_routing
    ]
