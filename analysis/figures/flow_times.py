"""The distribution of flow completion times over the optimum: by routing, the share of flows that took no longer."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.lines import Line2D

from analysis.figures.cdf import shares
from analysis.figures.output import Picture, canvas, heading, legend, table
from analysis.figures.style import INK

Floats = npt.NDArray[np.float64]

_LOOKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "ecmp": {"color": "#17375E", "linestyle": "-", "linewidth": 1.8},
        "spray": {"color": "#B5472F", "linestyle": (0, (3, 1.5)), "linewidth": 1.8},
    }
)
_MEASURED: Mapping[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 3, "markerfacecolor": "none"}
_OPTIMUM: Mapping[str, Any] = {"color": INK, "linestyle": ":", "linewidth": 1.2}


def picture(ratios: Mapping[str, Floats], measured: Mapping[str, Floats], *, title: str) -> Picture:
    """The figure of flow completion times over the optimum, by routing ("ecmp", "spray"), [draws, flows] each.

    `ratios` are those of the model, `measured` those of the emulation, if any, which are drawn as points.
    """
    drawn = {routing: shares(np.ravel(found)) for routing, found in ratios.items()}
    points = {routing: shares(np.ravel(found)) for routing, found in measured.items()}
    with canvas(5.2, 3.4) as figure:
        axes = figure.subplots()
        for routing, (times, share) in drawn.items():
            axes.plot([times[0], *times, times[-1]], [0, *share, 1], drawstyle="steps-post", **_LOOKS[routing])
        for routing, (times, share) in points.items():
            axes.plot(times, share, color=_LOOKS[routing]["color"], **_MEASURED)
        axes.axvline(1, **_OPTIMUM)
        axes.set_xlim(0, 1.05 * max(1.0, *(times[-1] for times, _ in (*drawn.values(), *points.values()))))
        axes.set_ylim(0, 1.02)
        axes.grid(True, axis="x")
        axes.set_xlabel("flow completion time over the optimum")
        axes.set_ylabel("share of flows")
        heading(figure, title)
        handles = [Line2D([], [], label=routing, **_LOOKS[routing]) for routing in drawn]
        if measured:
            handles.append(Line2D([], [], label="measured", color=INK, **_MEASURED))
        legend(figure, [*handles, Line2D([], [], label="optimum", **_OPTIMUM)])
    data = table(
        {"routing": routing, "engine": engine, "flows": of[routing].size, "time_over_optimum": time, "share": share}
        for engine, of, found in (("model", ratios, drawn), ("emulation", measured, points))
        for routing, (times, shared) in found.items()
        for time, share in zip(times.tolist(), shared.tolist(), strict=True)
    )
    caption = f"Flow completion times by routing: {title}."
    return Picture(name="flow-times", caption=caption, figure=figure, data=data)
