"""The rate scale: the factor by which rates and chunks are reduced for an emulation in real time. Pure.

No machine emulates 100 Gbit/s over several switches in real time. If rates and chunks are divided by the same number,
transmission times, L/b, stay the same, and delays are not scaled. Scenarios, decisions and predictions ignore the
scale; only the rates that tc sets and the chunks that agents send are scaled.
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topologies.units import format_size

Floats = npt.NDArray[np.float64]

MAX_DIVISOR = 1_000_000

_FRACTION = re.compile(r"\s*1\s*(?:/\s*([0-9]{1,9})\s*)?")


class ScaleError(ValueError):
    """Raised for an invalid rate scale, and for a chunk scaled to less than a byte; the message is one sentence."""


@dataclass(frozen=True)
class RateScale:
    """The scale 1/`divisor`: every rate and every chunk is divided by `divisor`."""

    divisor: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.divisor <= MAX_DIVISOR:
            raise ScaleError(f"1/{self.divisor} is not a rate scale; allowed: 1 to 1/{MAX_DIVISOR}")

    @classmethod
    def parse(cls, text: str) -> "RateScale":
        """Parse ``"1/1000"`` (or ``"1"``); raises ScaleError."""
        match = _FRACTION.fullmatch(text)
        if match is None:
            raise ScaleError(f'"{text[:40]}" is not a rate scale; allowed: 1/N, such as "1/1000", or 1')
        return cls(int(match[1] or 1))

    def __str__(self) -> str:
        return "1" if self.divisor == 1 else f"1/{self.divisor}"

    def rate_bps(self, rate_bps: int) -> int:
        """Return the emulated rate in whole bit/s, at least 1: an HTB class cannot have the rate 0."""
        return max(1, round(rate_bps / self.divisor))

    def rates_bps(self, rates_bps: Floats) -> Floats:
        """Return the emulated rates in whole bit/s, at least 1, in the given shape."""
        carried: Floats = np.maximum(1.0, np.rint(rates_bps / self.divisor))
        return carried

    def chunk_bytes(self, chunk_bytes: int) -> int:
        """Return the emulated size of a chunk, rounded; raises ScaleError if it is less than a byte.

        The emulated times are those of a chunk of the returned size times `divisor`.
        """
        carried = (2 * chunk_bytes + self.divisor) // (2 * self.divisor)
        if carried < 1:
            least = format_size(-(-self.divisor // 2))
            text = f"a chunk of {format_size(chunk_bytes)} at the rate scale {self} is less than a byte"
            raise ScaleError(f"{text}; allowed: {least} or more")
        return carried


FULL_SCALE = RateScale()
