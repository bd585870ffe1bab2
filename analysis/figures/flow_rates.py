"""The rates of flows over time, a panel for each case and variant, and Jain's index of them below."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.lines import Line2D

from analysis.figures.output import Picture, canvas, csv_text, heading, legend
from analysis.figures.style import FAINT, line_style, time_unit

Floats = npt.NDArray[np.float64]
_WIDTH, _PANEL = 7.2, 1.7  # inches


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The flows of a `case` with a `variant`: the beginning of each bin in s, [bins], the rate of each flow in bit/s,
    [flows, bins], the kind of each flow, and Jain's index in the first bins, in which no flow has ended."""

    case: str
    variant: str
    times_s: Floats
    rates_bps: Floats
    kinds: Sequence[str]
    jain: Floats


def picture(shown: Sequence[Panel], *, fair_bps: float, title: str) -> Picture:
    """Draw the rates, a row of panels for each case and a column for each variant, and in a last row Jain's index of
    each case. `fair_bps` is the rate of a fair share, bit/s."""
    cases, variants = (list(dict.fromkeys(names)) for names in zip(*((o.case, o.variant) for o in shown), strict=True))
    kinds = list(dict.fromkeys(kind for one in shown for kind in one.kinds))
    looks = {kind: {"color": line_style(index)["color"], "linewidth": 0.9} for index, kind in enumerate(kinds)}
    scale, unit = time_unit(max(one.times_s[-1] for one in shown))
    with canvas(_WIDTH, _PANEL * (len(cases) + 1)) as figure:
        grid = figure.subplots(len(cases) + 1, len(variants), squeeze=False, sharex=True)
        for row in (grid[:-1], grid[-1:]):  # panels of one quantity have one scale
            for axes in row.ravel()[1:]:
                axes.sharey(row[0, 0])
        for one in shown:
            column = variants.index(one.variant)
            axes, at = grid[cases.index(one.case), column], one.times_s / scale
            for rates_bps, kind in zip(one.rates_bps, one.kinds, strict=True):
                ended = np.flatnonzero(rates_bps).max(initial=0) + 1
                axes.plot(at[:ended], rates_bps[:ended] / 1e9, **looks[kind])
            axes.axhline(fair_bps / 1e9, color=FAINT, linewidth=0.9, linestyle=":")
            axes.set_title(f"{one.case}, {one.variant}", fontsize="small")
            look = line_style(len(kinds) + cases.index(one.case)) | {"marker": "", "linewidth": 1.1}
            grid[-1, column].plot(at[: one.jain.size], one.jain, **look)
            grid[-1, column].set_xlabel(f"time ({unit})")
        for row in grid[:-1]:
            row[0].set_ylabel("rate (Gbit/s)")
        grid[-1, 0].set_ylabel("Jain's index")
        grid[-1, 0].set_ylim(0, 1.05)
        grid[0, 0].set_ylim(bottom=0)
        handles = [Line2D([], [], label=f"a {kind} flow", **looks[kind]) for kind in kinds]
        for index, case in enumerate(cases):
            look = line_style(len(kinds) + index) | {"marker": ""}
            handles.append(Line2D([], [], label=f"Jain's index, {case}", **look))
        heading(figure, title)
        legend(figure, handles, "dotted: a fair share; Jain's index until the first flow has ended")
    rows = [
        {
            "case": one.case,
            "variant": one.variant,
            "flow": flow,
            "kind": kind,
            "time_s": float(time_s),
            "rate_bps": float(one.rates_bps[flow, at]),
            "jain": float(one.jain[at]) if at < one.jain.size else "",
        }
        for one in shown
        for flow, kind in enumerate(one.kinds)
        for at, time_s in enumerate(one.times_s)
    ]
    caption = f"Rates of flows over time, and Jain's index of them: {title}."
    return Picture(name="flow-rates", caption=caption, figure=figure, data=csv_text(rows))
