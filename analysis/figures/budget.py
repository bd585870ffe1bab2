"""Whether collectives end within their budget (`collective.budget`), over a sweep: their times beside it.

A panel for each value of one swept key and a place on the x axis for each of another; what else was swept is a line
each. Beside what was measured, grey lines are the model's, and a number says how many ms of the budget are left.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figures.output import Picture, canvas, heading, legend, log_ticks, table
from analysis.figures.points import Configuration, Group, Point, Points, words
from analysis.figures.style import INK, MODE_STYLES, time_unit

_LOOKS = (("#17375E", "o"), ("#B5472F", "s"), ("#5BA4CF", "^"), ("#E0A800", "D"), ("#4C8C4A", "v"), ("#8E5EA2", "P"))
_LATE = "#D00000"
_MODEL: Mapping[str, Any] = MappingProxyType({"color": "#CFCFCF", "linewidth": 6})  # seen beneath what was measured
_APART = 1.12  # times that differ by less have one number


class Row(NamedTuple):
    """A point: its group and panel, its place there, which line it is on, and its budget, s."""

    group: Group
    panel: str
    place: int
    line: str
    point: Point
    budget_s: float

    @property
    def mean_s(self) -> float:
        """The mean time of its collectives."""
        return float(self.point.completion_s.mean())

    @property
    def cells(self) -> dict[str, Any]:
        """The row of a table."""
        times_s, swept = self.point.completion_s, self.point.configuration.swept
        return {key: words(key, value) for key, value in swept.items()} | {
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


def picture(name: str, groups: Sequence[Group], points: Points) -> Picture | None:
    """The figure of a run's budget, `groups` being of all its configurations; None where no point has one."""
    rows = [row for group in groups for row in _rows(group, points)]
    if not rows:
        return None
    measured = [row for row in rows if row.point.engine == "emulation"]
    panels = list(dict.fromkeys(row.panel for row in rows))
    lines = list(dict.fromkeys(row.line for row in rows))
    scale, unit = time_unit(min(row.mean_s for row in rows))
    with canvas(max(5.6, 3.7 * len(panels)), 4.6) as figure:
        axes_of = dict(zip(panels, figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], strict=True))
        for panel, axes in axes_of.items():
            here = [row for row in rows if row.panel == panel]
            _draw(axes, here, lines, scale, told=bool(measured))
            axes.set_title(panel, fontsize=9)
            axes.set_xlabel(here[0].group.x_label)
        first = axes_of[panels[0]]
        first.set_ylabel(f"mean time ({unit})")
        first.set_yscale("log")
        log_ticks(first.yaxis)
        handles = [
            Line2D([], [], color=colour, marker=shape, label=line)
            for line, (colour, shape) in zip(lines, _cycle(len(lines)), strict=True)
        ]
        handles.append(Line2D([], [], color=_LATE, linestyle="--", label="budget"))
        if measured and len(measured) < len(rows):
            handles.append(Line2D([], [], label="the model", **_MODEL))
        legend(figure, handles, "numbers: ms of the budget that are left; bars: the least and the greatest time")
        heading(figure, groups[0].title if len(groups) == 1 else "Times beside their budget")
    told = measured or rows
    fitting = sum(row.cells["fitting"] for row in told)
    count = sum(row.point.completion_s.size for row in told)
    what = "measured" if measured else "modelled"
    caption = f"Times of collectives beside their budget: {fitting:,} of {count:,} that were {what} fit."
    return Picture(name=f"{name}-budget", caption=caption, figure=figure, data=table(row.cells for row in rows))


def _rows(group: Group, points: Points) -> Iterator[Row]:
    panels = {one.index: title for title, there in group.facets.items() for one in there}
    modes = {mode for _, _, mode in points}
    for one in group.configurations:
        budget_s = one.values.get("collective.budget")  # older runs have none
        for engine in ("emulation", "model"):
            for mode in MODE_STYLES:
                point = points.get((engine, one.index, mode))
                if budget_s is not None and point is not None:
                    line = ", ".join([*_others(group, one), *[mode] * (len(modes) > 1)]) or mode
                    yield Row(group, panels[one.index], group.place(one), line, point, budget_s)


def _others(group: Group, one: Configuration) -> Iterator[str]:
    """What was swept beside the axis and the panels, in words; numbers behind what they are of."""
    for key, value in one.swept.items():
        if key not in (group.across, group.facet):
            named = isinstance(value, str | bool)
            yield words(key, value) if named else f"{group.key_words(key)} {words(key, value)}"


def _cycle(count: int) -> list[tuple[str, str]]:
    return [_LOOKS[index % len(_LOOKS)] for index in range(count)]


def _draw(axes: Axes, rows: Sequence[Row], lines: Sequence[str], scale: float, *, told: bool) -> None:
    """Draw a panel; where there are measured points, the model's are grey."""
    for number, (line, (colour, shape)) in enumerate(zip(lines, _cycle(len(lines)), strict=True)):
        for engine in ("model", "emulation"):
            of = sorted((row for row in rows if (row.line, row.point.engine) == (line, engine)), key=lambda r: r.place)
            x, y = [row.place for row in of], [row.mean_s / scale for row in of]
            if told and engine == "model":
                axes.plot(x, y, zorder=1, **_MODEL)
                continue
            size = max(4.0, 8.0 - number)  # so that those on which others lie are seen
            axes.plot(x, y, color=colour, marker=shape, markersize=size, linewidth=1.4, zorder=3)
            for row in of:
                times_s = row.point.completion_s / scale
                axes.vlines(row.place, times_s.min(), times_s.max(), color=colour, linewidth=0.9, zorder=2)
    shown = [row for row in rows if not told or row.point.engine == "emulation"]
    last: dict[int, float] = {}
    for row in sorted(shown, key=lambda row: row.mean_s):
        if row.mean_s > _APART * last.get(row.place, 0.0):
            last[row.place] = row.mean_s
            text = f"{(row.budget_s - row.mean_s) * 1e3:+,.0f}".replace("-", "\N{MINUS SIGN}")
            look: Any = {"textcoords": "offset points", "fontsize": 6.5, "color": INK}
            look["bbox"] = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
            axes.annotate(text, (row.place, row.mean_s / scale), (6, -3), **look)
    for budget_s in {row.budget_s for row in rows}:
        axes.axhline(budget_s / scale, color=_LATE, linestyle="--", linewidth=1.2)
    ticks = list(rows[0].group.ticks)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlim(-0.4, len(ticks) - 0.3)
