"""The timeline of a collective in every mode: when each GPU sent which block to which other, and over which links.

Each row is a flow of the schedule. The flows of a ring are in ring order, so that a block moves down the rows. The
critical path is outlined, and a panel below shows its seconds by link. The data come from `collective`.
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
from analysis.figures.collective_detail import AFTER, MAX_ROWS, Collective, lanes
from analysis.figures.output import ON_WHITE, Picture, canvas, csv_text, explain, heading, legible_pt
from analysis.figures.style import CRITICAL, DELAY, INK, MODE_STYLES, SENDING, block_colour, darker, time_unit

_NUMBER_PT = 6.0  # size of the number on a bar
_WIDE = 0.016  # length of a bar with room for one digit, as a share of the longest time
_TOUCHING = 0.05  # a transfer may overlap its predecessor by this share of its length and still share its lane
_NARROW = 0.006  # length of a bar that a white edge would cover, on the same scale
_LOW = 0.15  # height of a bar that a white edge would cover, in rows
_THIN = 0.02  # length of a bar whose outline would cover it: neighbours have one outline together
_ASIDE, _OUTSIDE = 0.003, 0.04  # from a small bar to its outline, on that scale, and in rows
_CROSSING = "#EEEEEE"  # rows that cross the WAN: lighter than any part of a bar, also in grey
_UNFILLED = 0.4  # of white, over the part of a bar that is not filled
_MAX_MODES = 4
_HIGH = 8.5  # inches of panels below each other for which a page has room
_KEPT = "shown are those of the critical path, then those whose last messages end at the most different times"
_MAX_LINKS = 5  # links of the critical path that are shown with their costs

_NUMBERS = {  # the meaning of the number and the shade of a bar, by kind of collective
    "allgather": "the rank where its first block started",
    "gather": "the rank where its first block started",
    "reducescatter": "the rank that its first block is for",
    "scatter": "the rank that its first block is for",
    "alltoall": "the rank that its first block is for",
    "allreduce": "its first block of the buffer",
}


def picture(name: str, collectives: Sequence[Collective]) -> Picture:
    """Draw the timeline of a collective in each mode, for the run called `name`; of many modes, in those that differ
    most."""
    first = collectives[0]
    shown = [collectives[index] for index in most_different([one.completion_s for one in collectives], _MAX_MODES)]
    longest_s = max(max(one.completion_s, *(timed.end_s for timed in one.transfers)) for one in shown)
    links = min(_MAX_LINKS, max(len(one.costs) for one in shown))
    heights = [0.9 + 0.19 * len(first.shown), 0.4 + 0.15 * links]
    columns = 1 if len(shown) * sum(heights) <= _HIGH else 2  # one, for a column of a paper, if a page has room for it
    bands = -(-len(shown) // columns)  # each has a row of timelines and a row of links
    label = first.configuration.label
    has_numbers = False
    with canvas(5.4 * columns, bands * sum(heights) + 0.9) as figure:
        grid = figure.subplots(2 * bands, columns, squeeze=False, height_ratios=heights * bands)
        for index in range(bands * columns):
            band, column = divmod(index, columns)
            axes, costs = grid[2 * band : 2 * band + 2, column]
            if index < len(shown):
                has_numbers |= _draw(axes, shown[index], longest_s)
                _draw_costs(costs, shown[index], longest_s, links)
            else:
                for empty in (axes, costs):
                    empty.set_axis_off()
                    empty.set_in_layout(False)
        heading(figure, f"{first.configuration.title}: {first.words}")
        lines = _explanation(shown, "shade, and its number where there is room" if has_numbers else "shade")
        if any(one.failing for one in shown):
            lines.append("Dotted: a link goes down.")
        if any(name.startswith(AFTER) for one in shown for name in one.costs):
            lines.append(
                "After it: messages on its path from then on, as which links they took is not recorded. It is not the "
                "fault's cost: they would have taken a part of this time without the fault, too."
            )
        if any(one.may_be_again for one in shown):
            lines.append(
                "Where attempts failed, the one that succeeded is drawn; failed ones are in costs of faults alone."
            )
        if len(shown) < len(collectives):
            lines.append(f"The {len(shown)} of {len(collectives)} modes whose times differ most are drawn.")
        explain(figure, "\n".join(lines))
    bars = "a chunk in transit over a ring edge"
    if not first.configuration.is_ring_allgather:
        bars = "a message in transit between two GPUs"
    left_out = len(first.busy) - MAX_ROWS
    caption = f"Timeline of {first.words}, of {label}: each bar is {bars}; the critical path is outlined."
    if left_out > 0:
        caption += f" {left_out} of {len(first.busy)} rows are left out: {_KEPT}."
    return Picture(
        name=f"{name}-timeline",
        caption=caption,
        figure=figure,
        data=_data(collectives),
        more={".json": perfetto.as_json(collectives)},
    )


def most_different(times_s: Sequence[float], most: int) -> list[int]:
    """Return the indices of at most `most` of these times in ascending order: the first, and each further one as far as
    possible from those before it."""
    chosen = [0]
    while len(chosen) < min(most, len(times_s)):
        apart = [min(abs(time_s - times_s[index]) for index in chosen) for time_s in times_s]
        chosen.append(max((index for index in range(len(times_s)) if index not in chosen), key=apart.__getitem__))
    return sorted(chosen)


def _explanation(collectives: Sequence[Collective], marks: str) -> list[str]:
    """Return the lines below the panels; `marks` are what tells blocks apart."""
    one = collectives[0]
    configuration = one.configuration
    critical = (
        "Outlined: the critical path, which adds up to the completion time. Below: its seconds by link or GPU, largest "
        "first: sending (dark), delay (light)."
    )
    grey = "Grey rows cross the WAN. " * any(flow.crosses for flow in one.flows)
    if configuration.is_ring_allgather:
        return [
            "A bar: a chunk in transit over a ring edge, from the first bit sent to the last received. "
            f"Its {marks}: the rank where it started.",
            f"{grey}Right: the rate of the edge's slowest link, the lowest in bold. Dashed: completion.",
            critical,
        ]
    has_blocks = configuration.kind in _NUMBERS and any(timed.block >= 0 for timed in one.transfers)
    numbers = f" Its {marks}: {_NUMBERS[configuration.kind]}." if has_blocks else ""
    lines = [
        f"A bar: a message in transit, from the first bit sent to the last received.{numbers}",
        f"{grey}Right: the rate of the flow's slowest link, the lowest in bold. Dashed: completion.",
        critical,
    ]
    if not one.computes and any(not one.flows[row].links for row in one.shown):
        lines.append("Rows that wait: until what a job does next is due.")
    if any(one.spans for one in collectives):
        lines.append("Filled: the predicted rate of a message over time, as a share of the rate of its slowest link.")
    left_out = len(one.busy) - MAX_ROWS
    if left_out > 0:
        lines.append(f"{left_out} of {len(one.busy)} rows are left out: {_KEPT}.")
    return lines


_Box = tuple[float, float, float, float]
"""The ends of a bar in time, and in the direction of rows."""


def _corners(box: _Box) -> list[tuple[float, float]]:
    left, right, top, bottom = box
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def outlines(boxes: Sequence[_Box], *, thin: float) -> list[_Box]:
    """Return what is outlined of these bars: each, but bars shorter than `thin` together with their neighbours in a
    lane, if the gap between them is as short."""
    found: list[_Box] = []
    was_thin = False
    for box in sorted(boxes, key=lambda one: (one[2], one[3], one[0])):
        is_thin = box[1] - box[0] < thin
        if found and is_thin and was_thin and found[-1][2:] == box[2:] and box[0] - found[-1][1] < thin:
            found[-1] = (found[-1][0], max(found[-1][1], box[1]), *box[2:])
        else:
            found.append(box)
        was_thin = is_thin
    return found


def around(boxes: Sequence[_Box], *, thin: float, aside: float) -> list[list[tuple[float, float]]]:
    """Return the corners of the outlines of these bars. Bars in lanes that are lower than `_LOW` have one with those
    beside them in the next lane; outlines of small bars are a little outside of them, so that their shade is seen."""
    groups: list[list[_Box]] = []
    for left, right, top, bottom in sorted(outlines(boxes, thin=thin), key=lambda one: (one[2], one[0])):
        outside = aside if right - left < thin else 0.0
        box = left - outside, right + outside, top, bottom
        is_low = bottom - top < _LOW
        over = (one for one in groups if is_low and abs(one[-1][3] - top) < 1e-6 and one[-1][3] - one[-1][2] < _LOW)
        beside = next((one for one in over if one[-1][0] <= right and left <= one[-1][1]), None)
        if beside is None:
            groups.append([box])
        else:
            beside.append(box)
    return [_hull(group) for group in groups]


def _hull(group: Sequence[_Box]) -> list[tuple[float, float]]:
    """Return the corners around bars of lanes below each other: down their left ends and up their right ones."""
    if len(group) == 1 and group[0][3] - group[0][2] >= _LOW:
        return _corners(group[0])
    left = [(one[0], y) for one in group for y in one[2:]]
    right = [(one[1], y) for one in reversed(group) for y in (one[3], one[2])]
    top, bottom = group[0][2] - _OUTSIDE, group[-1][3] + _OUTSIDE
    left[0], left[-1] = (left[0][0], top), (left[-1][0], bottom)
    right[0], right[-1] = (right[0][0], bottom), (right[-1][0], top)
    return left + right


def _draw(axes: Axes, one: Collective, longest_s: float) -> bool:
    """Draw a mode's panel; return whether bars have numbers."""
    scale, unit = time_unit(longest_s)
    slowest = min(flow.rate_bps for flow in one.flows)
    larger = legible_pt(axes.figure.figure, _NUMBER_PT) / _NUMBER_PT
    ranks = len(one.configuration.fabric.gpus)
    bars: list[list[tuple[float, float]]] = []
    colours: list[str] = []
    edges: list[str] = []
    critical: list[_Box] = []
    empty: list[list[tuple[float, float]]] = []
    numbers: dict[int, list[tuple[float, float]]] = {}
    rows = one.shown
    for row, index in enumerate(rows):
        flow, transfers = one.flows[index], one.transfers_over(index)
        if flow.crosses:
            axes.axhspan(row - 0.5, row + 0.5, color=_CROSSING, linewidth=0, zorder=0)
        lane_of = lanes(transfers, touching=_TOUCHING)
        height = 0.8 / (max(lane_of, default=0) + 1)
        for timed, lane in zip(transfers, lane_of, strict=True):
            left, width = timed.leaves_s / scale, (timed.end_s - timed.leaves_s) / scale
            top, colour = row - 0.4 + lane * height, block_colour(timed.block, ranks)
            bars.append(_corners((left, left + width, top, top + height)))
            colours.append(colour)
            spans = one.spans.get(timed.transfer, ())
            # A white edge would cover a small bar, and hide a bar that is filled in part.
            whole_edge = "white" if width * scale > _NARROW * longest_s and height > _LOW else colour
            edges.append(darker(colour) if spans else whole_edge)
            propagation = [(spans[-1][1], timed.end_s, 0.0)] if spans else []  # of its last bits
            for start_s, end_s, share in (*spans, *propagation):
                unfilled = max(0.0, 1 - share) * height
                x, end = (min(max(at_s / scale, left), left + width) for at_s in (start_s, end_s))
                empty.append([(x, top), (end, top), (end, top + unfilled), (x, top + unfilled)])
            if timed.is_critical:
                critical.append((left, left + width, top, top + height))
            has_room = width * scale / longest_s > _WIDE * larger * len(str(timed.block)) and height > 0.3 * larger
            if has_room and timed.block >= 0:
                numbers.setdefault(timed.block, []).append((left + width / 2, top + height / 2))
        weight = "bold" if flow.rate_bps == slowest else "normal"
        rate = f"{flow.rate_bps / 1e9:.3g} Gbit/s" if flow.links else ""
        axes.annotate(rate, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=6.5, weight=weight)
    # One artist for all bars: an artist for each would take most of the time in which a run's figures are drawn.
    axes.add_collection(PolyCollection(bars, facecolors=colours, edgecolors=edges, linewidths=0.4, zorder=1))
    axes.add_collection(PolyCollection(empty, facecolors="white", alpha=_UNFILLED, linewidths=0, zorder=1.2))
    outlined = around(critical, thin=_THIN * longest_s / scale, aside=_ASIDE * longest_s / scale)
    axes.add_collection(PolyCollection(outlined, facecolors="none", edgecolors=CRITICAL, linewidths=1.1, zorder=1.5))
    for block, centres in numbers.items():
        _write(axes, block, centres, "white" if one.spans else block_colour(block, ranks), larger * _NUMBER_PT)
    axes.axvline(one.completion_s / scale, color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
    for at_s in {*one.failing.values()}:
        axes.axvline(at_s / scale, color=INK, linewidth=1.1, linestyle=":")
    axes.set_yticks(range(len(rows)), [one.name(one.flows[index]) for index in rows])
    axes.tick_params(axis="y", labelsize=7, length=0)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, longest_s / scale * 1.02), xlabel=f"time ({unit})")
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    how = f"measured {one.completion_s / scale:.4g} {unit}, " if one.measured else ""
    axes.set_title(f"{MODE_STYLES[one.mode].label}: {how}predicted {one.predicted_s / scale:.4g} {unit}", fontsize=8.5)
    return bool(numbers)


def _draw_costs(axes: Axes, one: Collective, longest_s: float, count: int) -> None:
    """Draw the `count` links on which the critical path spent most time, on the time axis of the panel above."""
    scale, unit = time_unit(longest_s)
    shown = list(one.costs.items())[:count]
    rows = range(len(shown))
    sending = [cost.sending_s / scale for _, cost in shown]
    axes.barh(rows, sending, 0.7, color=SENDING)
    axes.barh(rows, [cost.delay_s / scale for _, cost in shown], 0.7, left=sending, color=DELAY)
    for row, (_, cost) in zip(rows, shown, strict=True):
        look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 6.5, "bbox": ON_WHITE}
        axes.annotate(f"{cost.seconds / scale:.3g}", (cost.seconds / scale, row), (4, 0), **look)
    axes.set_yticks(rows, [name.replace(">", " → ") for name, _ in shown])
    axes.tick_params(axis="both", labelsize=7, length=0, labelbottom=False)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_xlim(0, longest_s / scale * 1.02)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    part = f", the largest {len(shown)} of {len(one.costs)}" if len(one.costs) > len(shown) else ""
    axes.set_title(f"critical path by link ({unit}){part}", fontsize=7.5)


def _write(axes: Axes, number: int, centres: Sequence[tuple[float, float]], colour: str, size_pt: float) -> None:
    """Write a block's number in the middle of its bars in black or white; one marker artist draws it in all of them."""
    red, green, blue = to_rgb(colour)
    ink = INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
    shape = _number_shape(number, size_pt)
    size = 2 * float(np.abs(shape.vertices).max())  # Matplotlib scales a marker's shape to its size
    x, y = zip(*centres, strict=True)
    (line,) = axes.plot(x, y, linestyle="none", marker=shape, markersize=size, color=ink, markeredgewidth=0)
    line.set_in_layout(False)  # it is within the axes


@cache
def _number_shape(number: int, size_pt: float) -> Path:
    """Return the outline of a number in points, centred on the origin."""
    text = TextPath((0, 0), str(number), size=size_pt)
    box = text.get_extents()
    middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    return Path(np.asarray(text.vertices) - middle, text.codes)


def _data(collectives: Sequence[Collective]) -> str:
    configuration, rows = collectives[0].configuration, []
    for one in collectives:
        for timed in one.transfers:
            flow = one.flows[timed.flow]
            transfer: dict[str, object] = {"step": timed.step, "chunk": timed.block}
            if not configuration.is_ring_allgather:
                block = timed.block if timed.block >= 0 else ""
                transfer = {"transfer": timed.transfer, "step": timed.step, "block": block}
                transfer |= {"bytes": round(timed.size) if flow.links else "", "channel": flow.channel}
            names = {"src": one.gpu(flow.src), "dst": one.gpu(flow.dst), "via": one.via(flow)}
            conditions = {"rate_bps": int(flow.rate_bps) if flow.links else "", "delay_s": flow.delay_s}
            times = {"start_s": timed.start_s, "leaves_s": timed.leaves_s, "end_s": timed.end_s}
            rows.append(one.which | {"measured": one.measured} | transfer | names | conditions | times)
            rows[-1]["critical"] = timed.is_critical
    return csv_text(rows)
