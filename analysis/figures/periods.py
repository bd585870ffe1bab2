"""How often to choose anew: the total time by the period, a line for each policy, with the best period of each.

A run has it where `collective.reembed_every` was swept; what else was swept has a panel for each value. Lines are the
model's, filled markers what was measured, and a ring is around each line's best.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from analysis.figures.output import Picture, canvas, legend, panels, table
from analysis.figures.points import Configuration, Group, Points, collective_words, grouped, words
from analysis.figures.style import INK, MODE_STYLES, line, marker, time_unit

_PERIOD = "collective.reembed_every"
_PANELS = 8


class Row(NamedTuple):
    """A period of a policy in an engine: the mean and the total of its times, and whether the total is the least."""

    panel: str
    engine: str
    mode: str
    period: int
    collectives: int
    mean_s: float
    total_s: float
    best: bool


def groups_of(configurations: Sequence[Configuration]) -> list[Group]:
    """The configurations of each figure; none where periods were not swept."""
    swept = configurations[0].swept
    if _PERIOD not in swept:
        return []
    facet = next((key for key in swept if key != _PERIOD), None)
    return [group for group in grouped(configurations, _PERIOD, facet) if len(_panels(group)) <= _PANELS]


def rows_of(group: Group, points: Points) -> list[Row]:
    """The rows of a group's points, panel by panel, engine by engine, mode by mode, in the order of periods."""
    found: list[Row] = []
    for panel, members in _panels(group).items():
        for engine in ("model", "emulation"):
            for mode in MODE_STYLES:
                here = [(one, points.get((engine, one.index, mode))) for one in members]
                taken_s = {int(one.value(_PERIOD)): point.completion_s for one, point in here if point is not None}
                times = [(period, taken_s[period]) for period in sorted(taken_s)]
                least = min((float(taken.mean()) for _, taken in times), default=math.nan)
                for period, taken in times:
                    mean_s = float(taken.mean())
                    best = mean_s == least and any(float(other.mean()) > least for _, other in times)
                    found.append(Row(panel, engine, mode, period, taken.size, mean_s, float(taken.sum()), best))
    return found


def _panels(group: Group) -> dict[str, list[Configuration]]:
    found: dict[str, list[Configuration]] = {}
    for one in group.configurations:
        found.setdefault("" if group.facet is None else words(group.facet, one.value(group.facet)), []).append(one)
    return found


def picture(name: str, group: Group, points: Points) -> Picture | None:
    """The figure of a group of a run of this name; None where it has no points."""
    rows = rows_of(group, points)
    if not rows:
        return None
    names = list(dict.fromkeys(row.panel for row in rows))
    columns = min(2, len(names))
    with canvas(max(5.2, 4.0 * columns), 2.9 * -(-len(names) // columns) + 0.7) as figure:
        for axes, panel in zip(panels(figure, len(names), columns=columns), names, strict=True):
            _draw(axes, [row for row in rows if row.panel == panel])
            axes.set_title(panel if group.facet is None else f"{group.key_words(group.facet)} {panel}")
        modes = [mode for mode in MODE_STYLES if any(row.mode == mode for row in rows)]
        looks = [marker(mode, measured=True) | line(mode) for mode in modes]
        handles = [
            Line2D([], [], label=MODE_STYLES[mode].label, **look) for mode, look in zip(modes, looks, strict=True)
        ]
        handles.append(Line2D([], [], label="the best period", **_RING))
        legend(figure, handles, "lines: modelled; filled markers: measured, the first collectives")
    caption = f"Mean time of {collective_words(group.configurations)}s by how many of them keep a choice."
    data = table(row._asdict() for row in rows)
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


def _draw(axes: Axes, rows: Sequence[Row]) -> None:
    unit_s, unit = time_unit(max(row.mean_s for row in rows))
    for engine, mode, mine in _lines(rows):
        x, y = [row.period for row in mine], [row.mean_s / unit_s for row in mine]
        if engine == "model":
            axes.plot(x, y, zorder=2, **line(mode))
        else:
            axes.plot(x, y, zorder=3, **marker(mode, measured=True))
        for row in mine:
            if row.best:
                axes.plot([row.period], [row.mean_s / unit_s], zorder=4, **_RING)
    periods = sorted({row.period for row in rows})
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(periods, [str(period) for period in periods])
    axes.set_xlabel("period (collectives)")
    axes.set_ylabel(f"mean time ({unit})")
    axes.set_ylim(bottom=0)


def _lines(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    for engine, mode in dict.fromkeys((row.engine, row.mode) for row in rows):
        yield engine, mode, [row for row in rows if (row.engine, row.mode) == (engine, mode)]
