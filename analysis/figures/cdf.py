"""The distribution of completion times: for each mode, the share of collectives that took at most a given time.

Each measured collective is a marker; a thick line is the prediction for the same collectives. If the model has more
collectives than were measured, a thin line shows all of its predictions.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, panels
from analysis.figures.run_points import ENGINES, Configuration, FigureGroup, PointRows, Points, words
from analysis.figures.style import INK, MODE_STYLES, line, marker, time_unit

MAX_PANELS = 16
"""Configurations in one figure; further configurations get further figures."""

_QUANTILES = 200  # points drawn of a longer series, whose single steps would be too small to see
_COLUMNS = 4
_WIDE = 4  # panels whose longest times differ by a larger factor have time axes of their own

Floats = npt.NDArray[np.float64]


def parts_of(name: str, group: FigureGroup) -> Iterator[tuple[str, Sequence[Configuration]]]:
    """Yield the name of each figure of a group and the configurations in it, which have a panel each."""
    stem = "-".join(part for part in (name, group.name, "cdf") if part)
    configurations = group.configurations
    for first in range(0, len(configurations), MAX_PANELS):
        number = "" if len(configurations) <= MAX_PANELS else f"-{first // MAX_PANELS + 1}"
        yield stem + number, configurations[first : first + MAX_PANELS]


def picture(name: str, group: FigureGroup, shown: Sequence[Configuration], points: Points) -> Picture:
    """Draw the figure of this file name, with a panel for each of these configurations of a group."""
    columns = min(_COLUMNS, len(shown))
    by_panel = [[p for p in points.values() if p.configuration is one] for one in shown]
    keys = [key for key in (group.across, group.facet) if key is not None] if len(shown) > 1 else []
    with canvas(max(5.2, 2.6 * columns), 2.5 * -(-len(shown) // columns) + 0.9) as figure:
        longest = [max((float(p.completion_s.max()) for p in here), default=0.0) for here in by_panel]
        is_shared = max(longest) <= _WIDE * min(longest)
        for index, axes in enumerate(panels(figure, len(shown), columns=columns, sharey=True, sharex=is_shared)):
            _draw(axes, by_panel[index], max(longest) if is_shared else longest[index])
            axes.tick_params(labelbottom=True)  # also above the last row, which may be shorter
            title = [f"{group.key_words(key)} {words(key, shown[index].value(key))}" for key in keys]
            axes.set_title("\n".join([*title, _counts(by_panel[index])]), fontsize=8)
            if index % columns == 0:
                axes.set_ylabel("share of collectives")
        heading(figure, group.title)
        legend(figure, _handles(by_panel))
    caption = f"Distribution of completion times by mode: {group.title}."
    return Picture(name=name, caption=caption, figure=figure, data=_data(group, by_panel))


def _counts(points: Sequence[PointRows]) -> str:
    """Return how many collectives a panel shows, in words: "100,000 predicted, 20 measured"."""
    parts = []
    for engine, word in (("model", "predicted"), ("emulation", "measured")):
        counts = {len(point.rows) for point in points if point.engine == engine}
        if counts:
            least, most = min(counts), max(counts)
            parts.append(f"{least:,} {word}" if least == most else f"{least:,}-{most:,} {word}")
    return ", ".join(parts)


def shares(times_s: Floats) -> tuple[Floats, Floats]:
    """Return sorted times, [N], and for each the share of the series at or below it, [N].

    N is the length of the series; of a longer one `_QUANTILES` evenly spaced quantiles are returned.
    """
    ordered = np.sort(times_s)
    if len(ordered) <= _QUANTILES:
        return ordered, np.arange(1, len(ordered) + 1) / len(ordered)
    steps = np.arange(1, _QUANTILES + 1)
    return ordered[-(-steps * len(ordered) // _QUANTILES) - 1], steps / _QUANTILES


def _draw(axes: Axes, points: Sequence[PointRows], longest_s: float) -> None:
    """Draw a panel, whose unit of time fits the longest time."""
    if not points:  # the run was interrupted before this configuration
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no collective", ha="center", va="center", transform=axes.transAxes)
        return
    scale, unit = time_unit(longest_s)
    measured = {point.mode: point for point in points if point.engine == "emulation"}
    for point in points:
        if point.engine == "model":
            other = measured.get(point.mode)
            if other is None or len(point.rows) > len(other.rows):
                thin = {"linewidth": 0.9, "alpha": 0.75, "zorder": 1} if measured else {}
                _line(axes, point.completion_s / scale, line(point.mode) | thin)
    for point in measured.values():
        _line(axes, point.predicted_s / scale, line(point.mode) | {"zorder": 2})
        times, share = shares(point.completion_s)
        axes.plot(times / scale, share, zorder=3, **marker(point.mode, measured=True) | {"markersize": 3.5})
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, 1.03 * longest_s / scale)
    axes.set_xlabel(f"completion time ({unit})")
    axes.grid(True, axis="x")


def _line(axes: Axes, times: Floats, look: dict[str, Any]) -> None:
    x, share = shares(times)
    axes.plot([x[0], *x], [0, *share], drawstyle="steps-post", **look)


def _handles(by_panel: Sequence[Sequence[PointRows]]) -> list[Line2D]:
    shown = [point for points in by_panel for point in points]
    modes = [mode for mode in MODE_STYLES if any(point.mode == mode for point in shown)]
    engines = {point.engine for point in shown}
    look = {mode: marker(mode, measured=True) if "emulation" in engines else {} for mode in modes}
    handles = [Line2D([], [], label=MODE_STYLES[mode].label, **look[mode] | line(mode)) for mode in modes]
    if "emulation" in engines:
        plain: dict[str, Any] = {"marker": "o", "markersize": 4, "markerfacecolor": "#666666", "markeredgecolor": INK}
        handles.append(Line2D([], [], linestyle="none", label="markers: measured", **plain))
        handles.append(Line2D([], [], color=INK, linewidth=1.8, label="thick: predicted, the same collectives"))
    longest = {
        engine: max((len(point.rows) for point in shown if point.engine == engine), default=0) for engine in ENGINES
    }
    if 0 < longest["emulation"] < longest["model"]:
        handles.append(Line2D([], [], color=INK, linewidth=0.9, label="thin: predicted, all collectives"))
    return handles


def _data(group: FigureGroup, by_panel: Sequence[Sequence[PointRows]]) -> str:
    return csv_text(
        group.cells(point.configuration)
        | {"engine": point.engine, "mode": point.mode, "collectives": len(point.rows)}
        | {"completion_s": time_s, "share": share}
        for points in by_panel
        for point in points
        for time_s, share in zip(*map(np.ndarray.tolist, shares(point.completion_s)), strict=True)
    )
