"""The timeline of a script's ranks: when the kernels of each GPU ran, its collectives, and the ends of its steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from analysis.figures import perfetto
from analysis.figures.output import Picture, canvas, csv_text, heading, legend
from analysis.figures.rank_bars import RankBars
from analysis.figures.style import INK, line_style, time_unit

KERNELS = "kernels"

_MAX_RANKS = 32
_MAX_STEPS = 2
_KERNELS_COLOUR = "#7FA3B5"
_NARROW = 0.004  # length of a bar that a white edge would cover, as a share of the time that is drawn


def picture(title: str, ranks: Sequence[RankBars]) -> Picture:
    """Draw the last steps of at least one rank, each of which has a step; all steps are in the trace for Perfetto."""
    shown = ranks[:_MAX_RANKS]
    steps = [one for rank in shown for one in rank.steps[-_MAX_STEPS:]]
    begin_s, end_s = min(one.begin_s for one in steps), max(one.end_s for one in steps)
    scale, unit = time_unit(end_s - begin_s)
    bars = [bar for rank in shown for of_group in rank.groups.values() for bar in of_group]
    kinds = sorted({bar.name for bar in bars if bar.begin_s < end_s and bar.end_s > begin_s})
    colours = {kind: line_style(index + 1)["color"] for index, kind in enumerate(kinds)}
    rows: list[dict[str, Any]] = []
    with canvas(7.4, 1.7 + 0.34 * len(shown)) as figure:
        axes = figure.subplots()
        for row, rank in enumerate(shown):
            rows += _draw(axes, row, rank, colours, (begin_s, end_s, scale))
        axes.set_xlim(0, 1.005 * (end_s - begin_s) / scale)  # so that the last line is seen
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_yticks(range(len(shown)), [rank.name for rank in shown], fontsize=7)
        axes.grid(False)
        axes.set_xlabel(f"time since {begin_s:.6f} s after the ranks' start ({unit})", color=INK)
        heading(figure, title)
        left_out = f" {len(ranks) - len(shown)} more ranks are left out." if len(ranks) > len(shown) else ""
        note = f"Above: the GPU's kernels. Below: collectives on this rank. Lines: ends of steps.{left_out}"
        patches = [Patch(color=_KERNELS_COLOUR, label=KERNELS)]
        legend(figure, patches + [Patch(color=colours[kind], label=kind) for kind in kinds], note)
    return Picture(
        name="program-timeline",
        caption="Kernels and collectives of each rank in the last steps that were recorded.",
        figure=figure,
        data=csv_text(rows),
        more={".json": perfetto.ranks_as_json(title, ranks)},
    )


def _draw(
    axes: Axes, row: int, rank: RankBars, colours: Mapping[str, Any], span: tuple[float, float, float]
) -> list[dict[str, Any]]:
    """Draw a rank, within a begin and an end in s, in a unit of so many s; return the rows of what is drawn."""
    begin_s, end_s, scale = span
    collectives = [bar for of_group in rank.groups.values() for bar in of_group]
    lanes = [(KERNELS, row - 0.42, *interval) for interval in rank.computing_s]
    lanes += [(bar.name, row + 0.02, bar.begin_s, bar.end_s) for bar in collectives]
    colours = {**colours, KERNELS: _KERNELS_COLOUR}
    bars = [(what, colours[what], top, *at_s) for what, top, *at_s in lanes if at_s[1] > begin_s and at_s[0] < end_s]
    corners, edges = [], []
    for _, colour, top, from_s, to_s in bars:
        left, right = (max(from_s, begin_s) - begin_s) / scale, (min(to_s, end_s) - begin_s) / scale
        corners.append([(left, top), (right, top), (right, top + 0.38), (left, top + 0.38)])
        edges.append("white" if to_s - from_s > _NARROW * (end_s - begin_s) else colour)
    faces = [colour for _, colour, *_ in bars]
    axes.add_collection(PolyCollection(corners, facecolors=faces, edgecolors=edges, linewidths=0.4))
    for step in rank.steps[-_MAX_STEPS:]:
        axes.vlines((step.end_s - begin_s) / scale, row - 0.5, row + 0.5, color=INK, linewidth=1.0)
    return [
        {"rank": rank.name, "what": what, "begin_s": from_s, "end_s": to_s} for what, _, _, from_s, to_s in bars
    ] + [
        {"rank": rank.name, "what": f"step {step.name}", "begin_s": step.begin_s, "end_s": step.end_s}
        for step in rank.steps[-_MAX_STEPS:]
    ]
