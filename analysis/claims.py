"""What the paper claims of the four modes, held against completion times as they were found.

The claims: total times in the order base > ccl > wan > joint at every point, and joint about 33 % below base. They
are tested, not assumed: what differs is said to differ.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from analysis.metrics import Interval

PAPER_ORDER = ("base", "ccl", "wan", "joint")
PAPER_JOINT_GAIN = 0.33
ABOUT = 0.03
"""How far a gain may lie from the paper's and still be about it: three percentage points."""

_ROUNDING = 1e-9  # a gain below this share is the noise of adding floats

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found at one point, slowest mode first.

    `relations[i]` stands between `order[i]` and `order[i + 1]`: ">" where the interval of their difference excludes
    zero, "~" where they cannot be told apart. `order_holds` and `joint_holds` tell whether the paper's claims do, or
    are None where the modes they speak of were not all run or the intervals leave it open.
    """

    order: tuple[str, ...]
    relations: tuple[str, ...]
    order_holds: bool | None
    joint_holds: bool | None

    @property
    def order_text(self) -> str:
        """The order in one line: "base > wan ~ ccl > joint"."""
        return self.order[0] + "".join(f" {r} {mode}" for r, mode in zip(self.relations, self.order[1:], strict=True))


def claims(times_s: Mapping[str, Times], gain: Callable[[Times, Times], Interval]) -> Found:
    """Hold completion times by mode against the paper's claims.

    `gain(a, b)` is how much less time b takes than a on the same collectives, with its interval.
    """
    order = tuple(sorted(times_s, key=lambda mode: -float(times_s[mode].sum())))
    relations = tuple(">" if gain(times_s[a], times_s[b]).low > _ROUNDING else "~" for a, b in pairwise(order))
    joint = gain(times_s["base"], times_s["joint"]) if {"base", "joint"} <= set(times_s) else None
    return Found(
        order=order,
        relations=relations,
        order_holds=_order_holds(times_s, gain),
        joint_holds=None if joint is None else _about(joint),
    )


def _order_holds(times_s: Mapping[str, Times], gain: Callable[[Times, Times], Interval]) -> bool | None:
    if not set(PAPER_ORDER) <= set(times_s):
        return None
    steps = [gain(times_s[slower], times_s[faster]) for slower, faster in pairwise(PAPER_ORDER)]
    if any(step.high < -_ROUNDING for step in steps):
        return False
    return True if all(step.low > _ROUNDING for step in steps) else None


def _about(gain: Interval) -> bool | None:
    """Whether the whole interval lies about the paper's gain (True), none of it (False), or neither (None)."""
    least, most = PAPER_JOINT_GAIN - ABOUT, PAPER_JOINT_GAIN + ABOUT
    if least <= gain.low and gain.high <= most:
        return True
    return False if gain.high < least or gain.low > most else None
