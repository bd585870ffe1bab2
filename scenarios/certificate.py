"""The certificate of an emulated run: how near the measured times are to the model's, and what was lost on the way."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Over all collectives measured: the median of measured/predicted, the 99th percentile of its distance from 1,
    and the packets dropped anywhere."""

    collectives: int
    median_ratio: float
    p99_abs_error: float
    drops: int

    def __str__(self) -> str:
        counted = _counted(self.collectives, "collective")
        words = (
            f"certificate: {counted} measured, median measured/predicted {self.median_ratio:.4f}, "
            f"p99 of |measured/predicted - 1| {self.p99_abs_error:.2%}, {_counted(self.drops, 'drop')}"
        )
        return f"{words}\n{self.warning}" if self.warning else words

    @property
    def warning(self) -> str:
        """What is to be said loudly where packets were lost; otherwise nothing."""
        if not self.drops:
            return ""
        lost = f"WARNING: {_counted(self.drops, 'packet')} lost in a network that is to lose none"
        return f"{lost}: these times are not those of a lossless fabric"


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def certificate(parts: Iterable[tuple[Floats, Floats, Integers]]) -> Certificate | None:
    """What these measured and predicted times and these drops certify; None where nothing was measured."""
    found = list(parts)
    if not found:
        return None
    measured_s, predicted_s, drops = (np.concatenate(column) for column in zip(*found, strict=True))
    ratios = measured_s / predicted_s
    return Certificate(
        collectives=len(ratios),
        median_ratio=float(np.median(ratios)),
        p99_abs_error=float(np.quantile(np.abs(ratios - 1), 0.99)),
        drops=int(drops.sum()),
    )
