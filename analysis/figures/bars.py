"""Plain bars: a number for each name in each of several groups, with intervals where they are known.

It serves studies whose published figure has bars. Modes have their own colours.
"""

import math
from collections.abc import Sequence
from textwrap import fill
from typing import NamedTuple

from matplotlib.patches import Patch

from analysis.figures.output import Picture, canvas, csv_text, heading, legend
from analysis.figures.style import INK, MODE_STYLES, ModeStyle, paler, value_styles

_BAR, _BESIDE, _LEAST = 0.17, 0.8, 5.2  # inches of a bar, of what is beside the axis, and of the narrowest figure
_CHARACTER = 0.085  # inches of a character of a group's label


class Bar(NamedTuple):
    """The bar called `name` of a group; `low` and `high` are the ends of its interval, NaN if there is none."""

    group: str
    name: str
    y: float
    low: float = math.nan
    high: float = math.nan
    measured: bool = False


def picture(bars: Sequence[Bar], *, name: str, y: str, title: str = "", note: str = "") -> Picture:
    """Draw these bars, at least one; `y` is the title of the axis, with its unit. Predicted bars are paler. The
    `note` tells more of them, and which are predicted if all or none are."""
    groups = list(dict.fromkeys(bar.group for bar in bars))
    styles = _styles(list(dict.fromkeys(bar.name for bar in bars)))
    places = {one: place for place, one in enumerate(styles)}
    width = 1 / (len(styles) + 1)
    has_measured, has_both = any(bar.measured for bar in bars), len({bar.measured for bar in bars}) > 1
    with canvas(max(_LEAST, _BESIDE + _BAR * len(groups) * (len(styles) + 1)), 3.6) as figure:
        axes = figure.subplots()
        for bar in bars:
            x = groups.index(bar.group) + (places[bar.name] - (len(styles) - 1) / 2) * width
            style = styles[bar.name]
            colour = _colour(style, measured=bar.measured)
            axes.bar(x, bar.y, width, color=colour, hatch=style.hatch, edgecolor=INK, linewidth=0.6)
            axes.vlines(x, bar.low, bar.high, color=INK, linewidth=1.2)
        room = int(_BAR * (len(styles) + 1) / _CHARACTER)
        axes.set_xticks(range(len(groups)), [fill(group, room, break_long_words=False) for group in groups])
        axes.set_ylabel(y)
        heading(figure, title)
        patches = [
            # A bar called as a mode need not choose what that mode does, which the style's label tells.
            Patch(facecolor=_colour(style, measured=has_measured), hatch=style.hatch, edgecolor=INK, label=one)
            for one, style in styles.items()
        ]
        legend(figure, patches, "\n".join(filter(None, ["paler: predicted" * has_both, note])))
    caption = f"{y}{title and f': {title}'}."
    return Picture(name=name, caption=caption, figure=figure, data=csv_text(bar._asdict() for bar in bars))


def _styles(names: Sequence[str]) -> dict[str, ModeStyle]:
    if all(name in MODE_STYLES for name in names):
        return {name: MODE_STYLES[name] for name in names}
    return value_styles(names)


def _colour(style: ModeStyle, *, measured: bool) -> str:
    return style.colour if measured else paler(style.colour)
