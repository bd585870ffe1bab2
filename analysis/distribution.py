"""The distribution of completion times: for each mode, the share of collectives that took no longer than a time.

The model's are lines. What was measured are markers, one a collective, over their own share: a different and smaller
sample than the model's where the model has more collectives, which the title of each panel says.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.canvas import Picture, canvas, table
from analysis.points import Group, Point, Points, Setting
from analysis.style import INK, MODE_STYLES, time_unit

MOST_PANELS = 12
"""Settings in one figure; more make further figures."""

_QUANTILES = 200  # of a long series: steps too small to see
_COLUMNS = 4

Floats = npt.NDArray[np.float64]


def pictures(name: str, group: Group, points: Points) -> Iterator[Picture]:
    """The distributions of a group of settings, a panel each, in as many figures as are needed."""
    stem = "-".join(part for part in (name, group.name, "cdf") if part)
    panels = list(zip(group.settings, group.ticks, strict=True))
    for first in range(0, len(panels), MOST_PANELS):
        part = stem if len(panels) <= MOST_PANELS else f"{stem}-{first // MOST_PANELS + 1}"
        yield _picture(part, group, panels[first : first + MOST_PANELS], points)


def _picture(name: str, group: Group, panels: Sequence[tuple[Setting, str]], points: Points) -> Picture:
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    found = [_points(setting, points) for setting, _ in panels]
    with canvas(max(5.2, 2.6 * columns), 2.5 * rows + 0.9) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
        for axes, (_, tick), here in zip(grid, panels, found, strict=False):
            _draw(axes, here)
            axes.set_title(f"{group.x_label} {tick}\n{_counts(here)}" if len(panels) > 1 else _counts(here), fontsize=8)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes in grid[::columns]:
            axes.set_ylabel("share of collectives")
        figure.suptitle(group.title, fontsize="medium")
        figure.legend(
            handles=_handles(found), fontsize="small", ncols=2 if columns < 3 else 6, loc="outside lower center"
        )
    caption = f"Distribution of completion times by mode: {group.title}."
    return Picture(name=name, caption=caption, figure=figure, data=_data(group, panels, found))


def _points(setting: Setting, points: Points) -> list[Point]:
    return [point for (_, number, _), point in points.items() if number == setting["setting"]]


def _counts(points: Sequence[Point]) -> str:
    """How many collectives are behind what is shown: "100,000 modelled, 20 measured"."""
    said = []
    for engine, word in (("model", "modelled"), ("emulation", "measured")):
        counts = {len(point.rows) for point in points if point.engine == engine}
        if counts:
            least, most = min(counts), max(counts)
            said.append(f"{least:,} {word}" if least == most else f"{least:,}-{most:,} {word}")
    return ", ".join(said)


def shares(times_s: Floats) -> tuple[Floats, Floats]:
    """Times and the share of the series that is no longer, [K] each; a long series at evenly spaced shares."""
    ordered = np.sort(times_s)
    if len(ordered) <= _QUANTILES:
        return ordered, np.arange(1, len(ordered) + 1) / len(ordered)
    steps = np.arange(1, _QUANTILES + 1)
    return ordered[-(-steps * len(ordered) // _QUANTILES) - 1], steps / _QUANTILES


def _draw(axes: Axes, points: Sequence[Point]) -> None:
    longest_s = max(float(point.completion_s.max()) for point in points)
    one, unit = time_unit(longest_s)
    alone = len({point.engine for point in points}) == 1
    for point in points:
        times, share = shares(point.completion_s)
        if point.engine == "model" or alone:
            long = len(times) >= _QUANTILES
            axes.plot(
                [times[0] / one, *(times / one)],
                [0, *share],
                drawstyle="default" if long else "steps-post",
                **_line(point.mode),
            )
        if point.engine == "emulation" or alone:
            marked = (
                slice(None) if point.engine == "emulation" else slice(len(times) // 16, None, max(1, len(times) // 8))
            )
            axes.plot(times[marked] / one, share[marked], **_marker(point.mode))
    axes.set_ylim(0, 1.02)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"completion time ({unit})")
    axes.grid(True, axis="x")


def _line(mode: str) -> dict[str, Any]:
    style = MODE_STYLES[mode]
    return {"color": style.colour, "linestyle": style.line, "linewidth": style.width}


def _marker(mode: str) -> dict[str, Any]:
    style = MODE_STYLES[mode]
    face = {"color": style.colour, "marker": style.marker, "markersize": 4, "linestyle": "none"}
    return face | {"markeredgecolor": INK, "markeredgewidth": 0.6}


def _handles(found: Sequence[Sequence[Point]]) -> list[Line2D]:
    here = [point for points in found for point in points]
    modes = [mode for mode in MODE_STYLES if any(point.mode == mode for point in here)]
    handles = [Line2D([], [], **_marker(mode) | _line(mode), label=MODE_STYLES[mode].label) for mode in modes]
    if len({point.engine for point in here}) > 1:
        plain: dict[str, Any] = {"color": INK, "marker": "o", "markersize": 4, "markerfacecolor": "none"}
        handles.append(Line2D([], [], color=INK, label="lines: model"))
        handles.append(Line2D([], [], **plain, linestyle="none", label="markers: measured"))
    return handles


def _data(group: Group, panels: Sequence[tuple[Setting, str]], found: Sequence[Sequence[Point]]) -> str:
    values = dict(zip((setting["setting"] for setting in group.settings), group.values, strict=True))
    rows = (
        (values[setting["setting"]], point.engine, point.mode, len(point.rows), time_s, share)
        for (setting, _), points in zip(panels, found, strict=True)
        for point in points
        for time_s, share in zip(*map(np.ndarray.tolist, shares(point.completion_s)), strict=True)
    )
    return table([group.x_column, "engine", "mode", "collectives", "completion_s", "share"], rows)
