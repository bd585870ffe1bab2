"""Statistics of completion times: mean, total and gain over a baseline, each with a confidence interval.

A mean is a total divided by a count, and a gain compares two totals. Both are ratio estimators, whose standard error
follows from the residuals of blocks (the delta method; Cochran, "Sampling techniques", 1977, chapter 6), with Student's
t for one degree of freedom less than there are blocks. A block is a number of consecutive collectives that are
correlated: a single one if every collective has independent conditions and no ring is shared. All modes run under the
same conditions, so a gain pairs the same collectives of two modes, and common variation cancels.

A small sample does not show the tail of the distribution, so its interval would be too narrow. Below the minimum
numbers defined here there is no interval. A test checks the coverage of all others by simulation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

MIN_COLLECTIVES = 60
MIN_BLOCKS = 5
MIN_DIFFERENT = 10
"""If two modes agree exactly in some blocks, the gain has an interval only if at least this many other blocks differ: a
gain from fewer could be an accident."""

_CORRELATION_TIMES_A_BLOCK = 30  # adjacent blocks then correlate by 2 %
_TRACE_BLOCKS = 20  # limit of blocks for a trace, whose slow changes completion times may not show
_LAGS_A_BLOCK = 20  # length of a block for a trace, in decorrelation lags
_UNCORRELATED = 0.2  # times of a trace count as uncorrelated up to this autocorrelation
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the bounds of its confidence interval; both bounds are NaN if there is no interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of a series of completion times: their number, mean and total, in seconds."""

    collectives: int
    mean_s: Interval
    total_s: Interval


@dataclass(frozen=True, eq=False)
class Series:
    """Completion times of one mode: `completion_s` [K] s of the collectives `number` [K], in ascending order.

    `block` is the number of consecutive collectives that are correlated. Raises ValueError for an empty series, for
    different shapes, and for a block below 1.
    """

    number: Numbers
    completion_s: Floats
    block: int = 1

    def __post_init__(self) -> None:
        if self.number.ndim != 1 or self.number.shape != self.completion_s.shape:
            raise ValueError(f"numbers {self.number.shape} and times {self.completion_s.shape}: both must be [K]")
        if self.number.size == 0 or self.block < 1:
            raise ValueError(f"{self.number.size} collectives in blocks of {self.block}: both must be 1 or more")


def block_length(completion_s: Floats, *, ring_shared_by: int, sampler: str, memory: float) -> int:
    """Return how many consecutive collectives are correlated, given their times.

    Collectives that share a ring are correlated: `ring_shared_by` of them, 1 if the ring is fixed. Collectives under
    similar conditions are, too: for a multiple of the sampler's `memory` (`ConditionsSpec.memory`), or with a trace for
    as long as their times are autocorrelated.
    """
    least = math.ceil(_CORRELATION_TIMES_A_BLOCK * (memory - 1))
    if sampler == "trace":
        least = max(completion_s.size // _TRACE_BLOCKS, _LAGS_A_BLOCK * (_decorrelation_lag(completion_s) - 1))
    return -(-max(1, least) // ring_shared_by) * ring_shared_by


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
    return [Series(common, other.completion_s[np.searchsorted(other.number, common)], other.block) for other in series]


def summarise(series: Series, *, confidence: float = 0.95) -> Summary:
    """Return mean and total of the completion times. Raises ValueError for a confidence outside 0..1."""
    sums, sizes = _blocks(series, series.block)
    mean_s = _interval(sums, sizes, sizes, confidence)
    count = series.number.size
    total_s = Interval(value=mean_s.value * count, low=mean_s.low * count, high=mean_s.high * count)
    return Summary(collectives=count, mean_s=mean_s, total_s=total_s)


def gain(base: Series, mode: Series, *, confidence: float = 0.95) -> Interval | None:
    """Return the share of time that a mode saves over the baseline, 1 - total of mode / total of base.

    The totals are over the collectives that both have, paired by number; None if they have none in common. Blocks are
    as long as the longer of the two. Raises ValueError for a confidence outside 0..1.
    """
    if base is mode:
        return Interval(value=0.0, low=0.0, high=0.0)
    pair = shared([base, mode])
    if pair is None:
        return None
    block = max(base.block, mode.block)
    (mode_s, sizes), (base_s, _) = _blocks(pair[1], block), _blocks(pair[0], block)
    ratio = _interval(mode_s, base_s, sizes, confidence)
    differ = int((np.abs(mode_s - base_s) > _ROUNDING * base_s).sum())
    if differ < min(sizes.size, MIN_DIFFERENT) and np.ptp(base_s / sizes) > _ROUNDING * float(base_s.max()):
        return Interval(value=1 - ratio.value, low=math.nan, high=math.nan)
    return Interval(value=1 - ratio.value, low=1 - ratio.high, high=1 - ratio.low)


def _blocks(series: Series, block: int) -> tuple[Floats, Floats]:
    """Return sum and size of every block; incomplete blocks are smaller."""
    if block == 1:  # shortcut with the same result
        return series.completion_s, np.ones(series.number.size)
    starts = np.flatnonzero(np.diff(series.number // block, prepend=-1))
    return np.add.reduceat(series.completion_s, starts), np.diff(np.append(starts, series.number.size)).astype(float)


def _interval(numerator: Floats, denominator: Floats, sizes: Floats, confidence: float) -> Interval:
    """Return the ratio of two totals given by block, with an interval if there are enough collectives and blocks."""
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence}; allowed: between 0 and 1")
    value = float(numerator.sum() / denominator.sum())
    blocks = float(sizes.sum() ** 2 / (sizes @ sizes))  # a shorter block counts for less than one
    if blocks < MIN_BLOCKS or sizes.sum() < MIN_COLLECTIVES:
        return Interval(value=value, low=math.nan, high=math.nan)
    from scipy.special import stdtrit  # imported late: it takes a third of a second

    residual = numerator - value * denominator
    error = math.sqrt(float(residual @ residual) / (1 - 1 / blocks)) / float(denominator.sum())
    half = float(stdtrit(blocks - 1, (1 + confidence) / 2)) * error
    return Interval(value=value, low=value - half, high=value + half)
