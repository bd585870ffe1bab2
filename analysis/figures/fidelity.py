"""The fidelity of a run: every measured time against the model's prediction for the same conditions.

Times vary by factors, but measurements differ from predictions by a few parts in a thousand. One panel therefore shows
the times, another the relative differences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, log_ticks
from analysis.figures.run_points import PointRows, Points
from analysis.figures.style import FAINT, MODE_STYLES, marker, time_unit
from analysis.statistics.fidelity import TOLERANCE, Fidelity, fidelity, percentage
from topologies.units import format_count

_MARKS = (("drops", "packets dropped", "#D00000", 8), ("late", "machine too slow", FAINT, 10))
"""Collectives that get a ring: the column that must be above 0, the legend's label, the ring's colour and size."""


def fidelity_of(points: Points, jobs: pd.DataFrame) -> Fidelity | None:
    """Compare the measured times of collectives and of `jobs` with the model's; None if nothing was measured."""
    measured, disturbed = _measured(points), _measured(points, undisturbed=False)
    lossy = any(point.configuration.values.get("fabric.wan_loss") for point in measured)
    # On any clock (`is_real`): virtual time has no late collectives, and if there are none, no warning mentions them.
    rows, others = ([point.rows for point in some] for some in (measured, disturbed))
    configurations = [point.configuration for point in (*measured, *disturbed)]
    classes = {
        (one.index, str(job["name"])): job.get("class") for one in configurations for job in one.values.get("job") or ()
    }
    are_rounds = all(one.kind == "jobs" for one in configurations)
    return fidelity(
        rows,
        jobs,
        disturbed=others,
        is_real=True,
        lossy=lossy,
        classes=classes,
        are_rounds=are_rounds,
        slow=[one.index for one in configurations if one.values.get("transport.line_rate") is False],
    )


def picture(name: str, points: Points, jobs: pd.DataFrame) -> Picture | None:
    """Draw the fidelity of the run called `name` with these rows of `jobs`; None if nothing was measured."""
    summary = fidelity_of(points, jobs)
    if summary is None:
        return None
    measured = _measured(points)
    with canvas(5.6, 6.2) as figure:  # for a column of a paper, where panels side by side would have tiny labels
        left, right = figure.subplots(2, 1)
        longest_s = max(float(point.completion_s.max()) for point in measured)
        shortest_s = min(float(point.predicted_s.min()) for point in measured)
        scale, unit = time_unit(longest_s)
        if longest_s > 20 * shortest_s:
            left.set(xscale="log", yscale="log")
            right.set(xscale="log")
            for axis in (left.xaxis, left.yaxis, right.xaxis):
                log_ticks(axis)
        ends = [shortest_s / scale / 1.1, longest_s / scale * 1.1]
        left.plot(ends, ends, color=FAINT, linewidth=0.9, zorder=1)
        right.axhline(0, color=FAINT, linewidth=0.9, zorder=1)
        handles = [*_draw(left, measured, scale, relative=False), *_bands(right, summary)]
        _draw(right, measured, scale, relative=True)
        for axes in (left, right):
            axes.set_xlabel(f"predicted time ({unit})")
            axes.grid(True, axis="both")
        left.set_ylabel(f"measured time ({unit})")
        right.set_ylabel("measured / predicted − 1 (%)")
        left.set_title(f"each {summary.noun}", fontsize=8.5)
        right.set_title("difference from the prediction", fontsize=8.5)
        without = (
            "" if summary.disturbed is None else f", without {summary.disturbed.collectives:,} that a fault disturbed"
        )
        modes, settings = (
            {*each} for each in zip(*((one.mode, one.configuration.index) for one in measured), strict=True)
        )
        among = ["modes"] * (len(modes) > 1) + ["configurations"] * (len(settings) > 1)
        counted = format_count(summary.collectives, summary.noun)
        of_all = f" of all {' and '.join(among)}" if among else ""
        heading(figure, f"Measured against predicted times, {counted}{of_all}{without}")
        note = f"median of measured / predicted {summary.median_ratio:.4f}; {summary.drops_words}"
        legend(figure, handles, "\n".join(filter(None, [note, summary.jobs_words])))
    caption = f"Measured against predicted completion times: {summary.words}."
    return Picture(name=f"{name}-fidelity", caption=caption, figure=figure, data=_data(measured))


def _measured(points: Points, *, undisturbed: bool = True) -> list[PointRows]:
    """Return the measured points without collectives that a fault disturbed, to which the model does not apply; without
    `undisturbed` those collectives alone."""
    found = []
    for point in points.values():
        if point.engine == "emulation":
            rows = point.rows[point.rows["undisturbed"] == undisturbed]
            if len(rows):
                found.append(replace(point, rows=rows))
    return found


def _draw(axes: Axes, measured: Sequence[PointRows], scale: float, *, relative: bool) -> list[Line2D]:
    """Draw every collective; returns the entries of the legend."""
    handles = {}
    for point in measured:
        x = point.predicted_s / scale
        y = (point.completion_s / point.predicted_s - 1) * 100 if relative else point.completion_s / scale
        (handle,) = axes.plot(x, y, zorder=2, alpha=0.85, **marker(point.mode, measured=True))
        handles[MODE_STYLES[point.mode].label] = handle
        for column, words, colour, size in _MARKS:
            marked = point.rows[column].to_numpy() > 0
            if marked.any():
                look: Mapping[str, Any] = {"markerfacecolor": "none", "markeredgecolor": colour, "markersize": size}
                handles[words] = axes.plot(x[marked], y[marked], "o", zorder=3, markeredgewidth=1.2, **look)[0]
    for words, handle in handles.items():
        handle.set_label(words)
    return [*handles.values(), Line2D([], [], color=FAINT, linewidth=0.9, label="line: as predicted")]


def _bands(axes: Axes, summary: Fidelity) -> list[Patch]:
    """Shade the differences up to their 99th percentile, which lies between the two largest of few collectives, and
    those up to which the model holds."""
    bands = []
    near = f"the model holds to ±{TOLERANCE * 100:.0f} %"
    inside = f"p99 of the difference: ±{percentage(summary.p99_abs_error)}"
    for share, colour, words in ((TOLERANCE, "#F3F3F3", near), (summary.p99_abs_error, "#E2E2E2", inside)):
        if share <= 10 * max(summary.p99_abs_error, 1e-9):
            axes.axhspan(-share * 100, share * 100, facecolor=colour, edgecolor=FAINT, linewidth=0.7, zorder=0)
            bands.append(Patch(facecolor=colour, edgecolor=FAINT, linewidth=0.7, label=words))
    return bands


def _data(measured: Sequence[PointRows]) -> str:
    columns = ["collective", "predicted_s", "completion_s", "ratio", "drops"]
    return csv_text(
        {"setting": point.configuration.index, "label": point.configuration.label, "mode": point.mode} | row
        for point in measured
        for row in point.rows.assign(ratio=point.completion_s / point.predicted_s)[columns].to_dict("records")
    )
