"""The faults of a run: for each, the times until it was detected and until the run had recovered from it, and its cost.

Times are those of the experiment's clock; in virtual time that is the clock of the emulated network.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.figures.output import ON_WHITE, Picture, canvas, csv_text
from analysis.figures.style import FAINT, INK, MODE_STYLES, time_unit, typical_unit
from analysis.results.reader import Run
from topologies.errors import list_all

_MOST = 40  # faults that are drawn; the data file has all of them
_MIN_S = 1e-6  # shorter times are drawn here


def measured(run: Run) -> pd.DataFrame:
    """Return the faults of a run that were measured: predicted ones have no times."""
    return run.faults if run.faults.empty else run.faults[run.faults["engine"] != "model"]


def picture(name: str, run: Run) -> Picture | None:
    """Draw the measured faults of the run called `name`, which must have some: their times, unless none is longer than
    1 us, and their costs, unless none is known. None without either."""
    rows = measured(run).sort_values(["setting", "at_collective", "number", "mode"])
    shown = rows.head(_MOST)
    has_times = bool((shown[["detected_s", "recovered_s"]] > _MIN_S).any(axis=None))
    has_costs = bool(shown["cost_s"].notna().any())
    parts = [_draw_times] * has_times + [_draw_costs] * has_costs
    if not parts:
        return None
    with canvas(3.4 + 5 * len(parts), 1.7 + 0.26 * len(shown)) as figure:
        grid = figure.subplots(1, len(parts), sharey=True, squeeze=False)[0]
        for axes, draw in zip(grid, parts, strict=True):
            draw(axes, shown)
            axes.grid(True, axis="x")
        labels = [f"{row.what}, {row.mode}, at {row.at_collective}" for row in shown.itertuples(index=False)]
        grid[0].set_yticks(range(len(shown)), labels, fontsize=7.5)
        grid[0].set_ylim(len(shown) - 0.5, -0.5)
        lost, again = int(rows.collectives_lost.sum()), int(rows.bytes_again.sum())
        more = f"; the first {len(shown)} are shown" if len(rows) > len(shown) else ""
        told = f"{_counted(rows)}: {lost} collectives lost, {again:,} bytes retransmitted{more}"
        figure.suptitle(told, fontsize=8.5)
        what = ["time from each fault to its detection and to the recovery from it"] * has_times
        what += ["what each fault cost, TCP's repair included"] * has_costs
        caption = list_all(what)
        return Picture(
            name=f"{name}-faults",
            caption=f"{caption[0].upper()}{caption[1:]}.",
            figure=figure,
            data=csv_text(rows.to_dict("records")),
        )


def _draw_times(axes: Axes, shown: pd.DataFrame) -> None:
    """Draw when each fault was detected and recovered from."""
    times_s = [_MIN_S]
    for y, row in enumerate(shown.itertuples(index=False)):
        style = MODE_STYLES[row.mode]
        ends = [max(_MIN_S, time) for time in (row.detected_s, row.recovered_s) if not math.isnan(time)]
        times_s += ends
        axes.plot(ends, [y] * len(ends), color=FAINT, linewidth=1.2, zorder=1)
        for time, filled in ((row.detected_s, False), (row.recovered_s, True)):
            if not math.isnan(time):
                face = style.colour if filled else "white"
                size = 5 if filled else 8  # so that the open marker is seen around a filled one at the same place
                axes.plot(max(_MIN_S, time), y, style.marker, color=face, markeredgecolor=INK, markersize=size)
        if not ends:
            axes.plot(_MIN_S, y, "", color=FAINT)
            words = row.outcome.partition(":")[0]
            axes.annotate(words, (_MIN_S, y), va="center", color=FAINT, fontsize=7.5, bbox=ON_WHITE)
    axes.set_xscale("log")
    unit_s, unit = typical_unit([time_s for time_s in times_s if time_s > _MIN_S] or times_s)
    _label_decades(axes, times_s, unit_s)
    axes.set_xlabel(f"time since the fault ({unit}): detected (open), recovered (filled)")


def _draw_costs(axes: Axes, shown: pd.DataFrame) -> None:
    """Draw what each fault cost, with the number beside the bar."""
    costs_s = shown["cost_s"].to_numpy(dtype=float)
    unit_s, unit = time_unit(float(np.nanmax(np.abs(costs_s))))
    for y, (row, cost_s) in enumerate(zip(shown.itertuples(index=False), costs_s, strict=True)):
        cost, style = cost_s / unit_s, MODE_STYLES[row.mode]
        words = row.outcome.partition(":")[0] if math.isnan(cost_s) else f"{cost:,.3f}"
        if not math.isnan(cost_s):
            axes.barh(y, cost, 0.6, color=style.colour, hatch=style.hatch, edgecolor=INK, linewidth=0.6)
        where: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 7.5}
        axes.annotate(words, (max(0.0, np.nan_to_num(cost)), y), color=INK, bbox=ON_WHITE, **where)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.margins(x=0.18)
    axes.set_xlabel(f"cost ({unit}): longer than predicted without faults")


def _counted(rows: pd.DataFrame) -> str:
    """Return how many faults there were, each of which has a row for each mode: "1 fault in 2 modes"."""
    faults, modes = len(rows[["setting", "number"]].drop_duplicates()), rows["mode"].nunique()
    return f"{faults} fault{'s' * (faults > 1)}" + (f" in {modes} modes" if modes > 1 else "")


def _label_decades(axes: Axes, times_s: Sequence[float], unit_s: float) -> None:
    """Make the logarithmic x axis have the decades of these times, at least one, in a unit of so many seconds."""
    least, most = math.floor(math.log10(min(times_s))), math.ceil(math.log10(max(times_s)))
    axes.set_xlim(0.8 * 10.0**least, 1.25 * 10.0 ** max(most, least + 1))
    axes.xaxis.set_major_formatter(FuncFormatter(partial(_tick_label, unit_s)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _tick_label(unit_s: float, time_s: float, _index: int | None = None) -> str:
    text = f"{time_s / unit_s:,.10g}"
    return f"≤ {text}" if time_s <= _MIN_S else text
