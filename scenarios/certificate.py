"""The certificate of an emulated run: how near the measured times are to the model's, and what was lost on the way."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from scenarios.engine import Slice


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Over all collectives measured: the median of measured/predicted, the 99th percentile of its distance from 1,
    and the packets dropped anywhere."""

    collectives: int
    median_ratio: float
    p99_abs_error: float
    drops: int

    def __str__(self) -> str:
        return (
            f"certificate: {self.collectives:,} collectives measured, median measured/predicted "
            f"{self.median_ratio:.4f}, p99 of |measured/predicted - 1| {self.p99_abs_error:.2%}, {self.drops:,} drops"
        )


class Certifier:
    """Watches slices go by, and certifies what was measured among them."""

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._drops = 0

    def watched(self, parts: Iterable[Slice]) -> Iterator[Slice]:
        """Pass the slices on."""
        for part in parts:
            if part.measured is not None:
                self._ratios += (part.completion_s / part.measured.predicted_s).tolist()
                self._drops += int(part.measured.drops.sum())
            yield part

    def certificate(self) -> Certificate | None:
        """What has been measured so far, None where nothing was."""
        if not self._ratios:
            return None
        ratios = np.array(self._ratios)
        return Certificate(
            collectives=len(ratios),
            median_ratio=float(np.median(ratios)),
            p99_abs_error=float(np.quantile(np.abs(ratios - 1), 0.99)),
            drops=self._drops,
        )
