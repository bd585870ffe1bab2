"""The certificate of a run as a figure: every measured time against what the model predicts for the same conditions.

Times differ by factors and measurements from predictions by parts of a thousand, so the times stand in one panel and
how far each is off in another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.canvas import Picture, canvas, table
from analysis.certificate import Certificate, certificate
from analysis.points import Point, Points, Setting
from analysis.style import FAINT, INK, MODE_STYLES, time_unit

_MARKS = (("drops", "packets dropped", "#D00000", 60), ("late", "machine too slow", FAINT, 95))
"""What is ringed: the column that tells it, in words, the colour and the size of the ring."""


def certified(points: Points) -> Certificate | None:
    """How near the measured times are to the model's; None where nothing was measured."""
    columns = [
        (
            point.completion_s,
            point.predicted_s,
            point.rows["drops"].to_numpy(np.int64),
            point.rows["late"].to_numpy(np.bool_),
        )
        for point in _measured(points)
    ]
    return certificate(columns, is_real=True)  # where nobody was late, nothing is said of it


def picture(name: str, settings: Sequence[Setting], points: Points) -> Picture | None:
    """The certificate's figure, `name` being the run's; None where nothing was measured."""
    found = certified(points)
    if found is None:
        return None
    measured = _measured(points)
    with canvas(8.4, 3.9) as figure:
        left, right = figure.subplots(1, 2)
        longest_s = max(float(point.completion_s.max()) for point in measured)
        shortest_s = min(float(point.predicted_s.min()) for point in measured)
        one, unit = time_unit(longest_s)
        if longest_s > 20 * shortest_s:
            left.set(xscale="log", yscale="log")
            right.set(xscale="log")
            for axis in (left.xaxis, left.yaxis, right.xaxis):
                _write_out_ticks(axis)
        ends = [shortest_s / one / 1.1, longest_s / one * 1.1]
        left.plot(ends, ends, color=FAINT, linewidth=0.9, zorder=1)
        _draw(left, measured, one, off=False)
        _draw(right, measured, one, off=True)
        _off_lines(right, found)
        for axes in (left, right):
            axes.set_xlabel(f"predicted time ({unit})")
            axes.grid(True, axis="both")
        left.set_ylabel(f"measured time ({unit})")
        right.set_ylabel("measured / predicted − 1 (%)")
        left.set_title("measured against predicted; the line is equality", fontsize=8.5)
        right.set_title("how far each is off; 99 of 100 lie between the dashed lines", fontsize=8.5)
        figure.suptitle(found.words, fontsize=8.5)
        handles, labels = left.get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        figure.legend(unique.values(), unique.keys(), fontsize="small", ncols=5, loc="outside lower center")
    caption = f"Measured against predicted completion times: {found.words}."
    return Picture(name=f"{name}-certificate", caption=caption, figure=figure, data=_data(settings, measured))


def _measured(points: Points) -> list[Point]:
    """What was measured, but for collectives that a fault struck in the middle: the model does not speak of those."""
    found = []
    for point in points.values():
        if point.engine == "emulation":
            whole = point.rows[point.rows["undisturbed"]] if "undisturbed" in point.rows else point.rows
            if len(whole):
                found.append(replace(point, rows=whole))
    return found


def _draw(axes: Axes, measured: Sequence[Point], one: float, *, off: bool) -> None:
    for point in measured:
        style = MODE_STYLES[point.mode]
        x = point.predicted_s / one
        y = (point.completion_s / point.predicted_s - 1) * 100 if off else point.completion_s / one
        look: Mapping[str, Any] = {"marker": style.marker, "s": 16, "linewidth": 0.5, "edgecolor": INK}
        axes.scatter(x, y, color=style.colour, label=style.label, zorder=2, alpha=0.85, **look)
        for column, words, colour, size in _MARKS:
            marked = point.rows[column].to_numpy() > 0
            if marked.any():
                ring: Mapping[str, Any] = {"facecolor": "none", "edgecolor": colour, "s": size, "linewidth": 1.2}
                axes.scatter(x[marked], y[marked], label=words, zorder=3, **ring)


def _write_out_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis written out: 1, 2, 5, 10, 20 and so on."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_formatter(NullFormatter())


def _off_lines(axes: Axes, found: Certificate) -> None:
    """Equality, and the distance from it within which 99 of 100 collectives lie."""
    axes.axhline(0, color=FAINT, linewidth=0.9, zorder=1)
    for side in (-1, 1):
        axes.axhline(side * found.p99_abs_error * 100, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)


def _data(settings: Sequence[Setting], measured: Sequence[Point]) -> str:
    rows = (
        (point.setting, settings[point.setting]["label"], point.mode, *row)
        for point in measured
        for row in zip(
            point.rows["collective"].tolist(),
            point.predicted_s.tolist(),
            point.completion_s.tolist(),
            (point.completion_s / point.predicted_s).tolist(),
            point.rows["drops"].tolist(),
            strict=True,
        )
    )
    columns = ["setting", "label", "mode", "collective", "predicted_s", "completion_s", "ratio", "drops"]
    return table(columns, rows)
