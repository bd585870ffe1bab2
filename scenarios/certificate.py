"""The certificate of an emulated run: how near the measured times are to the model's, and what was lost on the way."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analysis.rows import Rows


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


def certificate(parts: Iterable[Rows]) -> Certificate | None:
    """What these rows certify; None where nothing was measured."""
    ratios: list[float] = []
    drops = 0
    for rows in parts:
        if rows.predicted_s is not None and rows.drops is not None:
            ratios += (rows.completion_s / rows.predicted_s).tolist()
            drops += int(rows.drops.sum())
    if not ratios:
        return None
    found = np.array(ratios)
    return Certificate(
        collectives=len(found),
        median_ratio=float(np.median(found)),
        p99_abs_error=float(np.quantile(np.abs(found - 1), 0.99)),
        drops=drops,
    )
