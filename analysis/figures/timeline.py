"""A collective over time: which GPU sent what to which over which links, from when to when, in every mode.

One row is one flow of the schedule; around a ring they are in ring order, so that a block's way goes down the rows. The
critical path is outlined, and beneath stands what it cost by link. What is drawn is what `collective` found.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from analysis.figures import perfetto
from analysis.figures.collective import Collective, lanes
from analysis.figures.output import Picture, canvas, explain, heading, table
from analysis.figures.style import CRITICAL, DELAY, INK, MODE_STYLES, SENDING, block_colour, time_unit

_WIDE = 0.016  # the share of the longest time above which a bar has room for one digit
_TOUCHING = 0.05  # the share of a transfer by which the next on its flow may begin earlier and still be in its row
_MOST_ROWS = 64
_MOST_LINKS = 5  # of the critical path, shown with what they cost

_NUMBERS = {  # what the number and the shade of a bar are, by the kind of collective
    "allgather": "the rank that its first block began at",
    "gather": "the rank that its first block began at",
    "reducescatter": "the rank that its first block is for",
    "scatter": "the rank that its first block is for",
    "alltoall": "the rank that its first block is for",
    "allreduce": "its first block of the buffer",
}


def picture(name: str, collectives: Sequence[Collective]) -> Picture:
    """The timeline of a collective in its modes, `name` being the run's."""
    first = collectives[0]
    longest_s = max(max(one.completion_s, *(move.end_s for move in one.moves)) for one in collectives)
    links = min(_MOST_LINKS, max(len(one.costs) for one in collectives))
    columns = min(2, len(collectives))
    bands = -(-len(collectives) // columns)  # each of them a row of timelines and one of links
    heights = [0.9 + 0.19 * min(len(first.flows), _MOST_ROWS), 0.4 + 0.15 * links]
    label = first.configuration.label
    with canvas(5.4 * columns, bands * sum(heights) + 0.9) as figure:
        grid = figure.subplots(2 * bands, columns, squeeze=False, height_ratios=heights * bands)
        for index in range(bands * columns):
            band, column = divmod(index, columns)
            axes, costs = grid[2 * band : 2 * band + 2, column]
            if index < len(collectives):
                _draw(axes, collectives[index], longest_s)
                _draw_costs(costs, collectives[index], longest_s, links)
            else:
                for empty in (axes, costs):
                    empty.set_axis_off()
                    empty.set_in_layout(False)
        heading(figure, f"{label}: collective {first.number}")
        explain(figure, "\n".join(_explanation(collectives)))
    bars = "a chunk on its way over a ring edge"
    if not first.configuration.is_ring_allgather:
        bars = "a message on its way from a GPU to another"
    left_out = len(first.flows) - _MOST_ROWS
    caption = f"Timeline of collective {first.number} of {label}: each bar is {bars}; the critical path is outlined."
    if left_out > 0:
        caption += f" {left_out} of {len(first.flows)} rows are left out, none of them before those on that path."
    return Picture(
        name=f"{name}-timeline",
        caption=caption,
        figure=figure,
        data=_data(collectives),
        more={".json": perfetto.as_json(collectives)},
    )


def _explanation(collectives: Sequence[Collective]) -> list[str]:
    """The lines beneath the panels."""
    one = collectives[0]
    configuration = one.configuration
    critical = (
        "Outlined: the critical path, of which all the time is made. Below: its seconds by link or GPU, the longest: "
        "sending (dark), delay (light)."
    )
    if configuration.is_ring_allgather:
        return [
            "A bar: a chunk on its way over a ring edge, from the first bit sent to the last received. "
            "Its number and shade: the rank it began at.",
            "Grey rows cross the WAN. "
            "Right: the rate of the edge's slowest link; the slowest edge in bold. Dashed: when all is done.",
            critical,
        ]
    is_shared = any(one.spans for one in collectives)
    numbers = f" Its number and shade: {_NUMBERS[configuration.kind]}." if _has_blocks(one) else ""
    left_out = len(one.flows) - _MOST_ROWS
    return [
        f"A bar: a message on its way, from the first bit sent to the last received.{numbers}",
        "Grey rows cross the WAN. Right: the rate of the slowest link on the way; the slowest in bold. "
        "Dashed: when all is done.",
        critical,
        *(
            ["Filled: the rate over time that the model gives a message, as a share of that link's."]
            if is_shared
            else []
        ),
        *([f"{left_out} of {len(one.flows)} rows are left out."] if left_out > 0 else []),
    ]


def _has_blocks(one: Collective) -> bool:
    return one.configuration.kind in _NUMBERS and any(move.block >= 0 for move in one.moves)


def _rows(one: Collective) -> list[int]:
    """The flows that have a row, in their order: all, or of many the first, those of the critical path before."""
    critical = {move.flow for move in one.moves if move.is_critical}
    chosen = {*sorted(one.rows, key=lambda flow: flow not in critical)[:_MOST_ROWS]}
    return [flow for flow in one.rows if flow in chosen]


def _draw(axes: Axes, one: Collective, longest_s: float) -> None:
    scale, unit = time_unit(longest_s)
    slowest = min(flow.rate_bps for flow in one.flows)
    ranks = len(one.configuration.fabric.gpus)
    bars: list[list[tuple[float, float]]] = []
    colours: list[str] = []
    outlined: list[list[tuple[float, float]]] = []
    empty: list[list[tuple[float, float]]] = []
    numbers: dict[int, list[tuple[float, float]]] = {}
    rows = _rows(one)
    for row, index in enumerate(rows):
        flow, moves = one.flows[index], one.moves_over(index)
        if flow.crosses:
            axes.axhspan(row - 0.5, row + 0.5, color="#E4E4E4", linewidth=0, zorder=0)
        places = lanes(moves, touching=_TOUCHING)
        height = 0.8 / (max(places, default=0) + 1)
        for move, lane in zip(moves, places, strict=True):
            left, width = move.leaves_s / scale, (move.end_s - move.leaves_s) / scale
            top, colour = row - 0.4 + lane * height, block_colour(move.block, ranks)
            bars.append([(left, top), (left + width, top), (left + width, top + height), (left, top + height)])
            colours.append(colour)
            spans = one.spans.get(move.transfer, ())
            behind = [(spans[-1][1], move.end_s, 0.0)] if spans else []  # its last bits are on their way
            for start_s, end_s, share in (*spans, *behind):
                above = max(0.0, 1 - share) * height  # of the bar, left empty
                x, end = (min(max(at / scale, left), left + width) for at in (start_s, end_s))
                empty.append([(x, top), (end, top), (end, top + above), (x, top + above)])
            if move.is_critical:
                outlined.append(bars[-1])
            has_room = width * scale / longest_s > _WIDE * len(str(move.block)) and height > 0.3
            if has_room and move.block >= 0:
                numbers.setdefault(move.block, []).append((left + width / 2, top + height / 2))
        weight = "bold" if flow.rate_bps == slowest else "normal"
        rate = f"{flow.rate_bps / 1e9:.3g} Gbit/s" if flow.links else ""
        axes.annotate(rate, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=6.5, weight=weight)
    # One artist for all bars: hundreds of their own would take most of the time of a run's figures.
    axes.add_collection(PolyCollection(bars, facecolors=colours, edgecolors="white", linewidths=0.4, zorder=1))
    axes.add_collection(PolyCollection(empty, facecolors="white", alpha=0.72, linewidths=0, zorder=1.2))
    axes.add_collection(PolyCollection(outlined, facecolors="none", edgecolors=CRITICAL, linewidths=1.1, zorder=1.5))
    for block, centres in numbers.items():
        _write(axes, block, centres, "white" if one.spans else block_colour(block, ranks))
    axes.axvline(one.completion_s / scale, color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
    axes.set_yticks(range(len(rows)), [one.name(one.flows[index]) for index in rows])
    axes.tick_params(axis="y", labelsize=7, length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, longest_s / scale * 1.02)
    axes.set_xlabel(f"time ({unit})")
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    how = f"measured {one.completion_s / scale:.4g} {unit}, " if one.measured else ""
    axes.set_title(f"{MODE_STYLES[one.mode].label}: {how}predicted {one.predicted_s / scale:.4g} {unit}", fontsize=8.5)


def _draw_costs(axes: Axes, one: Collective, longest_s: float, count: int) -> None:
    """So many links on which the critical path spent most, on the time axis of the bars above."""
    scale, unit = time_unit(longest_s)
    shown = list(one.costs.items())[:count]
    places = range(len(shown))
    sending = [cost.sending_s / scale for _, cost in shown]
    axes.barh(places, sending, 0.7, color=SENDING)
    axes.barh(places, [cost.delay_s / scale for _, cost in shown], 0.7, left=sending, color=DELAY)
    for place, (_, cost) in zip(places, shown, strict=True):
        look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 6.5}
        axes.annotate(f"{cost.seconds / scale:.3g}", (cost.seconds / scale, place), (3, 0), **look)
    axes.set_yticks(places, [name.replace(">", " → ") for name, _ in shown])
    axes.tick_params(axis="both", labelsize=7, length=0, labelbottom=False)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_xlim(0, longest_s / scale * 1.02)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    of = f", the longest {len(shown)} of {len(one.costs)}" if len(one.costs) > len(shown) else ""
    axes.set_title(f"critical path by link ({unit}){of}", fontsize=7.5)


def _write(axes: Axes, number: int, centres: Sequence[tuple[float, float]], colour: str) -> None:
    """A block's number in the middle of its bars, legible on their colour: a marker, drawn once for all of them."""
    red, green, blue = to_rgb(colour)
    on = INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
    shape = _number(number)
    size = 2 * float(np.abs(shape.vertices).max())  # as a marker, a shape is scaled to its size
    x, y = zip(*centres, strict=True)
    (line,) = axes.plot(x, y, linestyle="none", marker=shape, markersize=size, color=on, markeredgewidth=0)
    line.set_in_layout(False)  # it is within the axes


@cache
def _number(number: int) -> Path:
    """A number as a shape in points around its middle."""
    text = TextPath((0, 0), str(number), size=6)
    box = text.get_extents()
    middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    return Path(np.asarray(text.vertices) - middle, text.codes)


def _data(collectives: Sequence[Collective]) -> str:
    configuration, rows = collectives[0].configuration, []
    for one in collectives:
        for move in one.moves:
            flow = one.flows[move.flow]
            what: dict[str, object] = {"step": move.step, "chunk": move.block}
            if not configuration.is_ring_allgather:
                what = {"transfer": move.transfer, "step": move.step, "block": move.block if move.block >= 0 else ""}
                what |= {"bytes": round(move.size) if flow.links else "", "channel": flow.channel}
            names = {"src": one.gpu(flow.src), "dst": one.gpu(flow.dst), "via": one.via(flow)}
            conditions = {"rate_bps": int(flow.rate_bps) if flow.links else "", "delay_s": flow.delay_s}
            times = {"start_s": move.start_s, "leaves_s": move.leaves_s, "end_s": move.end_s}
            rows.append(one.which | {"measured": one.measured} | what | names | conditions | times)
            rows[-1]["critical"] = move.is_critical
    return table(rows)
