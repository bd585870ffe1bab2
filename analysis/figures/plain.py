"""A plain figure: a number against another, a line for each name, with intervals where they are known.

It serves studies of a run's numbers that need no figure of their own.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.lines import Line2D

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, log_ticks
from analysis.figures.style import FAINT, line_style


class Spot(NamedTuple):
    """A point of the line called `name`; `low` and `high` are the ends of its interval, NaN if there is none."""

    name: str
    x: float
    y: float
    low: float = math.nan
    high: float = math.nan


def picture(spots: Sequence[Spot], *, name: str, x: str, y: str, title: str = "", log_x: bool = False) -> Picture:
    """Draw these points, at least one; `x` and `y` are the titles of the axes, with units."""
    names = list(dict.fromkeys(spot.name for spot in spots))
    looks = {one: {**line_style(index), "markersize": 4} for index, one in enumerate(names)}
    with canvas(5.2, 3.4) as figure:
        axes = figure.subplots()
        for one, look in looks.items():
            own = sorted((spot for spot in spots if spot.name == one), key=lambda spot: spot.x)
            axes.plot([spot.x for spot in own], [spot.y for spot in own], **look)
            ends = [spot.low for spot in own], [spot.high for spot in own]
            axes.vlines([spot.x for spot in own], *ends, color=look["color"], linewidth=1)
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.set_xscale("log" if log_x else "linear")
        if log_x:
            log_ticks(axes.xaxis)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        heading(figure, title)
        legend(figure, [Line2D([], [], label=one, **look) for one, look in looks.items()])
    data = csv_text(spot._asdict() for spot in spots)
    return Picture(name=name, caption=f"{y} against {x}{title and f': {title}'}.", figure=figure, data=data)
