"""The calendar of transfers: a row for each, what was promised to it over time and what was delivered.

What is promised is filled, a shade for each of its tunnels. What was delivered is a line for each mode: the bytes that
arrived in a part of the time. It is behind by the delay and, as a message counts when it has arrived whole, by half of
one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.collective import Collective
from analysis.figures.output import Picture, canvas, legend, table
from analysis.figures.style import CRITICAL, FAINT, INK, MODE_STYLES, time_unit

_PARTS = 60  # of the time in which what arrives is added up
_SHADES = ("#8FBBD9", "#C7DDEC", "#A9C9A4", "#D7E6D3", "#E3C9A0", "#F1E4CE")

Floats = npt.NDArray[np.float64]


def picture(name: str, collectives: Sequence[Collective]) -> Picture:
    """The calendar of a round in its modes, `name` being the run's; its configuration has transfers."""
    configuration, number = collectives[0].configuration, collectives[0].number
    found = configuration.admission
    last_s = max(
        *(end_s for one in found for end_s in (one["due_s"], *one["edges_s"])),
        *(move.end_s for one in collectives for move in one.moves),
    )
    unit_s, unit = time_unit(last_s)
    edges_s = np.linspace(0.0, last_s, _PARTS + 1)
    with canvas(8.0, 0.9 + 1.25 * len(found)) as figure:
        every = figure.subplots(len(found), 1, squeeze=False, sharex=True)[:, 0]
        for axes, one in zip(every, found, strict=True):
            _promised(axes, one, unit_s)
            for seen in collectives:
                style = MODE_STYLES[seen.mode]
                bps = _delivered_bps(seen, one, edges_s) / 1e9
                axes.stairs(bps, edges_s / unit_s, color=style.colour, linewidth=1.4, baseline=None)
            is_promised = bool(one["edges_s"][1:])
            axes.set_title(one["sentence"], fontsize=8, loc="left", color=INK if is_promised else FAINT)
            if is_promised:
                axes.axvline(one["due_s"] / unit_s, color=CRITICAL, linestyle="--", linewidth=1.2)
            else:
                axes.set_yticks([])
            axes.set_ylabel("Gbit/s", fontsize=8)
            axes.set_ylim(bottom=0)
        every[-1].set_xlim(0, last_s * 1.02 / unit_s)
        every[-1].set_xlabel(f"time from the round's beginning ({unit})")
        words = "measured" if collectives[0].measured else "predicted"
        handles: list[Any] = [Patch(facecolor=_SHADES[0], label="promised, a shade for each tunnel")]
        handles += [
            Line2D([], [], color=MODE_STYLES[one.mode].colour, label=f"delivered, {one.mode} ({words})")
            for one in collectives
        ]
        handles.append(Line2D([], [], color=CRITICAL, linestyle="--", label="all is due"))
        legend(figure, handles)
        figure.suptitle(f"{configuration.label}: collective {number}", fontsize="medium")
    return Picture(
        name=f"{name}-calendar",
        caption=f"What was promised to each transfer over time and what was delivered: {configuration.label}.",
        figure=figure,
        data=table(_data(found, collectives, edges_s)),
    )


def _promised(axes: Axes, one: Mapping[str, Any], unit_s: float) -> None:
    edges_s, below = np.array(one["edges_s"]), np.zeros(max(0, len(one["edges_s"]) - 1))
    for place, rates_bps in enumerate(one["rates_bps"].values()):
        above = below + np.array(rates_bps) / 1e9
        shade = _SHADES[place % len(_SHADES)]
        axes.stairs(above, edges_s / unit_s, baseline=below, fill=True, color=shade, linewidth=0)
        below = above


def _delivered_bps(seen: Collective, one: Mapping[str, Any], edges_s: Floats) -> Floats:
    """The rate at which a transfer's bytes arrive between these instants, bit/s."""
    first, last = one["transfers"]
    moves = [move for move in seen.moves if first <= move.transfer < last and seen.flows[move.flow].links]
    if not moves:
        return np.zeros(len(edges_s) - 1)
    ends_s, sizes = np.array([move.end_s for move in moves]), np.array([move.size for move in moves])
    arrived, _ = np.histogram(ends_s, edges_s, weights=8.0 * sizes)
    return np.asarray(arrived / np.diff(edges_s), dtype=np.float64)


def _data(
    found: Sequence[Mapping[str, Any]], collectives: Sequence[Collective], edges_s: Floats
) -> Iterator[dict[str, Any]]:
    for one in found:
        about = {"job": one["job"], "outcome": one["outcome"]}
        spans = zip(one["edges_s"][:-1], one["edges_s"][1:], strict=True)
        yield {**about, "what": "due", "mode": "", "from_s": one["start_s"], "to_s": one["due_s"], "bps": math.nan}
        for span, *rates_bps in zip(spans, *one["rates_bps"].values(), strict=False):
            for tunnel, bps in zip(one["rates_bps"], rates_bps, strict=True):
                yield {**about, "what": tunnel, "mode": "", "from_s": span[0], "to_s": span[1], "bps": bps}
        for seen in collectives:
            which = {**about, "what": "delivered", "mode": seen.mode}
            for place, bps in enumerate(_delivered_bps(seen, one, edges_s).tolist()):
                yield {**which, "from_s": edges_s[place], "to_s": edges_s[place + 1], "bps": bps}
