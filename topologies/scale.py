"""The rate scale: by how much rates and chunks are smaller than the scenario's where time is real. Pure.

No machine carries 100 Gbit/s over several switches in real time. Divided by the same number, rates and chunks take the
same times: L/b stays, and delays are left as they are. Scenarios, choices and predictions know nothing of the scale;
it is applied at the last moment, to what tc and the agents are told.
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MAX_DIVISOR = 1_000_000

_FRACTION = re.compile(r"\s*1\s*(?:/\s*([0-9]{1,9})\s*)?")


class ScaleError(ValueError):
    """Text that is no rate scale, or a scale that leaves nothing: one sentence with the offending value."""


@dataclass(frozen=True)
class RateScale:
    """One part in `divisor` of every rate and of every chunk is carried; 1 is everything."""

    divisor: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.divisor <= MAX_DIVISOR:
            raise ScaleError(f"a rate scale of 1/{self.divisor}: allowed is 1 to 1/{MAX_DIVISOR}")

    @classmethod
    def parse(cls, text: str) -> "RateScale":
        """Read ``"1/1000"`` (or ``"1"``); raises ScaleError."""
        match = _FRACTION.fullmatch(text)
        if match is None:
            raise ScaleError(f'"{text[:40]}" is no rate scale: allowed is 1/N, such as "1/1000", or 1')
        return cls(int(match[1] or 1))

    def __str__(self) -> str:
        return "1" if self.divisor == 1 else f"1/{self.divisor}"

    def rate_bps(self, rate_bps: int) -> int:
        """What is carried of a rate, in whole bit/s; never 0, which no class can have."""
        return max(1, round(rate_bps / self.divisor))

    def rates_bps(self, rates_bps: Floats) -> Floats:
        """What is carried of many rates, in whole bit/s."""
        carried: Floats = np.maximum(1.0, np.rint(rates_bps / self.divisor))
        return carried

    def chunk_bytes(self, chunk_bytes: int) -> int:
        """The bytes carried for a chunk; raises ScaleError where that is less than one.

        Where the chunk does not divide, the carried bytes times `divisor` are the chunk that times are for.
        """
        carried = (2 * chunk_bytes + self.divisor) // (2 * self.divisor)
        if carried < 1:
            raise ScaleError(f"a chunk of {chunk_bytes} B at the rate scale {self} is less than a byte")
        return carried


EVERYTHING = RateScale()
