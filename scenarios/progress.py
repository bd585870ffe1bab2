"""How far a run is, on stderr: a live table on a terminal, elsewhere one plain line for each finished point.

The intervals shown here are those of the slices that have arrived so far; the results have better ones.
"""

import math
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

from scenarios.engine import Again, Failed, News, Slice
from scenarios.keys import KEYS
from scenarios.spec import Scenario
from topologies.units import format_delay, format_size

_SETTINGS_SHOWN = 4  # at most this many settings stay in the live table, so that it fits a screen
_REFRESH_S = 0.25
_FAIR_S = 2.0  # sooner than that, how fast it goes says little


@dataclass
class _Running:
    """What has arrived of one point: for every slice, by its first collective, how many and their total time."""

    counts: dict[int, int] = field(default_factory=dict)
    totals_s: dict[int, float] = field(default_factory=dict)
    predicted_s: float = 0.0
    done: int = 0

    def take(self, part: Slice) -> None:
        rows = part.rows
        self.counts[rows.start] = len(rows)
        self.totals_s[rows.start] = float(rows.completion_s.sum())
        self.done += len(rows)
        if rows.predicted_s is not None:
            self.predicted_s += float(rows.predicted_s.sum())


def label(setting: Scenario) -> str:
    """A setting in words: "8 GPUs, 64 MB, 10 us", and whatever else was swept."""
    chunk, delay = format_size(setting.collective.chunk_bytes), format_delay(setting.conditions.wan_delay_s)
    sites = setting.fabric.gpus_per_site
    gpus = setting.gpus if len(set(sites)) == 1 else "+".join(map(str, sites))
    words = [f"{gpus} GPUs", chunk, delay]
    for key, value in setting.at:
        written = KEYS[key].write(value)
        name = key.partition(".")[2].replace("_", " ")
        if key not in ("fabric.gpus", "collective.chunk", "conditions.wan_delay"):
            words.append(f"{name} {str(written).lower() if isinstance(written, bool) else written}")
    return ", ".join(words) + _clock(setting)


def _clock(setting: Scenario) -> str:
    """How a setting on the wall clock differs from what it stands for."""
    if not setting.run.is_real:
        return ""
    scale = setting.run.scale
    carried = format_size(scale.chunk_bytes(setting.collective.chunk_bytes))
    return ", wall clock" if scale.divisor == 1 else f", wall clock at {scale} of the rates with {carried}"


class Progress:
    """What has arrived of a run, point by point, in words."""

    def __init__(self, engine: str, settings: Sequence[Scenario]) -> None:
        self.engine = engine
        self.settings = settings
        self.finished = 0
        self._began_s = time.monotonic()
        self._before = 0
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
        return complete

    def begin(self) -> None:
        """Begin to measure how fast the rest comes: what has been taken so far was there."""
        self._began_s = time.monotonic()
        self._before = sum(point.done for point in self._points.values())

    def time_left(self) -> str:
        """How long the rest takes if it goes on as it did, in words; nothing where that cannot be said."""
        done = sum(point.done for point in self._points.values())
        due = sum(setting.collective.count * len(setting.run.modes) for setting in self.settings)
        took_s = time.monotonic() - self._began_s
        if done in (self._before, due) or took_s < _FAIR_S:
            return ""
        left_s = (due - done) * took_s / (done - self._before)
        return f", about {left_s / 60:,.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"

    def against_model(self, place: int, mode: str) -> tuple[str, str]:
        """Of one point that is measured: the mean that the model predicts for the same collectives, and the ratio."""
        point = self._points[place, mode]
        if not point.predicted_s:
            return "", ""
        mean_ms = point.predicted_s / point.done * 1e3
        return f"{mean_ms:,.3f} ms", f"{sum(point.totals_s.values()) / point.predicted_s:.4f}"

    def line(self, place: int, mode: str) -> str:
        """A finished point in one line."""
        done, mean, gain = self.words(place, mode)
        point = f"{self.engine}, {label(self.settings[place])}, {mode}"
        gain = gain and f", {gain} below base"
        predicted, ratio = self.against_model(place, mode)
        gain += predicted and f", predicted {predicted}, ratio {ratio}"
        return f"[{self.finished}/{self.points}] {point}: {done}, mean {mean}{gain}"

    def words(self, place: int, mode: str) -> tuple[str, str, str]:
        """Of one point: collectives done, mean with 95 % interval, gain over base with 95 % interval."""
        point, base = self._points[place, mode], self._points.get((place, "base"))
        done = f"{point.done:,} of {self.settings[place].collective.count:,}"
        if not point.done:
            return done, "", ""
        mean_s, half_s = _ratio(point.totals_s, point.counts)
        if point.predicted_s:  # slices of one collective hang together: the results have an interval
            half_s = None
        mean = f"{mean_s * 1e3:,.3f} ms{f' ± {half_s * 1e3:,.3f}' if half_s is not None else ''}"
        if base is None or not base.done or mode == "base":
            return done, mean, ""
        share, half = _ratio(point.totals_s, base.totals_s)
        if point.predicted_s:
            half = None
        return done, mean, f"{(1 - share) * 100:.1f} %{f' ± {half * 100:.1f}' if half is not None else ''}"


def _ratio(above: Mapping[int, float], below: Mapping[int, float]) -> tuple[float, float | None]:
    """Total over total of the slices both have, and half its 95 % interval (None below two slices).

    The slices are the units that vary: within one, collectives may hang together (rings, temporal correlation).
    """
    starts = [start for start in list(above) if start in below]
    total, base = sum(above[start] for start in starts), sum(below[start] for start in starts)
    if not starts:
        return math.nan, None
    ratio = total / base
    if len(starts) < 2:
        return ratio, None
    spread = sum((above[start] - ratio * below[start]) ** 2 for start in starts) / (len(starts) - 1)
    return ratio, 1.96 * math.sqrt(spread * len(starts)) / base


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
    """One line for each point when it is finished, or given up."""
    for item in news:
        if words := _troubled(item):
            print(words, file=sys.stderr, flush=True)
        if isinstance(item, Slice) and progress.take(item):
            print(progress.line(item.setting, item.mode), file=sys.stderr, flush=True)
        yield item


def _live(news: Iterable[News], progress: Progress, console: Console) -> Generator[News, None, None]:
    """A table that is redrawn in place, from this thread alone: no other runs while workers start."""
    due = 0.0
    with Live(console=console, auto_refresh=False) as live:
        place = 0
        live.update(_table(progress, place), refresh=True)
        for item in news:
            if words := _troubled(item):
                console.print(words, markup=False, highlight=False)
            if isinstance(item, Slice):
                progress.take(item)
                place = max(place, item.setting)
            if time.monotonic() >= due:
                live.update(_table(progress, place), refresh=True)
                due = time.monotonic() + _REFRESH_S
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
            table.add_row("" if row else label(setting), mode, *words, end_section=ends)
    return table
