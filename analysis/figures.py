"""Figures in the paper's form: the total time of many collectives, one bar for each mode, against what was varied.

Draws what it is given and reckons nothing; beside each picture lies a CSV of the very numbers that are drawn.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.style import MODE_STYLES, SETTINGS

_SIZE_INCHES = (5.2, 3.2)
_PNG_DPI = 200


@dataclass(frozen=True, kw_only=True)
class Total:
    """A total completion time in seconds with the ends of its 95 % confidence interval (NaN: it cannot be had)."""

    total_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, kw_only=True)
class TotalsFigure:
    """Totals of every mode against what was varied.

    `x_values[i]` (numbers, named `x_column` with their unit in the CSV) is shown as `x_ticks[i]` and belongs to
    `totals[mode][i]`.
    """

    title: str
    x_label: str
    x_column: str
    x_values: tuple[float | int, ...]
    x_ticks: tuple[str, ...]
    totals: Mapping[str, tuple[Total, ...]]
    collectives: int


def write_totals(figure: TotalsFigure, stem: Path) -> tuple[Path, Path, Path]:
    """Write `stem`.svg, `stem`.png and `stem`.csv, the same bytes for the same figure, and return their paths.

    Raises FileExistsError where one of them exists, before any is written, and OSError where one cannot be.
    """
    paths = (stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.csv"))
    for path in paths:
        if path.exists():
            raise FileExistsError(f"{path} exists already")
    with mpl.rc_context(dict(SETTINGS)):
        drawn = _drawn(figure)
        drawn.savefig(paths[0], metadata={"Date": None})
        drawn.savefig(paths[1], dpi=_PNG_DPI, metadata={"Software": None})
    paths[2].write_text(_table(figure), encoding="utf-8")
    return paths


def _drawn(figure: TotalsFigure) -> Figure:
    drawn = Figure(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.subplots()
    width = 0.8 / len(figure.totals)
    for place, (mode, totals) in enumerate(figure.totals.items()):
        style = MODE_STYLES[mode]
        left = (place - (len(figure.totals) - 1) / 2) * width
        axes.bar(
            [x + left for x in range(len(totals))],
            [total.total_s for total in totals],
            width,
            yerr=_error_bars(totals),
            error_kw={"capsize": 2, "elinewidth": 0.8, "capthick": 0.8},
            label=style.label,
            color=style.colour,
            hatch=style.hatch,
            edgecolor="black",
            linewidth=0.6,
        )
    axes.set_xticks(range(len(figure.x_ticks)), figure.x_ticks)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(f"total time of {figure.collectives:,}\nAllGathers (s)")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_title(figure.title, fontsize="medium")
    axes.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.22))
    return drawn


def _error_bars(totals: Sequence[Total]) -> list[list[float]]:
    # Times that do not vary may have ends that miss the total by a rounding error, to either side.
    below = [max(0.0, total.total_s - total.low_s) for total in totals]
    above = [max(0.0, total.high_s - total.total_s) for total in totals]
    return [below, above]


def _table(figure: TotalsFigure) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([figure.x_column, "mode", "collectives", "total_s", "total_low_s", "total_high_s"])
    for place, x in enumerate(figure.x_values):
        for mode, totals in figure.totals.items():
            total = totals[place]
            ends = ["" if math.isnan(end) else end for end in (total.low_s, total.high_s)]
            table.writerow([x, mode, figure.collectives, total.total_s, *ends])
    return text.getvalue()
