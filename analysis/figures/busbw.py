"""The bus bandwidth of a collective against its size: a line for each algorithm, and the sizes where the best changes.

Bus bandwidth is computed from the mean time, the measured one if there are measurements, otherwise the predicted one.
Small sizes have a small share of the highest bandwidth, so that its axis is logarithmic, too, unless all are about as
high.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from analysis.figures.output import ON_WHITE, Picture, canvas, csv_text, heading, legend, log_ticks, panels
from analysis.figures.run_points import Configuration, FigureGroup, PointRows, Points, grouped, label_of, words
from analysis.figures.style import FAINT, INK, MODE_STYLES, line, marker, value_styles
from analysis.figures.swept_axis import SweptAxis
from analysis.statistics.bandwidth import busbw_factor
from topologies.errors import list_first

_WIDE = 5  # ratio of the highest to the lowest bandwidth above which its axis is logarithmic
_MOST_TICKS = 9  # sizes that each have a tick, if there is room for it
_INCHES, _BESIDE = 5.2, 1.1  # of a single panel, and what of a panel is beside its first and its last tick

_CHARACTER, _LABEL_WIDTH, _MARKER = 0.025, 0.04, 0.03  # of a label beside a dotted line, as shares of a panel
_MOST_NAMED = 4
_SIZE = "collective.size"


class Row(NamedTuple):
    """The bus bandwidth (bytes/s) of an algorithm in a mode at a size (bytes), measured or predicted."""

    algorithm: str
    mode: str
    size: int
    busbw: float
    measured: bool


def groups_of(configurations: Sequence[Configuration]) -> list[FigureGroup]:
    """Return the configurations of each figure, one for each kind of collective; none unless algorithm and size were
    swept."""
    wanted = (_SIZE, "collective.algorithm")
    are_jobs = any(one.kind == "jobs" for one in configurations)
    return grouped(configurations, *wanted) if {*wanted} <= {*configurations[0].swept} and not are_jobs else []


def rows_of(group: FigureGroup, points: Points) -> Iterator[Row]:
    """Yield a row for each configuration and mode that has points."""
    for one, point in _shown(group, points):
        gpus, size = len(one.fabric.gpus), int(one.value(_SIZE))
        busbw = busbw_factor(one.kind, gpus) * size / float(point.completion_s.mean())
        yield Row(one.algorithm, point.mode, size, busbw, point.engine == "emulation")


def _shown(group: FigureGroup, points: Points) -> Iterator[tuple[Configuration, PointRows]]:
    """Yield the points from which a group's bandwidths are computed, each with its configuration."""
    for one in group.configurations:
        for mode in MODE_STYLES:
            point = points.get(("emulation", one.index, mode)) or points.get(("model", one.index, mode))
            if point is not None:
                yield one, point


def picture_of(name: str, group: FigureGroup, points: Points) -> Picture:
    """Draw a group of the run called `name`."""
    stem = "-".join(part for part in (name, group.name, "busbw") if part)
    kind, title = group.configurations[0].collective, group.title
    if counts := {point.number.size for _, point in _shown(group, points)}:
        number = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
        title += f", from the mean of {number} {kind}{'' if counts == {1} else 's'} each"
    return picture(kind, list(rows_of(group, points)), name=stem, title=title)


def picture(kind: str, rows: Sequence[Row], *, name: str = "busbw", title: str = "") -> Picture:
    """Draw these rows, with a panel for each mode."""
    modes = list(dict.fromkeys(row.mode for row in rows))
    algorithms = list(dict.fromkeys(row.algorithm for row in rows))
    columns = min(2, len(modes))
    named, has_changes = list[str](), False
    is_log = max(row.busbw for row in rows) > _WIDE * min(row.busbw for row in rows)
    sizes = sorted({row.size for row in rows})
    labels = tuple(words(_SIZE, size) for size in sizes)
    ticks = SweptAxis(tuple(map(float, sizes)), labels, is_numeric=True, is_log=True)
    is_measured = any(row.measured for row in rows)
    looks = {one: marker(style, measured=is_measured) | line(style) for one, style in value_styles(algorithms).items()}
    width = max(_INCHES, 4.2 * columns)
    with canvas(width, 3.0 * -(-len(modes) // columns) + 0.7) as figure:
        for axes, mode in zip(panels(figure, len(modes), columns=columns, sharey=True), modes, strict=True):
            of_algorithms = [[row for row in rows if (row.mode, row.algorithm) == (mode, one)] for one in algorithms]
            changes = crossovers([row for row in rows if row.mode == mode], is_log=is_log)
            _draw(axes, of_algorithms, changes, looks)
            axes.xaxis.set_major_formatter(lambda size, _: words(_SIZE, round(size)))
            if len(sizes) <= _MOST_TICKS:
                ticks.draw(axes, inches=width / columns - _BESIDE)
            how = "measured" if any(row.measured for row in rows if row.mode == mode) else "predicted"
            if is_log:
                axes.set_yscale("log")
                log_ticks(axes.yaxis)
            else:
                axes.set_ylim(0, 1.08 * max(row.busbw for row in rows) / 1e9)
            unnamed = _name_crossovers(axes, changes, filter(None, of_algorithms))
            where = [f"{one.words} at {_about(one.size)}" for one in unnamed]
            named += [f"in {mode} {list_first(where, _MOST_NAMED)}"] * bool(where)
            has_changes |= bool(changes)
            axes.set_title(f"{kind}, mode {mode}, {how}")
            axes.set_xlabel(label_of(_SIZE))
            axes.set_ylabel("bus bandwidth (GB/s)")
        heading(figure, title)
        handles = [Line2D([], [], label=algorithm, **look) for algorithm, look in looks.items()]
        crossing = "dotted: where the lines of the best algorithms cross" + f": {'; '.join(named)}" * bool(named)
        legend(figure, handles, crossing if has_changes else "")
    names = ("algorithm", "mode", "size_bytes", "busbw_bytes_per_s", "measured")
    data = csv_text(dict(zip(names, row, strict=True)) for row in rows)
    caption = f"Bus bandwidth of {kind} by size and algorithm{title and f': {title}'}."
    return Picture(name=name, caption=caption, figure=figure, data=data)


def _about(size: float) -> str:
    """Return a size in words, to three digits."""
    digits = 2 - math.floor(math.log10(size))
    return words(_SIZE, round(size, digits) if digits < 0 else round(size))


def _draw(
    axes: Axes,
    algorithms: Sequence[Sequence[Row]],
    changes: Sequence["Change"],
    looks: Mapping[str, Mapping[str, Any]],
) -> None:
    for rows in algorithms:
        if own := sorted(rows, key=lambda row: row.size):
            axes.plot([row.size for row in own], [row.busbw / 1e9 for row in own], **looks[own[0].algorithm])
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    for change in changes:
        axes.axvline(change.size, color=FAINT, linestyle=":")


def _name_crossovers(axes: Axes, changes: Sequence["Change"], algorithms: Iterable[Sequence[Row]]) -> list["Change"]:
    """Write along each dotted line which algorithm is best on its two sides, at an end where no curve passes; return
    the changes that have no such end. The y axis must have its final scale."""
    to_axes, unnamed = axes.transData + axes.transAxes.inverted(), []
    curves = [to_axes.transform(sorted((row.size, row.busbw / 1e9) for row in rows)) for rows in algorithms]
    for change in changes:
        at = float(to_axes.transform((change.size, 1))[0])
        beside = np.linspace(at - _LABEL_WIDTH, at, 9)
        shares = np.concatenate([np.interp(beside, *curve.T) for curve in curves])
        height = _CHARACTER * len(change.words) + 2 * _MARKER
        is_below = bool(shares.min() > 1 - shares.max())
        if max(shares.min(), 1 - shares.max()) < height:
            unnamed.append(change)
            continue
        axes.annotate(
            change.words,
            (change.size, 0 if is_below else 1),
            (-4, 4 if is_below else -2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            rotation=90,
            fontsize=6,
            color=INK,
            va="bottom" if is_below else "top",
            ha="right",
            bbox=ON_WHITE,
        )
    return unnamed


class Change(NamedTuple):
    """The size at which the curves of the best algorithm before and after it cross."""

    size: float
    before: str
    after: str

    @property
    def words(self) -> str:
        """The two algorithms."""
        return f"{self.before} | {self.after}"


def crossovers(rows: Iterable[Row], *, is_log: bool) -> list[Change]:
    """Return where the best algorithm changes between two sizes: where the lines of both cross on a logarithmic axis of
    sizes and, if it `is_log`, of bandwidth."""
    busbw = {(row.size, row.algorithm): row.busbw for row in rows}
    sizes = sorted({size for size, _ in busbw})
    best = [max((value, name) for (at, name), value in busbw.items() if at == size)[1] for size in sizes]
    changes = []
    for (smaller, before), (size, after) in pairwise(zip(sizes, best, strict=True)):
        if before == after:
            continue
        share = 0.5  # of the way, where one of both has not both sizes
        values = [[busbw.get((at, name), 0.0) for name in (before, after)] for at in (smaller, size)]
        if min(map(min, values)) > 0:
            near, far = (math.log(a / b) if is_log else a - b for a, b in values)
            share = near / (near - far) if near > far else 0.5
        changes.append(Change(smaller * (size / smaller) ** share, before, after))
    return changes
