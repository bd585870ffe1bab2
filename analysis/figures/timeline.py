"""A collective over time: which GPU sent which chunk to which over which links, from when to when, in every mode.

One row is one ring edge, in ring order, so that a chunk's way around the ring goes down the rows; what is drawn is what
`collective` found.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from analysis.figures import perfetto
from analysis.figures.collective import Collective, lanes
from analysis.figures.output import Picture, canvas, explain, panels, table
from analysis.figures.style import INK, MODE_STYLES, chunk_colour, time_unit

_WIDE = 0.016  # the share of the longest time above which a bar has room for one digit
_TOUCHING = 0.05  # the share of a transfer by which the next on its edge may begin earlier and still be in its row


def picture(name: str, collectives: Sequence[Collective]) -> Picture:
    """The timeline of a collective in its modes, `name` being the run's."""
    first = collectives[0]
    ranks = len(first.edges)
    longest_s = max(max(one.completion_s, one.moves[-1].end_s) for one in collectives)
    columns = min(2, len(collectives))
    label = first.configuration.label
    with canvas(5.4 * columns, -(-len(collectives) // columns) * (0.9 + 0.19 * ranks) + 0.7) as figure:
        for axes, one in zip(panels(figure, len(collectives), columns=columns), collectives, strict=True):
            _draw(axes, one, longest_s)
        figure.suptitle(f"{label}: collective {first.number}", fontsize="medium")
        explain(
            figure,
            "A bar: a chunk on its way over a ring edge, from the first bit sent to the last received. "
            "Its number and shade: the rank it began at.\nGrey rows cross the WAN. "
            "Right: the rate of the edge's slowest link; the slowest edge in bold. Dashed: when all is done.",
        )
    return Picture(
        name=f"{name}-timeline",
        caption=f"Timeline of collective {first.number} of {label}: each bar is a chunk on its way over a ring edge.",
        figure=figure,
        data=_data(collectives),
        more={".json": perfetto.as_json(collectives)},
    )


def _draw(axes: Axes, one: Collective, longest_s: float) -> None:
    scale, unit = time_unit(longest_s)
    slowest = min(edge.rate_bps for edge in one.edges)
    bars: list[list[tuple[float, float]]] = []
    colours: list[str] = []
    numbers: dict[int, list[tuple[float, float]]] = {}
    for row, edge in enumerate(one.edges):
        if edge.crosses:
            axes.axhspan(row - 0.5, row + 0.5, color="#E4E4E4", linewidth=0, zorder=0)
        moves = one.moves_over(edge)
        places = lanes(moves, touching=_TOUCHING)
        height = 0.8 / (max(places) + 1)
        for move, lane in zip(moves, places, strict=True):
            left, width = move.leaves_s / scale, (move.end_s - move.leaves_s) / scale
            top, colour = row - 0.4 + lane * height, chunk_colour(move.chunk, len(one.edges))
            bars.append([(left, top), (left + width, top), (left + width, top + height), (left, top + height)])
            colours.append(colour)
            if width * scale / longest_s > _WIDE * len(str(move.chunk)) and height > 0.3:
                numbers.setdefault(move.chunk, []).append((left + width / 2, top + height / 2))
        weight = "bold" if edge.rate_bps == slowest else "normal"
        rate = f"{edge.rate_bps / 1e9:.3g} Gbit/s"
        axes.annotate(rate, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=6.5, weight=weight)
    # One artist for all bars: hundreds of their own would take most of the time of a run's figures.
    axes.add_collection(PolyCollection(bars, facecolors=colours, edgecolors="white", linewidths=0.4, zorder=1))
    for chunk, centres in numbers.items():
        _write(axes, chunk, centres, chunk_colour(chunk, len(one.edges)))
    axes.axvline(one.completion_s / scale, color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
    axes.set_yticks(range(len(one.edges)), [f"{one.gpu(edge.src)} → {one.gpu(edge.dst)}" for edge in one.edges])
    axes.tick_params(axis="y", labelsize=7, length=0)
    axes.set_ylim(len(one.edges) - 0.5, -0.5)
    axes.set_xlim(0, longest_s / scale * 1.02)
    axes.set_xlabel(f"time ({unit})")
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    how = f"measured {one.completion_s / scale:.4g} {unit}, " if one.measured else ""
    axes.set_title(f"{MODE_STYLES[one.mode].label}: {how}predicted {one.predicted_s / scale:.4g} {unit}", fontsize=8.5)


def _write(axes: Axes, chunk: int, centres: Sequence[tuple[float, float]], colour: str) -> None:
    """A chunk's number in the middle of its bars, legible on their colour: a marker, drawn once for all of them."""
    red, green, blue = to_rgb(colour)
    on = INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
    shape = _number(chunk)
    size = 2 * float(np.abs(shape.vertices).max())  # as a marker, a shape is scaled to its size
    x, y = zip(*centres, strict=True)
    (line,) = axes.plot(x, y, linestyle="none", marker=shape, markersize=size, color=on, markeredgewidth=0)
    line.set_in_layout(False)  # it is within the axes


@cache
def _number(chunk: int) -> Path:
    """A number as a shape in points around its middle."""
    text = TextPath((0, 0), str(chunk), size=6)
    box = text.get_extents()
    middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    return Path(np.asarray(text.vertices) - middle, text.codes)


def _data(collectives: Sequence[Collective]) -> str:
    rows = []
    for one in collectives:
        edge_from = {edge.src: edge for edge in one.edges}
        for move in one.moves:
            edge = edge_from[move.src]
            names = {"src": one.gpu(move.src), "dst": one.gpu(move.dst), "via": one.via(edge)}
            conditions = {"rate_bps": int(edge.rate_bps), "delay_s": edge.delay_s}
            times = {"start_s": move.start_s, "leaves_s": move.leaves_s, "end_s": move.end_s}
            which = one.which | {"measured": one.measured, "step": move.step, "chunk": move.chunk}
            rows.append(which | names | conditions | times)
    return table(rows)
