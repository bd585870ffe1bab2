"""How often to re-embed: mean completion time against the period, a line for each policy, with its best period.

A run gets this figure if `collective.reembed_every` was swept; another swept key has a panel for each value. Lines are
predicted, filled markers measured, and a ring marks the best period of each line.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from analysis.figures.output import Picture, canvas, csv_text, legend, panels
from analysis.figures.run_points import Configuration, FigureGroup, Points, collective_words, grouped
from analysis.figures.style import INK, MODE_STYLES, line, marker, typical_unit
from analysis.statistics.intervals import SAME_TIME
from topologies.units import plural

_PERIOD = "collective.reembed_every"
_PANELS = 8  # that are drawn


class Row(NamedTuple):
    """A period of a policy in an engine: mean and total of its times, and whether the mean is the least of them."""

    panel: str
    engine: str
    mode: str
    period: int
    collectives: int
    mean_s: float
    total_s: float
    best: bool


def groups_of(configurations: Sequence[Configuration]) -> list[FigureGroup]:
    """Return the configurations of each figure, none if periods were not swept."""
    swept = configurations[0].swept
    if _PERIOD not in swept:
        return []
    facet = next((key for key in swept if key != _PERIOD), None)
    return grouped(configurations, _PERIOD, facet)


def rows_of(group: FigureGroup, points: Points) -> list[Row]:
    """Return the rows of a group's points by panel, engine and mode, in the order of periods.

    No period is the best if the means of all are equal.
    """
    rows: list[Row] = []
    for panel, members in _panels(group).items():
        for engine in ("model", "emulation"):
            for mode in MODE_STYLES:
                here = [(one, points.get((engine, one.index, mode))) for one in members]
                times_s = {int(one.value(_PERIOD)): point.completion_s for one, point in here if point is not None}
                means_s = {period: float(times_s[period].mean()) for period in sorted(times_s)}
                least_s = min(means_s.values(), default=math.nan)
                all_equal = math.isclose(least_s, max(means_s.values(), default=math.nan), rel_tol=SAME_TIME)
                for period, mean_s in means_s.items():
                    count, total_s = times_s[period].size, float(times_s[period].sum())
                    is_best = math.isclose(mean_s, least_s, rel_tol=SAME_TIME) and not all_equal
                    rows.append(Row(panel, engine, mode, period, count, mean_s, total_s, is_best))
    return rows


def _panels(group: FigureGroup) -> dict[str, list[Configuration]]:
    panels: dict[str, list[Configuration]] = {}
    for one in group.configurations:
        panels.setdefault("" if group.facet is None else one.words(group.facet), []).append(one)
    return panels


def picture(name: str, group: FigureGroup, points: Points) -> Picture | None:
    """Draw a group of the run called `name`; None if it has no points."""
    rows = rows_of(group, points)
    if not rows:
        return None
    every = list(dict.fromkeys(row.panel for row in rows))
    names = every[:_PANELS]
    columns = min(2, len(names))
    unit = typical_unit([row.mean_s for row in rows])
    with canvas(max(5.2, 4.0 * columns), 2.9 * -(-len(names) // columns) + 0.7) as figure:
        for axes, panel in zip(panels(figure, len(names), columns=columns), names, strict=True):
            _draw(axes, [row for row in rows if row.panel == panel], unit)
            axes.set_title(panel if group.facet is None else f"{group.key_words(group.facet)} {panel}")
        modes = [mode for mode in MODE_STYLES if any(row.mode == mode for row in rows)]
        engines = dict.fromkeys(row.engine for row in rows)
        looks = [marker(mode, measured=True) | line(mode) for mode in modes]
        handles = [
            Line2D([], [], label=MODE_STYLES[mode].label, **look) for mode, look in zip(modes, looks, strict=True)
        ]
        handles.append(Line2D([], [], label="the best period", **_RING))
        looks_of = {"model": "lines: predicted", "emulation": "filled markers: measured"}
        counts = {engine: max(row.collectives for row in rows if row.engine == engine) for engine in engines}
        note = "; ".join(f"{looks_of[one]}, mean of {count:,}" for one, count in counts.items())
        note += f"\nthe first {len(names)} of {len(every)} panels; the data have all" * (len(names) < len(every))
        legend(figure, handles, note)
    what = plural(collective_words(group.configurations))
    caption = f"Mean time of {what} against how many of them keep an embedding."
    data = csv_text(row._asdict() for row in rows)
    return Picture(
        name="-".join(filter(None, (name, group.name, "periods"))), caption=caption, figure=figure, data=data
    )


_RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 10,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "linestyle": "none",
}


def _draw(axes: Axes, rows: Sequence[Row], time: tuple[float, str]) -> None:
    unit_s, unit = time
    for engine, mode in dict.fromkeys((row.engine, row.mode) for row in rows):
        own = [row for row in rows if (row.engine, row.mode) == (engine, mode)]
        x, y = [row.period for row in own], [row.mean_s / unit_s for row in own]
        if engine == "model":
            axes.plot(x, y, zorder=2, **line(mode))
        else:
            axes.plot(x, y, zorder=3, **marker(mode, measured=True))
        for row in own:
            if row.best:
                axes.plot([row.period], [row.mean_s / unit_s], zorder=4, **_RING)
    periods = sorted({row.period for row in rows})
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(periods, [str(period) for period in periods])
    axes.set_xlabel("period (collectives)")
    axes.set_ylabel(f"mean time ({unit})")
    axes.set_ylim(bottom=0)
