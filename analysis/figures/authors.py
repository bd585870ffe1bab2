"""Sensitivity of the paper authors' result: the gains of their modes with one assumption changed at a time."""

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.authors.simulator import MODES
from analysis.authors.study import VariationResult
from analysis.figures.output import Picture, canvas, csv_text, heading, legend, panels
from analysis.figures.style import FAINT, INK, MODE_STYLES, marker

_GAINS = MODES[1:]
_NOTE = (
    "bars: 95 % intervals; of initial rings of other draws the least and the greatest gain, and the median\n"
    "dotted: the gains in the authors' simulation"
)
_APART = 0.22  # offset between the modes of a row, as a share of the distance between rows


def picture(results: Sequence[VariationResult], *, title: str, name: str) -> Picture:
    """Draw these lines, with a panel for each chunk size."""
    sizes = sorted({result.size_mb for result in results})
    with canvas(2.2 + 3.3 * len(sizes), 5.4) as figure:
        for axes, size in zip(panels(figure, len(sizes), columns=len(sizes), sharey=True), sizes, strict=True):
            _draw(axes, [result for result in results if result.size_mb == size])
            axes.set_title(f'chunks of "{size} MB"')
        heading(figure, title)
        handles = [Line2D([], [], label=MODE_STYLES[mode].label, **marker(mode, measured=False)) for mode in _GAINS]
        legend(figure, handles, _NOTE)
    return Picture(
        name=name,
        caption=f"Gains over base with one thing changed at a time: {title}.",
        figure=figure,
        data=csv_text(_rows(results)),
    )


def _draw(axes: Axes, results: Sequence[VariationResult]) -> None:
    """Draw the gains of each line, from top to bottom; dotted, those of the first, the authors' own simulation."""
    for mode, shift in zip(_GAINS, (-_APART, 0.0, _APART), strict=True):
        look: dict[str, Any] = {"color": MODE_STYLES[mode].colour}
        axes.axvline(100 * results[0].gain[mode].value, linestyle=":", linewidth=1, **look)
        for row, result in enumerate(results):
            gain = result.gain[mode]
            axes.hlines(row + shift, 100 * gain.low, 100 * gain.high, linewidth=1.6, **look)
            axes.plot(100 * gain.value, row + shift, **marker(mode, measured=False))
    axes.axvline(0, color=INK, linewidth=1)
    for row in range(1, len(results)):
        axes.axhline(row - 0.5, color=FAINT, linewidth=0.3)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_yticks(range(len(results)), [result.variation for result in results])
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.set_xlabel("gain over base (%)")


def _rows(results: Sequence[VariationResult]) -> Iterator[dict[str, Any]]:
    for result in results:
        for mode in MODES:
            gain = result.gain[mode]
            yield {
                "size_mb": result.size_mb,
                "variation": result.variation,
                "collectives": result.collectives,
                "mode": mode,
                "total_s": result.total_s[mode],
                "gain": gain.value,
                "low": gain.low,
                "high": gain.high,
            }
