"""Mean completion time by mode and gain over a baseline, against a swept key, as in the paper's figures 4 and 5.

A numeric key is an x axis with a line for each mode; any other key has a tick for each value, with a bar for each mode.
If there is one mode, lines and bars are the values of a swept key that somebody chooses, such as algorithms.
The model predicts many collectives and the emulation measures the first few of them, so their means are not comparable:
one set of panels shows the model alone, another the measurements with the predictions for the same collectives.
"""

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.output import ON_WHITE, Picture, canvas, csv_text, heading, legend, log_ticks
from analysis.figures.run_points import (
    ENGINES,
    Configuration,
    FigureError,
    FigureGroup,
    Points,
    collective_words,
    settings_of,
)
from analysis.figures.style import INK, MODE_STYLES, SIDES, ModeStyle, line, marker, paler, time_unit
from analysis.statistics.contests import Place, baselines_of
from analysis.statistics.intervals import Interval, Numbers, Summary, gain, reasons, summarise
from analysis.statistics.number_words import fixed, part_words
from topologies.units import plural

_WIDE = 8.0  # ratio of the highest to the lowest time above which their axis is logarithmic
_TICK_WIDTH = 24  # the most characters in a line of a tick's label
_LEAST_ROOM = 9  # characters between ticks for labels that are not turned
_CHARACTER, _BESIDE = 0.085, 0.6  # inches of a character of a tick's label, and of what is beside the axis
_LABEL_WIDTH = 21  # characters of a line of the y label of gains
_ROUNDING = 1e-9  # smaller gains are rounding errors of sums
_MAX_COLUMNS = 4  # facets side by side; further ones are below
_PAGE = 7.2  # inches of the widest figure with panels side by side, unless a key has panels
_LOSS = -1.0  # gains on lines that are lower do not span the panel if others are above 0
_MARGIN = 0.22  # of the span of gains, beyond them
_MAX_GAINS = 4  # ticks up to which every bar has room for its gain in figures


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The completion time of a mode at a configuration, and its gain over its baseline, called `over`.

    `gain` is the saved share of the baseline's time, from pairs of the same collectives; both are None for the baseline
    itself, and for points without one.
    """

    engine: str
    configuration: Configuration
    mode: str
    summary: Summary
    gain: Interval | None
    over: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Estimates that are comparable because all are over the same collectives, told in `counted`: "first 12 of 600", to
    which `repetitions` adds their seeds."""

    engines: tuple[str, ...]
    counted: str
    repetitions: str
    estimates: tuple[Estimate, ...]


def picture(name: str, group: FigureGroup, points: Points) -> Picture:
    """Draw a group of configurations of the run called `name`.

    The grid has bands, each a row of panels with times above a row with gains.
    """
    comparisons = comparisons_of(group, points)
    is_faceted = len(group.facets) > 1
    longest = 0 if group.is_numeric else max(min(_TICK_WIDTH, len(label)) for label in group.ticks)
    inches = max(3.0 if is_faceted else 4.2, min(8.0, max(0.7, 0.08 * longest) * len(group.ticks)))
    inches = 3.0 if is_faceted and group.is_numeric else inches  # an axis of numbers leaves labels out
    beside = len(comparisons) if len(comparisons) * inches <= _PAGE else 1
    columns = min(_MAX_COLUMNS, len(group.facets)) if is_faceted else beside
    rows = -(-len(group.facets) // columns)
    bands = len(comparisons) * rows if is_faceted else -(-len(comparisons) // columns)
    drawn = []  # the band and the column of each panel, and its contents
    for index, comparison in enumerate(comparisons):
        for facet, (title, here) in enumerate(group.facets.items()):
            panel = (index * rows + facet // columns, facet % columns) if is_faceted else divmod(index, columns)
            drawn.append((panel, comparison, title, here))
    width = columns * inches
    estimates = [estimate for one in comparisons for estimate in one.estimates]
    has_gains = any(one.gain is not None and abs(one.gain.value) >= _ROUNDING for one in estimates)
    with canvas(max(5.6, width), bands * _high(bands, has_gains=has_gains) + 0.9) as figure:
        heights = [3.0, 2.0 if has_gains else 0.01] * bands
        axes = figure.subplots(2 * bands, columns, squeeze=False, sharex="col", height_ratios=heights)
        for (band, column), comparison, title, here in drawn:
            times, gains = axes[2 * band : 2 * band + 2, column]
            if is_faceted or group.is_numeric:
                gains.margins(x=0.09)  # keeps the last tick's label within its panel, clear of the next one's first
            if times is not axes[0, 0]:  # one scale, for measured and predicted times, too
                times.sharey(axes[0, 0])
                gains.sharey(axes[1, 0])
            shown = tuple(one for one in comparison.estimates if one.configuration in here)
            _draw(times, gains, replace(comparison, estimates=shown), group, estimates)
            if group.is_numeric:
                group.axis.draw(gains, inches=inches)
            else:
                is_alone = len(group.ticks) == 1
                _fit_labels(gains, list(_styles(group, comparison)) if is_alone else group.ticks, inches)
            subject = subject_of(comparison, group)
            subject = subject.replace(", ", "\n") if is_faceted else subject
            times.set_title(f"{title}\n{subject}".strip(), fontsize=8.5)
            times.tick_params(labelbottom=False)
            gains.tick_params(labelbottom=True)
            if is_faceted and column:
                for right in (times, gains):
                    right.tick_params(labelleft=False)
                    right.set_ylabel("")
        _limit(axes[1, 0], group, estimates)
        _hide_empty(axes, {panel for panel, *_ in drawn})
        legend(figure, _handles(comparisons, group), _note(comparisons, group, estimates, has_gains=has_gains))
        heading(figure, group.title)
    by = ", ".join(map(group.key_words, group.compared)) if len(group.ticks) == 1 and group.compared else group.x_label
    against = f", against {by}" if len(group.configurations) > 1 else ""
    rounds = rounds_note(group) and f" {rounds_note(group)}"
    gained = f" and gain over {baseline_of(estimates)}" if has_gains else ""
    caption = f"Mean completion time{gained}{against}: {group.title}.{rounds}"
    data = csv_text(row_of(group, estimate) for estimate in estimates)
    return Picture(name="-".join(filter(None, [name, group.name])), caption=caption, figure=figure, data=data)


def _high(bands: int, *, has_gains: bool) -> float:
    """Return the height of a band in inches: a page has room for two."""
    return (4.3 if bands == 1 else 3.8) if has_gains else 2.8


def _fit_labels(axes: Axes, ticks: Sequence[str], inches: float) -> None:
    """Wrap the labels of equally distant ticks to the room that each has on an axis of this length; turn them where
    there is room for a few characters alone. `ticks` are the labels in full."""
    # Of several bands, the upper axes have none to tell: Matplotlib leaves those of a shared axis to the lowest.
    labels = [label.get_text() for label in axes.get_xticklabels()] or list(ticks)
    room = int((inches - _BESIDE) / len(labels) / _CHARACTER)
    if room < min(_LEAST_ROOM, max(map(len, labels))):
        look: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(axes.get_xticks(), [fill(label, _TICK_WIDTH) for label in labels], **look)
    else:
        axes.set_xticks(axes.get_xticks(), [fill(label, min(room, _TICK_WIDTH)) for label in labels])


def _hide_empty(axes: Any, drawn: Set[tuple[int, int]]) -> None:
    """Hide the panels of all other bands and columns than those drawn."""
    bands, columns = axes.shape[0] // 2, axes.shape[1]
    for band, column in sorted(set(product(range(bands), range(columns))) - drawn):
        for empty in axes[2 * band : 2 * band + 2, column]:
            empty.set_axis_off()
            empty.set_in_layout(False)


def comparisons_of(group: FigureGroup, points: Points) -> list[Comparison]:
    """Return what to compare: the model alone if it has more collectives, then both engines on the same ones.

    Raises FigureError if no collective was run in every configuration and mode.
    """
    baselines = baselines_of(settings_of(points))
    model, emulation = (_common(group, points, engine) for engine in ENGINES)
    both = _in_both(model, emulation)
    wanted: list[tuple[tuple[str, ...], Numbers]] = []
    if model.size > both.size:
        wanted.append((("model",), model))
    if both.size:
        wanted.append((("emulation", "model"), both))
    elif emulation.size:
        wanted.append((("emulation",), emulation))
    if not wanted:
        raise FigureError("no collective was run in every mode yet: there is nothing to compare")
    return [
        Comparison(
            engines=engines,
            counted=part_words(among, max(model.size, emulation.size)),
            repetitions=_repetitions(group, points),
            estimates=tuple(
                estimate
                for engine in engines
                for configuration in group.configurations
                for estimate in _estimates(engine, configuration, among, points, baselines)
            ),
        )
        for engines, among in wanted
    ]


def _repetitions(group: FigureGroup, points: Points) -> str:
    """Return of which seeds the collectives of a group are, if its points have the same."""
    indices = {one.index for one in group.configurations}
    words = {point.repetitions for (_, index, _), point in points.items() if index in indices}
    return words.pop() if len(words) == 1 else ""


def _common(group: FigureGroup, points: Points, engine: str) -> Numbers:
    """Return the numbers of the collectives that every point of the engine in this group has."""
    indices = {one.index for one in group.configurations}
    numbers = [point.number for (name, index, _), point in points.items() if name == engine and index in indices]
    return reduce(_in_both, numbers) if numbers else np.empty(0, dtype=np.int64)


def _in_both(one: Numbers, other: Numbers) -> Numbers:
    return one if np.array_equal(one, other) else np.intersect1d(one, other)


def _estimates(
    engine: str,
    configuration: Configuration,
    among: Numbers,
    points: Points,
    baselines: Mapping[Place, tuple[str, Place]],
) -> Iterator[Estimate]:
    by_mode = {mode: points.get((engine, configuration.index, mode)) for mode in MODE_STYLES}
    series = {mode: point.among(among) for mode, point in by_mode.items() if point is not None}
    for mode, times in series.items():
        place = Place(configuration.index, mode)
        name, baseline = baselines.get(place, ("", place))
        other = None if baseline == place else points.get((engine, *baseline))
        saved = None if other is None else gain(other.among(among), times)
        which: Any = {"engine": engine, "configuration": configuration, "mode": mode}
        yield Estimate(**which, summary=summarise(times), gain=saved, over=None if saved is None else name)


def baseline_of(estimates: Sequence[Estimate]) -> str | None:
    """Return the name of the baseline of these estimates; None if none of them has one."""
    names = list(dict.fromkeys(one.over for one in estimates if one.over is not None))
    return (names[0] if len(names) == 1 else "the baseline") if names else None


def subject_of(comparison: Comparison, group: FigureGroup) -> str:
    """Return in words which times are compared: "measured and predicted, the same first 20 of 600
    AllGathers".

    If lines are not modes, the one mode is named, too.
    """
    name = collective_words(one.configuration for one in comparison.estimates)
    count = f"{comparison.counted} {name if comparison.counted == '1' else plural(name)}{comparison.repetitions}"
    if group.compared:
        count += f", mode {' and '.join(dict.fromkeys(one.mode for one in comparison.estimates))}"
    same = "the same " if len(comparison.engines) > 1 else ""
    return f"{_engines_words(comparison)}, {same}{count}"


def _engines_words(comparison: Comparison) -> str:
    if len(comparison.engines) > 1:
        return "measured and predicted"
    return "timing model" if comparison.engines == ("model",) else "measured"


def _draw(times: Axes, gains: Axes, shown: Comparison, group: FigureGroup, estimates: Sequence[Estimate]) -> None:
    """Draw a comparison, or its part `shown` at one value of the second swept key.

    `estimates` are those of all panels, which have the same units, scales and labels.
    """
    means_s, over = [one.summary.mean_s.value for one in estimates], baseline_of(estimates)
    unit_s, unit = time_unit(max(means_s))
    gains.axhline(0, color=MODE_STYLES["base"].colour, linewidth=1.2, zorder=1)
    (_draw_lines if group.is_numeric else _draw_bars)(times, gains, shown, group, unit_s)
    if group.is_numeric and max(means_s) > _WIDE * min(means_s):
        times.set_yscale("log")
        log_ticks(times.yaxis)
    else:
        times.set_ylim(0, max(times.get_ylim()[1], 1.06 * max(means_s) / unit_s))
    times.set_ylabel(f"mean time{' of a round' * has_rounds(group)} ({unit})")
    gains.set_ylabel(fill(f"gain over {over} (%)", _LABEL_WIDTH))
    gains.margins(y=_MARGIN)  # room for the labels beyond whiskers
    if all(one.gain is None or abs(one.gain.value) < _ROUNDING for one in estimates):
        for nothing in (*gains.lines, *gains.collections, *gains.texts):  # that would be rounding errors
            nothing.set_visible(False)
        gains.set_ylabel("")
        gains.set_yticks([])
        gains.grid(False)
        gains.tick_params(length=0)
        gains.spines[:].set_visible(False)


def _draw_lines(times: Axes, gains: Axes, shown: Comparison, group: FigureGroup, unit_s: float) -> None:
    """Draw a line for each mode, or compared value; where both engines are shown, predictions have no markers."""
    for engine in reversed(shown.engines):
        is_first = engine == shown.engines[0]
        for name, style in group.styles.items():
            estimates = [one for one in shown.estimates if (one.engine, _line(group, one)) == (engine, name)]
            x = [group.axis.x[group.tick(one.configuration)] for one in estimates]
            look = marker(style, measured=engine == "emulation") if is_first else {}
            if engine == "model" or len(shown.engines) == 1:
                look |= line(style)
            _plot(times, x, [one.summary.mean_s for one in estimates], 1 / unit_s, look, whiskers=is_first)
            saved = [(at, one.gain) for at, one in zip(x, estimates, strict=True) if one.gain is not None]
            _plot(gains, [at for at, _ in saved], [each for _, each in saved], 100, look, whiskers=is_first)
    gains.set_xlabel(group.x_label)
    for axes in (times, gains):
        axes.grid(True, axis="both")


def _leaves_losses_out(group: FigureGroup, estimates: Sequence[Estimate]) -> bool:
    """Return whether some gains are so low that others, above 0, would look alike on lines in a panel with both."""
    if not group.is_numeric:
        return False
    saved = [one.gain.value for one in estimates if one.gain is not None]
    return min(saved, default=0.0) < _LOSS and max(saved, default=0.0) > 0


def _limit(gains: Axes, group: FigureGroup, estimates: Sequence[Estimate]) -> None:
    """Leave such losses out of a panel of gains, and of those that share its axis."""
    if _leaves_losses_out(group, estimates):
        highest = 100 * max(np.fmax(one.gain.value, one.gain.high) for one in estimates if one.gain is not None)
        gains.set_ylim(105 * _LOSS, highest + _MARGIN * (highest - 100 * _LOSS))


def _line(group: FigureGroup, one: Estimate) -> str:
    return group.line(one.configuration, one.mode)


def _plot(
    axes: Axes, x: Sequence[float], y: Sequence[Interval], scale: float, look: dict[str, Any], *, whiskers: bool
) -> None:
    order = sorted(range(len(x)), key=x.__getitem__)
    axes.plot([x[i] for i in order], [y[i].value * scale for i in order], zorder=4, **look)
    if whiskers:
        for at, interval in zip(x, y, strict=True):
            _whisker(axes, at, interval, scale, zorder=3)  # behind the marker, which hides a shorter interval


def _whisker(axes: Axes, x: float, interval: Interval, scale: float, *, zorder: float = 4) -> None:
    if math.isnan(interval.low):
        return
    # If times do not vary, rounding may put the mean slightly outside the interval.
    value = interval.value
    error = [[max(0.0, value - interval.low) * scale], [max(0.0, interval.high - value) * scale]]
    axes.errorbar(
        x, value * scale, yerr=error, fmt="none", ecolor=INK, elinewidth=0.8, capthick=0.8, capsize=1.8, zorder=zorder
    )


def _draw_bars(times: Axes, gains: Axes, shown: Comparison, group: FigureGroup, unit_s: float) -> None:
    """Draw a bar for each mode, or compared value, at each tick; a single configuration has a tick for each mode."""
    sides, is_alone = len(shown.engines), len(group.ticks) == 1
    names = list(_styles(group, shown))
    width = 0.84 / sides / (1 if is_alone else len(names))
    sign = " %" if is_alone or len(names) * len(group.ticks) <= 2 * _MAX_GAINS else ""  # only if there is room
    for one in shown.estimates:
        style, side, index = (
            group.styles[_line(group, one)],
            shown.engines.index(one.engine),
            names.index(_line(group, one)),
        )
        middle = index if is_alone else group.tick(one.configuration) + (index - (len(names) - 1) / 2) * width * sides
        x = middle + (side - (sides - 1) / 2) * width
        look: dict[str, Any] = {"hatch": style.hatch, "edgecolor": INK, "linewidth": 0.6}
        face = paler(style.colour) if side else style.colour
        times.bar(x, one.summary.mean_s.value / unit_s, width, facecolor=face, **look)
        _whisker(times, x, one.summary.mean_s, 1 / unit_s)
        if one.gain is None:
            continue
        _plot(gains, [x], [one.gain], 100, marker(style, measured=one.engine == "emulation"), whiskers=True)
        if len(group.ticks) <= _MAX_GAINS and (is_alone or not side):  # a pair is too narrow for two labels
            _label_gain(gains, x, one.gain, sign)
    labels = names if is_alone else list(group.ticks)
    gains.set_xticks(range(len(labels)), labels)
    gains.set_xlim(-0.6, len(labels) - 0.4)
    compared = ", ".join(map(group.key_words, group.compared)) or "mode"
    gains.set_xlabel(compared if is_alone else group.x_label)
    times.yaxis.set_major_formatter("{x:,.10g}")


def _label_gain(gains: Axes, x: float, gain: Interval, sign: str) -> None:
    """Write a gain in percent beyond its whisker, on the side away from the line at 0."""
    is_loss = gain.value < 0
    end = gain.low if is_loss else gain.high
    text = f"{fixed(gain.value * 100, 1)}{sign}".replace("-", "−")
    look: dict[str, Any] = {"ha": "center", "va": "top" if is_loss else "bottom", "fontsize": 6.5, "bbox": ON_WHITE}
    at = (x, 100 * (gain.value if math.isnan(end) else end))
    # Below markers and whiskers of other bars, and above the line at 0 and the grid.
    gains.annotate(text, at, (0, -5 if is_loss else 5), textcoords="offset points", zorder=2, **look)


def _styles(group: FigureGroup, *comparisons: Comparison) -> dict[str, ModeStyle]:
    """Return the styles of the lines, or bars, that these comparisons have, in drawing order."""
    present = {_line(group, estimate) for comparison in comparisons for estimate in comparison.estimates}
    return {name: style for name, style in group.styles.items() if name in present}


def _handles(comparisons: Sequence[Comparison], group: FigureGroup) -> list[Any]:
    styles = _styles(group, *comparisons).values()
    engines = {engine for comparison in comparisons for engine in comparison.engines}
    if not group.is_numeric:
        faces = [(style.colour, style.hatch, style.label) for style in styles]
        return [
            Patch(facecolor=face, hatch=hatch, edgecolor=INK, linewidth=0.6, label=text) for face, hatch, text in faces
        ]
    return [
        Line2D([], [], label=style.label, **marker(style, measured="emulation" in engines) | line(style))
        for style in styles
    ]


def _note(
    comparisons: Sequence[Comparison], group: FigureGroup, estimates: Sequence[Estimate], *, has_gains: bool
) -> str:
    """Return what tells measured values from predicted ones, if there are both, and what whiskers are, or why there are
    none."""
    looks = "filled: measured; open, or a line: predicted" if group.is_numeric else SIDES
    lines = [looks] * any(len(comparison.engines) > 1 for comparison in comparisons)
    intervals = [(one.mode, one.summary.mean_s, one.gain) for one in estimates]
    if any(each and not each.why and each.low < each.high for _, *both in intervals for each in both):
        lines.append("whiskers: 95 % interval" + "; of a gain, from pairs of the same collectives" * has_gains)
    lines += _missing(comparisons)
    if _leaves_losses_out(group, estimates):
        lines.append("not drawn: gains under −100 %, where the time is more than twice as long")
    over = baseline_of(estimates)
    lines += [f"no gains: no time differs from that of {over}"] * (over is not None and not has_gains)
    return "\n".join([*lines, *([rounds_note(group)] if has_rounds(group) else [])])


def _missing(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield why whiskers are missing, and in which of several panels."""
    panels: dict[str, list[str]] = {}
    for one in comparisons:
        intervals = [(each.mode, each.summary.mean_s, each.gain) for each in one.estimates]
        for why in reasons(intervals):
            panels.setdefault(why, []).append(_engines_words(one))
    for why, where in panels.items():
        yield f"no whiskers{f' ({where[0]})' if len(where) < len(comparisons) else ''}: {why}"


def has_rounds(group: FigureGroup) -> bool:
    """Return whether the times are those of rounds of jobs."""
    return any(one.kind == "jobs" for one in group.configurations)


def rounds_note(group: FigureGroup) -> str:
    """Return what the time of a round of jobs is, and if rounds have different jobs, what it does not tell; "" for
    other times."""
    if not has_rounds(group):
        return ""
    is_other_work = len({one.jobs_in_words for one in group.configurations}) > 1
    differs = " Rounds of other jobs do other work; the figure of the jobs' times tells how much others slow a job."
    return f"A round ends with its last job.{differs * is_other_work}"


def row_of(group: FigureGroup, one: Estimate) -> dict[str, Any]:
    """Return the row of an estimate in the figure's data."""
    row = group.cells(one.configuration)
    row |= {"engine": one.engine, "mode": one.mode, "collectives": one.summary.collectives}
    unknown = Interval(value=math.nan, low=math.nan, high=math.nan)
    for name, unit, interval in (
        ("mean", "_s", one.summary.mean_s),
        ("total", "_s", one.summary.total_s),
        ("gain", "", one.gain or unknown),
    ):
        cells = {"": interval.value, "_low": interval.low, "_high": interval.high}
        row |= {f"{name}{end}{unit}": "" if math.isnan(number) else number for end, number in cells.items()}
    return row
