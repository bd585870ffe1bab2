"""The fidelity of an emulated run: how near measured times are to the model's, and what was lost on the way."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NEAR = 0.01
"""How far the median of measured/predicted and the 99th percentile may lie from 1: the model holds up to there."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Measured = tuple[Floats, Floats, Integers, npt.NDArray[np.bool_]]
"""Measured and predicted times, packets dropped, and whether the machine was too slow (on a wall clock), [K] each."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Over all collectives measured: the median of measured/predicted, the 99th percentile of its distance from 1,
    the packets dropped anywhere, and on a wall clock how many the machine was too slow for (None in virtual time)."""

    collectives: int
    median_ratio: float
    p99_abs_error: float
    drops: int
    late: int | None = None

    def __str__(self) -> str:
        late = "" if self.late is None else f", {self.late:,} late"
        return "\n".join([f"fidelity: {self.words}{late}", *(f"WARNING: {warning}" for warning in self.warnings)])

    @property
    def words(self) -> str:
        """The numbers in one line."""
        return (
            f"{_counted(self.collectives, 'collective')} measured, median measured/predicted {self.median_ratio:.4f}, "
            f"p99 of |measured/predicted - 1| {percentage(self.p99_abs_error)}, {_counted(self.drops, 'drop')}"
        )

    @property
    def holds(self) -> bool:
        """Whether the median and the 99th percentile both lie within NEAR of what the model predicts."""
        return abs(self.median_ratio - 1) <= NEAR and self.p99_abs_error <= NEAR

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what is wrong: the model does not hold, packets were lost, the machine was too slow."""
        found = []
        if not self.holds:
            off = f"median {self.median_ratio:.4f}, p99 of its distance from 1 {percentage(self.p99_abs_error)}"
            found.append(
                f"measured times differ from the model's by more than {NEAR:.0%} ({off}): "
                "predictions for this configuration do not hold"
            )
        if self.drops:
            lost = f"{_counted(self.drops, 'packet')} lost in a network that is to lose none"
            found.append(f"{lost}: these times are not those of a lossless fabric")
        if self.late:
            found.append(
                f"this machine was too slow for {_counted(self.late, 'collective')}, marked in the column late"
            )
        return tuple(found)


def percentage(share: float) -> str:
    """A share in per cent with two decimals, or as many as it takes to show two digits that count: "0.00040 %"."""
    decimals = 2 if not 0 < share < 1e-3 else 1 - math.floor(math.log10(share * 100))
    return f"{share * 100:.{decimals}f} %"


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def fidelity(parts: Iterable[Measured], *, is_real: bool = False) -> Fidelity | None:
    """The fidelity over these parts, measured on a wall clock or not; None where nothing was measured."""
    found = [part for part in parts if part[0].size]
    if not found:
        return None
    measured_s, predicted_s, drops, late = (np.concatenate(column) for column in zip(*found, strict=True))
    ratios = measured_s / predicted_s
    return Fidelity(
        collectives=len(ratios),
        median_ratio=float(np.median(ratios)),
        p99_abs_error=float(np.quantile(np.abs(ratios - 1), 0.99)),
        drops=int(drops.sum()),
        late=int(late.sum()) if is_real else None,
    )
