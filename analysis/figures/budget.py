"""Completion times compared with the budget of a collective (`collective.budget`), over a sweep.

One swept key is the x axis and another makes the panels; each combination of the others, and of modes, is a line. A
number at each point is the part of the budget that is left, in the unit of the axis. Where there are measurements, the
model is in grey.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figures.output import ON_WHITE, Picture, canvas, csv_text, heading, legend, log_ticks
from analysis.figures.run_points import Configuration, FigureGroup, PointRows, Points
from analysis.figures.style import INK, MODE_STYLES, line_style, time_unit

_LATE = "#D00000"
_MODEL: Mapping[str, Any] = MappingProxyType({"color": "#CFCFCF", "linewidth": 6})  # wide: seen below measured lines
_MODEL_ALONE: Mapping[str, Any] = MappingProxyType({"linestyle": "none", "marker": "_", "markersize": 16, "mew": 6})
_APART = 1.12  # among points at one tick whose times differ by less than this factor, only the first gets a number


class Row(NamedTuple):
    """A point of the run: its group, its panel and x tick (by index), its line, and its budget in s."""

    group: FigureGroup
    panel: str
    tick: int
    line: str
    point: PointRows
    budget_s: float

    @property
    def mean_s(self) -> float:
        """The mean completion time."""
        return float(self.point.completion_s.mean())

    @property
    def cells(self) -> dict[str, Any]:
        """The row of the data file, by column."""
        times_s, configuration = self.point.completion_s, self.point.configuration
        return {key: configuration.words(key) for key in configuration.swept} | {
            "engine": self.point.engine,
            "mode": self.point.mode,
            "collectives": times_s.size,
            "mean_s": self.mean_s,
            "least_s": times_s.min(),
            "most_s": times_s.max(),
            "budget_s": self.budget_s,
            "spare_s": self.budget_s - self.mean_s,
            "fitting": int((times_s <= self.budget_s).sum()),
        }


def picture(name: str, groups: Sequence[FigureGroup], points: Points) -> Picture | None:
    """Draw the times and budgets of all groups of a run called `name`; None if no point has a budget."""
    rows = [row for group in groups for row in _rows(group, points)]
    if not rows:
        return None
    measured = [row for row in rows if row.point.engine == "emulation"]
    panels = list(dict.fromkeys(row.panel for row in rows))
    lines = list(dict.fromkeys(row.line for row in rows))
    scale, unit = time_unit(max(row.mean_s for row in rows))
    width = max(5.6, 3.7 * len(panels))
    with canvas(width, 4.6) as figure:
        axes_of = dict(zip(panels, figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], strict=True))
        for panel, axes in axes_of.items():
            here = [row for row in rows if row.panel == panel]
            _draw(axes, here, lines, scale, has_measured=bool(measured))
            here[0].group.axis.draw(axes, inches=width / len(panels))
            axes.set_title(panel, fontsize=9)
            axes.set_xlabel(here[0].group.x_label)
        first = axes_of[panels[0]]
        first.set_ylabel(f"mean time ({unit})")
        first.set_yscale("log")
        log_ticks(first.yaxis)
        joined: dict[str, Any] = {} if groups[0].is_numeric else {"linestyle": "none"}
        handles = [Line2D([], [], label=name, **line_style(index) | joined) for index, name in enumerate(lines)]
        handles.append(Line2D([], [], color=_LATE, linestyle="--", label="budget"))
        if measured and len(measured) < len(rows):
            handles.append(Line2D([], [], label="model", **_MODEL))
        legend(
            figure,
            handles,
            f"numbers: {unit} of the budget that are left; bars: shortest and longest time\n{_means(rows)}",
        )
        heading(figure, groups[0].title if len(groups) == 1 else "Completion times and budget")
    counted = measured or rows
    fitting = sum(row.cells["fitting"] for row in counted)
    count = sum(row.point.completion_s.size for row in counted)
    how = "measured" if measured else "predicted"
    caption = f"Completion times and budget: {fitting:,} of {count:,} {how} times are within the budget."
    return Picture(name=f"{name}-budget", caption=caption, figure=figure, data=csv_text(row.cells for row in rows))


def _means(rows: Sequence[Row]) -> str:
    """Return over how many collectives the means are, by engine."""
    words = {"emulation": "measured", "model": "predicted"}
    counts = {engine: {row.point.number.size for row in rows if row.point.engine == engine} for engine in words}
    return "; ".join(f"{words[engine]}: mean of {max(sizes):,}" for engine, sizes in counts.items() if sizes)


def _rows(group: FigureGroup, points: Points) -> Iterator[Row]:
    panels = {one.index: title for title, there in group.facets.items() for one in there}
    modes = {mode for _, _, mode in points}
    for one in group.configurations:
        budget_s = one.values.get("collective.budget")  # older runs have none
        for engine in ("emulation", "model"):
            for mode in MODE_STYLES:
                point = points.get((engine, one.index, mode))
                if budget_s is not None and point is not None:
                    line = ", ".join([*_others(group, one), *[mode] * (len(modes) > 1)]) or mode
                    yield Row(group, panels[one.index], group.tick(one), line, point, budget_s)


def _others(group: FigureGroup, one: Configuration) -> Iterator[str]:
    """Yield in words the values of the swept keys other than the axis and the panels, numbers with their key."""
    for key, value in one.swept.items():
        if key not in (group.across, group.facet):
            is_clear = isinstance(value, str | bool)
            yield one.words(key) if is_clear else f"{group.key_words(key)} {one.words(key)}"


def _draw(axes: Axes, rows: Sequence[Row], lines: Sequence[str], scale: float, *, has_measured: bool) -> None:
    """Draw a panel; if the figure has measured points, those of the model are grey.

    Lines join the points of an axis of numbers alone.
    """
    axis = rows[0].group.axis
    joined: dict[str, Any] = {} if axis.is_numeric else {"linestyle": "none"}
    for index, line in enumerate(lines):
        look = {"linewidth": 1.4} | line_style(index) | joined
        for engine in ("model", "emulation"):
            chosen = [row for row in rows if (row.line, row.point.engine) == (line, engine)]
            chosen.sort(key=lambda row: axis.x[row.tick])
            x, y = [axis.x[row.tick] for row in chosen], [row.mean_s / scale for row in chosen]
            if has_measured and engine == "model":
                axes.plot(x, y, zorder=1, **_MODEL, **({} if axis.is_numeric else _MODEL_ALONE))
                continue
            size = max(4.0, 8.0 - index)  # smaller and smaller, so that markers below others are seen
            axes.plot(x, y, markersize=size, zorder=3, **look)
            for row in chosen:
                times_s = row.point.completion_s / scale
                axes.vlines(
                    axis.x[row.tick], times_s.min(), times_s.max(), color=look["color"], linewidth=0.9, zorder=2
                )
    numbered = [row for row in rows if not has_measured or row.point.engine == "emulation"]
    last: dict[int, float] = {}
    widest = max((abs(row.budget_s - row.mean_s) / scale for row in numbered), default=1.0)
    digits = min(3, max(0, 1 - math.floor(math.log10(widest or 1.0))))  # of the unit of the axis
    for row in sorted(numbered, key=lambda row: row.mean_s):
        if row.mean_s > _APART * last.get(row.tick, 0.0):
            last[row.tick] = row.mean_s
            text = f"{(row.budget_s - row.mean_s) / scale:+,.{digits}f}".replace("-", "\N{MINUS SIGN}")
            note: Any = {"textcoords": "offset points", "fontsize": 6.5, "color": INK, "bbox": ON_WHITE}
            axes.annotate(text, (axis.x[row.tick], row.mean_s / scale), (6, -3), **note)
    for budget_s in {row.budget_s for row in rows}:
        axes.axhline(budget_s / scale, color=_LATE, linestyle="--", linewidth=1.2)
    axes.margins(x=0.12)  # room for the number at the last point
