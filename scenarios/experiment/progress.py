"""How far a run is, on stderr: a live table on a terminal, elsewhere one plain line for each finished point.

Where there is no terminal, a line also says what is going on, and the time left, whenever none was printed for a while.
The numbers shown here are those of the results over the collectives that have arrived so far.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.live import Live
from rich.table import Table

from analysis.statistics.intervals import Interval, Series
from scenarios.engines.base import Again, Doing, Failed, News, Slice
from scenarios.experiment.statistics import point_result, series_of
from scenarios.spec.scenario import Scenario

_SETTINGS_SHOWN = 4  # at most this many settings stay in the live table, so that it fits a screen
_REFRESH_S = 0.25
_MOST_SHARE = 0.05  # of the time, at most, goes into the live table
_FAIR_S = 2.0  # sooner than that, how fast it goes says little
_SILENT_S = 8.0  # 15 at most are promised; between two heartbeats there are a few seconds more
_AT_WORK_SHOWN = 3  # points that are named in one line

# What the emulation takes on a usual machine: the expectation until the first collective, and the weights of settings.
_START_S, _COLLECTIVE_S, _BYTES_PER_S = 6.0, 0.1, 1.5e9


@dataclass
class _Running:
    """What has arrived of one point: the times of every slice, by its first collective."""

    times_s: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)
    total_s: float = 0.0
    predicted_s: float = 0.0
    done: int = 0

    def take(self, part: Slice) -> None:
        rows = part.rows
        self.times_s[rows.start] = rows.completion_s
        self.total_s += float(rows.completion_s.sum())
        self.done += len(rows)
        if rows.predicted_s is not None:
            self.predicted_s += float(rows.predicted_s.sum())

    def series(self, setting: Scenario, mode: str) -> Series:
        """What has arrived, in the order of collectives."""
        slices = sorted(self.times_s.items())
        number = np.concatenate([np.arange(start, start + len(times)) for start, times in slices])
        return series_of(setting, mode, number, np.concatenate([times for _, times in slices]))


def time_left_s(*, done: float, left: float, took_s: float, expected_s: float | None) -> float | None:
    """Seconds until the work that is `left` is over, at the pace of what was `done` in `took_s`; in any unit of work.

    Before anything is done it is `expected_s`, or as long as it has taken already; None where nothing is expected.
    """
    if done > 0:
        return left * took_s / done
    return None if expected_s is None else max(expected_s, took_s)


def work(engine: str, setting: Scenario) -> tuple[float, float]:
    """The work of a point's start and of one collective: expected seconds, or in the model collectives."""
    if engine == "model":
        return 0.0, 1.0
    chunk_bytes = setting.run.scale.chunk_bytes(setting.collective.chunk_bytes)
    return _START_S, _COLLECTIVE_S + setting.gpus * (setting.gpus - 1) * chunk_bytes / _BYTES_PER_S


class Progress:
    """What has arrived of a run, point by point, in words."""

    def __init__(self, engine: str, settings: Sequence[Scenario]) -> None:
        self.engine = engine
        self.settings = settings
        self.finished = 0
        self._began_s = time.monotonic()
        self._before = 0.0
        self._doing: dict[tuple[int, str], str] = {}
        self._final: dict[tuple[int, str], tuple[str, str, str]] = {}
        self._points = {
            (place, mode): _Running() for place, setting in enumerate(settings) for mode in setting.run.modes
        }

    @property
    def points(self) -> int:
        """How many points there are."""
        return len(self._points)

    def take(self, part: Slice) -> bool:
        """Count a slice in; returns whether the last of its point has now arrived."""
        point = self._points[part.setting, part.mode]
        point.take(part)
        complete = point.done == self.settings[part.setting].collective.count
        self.finished += complete
        if complete:
            self._doing.pop((part.setting, part.mode), None)
            self._settle(part.setting)
        return complete

    def note(self, item: News) -> None:
        """Note which point is at work, and at what."""
        point = item.setting, item.mode
        if isinstance(item, Again | Failed):
            self._doing.pop(point, None)
        elif isinstance(item, Doing) and self._points[point].done < self.settings[item.setting].collective.count:
            self._doing[point] = item.doing

    def begin(self) -> None:
        """Begin to measure how fast the rest comes: what has been taken so far was there."""
        self._began_s = time.monotonic()
        self._before = self._work()[0]

    def time_left(self) -> str:
        """How long the rest takes if it goes on as it did, in words; nothing where that cannot be said."""
        done, left = self._work()
        took_s = time.monotonic() - self._began_s
        expected_s = None if self.engine == "model" else left / max(1, len(self._doing))
        left_s = time_left_s(done=done - self._before, left=left, took_s=took_s, expected_s=expected_s)
        if not left or left_s is None or took_s < _FAIR_S:
            return ""
        return f", about {left_s / 60:,.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"

    def _work(self) -> tuple[float, float]:
        """The work that is done, and that is left, in the unit of `work`."""
        done = left = 0.0
        for (place, _), point in self._points.items():
            start, each = work(self.engine, self.settings[place])
            begun = start if point.done else 0.0
            done += begun + point.done * each
            left += start - begun + (self.settings[place].collective.count - point.done) * each
        return done, left

    def going_on(self) -> str:
        """What is going on, in one line: the points at work, what each is doing, and the time left."""
        at_work = list(self._doing.items())  # in one step: the line is made in another thread than `note` is called in
        words = [
            f"{self.settings[place].label}, {mode}: {self.words(place, mode)[0]}, {doing}"
            for (place, mode), doing in at_work[:_AT_WORK_SHOWN]
        ]
        if len(at_work) > _AT_WORK_SHOWN:
            words.append(f"and {len(at_work) - _AT_WORK_SHOWN} more points")
        if not words:
            counts = [(point.done, self.settings[place].collective.count) for (place, _), point in self._points.items()]
            words = [f"{sum(done for done, _ in counts):,} of {sum(count for _, count in counts):,} collectives"]
        return f"[{self.finished}/{self.points}] {self.engine}, {'; '.join(words)}{self.time_left()}"

    def against_model(self, place: int, mode: str) -> tuple[str, str]:
        """Of one point that is measured: the mean that the model predicts for the same collectives, and the ratio."""
        point = self._points[place, mode]
        if not point.predicted_s:
            return "", ""
        mean_ms = point.predicted_s / point.done * 1e3
        return f"{mean_ms:,.3f} ms", f"{point.total_s / point.predicted_s:.4f}"

    def line(self, place: int, mode: str) -> str:
        """A finished point in one line."""
        done, mean, gain = self.words(place, mode)
        point = f"{self.engine}, {self.settings[place].label}, {mode}"
        gain = gain and f", {gain} below base"
        predicted, ratio = self.against_model(place, mode)
        gain += predicted and f", predicted {predicted}, ratio {ratio}"
        return f"[{self.finished}/{self.points}] {point}: {done}, mean {mean}{gain}"

    def words(self, place: int, mode: str) -> tuple[str, str, str]:
        """Of one point: collectives done, mean with 95 % interval, gain over base with 95 % interval."""
        if (place, mode) in self._final:
            return self._final[place, mode]
        setting, point = self.settings[place], self._points[place, mode]
        base = None if mode == "base" else self._points.get((place, "base"))
        done = f"{point.done:,} of {setting.collective.count:,}"
        if not point.done:
            return done, "", ""
        times = point.series(setting, mode)
        found = point_result(mode, times, base.series(setting, "base") if base is not None and base.done else None)
        gain = "" if found.gain is None else _with_half(found.gain, 100, " %", 1)
        return done, _with_half(found.summary.mean_s, 1e3, " ms", 3), gain

    def _settle(self, place: int) -> None:
        """Keep the words of a setting of which all has arrived, and let its times go."""
        setting = self.settings[place]
        points = {mode: self._points[place, mode] for mode in setting.run.modes}
        if all(point.done == setting.collective.count for point in points.values()):
            self._final |= {(place, mode): self.words(place, mode) for mode in points}
            for point in points.values():
                point.times_s.clear()


def _with_half(found: Interval, scale: float, unit: str, digits: int) -> str:
    """An estimate and half its interval, where there is one."""
    half = (found.high - found.low) / 2 * scale
    return f"{found.value * scale:,.{digits}f}{unit}" + ("" if math.isnan(half) else f" ± {half:,.{digits}f}")


def shown(
    news: Iterable[News], engine: str, settings: Sequence[Scenario], before: Iterable[Slice] = ()
) -> Generator[News, None, None]:
    """Pass on the news of a run and show on stderr how far it is, `before` being what was there already."""
    progress = Progress(engine, settings)
    for part in before:
        progress.take(part)
    progress.begin()
    console = Console(stderr=True)
    return _live(news, progress, console) if console.is_terminal else _in_lines(news, progress)


def _troubled(item: News) -> str:
    """What is said of a point that failed; nothing of other news."""
    if isinstance(item, Again):
        return f"tried once more: {item.why}"
    return f"failed: {item.why}" if isinstance(item, Failed) else ""


def _in_lines(news: Iterable[News], progress: Progress) -> Generator[News, None, None]:
    """One line for each point when it is finished, or given up, and what is going on where that takes long."""
    with _beating(progress.going_on) as heartbeat:
        for item in news:
            progress.note(item)
            if words := _troubled(item):
                heartbeat.say(words)
            if isinstance(item, Slice) and progress.take(item):
                heartbeat.say(progress.line(item.setting, item.mode))
            yield item


class Heartbeat:
    """Prints lines on stderr, and what `describe` returns whenever there was none for a while."""

    def __init__(self, describe: Callable[[], str], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds."""
        self._describe, self._clock = describe, clock
        self._last_s = clock()

    def say(self, line: str) -> None:
        """Print a line."""
        print(f"{line}\n", end="", file=sys.stderr, flush=True)  # in one piece: two threads print
        self._last_s = self._clock()

    def beat(self) -> float:
        """Print what is going on if that is due; returns the seconds until it can be due again."""
        if self._clock() - self._last_s >= _SILENT_S:
            self.say(self._describe())
        return max(0.0, self._last_s + _SILENT_S - self._clock())


@contextmanager
def _beating(describe: Callable[[], str]) -> Generator[Heartbeat, None, None]:
    """A heartbeat in a thread of its own."""
    heartbeat, over = Heartbeat(describe), threading.Event()

    def beat() -> None:
        with suppress(OSError):  # whoever read stderr has gone, which the main thread finds out by itself
            while not over.wait(heartbeat.beat()):
                pass

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield heartbeat
    finally:
        over.set()
        thread.join()


@contextmanager
def still(doing: str) -> Generator[None, None, None]:
    """Say again and again, where stderr is not a terminal, that this is what the command is doing."""
    if Console(stderr=True).is_terminal:
        yield
        return
    began_s = time.monotonic()
    with _beating(lambda: f"{doing}, {time.monotonic() - began_s:.0f} s so far"):
        yield


def _live(news: Iterable[News], progress: Progress, console: Console) -> Generator[News, None, None]:
    """A table that is redrawn in place, from this thread alone: no other runs while workers start."""
    due = 0.0
    with Live(console=console, auto_refresh=False) as live:
        place = 0
        live.update(_table(progress, place), refresh=True)
        for item in news:
            if words := _troubled(item):
                console.print(words, markup=False, highlight=False)
            progress.note(item)
            if isinstance(item, Slice):
                progress.take(item)
                place = max(place, item.setting)
            if (began := time.monotonic()) >= due:
                live.update(_table(progress, place), refresh=True)
                now = time.monotonic()
                due = now + max(_REFRESH_S, (now - began) / _MOST_SHARE)
            yield item
        live.update(_table(progress, place), refresh=True)


def _table(progress: Progress, last: int) -> Table:
    """The points of the last few settings up to `last`."""
    title = f"{progress.engine}: {progress.finished} of {progress.points} points{progress.time_left()}"
    table = Table(title=title, title_justify="left")
    table.add_column("setting")
    table.add_column("mode")
    for heading in ("collectives", "mean and 95 % interval", "gain over base", "predicted", "ratio"):
        table.add_column(heading, justify="right")
    for place in range(max(0, last + 1 - _SETTINGS_SHOWN), last + 1):
        setting = progress.settings[place]
        for row, mode in enumerate(setting.run.modes):
            ends = row + 1 == len(setting.run.modes)
            words = (*progress.words(place, mode), *progress.against_model(place, mode))
            table.add_row("" if row else setting.label, mode, *words, end_section=ends)
    return table
