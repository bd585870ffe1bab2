"""The distribution of completion times: for each mode, the share of collectives that took at most a given time.

Each measured collective is a marker; a thick line is the prediction for the same collectives. If the model has more
collectives than were measured, a thin line shows all of its predictions. With one mode, lines are compared values.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, panels
from analysis.figures.run_points import ENGINES, Configuration, FigureGroup, PointRows, Points
from analysis.figures.style import MODE_STYLES, ModeStyle, line, marker, typical_unit, value_styles
from analysis.statistics.number_words import all_words

MAX_PANELS = 8
"""Panels in one figure; more are divided evenly among several figures."""

_QUANTILES = 200  # points drawn of a longer series, whose single steps would be too small to see
_COLUMNS = 2
_WIDE = 4  # panels whose longest times differ by a larger factor have time axes of their own
_MAX_CURVES = 10  # that one panel has
_MARKED = 0.15  # of a panel's diagonal, between two markers of a predicted curve
_EMPTY, _NARROW = 0.4, 0.01  # time axes begin at 0 up to this part without a time, and for times in a smaller range

Floats = npt.NDArray[np.float64]
Curve = tuple[PointRows, ...]
"""The points of a line in one configuration: that of the model, that of the emulation, or both."""


class Panel(NamedTuple):
    """A panel: its title, the swept values in words that tell it from others, and its curves by the names of lines."""

    title: str
    what: str
    curves: Mapping[str, Curve]

    @property
    def points(self) -> list[PointRows]:
        """The points of all curves."""
        return [point for curve in self.curves.values() for point in curve]


def parts_of(name: str, group: FigureGroup) -> Iterator[tuple[str, Sequence[Configuration]]]:
    """Yield the name of each figure of a group and the configurations in it."""
    stem = "-".join(part for part in (name, group.name, "cdf") if part)
    panelled = _panelled(group, group.configurations)
    figures = -(-len(panelled) // MAX_PANELS)
    for number in range(figures):
        first, end = (-(-len(panelled) * part // figures) for part in (number, number + 1))
        yield f"{stem}-{number + 1}" if figures > 1 else stem, [one for here in panelled[first:end] for one in here]


def picture(name: str, group: FigureGroup, shown: Sequence[Configuration], points: Points) -> Picture:
    """Draw the figure of this file name, with a panel for each value of the axis of these configurations of a group.

    A curve that is the same in all panels is drawn once: in the first panel, or all curves are in one panel if they are
    few. They also are if each panel would have one.
    """
    every = [_panel(group, here, points) for here in _panelled(group, shown)]
    longest = [max((float(point.completion_s.max()) for point in panel.points), default=0.0) for panel in every]
    shortest = [min((float(point.completion_s.min()) for point in panel.points), default=0.0) for panel in every]
    is_shared, same = max(longest) <= _WIDE * min(longest), _same_in_all(every)
    drawn, styles, note = every, dict(group.styles), ""
    constant = ", ".join(name for name in styles if name in same)
    if is_shared and len(every) > 1 and (same or all(len(panel.curves) == 1 for panel in every)):
        merged, own = _merged(every, same, group)
        if len(merged.curves) <= _MAX_CURVES:
            drawn, styles, longest, shortest = [merged], own, [max(longest)], [min(shortest)]
            total = len(_panelled(group, group.configurations))
            here = f" here (of {total:,})" if len(every) < total else ""
            note = f"the same in {all_words(len(every))} configurations{here}: {constant}" if same else ""
    if len(drawn) > 1 and same:
        first, *others = drawn
        drawn = [first, *(panel._replace(curves=_without(panel.curves, same)) for panel in others)]
        note = f"the same in all panels, and drawn in the first alone: {constant}"
    left_out = _slowest(drawn, styles)
    if left_out:
        drawn = [panel._replace(curves=_without(panel.curves, left_out)) for panel in drawn]
        note = "\n".join(filter(None, [note, f"left out, as slower: {', '.join(left_out)}; the data have all"]))
    unit = typical_unit(longest)
    columns = min(_COLUMNS, len(drawn))
    height = (2.5 if len(drawn) <= columns else 2.2) * -(-len(drawn) // columns) + 0.9
    with canvas(max(5.2, 2.6 * columns), height) as figure:
        grid = panels(figure, len(drawn), columns=columns, sharey=True, sharex=is_shared)
        for index, (panel, axes) in enumerate(zip(drawn, grid, strict=True)):
            extent = (min(shortest), max(longest)) if is_shared else (shortest[index], longest[index])
            _draw(axes, panel, styles, extent, unit)
            axes.tick_params(labelbottom=True)  # also above the last row, which may be shorter
            axes.set_title(panel.title, fontsize=8)
            if index % columns == 0:
                axes.set_ylabel("share of collectives")
        heading(figure, group.title)
        legend(figure, _handles(drawn, styles), "\n".join(filter(None, [_engines_in_words(drawn), note])))
    by_mode = " by mode" * (len({mode for _, _, mode in points}) > 1)
    caption = f"Distribution of completion times{by_mode}: {group.title}."
    return Picture(name=name, caption=caption, figure=figure, data=_data(group, every))


def _panelled(group: FigureGroup, configurations: Sequence[Configuration]) -> list[list[Configuration]]:
    """Return the configurations of each panel, which differ in the compared keys alone."""
    found: dict[tuple[str, ...], list[Configuration]] = {}
    for one in configurations:
        found.setdefault(tuple(one.words(key) for key in _keys(group)), []).append(one)
    return list(found.values())


def _keys(group: FigureGroup) -> list[str]:
    """Return the keys by which panels differ, if there are several."""
    return [key for key in (group.across, group.facet) if key is not None]


def _panel(group: FigureGroup, here: Sequence[Configuration], points: Points) -> Panel:
    """Return the panel of these configurations."""
    curves: dict[str, Curve] = {}
    for (_, index, mode), point in points.items():
        if any(index == one.index for one in here):
            name = group.line(point.configuration, mode)
            curves[name] = (*curves.get(name, ()), point)
    keys = _keys(group) if len(group.ticks) * len(group.facets) > 1 else []
    title = [f"{group.key_words(key)} {here[0].words(key)}" for key in keys]
    what = ", ".join(value.words for value in here[0].at if value.key in keys)
    title.append(_counts([point for curve in curves.values() for point in curve]))
    if group.compared:
        title.append(f"mode {' and '.join(dict.fromkeys(mode for _, _, mode in points))}")
    return Panel("\n".join(title), what, {name: curves[name] for name in group.styles if name in curves})


def _times(curve: Curve) -> tuple[tuple[str, bytes], ...]:
    """Return what tells curves apart: the times of each engine."""
    return tuple((point.engine, np.sort(point.completion_s).tobytes()) for point in curve)


def _same_in_all(every: Sequence[Panel]) -> set[str]:
    """Return the lines whose curves are the same in all of several panels."""
    if len(every) < 2:
        return set()
    return {
        name
        for name, curve in every[0].curves.items()
        if all(name in panel.curves and _times(panel.curves[name]) == _times(curve) for panel in every[1:])
    }


def _merged(every: Sequence[Panel], same: Collection[str], group: FigureGroup) -> tuple[Panel, dict[str, ModeStyle]]:
    """Return one panel with the curves of all, equal ones once, and the styles of its lines."""
    lines = [name for name in group.styles if any(name in panel.curves for panel in every)]
    found: dict[str, Curve] = {name: every[0].curves[name] for name in lines if name in same}
    for own in lines:
        equal: dict[tuple[tuple[str, bytes], ...], list[Panel]] = {}
        for panel in every:
            if own in panel.curves and own not in same:
                equal.setdefault(_times(panel.curves[own]), []).append(panel)
        for alike in equal.values():
            name = ", ".join([*[own] * (len(lines) > 1), *(panel.what for panel in alike)])
            found[name] = alike[0].curves[own]
    whole = [point for curve in found.values() for point in curve]
    title = [_counts(whole)] + [f"mode {lines[0]}"] * (len(lines) == 1 and lines[0] in MODE_STYLES)
    styles = {**group.styles, **value_styles([name for name in found if name not in same], ordered=group.is_numeric)}
    return Panel("\n".join(title), "", found), {name: styles[name] for name in found}


def _slowest(drawn: Sequence[Panel], styles: Mapping[str, ModeStyle]) -> list[str]:
    """Return the lines that are one too many in a panel: all but the first, the baseline, and the fastest in all."""
    if max(len(panel.curves) for panel in drawn) <= _MAX_CURVES:
        return []
    means_s: dict[str, list[float]] = {}
    for panel in drawn:
        for name, curve in panel.curves.items():
            means_s.setdefault(name, []).append(float(curve[0].completion_s.mean()))
    first, *others = (name for name in styles if name in means_s)
    shares = {name: np.mean(np.log(means_s[name])) for name in others}
    kept = {first, *sorted(others, key=shares.__getitem__)[: _MAX_CURVES - 1]}
    return [name for name in others if name not in kept]


def _without(curves: Mapping[str, Curve], same: Collection[str]) -> dict[str, Curve]:
    return {name: curve for name, curve in curves.items() if name not in same}


def _counts(points: Sequence[PointRows]) -> str:
    """Return how many collectives a panel shows, in words: "100,000 predicted, first 20 measured"."""
    parts = []
    whole = max((point.number.size for point in points if point.engine == "model"), default=0)
    for engine, word in (("model", "predicted"), ("emulation", "measured")):
        counts = {point.number.size: point for point in points if point.engine == engine}
        if counts:
            least, most = min(counts), max(counts)
            first = engine == "emulation" and least == most < whole and most == counts[most].number.max() + 1
            number = f"{least:,}" if least == most else f"{least:,}-{most:,}"
            some = engine == "emulation" and most < whole and not first
            parts.append(f"{'first ' if first else ''}{number} {'of them ' if some else ''}{word}")
    repeated = {point.repetitions for point in points}
    return ", ".join(parts) + (repeated.pop() if len(repeated) == 1 else "")


def shares(times_s: Floats) -> tuple[Floats, Floats]:
    """Return sorted times, [N], and for each the share of the series at or below it, [N].

    N is the length of the series; of a longer one `_QUANTILES` evenly spaced quantiles are returned.
    """
    ordered = np.sort(times_s)
    if len(ordered) <= _QUANTILES:
        return ordered, np.arange(1, len(ordered) + 1) / len(ordered)
    steps = np.arange(1, _QUANTILES + 1)
    return ordered[-(-steps * len(ordered) // _QUANTILES) - 1], steps / _QUANTILES


def _draw(
    axes: Axes,
    panel: Panel,
    styles: Mapping[str, ModeStyle],
    extent_s: tuple[float, float],
    time: tuple[float, str],
) -> None:
    """Draw a panel whose axis shows these shortest and longest times, in a unit of time: its length in s, and its
    name."""
    shortest_s, longest_s = extent_s
    if not longest_s:  # the run was interrupted before these configurations
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no collective", ha="center", va="center", transform=axes.transAxes)
        return
    scale, unit = time
    has_measured = any(point.engine == "emulation" for point in panel.points)
    for name, curve in panel.curves.items():
        look, measured = line(styles[name]), next((point for point in curve if point.engine == "emulation"), None)
        if not has_measured and name not in MODE_STYLES:  # colours of values are alike in grey
            first = _MARKED * list(panel.curves).index(name) / len(panel.curves)
            look |= marker(styles[name], measured=False) | line(styles[name]) | {"markevery": (first, _MARKED)}
        for point in curve:
            if point.engine == "model" and (measured is None or len(point.rows) > len(measured.rows)):
                thin = {"linewidth": 0.9, "alpha": 0.75, "zorder": 1} if has_measured else {}
                _line(axes, point.completion_s / scale, look | thin)
        if measured is not None:
            _line(axes, measured.predicted_s / scale, look | {"zorder": 2})
            times, share = shares(measured.completion_s)
            axes.plot(times / scale, share, zorder=3, **marker(styles[name], measured=True) | {"markersize": 3.5})
    axes.set_ylim(0, 1.02)
    is_far = shortest_s > _EMPTY * longest_s and longest_s - shortest_s > _NARROW * longest_s
    margin_s = 0.03 * (longest_s - shortest_s if is_far else longest_s)
    axes.set_xlim((shortest_s - margin_s) / scale if is_far else 0, (longest_s + margin_s) / scale)
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.set_xlabel(f"completion time ({unit})")
    axes.grid(True, axis="x")


def _line(axes: Axes, times: Floats, look: dict[str, Any]) -> None:
    x, share = shares(times)
    axes.plot([x[0], *x], [0, *share], drawstyle="steps-post", **look)


def _handles(drawn: Sequence[Panel], styles: Mapping[str, ModeStyle]) -> list[Line2D]:
    shown = [point for panel in drawn for point in panel.points]
    engines = {point.engine for point in shown}
    present = {name: style for name, style in styles.items() if any(name in panel.curves for panel in drawn)}
    looks = [
        (marker(style, measured="emulation" in engines) if "emulation" in engines or name not in MODE_STYLES else {})
        | line(style)
        for name, style in present.items()
    ]
    return [Line2D([], [], label=style.label, **look) for style, look in zip(present.values(), looks, strict=True)]


def _engines_in_words(drawn: Sequence[Panel]) -> str:
    """Return what tells measured times from predicted ones; "" if nothing was measured."""
    shown = [point for panel in drawn for point in panel.points]
    longest = {
        engine: max((len(point.rows) for point in shown if point.engine == engine), default=0) for engine in ENGINES
    }
    if not longest["emulation"]:
        return ""
    if longest["emulation"] < longest["model"]:
        return "markers: measured; thick lines: predicted, the same collectives; thin: all collectives"
    return "markers: measured; lines: predicted, the same collectives"


def _data(group: FigureGroup, every: Sequence[Panel]) -> str:
    return csv_text(
        group.cells(point.configuration)
        | {"engine": point.engine, "mode": point.mode, "collectives": point.number.size}
        | {"completion_s": time_s, "share": share}
        for panel in every
        for point in panel.points
        for time_s, share in zip(*map(np.ndarray.tolist, shares(point.completion_s)), strict=True)
    )
