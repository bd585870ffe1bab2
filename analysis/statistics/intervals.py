"""Statistics of completion times: mean, total, gain over a baseline, each with a confidence interval.

A mean is total over number, a gain compares two totals: both are ratio estimators, whose standard error comes from
their residuals by block (the delta method; Cochran, "Sampling techniques", 1977, chapter 6), with Student's t for as
many degrees of freedom as there are blocks, less one. A block is as many collectives in a row as are correlated: one
where every collective has conditions of its own and no ring is shared. Modes run under the same conditions, so a gain
is taken from pairs of the same collectives, and what they share cancels.

A few collectives do not show how long their tail is: with fewer than the least numbers below there is no interval,
as it would be too narrow. A test checks the coverage of all others by simulation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

LEAST_COLLECTIVES = 60
LEAST_BLOCKS = 5
LEAST_DIFFERENT = 10
"""Blocks that must differ where two modes agree exactly in some: a gain that rests on fewer is an accident."""

_STAYS_A_BLOCK = 30  # temporal correlation has died away within a block: adjacent blocks correlate by 2 %
_TRACE_BLOCKS = 20  # a trace may change slowly in ways that its times do not show: at most so many blocks
_LAGS_A_BLOCK = 20
_ALIKE = 0.2  # an autocorrelation from which on times of a trace count as apart
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the ends of its confidence interval; both ends are NaN where there is none."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A series of completion times: how many, their mean and their total, in seconds."""

    collectives: int
    mean_s: Interval
    total_s: Interval


@dataclass(frozen=True, eq=False)
class Series:
    """Completion times of one mode: `completion_s` [K] of the collectives of these numbers [K], ascending.

    `block` is how many collectives in a row are correlated. Raises ValueError for an empty series, for shapes that
    differ and for a block below 1.
    """

    number: Numbers
    completion_s: Floats
    block: int = 1

    def __post_init__(self) -> None:
        if self.number.ndim != 1 or self.number.shape != self.completion_s.shape:
            raise ValueError(f"times of shape {self.completion_s.shape} of collectives of shape {self.number.shape}")
        if self.number.size == 0 or self.block < 1:
            raise ValueError(f"{self.number.size} collectives in blocks of {self.block}: both must be 1 or more")


def block_length(completion_s: Floats, *, ring_shared_by: int, sampler: str, memory: float) -> int:
    """How many collectives in a row are correlated, given their times.

    Those that share a ring do: `ring_shared_by` of them, 1 where the ring is fixed. Those with similar
    conditions do too, for some times the `memory` of the sampler (`ConditionsSpec.memory`), and a trace's as long as
    its times resemble each other.
    """
    least = math.ceil(_STAYS_A_BLOCK * (memory - 1))
    if sampler == "trace":
        least = max(completion_s.size // _TRACE_BLOCKS, _LAGS_A_BLOCK * (_lag_apart(completion_s) - 1))
    return -(-max(1, least) // ring_shared_by) * ring_shared_by


def _lag_apart(times: Floats) -> int:
    """The first lag without correlation, or a lag so long that there is no interval anyway."""
    apart = times - times.mean()
    most = times.size // (LEAST_BLOCKS * _LAGS_A_BLOCK) + 2
    alike = _ALIKE * float(apart @ apart)
    return next((lag for lag in range(1, most) if float(apart[lag:] @ apart[:-lag]) <= alike), most)


def shared(series: Sequence[Series]) -> list[Series] | None:
    """The series over the collectives that all of them have; None where there is none."""
    first = series[0].number
    if all(np.array_equal(other.number, first) for other in series[1:]):
        return list(series)
    common = reduce(np.intersect1d, (other.number for other in series))
    if not common.size:
        return None
    return [Series(common, other.completion_s[np.searchsorted(other.number, common)], other.block) for other in series]


def summarise(series: Series, *, confidence: float = 0.95) -> Summary:
    """Mean and total of the completion times. Raises ValueError for a confidence outside 0..1."""
    sums, sizes = _blocks(series, series.block)
    mean_s = _interval(sums, sizes, sizes, confidence)
    count = series.number.size
    total_s = Interval(value=mean_s.value * count, low=mean_s.low * count, high=mean_s.high * count)
    return Summary(collectives=count, mean_s=mean_s, total_s=total_s)


def gain(base: Series, mode: Series, *, confidence: float = 0.95) -> Interval | None:
    """How much less time a mode takes than the baseline, 1 - total / total, over the collectives that both have.

    None where they have none in common. Collectives are paired by their number, and blocks are as long as those of the
    one whose are longer. Raises ValueError for a confidence outside 0..1.
    """
    if base is mode:
        return Interval(value=0.0, low=0.0, high=0.0)
    pair = shared([base, mode])
    if pair is None:
        return None
    block = max(base.block, mode.block)
    (above, sizes), (below, _) = _blocks(pair[1], block), _blocks(pair[0], block)
    ratio = _interval(above, below, sizes, confidence)
    differ = int((np.abs(above - below) > _ROUNDING * below).sum())
    if differ < min(sizes.size, LEAST_DIFFERENT) and np.ptp(below / sizes) > _ROUNDING * float(below.max()):
        return Interval(value=1 - ratio.value, low=math.nan, high=math.nan)
    return Interval(value=1 - ratio.value, low=1 - ratio.high, high=1 - ratio.low)


def _blocks(series: Series, block: int) -> tuple[Floats, Floats]:
    """Sum and size of every block; one of which not all is there is smaller."""
    if block == 1:  # the same, without a pass over all blocks
        return series.completion_s, np.ones(series.number.size)
    starts = np.flatnonzero(np.diff(series.number // block, prepend=-1))
    return np.add.reduceat(series.completion_s, starts), np.diff(np.append(starts, series.number.size)).astype(float)


def _interval(above: Floats, below: Floats, sizes: Floats, confidence: float) -> Interval:
    """The ratio of two totals by block, and its interval where there are enough collectives and blocks of them."""
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence}; it lies between 0 and 1")
    value = float(above.sum() / below.sum())
    blocks = float(sizes.sum() ** 2 / (sizes @ sizes))  # a short block counts for less than one
    if blocks < LEAST_BLOCKS or sizes.sum() < LEAST_COLLECTIVES:
        return Interval(value=value, low=math.nan, high=math.nan)
    from scipy.special import stdtrit  # a third of a second, which a mistake in the command line need not take

    residual = above - value * below
    error = math.sqrt(float(residual @ residual) / (1 - 1 / blocks)) / float(below.sum())
    half = float(stdtrit(blocks - 1, (1 + confidence) / 2)) * error
    return Interval(value=value, low=value - half, high=value + half)
