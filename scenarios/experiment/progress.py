"""The progress of a run on stderr: a live table on a terminal, otherwise a line for each finished point.

Without a terminal, a line with the current activity and the time left is also printed after a long silence.
"""

import math
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
from scenarios.experiment.point_results import point_result
from scenarios.spec.scenario import Scenario
from topologies.heartbeat import breaking_silence

_CONFIGS_SHOWN = 4  # configurations in the live table at most, so that it fits a screen
_REFRESH_S = 0.25
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
        return self.start_work + self.count * self.collective_work - self.work_done

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
    """The results of an engine's run so far, point by point."""

    def __init__(self, engine: str, configs: Sequence[Scenario]) -> None:
        self.engine, self.configs = engine, configs
        self.points = {(index, mode): _new_point(engine, s) for index, s in enumerate(configs) for mode in s.run.modes}
        self._base: dict[int, Series] = {}
        self._began_s, self._before = time.monotonic(), 0.0

    @property
    def finished(self) -> int:
        """The number of complete points."""
        return sum(point.complete for point in self.points.values())

    def take(self, part: Slice) -> bool:
        """Add a slice; returns whether its point is now complete."""
        point, rows = self.points[part.setting, part.mode], part.rows
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
        chosen: Any = {"reembedded": reembedded, "rerouted": rerouted}
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
            point.doing = None
        elif isinstance(event, Activity) and not point.complete:
            point.doing = event.doing

    def begin(self) -> None:
        """Measure the pace from now on; slices counted so far are from an earlier run."""
        self._began_s, self._before = time.monotonic(), sum(point.work_done for point in self.points.values())

    def time_left(self) -> str:
        """Return the time left at the pace so far, in words; before the first result an estimate, if there is one."""
        done = sum(point.work_done for point in self.points.values()) - self._before
        left = sum(point.work_left for point in self.points.values())
        took_s = time.monotonic() - self._began_s
        if not left or took_s < _MIN_PACE_S or (done <= 0 and self.engine == "model"):
            return ""
        at_work = sum(point.doing is not None for point in self.points.values())
        left_s = left * took_s / done if done > 0 else max(left / max(1, at_work), took_s)
        return f", about {left_s / 60:,.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"

    def going_on(self) -> str:
        """Describe in one line the active points with their current steps, and the time left."""
        words = [
            f"{self.configs[index].label}, {mode}: {point.words()[0]}, {point.doing}"
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
        is_model = self.engine == "model" and not any(point.done for point in self.points.values())
        if not is_model or not self._shares_links or not compiled.awaits_compiling(compiled.FLUID):
            return ""
        return ": the model of flows that share links is compiled first, once after its installation"

    @cached_property
    def _shares_links(self) -> bool:
        return any(one.shared_links(mode) for one in self.configs for mode in one.run.modes)

    def line(self, index: int, mode: str) -> str:
        """Describe a finished point in one line."""
        done, mean, gain, predicted, ratio = self.points[index, mode].words()
        parts = [self.engine, self.configs[index].label, f"{mode}: {done}", f"mean {mean}"]
        parts += [f"gain over base {gain}"] * bool(gain) + [f"predicted {predicted}, ratio {ratio}"] * bool(predicted)
        return f"[{self.finished}/{len(self.points)}] {', '.join(parts)}"

    def table(self, last: int) -> Table:
        """Return a table of the points of the last few configurations up to index `last`."""
        title = f"{self.engine}: {self.finished} of {len(self.points)} points{self.time_left()}{self._compiling()}"
        table = Table("setting", "mode", title=title, title_justify="left")
        for heading in ("collectives", "mean and 95 % interval", "gain over base", "predicted", "ratio"):
            table.add_column(heading, justify="right")
        for index in range(max(0, last + 1 - _CONFIGS_SHOWN), last + 1):
            name = self.configs[index].label
            for mode in self.configs[index].run.modes:
                table.add_row(name, mode, *self.points[index, mode].words())
                name = ""
            table.add_section()
        return table


def _new_point(engine: str, config: Scenario) -> _PointProgress:
    if engine == "model":
        return _PointProgress(len(config.collective.numbers), 0.0, 1.0)
    sent_bytes = (
        sum(transfer.amount for _, transfer in config.carried_workload.schedule.sends())
        * config.carried_workload.slot_bytes
    )
    return _PointProgress(len(config.collective.numbers), _START_S, _COLLECTIVE_S + sent_bytes / _BYTES_PER_S)


def _format_interval(interval: Interval, scale: float, unit: str, digits: int) -> str:
    """Format an estimate with its interval, if it has one."""
    value = f"{estimate(interval, scale, digits)}{unit}"
    return value if math.isnan(interval.low) else f"{value} {bracketed(interval, scale, digits)}"


def with_progress(
    events: Iterable[EngineEvent], engine: str, configs: Sequence[Scenario], before: Iterable[Slice] = ()
) -> Generator[EngineEvent, None, None]:
    """Pass on the events of a run and show its progress on stderr; `before` are the slices of an earlier run."""
    progress = Progress(engine, configs)
    for part in before:
        progress.take(part)
    progress.begin()
    console = Console(stderr=True)
    return _live(events, progress, console) if console.is_terminal else _in_lines(events, progress)


def _failure(event: EngineEvent) -> str:
    """Return what to print for a point that failed; empty for other events."""
    if isinstance(event, Retrying):
        return f"tried once more: {event.why}"
    return f"failed: {event.why}" if isinstance(event, Failed) else ""


def _in_lines(events: Iterable[EngineEvent], progress: Progress) -> Generator[EngineEvent, None, None]:
    with breaking_silence(progress.going_on) as say:
        for event in events:
            progress.note(event)
            if failure := _failure(event):
                say(failure)
            if isinstance(event, Slice) and progress.take(event):
                say(progress.line(event.setting, event.mode))
            yield event


def _live(events: Iterable[EngineEvent], progress: Progress, console: Console) -> Generator[EngineEvent, None, None]:
    last, due_s = 0, 0.0
    with Live(progress.table(0), console=console, auto_refresh=False) as live:  # no thread, as workers are forked
        for event in events:
            if failure := _failure(event):
                console.print(failure, markup=False, highlight=False)
            progress.note(event)
            if isinstance(event, Slice):
                progress.take(event)
                last = max(last, event.setting)
            if time.monotonic() >= due_s:
                live.update(progress.table(last), refresh=True)
                due_s = time.monotonic() + _REFRESH_S
            yield event
        live.update(progress.table(last), refresh=True)
