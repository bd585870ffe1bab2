"""A collective over time: which GPU sent which chunk to which over which links, from when to when, in every mode.

One row is one ring edge, in ring order, so that a chunk's way around the ring goes down the rows; what is drawn is what
`collective` found.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from analysis import trace
from analysis.canvas import Picture, canvas, table
from analysis.collective import Collective, lanes
from analysis.points import label_of
from analysis.style import INK, MODE_STYLES, chunk_colour, time_unit

_WIDE = 0.016  # the share of the longest time above which a bar has room for one digit
_TOUCHING = 0.05  # the share of a transfer by which the next on its edge may begin earlier and still be in its row


def picture(name: str, collectives: Sequence[Collective]) -> Picture:
    """The timeline of a collective in its modes, `name` being the run's."""
    first = collectives[0]
    ranks = len(first.edges)
    longest_s = max(max(one.completion_s, one.moves[-1].end_s) for one in collectives)
    columns = min(2, len(collectives))
    rows = -(-len(collectives) // columns)
    with canvas(5.4 * columns, rows * (0.9 + 0.19 * ranks) + 0.7) as figure:
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, one in zip(grid, collectives, strict=False):
            _draw(axes, one, longest_s)
        for axes in grid[len(collectives) :]:
            axes.set_axis_off()
        _words(figure, first)
    said = f"collective {first.number} of {label_of(first.setting)}"
    return Picture(
        name=f"{name}-timeline",
        caption=f"Timeline of {said}: each bar is a chunk on its way over a ring edge.",
        figure=figure,
        data=_data(collectives),
        more={".json": trace.as_json(collectives)},
    )


def _words(figure: Figure, first: Collective) -> None:
    figure.suptitle(f"{label_of(first.setting)}: collective {first.number}", fontsize="medium")
    figure.supxlabel(
        "A bar: a chunk on its way over a ring edge, from the first bit sent to the last received. "
        "Its number and shade: the rank it began at.\nGrey rows cross the WAN. "
        "Right: the rate of the edge's slowest link; the slowest edge in bold. Dashed: when all is done.",
        fontsize=7.5,
        color=INK,
    )


def _draw(axes: Axes, one: Collective, longest_s: float) -> None:
    scale, unit = time_unit(longest_s)
    slowest = min(edge.rate_bps for edge in one.edges)
    for row, edge in enumerate(one.edges):
        if edge.crosses:
            axes.axhspan(row - 0.5, row + 0.5, color="#E4E4E4", linewidth=0, zorder=0)
        moves = one.moves_over(edge)
        places = lanes(moves, touching=_TOUCHING)
        height = 0.8 / (max(places) + 1)
        for move, lane in zip(moves, places, strict=True):
            box = (move.leaves_s / scale, row - 0.4 + lane * height, (move.end_s - move.leaves_s) / scale, height)
            room = box[2] * scale / longest_s > _WIDE * len(str(move.chunk)) and height > 0.3
            _bar(axes, box, chunk_colour(move.chunk, len(one.edges)), str(move.chunk) if room else "")
        weight = "bold" if edge.rate_bps == slowest else "normal"
        rate = f"{edge.rate_bps / 1e9:.3g} Gbit/s"
        axes.annotate(rate, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=6.5, weight=weight)
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


def _bar(axes: Axes, box: tuple[float, float, float, float], colour: str, text: str) -> None:
    """A bar: its left, its top, its width and its height, with a text that is legible on it."""
    left, top, width, height = box
    (bar,) = axes.barh(top + height / 2, width, height, left=left, color=colour, edgecolor="white", linewidth=0.4)
    bar.set_in_layout(False)  # it is within the axes, and there are hundreds
    if not text:
        return
    red, green, blue = to_rgb(colour)
    on = INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
    written = axes.text(left + width / 2, top + height / 2, text, ha="center", va="center", fontsize=6, color=on)
    written.set_in_layout(False)


def _data(collectives: Sequence[Collective]) -> str:
    columns = ["setting", "label", "mode", "collective", "measured", "step", "chunk", "src", "dst", "via"]
    columns += ["rate_bps", "delay_s", "start_s", "leaves_s", "end_s"]
    rows = []
    for one in collectives:
        edge_from = {edge.src: edge for edge in one.edges}
        which = [one.setting["setting"], one.setting["label"], one.mode, one.number, one.measured]
        for move in one.moves:
            edge = edge_from[move.src]
            names = [one.gpu(move.src), one.gpu(move.dst), one.via(edge)]
            rows.append(
                [
                    *which,
                    move.step,
                    move.chunk,
                    *names,
                    int(edge.rate_bps),
                    edge.delay_s,
                    move.start_s,
                    move.leaves_s,
                    move.end_s,
                ]
            )
    return table(columns, rows)
