"""The faults of a run: for each, the time until it was detected and the time until the run had recovered from it.

Times are those of the experiment's clock; in virtual time that is the clock of the emulated network.
"""

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.figures.output import Picture, canvas, csv_text
from analysis.figures.style import FAINT, INK, MODE_STYLES
from analysis.results.reader import Run
from topologies.units import format_delay

_MOST = 40  # faults that are drawn; the data file has all of them
_MIN_S = 1e-6  # shorter times are drawn here


def picture(name: str, run: Run) -> Picture:
    """Draw the faults of the run called `name`, which must have some."""
    rows = run.faults.sort_values(["setting", "at_collective", "fault", "mode"])
    shown = rows.head(_MOST)
    with canvas(8.4, 1.5 + 0.26 * len(shown)) as figure:
        axes = figure.subplots()
        for y, row in enumerate(shown.itertuples(index=False)):
            style = MODE_STYLES[row.mode]
            ends = [max(_MIN_S, time) for time in (row.detected_s, row.recovered_s) if not math.isnan(time)]
            axes.plot(ends, [y] * len(ends), color=FAINT, linewidth=1.2, zorder=1)
            for time, filled in ((row.detected_s, False), (row.recovered_s, True)):
                if not math.isnan(time):
                    face = style.colour if filled else "white"
                    size = 5 if filled else 8  # so that the open marker is seen around a filled one at the same place
                    axes.plot(max(_MIN_S, time), y, style.marker, color=face, markeredgecolor=INK, markersize=size)
            if not ends:
                axes.plot(_MIN_S, y, "", color=FAINT)
                axes.annotate(row.outcome.partition(":")[0], (_MIN_S, y), va="center", color=FAINT, fontsize=7.5)
        labels = [f"{row.what}, {row.mode}, at {row.at_collective}" for row in shown.itertuples(index=False)]
        axes.set_yticks(range(len(shown)), labels, fontsize=7.5)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xscale("log")
        _label_decades(axes)
        axes.grid(True, axis="x")
        axes.set_xlabel("time since the fault: detected (open), recovered (filled)")
        lost, again = int(rows.collectives_lost.sum()), int(rows.bytes_again.sum())
        more = f"; the first {len(shown)} are shown" if len(rows) > len(shown) else ""
        figure.suptitle(
            f"{len(rows)} faults: {lost} collectives lost, {again:,} bytes retransmitted{more}", fontsize=8.5
        )
        return Picture(
            name=f"{name}-faults",
            caption="Time from each fault to its detection and to the recovery from it.",
            figure=figure,
            data=csv_text(rows.to_dict("records")),
        )


def _label_decades(axes: Axes) -> None:
    """Make the logarithmic x axis end at powers of ten and label them with units: 100 µs, 1 ms, 10 ms and so on."""
    least_s, most_s = axes.get_xlim()
    axes.set_xlim(10.0 ** math.floor(math.log10(least_s)), 10.0 ** math.ceil(math.log10(most_s)))
    axes.xaxis.set_major_formatter(FuncFormatter(_tick_label))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _tick_label(time_s: float, _index: int | None = None) -> str:
    return format_delay(float(f"{time_s:.3g}")).replace("us", "µs")
