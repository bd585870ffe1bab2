"""The progress of a run on stderr: a live table on a terminal, otherwise a line for each finished point.

Without a terminal, a line with the current activity and the time left is also printed after a long silence.
"""

import math
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapreplace
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.live import Live
from rich.table import Table

from analysis.model import compiled
from analysis.statistics.intervals import Interval, Series, series_of
from analysis.statistics.number_words import bracketed, estimate
from scenarios.engines.base import Activity, EngineEvent, Failed, Retrying, Slice
from scenarios.engines.model import TRANSFERS, effort_of
from scenarios.experiment.point_results import point_result
from scenarios.spec.labels import labels_in_table
from scenarios.spec.scenario import Scenario
from topologies.heartbeat import breaking_silence, repeating

_CONFIGS_SHOWN = 4  # configurations in the live table at most, so that it fits a screen
_REFRESH_S = 0.5
_MIN_PACE_S = 2.0  # a pace measured over less time is not used
_ACTIVE_SHOWN = 3  # active points named in one line

# Speed of the emulation on a typical machine, for the time left before the first result and for weights of points.
_START_S, _COLLECTIVE_S, _BYTES_PER_S = 6.0, 0.1, 1.5e9


@dataclass
class _PointProgress:
    """The results of one point so far; its work is measured in expected seconds, or for the model in collectives."""

    count: int
    start_work: float
    collective_work: float
    parts: dict[int, tuple[npt.NDArray[Any], ...]] = field(default_factory=dict)  # times and choices, by start
    done: int = 0
    total_s: float = 0.0
    predicted_s: float = 0.0
    doing: str | None = None
    failed: bool = False
    began_s: float | None = None  # when the point was seen to begin, and when it was last seen to get on
    seen_s: float = 0.0
    mean: str = ""
    gain: str = ""

    @property
    def complete(self) -> bool:
        return self.done == self.count

    @property
    def work_done(self) -> float:
        return (self.start_work if self.done else 0.0) + self.done * self.collective_work

    @property
    def work_left(self) -> float:
        whole = self.start_work + self.count * self.collective_work
        return 0.0 if self.complete or self.failed else whole - self.work_done

    def left_s(self, pace: float, now_s: float) -> float:
        """Return how long a point that has begun still takes at a pace, seconds for a unit of work. A step that is
        overdue takes half as long again as it already is."""
        step = self.collective_work + (0.0 if self.done else self.start_work)
        overdue_s = now_s - self.seen_s - step * pace
        return (self.work_left - step) * pace + max(-overdue_s, overdue_s / 2)

    def words(self) -> tuple[str, str, str, str, str]:
        """Return collectives done, mean and gain over base (once complete, with 95 % intervals), prediction, ratio."""
        done = f"{self.done:,} of {self.count:,}"
        if not self.done:
            return done, "", "", "", ""
        mean = self.mean or f"{self.total_s / self.done * 1e3:,.3f} ms"
        if not self.predicted_s:
            return done, mean, self.gain, "", ""
        predicted, ratio = self.predicted_s / self.done * 1e3, self.total_s / self.predicted_s
        return done, mean, self.gain, f"{predicted:,.3f} ms", f"{ratio:.4f}"


class Progress:
    """The results of an engine's run so far, point by point. `lanes` of its parts run beside each other."""

    def __init__(self, engine: str, configs: Sequence[Scenario], *, lanes: int = 1) -> None:
        self.engine, self.configs, self._lanes = engine, configs, lanes
        self.points = {
            (index, mode): _new_point(engine, s, mode) for index, s in enumerate(configs) for mode in s.run.modes
        }
        self.common, self._own = labels_in_table(configs)
        self._base: dict[int, Series] = {}
        self._began_s = self._seen_s = time.monotonic()
        self._before = self._largest_work = 0.0
        self._most_rows = 0

    @property
    def finished(self) -> int:
        """The number of complete points."""
        return sum(point.complete for point in self.points.values())

    def take(self, part: Slice) -> bool:
        """Add a slice; returns whether its point is now complete."""
        point, rows = self.points[part.setting, part.mode], part.rows
        point.seen_s = self._seen_s = time.monotonic()
        self._largest_work = max(self._largest_work, len(rows) * point.collective_work)
        self._most_rows = max(self._most_rows, len(rows))
        point.parts[rows.start] = rows.completion_s, rows["reembedded"], rows["rerouted"]
        point.done += len(rows)
        point.total_s += float(rows.completion_s.sum())
        # In a resumed run, the model's stored rows have a prediction as well, which is their own time.
        if self.engine != "model":
            point.predicted_s += float(rows.predictions_s.sum())
        if point.complete:
            self._complete(part.setting, part.mode, point)
        return point.complete

    def _complete(self, index: int, mode: str, point: _PointProgress) -> None:
        parts = (arrays for _, arrays in sorted(point.parts.items()))
        times_s, reembedded, rerouted = map(np.concatenate, zip(*parts, strict=True))
        config = self.configs[index]
        chosen: Any = {"reembedded": reembedded, "rerouted": rerouted, "exact_from": config.exact_from(self.engine)}
        series = series_of(np.array(config.collective.numbers), times_s, config.conditions, **chosen)
        if mode == "base":
            self._base[index] = series
        result = point_result(mode, series, None if mode == "base" else self._base.get(index))
        point.mean = _format_interval(result.summary.mean_s, 1e3, " ms", 3)
        point.gain = "" if result.gain is None else _format_interval(result.gain, 100, " %", 1)
        point.doing = None
        point.parts.clear()
        if all(self.points[index, other].complete for other in self.configs[index].run.modes):
            self._base.pop(index, None)

    def note(self, event: EngineEvent) -> None:
        """Note the current step of the event's point, or that the point has ended."""
        point = self.points[event.setting, event.mode]
        if isinstance(event, Retrying | Failed):
            point.doing = point.began_s = None
            point.failed = isinstance(event, Failed)
        elif isinstance(event, Activity) and not point.complete:
            point.doing = event.doing
            if point.began_s is None:
                point.began_s = point.seen_s = time.monotonic()

    def begin(self) -> None:
        """Measure the pace from now on; slices counted so far are from an earlier run."""
        self._began_s = self._seen_s = time.monotonic()
        self._before = sum(point.work_done for point in self.points.values())

    def so_far(self) -> str:
        """Return how long the engine has run, in words; "" at the end."""
        took_s = time.monotonic() - self._began_s
        return "" if self.finished == len(self.points) or took_s < 1 else f", {took_s:,.0f} s so far"

    def time_left(self) -> str:
        """Return the time left in words, at the pace so far; before the first result an estimate, if there is one."""
        left_s = self._left_s(time.monotonic())
        if left_s is None:
            return ""
        return f", about {left_s / 60:,.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"

    def _left_s(self, now_s: float) -> float | None:
        left = sum(point.work_left for point in self.points.values())
        if not left or now_s - self._began_s < _MIN_PACE_S or self._is_compiling:
            return None
        if any(point.began_s is not None for point in self.points.values()):
            return self._left_of_points_s(now_s)
        done = sum(point.work_done for point in self.points.values()) - self._before
        if done <= 0:
            return None if self.engine == "model" else left / self._lanes  # work is expected seconds
        # The other processes have done half of their parts, on average. The least is if all parts ended just now.
        part = self._part_work
        half, whole = ((self._lanes - 1) / 2 * part, self._lanes * part)
        expected_s = max(0.0, left - half) * (self._seen_s - self._began_s) / (done + half)
        least_s = max(0.0, left - whole) * (now_s - self._began_s) / (done + whole)
        return max(expected_s - (now_s - self._seen_s), least_s)

    @property
    def _part_work(self) -> float:
        """The most work of a part that may now be at work: collectives of a point that has told none may take longer. A
        part has as many as one before it, up to the most work that the model gives a part."""
        longest = max(point.collective_work for point in self.points.values() if point.work_left)
        return min(self._most_rows * longest, max(self._largest_work, TRANSFERS))

    def _left_of_points_s(self, now_s: float) -> float:
        """Return how long the points still take, some of which were seen to begin: those at work run beside each other,
        and the others after them."""
        begun = [point for point in self.points.values() if point.began_s is not None]
        told = [point for point in begun if point.done]
        busy_s = sum(point.seen_s - (point.began_s or 0.0) for point in told)
        pace = busy_s / sum(point.work_done for point in told) if busy_s > 0 else 1.0  # work is expected seconds
        active = [point.left_s(pace, now_s) for point in begun if point.work_left]
        idle = [0.0] * (self._lanes - len(active))
        waiting = [point.work_left * pace for point in self.points.values() if point.began_s is None]
        return ends_s([*active, *idle], waiting)

    def going_on(self) -> str:
        """Describe in one line the active points with their current steps, and the time left."""
        words = [
            f"{self._where(index, mode)}: {point.words()[0]}, {point.doing}"
            for (index, mode), point in self.points.items()
            if point.doing is not None
        ]
        if len(words) > _ACTIVE_SHOWN:
            words[_ACTIVE_SHOWN:] = [f"and {len(words) - _ACTIVE_SHOWN} more points"]
        done, count = (sum(getattr(point, name) for point in self.points.values()) for name in ("done", "count"))
        what = "; ".join(words) or f"{done:,} of {count:,} collectives{self._compiling()}"
        return f"[{self.finished}/{len(self.points)}] {self.engine}, {what}{self.time_left()}"

    def _compiling(self) -> str:
        """Return that the model is compiled, as long as nothing can be predicted before that is done."""
        is_told = self._is_compiling
        return ": the model of flows that share links is compiled first, once after its installation" if is_told else ""

    @property
    def _is_compiling(self) -> bool:
        """Whether points wait until the model of flows that share links is compiled, which takes a time that no pace
        tells."""
        if self.engine != "model" or not self._with_sharing or any(point.done for point in self._with_sharing):
            return False
        return compiled.awaits_compiling(compiled.FLUID)

    @cached_property
    def _with_sharing(self) -> list[_PointProgress]:
        """The points in which flows share links."""
        return [point for (at, mode), point in self.points.items() if self.configs[at].shared_links(mode)]

    def _where(self, index: int, mode: str) -> str:
        """Return a point in words, without what all share."""
        return ", ".join(filter(None, [self._own[index], mode]))

    def line(self, index: int, mode: str) -> str:
        """Describe a finished point in one line."""
        done, mean, gain, predicted, ratio = self.points[index, mode].words()
        parts = [self.engine, f"{self._where(index, mode)}: {done}", f"mean {mean}"]
        parts += [f"gain over base {gain}"] * bool(gain) + [f"predicted {predicted}, ratio {ratio}"] * bool(predicted)
        return f"[{self.finished}/{len(self.points)}] {', '.join(parts)}"

    def failed_line(self, index: int, mode: str) -> str:
        """Describe a point that failed in one line."""
        done = self.points[index, mode].words()[0]
        return f"failed: {self.engine}, {self._where(index, mode)} after {done} (why: in log.txt, and at the end)"

    def table(self, last: int) -> Table:
        """Return a table of the points of the last few configurations up to index `last`."""
        finished = f"{self.engine}: {self.finished} of {len(self.points)} points"
        title = f"{finished}{self.so_far()}{self.time_left()}{self._compiling()}"
        title += f"\nall: {self.common}" if self.common else ""
        table = Table("setting", "mode", title=title, title_justify="left")
        for heading in ("collectives", "mean and 95 % interval", "gain over base", "predicted", "ratio"):
            table.add_column(heading, justify="right")
        for index in range(max(0, last + 1 - _CONFIGS_SHOWN), last + 1):
            name = self._own[index]
            for mode in self.configs[index].run.modes:
                table.add_row(name, mode, *self.points[index, mode].words())
                name = ""
            table.add_section()
        return table


def _new_point(engine: str, config: Scenario, mode: str) -> _PointProgress:
    if engine == "model":
        return _PointProgress(len(config.collective.numbers), 0.0, effort_of(config, mode))
    sent_bytes = (
        sum(transfer.amount for _, transfer in config.carried_workload.schedule.sends())
        * config.carried_workload.slot_bytes
    )
    return _PointProgress(len(config.collective.numbers), _START_S, _COLLECTIVE_S + sent_bytes / _BYTES_PER_S)


def ends_s(active_s: Sequence[float], waiting_s: Iterable[float]) -> float:
    """Return after what time the last point is over: those at work have these times left, and each waiting one begins
    as soon as one before it is over, s."""
    lanes = sorted(active_s)
    for takes_s in waiting_s:
        heapreplace(lanes, lanes[0] + takes_s)
    return max(lanes)


def _format_interval(interval: Interval, scale: float, unit: str, digits: int) -> str:
    """Format an estimate with its interval, if it has one."""
    value = f"{estimate(interval, scale, digits)}{unit}"
    return value if math.isnan(interval.low) else f"{value} {bracketed(interval, scale, digits)}"


def with_progress(
    events: Iterable[EngineEvent],
    engine: str,
    configs: Sequence[Scenario],
    before: Iterable[Slice] = (),
    *,
    lanes: int = 1,
) -> Generator[EngineEvent, None, None]:
    """Pass on the events of a run and show its progress on stderr; `before` are the slices of an earlier run, and
    `lanes` is how many of its parts run beside each other."""
    progress = Progress(engine, configs, lanes=lanes)
    for part in before:
        progress.take(part)
    progress.begin()
    console = Console(stderr=True)
    return _live(events, progress, console) if console.is_terminal else _in_lines(events, progress)


def _failure(event: EngineEvent, progress: Progress) -> str:
    """Return what to print for a point that failed; empty for other events. Why it was given up is told once, at the
    end, for all points together."""
    if isinstance(event, Retrying):
        return f"tried once more: {event.why}"
    return progress.failed_line(event.setting, event.mode) if isinstance(event, Failed) else ""


def _in_lines(events: Iterable[EngineEvent], progress: Progress) -> Generator[EngineEvent, None, None]:
    with breaking_silence(progress.going_on) as say:
        if progress.common:
            say(f"all points: {progress.common}")
        for event in events:
            progress.note(event)
            if failure := _failure(event, progress):
                say(failure)
            if isinstance(event, Slice) and progress.take(event):
                say(progress.line(event.setting, event.mode))
            yield event


def _live(events: Iterable[EngineEvent], progress: Progress, console: Console) -> Generator[EngineEvent, None, None]:
    last = 0

    def show() -> float:
        live.update(progress.table(last), refresh=True)
        return _REFRESH_S

    with Live(progress.table(0), console=console, auto_refresh=False) as live:
        with repeating(show, _REFRESH_S):  # also without events; forked workers never print, so no lock of it is theirs
            for event in events:
                if failure := _failure(event, progress):
                    console.print(failure, markup=False, highlight=False)
                progress.note(event)
                if isinstance(event, Slice):
                    progress.take(event)
                    last = max(last, event.setting)
                yield event
        show()
