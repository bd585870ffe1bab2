"""How figures look: one colour, hatch, marker, line and label for each mode, everywhere; how quantities are worded.

The colours grow lighter from base to joint in even steps of lightness, so that they can be distinguished in grey and
with any kind of colour vision, and each mode has a hatch and a marker besides. The emulation is drawn filled and the
model open, or as a line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex, to_rgb


@dataclass(frozen=True, kw_only=True)
class ModeStyle:
    """A mode's style in figures, in matplotlib's terms; `label` is its name in legends.

    Lines of two modes often lie on each other: the one drawn first is wider, and is seen through the other's gaps.
    """

    label: str
    colour: str
    hatch: str
    marker: str
    line: Any
    width: float


_GAPS = (0, (3, 1.5))

_BUILT_IN: Mapping[str, ModeStyle] = MappingProxyType(
    {
        "base": ModeStyle(label="base (both fixed)", colour="#17375E", hatch="", marker="o", line="-", width=2.8),
        "ccl": ModeStyle(label="ccl (re-embedded)", colour="#B5472F", hatch="///", marker="s", line=_GAPS, width=1.8),
        "wan": ModeStyle(label="wan (paths re-chosen)", colour="#5BA4CF", hatch="---", marker="^", line="-", width=2.8),
        "joint": ModeStyle(label="joint (both)", colour="#F5D04C", hatch="xxx", marker="D", line=_GAPS, width=1.8),
    }
)

_CYCLE = tuple(zip(
    ("#4C8C4A", "#8E5EA2", "#D98BB3", "#7A6A53", "#2F9C95", "#C9A66B", "#6B7FD7", "#A3B565"),
    ("...", "\\\\\\", "+++", "ooo", "|||", "**", "//..", "xx.."),
    ("v", "P", "X", "<", ">", "p", "h", "*"),
    strict=True,
))  # fmt: skip

MODE_STYLES: dict[str, ModeStyle] = dict(_BUILT_IN)
"""The style of every mode of the run that is drawn, in the order in which modes are drawn (`name_modes`)."""


def name_modes(names: Iterable[str]) -> None:
    """Give policies that are not built in a style each, of a cycle, in this order; those of another run lose theirs."""
    others = [name for name in dict.fromkeys(names) if name not in _BUILT_IN]
    MODE_STYLES.clear()
    MODE_STYLES.update(_BUILT_IN)
    for index, name in enumerate(others):
        colour, hatch, marker = _CYCLE[index % len(_CYCLE)]
        line = ("-", _GAPS, (0, (1, 1)))[index // len(_CYCLE) % 3]
        MODE_STYLES[name] = ModeStyle(label=name, colour=colour, hatch=hatch, marker=marker, line=line, width=2.0)


INK, FAINT = "#222222", "#8A8A8A"
"""What is written and outlined, and what stands back."""

BANDWIDTH: Colormap = LinearSegmentedColormap.from_list("bandwidth", ["#3B0F70", "#A8327D", "#F1605D", "#FDBF6F"])
"""Available bandwidth: dark is slow, where time is lost; lightness alone gives the order."""

WAN_BANDWIDTH: Colormap = LinearSegmentedColormap.from_list("wan", ["#00241F", "#00695C", "#26A69A", "#80CBC4"])
"""Available bandwidth of a WAN link, in another hue and on a scale of its own: dark is slow."""

UTILISATION: Colormap = LinearSegmentedColormap.from_list("utilisation", ["#8FBBD9", "#4C78A8", "#B5472F", "#5A0F1E"])
"""How much of a link is used: light is little, dark is all of it."""

_BLOCKS: Colormap = LinearSegmentedColormap.from_list("blocks", ["#1E2A4A", "#3E7C8C", "#9CC3A5", "#EFE9C8"])
_NO_BLOCK = "#7FA3B5"

CRITICAL, SENDING, DELAY = "#C2185B", "#C2185B", "#F1A7C3"
"""The outline of what is on the critical path, and the two parts of its seconds."""

SETTINGS: Mapping[Any, Any] = MappingProxyType(
    {
        # DejaVu Sans comes with matplotlib, so that a figure is laid out the same on every machine; a browser without
        # it takes Verdana, which is as wide.
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
        "font.size": 9,
        "text.parse_math": False,  # what comes from a file is words, whatever signs are in it
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
        "svg.hashsalt": "longhaul",  # element ids from the content alone: the same figure is the same file
        "svg.fonttype": "none",
    }
)
"""matplotlib's settings for every figure."""


def block_colour(block: int, ranks: int) -> str:
    """The shade of a rank's block, of that many ranks: darker to lighter in rank order; -1 is what has no block."""
    return _NO_BLOCK if block < 0 else to_hex(_BLOCKS(block / max(1, ranks - 1)))


def paler(colour: str) -> str:
    """A colour mixed with white: what the model says beside what was measured."""
    red, green, blue = to_rgb(colour)
    return to_hex((1 - 0.4 * (1 - red), 1 - 0.4 * (1 - green), 1 - 0.4 * (1 - blue)))


def marker(mode: str, *, measured: bool) -> dict[str, Any]:
    """A mode's marker as matplotlib's plot takes it: filled for what was measured, open for what was predicted."""
    style = MODE_STYLES[mode]
    look = {"color": style.colour, "marker": style.marker, "markersize": 4.5, "linestyle": "none"}
    edge = {"markeredgecolor": INK if measured else style.colour, "markeredgewidth": 0.6 if measured else 1.1}
    return look | edge | {"markerfacecolor": style.colour if measured else "white"}


def line(mode: str) -> dict[str, Any]:
    """A mode's line as matplotlib's plot takes it."""
    style = MODE_STYLES[mode]
    return {"color": style.colour, "linestyle": style.line, "linewidth": style.width * 0.8}


_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def time_unit(longest_s: float) -> tuple[float, str]:
    """The unit in which times up to this one read best: how many seconds it is, and its name."""
    return next((unit for unit in _TIMES if longest_s >= unit[0]), _TIMES[-1])
