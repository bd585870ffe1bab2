"""Knowledge of link rates: which rates a policy believes when it chooses placement and paths, instead of the true ones.

Each kind of knowledge maps the sampler of the true rates to a sampler of believed rates, so both engines believe the
same rates, whatever the batches. Conditions before the first collective are assumed to equal those of the first.
Faults are not modelled here: they are known as soon as they are in force.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topologies.conditions.sampler import Sampler
from topologies.conditions.timed import Timed
from topologies.units import UnitError, format_delay, parse_delay_s

Floats = npt.NDArray[np.float64]

MAX_STALE = 1_000_000
MIN_WEIGHT = 0.01
MAX_ORDER = 16
ENDS, PORTS, PROBED, LATE = "measured ends", "measured ports", "probed", "stale by time"


@dataclass(frozen=True)
class Parameter:
    """The number that belongs to a kind of knowledge: its description, its range, and how its text is read."""

    words: str
    least: float
    most: float
    read: Callable[[str], float] = int


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
    inferred from the counters of switch ports. `probed`: rates that probes over the candidate paths measure just before
    the choice. These three have to be measured (`beliefs`).
    """

    kind: str = "oracle"
    number: float = 0

    def __str__(self) -> str:
        if self.kind == LATE:
            return f"stale {format_delay(self.number)}"
        return f"{self.kind} {self.number:g}" if KNOWLEDGE[self.kind].parameter else self.kind

    @property
    def is_measured(self) -> bool:
        """Whether the believed rates are observations of used links, and so depend on earlier choices."""
        return KNOWLEDGE[self.kind].of is None

    @property
    def age(self) -> float | None:
        """How old the believed rates are, in collectives or in seconds; None for rates that are not old ones."""
        return {"oracle": 0.0, "stale": float(self.number), LATE: float(self.number)}.get(self.kind)

    def of(self, true: Sampler) -> Sampler:
        """Return the sampler of believed rates for these true rates, for a kind that need not be measured."""
        make = KNOWLEDGE[self.kind].of
        assert make is not None
        return make(true, self.number)


ORACLE = Knowledge()
"""The true rates are known."""


class Derived:
    """Base of samplers whose rates derive from those of `source`, and whose limit and mean are those of `source`."""

    def __init__(self, source: Sampler) -> None:
        self.source = source

    @property
    def limit(self) -> int | None:
        """The number of collectives with conditions; None if unlimited."""
        return self.source.limit

    @property
    def mean_bps(self) -> Floats:
        """Every link's true mean rate in the long run, [links] bit/s."""
        return self.source.mean_bps


class _Stale(Derived):
    """A sampler of the rates `age` collectives earlier."""

    def __init__(self, true: Sampler, age: float) -> None:
        super().__init__(true)
        self._age = int(age)

    def rates_bps(self, start: int, count: int) -> Floats:
        first = max(0, start - self._age)
        true_bps = self.source.rates_bps(first, max(1, start + count - self._age - first))
        believed_bps: Floats = true_bps[np.maximum(np.arange(start, start + count) - self._age, 0) - first]
        return believed_bps


class _StaleByTime(Derived):
    """A sampler of the rates `age_s` seconds before each collective begins, where conditions change by time."""

    def __init__(self, true: Sampler, age_s: float) -> None:
        super().__init__(true)
        self._age_ns = round(age_s * 1e9)

    def rates_bps(self, start: int, count: int) -> Floats:
        assert isinstance(self.source, Timed)
        return self.source.earlier_bps(start, count, self._age_ns)


class _Mean(Derived):
    """A sampler of the long-run mean rates."""

    def __init__(self, true: Sampler, _: float) -> None:
        super().__init__(true)

    def rates_bps(self, start: int, count: int) -> Floats:
        return np.tile(self.mean_bps, (count, 1))


class _MovingAverage(Derived):
    """A sampler of the exponentially weighted moving average of the preceding rates, with `weight` for the newest. The
    average is computed in blocks, each from rates one block earlier on: a block is so long that the initial value has
    no effect any more. So the believed rates are a function of the collective alone, bit for bit, in any batch."""

    def __init__(self, true: Sampler, weight: float) -> None:
        super().__init__(true)
        self._weight = weight
        self._size = 1 if weight == 1 else math.ceil(math.log(_NEGLIGIBLE) / math.log1p(-weight))
        self._block = lru_cache(maxsize=2)(self._averaged)

    def rates_bps(self, start: int, count: int) -> Floats:
        if not count:
            return self._block(start // self._size)[:0]
        numbers = range(start // self._size, (start + count - 1) // self._size + 1)
        averages = np.concatenate([self._block(number) for number in numbers])
        return averages[start - numbers[0] * self._size :][:count]

    def _averaged(self, number: int) -> Floats:
        """Compute one block of averages, [size, links]."""
        begin, first = number * self._size, max(0, (number - 1) * self._size)
        last = begin + self._size if self.limit is None else min(begin + self._size, self.limit)
        true_bps = self.source.rates_bps(first, last - first)
        average, averages = true_bps[0], np.empty_like(true_bps)
        for row, rates in enumerate(true_bps):
            averages[row] = average
            average = self._weight * rates + (1 - self._weight) * average
        return averages[begin - first :]


class _Autoregression(Derived):
    """One-step predictions by r[k] = m + sum of c[p] (r[k-p] - m), m the mean of each link and c common to all links.

    Means and coefficients are fitted to the last 512 collectives at most, before collectives 16, 32, ... 512 and every
    512 from there on. All links have equal weight, as each is divided by its standard deviation. A prediction is
    clipped to the range of rates of its link in the fit. Before the first fit the newest rates are believed.
    """

    def __init__(self, true: Sampler, order: float) -> None:
        super().__init__(true)
        self._order = int(order)
        self._fit = lru_cache(maxsize=8)(self._fitted)

    def rates_bps(self, start: int, count: int) -> Floats:
        first = max(0, start - self._order)
        seen = self.source.rates_bps(first, max(1, start + count - 1 - first))
        predictions = np.empty((count, seen.shape[1]))
        number = start
        while number < start + count:
            fitted_at, until = _fit_of(number)
            rows = np.arange(number, min(until, start + count))
            if fitted_at:
                mean, coefficients, low, high = self._fit(fitted_at)
                predicted = np.tile(mean, (rows.size, 1))
                for lag, coefficient in enumerate(coefficients, 1):
                    predicted += coefficient * (seen[np.maximum(rows - lag, 0) - first] - mean)
                predictions[rows - start] = np.clip(predicted, low, high)
            else:
                predictions[rows - start] = seen[np.maximum(rows - 1, 0) - first]
            number = until
        return predictions

    def _fitted(self, end: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Fit to the collectives before `end`; returns means, coefficients, and each link's least and greatest rate."""
        begin = max(0, end - _WINDOW)
        seen = self.source.rates_bps(begin, end - begin)
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
        fitted_at = number // _WINDOW * _WINDOW
        return fitted_at, fitted_at + _WINDOW
    fitted_at = 1 << (number.bit_length() - 1)
    return fitted_at, 2 * fitted_at


class Kind(NamedTuple):
    """A kind of knowledge: its `form` in messages, its parameter if it has one, and the function from the sampler of
    the true rates and the parameter to that of the believed ones; None if it has to be measured (`beliefs`)."""

    form: str
    of: Callable[[Sampler, float], Sampler] | None
    parameter: Parameter | None = None


KNOWLEDGE = {
    "oracle": Kind("oracle", lambda true, _: true),
    "stale": Kind(
        "stale D (collectives old)",
        _Stale,
        Parameter(
            f"the age in collectives, a whole number from 0 to {MAX_STALE:,}, or a time such as 100 ms", 0, MAX_STALE
        ),
    ),
    LATE: Kind("stale TIME (with conditions.every)", _StaleByTime),
    "mean": Kind("mean", _Mean),
    "ewma": Kind(
        "ewma A (weight of the newest)",
        _MovingAverage,
        Parameter(f"the weight of the newest rate, a number from {MIN_WEIGHT:g} to 1", MIN_WEIGHT, 1, float),
    ),
    "ar": Kind(
        "ar P (order)", _Autoregression, Parameter(f"the order, a whole number from 1 to {MAX_ORDER}", 1, MAX_ORDER)
    ),
    ENDS: Kind(ENDS, None),
    PORTS: Kind(PORTS, None),
    PROBED: Kind(PROBED, None),
}
"""The kinds of knowledge by name."""

WORDS = ", ".join(kind.form for kind in KNOWLEDGE.values())
"""The allowed values of `knowledge`, for messages and documentation."""


def parse(text: str) -> Knowledge:
    """Parse a knowledge such as "stale 1"; raises ValueError whose message continues a sentence about the value."""
    if (words := text.strip()) in KNOWLEDGE and words != LATE and KNOWLEDGE[words].parameter is None:
        return Knowledge(words)
    kind, _, number = words.partition(" ")
    if kind == "stale" and number.strip()[-1:] == "s":
        try:
            return Knowledge(LATE, parse_delay_s(number))
        except UnitError as error:
            raise ValueError(
                f'has no such time: {error}; a number of collectives has no unit, as in "stale 5"'
            ) from None
    parameter = KNOWLEDGE[kind].parameter if kind in KNOWLEDGE else None
    if parameter is None or not number:
        raise ValueError(f"is not known; allowed: {WORDS}")
    try:
        value = parameter.read(number)
    except ValueError:
        raise ValueError(f"has no such number; allowed: {parameter.words}") from None
    if not parameter.least <= value <= parameter.most:
        raise ValueError(f"is out of range; allowed: {parameter.words}")
    return Knowledge(kind, value)
