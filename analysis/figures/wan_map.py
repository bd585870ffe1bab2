"""The WAN on the map: the utilisation of each link under a collective, by colour and width, and the paths in use.

Routers are at their longitude and latitude. The two directions of a link are parallel lines, each on the right-hand
side in its direction, as on a road. Runs get this figure if the routers of their fabric have coordinates.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.patches import FancyArrowPatch
from matplotlib.patheffects import withStroke

from analysis.figures.collective_detail import Collective
from analysis.figures.fabric import DOWN, FAILING, down_note, failing_note, overlap
from analysis.figures.output import Picture, canvas, colour_bar, csv_text, explain, heading, legible_pt, panels
from analysis.figures.style import FAINT, INK, UTILISATION
from topologies.fabric.fabric import Fabric
from topologies.fabric.ports import links_in_grain

Floats = npt.NDArray[np.float64]

_WIDTH = 6.2  # inches of a panel
_APART = 0.006  # offset of a line from the middle of its link, as a share of the picture's width
_FULL = 1.001  # utilisation above which a link carried more than its first rate allows
_THIN, _THICK = 1.0, 5.0  # width of a line in points at a utilisation of 0 and of 1


def picture(name: str, collectives: Sequence[Collective]) -> Picture:
    """Draw the map for a collective in each mode, for the run called `name`; its routers must have coordinates."""
    first = collectives[0]
    placed = positions(first.configuration.fabric)
    across, upward = (max(axis) - min(axis) for axis in zip(*placed.values(), strict=True))
    across, upward = max(across, 0.3 * upward, 1e-6), max(upward, 0.3 * across, 1e-6)
    columns = min(2, len(collectives))
    height = min(1.2, upward / across) * _WIDTH + 0.6
    label = first.configuration.label
    with canvas(_WIDTH * columns + 0.9, -(-len(collectives) // columns) * height + 0.8) as figure:
        grid = panels(figure, len(collectives), columns=columns)
        for axes, one in zip(grid, collectives, strict=True):
            _draw(axes, one, placed, across)
        colour_bar(
            figure, grid, ScalarMappable(Normalize(0, 1), UTILISATION), "utilisation of a WAN link, one direction"
        )
        heading(figure, f"{first.configuration.title}: the WAN under {first.words}")
        changes = first.configuration.conditions.every_s is not None
        bandwidth = "bandwidth at the collective's start" if changes else "available bandwidth"
        above = sum(share > _FULL for one in collectives for share in utilisation(one).values())
        more = f" Directions above 1, drawn as 1 (their rates rose later): {above}." if above else ""
        explain(
            figure,
            f"Colour and width: utilisation, the bits sent over the link / ({bandwidth} x completion time).\n"
            "Arrows: paths in use; each direction is drawn on its right-hand side. Squares: nodes with sites. "
            f"Dots: transit nodes.{more}{down_note(collectives)}{failing_note(collectives)}",
        )
    caption = f"Map of the WAN under {first.words}, of {label}: utilisation and the paths in use."
    return Picture(name=f"{name}-map", caption=caption, figure=figure, data=_data(collectives))


def positions(fabric: Fabric) -> dict[str, tuple[float, float]]:
    """Return the map coordinates of every router that the fabric has; longitude is scaled so that both axes are in
    degrees of latitude."""
    declared = zip(fabric.spec.wan.routers, fabric.spec.wan.places, strict=True)
    places = {name: place for name, place in declared if name in fabric.wan.routers}
    middle = np.mean([latitude for _, latitude in places.values()])
    shrink = math.cos(math.radians(float(middle)))
    return {name: (longitude * shrink, latitude) for name, (longitude, latitude) in places.items()}


def utilisation(one: Collective) -> Mapping[int, float]:
    """Return the utilisation of each WAN link, by index: the bits sent over it / (its rate x the completion time).

    The rate is that at the collective's start; a link that is down then has the utilisation 0. Of messages on a path
    that loses a link, what is sent until then counts: nobody knows which links they took instead.
    """
    bits: dict[int, float] = defaultdict(float)
    for timed in one.transfers:
        links_of = one.flows[timed.flow].links
        until_s = min((one.failing[link] for link in links_of if link in one.failing), default=math.inf)
        share = 1.0
        if timed.end_s > until_s:
            share = max(0.0, until_s - timed.leaves_s) / (timed.end_s - timed.leaves_s)
        for link in links_of:
            bits[link] += 8 * timed.size * share
    links = [link.index for link in links_in_grain(one.configuration.fabric).all if link.kind == "wan"]
    possible = {link: float(one.rates_bps[link]) * one.completion_s for link in links}
    return {link: bits[link] / possible[link] if possible[link] else 0.0 for link in links}


def _draw(axes: Axes, one: Collective, placed: Mapping[str, tuple[float, float]], across: float) -> None:
    fabric, used = one.configuration.fabric, utilisation(one)
    lines, widths, colours, failing, down = [], [], [], [], []
    for link in links_in_grain(fabric).all:
        if link.src not in placed or link.dst not in placed:
            continue  # a link within a site, or between a border router and its node, has no length on the map
        (x, y), (to_x, to_y) = placed[link.src], placed[link.dst]
        length = math.hypot(to_x - x, to_y - y) or 1.0
        offset = np.array([to_y - y, x - to_x]) / length * _APART * across * link.number
        share = min(used[link.index], 1.0)
        line = np.array([(x, y), (to_x, to_y)]) + offset
        lines.append(line)
        widths.append(_THIN + (_THICK - _THIN) * share if share else 0.6)
        colours.append(UTILISATION(share) if share else FAINT)
        failing += [line] * (link.index in one.failing)
        down += [line] * (link.index in one.down)
        if share:
            tail, tip = (tuple(line[0] + part * (line[1] - line[0])) for part in (0.45, 0.6))
            axes.add_patch(
                FancyArrowPatch(tail, tip, arrowstyle="-|>", mutation_scale=8 + widths[-1], color=colours[-1], zorder=3)
            )
    axes.add_collection(LineCollection(lines, linewidths=widths, colors=colours, zorder=2))
    axes.add_collection(LineCollection(failing, **FAILING))
    axes.add_collection(LineCollection(down, **DOWN))
    _nodes(axes, fabric, placed, _WIDTH / (1.25 * across))
    axes.set_aspect("equal")
    axes.margins(0.09)
    axes.autoscale_view()
    axes.set_axis_off()
    axes.grid(False)
    axes.set_title(one.title, fontsize=8.5)


def _nodes(axes: Axes, fabric: Fabric, placed: Mapping[str, tuple[float, float]], inches: float) -> None:
    """Draw the nodes, each with its title on the side where it overlaps least; a degree is `inches` long."""
    titles = dict(zip(fabric.spec.wan.routers, fabric.spec.wan.titles or fabric.spec.wan.routers, strict=True))
    sites = sites_at(fabric)
    marks = {name: (inches * x, inches * y, 0.05, 0.05) for name, (x, y) in placed.items()}
    taken: list[tuple[float, ...]] = []
    for name in sorted(placed, key=lambda name: name not in sites):
        is_site = name in sites
        axes.scatter(*placed[name], s=70 if is_site else 16, marker="s" if is_site else "o", color=INK, zorder=4)
        text = titles[name] + (f" (site {', '.join(map(str, sites[name]))})" if is_site else "")
        size, gap = (8, 0.06) if is_site else (6.5, 0.03)
        size = legible_pt(axes.figure.figure, size)
        half = (0.5 * 0.56 * size * len(text) / 72, 0.6 * size / 72)
        sides = [(0, -1), (0, 1), (1, 0), (-1, 0), (1, -1), (-1, -1), (1, 1), (-1, 1)]
        if not is_site:
            sides[:2] = sides[1::-1]
        spots = np.array(marks[name][:2]) + np.array(sides) * (np.array(half) + gap)
        others = [*taken, *(mark for other, mark in marks.items() if other != name)]
        best = min(spots, key=lambda spot: overlap(spot, half, others, ()))
        taken.append((float(best[0]), float(best[1]), *half))
        where = best / inches
        words = axes.text(where[0], where[1], text, ha="center", va="center", fontsize=size, color=INK, zorder=5)
        words.set_path_effects([withStroke(linewidth=2.5, foreground="white")])


def sites_at(fabric: Fabric) -> dict[str, list[int]]:
    """Return the sites whose border routers have a link to each router, by the router's name."""
    site = dict(zip(fabric.border_routers, fabric.br_sites, strict=True))
    sites: dict[str, list[int]] = {}
    for a, b in fabric.wan.links:
        for end, router in ((a, b), (b, a)):
            if end in site and router not in site and site[end] not in sites.setdefault(router, []):
                sites[router].append(site[end])
    return sites


def _data(collectives: Sequence[Collective]) -> str:
    """Return a row for every WAN link in every mode: delay, rate, utilisation, and the flows over it, by their
    nodes."""
    rows = []
    for one in collectives:
        used, flows_of = utilisation(one), defaultdict(list)
        for flow in one.flows:
            for index in flow.links:
                flows_of[index].append(one.via(flow))
        for link in links_in_grain(one.configuration.fabric).all:
            if link.kind == "wan":
                about = {"link": link.index, "src": link.src, "dst": link.far_end}
                about |= {"delay_s": float(one.delays_s[link.index]), "rate_bps": int(one.rates_bps[link.index])}
                about |= {"utilisation": used[link.index], "fails_s": one.failing.get(link.index, "")}
                about |= {"flows": " ".join(dict.fromkeys(flows_of[link.index]))}
                rows.append(one.which | about)
    return csv_text(rows)
