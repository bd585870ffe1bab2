"""A picture of the fabric under the conditions of one collective, with the links that each mode uses.

Sites are placed around the centre, each with its GPUs and border routers on a circle; the WAN's transit routers are in
the middle. Every logical link (in the physical grain every port) is a curve coloured by its available bandwidth, with a
curve for each direction and a colour scale of its own for the WAN. Links that the collective uses are thick arrows, all
others thin lines. In the physical grain leaves and spines are inside the circle of their site.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import Normalize
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from analysis.figures.collective_detail import Collective
from analysis.figures.output import (
    ON_WHITE,
    Picture,
    canvas,
    colour_bar,
    csv_text,
    explain,
    heading,
    legible_pt,
    panels,
)
from analysis.figures.style import BANDWIDTH, INK, WAN_BANDWIDTH
from topologies.fabric.fabric import Fabric, LogicalLink
from topologies.fabric.failures import spines
from topologies.fabric.ports import DirectedPort, links_in_grain

Floats = npt.NDArray[np.float64]


class _Names(NamedTuple):
    """The size of the names of nodes in points, whether those of GPUs are inside of their circles, or else beside them
    if there is room, the room that they take then on each side of the picture, in its units, and how many points a unit
    has."""

    size_pt: float
    is_inside: bool
    has_room: bool
    aside: float
    unit_pt: float

    @property
    def small(self) -> float:
        """The ratio of the size of nodes to their usual one."""
        return min(1.0, NODE * self.unit_pt / 8.5)


Positions = Mapping[str, tuple[float, float]]
Link = LogicalLink | DirectedPort

_WIDTH = 4.8  # inches of a panel
_TALL = 1.4  # ratio of a page's height to its width: panels below each other that are higher are in two columns
_NAME_PT, _WIDE_PT = 6.0, 0.68  # size of a node's name, and the width of a character of it, at size 1
_DIAMOND = 210  # points squared of a transit router at its usual size
_MOST_INSIDE = 6  # characters of a name in a node; a longer one is below it
_BETWEEN = 1.1  # from a site to the centre if sites are connected directly, twice that with transit routers
_APART = 0.36  # the least distance between neighbours on a circle
NODE = 0.15  # the radius of a node
_BOX: Mapping[str, Any] = {"boxstyle": "square,pad=0.25", "facecolor": "white", "edgecolor": INK, "linewidth": 0.9}
_EDGE = 0.27  # from the centre of a node to the edge of the picture
_BENDS = (0.09, 0.2, 0.32, -0.2, 0.45, -0.32, 0.6)  # tried offsets of a control point to the right, / length
_MAX_LINKS = 600  # with more unused links within sites, these are not drawn
_FAR = 4.0  # ratio of a rate to the next lower one above which it is beyond the scale of colours
_MANY = 24  # with more WAN links, unused ones are drawn fainter
FAILING: Mapping[str, Any] = {"colors": "#D00000", "linewidths": 1.6, "linestyles": (0, (4, 2)), "zorder": 3.5}
"""The look of a link that goes down while the collective runs."""
DOWN: Mapping[str, Any] = {"colors": "#D00000", "linewidths": 1.4, "linestyles": (0, (1, 1.5)), "zorder": 2.5}
"""The look of a link that is down when the collective begins."""
_KINDS = {"intra": "gpu-gpu", "to_br": "gpu-br", "from_br": "br-gpu", "wan": "wan"}


def picture(name: str, collectives: Sequence[Collective]) -> Picture:
    """Draw the fabric for a collective in each mode, for the run called `name`."""
    first = collectives[0]
    fabric, about = first.configuration.fabric, first.configuration.label
    placed = positions(fabric)
    kinds = {link.kind == "wan" for link in links_in_grain(fabric).all}  # two sites of one GPU have no other links
    scales = {is_wan: _scale(fabric, first.rates_bps, is_wan=is_wan) for is_wan in (True, False) if is_wan in kinds}
    curves = Curves(fabric, placed)
    spans = [float(np.ptp([point[axis] for point in placed.values()])) + 2 * _EDGE for axis in (0, 1)]
    width, height, columns = _size(len(collectives), spans[1] / spans[0], 0.8 + 0.5 * len(scales))
    with canvas(width, height) as figure:
        grid = panels(figure, len(collectives), columns=columns)
        names = _names(curves, legible_pt(figure, _NAME_PT), spans[0])
        for axes, one in zip(grid, collectives, strict=True):
            _draw(axes, one, curves, scales, names)
        for is_wan, scale in scales.items():
            words = "WAN link" if is_wan else "link within a site"
            beyond = _beyond(fabric, first.rates_bps, is_wan=is_wan)
            label = f"available bandwidth of a {words} (Gbit/s{beyond})"
            colour_bar(figure, grid, scale, label, is_below=True, is_open=bool(beyond))
        used = "ring and WAN paths" if first.configuration.is_ring_allgather else "links in use"
        is_physical = fabric.spec.grain == "physical"
        links = "ports" if is_physical else "logical links"
        heading(figure, f"{first.configuration.title}: {links}, with the {used} of {first.words}")
        thin = "all other links, in both directions" if curves.shows_all else "the other WAN links"
        explain(
            figure,
            f"Thick: links that the collective uses, in the direction of the arrow. Thin: {thin}.\n"
            f"Circles: GPUs. Boxes: border routers. {'Diamonds: transit routers. ' * bool(fabric.wan.routers)}"
            f"{'Triangles: leaves (up) and spines (down). ' if is_physical else ''}"
            f"Numbers: Gbit/s of WAN links in use."
            f"{' (#2): the second link between the same two.' * any(link.number > 1 for link in _wan_links(fabric))}"
            f"{down_note(collectives)}{failing_note(collectives)}",
        )
    whose = f"each mode's {used}" if len(collectives) > 1 else f"the {used} of {first.mode}"
    caption = f"The fabric under the conditions of {first.words}, of {about}, with {whose}."
    return Picture(name=f"{name}-fabric", caption=caption, figure=figure, data=_data(collectives))


def _size(count: int, tall: float, beside: float) -> tuple[float, float, int]:
    """Return the width and height (inches) of a figure with so many panels, of this ratio of height to width, and its
    columns; `beside` is the height of what is below the panels."""
    of_panel = _WIDTH * tall + 0.35
    below_each_other = count * of_panel + beside
    columns = 1 if count == 1 or below_each_other <= _TALL * (_WIDTH + 0.2) else 2
    return _WIDTH * columns + 0.2, -(-count // columns) * of_panel + beside, columns


def _names(curves: "Curves", size_pt: float, across: float) -> "_Names":
    """Return where names of nodes have room at this size in a picture that is so many units wide without them."""
    unit_pt = _WIDTH * 72 / across
    gpus = [gpu.name for gpu in curves.fabric.gpus]
    is_inside = _WIDE_PT * size_pt * max(map(len, gpus)) + 1 <= 2 * NODE * unit_pt
    has_room = is_inside or _APART * unit_pt >= 1.1 * size_pt
    aside = 0.0 if is_inside or not has_room else (_WIDE_PT * size_pt * max(map(len, gpus))) / unit_pt
    unit_pt = _WIDTH * 72 / (across + 2 * aside)
    return _Names(size_pt=size_pt, is_inside=is_inside, has_room=has_room, aside=aside, unit_pt=unit_pt)


def down_note(collectives: Sequence[Collective]) -> str:
    """Return a line that explains the marks of links that are down when one of these collectives begins; "" if none
    is."""
    return "\nDotted: down." if any(one.down for one in collectives) else ""


def failing_note(collectives: Sequence[Collective]) -> str:
    """Return a line that explains the marks of links that fail while one of these collectives runs; "" if none does."""
    failing = next((one for one in collectives if one.failing), None)
    if failing is None:
        return ""
    when = f"goes down within the collective, {failing.failing_words} after its beginning"
    return f"\nDashed: {when}. Which links its traffic took then is not recorded, nor shown."


def positions(fabric: Fabric) -> dict[str, tuple[float, float]]:
    """Return the coordinates of every node that has links or ports, by name; they depend on the fabric alone."""
    sites = range(len(fabric.gpus_per_site))
    gpus = [[gpu.name for gpu in fabric.gpus if gpu.site == site] for site in sites]
    pairs = list(zip(fabric.border_routers, fabric.br_sites, strict=True))
    routers = [[name for name, br_site in pairs if br_site == site] for site in sites]
    transit = _of_kind(fabric, "transit")
    nodes = max(len(gpus[site]) + len(routers[site]) for site in sites)
    radius = max(1.6 if fabric.spec.grain == "physical" else 0.8, _APART * nodes / (2 * math.pi))
    middle = max(_BETWEEN * (2 if transit else 1), radius * (1 / math.sin(math.pi / max(2, len(sites))) - 1))
    placed: dict[str, tuple[float, float]] = {}
    for site in sites:
        angle = math.pi - 2 * math.pi * site / len(sites)  # site 0 on the left, then clockwise
        # Border routers face the centre of the picture; in a site on the left or right the first one is at the top.
        is_left = math.cos(angle) < 0
        turn = (-1 if is_left else 1) * 2 * math.pi / (len(gpus[site]) + len(routers[site]))
        start = angle + math.pi - turn * max(0, len(routers[site]) - 1) / 2
        centre = np.array([math.cos(angle), math.sin(angle)]) * (middle + radius)
        for index, name in enumerate([*routers[site], *gpus[site][:: -1 if is_left else 1]]):
            at = start + index * turn
            placed[name] = (centre[0] + radius * math.cos(at), centre[1] + radius * math.sin(at))
        if fabric.spec.grain == "physical":
            placed |= _inner_positions(fabric, site, placed, centre, radius)
    for index, name in enumerate(transit):  # the first one on the left, the others clockwise
        at = math.pi - 2 * math.pi * index / len(transit)
        placed[name] = (0.6 * middle * math.cos(at), 0.45 * middle * math.sin(at))
    return placed


def _inner_positions(fabric: Fabric, site: int, placed: Positions, centre: Floats, radius: float) -> Positions:
    """Return the coordinates of a site's leaves, each halfway to its GPUs, and of its spines, in a vertical row."""
    placed_inside = {}
    leaves = dict.fromkeys(gpu.leaf for gpu in fabric.gpus if gpu.site == site)
    for leaf in leaves:
        toward = np.mean([placed[gpu.name] for gpu in fabric.gpus if gpu.leaf == leaf], axis=0) - centre
        placed_inside[leaf] = centre + 0.5 * radius * toward / max(float(np.hypot(*toward)), 1e-9)
    tier = spines(fabric, site)
    for index, name in enumerate(tier):
        height = (index - (len(tier) - 1) / 2) * min(5 * NODE, 1.5 * radius / len(tier))
        placed_inside[name] = centre - np.array([0.3 * radius * np.sign(centre[0]), height])
    return {name: (float(x), float(y)) for name, (x, y) in placed_inside.items()}


def _wan_links(fabric: Fabric) -> list[Link]:
    return [link for link in links_in_grain(fabric).all if link.kind == "wan"]


def _scale(fabric: Fabric, rates_bps: Floats, *, is_wan: bool) -> ScalarMappable:
    """Return the colour scale of the WAN's links, or of those within sites: from 0 to the highest rate, in Gbit/s, that
    is not far above most others."""
    rates = [float(rates_bps[link.index]) for link in links_in_grain(fabric).all if (link.kind == "wan") is is_wan]
    return ScalarMappable(Normalize(0, highest_shown(rates) / 1e9), WAN_BANDWIDTH if is_wan else BANDWIDTH)


def highest_shown(rates: Sequence[float]) -> float:
    """Return the highest of these rates without those far above the others: links that have no limit have a rate of
    which no link makes use, and on a scale up to it all others would have one colour.

    Far above is more than `_FAR` times the next lower rate, if at least half of all rates are lower, or if the higher
    ones are all the same and the lower ones are not.
    """
    ordered = sorted(rates)
    for place in range(1, len(ordered)):
        lower, higher = ordered[:place], ordered[place:]
        is_one = lower[0] < lower[-1] and higher[0] == higher[-1]
        if higher[0] > _FAR * lower[-1] and (len(lower) >= len(higher) or is_one):
            return lower[-1]
    return ordered[-1]


def _beyond(fabric: Fabric, rates_bps: Floats, *, is_wan: bool) -> str:
    """Return up to which rate links are beyond the end of their scale; "" if none is."""
    rates = [float(rates_bps[link.index]) for link in links_in_grain(fabric).all if (link.kind == "wan") is is_wan]
    return f"; lightest: up to {_gbps(max(rates))}" if max(rates) > highest_shown(rates) else ""


class Curves:
    """The curve of every link: a parabola (quadratic Bézier curve) with the first offset that avoids all nodes."""

    def __init__(self, fabric: Fabric, placed: Positions) -> None:
        self.fabric, self.placed = fabric, placed
        self.shows_all = sum(link.kind != "wan" for link in links_in_grain(fabric).all) <= _MAX_LINKS
        self._names = list(placed)
        self._nodes = np.array(list(placed.values()))
        self._bends: dict[int, float] = {}

    def control(self, link: Link, bend: float | None = None) -> tuple[float, float]:
        """Return the middle control point of a link's curve."""
        (x, y), (to_x, to_y) = self.placed[link.src], self.placed[link.dst]
        bend = self.bend(link) if bend is None else bend
        return ((x + to_x) / 2 + bend * (to_y - y), (y + to_y) / 2 - bend * (to_x - x))

    def points(self, link: Link, shares: Floats, bend: float | None = None) -> Floats:
        """Return the points at these curve parameters (0: start, 1: end) of a link, [N, 2]."""
        start, end = np.array(self.placed[link.src]), np.array(self.placed[link.dst])
        t = shares[:, None]
        return np.asarray(
            (1 - t) ** 2 * start + 2 * t * (1 - t) * np.array(self.control(link, bend)) + t**2 * end, dtype=np.float64
        )

    def bend(self, link: Link) -> float:
        """Return the offset of the curve's control point from the middle of the link, in lengths of the link.

        It is the first of `_BENDS` that keeps the curve clear of all other nodes, or the one with the most clearance.
        Links between the same two nodes differ in it.
        """
        if link.index not in self._bends:
            others = self._nodes[[name not in (link.src, link.dst) for name in self._names]]
            links = links_in_grain(self.fabric).all
            parallel = [one for one in links if (one.src, one.dst) == (link.src, link.dst) and one.number < link.number]
            taken = {self.bend(one) for one in parallel}
            bends = [bend for bend in _BENDS if bend not in taken] or [0.1 * (link.number + 1)]
            clear = [self._clearance(link, bend, others) for bend in bends]
            enough = next((index for index, room in enumerate(clear) if room > 1.2 * NODE), int(np.argmax(clear)))
            self._bends[link.index] = bends[enough]
        return self._bends[link.index]

    def _clearance(self, link: Link, bend: float, others: Floats) -> float:
        """Return the least distance between a link's curve and other nodes."""
        along = self.points(link, np.linspace(0, 1, 25), bend)
        return float(np.min(np.hypot(*(along[:, None, :] - others[None, :, :]).transpose(2, 0, 1)), initial=9.0))


def _draw(
    axes: Axes,
    one: Collective,
    curves: Curves,
    scales: Mapping[bool, ScalarMappable],
    names: _Names,
) -> None:
    """Draw a panel."""
    links, placed = links_in_grain(curves.fabric).all, curves.placed
    used = sorted({index for flow in one.flows for index in flow.links})
    colours = [scales[link.kind == "wan"].to_rgba(one.rates_bps[link.index] / 1e9) for link in links]
    crowded = sum(link.kind == "wan" for link in links) > _MANY
    for wan, thin, opaque in ((False, 0.8, 0.3), (True, 1.1, 0.3 if crowded else 0.75)):
        here = [link for link in links if (link.kind == "wan") is wan and link.index not in (*used, *one.down)]
        here = here if wan or curves.shows_all else []
        paths = [
            Path([placed[link.src], curves.control(link), placed[link.dst]], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
            for link in here
        ]
        look: dict[str, Any] = {"facecolor": "none", "linewidth": thin, "alpha": opaque, "zorder": 1}
        axes.add_collection(PathCollection(paths, edgecolor=[colours[link.index] for link in here], **look))
    _arrows(axes, [links[index] for index in used], curves, [colours[index] for index in used], names)
    failing = [curves.points(links[index], np.linspace(0, 1, 25)) for index in one.failing]
    shown_down = [index for index in one.down if curves.shows_all or links[index].kind == "wan"]
    axes.add_collection(LineCollection(failing, **FAILING))
    down = [curves.points(links[index], np.linspace(0, 1, 25)) for index in shown_down]
    axes.add_collection(LineCollection(down, **DOWN))
    _nodes(axes, curves, names)
    _write_on_links(axes, one, used, curves, names)
    axes.set_aspect("equal")
    across, upward = zip(*placed.values(), strict=True)
    axes.set_xlim(min(across) - _EDGE - names.aside, max(across) + _EDGE + names.aside)
    axes.set_ylim(min(upward) - _EDGE, max(upward) + _EDGE)
    axes.set_axis_off()
    axes.grid(False)
    for artist in axes.get_children():
        artist.set_in_layout(False)  # all of them are within the axes
    axes.title.set_in_layout(True)
    axes.set_title(one.title, fontsize=8.5)


class _Size(NamedTuple):
    """Half the width and half the height of a node in units of the picture, and whether it is a diamond, or else a
    box."""

    width: float
    height: float
    is_diamond: bool = False

    def outside(self, away: Floats) -> npt.NDArray[np.bool_]:
        """Return which points are outside of the node, [N]; they are given from its centre, [N, 2]."""
        shares = np.abs(away) / np.array([self.width, self.height])
        return np.asarray(shares.sum(axis=1) > 1 if self.is_diamond else shares.max(axis=1) > 1)


def _sizes(fabric: Fabric, names: _Names) -> dict[str, _Size]:
    """Return the sizes of nodes that are larger than a circle, as their names are in them."""
    sizes = {}
    half_pt = 0.5 * math.sqrt(2 * _diamond_area(fabric, names)) + 1
    for name in _of_kind(fabric, "transit"):
        sizes[name] = _Size(half_pt / names.unit_pt, half_pt / names.unit_pt, is_diamond=True)
    for name in fabric.border_routers if names.has_room else ():
        text_pt, edge_pt = names.size_pt, 0.25 * names.size_pt + 1
        half = 0.5 * 0.62 * text_pt * len(name) + edge_pt, 0.5 * text_pt + edge_pt
        sizes[name] = _Size(half[0] / names.unit_pt, half[1] / names.unit_pt)
    return sizes


def _diamond_area(fabric: Fabric, names: _Names) -> float:
    """Return the area of a transit router's diamond, in points squared as of a marker's square."""
    longest = max((len(name) for name in _of_kind(fabric, "transit") if len(name) <= _MOST_INSIDE), default=0)
    # A box of this width and height fits in a diamond whose diagonal is their sum.
    diagonal_pt = _WIDE_PT * names.size_pt * longest + names.size_pt if names.has_room else 0.0
    return max(_DIAMOND * names.small**2, diagonal_pt**2 / 2)


def _arrows(axes: Axes, used: Sequence[Link], curves: Curves, colours: Sequence[Any], names: _Names) -> None:
    """Draw the links in use: lines with a white edge and an arrow head that touches the destination. The head is
    smaller where little of a link is seen between its nodes."""
    lines, heads = [], []
    thick, sizes = 0.28 * NODE * names.unit_pt, _sizes(curves.fabric, names)
    for link in used:
        along = curves.points(link, np.linspace(0, 1, 320))
        is_seen = np.hypot(*(along - along[-1]).T) > 0.95 * NODE
        for name, end in ((link.src, along[0]), (link.dst, along[-1])):
            if name in sizes:
                is_seen &= sizes[name].outside(along - end)
        seen = along[is_seen] if is_seen.sum() > 1 else along
        tip = seen[-1]
        size = min(NODE, 0.7 * float(np.hypot(*(tip - seen[0]))))
        away = np.hypot(*(along - tip).T)
        before = np.arange(len(along)) <= int(np.argmin(away))
        back = along[before & (away >= size)][-1]
        across = 0.5 * np.array([back[1] - tip[1], tip[0] - back[0]])
        shaft = along[before & (away >= 0.8 * size)]
        lines.append(shaft[::-16][::-1])  # every 16th point, the last one included
        heads.append(np.array([tip, back + across, back - across]))
    axes.add_collection(LineCollection(lines, colors="white", linewidths=1.45 * thick, zorder=3))
    axes.add_collection(PolyCollection(heads, facecolors=colours, linewidths=0, zorder=3))
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=thick, zorder=3))


def _write_on_links(axes: Axes, one: Collective, used: Sequence[int], curves: Curves, names: _Names) -> None:
    """Write on each WAN link its rate if it is in use, that it is down, and its number among parallel ones: on its
    curve, or next to it where that is full."""
    taken = [(*point, NODE, NODE) for point in curves.placed.values()]
    links = links_in_grain(curves.fabric).all
    for link in _wan_links(curves.fabric):
        text = _words_on(link, one, is_used=link.index in used)
        if not text:
            continue
        # With a character's room between neighbours, whose numbers would be read as one.
        size, unit_pt = max(7.0, names.size_pt), names.unit_pt
        half = (0.5 * 0.62 * size * (len(text) + 1) / unit_pt, 0.5 * 1.2 * size / unit_pt)
        shares = np.array([0.5, 0.36, 0.64, 0.28, 0.72, 0.2, 0.8])
        along = curves.points(link, shares)
        (x, y), (to_x, to_y) = curves.placed[link.src], curves.placed[link.dst]
        aside = np.array([to_y - y, x - to_x]) / math.hypot(to_x - x, to_y - y)  # to the right, seen along the link
        others = [curves.points(links[other], np.linspace(0.1, 0.9, 17)) for other in used if other != link.index]
        spots = [spot + away * aside for away in (0.0, 0.13, 0.2, 0.3) for spot in along]
        best = min(spots, key=lambda spot: overlap(spot, half, taken, others))
        taken.append((float(best[0]), float(best[1]), *half))
        look: dict[str, Any] = {"fontsize": size, "ha": "center", "va": "center", "color": INK, "zorder": 6}
        axes.text(float(best[0]), float(best[1]), text, bbox=ON_WHITE, **look)


def _words_on(link: Link, one: Collective, *, is_used: bool) -> str:
    """Return what is written on a WAN link: "25", "25 (#2)", "down", "(#3)"; "" for one that is neither in use nor one
    of several."""
    which = f"(#{link.number})" if link.number > 1 else ""
    state = _gbps(one.rates_bps[link.index]) if is_used else "down" * (link.index in one.down)
    return f"{state} {which}".strip()


def _gbps(rate_bps: float) -> str:
    return f"{rate_bps / 1e9:.3g}" if rate_bps < 999.5e9 else f"{rate_bps / 1e9:,.0f}"


def overlap(
    spot: Floats, half: tuple[float, float], taken: Sequence[tuple[float, ...]], lines: Sequence[Floats]
) -> float:
    """Return a penalty for a label centred on `spot`, with this half width and half height.

    It counts overlaps with the boxes of nodes and other labels, `taken` (x, y, half width, half height), and with much
    less weight those with other links in use, given as `lines` of points.
    """
    penalty = 0.0
    for x, y, half_width, half_height in taken:
        depth = min(half_width + half[0] - abs(spot[0] - x), half_height + half[1] - abs(spot[1] - y))
        penalty += 100 + 100 * depth if depth > 0 else 0
    for line in lines:
        is_near = np.abs(line - spot) < np.array(half) + 0.03
        penalty += float(is_near.all(axis=1).any())
    return penalty


def _nodes(axes: Axes, curves: Curves, names: _Names) -> None:
    """Draw the nodes with their names, where these have room."""
    fabric, placed = curves.fabric, curves.placed
    small = names.small
    inner = (("leaf", "^", 190), ("spine", "v", 190)) if fabric.spec.grain == "physical" else ()
    kinds = [
        ([gpu.name for gpu in fabric.gpus], "o", 230),
        (list(fabric.border_routers), "s", 270),
        *((_of_kind(fabric, kind), mark, size) for kind, mark, size in (("transit", "D", _DIAMOND), *inner)),
    ]
    centres = _centres(fabric, placed)
    for of_kind, marker, size in kinds:
        look: dict[str, Any] = {"color": "white", "edgecolor": INK, "linewidth": 0.9 * small, "zorder": 4}
        area = _diamond_area(fabric, names) if marker == "D" else size * small**2
        area *= (names.size_pt / _NAME_PT) ** 2 if marker in "^v" else 1.0
        if of_kind and not (marker == "s" and names.has_room):  # else their names have boxes
            x, y = zip(*(placed[name] for name in of_kind), strict=True)
            axes.scatter(x, y, s=area, marker=marker, **look)
        for name in of_kind if names.has_room else ():
            at, where = placed[name], dict[str, Any](ha="center", va="center")
            if marker == "D" and len(name) > _MOST_INSIDE:
                at, where = (
                    (at[0], at[1] - (0.5 * math.sqrt(2 * area) + 1) / names.unit_pt),
                    {"ha": "center", "va": "top"},
                )
            elif marker == "o" and not names.is_inside:
                at, where = _outward(at, centres[name])
            words = axes.text(*at, name, fontsize=names.size_pt, color=INK, zorder=5, **where)
            if marker == "s":
                words.set_bbox(dict(_BOX))
            elif marker in "^v" or where["va"] != "center" or where["ha"] != "center":
                # The name is wider than its triangle, or beside its node: links would cross it.
                words.set_path_effects([withStroke(linewidth=2, foreground="white")])


def _centres(fabric: Fabric, placed: Positions) -> dict[str, Floats]:
    """Return the centre of the site of each GPU."""
    found = {}
    for gpu in fabric.gpus:
        routers = [name for name, site in zip(fabric.border_routers, fabric.br_sites, strict=True) if site == gpu.site]
        here = [*(one.name for one in fabric.gpus if one.site == gpu.site), *routers]
        found[gpu.name] = np.mean([placed[name] for name in here], axis=0)
    return found


def _outward(at: tuple[float, float], centre: Floats) -> tuple[tuple[float, float], dict[str, Any]]:
    """Return the place of a GPU's name outside of its site's circle, and how the name is aligned there."""
    away = np.array(at) - centre
    away = away / max(float(np.hypot(*away)), 1e-9)
    x, y = np.array(at) + 1.1 * NODE * away
    across = "center" if abs(away[0]) < 0.35 else "left" if away[0] > 0 else "right"
    upward = "center" if abs(away[1]) < 0.35 else "bottom" if away[1] > 0 else "top"
    return (float(x), float(y)), {"ha": across, "va": upward}


def _of_kind(fabric: Fabric, kind: str) -> list[str]:
    return [switch.name for switch in fabric.switches if switch.kind == kind]


def _data(collectives: Sequence[Collective]) -> str:
    """Return a row for every link in every mode, with the indices of the flows over it (at most one edge of a ring)."""
    rows = []
    column = "edge" if collectives[0].configuration.is_ring_allgather else "flows"
    for one in collectives:
        flows_of: dict[int, list[str]] = {}
        for number, flow in enumerate(one.flows):
            for index in flow.links:
                flows_of.setdefault(index, []).append(str(number))
        for link in links_in_grain(one.configuration.fabric).all:
            about = {"link": link.index, "src": link.src, "dst": link.far_end, "kind": _KINDS.get(link.kind, link.kind)}
            about |= {"rate_bps": int(one.rates_bps[link.index]), "delay_s": float(one.delays_s[link.index])}
            about |= {"fails_s": one.failing.get(link.index, "")}
            rows.append(one.which | about | {column: " ".join(flows_of.get(link.index, ()))})
    return csv_text(rows)
