"""What a run found: the rows in its folder made into one result for each point, with intervals.

The times of one setting are held at a time, not those of the whole run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.results.reader import Point
from analysis.statistics.claims import Found, claims
from analysis.statistics.intervals import Interval, Numbers, Series, Summary, block_length, gain, summarise
from scenarios.policies.decide import MODES
from scenarios.spec.scenario import Scenario

Times = Callable[[Point], npt.NDArray[np.float64] | None]
"""The completion times of a point in order, None where it is not finished."""


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One mode at one setting: its times, and what it gains over base (None where base has none of its collectives)."""

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


def series_of(setting: Scenario, mode: str, number: Numbers, completion_s: npt.NDArray[np.float64]) -> Series:
    """The times of these collectives of a mode, for intervals."""
    block = block_length(
        completion_s,
        ring_shared_by=setting.collective.reembed_every if MODES[mode].reembeds else 1,
        sampler=setting.conditions.sampler,
        mean_stay=setting.conditions.mean_stay,
    )
    return Series(number, completion_s, block)


def point_result(mode: str, times: Series, base: Series | None) -> PointResult:
    """The result of one mode, finished or not, over what there is of it and of base."""
    return PointResult(mode=mode, summary=summarise(times), gain=None if base is None else gain(base, times))


def _result(
    engine: str, place: int, setting: Scenario, times_s: Mapping[str, npt.NDArray[np.float64]]
) -> SettingResult:
    series = {mode: series_of(setting, mode, np.arange(times.size), times) for mode, times in times_s.items()}
    points = tuple(point_result(mode, times, series.get("base")) for mode, times in series.items())
    return SettingResult(engine=engine, place=place, setting=setting, points=points, found=claims(series))
