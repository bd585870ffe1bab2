"""A plain figure: a number against another, a line for each name, with intervals where they are known, and with points
that were measured beside a line that was predicted.

It serves studies of a run's numbers that need no figure of their own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, log_ticks
from analysis.figures.style import FAINT, line_style

_WIDTH, _BESIDE = 5.2, 4.2  # inches of a panel alone, and of one beside others
_UNJOINED = {"linestyle": ""}
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


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The points of a panel, at least one, the titles of its axes, with units, and its own title.

    Points of a name are joined by a line if this `is_line`. Only what is within `span` is shown, if it is given.
    """

    spots: Sequence[Spot]
    x: str
    y: str
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    is_line: bool = True
    span: tuple[float, float] | None = None

    @property
    def caption(self) -> str:
        """What the panel shows, as the beginning of a sentence."""
        return f"{self.y} against {self.x}{self.title and f': {self.title}'}"


def picture(
    spots: Sequence[Spot], *, name: str, x: str, y: str, title: str = "", log_x: bool = False, log_y: bool = False
) -> Picture:
    """Draw these points, at least one; `x` and `y` are the titles of the axes, with units."""
    panel = Panel(spots=spots, x=x, y=y, title=title, log_x=log_x, log_y=log_y)
    return _drawn([panel], name=name, heads=[title], data=csv_text(spot._asdict() for spot in spots))


def panels(shown: Sequence[Panel], *, name: str) -> Picture:
    """Draw panels side by side; a line of one name looks the same in all of them."""
    rows = [{"panel": one.title} | spot._asdict() for one in shown for spot in one.spots]
    return _drawn(shown, name=name, heads=[], data=csv_text(rows))


def _drawn(shown: Sequence[Panel], *, name: str, heads: Sequence[str], data: str) -> Picture:
    spots = [spot for one in shown for spot in one.spots]
    names = list(dict.fromkeys(spot.name for spot in spots))
    looks = {one: {**line_style(index), "markersize": 4} for index, one in enumerate(names)}
    with canvas(_WIDTH if len(shown) == 1 else _BESIDE * len(shown), 3.4) as figure:
        for axes, one in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            _draw(axes, one, looks)
            if not heads:
                axes.set_title(one.title, fontsize="small")
        for head in heads:
            heading(figure, head)
        drawn = {spot.name for spot in spots if not spot.is_measured}
        line = {} if any(one.is_line for one in shown) else _UNJOINED
        labels = [Line2D([], [], label=one, **look | line) for one, look in looks.items() if one in drawn]
        undrawn = [one for one in names if one not in drawn]
        labels += [Line2D([], [], label=f"{one}, measured", **_RING, color=looks[one]["color"]) for one in undrawn]
        if any(spot.is_measured and spot.name in drawn for spot in spots):
            labels.append(Line2D([], [], label="measured", **_RING, color=FAINT))
        legend(figure, labels)
    return Picture(name=name, caption=f"{'; '.join(one.caption for one in shown)}.", figure=figure, data=data)


def _draw(axes: Axes, shown: Panel, looks: Mapping[str, Mapping[str, Any]]) -> None:
    for one in dict.fromkeys(spot.name for spot in shown.spots):
        look, every = looks[one], [spot for spot in shown.spots if spot.name == one]
        own = sorted((spot for spot in every if not spot.is_measured), key=lambda spot: spot.x)
        line = {} if shown.is_line else _UNJOINED
        axes.plot([spot.x for spot in own], [spot.y for spot in own], **{**look, **line})
        rings = [(spot.x, spot.y) for spot in every if spot.is_measured]
        axes.plot(*zip(*rings, strict=True) if rings else ([], []), **_RING, color=look["color"])
        ends = [spot.low for spot in own], [spot.high for spot in own]
        axes.vlines([spot.x for spot in own], *ends, color=look["color"], linewidth=1)
    if not shown.log_y:
        axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.set_xscale("log" if shown.log_x else "linear")
    axes.set_yscale("log" if shown.log_y else "linear")
    for axis in [axes.xaxis] * shown.log_x + [axes.yaxis] * shown.log_y:
        log_ticks(axis)
    if shown.span is not None:
        axes.set_ylim(shown.span)
    axes.set_xlabel(shown.x)
    axes.set_ylabel(shown.y)
