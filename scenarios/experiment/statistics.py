"""The results of a run, computed from the collectives in its directory: for each point means with intervals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.results.rows import Point
from analysis.statistics.claims import Found, claims
from analysis.statistics.fidelity import Measured
from analysis.statistics.intervals import Interval, Numbers, Series, Summary, block_length, gain, summarise
from scenarios.policies.decide import MODES
from scenarios.spec.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

_POINT = ["engine", "setting", "mode"]
_VALUES = ["completion_s", "predicted_s", "bound_s", "reconfigure_s", "drops", "late", "undisturbed"]


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One mode at one setting: its times, and what it gains over base (None where base has none of its collectives).

    `bound_s` is the mean of the lower bounds of its collectives, `reconfigure_s` the mean time that a change of routes
    took; None where there are none.
    """

    mode: str
    summary: Summary
    gain: Interval | None
    bound_s: float | None = None
    reconfigure_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SettingResult:
    """All modes at one setting, `place` being its place in the scenario's settings; base's gain is zero."""

    engine: str
    place: int
    setting: Scenario
    points: tuple[PointResult, ...]
    found: Found


def collectives_by_point(path: Path) -> dict[Point, "pd.DataFrame"]:
    """What is stored of each point of a run, in the order of collectives; raises ResultsError."""
    from analysis.results.reader import load  # with Parquet, which takes its time

    grouped = load(path, columns=[*_POINT, *_VALUES]).groupby(_POINT, sort=False)
    return {Point(*key): rows for key, rows in grouped}


def measured_of(stored: Mapping[Point, "pd.DataFrame"]) -> Iterator[Measured]:
    """What was measured while no fault was injected, for the fidelity."""
    for point, rows in stored.items():
        if point.engine != "model":
            comparable = rows[rows["undisturbed"]]
            times = comparable["completion_s"].to_numpy(), comparable["predicted_s"].to_numpy()
            yield *times, comparable["drops"].to_numpy(), comparable["late"].to_numpy()


def results_of(
    stored: Mapping[Point, "pd.DataFrame"], engine: str, settings: Sequence[Scenario]
) -> Iterator[SettingResult]:
    """The result of each setting over the modes of which every collective is stored, if there is any."""
    for place, setting in enumerate(settings):
        found = {mode: stored.get(Point(engine, place, mode)) for mode in setting.run.modes}
        count = setting.collective.count
        finished = {mode: rows for mode, rows in found.items() if rows is not None and len(rows) == count}
        if finished:
            yield _result(engine, place, setting, finished)


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


def _result(engine: str, place: int, setting: Scenario, stored: Mapping[str, "pd.DataFrame"]) -> SettingResult:
    series = {}
    for mode, rows in stored.items():
        times_s = rows["completion_s"].to_numpy()
        series[mode] = series_of(setting, mode, np.arange(times_s.size), times_s)
    points = tuple(
        replace(
            point_result(mode, times, series.get("base")),
            bound_s=_mean(stored[mode]["bound_s"].to_numpy()),
            reconfigure_s=_mean(stored[mode]["reconfigure_s"].to_numpy()),
        )
        for mode, times in series.items()
    )
    return SettingResult(engine=engine, place=place, setting=setting, points=points, found=claims(series))


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    """The mean of the values that are finite, None where there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None
