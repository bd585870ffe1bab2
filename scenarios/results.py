"""What a run found: the slices of an engine gathered into one result for each point, with intervals.

The times of a setting are let go once its last slice has arrived, so memory holds a few settings, not the whole run.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from analysis.claims import Found, claims
from analysis.metrics import Interval, Summary, gain, summarise
from scenarios.engine import Slice
from scenarios.spec import Scenario

_STAYS_A_BLOCK = 10  # temporal correlation has died away within a block: its ends are e^-10 like each other
_TRACE_BLOCKS = 20  # a trace may hang together over any time, so its blocks are as long as leaves this many


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


def gathered(parts: Iterable[Slice], engine: str, settings: Sequence[Scenario]) -> Iterator[SettingResult]:
    """The result of each setting as soon as all of its slices have arrived."""
    waiting: dict[int, _Times] = {}
    for part in parts:
        setting = settings[part.setting]
        times = waiting.setdefault(part.setting, _Times(setting))
        if times.take(part):
            del waiting[part.setting]
            yield _result(engine, part.setting, setting, times.by_mode)


class _Times:
    """The completion times of one setting, by mode, and how many are still to come."""

    def __init__(self, setting: Scenario) -> None:
        count, modes = setting.collective.count, setting.run.modes
        self.by_mode = {mode: np.full(count, math.nan) for mode in modes}
        self._missing = count * len(modes)

    def take(self, part: Slice) -> bool:
        """Put a slice in its place; returns whether nothing is missing any more."""
        self.by_mode[part.mode][part.start : part.start + len(part.completion_s)] = part.completion_s
        self._missing -= len(part.completion_s)
        return self._missing == 0


def block(setting: Scenario) -> int:
    """How many collectives in a row hang together, and are resampled together for intervals.

    Those that share a ring always do; with the sampler markov those that share conditions too, and a trace is cut
    into as few blocks as an interval can be had from.
    """
    every, conditions = setting.collective.reembed_every, setting.conditions
    if conditions.sampler == "markov":
        return every * math.ceil(_STAYS_A_BLOCK * conditions.mean_stay / every)
    if conditions.sampler == "trace":
        return max(every, setting.collective.count // _TRACE_BLOCKS)
    return every


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
