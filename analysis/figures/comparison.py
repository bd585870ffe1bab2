"""Mean completion time by mode, and the gain over base, against what was varied; in the paper's form 4a, 4b, 5a, 5b.

A number that was varied is an axis, with a line for each mode; anything else is a place, with a bar for each mode. The
model predicts many collectives and the emulation measures the first few of them, so their means do not compare: the
model's stand in panels of their own, and beside them the emulation's with the model's of the same collectives.
"""

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from analysis.figures.output import Picture, canvas, heading, legend, log_ticks, table
from analysis.figures.points import ENGINES, Configuration, FigureError, Group, Points, collective_words
from analysis.figures.style import FAINT, INK, MODE_STYLES, line, marker, paler, time_unit
from analysis.statistics.intervals import Interval, Numbers, Summary, gain, summarise

_WIDE = 8.0  # the highest value over the lowest from which on an axis is logarithmic
_WORDS = 24  # letters of a line of a tick's words
_ACROSS = 4  # facets beside each other; others stand below
_MOST_GAINS = 4  # places up to which every bar has room for the gain in words


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a mode takes at a configuration, and how much less than base.

    `gain` is a share of base's time, from pairs of the same collectives; None where base was not run.
    """

    engine: str
    configuration: Configuration
    mode: str
    summary: Summary
    gain: Interval | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Estimates that may be compared: all over the same collectives."""

    engines: tuple[str, ...]
    collectives: int
    estimates: tuple[Estimate, ...]


def picture(name: str, group: Group, points: Points) -> Picture:
    """The figure of a group of configurations, `name` being the run's."""
    found = comparisons_of(group, points)
    is_faceted = len(group.facets) > 1
    columns = min(_ACROSS, len(group.facets)) if is_faceted else len(found)
    rows = -(-len(group.facets) // columns)
    bands = len(found) * rows if is_faceted else 1  # each of them a row of times and one of gains
    drawn = [  # the band and the column of each panel
        ((number * rows + place // columns, place % columns) if is_faceted else (0, number), one, title, here)
        for number, one in enumerate(found)
        for place, (title, here) in enumerate(group.facets.items())
    ]
    width = columns * max(3.0 if is_faceted else 4.2, min(6.0, 0.7 * len(group.ticks)))
    is_base = all(estimate.mode == "base" for one in found for estimate in one.estimates)
    with canvas(max(5.6, width), bands * (2.8 if is_base else 4.3) + 0.9) as figure:
        heights = [3.0, 0.01 if is_base else 2.0] * bands
        axes = figure.subplots(2 * bands, columns, squeeze=False, sharex="col", height_ratios=heights)
        for (band, column), comparison, title, here in drawn:
            times, gains = axes[2 * band : 2 * band + 2, column]
            if is_faceted:
                gains.margins(x=0.09)  # the last tick's words end before the next panel's first
            first = band // rows * rows  # the first band of these collectives
            if is_faceted and (band, column) != (first, 0):
                times.sharey(axes[2 * first, 0])
                gains.sharey(axes[2 * first + 1, 0])
            shown = tuple(one for one in comparison.estimates if one.configuration in here)
            means_s = [one.summary.mean_s.value for one in comparison.estimates]
            _draw(times, gains, replace(comparison, estimates=shown), group, means_s)
            subject = _subject(comparison).replace(", ", "\n") if is_faceted else _subject(comparison)
            times.set_title(f"{title}\n{subject}".strip(), fontsize=8.5)
            times.tick_params(labelbottom=False)
            gains.tick_params(labelbottom=True)
            if is_faceted and column:
                for right in (times, gains):
                    right.tick_params(labelleft=False)
                    right.set_ylabel("")
        _leave_out(axes, {place for place, *_ in drawn})
        note = "whiskers: 95 % interval" + "; of a gain, from pairs of the same collectives" * (not is_base)
        legend(figure, _handles(found, lines=_is_axis(group)), note)
        heading(figure, group.title)
    stem = f"{name}-{group.name}" if group.name else name
    against = f", against {group.x_label}" * (len(group.configurations) > 1)
    caption = f"Mean completion time{'' if is_base else ' and gain over base, by mode'}{against}: {group.title}."
    return Picture(name=stem, caption=caption, figure=figure, data=_data(group, found))


def _leave_out(axes: Any, drawn: Set[tuple[int, int]]) -> None:
    """Hide the panels of bands and columns in which nothing is drawn."""
    bands, columns = axes.shape[0] // 2, axes.shape[1]
    for band, column in sorted(set(product(range(bands), range(columns))) - drawn):
        for empty in axes[2 * band : 2 * band + 2, column]:
            empty.set_axis_off()
            empty.set_in_layout(False)


def comparisons_of(group: Group, points: Points) -> list[Comparison]:
    """What may be compared: the model by itself where it has more collectives, then both engines on the same ones."""
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
        raise FigureError("no collective is there in every mode yet: there is nothing to compare")
    return [
        Comparison(
            engines=engines,
            collectives=among.size,
            estimates=tuple(
                one
                for engine in engines
                for configuration in group.configurations
                for one in _estimates(engine, configuration, among, points)
            ),
        )
        for engines, among in wanted
    ]


def _common(group: Group, points: Points, engine: str) -> Numbers:
    """The collectives that every point of the engine in this group has."""
    here = {one.index for one in group.configurations}
    found = [point.number for (name, index, _), point in points.items() if name == engine and index in here]
    return reduce(_in_both, found) if found else np.empty(0, dtype=np.int64)


def _in_both(one: Numbers, other: Numbers) -> Numbers:
    return one if np.array_equal(one, other) else np.intersect1d(one, other)


def _estimates(engine: str, configuration: Configuration, among: Numbers, points: Points) -> Iterator[Estimate]:
    found = {mode: points.get((engine, configuration.index, mode)) for mode in MODE_STYLES}
    series = {mode: point.among(among) for mode, point in found.items() if point is not None}
    for mode, times in series.items():
        less = gain(series["base"], times) if "base" in series else None
        which: Any = {"engine": engine, "configuration": configuration, "mode": mode}
        yield Estimate(**which, summary=summarise(times), gain=less)


def _subject(comparison: Comparison) -> str:
    """Whose times these are: "measured and modelled, the same 20 AllGathers"."""
    name = collective_words(one.configuration for one in comparison.estimates)
    count = f"{comparison.collectives:,} {name}{'' if comparison.collectives == 1 else 's'}"
    if len(comparison.engines) > 1:
        return f"measured and modelled, the same {count}"
    return f"{'timing model' if comparison.engines == ('model',) else 'measured'}, {count}"


def _is_axis(group: Group) -> bool:
    return None not in group.ticks.values()


def _draw(times: Axes, gains: Axes, shown: Comparison, group: Group, means_s: Sequence[float]) -> None:
    """Draw a comparison, or the part of it at one value of the second swept key; `means_s` are those of all of it."""
    unit_s, unit = time_unit(max(means_s))
    gains.axhline(0, color=MODE_STYLES["base"].colour, linewidth=1.2, zorder=1)
    (_draw_lines if _is_axis(group) else _draw_bars)(times, gains, shown, group, unit_s)
    if _is_axis(group) and max(means_s) > _WIDE * min(means_s):
        times.set_yscale("log")
        log_ticks(times.yaxis)
    else:
        times.set_ylim(0, max(times.get_ylim()[1], 1.06 * max(means_s) / unit_s))
    times.set_ylabel(f"mean time ({unit})")
    gains.set_ylabel("gain over base (%)")
    gains.margins(y=0.18)
    if all(estimate.gain is None for estimate in shown.estimates):
        gains.annotate("base was not run", (0.5, 0.5), xycoords="axes fraction", ha="center", color=FAINT)
    elif all(estimate.mode == "base" for estimate in shown.estimates):
        gains.set_ylabel("")
        gains.set_yticks([])
        gains.tick_params(length=0)
        gains.spines[:].set_visible(False)
        gains.lines[0].set_visible(False)  # that of no gain


def _draw_lines(times: Axes, gains: Axes, shown: Comparison, group: Group, unit_s: float) -> None:
    """A line for each mode; beside what was measured, the model's has no markers."""
    places, is_log = _axis(group)
    for engine in reversed(shown.engines):
        is_first = engine == shown.engines[0]
        for mode in MODE_STYLES:
            here = [one for one in shown.estimates if (one.engine, one.mode) == (engine, mode)]
            x = [places[group.place(one.configuration)] for one in here]
            look = marker(mode, measured=engine == "emulation") if is_first else {}
            if engine == "model" or len(shown.engines) == 1:
                look |= line(mode)
            _plot(times, x, [one.summary.mean_s for one in here], 1 / unit_s, look, whiskers=is_first)
            less = [one.gain for one in here if one.gain is not None and mode != "base"]
            _plot(gains, x[: len(less)], less, 100, look, whiskers=is_first)
    if is_log:
        gains.set_xscale("log")
    gains.xaxis.set_minor_locator(NullLocator())
    at = [math.log(place) for place in places] if is_log else places
    room = (max(at) - min(at)) / 56  # of one letter
    words = list(group.ticks)
    chosen: list[int] = []
    for index in sorted(range(len(at)), key=at.__getitem__):
        if not chosen or at[index] - at[chosen[-1]] >= room * len(words[index]):
            chosen.append(index)
    gains.set_xticks([places[index] for index in chosen], [words[index] for index in chosen])
    gains.set_xlabel(group.x_label)
    for axes in (times, gains):
        axes.grid(True, axis="both")


def _axis(group: Group) -> tuple[list[float], bool]:
    """The place of every tick, and whether the axis is logarithmic; values too far apart for either are numbered."""
    numbers = [number for number in group.ticks.values() if number is not None]
    least, most = min(numbers), max(numbers)
    if least > 0:
        return numbers, most > least * 4
    far = most > _WIDE * min(number for number in numbers if number > least)
    return ([float(sorted(numbers).index(number)) for number in numbers] if far else numbers), False


def _plot(
    axes: Axes, x: Sequence[float], y: Sequence[Interval], scale: float, look: dict[str, Any], *, whiskers: bool
) -> None:
    order = sorted(range(len(x)), key=x.__getitem__)
    axes.plot([x[i] for i in order], [y[i].value * scale for i in order], zorder=3, **look)
    if whiskers:
        for place, interval in zip(x, y, strict=True):
            _whisker(axes, place, interval, scale)


def _whisker(axes: Axes, x: float, interval: Interval, scale: float) -> None:
    if math.isnan(interval.low):
        return
    # Times that do not vary may have ends that miss the mean by a rounding error, to either side.
    value, ends = interval.value, (interval.low, interval.high)
    error = [[max(0.0, value - ends[0]) * scale], [max(0.0, ends[1] - value) * scale]]
    axes.errorbar(
        x, value * scale, yerr=error, fmt="none", ecolor=INK, elinewidth=0.8, capthick=0.8, capsize=1.8, zorder=4
    )


def _draw_bars(times: Axes, gains: Axes, shown: Comparison, group: Group, unit_s: float) -> None:
    """A bar for each mode, side by side at each place; one configuration alone has a place for each mode."""
    sides, is_alone = len(shown.engines), len(group.ticks) == 1
    modes = _modes(shown)
    width = 0.84 / sides / (1 if is_alone else len(modes))
    sign = " %" if is_alone or len(modes) * len(group.ticks) <= 2 * _MOST_GAINS else ""  # for which there is room
    for one in shown.estimates:
        style, side, slot = MODE_STYLES[one.mode], shown.engines.index(one.engine), modes.index(one.mode)
        middle = slot if is_alone else group.place(one.configuration) + (slot - (len(modes) - 1) / 2) * width * sides
        x = middle + (side - (sides - 1) / 2) * width
        look: dict[str, Any] = {"hatch": style.hatch, "edgecolor": INK, "linewidth": 0.6}
        face = paler(style.colour) if side else style.colour
        times.bar(x, one.summary.mean_s.value / unit_s, width, facecolor=face, **look)
        _whisker(times, x, one.summary.mean_s, 1 / unit_s)
        if one.gain is None or one.mode == "base":
            continue
        _plot(gains, [x], [one.gain], 100, marker(one.mode, measured=one.engine == "emulation"), whiskers=True)
        if not side and len(group.ticks) <= _MOST_GAINS:
            top = one.gain.value if math.isnan(one.gain.high) else one.gain.high
            text, look = f"{one.gain.value * 100:.1f}{sign}".replace("-", "−"), {"ha": "center", "fontsize": 6.5}
            gains.annotate(text, (middle, top * 100), (0, 5), textcoords="offset points", **look)
    places = modes if is_alone else list(group.ticks)
    gains.set_xticks(range(len(places)), [fill(place, _WORDS) for place in places])
    gains.set_xlim(-0.6, len(places) - 0.4)
    gains.set_xlabel("mode" if is_alone else group.x_label)
    times.yaxis.set_major_formatter("{x:,.10g}")


def _modes(*found: Comparison) -> list[str]:
    return [mode for mode in MODE_STYLES if any(one.mode == mode for each in found for one in each.estimates)]


def _handles(found: Sequence[Comparison], *, lines: bool) -> list[Any]:
    modes = _modes(*found)
    engines = {engine for comparison in found for engine in comparison.engines}
    if not lines:
        faces = [(MODE_STYLES[mode].colour, MODE_STYLES[mode].hatch, MODE_STYLES[mode].label) for mode in modes]
        if any(len(comparison.engines) > 1 for comparison in found):
            faces += [("#666666", "", "left: measured"), (paler("#666666"), "", "right: modelled")]
        return [
            Patch(facecolor=face, hatch=hatch, edgecolor=INK, linewidth=0.6, label=text) for face, hatch, text in faces
        ]
    looks = {mode: marker(mode, measured=True) | line(mode) for mode in modes}
    handles = [Line2D([], [], label=MODE_STYLES[mode].label, **look) for mode, look in looks.items()]
    if len(engines) > 1:
        plain: dict[str, Any] = {"marker": "o", "markersize": 5, "markeredgecolor": INK, "linestyle": "none"}
        handles.append(Line2D([], [], markerfacecolor="#666666", label="filled: measured", **plain))
        handles.append(Line2D([], [], markerfacecolor="white", label="open, or a line: modelled", **plain))
    return handles


def _data(group: Group, found: Sequence[Comparison]) -> str:
    return table(_row(group, one) for comparison in found for one in comparison.estimates)


def _row(group: Group, one: Estimate) -> dict[str, Any]:
    row = group.cells(one.configuration)
    row |= {"engine": one.engine, "mode": one.mode, "collectives": one.summary.collectives}
    none = Interval(value=math.nan, low=math.nan, high=math.nan)
    for name, unit, found in (
        ("mean", "_s", one.summary.mean_s),
        ("total", "_s", one.summary.total_s),
        ("gain", "", one.gain or none),
    ):
        ends = {f"{name}{end}{unit}": getattr(found, end[1:] or "value") for end in ("", "_low", "_high")}
        row |= {column: "" if math.isnan(number) else number for column, number in ends.items()}
    return row
