"""The bus bandwidth of a collective by its size: a line for each algorithm, and where the best one changes.

It is that of the mean time, over what was measured where there is that, else over what was predicted.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from analysis.figures.output import Picture, canvas, heading, legend, panels, table
from analysis.figures.points import Configuration, Group, Points, grouped
from analysis.figures.style import FAINT, INK, MODE_STYLES
from analysis.statistics.bandwidth import busbw_factor
from topologies.units import format_size


class Row(NamedTuple):
    """A size of an algorithm in a mode: bytes, and bytes a second, measured or predicted."""

    algorithm: str
    mode: str
    size: int
    busbw: float
    measured: bool


_COLOURS = ("#17375E", "#B5472F", "#5BA4CF", "#8A6D00", "#5D2E8C", "#2E7D32", "#888888")
_MARKERS = "os^DvPX"


def groups_of(configurations: Sequence[Configuration]) -> list[Group]:
    """The configurations of each figure, where algorithm and size were swept; a kind of collective has its own."""
    wanted = ("collective.size", "collective.algorithm")
    are_jobs = any(one.kind == "jobs" for one in configurations)
    return grouped(configurations, *wanted) if {*wanted} <= {*configurations[0].swept} and not are_jobs else []


def rows_of(group: Group, points: Points) -> Iterator[Row]:
    """The rows of a group's points, one for each configuration and mode that has any."""
    for one in group.configurations:
        gpus, size = len(one.fabric.gpus), int(one.value("collective.size"))
        for mode in MODE_STYLES:
            both = [points.get((engine, one.index, mode)) for engine in ("emulation", "model")]
            point = next((found for found in both if found is not None), None)
            if point is not None:
                busbw = busbw_factor(one.kind, gpus) * size / float(point.completion_s.mean())
                yield Row(one.algorithm, mode, size, busbw, point.engine == "emulation")


def picture_of(name: str, group: Group, points: Points) -> Picture:
    """The figure of a group of a run of this name."""
    stem = "-".join(part for part in (name, group.name, "busbw") if part)
    kind = group.configurations[0].collective
    return picture(kind, list(rows_of(group, points)), name=stem, title=group.title)


def picture(kind: str, rows: Sequence[Row], *, name: str = "busbw", title: str = "") -> Picture:
    """The figure of these rows, a panel for each mode."""
    modes = list(dict.fromkeys(row.mode for row in rows))
    algorithms = list(dict.fromkeys(row.algorithm for row in rows))
    columns = min(2, len(modes))
    with canvas(max(5.2, 4.2 * columns), 3.0 * -(-len(modes) // columns) + 0.7) as figure:
        for axes, mode in zip(panels(figure, len(modes), columns=columns, sharey=True), modes, strict=True):
            _draw(axes, algorithms, [row for row in rows if row.mode == mode])
            how = "measured" if any(row.measured for row in rows if row.mode == mode) else "predicted"
            axes.set_ylim(0, 1.08 * max(row.busbw for row in rows) / 1e9)
            axes.set_title(f"{kind}, mode {mode}, {how}")
            axes.set_xlabel("size")
            axes.set_ylabel("bus bandwidth (GB/s)")
        heading(figure, title)
        handles = [Line2D([], [], label=algorithm, **_look(number)) for number, algorithm in enumerate(algorithms)]
        changes = any(crossovers([row for row in rows if row.mode == mode]) for mode in modes)
        legend(figure, handles, "dotted: where the best algorithm changes" if changes else "")
    names = ("algorithm", "mode", "size_bytes", "busbw_bytes_per_s", "measured")
    data = table(dict(zip(names, row, strict=True)) for row in rows)
    caption = f"Bus bandwidth of {kind} by size and algorithm{title and f': {title}'}."
    return Picture(name=name, caption=caption, figure=figure, data=data)


def _look(number: int) -> dict[str, Any]:
    """The line and the marker of the algorithm of this number."""
    colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
    return {"color": colour, "marker": marker, "markersize": 3.5}


def _draw(axes: Axes, algorithms: Sequence[str], rows: Sequence[Row]) -> None:
    for number, algorithm in enumerate(algorithms):
        mine = sorted((row for row in rows if row.algorithm == algorithm), key=lambda row: row.size)
        if mine:
            axes.plot(
                [row.size for row in mine],
                [row.busbw / 1e9 for row in mine],
                **_look(number),
            )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda size, _: format_size(round(size)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    for size, (before, after) in crossovers(rows):
        axes.axvline(size, color=FAINT, linestyle=":")
        axes.annotate(
            f"{before} | {after}",
            (size, 1),
            (-2, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            rotation=90,
            fontsize=6,
            color=INK,
            va="top",
            ha="right",
        )


def crossovers(rows: Iterable[Row]) -> list[tuple[int, tuple[str, str]]]:
    """The sizes from which on another algorithm is the best than at the size before, and the two."""
    best: dict[int, tuple[float, str]] = {}
    for row in rows:
        best[row.size] = max(best.get(row.size, (0.0, "")), (row.busbw, row.algorithm))
    steps = pairwise(sorted(best))
    return [(b, (best[a][1], best[b][1])) for a, b in steps if best[a][1] != best[b][1]]
