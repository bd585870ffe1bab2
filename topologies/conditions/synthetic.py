"""Samplers that draw conditions from a seed: uniform, gaussian, markov and ar1.

All draw from Philox, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011): the counter is set from the collective and the link, so nothing drawn depends on what was drawn before.
"""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_WORDS_PER_COUNT = 4  # one step of Philox's counter yields four 64-bit words
_LOOK_BACK = 64  # collectives a Markov chain looks back at a time
_INDEPENDENT = 2.0**-60  # a correlation that no 53-bit number shows


class Stream:
    """An endless table of uniform draws in [0, 1), `width` to a row, any rows of which can be had at once."""

    def __init__(self, *, seed: int, purpose: int, width: int) -> None:
        self._key = np.random.SeedSequence((seed, purpose)).generate_state(2, np.uint64)
        self._counts_per_row = -(-width // _WORDS_PER_COUNT)
        self._width = width

    def rows(self, start: int, count: int) -> Floats:
        """Rows start .. start+count-1, [count, width]."""
        padded = self._counts_per_row * _WORDS_PER_COUNT
        bits = np.random.Philox(key=self._key, counter=start * self._counts_per_row)
        words: npt.NDArray[np.uint64] = bits.random_raw(count * padded).reshape(count, padded)[:, : self._width]
        # The 53 high bits make the draw. numpy's own `random` does the same, but only raw words are promised to stay.
        words >>= np.uint64(11)
        draws: Floats = words.astype(np.float64)
        draws *= 2.0**-53
        return draws


class Uniform:
    """Every rate uniform over its range, drawn afresh for every collective."""

    limit = None

    def __init__(self, low_bps: Floats, high_bps: Floats, *, seed: int) -> None:
        self._low, self._span = low_bps, high_bps - low_bps
        self._stream = Stream(seed=seed, purpose=0, width=low_bps.size)

    @property
    def mean_bps(self) -> Floats:
        """Every link's expected rate, [links] bit/s."""
        return self._low + self._span / 2

    def rates_bps(self, start: int, count: int) -> Floats:
        """Every link's rate for collectives start .. start+count-1: [count, links], whole bit/s."""
        rates = self._stream.rows(start, count)
        rates *= self._span
        rates += self._low
        return np.rint(rates, out=rates)


class Gaussian:
    """Every rate normal, its mean and deviation shares of its highest rate, clipped to its range; afresh each time."""

    limit = None

    def __init__(self, low_bps: Floats, high_bps: Floats, *, mean: float, deviation: float, seed: int) -> None:
        self._low, self._high = low_bps, high_bps
        self._mean, self._deviation = mean, deviation
        self._stream = Stream(seed=seed, purpose=1, width=2 * low_bps.size)

    @property
    def mean_bps(self) -> Floats:
        """Every link's expected rate, [links] bit/s: that of a normal variable clipped at both ends."""
        mean, deviation = self._mean * self._high, np.maximum(self._deviation * self._high, 1e-9)
        low, high = (self._low - mean) / deviation, (self._high - mean) / deviation
        below, above = _below(low), _below(high)
        between = mean * (above - below) + deviation * (_density(low) - _density(high))
        found: Floats = self._low * below + between + self._high * (1 - above)
        return found

    def rates_bps(self, start: int, count: int) -> Floats:
        """Every link's rate for collectives start .. start+count-1: [count, links], whole bit/s."""
        rates: Floats = (self._mean + self._deviation * _normal(self._stream.rows(start, count))) * self._high
        return np.rint(np.clip(rates, self._low, self._high, out=rates), out=rates)


def _below(value: Floats) -> Floats:
    """The share of a standard normal variable's values below these, each."""
    return np.array([(1 + math.erf(one / math.sqrt(2))) / 2 for one in value])


def _density(value: Floats) -> Floats:
    """Its density at these values."""
    found: Floats = np.exp(-(value**2) / 2) / math.sqrt(2 * math.pi)
    return found


class Markov:
    """Every rate uniform over its range, held for a geometric time of mean `mean_stay` collectives, then drawn anew.

    Before every collective each link flips a coin of its own, drawn from (seed, collective, link): with probability
    1/mean_stay its rate is renewed. Its rate is what was drawn when it was last renewed, so looking back for that
    collective makes the chain a pure function too. Collective 0 renews all.
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
        """Every link's rate for collectives start .. start+count-1: [count, links], whole bit/s."""
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
        """Every link's rate just before collective `end`, [links]: that of its last renewal."""
        held = np.zeros(self._coins.rows(0, 1).shape[1])
        missing = np.full(held.shape, True)
        while end > 0 and missing.any():
            start = max(0, end - _LOOK_BACK)
            renewed = self._renewed(start, end - start)
            fresh = self._fresh.rates_bps(start, end - start)
            last = end - start - 1 - np.argmax(renewed[::-1], axis=0)
            found = missing & renewed.any(axis=0)
            held[found] = fresh[last[found], found.nonzero()[0]]
            missing &= ~found
            end = start
        return held


class Autoregressive:
    """Every rate uniform over its range, whatever the coefficient, and following an autoregressive process of order 1.

    A standard normal x(k) = a x(k-1) + sqrt(1 - a^2) e(k), stationary from collective 0 on, is made uniform by its
    distribution function, as by Cario and Nelson ("Autoregressive to anything", Operations Research Letters 19, 1996).
    So rates j collectives apart have the correlation 6/pi arcsin(a^j / 2), nearly a^j.

    The process has no beginning that could be stepped from at each collective, so it is drawn by halves: given x(s) and
    x(t), the one half-way between them is normal, its mean a^d / (1 + a^2d) (x(s) + x(t)) and its variance
    (1 - a^2d) / (1 + a^2d), d being half of t - s. Collectives so far apart that they are independent come first.
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
        """Every link's rate for collectives start .. start+count-1: [count, links], whole bit/s."""
        from scipy.special import ndtr  # a third of a second, which the other samplers need not take

        if not count:
            return np.empty((0, self._low.size))
        share: Floats = ndtr(self._process(start, start + count - 1))
        return np.rint(self._low + self._span * share)

    def _process(self, first: int, last: int) -> Floats:
        """x of the collectives first .. last, [count, links]."""
        inside = _normal(self._stream.rows(first, last - first + 1))
        apart = 1
        while self._coefficient**apart > _INDEPENDENT:
            apart *= 2
        # Those at multiples of `apart` from the last one at or before `first` to the next one at or behind `last`.
        begin, end = first // apart * apart, -(-last // apart) * apart
        found = self._drawn(range(begin, end + 1, apart), first, inside)
        while apart > 1:
            apart //= 2
            power = self._coefficient**apart
            total = 1 + power * power
            finer = np.empty((2 * len(found) - 1, found.shape[1]))
            finer[::2] = found
            finer[1::2] = self._drawn(range(begin + apart, end, 2 * apart), first, inside)
            finer[1::2] *= np.sqrt((1 - power * power) / total)
            finer[1::2] += power / total * (found[:-1] + found[1:])
            skipped = (first - begin) // apart
            begin, found = begin + skipped * apart, finer[skipped:]
            found = found[: -(-(last - begin) // apart) + 1]
            end = begin + (len(found) - 1) * apart
        return found

    def _drawn(self, numbers: range, first: int, inside: Floats) -> Floats:
        """Independent standard normal numbers of these collectives; `inside` are those from collective `first` on."""
        drawn, rows = np.empty((len(numbers), self._low.size)), np.array(numbers, dtype=np.int64) - first
        within = (rows >= 0) & (rows < len(inside))
        drawn[within] = inside[rows[within]]
        for row in np.flatnonzero(~within):
            drawn[row] = _normal(self._stream.rows(numbers[row], 1))[0]
        return drawn


def _normal(draws: Floats) -> Floats:
    """Standard normal numbers [K, n] of uniform ones [K, 2 n] (Box and Muller, 1958)."""
    radius, angle = np.split(draws, 2, axis=1)
    normal: Floats = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    return normal
