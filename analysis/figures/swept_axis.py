"""The x axis of a swept key: linear or logarithmic for numbers, and equal distances for other values."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from analysis.figures.output import legible_pt

_APART = 4.0  # ratio of the highest to the lowest number above which the axis is logarithmic
_WIDE = 20.0  # the same ratio without the lowest one, 0, above which the axis is logarithmic from the next one on
_DECADES = 0.3  # from 0 to that next one: a logarithmic axis has no 0
_PER_INCH, _OF_PT = 13.0, 9.0  # characters of a tick's label in an inch, at this size of text


class SweptAxis(NamedTuple):
    """The x coordinate and the label of each value; lines join values only if they are numbers (`is_numeric`). `ticks`
    are written in place of the labels, if there are any. A logarithmic axis that begins at 0 is linear up to
    `linear_to`."""

    x: tuple[float, ...]
    labels: tuple[str, ...]
    is_numeric: bool
    is_log: bool
    ticks: tuple[str, ...] = ()
    linear_to: float | None = None

    def draw(self, axes: Axes, *, inches: float) -> None:
        """Set the scale and the ticks of an axis that is so wide, without labels that would overlap."""
        if self.linear_to is not None:
            axes.set_xscale("symlog", linthresh=self.linear_to, linscale=_DECADES * (1 - 1 / 10))
            room = axes.get_xmargin() * self._scaled(max(self.x))  # limits have been chosen for a linear axis
            axes.set_xlim(-room * self.linear_to / _DECADES, max(self.x) * 10**room)
        elif self.is_log:
            axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        inches *= _OF_PT / legible_pt(axes.figure.figure, _OF_PT)
        rows = self._rows(inches) if self.is_numeric else [[*range(len(self.x))]]
        written = self.ticks or self.labels
        places = [(self.x[index], "\n" * row + written[index]) for row, chosen in enumerate(rows) for index in chosen]
        axes.set_xticks([x for x, _ in places], [text for _, text in places])

    def _rows(self, inches: float) -> list[list[int]]:
        """Return the indices of the values with a label: all of them, in two rows if one is too short, unless these are
        too short, too."""
        one, ordered = self.readable(inches), sorted(range(len(self.x)), key=self.x.__getitem__)
        two = [ordered[::2], ordered[1::2]]
        return two if len(one) < len(ordered) and all(self._have_room(row, inches) for row in two) else [one]

    def readable(self, inches: float) -> list[int]:
        """Return the indices of the values whose labels do not overlap on an axis that is so wide, from the left."""
        chosen = list[int]()
        for index in sorted(range(len(self.x)), key=self.x.__getitem__):
            if self._have_room([*chosen[-1:], index], inches):
                chosen.append(index)
        return chosen

    def _have_room(self, indices: Sequence[int], inches: float) -> bool:
        """Return whether the labels of these values, from the left, have a blank between each two of them."""
        scaled, written = [*map(self._scaled, self.x)] if self.is_log else self.x, self.ticks or self.labels
        character = (max(scaled) - min(scaled)) / (_PER_INCH * inches)
        return all(
            scaled[after] - scaled[before] >= character * (1 + (len(written[before]) + len(written[after])) / 2)
            for before, after in pairwise(indices)
        )

    def _scaled(self, x: float) -> float:
        """Return the place of a number on a logarithmic axis."""
        if self.linear_to is None:
            return math.log10(x)
        return _DECADES * x / self.linear_to if x <= self.linear_to else _DECADES + math.log10(x / self.linear_to)


def swept_axis(labels: Sequence[str], numbers: Sequence[float | None]) -> SweptAxis:
    """Return the axis of values with these labels, and with these numbers unless some are None or equal.

    Numbers too far apart for a linear axis are on a logarithmic one, up to the second one linear if the first is 0.
    """
    known = [number for number in numbers if number is not None]
    if len(known) < max(2, len(numbers)) or len(set(known)) < len(known):
        return SweptAxis(tuple(map(float, range(len(labels)))), tuple(labels), is_numeric=False, is_log=False)
    least, most = min(known), max(known)
    second = min(number for number in known if number > least)
    if least == 0 and most > _WIDE * second:
        return SweptAxis(tuple(known), tuple(labels), is_numeric=True, is_log=True, linear_to=second)
    is_log = least > 0 and most > _APART * least
    return SweptAxis(tuple(known), tuple(labels), is_numeric=True, is_log=is_log)
