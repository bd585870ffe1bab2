"""The distribution of flow completion times divided by the optimum, for each routing."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.lines import Line2D

from analysis.figures.cdf import shares
from analysis.figures.output import Picture, canvas, csv_text, heading, legend
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
    """Draw flow completion times / optimum by routing ("ecmp", "spray"), [draws, flows] each.

    `ratios` are the model's, drawn as lines; `measured` the emulation's, if any, drawn as points.
    """
    lines = {routing: shares(np.ravel(values)) for routing, values in ratios.items()}
    points = {routing: shares(np.ravel(values)) for routing, values in measured.items()}
    with canvas(5.2, 3.4) as figure:
        axes = figure.subplots()
        for routing, (times, share) in lines.items():
            axes.plot([times[0], *times, times[-1]], [0, *share, 1], drawstyle="steps-post", **_LOOKS[routing])
        for routing, (times, share) in points.items():
            axes.plot(times, share, color=_LOOKS[routing]["color"], **_MEASURED)
        axes.axvline(1, **_OPTIMUM)
        axes.set_xlim(0, 1.05 * max(1.0, *(times[-1] for times, _ in (*lines.values(), *points.values()))))
        axes.set_ylim(0, 1.02)
        axes.grid(True, axis="x")
        axes.set_xlabel("flow completion time / optimum")
        axes.set_ylabel("share of flows")
        heading(figure, title)
        handles = [Line2D([], [], label=routing, **_LOOKS[routing]) for routing in lines]
        if measured:
            handles.append(Line2D([], [], label="measured", color=INK, **_MEASURED))
        legend(figure, [*handles, Line2D([], [], label="optimum", **_OPTIMUM)])
    data = csv_text(
        {"routing": routing, "engine": engine, "flows": flows[routing].size, "time_over_optimum": time, "share": share}
        for engine, flows, curves in (("model", ratios, lines), ("emulation", measured, points))
        for routing, (times, below) in curves.items()
        for time, share in zip(times.tolist(), below.tolist(), strict=True)
    )
    caption = f"Flow completion times by routing: {title}."
    return Picture(name="flow-times", caption=caption, figure=figure, data=data)
