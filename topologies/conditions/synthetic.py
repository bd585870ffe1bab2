"""Samplers that draw conditions from a seed: uniform, gaussian, markov and ar1.

All draw from Philox, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011): the counter is computed from the collective and the link, so a draw does not depend on earlier draws.
"""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_WORDS_PER_COUNT = 4  # one step of Philox's counter yields four 64-bit words
_LOOK_BACK = 64  # collectives that a Markov chain looks back in one step
_INDEPENDENT = 2.0**-60  # a correlation too small to change a 53-bit number


class Stream:
    """An endless table of uniform draws in [0, 1) with `width` columns; any rows can be computed directly."""

    def __init__(self, *, seed: int, purpose: int, width: int) -> None:
        self._key = np.random.SeedSequence((seed, purpose)).generate_state(2, np.uint64)
        self._counts_per_row = -(-width // _WORDS_PER_COUNT)
        self._width = width

    def rows(self, start: int, count: int) -> Floats:
        """Return rows start .. start+count-1, [count, width]."""
        padded = self._counts_per_row * _WORDS_PER_COUNT
        bits = np.random.Philox(key=self._key, counter=start * self._counts_per_row)
        words: npt.NDArray[np.uint64] = bits.random_raw(count * padded).reshape(count, padded)[:, : self._width]
        # A draw is made of a word's 53 high bits, as numpy's `random` does; but numpy guarantees only the raw words to
        # stay the same in later versions.
        words >>= np.uint64(11)
        draws: Floats = words.astype(np.float64)
        draws *= 2.0**-53
        return draws


class Uniform:
    """Sampler of independent rates, each uniform over its range in every collective."""

    limit = None

    def __init__(self, low_bps: Floats, high_bps: Floats, *, seed: int) -> None:
        self._low, self._span = low_bps, high_bps - low_bps
        self._stream = Stream(seed=seed, purpose=0, width=low_bps.size)

    @property
    def mean_bps(self) -> Floats:
        """Every link's expected rate, [links] bit/s."""
        return self._low + self._span / 2

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return every link's rate in collectives start .. start+count-1: [count, links], whole bit/s."""
        rates = self._stream.rows(start, count)
        rates *= self._span
        rates += self._low
        return np.rint(rates, out=rates)


class Gaussian:
    """Sampler of independent normal rates clipped to their ranges.

    `mean` and `deviation` are fractions of the highest rate of each range.
    """

    limit = None

    def __init__(self, low_bps: Floats, high_bps: Floats, *, mean: float, deviation: float, seed: int) -> None:
        self._low, self._high = low_bps, high_bps
        self._mean, self._deviation = mean, deviation
        self._stream = Stream(seed=seed, purpose=1, width=2 * low_bps.size)

    @property
    def mean_bps(self) -> Floats:
        """Every link's expected rate, [links] bit/s: the mean of a normal variable clipped at both ends."""
        mean, deviation = self._mean * self._high, np.maximum(self._deviation * self._high, 1e-9)
        low, high = (self._low - mean) / deviation, (self._high - mean) / deviation
        below, above = _normal_cdf(low), _normal_cdf(high)
        between = mean * (above - below) + deviation * (_normal_pdf(low) - _normal_pdf(high))
        expected: Floats = self._low * below + between + self._high * (1 - above)
        return expected

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return every link's rate in collectives start .. start+count-1: [count, links], whole bit/s."""
        rates: Floats = (self._mean + self._deviation * _box_muller(self._stream.rows(start, count))) * self._high
        return np.rint(np.clip(rates, self._low, self._high, out=rates), out=rates)


def _normal_cdf(value: Floats) -> Floats:
    """Return the cumulative distribution function of the standard normal distribution at these values."""
    return np.array([(1 + math.erf(x / math.sqrt(2))) / 2 for x in value])


def _normal_pdf(value: Floats) -> Floats:
    """Return the density of the standard normal distribution at these values."""
    density: Floats = np.exp(-(value**2) / 2) / math.sqrt(2 * math.pi)
    return density


class Markov:
    """Sampler of uniform rates, each kept for a geometric number of collectives with mean `mean_stay`, then renewed.

    Before every collective each link flips a coin, drawn from (seed, collective, link): with probability 1/mean_stay
    its rate is drawn again. A link's rate is the one drawn at its last renewal, so finding that collective by looking
    back makes the chain a pure function too. Collective 0 renews every rate.
    """

    limit = None

    def __init__(self, low_bps: Floats, high_bps: Floats, *, mean_stay: float, seed: int) -> None:
        self._renewal = 1 / mean_stay
        self._coins = Stream(seed=seed, purpose=2, width=low_bps.size)
        self._fresh = Uniform(low_bps, high_bps, seed=seed)

    @property
    def mean_bps(self) -> Floats:
        """Every link's expected rate, [links] bit/s."""
        return self._fresh.mean_bps

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return every link's rate in collectives start .. start+count-1: [count, links], whole bit/s."""
        rates = self._fresh.rates_bps(start, count)
        renewed = self._renewed(start, count)
        if count == 0:
            return rates
        rates[0] = np.where(renewed[0], rates[0], self._held(start))
        last = np.where(renewed, np.arange(count)[:, None], 0)
        return np.take_along_axis(rates, np.maximum.accumulate(last, axis=0), axis=0)

    def _renewed(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        renewed = self._coins.rows(start, count) < self._renewal
        if start == 0:
            renewed[:1] = True
        return renewed

    def _held(self, end: int) -> Floats:
        """Return every link's rate just before collective `end`, [links]: the rate drawn at its last renewal."""
        held = np.zeros(self._coins.rows(0, 1).shape[1])
        missing = np.full(held.shape, True)
        while end > 0 and missing.any():
            start = max(0, end - _LOOK_BACK)
            renewed = self._renewed(start, end - start)
            fresh = self._fresh.rates_bps(start, end - start)
            last = end - start - 1 - np.argmax(renewed[::-1], axis=0)
            is_found = missing & renewed.any(axis=0)
            held[is_found] = fresh[last[is_found], is_found.nonzero()[0]]
            missing &= ~is_found
            end = start
        return held


class Autoregressive:
    """Sampler of rates that follow an autoregressive process of order 1 and are uniform over their ranges.

    The standard normal process x(k) = a x(k-1) + sqrt(1 - a^2) e(k), stationary from collective 0 on, is made uniform
    by its distribution function (Cario and Nelson, "Autoregressive to anything", Operations Research Letters 19, 1996).
    So rates j collectives apart have the correlation 6/pi arcsin(a^j / 2), nearly a^j.

    Stepping through the process from collective 0 would make every draw depend on all earlier ones, so it is drawn by
    bisection. Collectives so far apart that they are independent are drawn first. Then, given x(s) and x(t), the value
    half-way between them is normal with mean a^d / (1 + a^2d) (x(s) + x(t)) and variance (1 - a^2d) / (1 + a^2d), where
    d = (t - s) / 2.
    """

    limit = None

    def __init__(self, low_bps: Floats, high_bps: Floats, *, coefficient: float, seed: int) -> None:
        self._low, self._span = low_bps, high_bps - low_bps
        self._coefficient = coefficient
        self._stream = Stream(seed=seed, purpose=3, width=2 * low_bps.size)

    @property
    def mean_bps(self) -> Floats:
        """Every link's expected rate, [links] bit/s."""
        return self._low + self._span / 2

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return every link's rate in collectives start .. start+count-1: [count, links], whole bit/s."""
        from scipy.special import ndtr  # slow to import (a third of a second), and the other samplers do not need it

        if not count:
            return np.empty((0, self._low.size))
        share: Floats = ndtr(self._process(start, start + count - 1))
        return np.rint(self._low + self._span * share)

    def _process(self, first: int, last: int) -> Floats:
        """Return the normal process x in collectives first .. last, [count, links]."""
        inside = _box_muller(self._stream.rows(first, last - first + 1))
        step = 1
        while self._coefficient**step > _INDEPENDENT:
            step *= 2
        # Begin with the multiples of `step`, from the last one <= `first` to the first one >= `last`.
        begin, end = first // step * step, -(-last // step) * step
        values = self._drawn(range(begin, end + 1, step), first, inside)
        while step > 1:
            step //= 2
            power = self._coefficient**step
            total = 1 + power * power
            finer = np.empty((2 * len(values) - 1, values.shape[1]))
            finer[::2] = values
            finer[1::2] = self._drawn(range(begin + step, end, 2 * step), first, inside)
            finer[1::2] *= np.sqrt((1 - power * power) / total)
            finer[1::2] += power / total * (values[:-1] + values[1:])
            skipped = (first - begin) // step
            begin, values = begin + skipped * step, finer[skipped:]
            values = values[: -(-(last - begin) // step) + 1]
            end = begin + (len(values) - 1) * step
        return values

    def _drawn(self, numbers: range, first: int, inside: Floats) -> Floats:
        """Return the standard normal draws of these collectives, [len(numbers), links].

        `inside` holds the draws from collective `first` on; the others are computed here.
        """
        drawn, rows = np.empty((len(numbers), self._low.size)), np.array(numbers, dtype=np.int64) - first
        within = (rows >= 0) & (rows < len(inside))
        drawn[within] = inside[rows[within]]
        for row in np.flatnonzero(~within):
            drawn[row] = _box_muller(self._stream.rows(numbers[row], 1))[0]
        return drawn


def _box_muller(draws: Floats) -> Floats:
    """Turn uniform draws [K, 2 n] into standard normal draws [K, n] (Box and Muller, 1958)."""
    radius, angle = np.split(draws, 2, axis=1)
    normal: Floats = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    return normal
