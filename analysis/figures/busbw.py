"""The bus bandwidth of a collective against its size: a line for each algorithm, and the sizes where the best changes.

Bus bandwidth is computed from the mean time, the measured one if there are measurements, otherwise the predicted one.
Of sizes that span more than two decades the small ones have a small share of the highest bandwidth, so that its axis is
logarithmic, too.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from analysis.figures.output import ON_WHITE, Picture, canvas, csv_text, heading, legend, log_ticks, panels
from analysis.figures.run_points import Configuration, FigureGroup, PointRows, Points, grouped
from analysis.figures.style import FAINT, INK, MODE_STYLES, line_style
from analysis.statistics.bandwidth import busbw_factor

_DECADES = 100  # ratio of the largest to the smallest size above which bandwidth has a logarithmic axis


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
    wanted = ("collective.size", "collective.algorithm")
    are_jobs = any(one.kind == "jobs" for one in configurations)
    return grouped(configurations, *wanted) if {*wanted} <= {*configurations[0].swept} and not are_jobs else []


def rows_of(group: FigureGroup, points: Points) -> Iterator[Row]:
    """Yield a row for each configuration and mode that has points."""
    for one, point in _shown(group, points):
        gpus, size = len(one.fabric.gpus), int(one.value("collective.size"))
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
    scale, unit = _size_unit(max(row.size for row in rows) / 10)  # the axis has the decades below the largest size
    with canvas(max(5.2, 4.2 * columns), 3.0 * -(-len(modes) // columns) + 0.7) as figure:
        for axes, mode in zip(panels(figure, len(modes), columns=columns, sharey=True), modes, strict=True):
            _draw(axes, algorithms, [row for row in rows if row.mode == mode])
            axes.xaxis.set_major_formatter(lambda size, _: f"{size / scale:,.10g}")
            how = "measured" if any(row.measured for row in rows if row.mode == mode) else "predicted"
            if max(row.size for row in rows) > _DECADES * min(row.size for row in rows):
                axes.set_yscale("log")
                log_ticks(axes.yaxis)
            else:
                axes.set_ylim(0, 1.08 * max(row.busbw for row in rows) / 1e9)
            _name_crossovers(axes, [row for row in rows if row.mode == mode])
            axes.set_title(f"{kind}, mode {mode}, {how}")
            axes.set_xlabel(f"size of the buffer ({unit})")
            axes.set_ylabel("bus bandwidth (GB/s)")
        heading(figure, title)
        handles = [Line2D([], [], label=algorithm, **_look(index)) for index, algorithm in enumerate(algorithms)]
        changes = any(crossovers([row for row in rows if row.mode == mode]) for mode in modes)
        legend(figure, handles, "dotted: where the best algorithm changes" if changes else "")
    names = ("algorithm", "mode", "size_bytes", "busbw_bytes_per_s", "measured")
    data = csv_text(dict(zip(names, row, strict=True)) for row in rows)
    caption = f"Bus bandwidth of {kind} by size and algorithm{title and f': {title}'}."
    return Picture(name=name, caption=caption, figure=figure, data=data)


def _size_unit(size: float) -> tuple[float, str]:
    """Return the one unit of an axis of sizes around this one: its bytes and its name."""
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((unit for unit in units if size >= unit[0]), (1.0, "B"))


def _look(index: int) -> dict[str, Any]:
    """Return the line and the marker of the algorithm with this index."""
    return {**line_style(index), "markersize": 3.5}


def _draw(axes: Axes, algorithms: Sequence[str], rows: Sequence[Row]) -> None:
    for index, algorithm in enumerate(algorithms):
        own = sorted((row for row in rows if row.algorithm == algorithm), key=lambda row: row.size)
        if own:
            axes.plot([row.size for row in own], [row.busbw / 1e9 for row in own], **_look(index))
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    for size, _ in crossovers(rows):
        axes.axvline(size, color=FAINT, linestyle=":")


def _name_crossovers(axes: Axes, rows: Sequence[Row]) -> None:
    """Write along each dotted line which algorithm is best on its two sides, at the end with more room beside the
    curves; the y axis must have its final scale."""
    to_axes = axes.transData + axes.transAxes.inverted()
    for size, (before, after) in crossovers(rows):
        shares = [float(to_axes.transform((size, row.busbw / 1e9))[1]) for row in rows if row.size == size]
        is_below = min(shares) > 1 - max(shares)
        axes.annotate(
            f"{before} | {after}",
            (size, 0 if is_below else 1),
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


def crossovers(rows: Iterable[Row]) -> list[tuple[int, tuple[str, str]]]:
    """Return the sizes at which the best algorithm differs from that of the next smaller size, with both algorithms."""
    best: dict[int, tuple[float, str]] = {}
    for row in rows:
        best[row.size] = max(best.get(row.size, (0.0, "")), (row.busbw, row.algorithm))
    changes = []
    for smaller, size in pairwise(sorted(best)):
        (_, before), (_, after) = best[smaller], best[size]
        if before != after:
            changes.append((size, (before, after)))
    return changes
