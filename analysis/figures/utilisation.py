"""The compute utilisation of methods of training against the bandwidth between sites, a line for each method."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.lines import Line2D

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, log_ticks
from analysis.figures.style import FAINT, line_style

_HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markersize": 5}
_CROSS: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 6, "markeredgewidth": 1.5}


class Row(NamedTuple):
    """The utilisation of a method, 0 to 1, at a bandwidth in Gbit/s, as found here or as a paper has it; `beside` the
    line, it was measured for a model to scale."""

    method: str
    gbps: float
    utilisation: float
    published: bool = False
    beside: bool = False


def picture(rows: Sequence[Row], least_gbps: Mapping[str, float], *, level: float, title: str) -> Picture:
    """Draw these rows, those of a paper as hollow markers and those beside the lines as crosses, and on a dotted line
    at `level` the least bandwidth (Gbit/s) of each method that reaches it."""
    methods = list(dict.fromkeys(row.method for row in rows))
    looks: dict[str, dict[str, Any]] = {method: line_style(index) for index, method in enumerate(methods)}
    with canvas(7.2, 3.9) as figure:
        axes = figure.subplots()
        if least_gbps:
            axes.axhline(level, color=FAINT, linewidth=0.9, linestyle=":")
        for method, look in looks.items():
            own = sorted((row for row in rows if row.method == method and not row.beside), key=lambda row: row.gbps)
            for published, style in ((False, {"marker": ""}), (True, _HOLLOW)):
                some = [row for row in own if row.published is published]
                shape = {"linestyle": "none"} if len(some) == 1 and not published else style
                axes.plot([row.gbps for row in some], [row.utilisation for row in some], **look | shape)
            for row in (row for row in rows if row.method == method and row.beside):
                axes.plot(row.gbps, row.utilisation, **look | _CROSS)
            if method in least_gbps:
                axes.plot(least_gbps[method], level, **look | {"linestyle": "none", "markersize": 5})
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("bandwidth between two sites (Gbit/s)")
        axes.set_ylabel("compute utilisation")
        heading(figure, title.replace(" us", " µs"))
        notes = [f"markers, numbers: the least bandwidth for {100 * level:g} %"] if least_gbps else []
        notes += ["hollow: the paper's table"] if any(row.published for row in rows) else []
        notes += ["crosses: measured, to scale"] if any(row.beside for row in rows) else []
        legend(
            figure,
            [Line2D([], [], label=_label(method, least_gbps), **look) for method, look in looks.items()],
            "; ".join(notes),
        )
    caption = f"Compute utilisation of methods of training by the bandwidth between two sites: {title}."
    data = csv_text(row._asdict() for row in rows)
    return Picture(name="utilisation", caption=caption, figure=figure, data=data)


def _label(method: str, least_gbps: Mapping[str, float]) -> str:
    return f"{method}: {least_gbps[method]:.3g} Gbit/s" if method in least_gbps else method
