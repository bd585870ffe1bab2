"""The paper's claims about the four modes, tested on completion times.

The paper claims that total times are in the order base > ccl > wan > joint at every point, and that joint is about
33 % below base. The claims are tested, not assumed, and only on the paper's own configurations.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from analysis.statistics.intervals import Interval, Series, are_equal, ascending, gain_through, shared

PAPER_ORDER = ("base", "ccl", "wan", "joint")
PAPER_JOINT_GAIN = 0.33
ABOUT = 0.03
"""How far a gain may be from the paper's to count as "about" the same: three percentage points."""

_PAPERS_VALUES: Mapping[str, Any] = {
    "fabric.wan": "mesh",
    "conditions.sampler": "uniform",
    "conditions.intra_rate": [20_000_000_000, 200_000_000_000],
    "conditions.wan_rate": [10_000_000_000, 100_000_000_000],
    "conditions.intra_delay": 0.7e-6,
    "collective.kind": "allgather",
    "collective.reembed_every": 10,
    "fault": [],
}
_LATER_KEYS: Mapping[str, tuple[Any, ...]] = {  # allowed values of keys that runs of earlier versions lack
    "fabric.routing": ("single", None),
    "conditions.every": (None,),
    "control.counted": (False, None),
    "collective.algorithm": ("ring", None),
    "collective.channels": (1,),
    "collective.pieces": (1,),
    "collective.schedule": (None,),
    "collective.ring": ("slowest edge",),
    "fabric.grain": ("logical",),
    "fabric.rails": (None,),
    "fabric.wan_loss": (0,),
    "conditions.load": (None,),
    "conditions.moves": (None,),
    "control.delay": (None,),
    "control.knowledge": ("oracle",),
    "program.command": (None,),
    "job": ([],),
    "class": ([],),
}
SAME = "="
"""The sign between alternatives that take the same times."""
NOT_SHARED = "no collective is in all of them"
"""Why an order is not tested where modes have no collective in common."""
_ROUNDING = 1e-9  # smaller gains are rounding errors of sums


@dataclass(frozen=True, kw_only=True)
class ClaimResults:
    """The outcome of the tests at one point: `order` has the modes from slowest to fastest.

    `relations[i]` compares `order[i]` with `order[i + 1]`: "=" if both take the same times, ">" if the confidence
    interval of their difference excludes zero, "~" if it includes zero, "?" if there is none, for the reason
    `untested`; `steps[i]` is that difference, the gain of the faster one. `order_holds` and `joint_holds` say whether
    the paper's claims hold; they are None if not all modes of the claim were run, or if the intervals leave it open.
    """

    order: tuple[str, ...]
    relations: tuple[str, ...]
    steps: tuple[Interval, ...] = ()
    untested: str = ""
    order_holds: bool | None
    joint_holds: bool | None

    @property
    def order_text(self) -> str:
        """The order as text: "base > wan ~ ccl > joint", or, if no difference has an interval, the names with commas:
        "base, ccl = wan, joint (not tested: ...)". Where others have one, why: "base ? wan > joint (?: ...)"."""
        if "?" in self.relations and {*self.relations} <= {"?", SAME}:
            return f"{self._joined({'?': ','})} (not tested: {self.untested})"
        why = f" (?: {self.untested})" if "?" in self.relations and self.untested else ""
        return f"{self._joined({})}{why}"

    def _joined(self, signs: Mapping[str, str]) -> str:
        between = [f"{'' if signs.get(one) == ',' else ' '}{signs.get(one, one)} " for one in self.relations]
        return self.order[0] + "".join(f"{sign}{mode}" for sign, mode in zip(between, self.order[1:], strict=True))


def is_paper_configuration(values: Mapping[str, Any], modes: Collection[str]) -> bool:
    """Return whether a configuration is one of the paper's and has all four modes, given its values (as in
    settings.json) and its modes."""
    return set(PAPER_ORDER) <= set(modes) and has_paper_values(values)


def has_paper_values(values: Mapping[str, Any]) -> bool:
    """Return whether a configuration's values, as in settings.json, are among the paper's.

    The paper's configurations have two sites of 4 or 8 GPUs and two border routers each, joined in a mesh of logical
    links, with the paper's rates drawn uniformly and known, ring AllGathers of chunks of 8 to 64 MB, WAN delays of 10
    us to 10 ms, re-embedding before every 10th collective, and neither faults nor loss. Leaves, spines, the number of
    collectives, the seed, the clock and the transport may have any value, and keys without effect may be left out.
    """
    return (
        values.get("fabric.gpus") in ([4, 4], [8, 8])
        and values.get("fabric.border_routers") in (2, [2, 2])
        and 8_000_000 <= values.get("collective.chunk", 0) <= 64_000_000
        and 10e-6 <= values.get("conditions.wan_delay", 0) <= 10e-3
        and not values.get("conditions.links")
        and all(values.get(key, value) == value for key, value in _PAPERS_VALUES.items())
        and all(values.get(key, allowed[0]) in allowed for key, allowed in _LATER_KEYS.items())
    )


def claims(times: Mapping[str, Series], baseline: str = "base") -> ClaimResults:
    """Test the paper's claims on the completion times of each mode, over the collectives that all modes have.

    If there are none, everything is left open.
    """
    common = shared(list(times.values()))
    if common is None:
        relations = ("?",) * (len(times) - 1)
        return ClaimResults(
            order=tuple(times), relations=relations, untested=NOT_SHARED, order_holds=None, joint_holds=None
        )
    times = dict(zip(times, common, strict=True))
    totals_s = {mode: float(times[mode].completion_s.sum()) for mode in reversed(times)}
    order = tuple(reversed(ascending(totals_s, "")))
    third = times.get(baseline)
    steps = [_gain(times[slower], times[faster], third) for slower, faster in pairwise(order)]
    equal = [are_equal(times[slower], times[faster]) for slower, faster in pairwise(order)]
    joint = _gain(times["base"], times["joint"]) if {"base", "joint"} <= set(times) else None
    relations = tuple(SAME if same else _relation(step) for same, step in zip(equal, steps, strict=True))
    return ClaimResults(
        order=order,
        relations=relations,
        steps=tuple(steps),
        untested=next((step.why for one, step in zip(relations, steps, strict=True) if one == "?"), ""),
        order_holds=_order_holds(times),
        joint_holds=None if joint is None else _about(joint),
    )


def _relation(step: Interval) -> str:
    if step.why:
        return "?"
    return ">" if step.low > _ROUNDING else "~"


def _gain(slower: Series, faster: Series, third: Series | None = None) -> Interval:
    interval = gain_through(third, slower, faster)
    assert interval is not None  # both have the same collectives
    return interval


def _order_holds(times: Mapping[str, Series]) -> bool | None:
    if not set(PAPER_ORDER) <= set(times):
        return None
    steps = [_gain(times[slower], times[faster]) for slower, faster in pairwise(PAPER_ORDER)]
    if any(step.high < -_ROUNDING for step in steps):
        return False
    return True if all(step.low > _ROUNDING for step in steps) else None


def _about(gain: Interval) -> bool | None:
    """Return True if the interval is entirely about the paper's gain, False if entirely apart, otherwise None."""
    least, most = PAPER_JOINT_GAIN - ABOUT, PAPER_JOINT_GAIN + ABOUT
    if least <= gain.low and gain.high <= most:
        return True
    return False if gain.high < least or gain.low > most else None
