"""The rate scale: how much smaller than the scenario's the emulated rates and chunks are in real time. Pure.

No machine emulates 100 Gbit/s over several switches in real time. Rates and chunks divided by the same number take the
same times, L/b, and delays stay as they are. Scenarios, decisions and predictions ignore the scale; it is applied only
to the rates that tc sets and to the chunks that agents send.
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MAX_DIVISOR = 1_000_000

_FRACTION = re.compile(r"\s*1\s*(?:/\s*([0-9]{1,9})\s*)?")


class ScaleError(ValueError):
    """Text that is not a rate scale, or a chunk of less than a byte at it; one sentence with the offending value."""


@dataclass(frozen=True)
class RateScale:
    """Every rate and every chunk divided by `divisor`."""

    divisor: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.divisor <= MAX_DIVISOR:
            raise ScaleError(f"a rate scale of 1/{self.divisor}; allowed: 1 to 1/{MAX_DIVISOR}")

    @classmethod
    def parse(cls, text: str) -> "RateScale":
        """Read ``"1/1000"`` (or ``"1"``); raises ScaleError."""
        match = _FRACTION.fullmatch(text)
        if match is None:
            raise ScaleError(f'"{text[:40]}" is not a rate scale; allowed: 1/N, such as "1/1000", or 1')
        return cls(int(match[1] or 1))

    def __str__(self) -> str:
        return "1" if self.divisor == 1 else f"1/{self.divisor}"

    def rate_bps(self, rate_bps: int) -> int:
        """The emulated rate, in whole bit/s; never 0, which no HTB class can have."""
        return max(1, round(rate_bps / self.divisor))

    def rates_bps(self, rates_bps: Floats) -> Floats:
        """The emulated rates, in whole bit/s, in the shape given."""
        carried: Floats = np.maximum(1.0, np.rint(rates_bps / self.divisor))
        return carried

    def chunk_bytes(self, chunk_bytes: int) -> int:
        """The emulated size of a chunk; raises ScaleError where that is less than a byte.

        Where the chunk does not divide, times are those of a chunk of this size times `divisor`.
        """
        carried = (2 * chunk_bytes + self.divisor) // (2 * self.divisor)
        if carried < 1:
            raise ScaleError(f"a chunk of {chunk_bytes} B at the rate scale {self} is less than a byte")
        return carried


EVERYTHING = RateScale()
