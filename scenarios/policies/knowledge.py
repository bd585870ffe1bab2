"""Knowledge of link rates: which rates a policy believes when it chooses placement and paths, instead of the true ones.

Each kind of knowledge maps the sampler of the true rates to a sampler of believed rates, so both engines believe the
same rates, whatever the batches. Conditions before the first collective are assumed to equal those of the first.
Faults are not modelled here: they are known as soon as they are in force.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from topologies.conditions.sampler import Sampler
from topologies.conditions.timed import Timed
from topologies.units import UnitError, format_delay, parse_delay_s

Floats = npt.NDArray[np.float64]

MAX_STALE = 1_000_000
LEAST_WEIGHT = 0.01
MAX_ORDER = 16
ENDS, PORTS, PROBED, LATE = "measured ends", "measured ports", "probed", "stale by time"

KNOWLEDGE = {
    "oracle": "",
    "stale": f"the age in collectives, a whole number from 0 to {MAX_STALE:,}, or a time such as 100 ms",
    "mean": "",
    "ewma": f"the weight of the newest rate, a number from {LEAST_WEIGHT:g} to 1",
    "ar": f"the order, a whole number from 1 to {MAX_ORDER}",
    ENDS: "",
    PORTS: "",
    PROBED: "",
    LATE: "",
}
"""The kinds of knowledge, each with a description of its parameter; "" for kinds without one."""

_NEGLIGIBLE = 2.0**-53  # weight below which an old rate has no effect on a moving average
_FIRST_FIT, _WINDOW = 16, 512  # collectives
_RIDGE = 1e-9  # keeps the least-squares problem solvable if no link ever changes


@dataclass(frozen=True)
class Knowledge:
    """One kind of knowledge, with its parameter `number` if it has one.

    `oracle`: the true rates. `stale D`: the rates D collectives earlier; `stale by time`: the rates `number` seconds
    earlier, where conditions change by time. `mean`: every rate's long-run expectation.
    `ewma A` and `ar P` predict the rates from those of the preceding collectives: an exponentially weighted moving
    average with weight A for the newest, and an autoregression of order P fitted by least squares (`_Autoregression`).
    `measured ends`: rates inferred from the times of the messages that last used each link. `measured ports`: rates
    inferred from the counters of switch ports. Both are `Measured`. `probed`: rates that probes over the candidate
    paths find just before the choice (`Probed`).
    """

    kind: str = "oracle"
    number: float = 0

    def __str__(self) -> str:
        if self.kind == LATE:
            return f"stale {format_delay(self.number)}"
        return f"{self.kind} {self.number:g}" if KNOWLEDGE[self.kind] else self.kind

    @property
    def is_measured(self) -> bool:
        """Whether the believed rates are observations of used links, and so depend on earlier choices."""
        return self.kind in (ENDS, PORTS, PROBED)

    def of(self, true: Sampler, seen: "Seen | None" = None) -> Sampler:
        """Return the sampler of believed rates for these true rates; `seen` observes the links for measured kinds."""
        if self.is_measured:
            assert seen is not None
            return Probed(true, seen) if self.kind == PROBED else Measured(true, seen, steps=self.kind == PORTS)
        return true if self.kind == "oracle" else _Believed(true, _MAKERS[self.kind](true, self.number))


ORACLE = Knowledge()
"""The true rates are known."""


def parse(text: str) -> Knowledge:
    """Parse a knowledge such as "stale 1"; raises ValueError whose message continues a sentence about the value."""
    if text.strip() in (ENDS, PORTS):
        return Knowledge(text.strip())
    kind, _, number = text.strip().partition(" ")
    if kind == "stale" and number.strip()[-1:] == "s":
        try:
            return Knowledge(LATE, parse_delay_s(number))
        except UnitError as error:
            raise ValueError(f"has no such time: {error}") from None
    if kind not in KNOWLEDGE or bool(number.strip()) != bool(KNOWLEDGE[kind]):
        raise ValueError(f"is not known; allowed: {WORDS}")
    if not number:
        return Knowledge(kind)
    try:
        value = float(number) if kind == "ewma" else int(number)
    except ValueError:
        raise ValueError(f"has no such number; allowed: {KNOWLEDGE[kind]}") from None
    least, most = {"stale": (0, MAX_STALE), "ewma": (LEAST_WEIGHT, 1), "ar": (1, MAX_ORDER)}[kind]
    if not least <= value <= most:
        raise ValueError(f"is out of range; allowed: {KNOWLEDGE[kind]}")
    return Knowledge(kind, value)


WORDS = (
    "oracle, stale D (collectives old), stale TIME (with conditions.every), mean, ewma A (weight of the newest), "
    "ar P (order), measured ends, measured ports, probed"
)
"""The allowed values of `knowledge`, for messages and documentation."""

_Rates = Callable[[int, int], Floats]

Seen = Callable[[int, Floats], Floats]
"""Maps a collective's index and the rates believed before it, [links] bit/s, to the rates believed after observing it
(for probes: after the probes that precede it)."""


@dataclass(frozen=True, eq=False)
class _Believed:
    """A sampler of believed rates, with the limit and the mean of the true sampler."""

    true: Sampler
    rates_bps: _Rates

    @property
    def limit(self) -> int | None:
        """How many collectives the true sampler has conditions for."""
        return self.true.limit

    @property
    def mean_bps(self) -> Floats:
        """Every link's true rate in the long run, [links] bit/s."""
        return self.true.mean_bps


class Measured:
    """A sampler of rates believed from observations of the links; initially every link has its long-run mean rate.

    Callers must ask for one collective at a time, in ascending order, and for every collective before which something
    is chosen. Between two choices the same links are used, so the latest collective has the newest observation of every
    link, and only that one is read. With `steps` every collective is read, because each belief builds on the previous.
    """

    def __init__(self, true: Sampler, seen: Seen, *, steps: bool) -> None:
        self._true, self._seen, self._steps = true, seen, steps
        self._number, self._rates_bps = 0, np.array(true.mean_bps)

    @property
    def limit(self) -> int | None:
        """How many collectives the true sampler has conditions for."""
        return self._true.limit

    @property
    def mean_bps(self) -> Floats:
        """Every link's true rate in the long run, [links] bit/s."""
        return self._true.mean_bps

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return the rates believed before collective `start`, [1, links] bit/s."""
        assert count == 1 and start >= self._number
        for number in range(self._number if self._steps else max(self._number, start - 1), start):
            self._rates_bps = self._seen(number, self._rates_bps)
        self._number = start
        return self._rates_bps[None]


class Probed(Measured):
    """A sampler of rates believed from probes just before each collective; links without a probe have their long-run
    mean rate."""

    def __init__(self, true: Sampler, seen: Seen) -> None:
        super().__init__(true, seen, steps=False)

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return the rates believed before collective `start`, [1, links] bit/s."""
        assert count == 1
        return self._seen(start, self._true.mean_bps)[None]


def _stale(true: Sampler, age: float) -> _Rates:
    def rates_bps(start: int, count: int) -> Floats:
        first = max(0, start - int(age))
        found = true.rates_bps(first, max(1, start + count - int(age) - first))
        believed: Floats = found[np.maximum(np.arange(start, start + count) - int(age), 0) - first]
        return believed

    return rates_bps


def _mean(true: Sampler, _: float) -> _Rates:
    return lambda _, count: np.tile(true.mean_bps, (count, 1))


def _ewma(true: Sampler, weight: float) -> _Rates:
    # `forgets` is the number of collectives after which the initial value has no effect any more. The average is
    # restarted at every multiple of `forgets`, from rates `forgets` collectives earlier: so the believed rates are a
    # function of the collective alone, bit for bit, whatever batch it is in.
    forgets = 1 if weight == 1 else math.ceil(math.log(_NEGLIGIBLE) / math.log1p(-weight))

    @lru_cache(maxsize=2)
    def block(number: int) -> Floats:
        """Return the rates believed in `forgets` collectives from number * forgets on, [forgets, links]."""
        begin, first = number * forgets, max(0, (number - 1) * forgets)
        last = begin + forgets if true.limit is None else min(begin + forgets, true.limit)
        seen = true.rates_bps(first, last - first)
        believed, found = seen[0], np.empty_like(seen)
        for row, rates in enumerate(seen):
            found[row] = believed
            believed = weight * rates + (1 - weight) * believed
        return found[begin - first :]

    return _by_blocks(block, forgets)


def _by_blocks(block: Callable[[int], Floats], size: int) -> _Rates:
    def rates_bps(start: int, count: int) -> Floats:
        if not count:
            return block(start // size)[:0]
        numbers = range(start // size, (start + count - 1) // size + 1)
        found = np.concatenate([block(number) for number in numbers])
        return found[start - numbers[0] * size :][:count]

    return rates_bps


class _Autoregression:
    """One-step predictions by r[k] = m + sum of c[p] (r[k-p] - m), m the mean of each link and c common to all links.

    Means and coefficients are fitted to the last 512 collectives at most, before collectives 16, 32, ... 512 and every
    512 from there on. All links have equal weight, as each is divided by its standard deviation. A prediction is
    clipped to the range of rates of its link in the fit. Before the first fit the newest rates are believed.
    """

    def __init__(self, true: Sampler, order: float) -> None:
        self._true, self._order = true, int(order)
        self._fit = lru_cache(maxsize=8)(self._fitted)

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return the predicted rates for collectives start .. start+count-1, [count, links] bit/s."""
        order = self._order
        first = max(0, start - order)
        seen = self._true.rates_bps(first, max(1, start + count - 1 - first))
        found = np.empty((count, seen.shape[1]))
        number = start
        while number < start + count:
            fitted_at, until = _fit_of(number)
            rows = np.arange(number, min(until, start + count))
            if fitted_at:
                mean, coefficients, low, high = self._fit(fitted_at)
                predicted = np.tile(mean, (rows.size, 1))
                for lag, coefficient in enumerate(coefficients, 1):
                    predicted += coefficient * (seen[np.maximum(rows - lag, 0) - first] - mean)
                found[rows - start] = np.clip(predicted, low, high)
            else:
                found[rows - start] = seen[np.maximum(rows - 1, 0) - first]
            number = until
        return found

    def _fitted(self, end: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Fit to the collectives before `end`; returns means, coefficients, and each link's least and greatest rate."""
        begin = max(0, end - _WINDOW)
        seen = self._true.rates_bps(begin, end - begin)
        mean, deviation = seen.mean(axis=0), seen.std(axis=0)
        scaled = (seen - mean) / np.where(deviation > 0, deviation, 1)
        order = min(self._order, len(seen) // 4)
        ahead = scaled[order:].ravel()
        lags = np.stack([scaled[order - lag : len(scaled) - lag].ravel() for lag in range(1, order + 1)])
        # numpy's own sums instead of a threaded BLAS, whose order of additions depends on the machine.
        square = np.array([[float((a * b).sum()) for b in lags] for a in lags]) + _RIDGE * np.eye(order)
        coefficients = np.linalg.solve(square, np.array([float((a * ahead).sum()) for a in lags]))
        return mean, coefficients, seen.min(axis=0), seen.max(axis=0)


def _fit_of(number: int) -> tuple[int, int]:
    """Return the collective at which the fit used for this one is made (0: no fit), and the first with another fit."""
    if number < _FIRST_FIT:
        return 0, _FIRST_FIT
    if number >= _WINDOW:
        at = number // _WINDOW * _WINDOW
        return at, at + _WINDOW
    at = 1 << (number.bit_length() - 1)
    return at, 2 * at


def _late(true: Sampler, age_s: float) -> _Rates:
    assert isinstance(true, Timed)
    return lambda start, count: true.earlier_bps(start, count, round(age_s * 1e9))


_MAKERS: dict[str, Callable[[Sampler, float], _Rates]] = {
    "stale": _stale,
    LATE: _late,
    "mean": _mean,
    "ewma": _ewma,
    "ar": lambda true, order: _Autoregression(true, order).rates_bps,
}
