"""The results of the sizing formulas: the largest model by days of training, the times in a training step, and the
differences of all numbers from the document's."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, log_ticks
from analysis.figures.style import FAINT, INK
from analysis.sizing import AGREES, Row

_LOOKS = (("#17375E", "o"), ("#B5472F", "s"), ("#5BA4CF", "^"))
_APART = 0.24  # offset between the models of a row, as a share of the distance between rows


def picture(rows: Sequence[Row], *, title: str) -> Picture:
    """Draw these rows."""
    models = list(dict.fromkeys(row.model for row in rows if row.model))
    looks: dict[str, Mapping[str, Any]] = {
        model: {"color": colour, "marker": shape, "linestyle": "none"}
        for model, (colour, shape) in zip(models, _LOOKS, strict=False)
    }
    known = [row for row in rows if row.difference is not None]
    with canvas(15.0, 6.4) as figure:
        first, left, right = figure.subplots(1, 3, width_ratios=(0.8, 1, 1))
        _trained(first, [row for row in rows if row.what.startswith("parameters trained")])
        _times(left, [row for row in rows if row.unit == "ms" and row.model and row.value is not None], looks)
        _differences(right, known, looks)
        heading(figure, title)
        handles = [Line2D([], [], label=model, **look) for model, look in looks.items()]
        handles += [Line2D([], [], label="no model", **_PLAIN), Line2D([], [], label="the document's", **_DOCUMENT)]
        legend(figure, handles)
    caption = f"Sizing a datacenter for training, beside the document's numbers: {title}."
    return Picture(name="sizing", caption=caption, figure=figure, data=csv_text(_data(rows)))


_PLAIN: Mapping[str, Any] = MappingProxyType({"color": FAINT, "marker": "D", "linestyle": "none"})
_DOCUMENT: Mapping[str, Any] = MappingProxyType(
    {"color": INK, "marker": "|", "markersize": 11, "markeredgewidth": 1.4, "linestyle": "none"}
)


def _trained(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the largest model by the days of training: "parameters trained in 100 days"."""
    for field, look in (("value", {**_PLAIN, "linestyle": "-"}), ("document", {**_DOCUMENT, "marker": "_"})):
        known = [(float(row.what.split()[-2]), getattr(row, field)) for row in rows if getattr(row, field) is not None]
        axes.plot(*zip(*known, strict=True), **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    log_ticks(axes.xaxis)
    log_ticks(axes.yaxis)
    axes.set_xlabel("days of training")
    axes.set_ylabel("parameters (10^12)")
    axes.set_title("the largest model")


def _times(axes: Axes, rows: Sequence[Row], looks: Mapping[str, Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(row.what for row in rows))
    for row in rows:
        y = names.index(row.what) + _APART * (list(looks).index(row.model) - (len(looks) - 1) / 2)
        axes.plot(row.value or 0.0, y, **looks[row.model])
        if row.document is not None:
            axes.plot(row.document, y, **_DOCUMENT)
    axes.set_xscale("log")
    log_ticks(axes.xaxis)
    axes.set_xlabel("ms")
    axes.set_title("a layer in a training step")
    _label_rows(axes, names)


def _differences(axes: Axes, rows: Sequence[Row], looks: Mapping[str, Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(row.what for row in rows))
    axes.axvspan(-100 * AGREES, 100 * AGREES, color="#EEEEEE", linewidth=0)
    for row in rows:
        difference = 100 * (row.difference or 0.0)
        axes.plot(difference, names.index(row.what), markersize=4, **looks.get(row.model, _PLAIN))
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_xlabel("difference from the document's number (%)")
    axes.set_title(f"all numbers; grey: up to {100 * AGREES:g} %")
    _label_rows(axes, names)


def _label_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="both")


def _data(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        numbers = {"value": row.value, "document": row.document, "difference": row.difference}
        written = {name: "" if number is None else number for name, number in numbers.items()}
        yield {"part": row.part, "model": row.model, "what": row.what, "unit": row.unit} | written | {"note": row.note}
