"""The certificate of an emulated run: how near the measured times are to the model's, and what was lost on the way."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Measured = tuple[Floats, Floats, Integers, npt.NDArray[np.bool_]]
"""Measured and predicted times, packets dropped, and whether the machine was too slow (on a wall clock), [K] each."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Over all collectives measured: the median of measured/predicted, the 99th percentile of its distance from 1,
    the packets dropped anywhere, and on a wall clock how many the machine was too slow for (None in virtual time)."""

    collectives: int
    median_ratio: float
    p99_abs_error: float
    drops: int
    late: int | None = None

    def __str__(self) -> str:
        counted = _counted(self.collectives, "collective")
        words = (
            f"certificate: {counted} measured, median measured/predicted {self.median_ratio:.4f}, "
            f"p99 of |measured/predicted - 1| {self.p99_abs_error:.2%}, {_counted(self.drops, 'drop')}"
        )
        if self.late is not None:
            words += f", {self.late:,} late"
        return f"{words}\n{self.warning}" if self.warning else words

    @property
    def warning(self) -> str:
        """What is to be said loudly where packets were lost or the machine was too slow; otherwise nothing."""
        slow = ""
        if self.late:
            slow = (
                f"WARNING: this machine was too slow for {_counted(self.late, 'collective')}, marked in the column late"
            )
        if not self.drops:
            return slow
        lost = f"WARNING: {_counted(self.drops, 'packet')} lost in a network that is to lose none"
        loss = f"{lost}: these times are not those of a lossless fabric"
        return f"{loss}\n{slow}" if slow else loss


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def certificate(parts: Iterable[Measured], *, is_real: bool = False) -> Certificate | None:
    """What these parts certify, measured on a wall clock or not; None where nothing was measured."""
    found = list(parts)
    if not found:
        return None
    measured_s, predicted_s, drops, late = (np.concatenate(column) for column in zip(*found, strict=True))
    ratios = measured_s / predicted_s
    return Certificate(
        collectives=len(ratios),
        median_ratio=float(np.median(ratios)),
        p99_abs_error=float(np.quantile(np.abs(ratios - 1), 0.99)),
        drops=int(drops.sum()),
        late=int(late.sum()) if is_real else None,
    )
