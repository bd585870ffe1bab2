"""Completion times compared with the budget of a collective (`collective.budget`), over a sweep.

One swept key is the x axis and another makes the panels; each combination of the others, and of modes, is a line. What
is left of the budget at each point is a number above the panel, in the unit of the axis: beside the point it would
cover lines. Where there are measurements, the model is in grey.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, log_ticks, panels
from analysis.figures.run_points import Configuration, FigureGroup, PointRows, Points, words
from analysis.figures.style import INK, MODE_STYLES, ModeStyle, line, marker, time_unit, value_styles

_LATE = "#D00000"
_MODEL: Mapping[str, Any] = MappingProxyType({"color": "#CFCFCF", "linewidth": 6})  # wide: seen below measured lines
_MODEL_ALONE: Mapping[str, Any] = MappingProxyType({"linestyle": "none", "marker": "_", "markersize": 16, "mew": 6})
_WIDE = 8.0  # ratio of the highest to the lowest time above which their axis is logarithmic
_NUMBER_PT, _ROW_PT = 8.5, 11.0  # sizes of a number above a panel, and of a row of them
_BESIDE_PT, _ALL_BESIDE_PT = 4.0, 16.0  # between the points of neighbouring lines at one tick, and of all lines
_COLUMNS, _INCHES = 2, 5.6


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
    def ends_s(self) -> tuple[float, float]:
        """The shortest and the longest completion time."""
        return float(self.point.completion_s.min()), float(self.point.completion_s.max())

    @property
    def varies(self) -> bool:
        """Whether the times differ by more than rounding."""
        least, most = self.ends_s
        return most > (1 + 1e-9) * least

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
    titles = list(dict.fromkeys(row.panel for row in rows))
    styles = _styles(groups, list(dict.fromkeys(row.line for row in rows)))
    scale, unit = time_unit(max(row.mean_s for row in rows))
    columns = min(_COLUMNS, len(titles))
    height = 3.2 + len(styles) * _ROW_PT / 72
    with canvas(_INCHES, height * -(-len(titles) // columns) + 0.9) as figure:
        grid = panels(figure, len(titles), columns=columns, sharey=True)
        is_log = _is_wide(rows)
        hidden = False
        for index, (panel, axes) in enumerate(zip(titles, grid, strict=True)):
            here = [row for row in rows if row.panel == panel]
            _draw(axes, here, styles, scale, has_measured=bool(measured))
            here[0].group.axis.draw(axes, inches=_INCHES / columns)
            numbered = [row for row in here if not measured or row.point.engine == "emulation"]
            hidden |= _write_left(axes, numbered, styles, scale, _INCHES / columns - 0.8)
            axes.set_title(panel, fontsize=9, pad=6 + _ROW_PT * len(styles))
            axes.set_xlabel(here[0].group.x_label)
            if index % columns == 0:
                axes.set_ylabel(f"mean time ({unit})")
        if is_log:
            grid[0].set_yscale("log")
            log_ticks(grid[0].yaxis)
        else:
            grid[0].set_ylim(bottom=0)
            grid[0].yaxis.set_major_formatter("{x:,.10g}")
        joined: dict[str, Any] = {} if groups[0].is_numeric else {"linestyle": "none"}
        looks = [_look(style, measured=bool(measured)) | joined for style in styles.values()]
        handles = [
            Line2D([], [], label=style.label, **look) for style, look in zip(styles.values(), looks, strict=True)
        ]
        handles.append(Line2D([], [], color=_LATE, linestyle="--", label=_budget_words(rows)))
        if measured and len(measured) < len(rows):
            handles.append(Line2D([], [], label="model", **_MODEL))
        legend(figure, handles, _note(rows, unit, hidden=hidden))
        heading(figure, groups[0].title if len(groups) == 1 else "Completion times and budget")
    counted = measured or rows
    fitting = sum(row.cells["fitting"] for row in counted)
    count = sum(row.point.completion_s.size for row in counted)
    how = "measured" if measured else "predicted"
    caption = f"Completion times and budget: {fitting:,} of {count:,} {how} times are within the budget."
    return Picture(name=f"{name}-budget", caption=caption, figure=figure, data=csv_text(row.cells for row in rows))


def _styles(groups: Sequence[FigureGroup], lines: Sequence[str]) -> dict[str, ModeStyle]:
    """Return the style of each line, which is that of the same line in the run's other figures."""
    known = next((group.styles for group in groups if {*lines} <= {*group.styles}), None) or value_styles(lines)
    return {name: known[name] for name in known if name in lines}


def _look(style: ModeStyle, *, measured: bool) -> dict[str, Any]:
    """Return the line and the marker of a style."""
    return marker(style, measured=measured) | line(style)


def _is_wide(rows: Sequence[Row]) -> bool:
    """Return whether times differ so much that their axis is logarithmic."""
    means_s = [row.mean_s for row in rows]
    return max(means_s) > _WIDE * min(means_s)


def _budget_words(rows: Sequence[Row]) -> str:
    """Return the budget, or the least and the highest of several."""
    budgets_s = sorted({row.budget_s for row in rows})
    ends = (words("collective.budget", one) for one in dict.fromkeys((budgets_s[0], budgets_s[-1])))
    return f"budget {' to '.join(ends)}"


def _note(rows: Sequence[Row], unit: str, *, hidden: bool) -> str:
    """Return how to read the figure."""
    parts = [f"above: {unit} of the budget that are left by the mean"]
    parts += ["where there is room, the data have all"] * hidden
    told = ["; ".join([", ".join(parts), *["vertical: shortest to longest time"] * any(row.varies for row in rows)])]
    return "\n".join([*told, _means(rows)])


def _means(rows: Sequence[Row]) -> str:
    """Return over how many collectives the means are, by engine."""
    told = {"emulation": "measured", "model": "predicted"}
    counts = {engine: {row.point.number.size for row in rows if row.point.engine == engine} for engine in told}
    return "; ".join(f"{told[engine]}: mean of {max(sizes):,}" for engine, sizes in counts.items() if sizes)


def _rows(group: FigureGroup, points: Points) -> Iterator[Row]:
    titles = {one.index: title for title, there in group.facets.items() for one in there}
    modes = {mode for _, _, mode in points}
    for one in group.configurations:
        budget_s = one.values.get("collective.budget")  # older runs have none
        for engine in ("emulation", "model"):
            for mode in MODE_STYLES:
                point = points.get((engine, one.index, mode))
                if budget_s is not None and point is not None:
                    name = ", ".join([*_others(group, one), *[mode] * (len(modes) > 1)]) or mode
                    yield Row(group, titles[one.index], group.tick(one), name, point, budget_s)


def _others(group: FigureGroup, one: Configuration) -> Iterator[str]:
    """Yield in words the values of the swept keys other than the axis and the panels, numbers with their key."""
    for key, value in one.swept.items():
        if key not in (group.across, group.facet):
            is_clear = isinstance(value, str | bool)
            yield one.words(key) if is_clear else f"{group.key_words(key)} {one.words(key)}"


def _draw(
    axes: Axes, rows: Sequence[Row], styles: Mapping[str, ModeStyle], scale: float, *, has_measured: bool
) -> None:
    """Draw a panel; if the figure has measured points, those of the model are grey.

    Lines join the points of an axis of numbers alone. The points of each line are a little beside those of the last, so
    that bars of several lines are all seen.
    """
    axis = rows[0].group.axis
    joined: dict[str, Any] = {} if axis.is_numeric else {"linestyle": "none"}
    step_pt = min(_BESIDE_PT, _ALL_BESIDE_PT / len(styles))
    for index, (name, style) in enumerate(styles.items()):
        beside = _beside(axes, (index - (len(styles) - 1) / 2) * step_pt)
        for engine in ("model", "emulation"):
            chosen = [row for row in rows if (row.line, row.point.engine) == (name, engine)]
            chosen.sort(key=lambda row: axis.x[row.tick])
            x, y = [axis.x[row.tick] for row in chosen], [row.mean_s / scale for row in chosen]
            look = _look(style, measured=has_measured) | joined | {"zorder": 3}
            if is_model := has_measured and engine == "model":
                look = {**_MODEL, **({} if axis.is_numeric else _MODEL_ALONE), "zorder": 1}
            # Not by `plot`, which would take the shift for a part of the data.
            axes.add_artist(Line2D(x, y, transform=beside, **look))
            _extend(axes, [*zip(x, y, strict=True)])
            if not is_model:
                bars = [[(axis.x[row.tick], end / scale) for end in row.ends_s] for row in chosen if row.varies]
                look = {"colors": style.colour, "linewidths": 0.9, "zorder": 2}
                axes.add_collection(LineCollection(bars, transform=beside, **look), autolim=False)
                _extend(axes, [end for both in bars for end in both])
    for budget_s in {row.budget_s for row in rows}:
        axes.axhline(budget_s / scale, color=_LATE, linestyle="--", linewidth=1.2)
    axes.margins(x=0.12)  # room for the numbers above the first and the last point
    axes.autoscale_view()


def _beside(axes: Axes, right_pt: float) -> Transform:
    """Return the transform of data that is drawn so many points to the right."""
    return axes.transData + ScaledTranslation(right_pt / 72, 0, axes.figure.dpi_scale_trans)


def _extend(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Make an axis have room for these points."""
    if points:
        axes.update_datalim(points)


def _write_left(axes: Axes, rows: Sequence[Row], styles: Mapping[str, ModeStyle], scale: float, inches: float) -> bool:
    """Write above a panel of so many inches what is left of the budget, in a row for each line with its marker at the
    left. Returns whether ticks are so close that some have no number."""
    axis = rows[0].group.axis
    widest = max(abs(row.budget_s - row.mean_s) / scale for row in rows)
    digits = min(3, max(0, 1 - math.floor(math.log10(widest or 1.0))))  # of the unit of the axis
    texts = [f"{(row.budget_s - row.mean_s) / scale:+,.{digits}f}".replace("-", "\N{MINUS SIGN}") for row in rows]
    longest = [""] * len(axis.x)
    for row, text in zip(rows, texts, strict=True):
        longest[row.tick] = max(longest[row.tick], text, key=len)
    shown = axis._replace(ticks=tuple(longest)).readable(inches)
    raised_pt = {name: _ROW_PT * (len(styles) - 1 - place) for place, name in enumerate(styles)}
    for row, text in zip(rows, texts, strict=True):
        if row.tick in shown:
            where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            at = (0, 4 + raised_pt[row.line])
            axes.annotate(text, (axis.x[row.tick], 1), at, ha="center", fontsize=_NUMBER_PT, color=INK, **where)
    for name, style in styles.items():
        aside = ScaledTranslation(-8 / 72, (7 + raised_pt[name]) / 72, axes.figure.dpi_scale_trans)
        look: dict[str, Any] = {"color": style.colour, "edgecolor": INK, "linewidth": 0.6, "clip_on": False}
        axes.scatter(0, 1, s=25, marker=style.marker, transform=axes.transAxes + aside, **look)
    return len(shown) < len(axis.x)
