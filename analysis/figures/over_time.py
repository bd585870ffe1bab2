"""A run over time: the time of each collective, and below it the rates of the WAN links that it used.

A run gets this figure if its conditions have a memory (a trace, markov, ar1, or conditions by time) or if it has
faults. Faults are spans; below the figure is what each cost. A link that a fault takes down has the rate 0.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import AutoLocator, FixedFormatter, FixedLocator, MaxNLocator

from analysis.figures.collective_detail import links_in_use
from analysis.figures.faults_in_force import dead_cables, dead_links, links_of_fault, of_point
from analysis.figures.output import Picture, canvas, csv_text, heading, legend, legible_pt
from analysis.figures.run_points import Configuration, PointRows, Points
from analysis.figures.style import FAINT, INK, MODE_STYLES, dashed_style, line, marker, place_of, time_unit
from analysis.results.reader import Run
from analysis.statistics.declared_faults import DeclaredFault
from analysis.statistics.fault_costs import (
    FaultCost,
    attempts_sentence,
    beside_each_other,
    chance,
    costs_words,
    faults_of,
    told,
)
from analysis.statistics.number_words import milliseconds
from topologies.conditions.clock import in_utc
from topologies.conditions.sampler import sampler, trace_of
from topologies.conditions.timed import Timed
from topologies.conditions.trace import Trace
from topologies.errors import ConditionsError, list_all, list_first
from topologies.fabric.fabric import LogicalLink
from topologies.fabric.link_names import in_short
from topologies.fabric.ports import links_in_grain
from topologies.units import format_delay

Floats = npt.NDArray[np.float64]

_WITH_MEMORY = ("trace", "markov", "ar1")
_MOST = 200  # collectives that are drawn
_BEFORE = 20  # of them before the first fault, if it is later than the first _MOST
_LINKS = 6
_MOST_LINES = 3  # of rates on one axis; more cross each other, and each gets a row
_NAMED = 3  # links that the name of a line tells
_INCHES = 5.2
_COSTS, _MOST_JOBS = 6, 4  # faults whose cost is written below the figure, and jobs in each
_MARKER = 0.015  # room for half a marker, as a share of an axis
_MOST_ROWS, _LEAST = 400, 10  # rows of conditions by time that are drawn, in at least so many collectives

_MOST_CLOCK, _LEAST_CLOCK_S = 6, 4.0  # times of day above a figure, and the shortest time that has some
_CLOCK_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


Shown = Sequence[tuple[PointRows, npt.NDArray[np.bool_]]]
"""Points, each with a mask of the rows that are drawn."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A fault in force, from its beginning to its end, both on the axis of collectives.

    It ended earlier in some modes, at each of `overs`. `why` says in which, and for what reason. `links` are down
    meanwhile.
    """

    what: str
    begin: float
    end: float
    links: tuple[int, ...] = ()
    overs: tuple[float, ...] = ()
    why: str = ""


def is_drawn(configuration: Configuration) -> bool:
    """Return whether the times of a configuration's collectives follow each other in a way worth a figure."""
    values = configuration.values
    has_memory = values["conditions.sampler"] in _WITH_MEMORY or values.get("conditions.every") is not None
    return has_memory or bool(values.get("fault"))


def picture(name: str, run: Run, points: Points, configuration: Configuration) -> Picture | None:
    """Draw the collectives of a configuration of the run called `name`; None if it has none."""
    here = [point for (_, index, _), point in points.items() if index == configuration.index]
    if not here:
        return None
    faults = list(_faults(run, configuration, here))
    window = _window(configuration, here, faults)
    shown = [(point, (point.number >= window[0]) & (point.number < window[1])) for point in here]
    used = _used(run, configuration, shown)
    rates = _rates(run, configuration, window, used, faults)
    names = [link.name for link in rates.links]
    before = _before(configuration)
    down = cache(partial(_down, run, configuration))
    rows = list(_rows(shown, rates, down, is_timed=_is_timed(configuration)))
    lines = _lines(rates, _gaps(configuration, window, rates.links))
    gaps = {one.gaps for one in lines.values()}
    # On one axis a gap of one line would shade the others, too.
    has_rows = len(lines) > _MOST_LINES or len(gaps) > 1
    below = max(1.7, 0.3 + 0.3 * len(lines)) if has_rows else 1.7
    with canvas(_INCHES, 2.9 + below if names else 3.2) as figure:
        grid = figure.subplots(
            2 if names else 1, 1, sharex=True, squeeze=False, height_ratios=[2.5, below][: 1 + bool(names)]
        )
        times, *others = grid[:, 0]
        _draw_times(times, shown)
        for axes in others:
            (_draw_rows if has_rows else _draw_rates)(axes, rates.steps, lines, before)
        for axes in grid[:, 0]:
            for span in faults:
                if span.begin < window[1] and span.end > window[0]:
                    ends = max(span.begin, window[0] - before), min(span.end, window[1] - before)
                    axes.axvspan(*ends, facecolor="#EEEEEE", edgecolor=FAINT, hatch="////", linewidth=0.4, zorder=0)
                    for over in span.overs:
                        axes.axvline(over, color=FAINT, linestyle="--", linewidth=0.8)
        grid[-1, 0].set_xlabel(collective_axis(configuration))
        # Where a collective begins at its number, the first one's marker needs room on the left.
        room = 0.0 if before else _MARKER * (window[1] - window[0])
        grid[-1, 0].set_xlim(window[0] - before - room, window[1] - before)
        grid[-1, 0].xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
        _draw_clock(times, configuration, window)
        heading(figure, configuration.title)
        is_within = bool(before) and any((span.begin + before) % 1 for span in faults)
        are_down = any(link.index in span.links for span in faults for link in rates.links)
        notes = [
            *_notes(configuration, here, window, are_down=are_down, is_within=is_within),
            *_costs(run, configuration),
        ]
        notes += dict.fromkeys(
            span.why for span in faults if any(window[0] - before <= at <= window[1] - before for at in span.overs)
        )
        notes += _coinciding(shown)
        notes += _hidden(_wan_links(configuration), names, used)
        patches = [_FAULT] * bool(faults) + [Patch(label="no reading: the previous rate", **_GAP)] * any(gaps)
        legend(figure, [*_handles(shown), *patches], "\n".join(notes))
    caption = f"Time of each {configuration.collective}{', and the rates of WAN links' if names else ''}: "
    stem = f"{name}-over-time" if configuration.index == 0 else f"{name}-{configuration.index}-over-time"
    return Picture(name=stem, caption=f"{caption}{configuration.label}.", figure=figure, data=csv_text(rows))


_FAULT = Patch(facecolor="#EEEEEE", edgecolor=FAINT, hatch="////", label="a fault is in force")
_GAP: Mapping[str, Any] = {"facecolor": "#F3E3B3", "edgecolor": FAINT, "hatch": "...", "linewidth": 0.0, "zorder": 0}
"""The look of the collectives in a gap of a trace."""


def collective_axis(configuration: Configuration) -> str:
    """Return what the axis of collectives counts."""
    what = f"number of the {configuration.collective}"
    if not _is_timed(configuration):
        return what
    seconds = interval_s(configuration)
    return f"{what}, one every {format_delay(seconds)}" if seconds else what


def interval_s(configuration: Configuration) -> float | None:
    """Return the time from one collective to the next in seconds; None if conditions have no time."""
    values = configuration.values
    if values["conditions.sampler"] == "trace":
        return float(values["conditions.trace_step"])
    every = values.get("conditions.every")
    return None if every is None else float(values.get("conditions.interval") or every)


class _FromZero(AutoLocator):
    """The ticks of a clock, which does not run before 0."""

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        return [tick for tick in super().tick_values(vmin, vmax) if tick >= 0]


def _draw_clock(axes: Axes, configuration: Configuration, window: tuple[int, int]) -> None:
    """Add an axis above with the time of the conditions, counted from collective 0, if they have one, or the time of
    day if it is known when their trace begins."""
    seconds = interval_s(configuration)
    if not seconds:
        return
    unit_s, unit = _clock_unit(seconds * window[1])
    times: Any = partial(np.multiply, seconds / unit_s), partial(np.multiply, unit_s / seconds)
    above = axes.secondary_xaxis("top", functions=times)
    what = "time in the trace" if configuration.values["conditions.sampler"] == "trace" else "time of the conditions"
    trace = _trace_of(configuration)
    begins_ns = None if trace is None or trace.repeats else trace.begins_ns
    first_s, last_s = (seconds * max(0.0, end) for end in (window[0], window[1] - 1))
    if begins_ns is not None and last_s - first_s >= _LEAST_CLOCK_S:
        ticks = times_of_day(begins_ns, first_s, last_s)
        above.set_xlabel(f"time of day, UTC, from {in_utc(begins_ns + round(first_s * 1e9)).removesuffix(' UTC')} on")
        above.xaxis.set_major_locator(FixedLocator([at_s / unit_s for at_s in ticks]))
        above.xaxis.set_major_formatter(FixedFormatter([*ticks.values()]))
        return
    above.set_xlabel(f"{what} ({unit}){'' if begins_ns is None else f', from {in_utc(begins_ns)} on'}")
    above.xaxis.set_major_formatter("{x:,.10g}")
    above.xaxis.set_major_locator(_FromZero())


def times_of_day(begins_ns: int, first_s: float, last_s: float) -> dict[float, str]:
    """Return a few round times of day between two times, in s from the beginning of a trace, which is in ns since 1970:
    their text by the time in s from there. Where days change it has the date."""
    whole, rest_ns = divmod(begins_ns, 10**9)
    begin_s = whole + rest_ns / 1e9
    step_s = next((one for one in _CLOCK_STEPS_S if (last_s - first_s) / one <= _MOST_CLOCK), 0)
    step_s = step_s or 86_400 * math.ceil((last_s - first_s) / 86_400 / _MOST_CLOCK)
    first = math.ceil((begin_s + first_s) / step_s)
    last = math.floor((begin_s + last_s) / step_s)
    at = [datetime.fromtimestamp(number * step_s, UTC) for number in range(first, last + 1)]
    form = "%H:%M:%S" if step_s < 60 else "%H:%M"
    days = [f"{one:%m-%d} " if index and one.date() != at[index - 1].date() else "" for index, one in enumerate(at)]
    return {one.timestamp() - begin_s: f"{day}{one.strftime(form)}" for one, day in zip(at, days, strict=True)}


def _clock_unit(longest_s: float) -> tuple[float, str]:
    """Return the unit of a clock that runs for so long."""
    longer = ((36_000.0, 3600.0, "h"), (600.0, 60.0, "min"))
    return next(((unit_s, unit) for least_s, unit_s, unit in longer if longest_s >= least_s), time_unit(longest_s))


_Gaps = tuple[tuple[int, int], ...]
"""The drawn collectives in which a rate holds for longer than usual, as a trace lacks rows: the first of each sequence,
and the one after its last."""


def _gaps(configuration: Configuration, window: tuple[int, int], links: Sequence[LogicalLink]) -> list[_Gaps]:
    """Return the gaps of each of these links."""
    trace = _trace_of(configuration)
    if trace is None or _is_timed(configuration):
        return [()] * len(links)
    return [_sequences(trace.in_gaps_of(window[1], link.index), window[0]) for link in links]


def _sequences(numbers: Collection[int], first: int) -> _Gaps:
    """Return the sequences of these numbers, from `first` on, that follow each other."""
    within = sorted(number for number in numbers if number >= first)
    begins = [number for before, number in pairwise([-2, *within]) if number > before + 1]
    ends = [number + 1 for number, after in pairwise([*within, math.inf]) if after > number + 1]
    return tuple(zip(begins, map(int, ends), strict=True))


def _trace_of(configuration: Configuration) -> Trace | None:
    """Return the trace of a configuration; None without one, and where its file has gone."""
    try:
        return trace_of(sampler(configuration.fabric, configuration.conditions, seed=configuration.seed))
    except ConditionsError:  # the file is missing
        return None


def _is_timed(configuration: Configuration) -> bool:
    return configuration.values.get("conditions.every") is not None


def _before(configuration: Configuration) -> float:
    """Return how far before its number a collective begins on the axis of collectives."""
    return 0.0 if _is_timed(configuration) and interval_s(configuration) else 0.5


def _faults(run: Run, configuration: Configuration, points: Sequence[PointRows]) -> Iterator[Span]:
    """Yield the faults on the axis of collectives, each until it was over in all of these points.

    There a collective reaches from half a number before its own to half a number after it, and a fault begins as far
    within that as within the longest time of the collective. With conditions by time the axis is one of time: a
    collective begins at its number, and a fault within it so much later, at the latest when the next one is due.
    """
    seconds = interval_s(configuration) if _is_timed(configuration) else None
    before = _before(configuration)
    of_points = [of_point(run, configuration, point.engine, point.mode) for point in points]
    for place in range(len(of_points[0])):
        faults = [(point, each[place]) for point, each in zip(points, of_points, strict=True)]
        measured = [one for one in faults if one[0].engine == "emulation" and one[1].first in one[0].number]
        where, alike = zip(*measured or faults, strict=True)
        fault = alike[0]
        ends = [_end(one, point, seconds) for point, one in (_knows_end(pair, faults) for pair in measured or faults)]
        lasts_s = seconds or max((_time_s(point, fault.first) for point in where), default=0.0)
        share = min(1.0, fault.after_s / lasts_s) if fault.after_s and lasts_s else 0.0
        about: dict[str, Any] = {"what": fault.what, "begin": fault.first - before + share, "end": max(ends) - before}
        about["links"] = links_of_fault(configuration.fabric, fault)
        within: dict[float, dict[str, float]] = {}
        for end, point in sorted(zip(ends, where, strict=True), key=lambda one: (one[0], place_of(one[1].mode))):
            within.setdefault(_last_hit(end), {})[point.mode] = end
        *early, _ = within.values()
        if early:
            has_lost = _has_lost(run, configuration, [mode for group in early for mode in group])
            about["overs"] = tuple(min(group.values()) - before for group in early)
            about["why"] = _why_over(fault, {number: [*modes] for number, modes in within.items()}, has_lost=has_lost)
        yield Span(**about)


def _knows_end(
    pair: tuple[PointRows, DeclaredFault], faults: Sequence[tuple[PointRows, DeclaredFault]]
) -> tuple[PointRows, DeclaredFault]:
    """Return the point of a pair's mode, with its fault, that tells when that was over: the point itself, or, if its
    collectives ended before a fault that lasts for a time, another one of `faults` that has the end."""
    point, fault = pair
    if fault.lasts_s is None or math.isfinite(fault.end):
        return pair
    return next((one for one in faults if one[0].mode == point.mode and math.isfinite(one[1].end)), pair)


def _last_hit(end: float) -> float:
    """Return the last collective that a fault hits which is over at this place; infinite if it is not over."""
    return math.ceil(end) - 1 if math.isfinite(end) else end


def _why_over(fault: DeclaredFault, modes: Mapping[float, Sequence[str]], *, has_lost: bool) -> str:
    """Return where a fault was over in each of these modes, which are given by the last collective that it hit, and
    why not everywhere at once: a count of collectives ends earlier by every attempt that is lost, a time by everything
    that takes longer."""
    in_last = "after" if fault.lasts_s is None else "in"
    ends = [
        f"{list_all(sorted(names, key=place_of))} "
        + (f"{in_last} collective {number:,}" if math.isfinite(number) else "not until the end")
        for number, names in modes.items()
    ]
    said = f"The fault {fault.what} was over in {', in '.join(ends)} (dashed: where earlier than in all)"
    if fault.lasts_s is None:
        return f"{said}: every attempt that was lost counts as a collective."
    failed = ", failed attempts included," if has_lost else ""
    lasts = format_delay(fault.lasts_s)
    return f"{said}: its {lasts} count while collectives run{failed} and end early where these take long."


def _has_lost(run: Run, configuration: Configuration, modes: Sequence[str]) -> bool:
    """Return whether any attempt failed in these modes because of a fault."""
    table = run.faults
    here = table[(table["setting"] == configuration.index) & table["mode"].isin(modes)]
    return bool(here["collectives_lost"].any())


def _end(fault: DeclaredFault, point: PointRows, seconds: float | None) -> float:
    """Return where a fault was over at a point, in collectives: one that lasts for a time as far within the last one
    that it hit as within its time, counted without attempts that failed. With conditions by time a collective is
    `seconds` long."""
    if fault.lasts_s is None or math.isinf(fault.end):
        return fault.end
    left_s = fault.lasts_s + (fault.after_s or 0.0)
    for number in range(fault.first, int(fault.end)):
        took_s = _time_s(point, number)
        if left_s < took_s:
            return number + min(1.0, left_s / (seconds or took_s))
        left_s -= took_s
    return fault.end


def _time_s(point: PointRows, number: int) -> float:
    """Return how long a collective of a point took, 0 if it has not run."""
    return float(point.completion_s[point.number == number].sum())


def _window(configuration: Configuration, points: Sequence[PointRows], faults: Sequence[Span]) -> tuple[int, int]:
    """Return the first collective that is drawn, and the one after the last: those of the whole run, or if they are too
    many, from the first one on, from the first measured one if others were later, or around the first fault."""
    numbers = np.concatenate([point.number for point in points])
    first, last, most = int(numbers.min()), int(numbers.max()), _MOST
    values = configuration.values
    if _is_timed(configuration):
        seconds = interval_s(configuration) or values["conditions.every"]
        most = max(_LEAST, min(_MOST, round(_MOST_ROWS * values["conditions.every"] / seconds)))
    measured = np.concatenate([numbers[:0], *(point.number for point in points if point.engine == "emulation")])
    if measured.size and measured.max() >= first + most:
        first = int(measured.min())
    begins = [math.floor(span.begin + 0.5) for span in faults]
    if begins and min(begins) >= first + most:
        first = min(begins) - min(_BEFORE, most // 2)
    return first, min(last + 1, first + most)


def _used(run: Run, configuration: Configuration, shown: Shown) -> Counter[int]:
    """Return how often the drawn collectives use each link."""
    used = Counter[int]()
    for point, rows in shown:
        faults = of_point(run, configuration, point.engine, point.mode)
        used += links_in_use(configuration, point.rows[rows], faults)
    return used


def _wan_links(configuration: Configuration) -> list[LogicalLink]:
    return [link for link in links_in_grain(configuration.fabric).all if link.kind == "wan"]


def _hidden(links: Sequence[LogicalLink], names: Sequence[str], used: Counter[int]) -> Iterator[str]:
    """Yield how many WAN links are shown if not all are, and which."""
    if 0 < len(names) < len(links):
        shown = [used[link.index] for link in links if link.name in names]
        rest = [used[link.index] for link in links if link.name not in names]
        which = "those used most" if any(rest) else "those used"
        if max(rest) > min(shown):
            which = "those used whose rates change, then those used most"
        yield f"{len(names)} of {len(links)} WAN links are shown: {which}."


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rates:
    """The rates of the WAN links that are drawn.

    They hold from `steps` on, [S] on the axis of collectives, as `conditions_bps`, [S, links] bit/s without the faults,
    and `drawn_bps`, 0 where a fault has taken a link down.
    """

    steps: Floats
    conditions_bps: Floats
    drawn_bps: Floats
    links: Sequence[LogicalLink]


def _rates(
    run: Run, configuration: Configuration, window: tuple[int, int], used: Counter[int], faults: Sequence[Span]
) -> _Rates:
    """Return the rates of the links that are drawn: those of the WAN that are used and whose rates change, then those
    that are used most often. A link that is always the same explains no time. There are none if the conditions can
    neither be drawn again nor are stored.
    """
    links = [link for link in _wan_links(configuration) if used[link.index] or not used]
    none = _Rates(steps=np.empty(0), conditions_bps=np.empty((0, 0)), drawn_bps=np.empty((0, 0)), links=())
    if not links:
        return none
    try:
        steps, rates_bps = _drawn(configuration, window)
    except ConditionsError:  # the file of the trace is missing
        table = run.conditions
        stored = table[
            (table["setting"] == configuration.index) & table["collective"].between(window[0], window[1] - 1)
        ]
        if stored.empty or _is_timed(configuration):
            return none
        wide = stored.pivot_table(index="collective", columns="link", values="rate_bps")
        steps, rates_bps = np.asarray(wide.index, dtype=np.float64) - 0.5, wide.to_numpy(dtype=np.float64)
    steps, rates_bps = _at_faults(steps, rates_bps, faults, window[1])
    drawn_bps = rates_bps.copy()
    for span in faults:
        drawn_bps[np.ix_((steps >= span.begin) & (steps < span.end), np.array(span.links, dtype=np.int64))] = 0.0
    changes = (drawn_bps != drawn_bps[:1]).any(axis=0)
    chosen = sorted(links, key=lambda link: (not changes[link.index], -used[link.index], link.index))[:_LINKS]
    chosen.sort(key=lambda link: link.index)
    kept = [link.index for link in chosen]
    return _Rates(steps=steps, conditions_bps=rates_bps[:, kept], drawn_bps=drawn_bps[:, kept], links=chosen)


def _at_faults(
    steps: npt.NDArray[Any], rates_bps: Floats, faults: Sequence[Span], end: int
) -> tuple[npt.NDArray[Any], Floats]:
    """Return the steps and the rates from them on, with a step of its own where a link goes down or comes back."""
    for at in sorted({at for span in faults if span.links for at in (span.begin, span.end)}):
        if steps[0] < at < end and at not in steps:
            place = int(np.searchsorted(steps, at))
            steps, rates_bps = np.insert(steps, place, at), np.insert(rates_bps, place, rates_bps[place - 1], axis=0)
    return steps, rates_bps


def _down(run: Run, configuration: Configuration, engine: str, mode: str, number: int) -> frozenset[int]:
    """Return the links that are down when a collective of a point begins."""
    faults = of_point(run, configuration, engine, mode)
    return frozenset(dead_links(configuration.fabric, dead_cables(configuration.fabric, faults, number)))


def _drawn(configuration: Configuration, window: tuple[int, int]) -> tuple[npt.NDArray[Any], Floats]:
    """Return where rates begin to hold, and the rates of all links, drawn again from the seed."""
    draws = sampler(configuration.fabric, configuration.conditions, seed=configuration.seed)
    first, end = window
    if not isinstance(draws, Timed):
        return np.arange(first, end) - 0.5, draws.rates_bps(first, end - first)
    row, last = int(draws.row(np.array(first))), int(draws.row(np.array(end)))
    last = last if draws.source.limit is None else min(last, draws.source.limit - 1)
    steps = np.arange(row, last + 1) * draws.every_ns / draws.interval_ns
    return np.maximum(steps, first - 0.5), draws.source.rates_bps(row, last + 1 - row)


def _draw_times(axes: Axes, shown: Shown) -> None:
    highest = max((float(point.completion_s[rows].max()) for point, rows in shown if rows.any()), default=1.0)
    unit_s, unit = time_unit(highest)
    measured = {point.mode: (point, rows) for point, rows in shown if point.engine == "emulation"}
    for mode, (point, rows) in measured.items():
        axes.plot(point.number[rows], point.completion_s[rows] / unit_s, zorder=3, **marker(mode, measured=True))
    for mode, (number, predicted_s) in _predicted(shown).items():
        axes.plot(number, predicted_s / unit_s, zorder=2, **line(mode))
    axes.set_ylabel(f"time of a collective ({unit})")
    axes.margins(y=0.08)
    axes.update_datalim([(0, 0)], updatex=False)  # so that equal times have a margin above their markers, too
    axes.set_ylim(bottom=0)


def _predicted(shown: Shown) -> dict[str, tuple[npt.NDArray[np.int64], Floats]]:
    """Return the predicted times of each mode, and the collectives that have them: those of the model, and of measured
    collectives that follow each other the predictions of what they have done."""
    predicted: dict[str, tuple[npt.NDArray[np.int64], Floats]] = {}
    for point, rows in sorted(shown, key=lambda one: one[0].engine != "model"):
        number, predicted_s = point.number[rows], point.predicted_s[rows]
        if point.engine == "model":
            predicted[point.mode] = number, predicted_s
        elif _follow(number):
            others, times_s = predicted.get(point.mode, (number[:0], predicted_s[:0]))
            kept = ~np.isin(others, number)
            every, all_s = np.concatenate([others[kept], number]), np.concatenate([times_s[kept], predicted_s])
            order = np.argsort(every)
            predicted[point.mode] = every[order], all_s[order]
    return predicted


def _coinciding(shown: Shown) -> Iterator[str]:
    """Yield which modes cannot be told apart, because the same collectives of theirs take the same times."""
    groups = list[tuple[list[str], npt.NDArray[np.int64], Floats]]()
    modes = {point.mode for point, _ in shown}
    for mode in (one for one in MODE_STYLES if one in modes):
        drawn = [(point.number[rows], point.completion_s[rows]) for point, rows in shown if point.mode == mode]
        number, took_s = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
        for names, numbers, times_s in groups:
            if np.array_equal(numbers, number) and np.allclose(times_s, took_s, rtol=_ALIKE, atol=0):
                names.append(mode)
                break
        else:
            groups.append(([mode], number, took_s))
    for names, number, _ in groups:
        if len(names) > 1 and number.size:
            yield f"{list_all(names)} take the same times and lie on each other."


def _follow(number: npt.NDArray[Any]) -> bool:
    """Return whether these numbers follow each other without a gap."""
    return bool((np.diff(number) == 1).all())


class _Line(NamedTuple):
    """A line of rates, [S] Gbit/s, and the gaps in which one of them holds for longer than usual."""

    gbps: Floats
    gaps: _Gaps


def _lines(rates: _Rates, gaps: Sequence[_Gaps]) -> dict[str, _Line]:
    """Return the lines of rates by name: one for links that always have the same rate, and the same `gaps`."""
    equal: dict[tuple[bytes, _Gaps], list[int]] = {}
    for index, of_link in enumerate(gaps):
        equal.setdefault((rates.drawn_bps[:, index].tobytes(), of_link), []).append(index)
    named = {}
    for (_, of_links), alike in equal.items():
        name = list_first(in_short([rates.links[index].name for index in alike]), _NAMED)
        named[name] = _Line(rates.drawn_bps[:, alike[0]] / 1e9, of_links)
    return named


def _draw_rates(axes: Axes, steps: Floats, lines: Mapping[str, _Line], before: float) -> None:
    """Draw a few lines on one axis, with their names above. A collective begins so far before its number."""
    ends = np.append(steps, steps[-1] + 1)
    for number, (name, (rates, _)) in enumerate(lines.items()):
        look = {"linewidth": 1.1} | dashed_style(number)
        axes.step(ends, np.append(rates, rates[-1:]), where="post", label=name, **look)
    for begin, end in next(iter(lines.values())).gaps:  # of all of them
        axes.axvspan(begin - before, end - before, **_GAP)
    axes.set_ylabel("rate (Gbit/s)")
    highest = max(float(rates.max()) for rates, _ in lines.values())
    has_dead = any(float(rates.min()) == 0 for rates, _ in lines.values())  # whose line the axis would hide
    axes.set_ylim(-0.06 * highest if has_dead else 0, 1.06 * highest)
    size_pt = legible_pt(axes.figure.figure, 7.5)
    character = 0.6 * size_pt / 72
    columns = max(1, min(len(lines), int((_INCHES - 0.7) / (0.5 + character * max(map(len, lines))))))
    where: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "columnspacing": 1, "handlelength": 1.6}
    axes.legend(fontsize=size_pt, ncols=columns, **where)


def _draw_rows(axes: Axes, steps: Floats, lines: Mapping[str, _Line], before: float) -> None:
    """Draw each line in a row of its own, from 0 to the highest rate of all: on one axis they would cross. A collective
    begins so far before its number."""
    ends, highest = np.append(steps, steps[-1] + 1), max(float(rates.max()) for rates, _ in lines.values())
    for row, (rates, gaps) in enumerate(lines.values()):
        for begin, end in gaps:
            corner = begin - before, len(lines) - 1 - row
            axes.add_patch(Rectangle(corner, end - begin, _ROW_HEIGHT, **_GAP))
        height = len(lines) - 1 - row + _ROW_HEIGHT * np.append(rates, rates[-1:]) / (highest or 1.0)
        axes.fill_between(ends, len(lines) - 1 - row, height, step="post", color=_OF_ROWS, alpha=0.35, linewidth=0)
        axes.step(ends, height, where="post", color=_OF_ROWS, linewidth=0.9)
        axes.axhline(len(lines) - 1 - row, color=FAINT, linewidth=0.6)
    axes.set_yticks(np.arange(len(lines))[::-1] + 0.4, lines, fontsize=legible_pt(axes.figure.figure, 7.5), color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0, len(lines))
    axes.set_ylabel(f"rates: a row has\n0 to {highest:,.3g} Gbit/s")
    axes.grid(False)


_ALIKE = 1e-3  # of times that a figure cannot show apart
_ROW_HEIGHT, _OF_ROWS = 0.82, "#2A64A0"


def _handles(shown: Shown) -> list[Line2D]:
    here = {
        point.mode: point.engine == "emulation"
        for point, rows in sorted(shown, key=lambda one: one[0].engine != "model")
        if rows.any()
    }
    looks = {
        mode: line(mode) | (marker(mode, measured=True) if is_measured else {}) for mode, is_measured in here.items()
    }
    modes = [mode for mode in MODE_STYLES if mode in here]
    return [Line2D([], [], label=MODE_STYLES[mode].label, **(looks[mode] | line(mode))) for mode in modes]


def _notes(
    configuration: Configuration,
    points: Sequence[PointRows],
    window: tuple[int, int],
    *,
    are_down: bool,
    is_within: bool,
) -> Iterator[str]:
    """Yield how to read the figure, and what it leaves out."""
    is_measured = any(point.engine == "emulation" for point in points)
    rates = " A link that is down has the rate 0." if are_down else ""
    lines = ["Lines: predicted"] * any(point.engine == "model" or _follow(point.number) for point in points)
    yield "; ".join([*lines, *["markers: measured"] * is_measured]).capitalize() + f".{rates}"
    if is_within:
        yield "A fault begins as far into the width of a collective as into its time."
    most = max(int(point.number.max()) + 1 for point in points)
    if all(point.engine == "emulation" for point in points) and not isinstance(
        configuration.values["collective.emulated"], int
    ):  # a range or a period of the collectives, whose last one may be any
        most = max(most, int(configuration.values["collective.count"]))
    if most > window[1] or window[0]:
        yield f"Collectives {window[0]:,} to {window[1] - 1:,} of {most:,}.{_longest_words(points, window)}"


def _longest_words(points: Sequence[PointRows], window: tuple[int, int]) -> str:
    """Return which collective was the longest of all, if it is not within the window."""
    longest = max(points, key=lambda point: float(point.completion_s.max()))
    place = int(longest.completion_s.argmax())
    number = int(longest.number[place])
    how = "measured" if longest.engine == "emulation" else "predicted"
    time = milliseconds(float(longest.completion_s[place]))
    is_shown = window[0] <= number < window[1]
    return "" if is_shown else f" The longest of all is number {number:,} in {longest.mode}, {how} as {time} ms."


def _costs(run: Run, configuration: Configuration) -> Iterator[str]:
    """Yield what each fault cost, by mode: the time that it took from the collectives that it hit, predicted where it
    was not measured."""
    alike: dict[tuple[int, str, bool], list[tuple[str, FaultCost]]] = {}
    of_points = told(faults_of(run))
    for point, faults in sorted(of_points.items(), key=lambda one: place_of(one[0].mode)):
        for each in beside_each_other([(one,) for one in faults]) if point.setting == configuration.index else ():
            (one,) = each.results
            key = one.at_collective, one.what, not one.is_measured
            alike.setdefault(key, []).append((point.mode, each))
    for number, ((at, what, is_predicted), results) in enumerate(sorted(alike.items(), key=lambda one: one[0])):
        if number == _COSTS:
            yield f"{len(alike) - _COSTS} more faults are in faults.parquet."
            break
        known = [(mode, one) for mode, one in results if one.cost_words is not None]
        is_same = len({one.some_words for _, one in known}) < 2
        costs = [f"{mode} {_cost(one)}{'' if is_same else one.some_words}" for mode, one in known]
        unknown = "a time that the model does not predict" if is_predicted else "a time that is not known"
        verb = "is predicted to cost" if is_predicted and costs else "cost"
        some = results[0][1].some_words if is_same else ""
        yield f"{what} in collective {at:,} {verb} {', '.join(costs) or unknown}{some}."
    here = [one for point, faults in of_points.items() if point.setting == configuration.index for one in faults]
    yield from filter(None, [attempts_sentence(here)])
    depends = chance([(configuration.fabric, configuration.conditions, configuration.seed)])
    if alike and depends:
        yield f"{depends[0].upper()}{depends[1:]}."


def _cost(fault: FaultCost) -> str:
    """Return the cost of a fault to the rounds, and to each of several jobs, as the terminal has them."""
    jobs = [f"{job['job']} {costs_words([job['cost_s']], 0.0)}" for job in fault.results[0].told_jobs]
    whose = f" (the rounds; of the jobs {list_first(jobs, _MOST_JOBS)})" if jobs else ""
    return f"{fault.cost_words}{fault.beside_words}{whose}"


def _rows(
    shown: Shown, rates: _Rates, down: Callable[[str, str, int], frozenset[int]], *, is_timed: bool
) -> Iterator[Mapping[str, Any]]:
    """Yield the figure's data: a row for each collective of each point, with the rates under which it begins, 0 of
    links that are `down` then at this point."""
    for point, rows in shown:
        about = {"engine": point.engine, "setting": point.configuration.index, "mode": point.mode}
        for number, time_s, predicted_s in zip(
            point.number[rows].tolist(),
            point.completion_s[rows].tolist(),
            point.predicted_s[rows].tolist(),
            strict=True,
        ):
            at = number if is_timed else number - 0.5
            row = int(np.searchsorted(rates.steps, at, side="right")) - 1
            dead = down(point.engine, point.mode, number) if rates.links else ()
            cells = {
                f"rate_bps {link.name}": 0.0 if link.index in dead else rates.conditions_bps[row, index]
                for index, link in enumerate(rates.links)
                if row >= 0
            }
            yield about | {"collective": number, "completion_s": time_s, "predicted_s": predicted_s} | cells
