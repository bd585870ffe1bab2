"""Statistics of completion times: mean, total and gain over a baseline, each with a confidence interval.

A mean is a total divided by a count, and a gain compares two totals. Both are ratio estimators, whose standard error
follows from the residuals of blocks (the delta method; Cochran, "Sampling techniques", 1977, chapter 6). Times are
skewed: a slow link makes a few collectives very long. So the interval is Student's t interval after Hall's cubic
transformation, which removes the effect of skewness (P. Hall, "On the removal of skewness by transformation", Journal
of the Royal Statistical Society B 54, 1992, pages 221-228), with one degree of freedom less than there are blocks.

A block is a number of consecutive collectives that are correlated. It begins where nothing is in force that was chosen
for an earlier collective, as the stored rows tell (`Series.fresh`), and lasts as long as conditions are correlated. All
modes run under the same conditions, so a gain pairs the same collectives of two modes, and common variation cancels.
Other seeds draw the same conditions again, independently, so that blocks never reach from one seed into another
(`pooled`). Other seeds of ECMP's hash meet the same conditions, so that they are no further collectives: a collective's
time is its mean over them, and the variance between the hashes' totals is added to that between blocks, with degrees of
freedom by Welch and Satterthwaite (`over_draws`).

Where nothing is drawn at random, and all collectives take the same time, that time is known from one of them: it needs
no interval (`Series.exact`).

Some samples cannot tell how long the longest times are, and their intervals would be too narrow. Then there is no
interval, and `Interval.why` says why not. A test checks the coverage of all others by simulation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from topologies.conditions.sampler import ConditionsSpec
from topologies.errors import list_all

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

Flags = npt.NDArray[np.bool_]

MIN_COLLECTIVES = 60
MIN_BLOCKS = 5
MIN_UNEVEN_BLOCKS = 10
"""The least number of blocks if they differ in length, because choices follow conditions instead of a period."""
MIN_DIFFERENT = 10
"""If two modes agree exactly in some blocks, the gain has an interval only if at least this many other blocks differ: a
gain from fewer could be an accident."""

_WIDEST_GAIN = 1.0
"""How far the interval of a gain from fewer than MIN_UNEVEN_BLOCKS blocks may reach from it, as a share of the
baseline's time. Where it would reach further, a few skewed blocks have made it, and it tells nothing."""

_MOST_LOPSIDED = 6.0
"""How many times further the interval of such a gain may reach on one side than on the other. Hall's transformation of
five blocks gives no mean a larger ratio; the quotient of two totals can, and then it tells nothing."""

_WHAT = ("mean", "gain")
FEW, FEW_BLOCKS = "too few collectives for an interval", "too few independent blocks of collectives for an interval"
FEW_HASHES = "too few seeds of ECMP's hash for an interval"
ALIKE = "times differ in too few collectives for an interval"
ALIKE_BLOCKS = "times differ in too few independent blocks of collectives for an interval"
ALL_SAME = "the same time in each of these collectives"
HEAVY = "too few collectives for an interval, as the slowest conditions are rare"
FEW_DRAWS = f"too few seeds for an interval: {MIN_BLOCKS} or more"
ONE_DRAW = "no interval, as all rounds have the same draw of background traffic, and other draws would differ"
UNDRAWN = "no interval, as nothing is drawn at random, and the collectives differ by less than 0.1 %"
SETTLED = "no interval, as only the first collectives differ and are no sample of later ones"
"""Why there is no interval."""

_CORRELATION_TIMES_A_BLOCK = 30  # adjacent blocks then correlate by 2 %
_TRACE_BLOCKS = 20  # limit of blocks for a trace, whose slow changes completion times may not show
_LAGS_A_BLOCK = 20  # length of a block for a trace, in decorrelation lags
_UNCORRELATED = 0.2  # times of a trace count as uncorrelated up to this autocorrelation
_COLLECTIVES_A_RATIO = 0.5  # that conditions need to show slow links, as a share of a link's highest / lowest rate
_SKEWNESS = 0.2  # that such conditions may have without that number, as skewness / root of the number
_ROUNDING = 1e-12
SAME_TIME = 1e-9
"""Smaller differences, as shares of a time, are rounding errors of sums."""
_NEARLY_THE_SAME = 1e-3  # of a time, by which exact times may differ that more of them would tell no more of
_SETTLED_TIME = 1e-6  # smaller differences between settled times, as shares of them, are those of an emulation
_A_REPETITION = 1 << 40  # which is added to the numbers of the collectives of a further seed


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the bounds of its confidence interval; without one, the bounds are NaN, and `why` says why.

    `blocks` is how many independent blocks of collectives it is made from, of equal size; infinite if it has none.
    """

    value: float
    low: float
    high: float
    why: str = ""
    blocks: float = field(default=math.inf, compare=False)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of a series of completion times: their number, mean and total, in seconds."""

    collectives: int
    mean_s: Interval
    total_s: Interval


@dataclass(frozen=True, eq=False)
class Series:
    """Completion times of one mode: `completion_s` [K] s of the collectives `number` [K], in ascending order.

    `block` is the number of consecutive collectives whose conditions are correlated. `fresh` [K] tells before which
    collectives everything was chosen anew that outlasts a collective; None: before each. `needed` is the number of
    collectives that show the slowest conditions. With `one_draw` all collectives share one draw of something, of whose
    effect they tell nothing. `recorded` tells that conditions are those of a recording, whatever the seed is. `draws`
    [H, K] s are the times with each of several hashes, of which `completion_s` has the mean. With `exact` nothing is
    drawn at random that other collectives could have had otherwise. Raises ValueError for an empty series, for
    different shapes, and for a block below 1.
    """

    number: Numbers
    completion_s: Floats
    block: int = 1
    fresh: Flags | None = None
    needed: float = 0.0
    one_draw: bool = False
    recorded: bool = False
    draws: Floats | None = None
    exact: bool = False

    def __post_init__(self) -> None:
        if self.number.ndim != 1 or self.number.shape != self.completion_s.shape:
            raise ValueError(f"numbers {self.number.shape} and times {self.completion_s.shape}: both must be [K]")
        if self.fresh is not None and self.fresh.shape != self.number.shape:
            raise ValueError(f"numbers {self.number.shape} and choices {self.fresh.shape}: both must be [K]")
        if self.number.size == 0 or self.block < 1:
            raise ValueError(f"{self.number.size} collectives in blocks of {self.block}: both must be 1 or more")

    def rows(self, some: npt.NDArray[Any]) -> "Series":
        """Return the series of some of its collectives, given by flags or indices."""
        fresh = None if self.fresh is None else self.fresh[some]
        draws = None if self.draws is None else self.draws[:, some]
        return replace(self, number=self.number[some], completion_s=self.completion_s[some], fresh=fresh, draws=draws)

    @property
    def all_s(self) -> Floats:
        """The times of all collectives, with each hash if there are several."""
        return self.completion_s if self.draws is None else self.draws.reshape(-1)


def series_of(
    number: Numbers,
    completion_s: Floats,
    conditions: ConditionsSpec,
    *,
    reembedded: Flags,
    rerouted: Flags,
    one_draw: bool = False,
    exact_from: int | None = None,
) -> Series:
    """Return the times of a point's collectives as a series, given where it re-embedded and re-routed, [K] each.
    `one_draw` tells that all of them have the same draw of background traffic, and `exact_from` from how many
    collectives on their times are exact, if nothing is drawn (`rates.exact_from`).

    A mode that re-embeds re-routes with it, so what it keeps is chosen anew when it re-embeds. Collectives under
    similar conditions are correlated for a multiple of the sampler's memory (`ConditionsSpec.memory`), or with a trace
    or a load for as long as their times are autocorrelated.
    """
    chosen = reembedded if reembedded.any() else rerouted
    memory = conditions.memory(completion_s)
    least = math.ceil(_CORRELATION_TIMES_A_BLOCK * (memory - 1))
    if conditions.is_recorded:
        least = max(completion_s.size // _TRACE_BLOCKS, _LAGS_A_BLOCK * (_decorrelation_lag(completion_s) - 1))
    return Series(
        number,
        completion_s,
        block=max(1, least),
        fresh=chosen if chosen.any() and not chosen.all() else None,
        needed=_COLLECTIVES_A_RATIO * memory * conditions.rate_ratio,
        one_draw=one_draw,
        recorded=conditions.is_recorded,
        exact=exact_from is not None and completion_s.size >= exact_from,
    )


def _decorrelation_lag(times: Floats) -> int:
    """Return the first lag without correlation, or, without one, a lag so long that `_interval` returns none."""
    deviations = times - times.mean()
    most = times.size // (MIN_BLOCKS * _LAGS_A_BLOCK) + 2
    limit = _UNCORRELATED * float(deviations @ deviations)
    return next((lag for lag in range(1, most) if float(deviations[lag:] @ deviations[:-lag]) <= limit), most)


def shared(series: Sequence[Series]) -> list[Series] | None:
    """Restrict all series to the collectives that all of them have; None if they have none in common."""
    first = series[0].number
    if all(np.array_equal(other.number, first) for other in series[1:]):
        return list(series)
    common = reduce(np.intersect1d, (other.number for other in series))
    if not common.size:
        return None
    return [other.rows(np.searchsorted(other.number, common)) for other in series]


def ascending(times_s: Mapping[str, float], first: str) -> list[str]:
    """Return names in the order of their times, s, the shortest first. Times that differ by rounding errors alone are
    equal: of these the name `first` comes first, and the others in their own order."""
    groups = list[list[str]]()
    for name in sorted(times_s, key=lambda one: times_s[one]):
        if groups and math.isclose(times_s[groups[-1][0]], times_s[name], rel_tol=SAME_TIME):
            groups[-1].append(name)
        else:
            groups.append([name])
    own = list(times_s)
    return [name for group in groups for name in sorted(group, key=lambda one: (one != first, own.index(one)))]


def is_settled(series: Series) -> bool:
    """Return whether nothing that others could have had otherwise is in these times, which are nearly the same, so that
    they are comparable with those of other collectives, too."""
    return series.exact and float(np.ptp(series.completion_s)) < _NEARLY_THE_SAME * float(series.completion_s.max())


def are_equal(one: Series, other: Series) -> bool:
    """Return whether two series over the same collectives have the same times, but for rounding errors of sums."""
    same = one.completion_s.shape == other.completion_s.shape
    return same and bool(np.allclose(one.completion_s, other.completion_s, rtol=SAME_TIME, atol=0))


def with_blocks_of_equal(series: Series, others: Iterable[Series]) -> Series:
    """Return a series with the blocks of the one of most blocks among those that have the same times, as equal times
    have one interval: where nothing outlasts a collective in one of them, nothing in these times does."""
    alike = [one for one in others if np.array_equal(one.number, series.number) and are_equal(one, series)]
    finest = max([series, *alike], key=lambda one: one.number.size if one.fresh is None else int(one.fresh.sum()))
    return replace(series, block=finest.block, fresh=finest.fresh, needed=finest.needed)


def pooled(repetitions: Mapping[int, Series]) -> Series:
    """Return the times of one point with several seeds, by the number of the seed, as one series.

    If each seed drew conditions of its own, these are all its collectives. Those under recorded conditions are no
    further evidence: then a collective's time is the mean over the seeds, of the collectives that all of them have.
    """
    series = list(repetitions.values())
    if len(series) == 1 and 0 in repetitions:
        return series[0]
    common = shared(series) if all(one.recorded for one in series) else None
    if common is not None:
        fresh = [one.fresh for one in common if one.fresh is not None]
        return replace(
            common[0],
            completion_s=np.mean([one.completion_s for one in common], axis=0),
            block=max(one.block for one in common),
            fresh=np.logical_and.reduce(fresh) if fresh else None,
            needed=max(one.needed for one in common),
            one_draw=any(one.one_draw for one in common),
            exact=all(one.exact for one in common),
        )
    given = any(one.fresh is not None for one in series)
    fresh = [np.ones(one.number.size, dtype=bool) if one.fresh is None else one.fresh for one in series]
    return Series(
        number=np.concatenate([one.number + seed * _A_REPETITION for seed, one in repetitions.items()]),
        completion_s=np.concatenate([one.completion_s for one in series]),
        block=max(one.block for one in series),
        fresh=np.concatenate(fresh) if given else None,
        needed=max(one.needed for one in series),
        one_draw=any(one.one_draw for one in series),
        exact=all(one.exact for one in series),
    )


def pooled_repetitions(repetitions: Mapping[tuple[int, int], Series]) -> Series:
    """Return the times of one point as one series, by the numbers of the seed of ECMP's hash and of the seed of its
    conditions: `pooled` over the latter, and then `over_draws` of the former."""
    by_hash: dict[int, dict[int, Series]] = {}
    for (draw, seed), one in repetitions.items():
        by_hash.setdefault(draw, {})[seed] = one
    each = [pooled(of_hash) for of_hash in by_hash.values()]
    found = over_draws(each)
    return each[0] if found is None else found


def over_draws(series: Sequence[Series]) -> Series | None:
    """Return the times of one point with several seeds of ECMP's hash as one series, over the collectives that all of
    them have; None if there are none."""
    common = series if len(series) == 1 else shared(series)
    if common is None or len(common) == 1:
        return None if common is None else common[0]
    fresh = [one.fresh for one in common if one.fresh is not None]
    times = np.array([one.completion_s for one in common])
    return replace(
        common[0],
        completion_s=times.mean(axis=0),
        block=max(one.block for one in common),
        fresh=np.logical_and.reduce(fresh) if fresh else None,
        needed=max(one.needed for one in common),
        one_draw=any(one.one_draw for one in common),
        exact=all(one.exact for one in common),
        draws=times,
    )


def summarise(series: Series, *, confidence: float = 0.95) -> Summary:
    """Return mean and total of the completion times. Raises ValueError for a confidence outside 0..1."""
    blocks, count = _Blocks.of([series]), series.number.size
    mean_s = _ratio(blocks, blocks.times[0], _Values(np.ones(count), blocks.sizes), confidence)
    total_s = replace(mean_s, value=mean_s.value * count, low=mean_s.low * count, high=mean_s.high * count)
    return Summary(collectives=count, mean_s=mean_s, total_s=total_s)


def gain(base: Series, mode: Series, *, confidence: float = 0.95, least_blocks: int = MIN_BLOCKS) -> Interval | None:
    """Return the share of time that a mode saves over the baseline, 1 - total of mode / total of base, without an
    interval if there are fewer than `least_blocks` blocks.

    The totals are over the collectives that both have, paired by number; None if they have none in common. A block
    begins where both modes have chosen anew. Raises ValueError for a confidence outside 0..1.
    """
    if base is mode:
        return Interval(value=0.0, low=0.0, high=0.0)
    pair = shared([base, mode])
    if pair is None:
        return None
    blocks = _Blocks.of(pair)
    blocks = replace(blocks, least=max(blocks.least, least_blocks))
    of_base, of_mode = blocks.times
    base_s, mode_s = of_base.by_block, of_mode.by_block
    value = 1 - float(mode_s.sum() / base_s.sum())
    without = Interval(value=value, low=math.nan, high=math.nan, blocks=blocks.number)
    # The ratio with the more variable times in its numerator has the residuals that the transformation suits better.
    if _variation(of_mode.by_collective) >= _variation(of_base.by_collective):
        ratio = _ratio(blocks, of_mode, of_base, confidence)
        interval = replace(ratio, value=value, low=1 - ratio.high, high=1 - ratio.low)
    else:
        ratio = _ratio(blocks, of_base, of_mode, confidence)
        if ratio.low <= 0:  # times that vary so much could have any ratio
            has_draws = any(one.by_draw is not None for one in blocks.times)
            return replace(without, why=FEW_HASHES if has_draws else FEW)
        interval = replace(ratio, value=value, low=1 - 1 / ratio.low, high=1 - 1 / ratio.high)
    is_exact = interval.low == interval.high and blocks.exact
    keeps_why = is_exact or interval.why == ONE_DRAW  # other draws may tell them apart
    why = "" if keeps_why else _why_alike(blocks, has_interval=not interval.why)
    reach = max(value - interval.low, interval.high - value)
    is_few = not why and not interval.why and blocks.number < MIN_UNEVEN_BLOCKS and interval.low < interval.high
    if is_few and (reach > _WIDEST_GAIN or _is_lopsided(interval)):
        why = FEW_BLOCKS
    return replace(without, why=why) if why else interval


def _why_alike(blocks: "_Blocks", *, has_interval: bool) -> str:
    """Return why the gain between two series that are alike in some or all collectives has no interval; "" if that is
    no reason, as where no time varies."""
    of_base, of_mode = blocks.times
    varies = np.ptp(of_base.by_block / blocks.sizes) > _ROUNDING * float(of_base.by_block.max())
    apart, blocks_apart = (
        int((np.abs(mode_s - base_s) > rounding * base_s).sum())
        for base_s, mode_s, rounding in (
            (of_base.by_collective, of_mode.by_collective, SAME_TIME),
            (of_base.by_block, of_mode.by_block, _ROUNDING),
        )
    )
    if not apart:
        return ALL_SAME if varies or not has_interval else ""
    if has_interval and varies and blocks_apart < min(of_base.by_block.size, MIN_DIFFERENT):
        return ALIKE if apart < MIN_DIFFERENT else ALIKE_BLOCKS
    return ""


def mean_of_draws(values: Floats, *, confidence: float = 0.95) -> Interval:
    """Return the mean of independent values, such as one of each seed, [N]; without an interval if they are few."""
    value, count = float(values.mean()), values.size
    if count < MIN_BLOCKS:
        return Interval(value=value, low=math.nan, high=math.nan, why=FEW_DRAWS)
    residual = values - value
    if float(np.abs(residual).max()) <= _ROUNDING * float(np.abs(values).max()):
        return Interval(value=value, low=value, high=value)
    return _about(value, residual, float(count), count, confidence=confidence)


def gain_through(third: Series | None, slower: Series, faster: Series, *, confidence: float = 0.95) -> Interval | None:
    """Return the gain of one series over another; where it has no interval, one that follows from both gains over a
    third series, as the blocks in which two modes choose anew together can be few. Both are then taken at a confidence
    at which together they hold with the one asked for (Bonferroni's inequality), so the interval is wide."""
    found = gain(slower, faster, confidence=confidence)
    if found is None or found.why != FEW_BLOCKS or third is None:
        return found
    both = [gain(third, one, confidence=(1 + confidence) / 2) for one in (slower, faster)]
    if any(one is None or one.why or one.high >= 1 for one in both):
        return found
    (least, most), (low, high) = [(1 - one.high, 1 - one.low) for one in both if one is not None]  # of the third's time
    return replace(found, low=1 - high / least, high=1 - low / most, why="")


Estimated = tuple[str, Interval, Interval | None]
"""A mode with the interval of its mean, and that of its gain, None without one, such as that of the baseline."""


def reasons(estimates: Iterable[Estimated]) -> list[str]:
    """Return why intervals are missing, each with the names of those that are: "too few ... (base, gain of joint)"; a
    name that all have, and whose mean and gain both lack an interval, tells nothing."""
    lacking = dict[str, dict[str, set[str]]]()
    having = dict[str, set[str]]()
    for name, *both in estimates:
        for what, interval in zip(_WHAT, both, strict=True):
            if interval is not None:
                having.setdefault(name, set()).add(what)
                if interval.why and interval.why != ALL_SAME:  # whose cell says so
                    lacking.setdefault(interval.why, {}).setdefault(name, set()).add(what)
    return [f"{why}{_of_which(which, having)}" for why, which in lacking.items()]


def _of_which(lacking: Mapping[str, set[str]], having: Mapping[str, set[str]]) -> str:
    """Return in brackets whose intervals are missing, given what of each name lacks one, and what it has; "" for all of
    a single name."""
    whole = [name for name, some in lacking.items() if some == having[name]]
    if len(having) == 1:
        return "" if whole else f" ({', '.join(*lacking.values())})"
    parts = list(whole)
    for what in _WHAT:
        if some := [name for name, lacks in lacking.items() if what in lacks and name not in whole]:
            parts.append(f"{what} of {list_all(some)}")
    return f" ({', '.join(parts)})"


class _Values(NamedTuple):
    """Values by collective, [K], their sums by block, [B], and those by hash, [H], if there are several."""

    by_collective: Floats
    by_block: Floats
    by_draw: Floats | None = None


def _variation(times_s: Floats) -> float:
    return float(times_s.std() / times_s.mean())


@dataclass(frozen=True, kw_only=True, eq=False)
class _Blocks:
    """The same blocks of one or two series: the times of each, by collective and by block, and the blocks' sizes.

    `number` is how many blocks of equal size are worth as much; `least` is the least such number that has an interval.
    `needed` is the largest of the series' numbers, `one_draw` whether any has one draw, and `exact` whether all are.
    """

    times: Sequence[_Values]
    sizes: Floats
    least: int
    needed: float
    one_draw: bool
    exact: bool

    @classmethod
    def of(cls, series: Sequence[Series]) -> "_Blocks":
        """Return the blocks of series over the same collectives; a block begins where all of them are fresh."""
        number, block = series[0].number, max(one.block for one in series)
        given = [one.fresh for one in series if one.fresh is not None]
        fresh = np.flatnonzero(reduce(np.logical_and, given)) if given else None
        starts, is_even = _starts(number, block, fresh)
        sizes = np.diff(np.append(starts, number.size)).astype(float)
        times = [
            _Values(
                one.completion_s,
                np.add.reduceat(one.completion_s, starts),
                None if one.draws is None else one.draws.sum(axis=1),
            )
            for one in series
        ]
        least = MIN_BLOCKS if is_even else MIN_UNEVEN_BLOCKS
        needed, one_draw = max(one.needed for one in series), any(one.one_draw for one in series)
        exact = all(one.exact for one in series)
        return cls(times=times, sizes=sizes, least=least, needed=needed, one_draw=one_draw, exact=exact)

    @property
    def number(self) -> float:
        """The number of blocks, where a shorter one counts for less than one."""
        return float(self.sizes.sum() ** 2 / (self.sizes @ self.sizes))


def _starts(number: Numbers, block: int, fresh: Numbers | None) -> tuple[Numbers, bool]:
    """Return the indices at which blocks of at least `block` collectives begin, and whether all are equally long except
    the first and the last of each seed. Blocks begin with each seed, and at the indices `fresh`, or, if None, where a
    multiple of `block` is passed."""
    of_seed = number // _A_REPETITION
    if fresh is None:
        within_seed = number % _A_REPETITION // block
        changes = (np.diff(of_seed, prepend=-1) != 0) | (np.diff(within_seed, prepend=-1) != 0)
        return np.flatnonzero(changes), True
    begins, firsts = number[fresh], np.flatnonzero(np.diff(of_seed, prepend=-1))
    starts, lengths = list[int](), set[int]()
    for first, end in pairwise([*firsts.tolist(), number.size]):
        of_this, last = [first], int(number[end - 1])
        while True:
            following = int(np.searchsorted(begins, number[of_this[-1]] + block))
            if following == begins.size or begins[following] > last:
                break
            of_this.append(int(fresh[following]))
        lengths.update(np.diff(number[of_this])[1:].tolist())
        starts += of_this
    return np.array(starts), len(lengths) <= 1


def _ratio(blocks: _Blocks, numerator: _Values, denominator: _Values, confidence: float) -> Interval:
    """Return the ratio of two totals, with an interval if one is valid."""
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence}; allowed: between 0 and 1")
    (numerators, above, _), (denominators, below, _) = numerator, denominator
    value = float(above.sum() / below.sum())
    residuals = numerators - value * denominators
    largest = float(np.abs(numerators).max())
    is_exact = blocks.exact and np.ptp(residuals) <= SAME_TIME * largest
    why = "" if is_exact else _why_none(blocks, residuals) or _why_settled(residuals, largest)
    if why == FEW and blocks.exact and np.ptp(residuals) < _NEARLY_THE_SAME * largest:
        why = UNDRAWN
    if why:
        return Interval(value=value, low=math.nan, high=math.nan, why=why, blocks=blocks.number)
    residual = above - value * below
    of_draws = _between_draws(numerator, denominator, value)
    if float(residual @ residual) + of_draws[0] <= (_ROUNDING * float(above.sum())) ** 2:
        return Interval(value=value, low=value, high=value, blocks=blocks.number)
    found = _about(value, residual, float(below.sum()), blocks.number, confidence=confidence, of_draws=of_draws)
    return replace(found, blocks=blocks.number)


def _is_lopsided(interval: Interval) -> bool:
    """Return whether an interval reaches much further from its value on one side than on the other, or leaves it
    out."""
    arms = sorted((interval.value - interval.low, interval.high - interval.value))
    return arms[0] < 0 or arms[1] > _MOST_LOPSIDED * arms[0]


def _about(
    value: float,
    residual: Floats,
    total: float,
    count: float,
    *,
    confidence: float,
    of_draws: tuple[float, int] = (0.0, 1),
) -> Interval:
    """Return the interval of a ratio with the denominator `total`, given the residuals of `count` blocks, and what
    `_between_draws` returns."""
    variance, (more, draws) = float(residual @ residual), of_draws
    of_blocks = variance / (1 - 1 / count) if count > 1 else 0.0  # a single one is exact
    error = math.sqrt(of_blocks + more) / total
    skewness = float((residual**3).sum()) / (variance + more) ** 1.5  # divided by the root of the number of blocks
    from scipy.special import stdtrit  # imported late: it takes a third of a second

    freedom = count - 1
    if more:
        within = of_blocks**2 / freedom if freedom else 0.0
        freedom = (of_blocks + more) ** 2 / (within + more**2 / (draws - 1))
    quantile = float(stdtrit(freedom, (1 + confidence) / 2))
    low, high = (value - _transformed(end, skewness) * error for end in (quantile, -quantile))
    return Interval(value=value, low=low, high=high)


def _between_draws(numerator: _Values, denominator: _Values, value: float) -> tuple[float, int]:
    """Return the variance of the residual of two totals that several hashes cause, and their number; 0 for one."""
    above, below = numerator.by_draw, denominator.by_draw
    count = max(1 if each is None else each.size for each in (above, below))
    if count == 1:
        return 0.0, 1
    residual = (numerator.by_block.sum() if above is None else above) - value * (
        denominator.by_block.sum() if below is None else below
    )
    return float(residual @ residual) / (count * (count - 1)), count


def _transformed(quantile: float, skewness: float) -> float:
    """Return the quantile of a Student statistic of skewed data (Hall 1992, the inverse of the cubic transformation).
    `skewness` is the data's skewness / the root of their number."""
    if abs(skewness) < _ROUNDING:
        return quantile
    return 3 / skewness * float(np.cbrt(1 + skewness * (quantile - skewness / 6)) - 1)


def _why_none(blocks: _Blocks, residual: Floats) -> str:
    """Return why there is no interval, given the residual of each collective, [K]; "" if there is one."""
    count = residual.size
    if blocks.one_draw:
        return ONE_DRAW
    if count < MIN_COLLECTIVES:
        return FEW
    if blocks.number < blocks.least:
        return FEW_BLOCKS
    if count < blocks.needed:
        variance = float(residual @ residual) / count
        third = float(np.abs((residual**3).sum())) / count
        if third > _SKEWNESS * math.sqrt(count) * variance**1.5:
            return HEAVY
    return ""


def _why_settled(residual: Floats, largest: float) -> str:
    """Return SETTLED if the residuals of collectives, [K], change in the first half alone, to the rounding of values up
    to `largest`. Under constant conditions tunnels follow measured demands, or beliefs what is measured, and then
    nothing changes: intervals of 60 such times lay around a mean that no later collective has."""
    least = _SETTLED_TIME * largest
    settled = residual[residual.size // 2 :]
    return SETTLED if np.ptp(settled) <= least < np.ptp(residual) else ""
