"""What a run found: the rows in its folder made into one result for each point, with intervals.

The times of one setting are held at a time, not those of the whole run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from analysis.claims import Found, claims
from analysis.metrics import Interval, Summary, block_length, gain, summarise
from analysis.results import Point
from scenarios.spec import Scenario

Times = Callable[[Point], npt.NDArray[np.float64] | None]
"""The completion times of a point in order, None where it is not finished."""


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One mode at one setting: its times, and what it gains over base (None where base was not run)."""

    mode: str
    summary: Summary
    gain: Interval | None


@dataclass(frozen=True, kw_only=True)
class SettingResult:
    """All modes at one setting, `place` being its place in the scenario's settings; base's gain is zero."""

    engine: str
    place: int
    setting: Scenario
    points: tuple[PointResult, ...]
    found: Found


def results_of(times: Times, engine: str, settings: Sequence[Scenario]) -> Iterator[SettingResult]:
    """The result of each setting over the modes that are finished, if any is."""
    for place, setting in enumerate(settings):
        found = {mode: times(Point(engine, place, mode)) for mode in setting.run.modes}
        times_s = {mode: series for mode, series in found.items() if series is not None}
        if times_s:
            yield _result(engine, place, setting, times_s)


def block(setting: Scenario) -> int:
    """How many collectives in a row of this setting are resampled together for intervals."""
    return block_length(
        reembed_every=setting.collective.reembed_every,
        sampler=setting.conditions.sampler,
        mean_stay=setting.conditions.mean_stay,
        collectives=setting.collective.count,
    )


def _result(
    engine: str, place: int, setting: Scenario, times_s: Mapping[str, npt.NDArray[np.float64]]
) -> SettingResult:
    over = partial(gain, block=block(setting), seed=setting.run.seed)
    base = times_s.get("base")
    points = tuple(
        PointResult(
            mode=mode,
            summary=summarise(times, block=block(setting), seed=setting.run.seed),
            gain=None if base is None else over(base, times),
        )
        for mode, times in times_s.items()
    )
    return SettingResult(engine=engine, place=place, setting=setting, points=points, found=claims(times_s, over))
