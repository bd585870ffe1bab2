"""A plain figure: a number against another, a line for each name, with intervals where they are known, and with points
that were measured beside a line that was predicted.

It serves studies of a run's numbers that need no figure of their own.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.lines import Line2D

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, log_ticks
from analysis.figures.style import FAINT, line_style

_RING: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 8, "fillstyle": "none"}


class Spot(NamedTuple):
    """A point of the line called `name`; `low` and `high` are the ends of its interval, NaN if there is none. One that
    `is_measured` is drawn as a ring of the line's colour, which does not pass it."""

    name: str
    x: float
    y: float
    low: float = math.nan
    high: float = math.nan
    is_measured: bool = False


def picture(
    spots: Sequence[Spot], *, name: str, x: str, y: str, title: str = "", log_x: bool = False, log_y: bool = False
) -> Picture:
    """Draw these points, at least one; `x` and `y` are the titles of the axes, with units."""
    names = list(dict.fromkeys(spot.name for spot in spots))
    looks = {one: {**line_style(index), "markersize": 4} for index, one in enumerate(names)}
    with canvas(5.2, 3.4) as figure:
        axes = figure.subplots()
        for one, look in looks.items():
            every = [spot for spot in spots if spot.name == one]
            own = sorted((spot for spot in every if not spot.is_measured), key=lambda spot: spot.x)
            axes.plot([spot.x for spot in own], [spot.y for spot in own], **look)
            rings = [(spot.x, spot.y) for spot in every if spot.is_measured]
            axes.plot(*zip(*rings, strict=True) if rings else ([], []), **_RING, color=look["color"])
            ends = [spot.low for spot in own], [spot.high for spot in own]
            axes.vlines([spot.x for spot in own], *ends, color=look["color"], linewidth=1)
        if not log_y:
            axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.set_xscale("log" if log_x else "linear")
        axes.set_yscale("log" if log_y else "linear")
        for axis in [axes.xaxis] * log_x + [axes.yaxis] * log_y:
            log_ticks(axis)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        heading(figure, title)
        drawn = {spot.name for spot in spots if not spot.is_measured}
        labels = [Line2D([], [], label=one, **look) for one, look in looks.items() if one in drawn]
        undrawn = [one for one in names if one not in drawn]
        labels += [Line2D([], [], label=f"{one}, measured", **_RING, color=looks[one]["color"]) for one in undrawn]
        if any(spot.is_measured and spot.name in drawn for spot in spots):
            labels.append(Line2D([], [], label="measured", **_RING, color=FAINT))
        legend(figure, labels)
    data = csv_text(spot._asdict() for spot in spots)
    return Picture(name=name, caption=f"{y} against {x}{title and f': {title}'}.", figure=figure, data=data)
