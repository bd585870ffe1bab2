"""A picture of the fabric under the conditions of one collective, the ring and the WAN paths of each mode drawn in.

Every logical link is a curve coloured by its available bandwidth, the two directions apart; those that the collective
uses are thick and have an arrow, the others thin.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection
from matplotlib.colors import Normalize
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path
from matplotlib.patheffects import Normal, Stroke, withStroke

from analysis.canvas import Picture, canvas, table, without_frame
from analysis.collective import Collective
from analysis.layout import Point, positions
from analysis.points import label_of
from analysis.style import BANDWIDTH, INK, MODE_STYLES

_CURVE = 0.09  # how far a link's curve leaves the straight line: apart from the link the other way
_MANY = 60  # links in a site above which those that are not used are drawn fainter still


def picture(name: str, collectives: Sequence[Collective]) -> Picture:
    """The fabric in each mode of a collective, `name` being the run's."""
    first = collectives[0]
    placed = positions(first.setting["fabric"])
    fastest = float(first.rates_bps.max()) / 1e9
    scale = Normalize(0, fastest)
    columns = min(2, len(collectives))
    rows = -(-len(collectives) // columns)
    spans = [
        max(point[axis] for point in placed.values()) - min(point[axis] for point in placed.values()) for axis in (0, 1)
    ]
    height = 5.3 * (spans[1] + 0.4) / (spans[0] + 0.4) + 0.35
    with canvas(5.3 * columns + 0.8, rows * height + 0.75) as figure:
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, one in zip(grid, collectives, strict=False):
            _draw(axes, one, placed, scale)
        for axes in grid[len(collectives) :]:
            axes.set_axis_off()
        bar = figure.colorbar(ScalarMappable(scale, BANDWIDTH), ax=list(grid), shrink=0.7, pad=0.01, aspect=30)
        bar.set_label("available bandwidth (Gbit/s)")
        bar.outline.set_visible(False)
        label = label_of(first.setting)
        figure.suptitle(f"{label}: logical links, ring and WAN paths of collective {first.number}", fontsize="medium")
        figure.supxlabel(
            "Thick: links that the collective uses, in the direction of the arrow. Thin: the other links, each "
            "direction on its own.\nCircles: GPUs. Squares: border routers. Diamonds: transit routers.",
            fontsize=7.5,
            color=INK,
        )
    caption = (
        f"The fabric under collective {first.number} of {label_of(first.setting)}, with each mode's ring and WAN paths."
    )
    return Picture(name=f"{name}-fabric", caption=caption, figure=figure, data=_data(collectives))


def _draw(axes: Axes, one: Collective, placed: Mapping[str, Point], scale: Normalize) -> None:
    links = one.setting["fabric"]["links"]
    used = {index for edge in one.edges for index in edge.links}
    faint = 0.28 if len(links) < _MANY * 2 else 0.14
    unused = [link for link in links if link["index"] not in used]
    colours = {link["index"]: BANDWIDTH(scale(one.rates_bps[link["index"]] / 1e9)) for link in links}
    for kind, thin, opaque in ((False, 0.8, faint), (True, 1.1, 0.75)):
        here = [link for link in unused if (link["kind"] == "wan") is kind]
        curves = [_curve(placed[link["src"]], placed[link["dst"]]) for link in here]
        edges = [colours[link["index"]] for link in here]
        look: dict[str, Any] = {"facecolor": "none", "linewidth": thin, "alpha": opaque, "zorder": 1}
        axes.add_collection(PathCollection(curves, edgecolor=edges, **look))
    for index in sorted(used):
        ends = placed[links[index]["src"]], placed[links[index]["dst"]]
        axes.add_patch(_arrow(*ends, colours[index]))
    _nodes(axes, one.setting["fabric"], placed)
    along = 0.36 if one.setting["fabric"]["transit"] else 0.28  # half-way, the links of a mesh cross
    for edge in one.edges:
        if edge.crosses:
            for index in edge.links:
                if links[index]["kind"] == "wan":
                    _write_rate(
                        axes, placed[links[index]["src"]], placed[links[index]["dst"]], one.rates_bps[index], along
                    )
    axes.set_aspect("equal")
    across, upward = zip(*placed.values(), strict=True)
    axes.set_xlim(min(across) - 0.27, max(across) + 0.27)
    axes.set_ylim(min(upward) - 0.27, max(upward) + 0.27)
    without_frame(axes)
    time = f"{one.completion_s * 1e3:,.4g} ms{'' if one.measured else ' (predicted)'}"
    axes.set_title(f"{MODE_STYLES[one.mode].label}: {time}", fontsize=8.5)


def _curve(start: Point, end: Point) -> Path:
    """The same curve as an arrow's of `_arrow`: a parabola to the right of the straight line."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    bend = ((start[0] + end[0]) / 2 + _CURVE * dy, (start[1] + end[1]) / 2 - _CURVE * dx)
    return Path([start, bend, end], [Path.MOVETO, Path.CURVE3, Path.CURVE3])


def _arrow(start: Point, end: Point, colour: Any) -> FancyArrowPatch:
    arrow = FancyArrowPatch(
        start,
        end,
        connectionstyle=f"arc3,rad={_CURVE}",
        shrinkA=8,
        shrinkB=8,
        color=colour,
        linewidth=2.6,
        arrowstyle="-|>",
        mutation_scale=11,
        zorder=3,
    )
    arrow.set_path_effects([Stroke(linewidth=3.8, foreground="white"), Normal()])
    return arrow


def _write_rate(axes: Axes, start: Point, end: Point, rate_bps: float, along: float) -> None:
    """The rate of a WAN link that is used, on its curve, that share of the way along."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    aside = 2.4 * along * (1 - along) * _CURVE
    x, y = start[0] + along * dx + aside * dy, start[1] + along * dy - aside * dx
    text = axes.text(x, y, f"{rate_bps / 1e9:.3g}", fontsize=7, ha="center", va="center", color=INK, zorder=6)
    text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])


def _nodes(axes: Axes, fabric: Mapping[str, Any], placed: Mapping[str, Point]) -> None:
    kinds = [
        ([gpu["name"] for gpu in fabric["gpus"]], "o", 230),
        ([router["name"] for router in fabric["border_routers"]], "s", 270),
        (list(fabric["transit"]), "D", 210),
    ]
    for names, marker, size in kinds:
        if names:
            across, along = zip(*(placed[name] for name in names), strict=True)
            axes.scatter(across, along, s=size, marker=marker, color="white", edgecolor=INK, linewidth=0.9, zorder=4)
        for name in names:
            axes.text(*placed[name], name, ha="center", va="center", fontsize=6, color=INK, zorder=5)


def _data(collectives: Sequence[Collective]) -> str:
    columns = ["setting", "label", "mode", "collective", "link", "src", "dst", "kind", "rate_bps", "delay_s", "edge"]
    rows = []
    for one in collectives:
        edge_of = {index: place for place, edge in enumerate(one.edges) for index in edge.links}
        which = [one.setting["setting"], one.setting["label"], one.mode, one.number]
        for link in one.setting["fabric"]["links"]:
            index = link["index"]
            numbers = [int(one.rates_bps[index]), float(one.delays_s[index]), edge_of.get(index, "")]
            rows.append([*which, index, link["src"], link["dst"], link["kind"], *numbers])
    return table(columns, rows)
