"""The times of a collective's algorithms divided by the ring's, with a panel for each kind of collective and grain.

Above the line at 1 the ring is faster. On the logarithmic axis half and twice the ring's time are equally far from it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, log_ticks, panels
from analysis.figures.style import INK


class Row(NamedTuple):
    """An algorithm for a number of GPUs in a grain: its time / the ring's, with the ends of an interval or None."""

    grain: str
    kind: str
    gpus: int
    algorithm: str
    over_ring: float
    low: float | None
    high: float | None


_LOOKS = (("#17375E", ""), ("#B5472F", "///"), ("#5BA4CF", "---"), ("#F5D04C", "xxx"))
_WIDTH = 0.8  # of all bars of an algorithm together


def picture(rows: Sequence[Row], *, title: str) -> Picture:
    """Draw these rows, except those of the ring itself (unless there are no others)."""
    others = [row for row in rows if row.algorithm != "ring"] or list(rows)
    grains, kinds = (list(dict.fromkeys(row[part] for row in others)) for part in (0, 1))
    sizes = sorted({row.gpus for row in others})
    with canvas(max(5.2, 4.0 * len(grains)), 2.6 * len(kinds) + 0.9) as figure:
        cells = [(kind, grain) for kind in kinds for grain in grains]
        for axes, (kind, grain) in zip(
            panels(figure, len(cells), columns=len(grains), sharey=True), cells, strict=True
        ):
            _draw(axes, [row for row in others if (row.kind, row.grain) == (kind, grain)], sizes)
            axes.set_title(f"{kind}, {grain} grain")
            if grain == grains[0]:
                axes.set_ylabel("time / the ring's time")
        heading(figure, title)
        handles = [Patch(label=f"{gpus} GPUs", **_look(index)) for index, gpus in enumerate(sizes)]
        legend(figure, handles)
    data = csv_text(row._asdict() for row in rows)
    caption = f"Times of algorithms divided by the ring's time, by grain: {title}."
    return Picture(name="grains", caption=caption, figure=figure, data=data)


def _look(index: int) -> dict[str, Any]:
    colour, hatch = _LOOKS[index % len(_LOOKS)]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": INK}


def _draw(axes: Axes, rows: Sequence[Row], sizes: Sequence[int]) -> None:
    algorithms = list(dict.fromkeys(row.algorithm for row in rows))
    width = _WIDTH / len(sizes)
    for row in rows:
        index = sizes.index(row.gpus)
        x = algorithms.index(row.algorithm) + (index - (len(sizes) - 1) / 2) * width
        axes.bar(x, row.over_ring - 1, width, bottom=1, linewidth=0.6, **_look(index))
        if row.low is not None and row.high is not None:
            axes.vlines(x, row.low, row.high, color=INK, linewidth=1)
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    axes.set_xticks(range(len(algorithms)), algorithms, rotation=30, ha="right", rotation_mode="anchor")
