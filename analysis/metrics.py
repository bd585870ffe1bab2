"""What a series of completion times says: mean, total, gain over a baseline, each with a confidence interval.

Intervals come from a block bootstrap (Künsch, "The jackknife and the bootstrap for general stationary observations",
1989; percentile intervals after Efron and Tibshirani, "An introduction to the bootstrap", 1993). Collectives between
two re-embeddings share one ring, which makes their times dependent: a block is that many collectives in a row, and
blocks are resampled whole. Fewer than thirty blocks are too few to resample; their intervals are Student's, with the
jackknife's standard error (Efron and Tibshirani, chapter 11).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from analysis import student

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]  # of how often each block counts, [any, blocks]: its values, [any]

_RESAMPLES = 2000
_ENOUGH_BLOCKS = 30  # percentiles of resamples of fewer blocks are too narrow, of two by far
_STAYS_A_BLOCK = 10  # temporal correlation has died away within a block: its ends are e^-10 like each other
_TRACE_BLOCKS = 20  # a trace may hang together over any time, so its blocks are as long as leaves this many
_MAX_BLOCKS = 1000  # longer series have longer blocks: the interval is the same to a few per cent, and cheap


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the ends of its confidence interval; both ends are NaN where one block is all there is."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A series of completion times: how many, their mean and their total, in seconds."""

    collectives: int
    mean_s: Interval
    total_s: Interval


def block_length(*, reembed_every: int, sampler: str, mean_stay: float, collectives: int) -> int:
    """How many collectives in a row hang together, and are resampled together for intervals.

    Those that share a ring always do; with the sampler markov those that share conditions too, and a trace is cut
    into as few blocks as an interval can be had from.
    """
    if sampler == "markov":
        return reembed_every * math.ceil(_STAYS_A_BLOCK * mean_stay / reembed_every)
    if sampler == "trace":
        return max(reembed_every, collectives // _TRACE_BLOCKS)
    return reembed_every


def summarise(completion_s: Floats, *, block: int, seed: int, confidence: float = 0.95) -> Summary:
    """Mean and total of the completion times [K] of collectives in order.

    `block` is how many collectives in a row share a ring. Raises ValueError for an empty series, a block below 1 or a
    confidence outside 0..1.
    """
    sums, sizes = _blocks(completion_s, block)
    mean_s = _interval(lambda weights: (weights @ sums) / (weights @ sizes), sums.size, seed, confidence)
    count = completion_s.size
    total_s = Interval(value=mean_s.value * count, low=mean_s.low * count, high=mean_s.high * count)
    return Summary(collectives=count, mean_s=mean_s, total_s=total_s)


def gain(base_s: Floats, mode_s: Floats, *, block: int, seed: int, confidence: float = 0.95) -> Interval:
    """How much less time a mode takes than the baseline: 1 - total / total of the baseline.

    Both are completion times [K] of the same collectives under the same conditions, so a resample takes the same
    blocks of both: the luck they share cancels. Errors as for `summarise`, and ValueError for different lengths.
    """
    if base_s.shape != mode_s.shape:
        raise ValueError(f"{base_s.size} collectives of the baseline and {mode_s.size} of the mode; a pair is needed")
    base, _ = _blocks(base_s, block)
    mode, _ = _blocks(mode_s, block)
    return _interval(lambda weights: 1 - (weights @ mode) / (weights @ base), base.size, seed, confidence)


def _blocks(series: Floats, block: int) -> tuple[Floats, Floats]:
    """Sum and size of every block; the last one may be shorter."""
    if series.ndim != 1 or series.size == 0 or block < 1:
        raise ValueError(
            f"a series of shape {series.shape} in blocks of {block}: both must hold one collective or more"
        )
    longer = block * max(1, -(-series.size // (block * _MAX_BLOCKS)))
    starts = np.arange(0, series.size, longer)
    return np.add.reduceat(series, starts), np.diff(np.append(starts, series.size)).astype(np.float64)


def _interval(statistic: Statistic, blocks: int, seed: int, confidence: float) -> Interval:
    """The statistic of how often each block counts, and its interval."""
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence}; it lies between 0 and 1")
    value = float(statistic(np.ones((1, blocks)))[0])
    if blocks == 1:
        return Interval(value=value, low=float("nan"), high=float("nan"))
    tail = (1 - confidence) / 2
    if blocks < _ENOUGH_BLOCKS:
        half = student.quantile(1 - tail, blocks - 1) * _jackknife_error(statistic, blocks)
        return Interval(value=value, low=value - half, high=value + half)
    low, high = np.quantile(statistic(_resamples(blocks, seed)), (tail, 1 - tail))
    return Interval(value=value, low=float(low), high=float(high))


def _jackknife_error(statistic: Statistic, blocks: int) -> float:
    """The statistic's standard error, from leaving out each block in turn."""
    without = statistic(1 - np.eye(blocks))
    return math.sqrt((blocks - 1) / blocks * float(((without - without.mean()) ** 2).sum()))


@lru_cache(maxsize=2)
def _resamples(blocks: int, seed: int) -> Floats:
    """How often each block counts in each resample, [resamples, blocks]; the same for every mode and point of a run."""
    random = np.random.Generator(np.random.Philox(seed))
    weights = np.empty((_RESAMPLES, blocks))
    for row in weights:
        row[:] = np.bincount(random.integers(blocks, size=blocks), minlength=blocks)
    weights.setflags(write=False)
    return weights
