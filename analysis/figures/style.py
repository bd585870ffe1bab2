"""The style of all figures: the colour, hatch, marker, line and label of each mode, colour maps and units of time.

The colours of the built-in modes get darker from base to joint in even steps of lightness, so that what does most is
seen most, and they can be told apart in grey and with any kind of colour vision; each mode also has a hatch and a
marker of its own. Measured points are filled, predicted ones open or lines.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType
from typing import Any

from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex, to_rgb


@dataclass(frozen=True, kw_only=True)
class ModeStyle:
    """The style in figures of a mode, or of a value that is compared instead, as Matplotlib takes it.

    `label` is its name in legends. Lines of modes often coincide. The one drawn first is wider, so that it is seen on
    both sides of the others, and through the gaps of dashed ones.
    """

    label: str
    colour: str
    hatch: str
    marker: str
    line: Any
    width: float


_GAPS = (0, (3, 1.5))
_DASHES = ("-", _GAPS, (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (8, 3)))
_WIDER = 1.8  # ratio of the widths of lines once all colours and dashes are used


def _style(label: str, **look: Any) -> ModeStyle:
    return ModeStyle(label=label, **look)


_BUILT_IN: Mapping[str, ModeStyle] = MappingProxyType(
    {
        "base": _style("base (nothing re-chosen)", colour="#B4BAC4", hatch="", marker="o", line="-", width=4.2),
        "ccl": _style("ccl (placement re-chosen)", colour="#CB7C42", hatch="///", marker="s", line=_GAPS, width=3.0),
        "wan": _style("wan (paths re-chosen)", colour="#2A64A0", hatch="---", marker="^", line="-", width=2.2),
        "joint": _style("joint (both re-chosen)", colour="#371C58", hatch="xxx", marker="D", line=_GAPS, width=1.5),
    }
)

_PATHS = {"ecmp": "hashed", "spray": "sprayed", "te": "in tunnels"}
"""How a routing leads the flows of base, if not each over its one path."""

_LINES = tuple(zip(
    ("#17375E", "#B5472F", "#5BA4CF", "#8A6D00", "#5D2E8C", "#2E7D32", "#888888",
     "#111111", "#E08A3C", "#00A08A", "#D977A8", "#7CB342"),
    "os^DvPX<>ph*",
    strict=True,
))  # fmt: skip

ALGORITHMS = (
    *("ring", "halving-doubling", "bruck", "direct", "hierarchical", "hierarchical-direct"),
    *("chain", "tree", "double-tree"),
)
"""The algorithms of collectives, in the order of their looks."""

_CYCLE = tuple(zip(
    ("#4C8C4A", "#8E5EA2", "#D98BB3", "#7A6A53", "#2F9C95", "#C9A66B", "#6B7FD7", "#A3B565"),
    ("...", "\\\\\\", "+++", "ooo", "|||", "**", "//..", "xx.."),
    ("v", "P", "X", "<", ">", "p", "h", "*"),
    strict=True,
))  # fmt: skip

MODE_STYLES: dict[str, ModeStyle] = dict(_BUILT_IN)
"""The style of every mode of the current run, in drawing order; `name_modes` sets it."""


def place_of(mode: str) -> int:
    """Return the place of a mode in the order that all figures and tables have: as the run's modes are given."""
    return [*MODE_STYLES].index(mode)


def line_style(index: int) -> dict[str, Any]:
    """Return the colour, marker and dashes of the line with this index in a figure whose lines are not modes. Once all
    colours are used, each comes back with another marker and other dashes, and then, for lines without markers, at
    another width."""
    times, of_colour = divmod(index, len(_LINES))
    wider, of_dashes = divmod(times, len(_DASHES))
    marker = _LINES[(index + times) % len(_LINES)][1]
    look = {"color": _LINES[of_colour][0], "marker": marker, "linestyle": _DASHES[of_dashes]}
    return look | ({"linewidth": 1.5 * _WIDER**wider} if wider else {})


def dashed_style(index: int) -> dict[str, Any]:
    """Return the look of the line with this index in a figure of lines without markers: neighbours have other dashes,
    too, so that they can be told apart in grey."""
    look, times = line_style(index), index // len(_LINES)
    return {key: value for key, value in look.items() if key != "marker"} | {
        "linestyle": _DASHES[(index + times) % len(_DASHES)]
    }


def value_styles(names: Collection[str], *, ordered: bool = False) -> dict[str, ModeStyle]:
    """Return a style for each of these values, which are lines or bars of a figure in place of modes.

    An algorithm has the same colour, marker, dashes and hatch in all figures; only its line is wider where it comes
    earlier. Colours are those of a scale from dark to light if the values are `ordered` quantities.
    """
    styles = {}
    for place, (name, index) in enumerate(_places_of(names).items()):
        times, of_colour = divmod(index, len(_LINES))
        colour, hatch = _LINES[of_colour][0], _CYCLE[index % len(_CYCLE)][1]
        marker = _LINES[(index + times) % len(_LINES)][1]
        share = place / max(1, len(names) - 1)
        colour = to_hex(BANDWIDTH(share)) if ordered else colour
        line = _DASHES[(index + times) % len(_DASHES)]  # as in grey colours of neighbours are alike
        width, hatch = 3.6 - 2.1 * share, hatch * (1 + index // len(_CYCLE))
        styles[name] = ModeStyle(label=name, colour=colour, hatch=hatch, marker=marker, line=line, width=width)
    return styles


def _places_of(names: Collection[str]) -> dict[str, int]:
    """Return the place of each name's look among all looks: that of an algorithm, or the next one that no algorithm of
    these names has."""
    known = {name: ALGORITHMS.index(name) for name in names if name in ALGORITHMS}
    free = (place for place in count() if place not in known.values())
    return {name: known[name] if name in known else next(free) for name in names}


def name_modes(names: Iterable[str], routings: Collection[str] | None = None) -> None:
    """Set `MODE_STYLES` for a run: its modes in this order, in which they are given, then the built-in ones that it
    lacks. Policies have looks from a cycle. The label of base tells how the routing of all configurations leads its
    flows, if they have one; without `routings` it stays as it is."""
    given = list(dict.fromkeys(names))
    others = [name for name in given if name not in _BUILT_IN]
    base = MODE_STYLES["base"]
    if routings is not None:
        how = _PATHS.get(next(iter(routings)), "") if len(routings) == 1 else ""
        base = replace(base, label=_BUILT_IN["base"].label.replace(")", f", paths {how})" if how else ")"))
    MODE_STYLES.clear()
    MODE_STYLES.update({**_BUILT_IN, "base": base})
    for index, name in enumerate(others):
        colour, hatch, marker = _CYCLE[index % len(_CYCLE)]
        times = index // len(_CYCLE)
        marker, hatch = _CYCLE[(index + times) % len(_CYCLE)][2], hatch * (1 + times)
        # In grey, colours tell nothing: the first have dashes that no built-in mode has, the others are thin.
        line, width = _DASHES[(index + 2 + times) % len(_DASHES)], 2.0 * _WIDER ** (times // len(_DASHES))
        width /= _WIDER if index % len(_CYCLE) >= len(_DASHES) - 2 else 1.0
        MODE_STYLES[name] = ModeStyle(label=name, colour=colour, hatch=hatch, marker=marker, line=line, width=width)
    # The first of the lines has to be the widest, whichever modes come first; of many, widths tell colours apart.
    is_few = len(given) <= len(_BUILT_IN) + len(_CYCLE)
    widths = sorted((MODE_STYLES[name].width for name in given), key=lambda width: -width if is_few else 0)
    ordered = {name: replace(MODE_STYLES[name], width=width) for name, width in zip(given, widths, strict=True)}
    lacking = {name: style for name, style in MODE_STYLES.items() if name not in ordered}
    MODE_STYLES.clear()
    MODE_STYLES.update({**ordered, **lacking})


INK, FAINT = "#222222", "#8A8A8A"
"""The colours of text and outlines, and of less important parts."""

BANDWIDTH: Colormap = LinearSegmentedColormap.from_list("bandwidth", ["#3B0F70", "#A8327D", "#E4564F", "#E8973A"])
"""Available bandwidth of a link within a site: dark is slow; lightness alone gives the order. The lightest has a
contrast of more than 2 to 1 with white."""

WAN_BANDWIDTH: Colormap = LinearSegmentedColormap.from_list("wan", ["#00241F", "#00695C", "#1F9488", "#5FB3A9"])
"""Available bandwidth of a WAN link, with another hue and a scale of its own: dark is slow."""

UTILISATION: Colormap = LinearSegmentedColormap.from_list("utilisation", ["#8FBBD9", "#4C78A8", "#B5472F", "#5A0F1E"])
"""Utilisation of a link, from light (0) to dark (1)."""

_BLOCKS: Colormap = LinearSegmentedColormap.from_list("blocks", ["#1E2A4A", "#2F6F86", "#6FA88E", "#CFC78A"])
_NO_BLOCK = "#7FA3B5"

CRITICAL, SENDING, DELAY = "#C2185B", "#C2185B", "#F1A7C3"
"""The colours of the critical path's outline and of its two parts, sending and propagation delay."""

SETTINGS: Mapping[Any, Any] = MappingProxyType(
    {
        # Matplotlib ships DejaVu Sans, so a figure has the same layout on every machine; a browser without it takes
        # Verdana, which is equally wide.
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
        "font.size": 9,
        "text.parse_math": False,  # names from files are plain text, even with a $ in them
        "axes.edgecolor": INK,
        "axes.titlesize": "medium",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": "#DDDDDD",
        "hatch.linewidth": 0.6,
        "legend.frameon": False,
        "svg.hashsalt": "longhaul",  # element ids depend on the content alone: the same figure gives the same file
        "svg.fonttype": "none",
    }
)
"""Matplotlib's settings for every figure."""


def block_colour(block: int, ranks: int) -> str:
    """Return the shade of a rank's block, from dark to light in rank order; -1 is a transfer without a block."""
    return _NO_BLOCK if block < 0 else to_hex(_BLOCKS(block / max(1, ranks - 1)))


def paler(colour: str) -> str:
    """Return a colour mixed with white, for predicted bars next to measured ones."""
    red, green, blue = to_rgb(colour)
    return to_hex((1 - 0.4 * (1 - red), 1 - 0.4 * (1 - green), 1 - 0.4 * (1 - blue)))


def darker(colour: str) -> str:
    """Return a colour mixed with black, for the edges of bars that are filled in part."""
    red, green, blue = to_rgb(colour)
    return to_hex((0.55 * red, 0.55 * green, 0.55 * blue))


SIDES = "left: measured; right, paler: predicted"
"""The two bars of a pair, in words: a legend has no colour of its own for what bars of any colour have in common."""


def marker(mode: str | ModeStyle, *, measured: bool) -> dict[str, Any]:
    """Return a mode's marker as arguments of Matplotlib's plot: filled for measured points, open for predicted ones."""
    style = MODE_STYLES[mode] if isinstance(mode, str) else mode
    size = 3.2 + 0.7 * style.width  # as lines, markers that coincide are all seen
    look = {"color": style.colour, "marker": style.marker, "markersize": size, "linestyle": "none"}
    edge = {"markeredgecolor": INK if measured else style.colour, "markeredgewidth": 0.6 if measured else 1.1}
    return look | edge | {"markerfacecolor": style.colour if measured else "white"}


def line(mode: str | ModeStyle) -> dict[str, Any]:
    """Return a mode's line as arguments of Matplotlib's plot."""
    style = MODE_STYLES[mode] if isinstance(mode, str) else mode
    return {"color": style.colour, "linestyle": style.line, "linewidth": style.width * 0.8}


_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the best unit for times up to this one: its length in seconds and its name."""
    return next((unit for unit in _TIMES if longest_s >= unit[0]), _TIMES[-1])


def typical_unit(times_s: Sequence[float]) -> tuple[float, str]:
    """Return the one unit of a figure or a column with several of these times, of different lengths: that of the median
    of them, of which the longest is not 10,000 or more."""
    ordered = sorted(times_s)
    scale, unit = time_unit(ordered[len(ordered) // 2])
    return (scale, unit) if ordered[-1] < 1e4 * scale else time_unit(ordered[-1])
