"""How figures look: one colour, hatch, marker and label for each mode, everywhere.

The colours are Okabe and Ito's, told apart with any kind of colour vision; they grow lighter from base to joint, and
each mode has a hatch and a marker besides, so that a figure reads as well in grey.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModeStyle:
    """A mode's face in figures, in matplotlib's terms; `label` is its name in legends."""

    label: str
    colour: str
    hatch: str
    marker: str


MODE_STYLES: Mapping[str, ModeStyle] = MappingProxyType(
    {
        "base": ModeStyle(label="base (both fixed)", colour="#0072B2", hatch="", marker="o"),
        "ccl": ModeStyle(label="ccl (ring re-embedded)", colour="#D55E00", hatch="///", marker="s"),
        "wan": ModeStyle(label="wan (paths re-chosen)", colour="#56B4E9", hatch="...", marker="^"),
        "joint": ModeStyle(label="joint (both)", colour="#F0E442", hatch="xxx", marker="D"),
    }
)

SETTINGS: Mapping[Any, Any] = MappingProxyType(
    {
        "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure is the same on every machine
        "font.size": 9,
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
