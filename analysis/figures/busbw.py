"""The bus bandwidth of a collective by its size: a line for each algorithm, and where the best one changes."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from analysis.figures.output import Picture, canvas, explain, panels, table
from analysis.figures.style import FAINT, INK
from topologies.units import format_size

Row = tuple[str, str, int, float, bool]
"""Algorithm, mode, bytes, busbw in bytes a second, and whether its flows share links, which the model leaves out."""

_COLOURS = ("#17375E", "#B5472F", "#5BA4CF", "#8A6D00", "#5D2E8C", "#2E7D32", "#888888")
_MARKERS = "os^DvPX"


def picture(kind: str, rows: Sequence[Row], *, name: str) -> Picture:
    """The figure of these rows, a panel for each mode."""
    modes = list(dict.fromkeys(row[1] for row in rows))
    algorithms = list(dict.fromkeys(row[0] for row in rows))
    with canvas(max(5.2, 4.2 * len(modes)), 3.6) as figure:
        for axes, mode in zip(panels(figure, len(modes), columns=2, sharey=True), modes, strict=True):
            _draw(axes, algorithms, [row for row in rows if row[1] == mode])
            axes.set_title(f"{kind}, mode {mode}, predicted")
            axes.set_xlabel("size")
            axes.set_ylabel("bus bandwidth (GB/s)")
            axes.legend(fontsize="x-small")
        explain(
            figure,
            "Dashed: flows share links, which the model leaves out. Dotted: where the best of the others changes.",
        )
    columns = ("algorithm", "mode", "size_bytes", "busbw_bytes_per_s", "shares_links")
    data = table(dict(zip(columns, row, strict=True)) for row in rows)
    return Picture(name=name, caption=f"Bus bandwidth of {kind} by size and algorithm.", figure=figure, data=data)


def _draw(axes: Axes, algorithms: Sequence[str], rows: Sequence[Row]) -> None:
    for number, algorithm in enumerate(algorithms):
        mine = sorted((size, busbw, shares) for one, _, size, busbw, shares in rows if one == algorithm)
        if mine:
            axes.plot(
                [size for size, _, _ in mine],
                [busbw / 1e9 for _, busbw, _ in mine],
                label=algorithm,
                color=_COLOURS[number % len(_COLOURS)],
                marker=_MARKERS[number % len(_MARKERS)],
                linestyle="--" if any(shares for *_, shares in mine) else "-",
                markersize=3.5,
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
    """The sizes from which on another algorithm is the best than at the size before, and the two.

    Algorithms whose flows share links at a size are left out of the comparison there.
    """
    best: dict[int, tuple[float, str]] = {}
    for algorithm, _, size, busbw, shares in rows:
        if not shares:
            best[size] = max(best.get(size, (0.0, "")), (busbw, algorithm))
    steps = pairwise(sorted(best))
    return [(b, (best[a][1], best[b][1])) for a, b in steps if best[a][1] != best[b][1]]
