"""A run's faults as a figure: how long after each it was detected, and how long until the run had recovered from it.

The times are of the clock that the experiment lives under, in virtual time the network's.
"""

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.figures.output import Picture, canvas, table
from analysis.figures.style import FAINT, INK, MODE_STYLES
from analysis.results.reader import Run
from topologies.units import format_delay

_MOST = 40  # faults in one figure; the table has them all
_LEAST_S = 1e-6  # what is detected sooner stands here


def picture(name: str, run: Run) -> Picture:
    """The figure of a run with faults, `name` being the run's."""
    rows = run.faults.sort_values(["setting", "at_collective", "fault", "mode"])
    shown = rows.head(_MOST)
    with canvas(8.4, 1.5 + 0.26 * len(shown)) as figure:
        axes = figure.subplots()
        for place, row in enumerate(shown.itertuples(index=False)):
            style = MODE_STYLES[row.mode]
            ends = [max(_LEAST_S, time) for time in (row.detected_s, row.recovered_s) if not math.isnan(time)]
            axes.plot(ends, [place] * len(ends), color=FAINT, linewidth=1.2, zorder=1)
            for time, filled in ((row.detected_s, False), (row.recovered_s, True)):
                if not math.isnan(time):
                    face = style.colour if filled else "white"
                    size = 5 if filled else 8  # still seen around the other where recovery takes next to no time
                    axes.plot(
                        max(_LEAST_S, time), place, style.marker, color=face, markeredgecolor=INK, markersize=size
                    )
            if not ends:
                axes.plot(_LEAST_S, place, "", color=FAINT)
                axes.annotate(row.outcome.partition(":")[0], (_LEAST_S, place), va="center", color=FAINT, fontsize=7.5)
        labels = [f"{row.what}, {row.mode}, at {row.at_collective}" for row in shown.itertuples(index=False)]
        axes.set_yticks(range(len(shown)), labels, fontsize=7.5)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xscale("log")
        _write_out_decades(axes)
        axes.grid(True, axis="x")
        axes.set_xlabel("time since the fault: detected (open), recovered (filled)")
        lost, again = int(rows.collectives_lost.sum()), int(rows.bytes_again.sum())
        more = f"; the first {len(shown)} are drawn" if len(rows) > len(shown) else ""
        figure.suptitle(
            f"{len(rows)} faults: {lost} collectives lost, {again:,} bytes retransmitted{more}", fontsize=8.5
        )
        return Picture(
            name=f"{name}-faults",
            caption="How long after each fault it was detected, and recovered from",
            figure=figure,
            data=table(rows.to_dict("records")),
        )


def _write_out_decades(axes: Axes) -> None:
    """Have the logarithmic x axis end at powers of ten, with those written out: 100 µs, 1 ms, 10 ms and so on."""
    least_s, most_s = axes.get_xlim()
    axes.set_xlim(10.0 ** math.floor(math.log10(least_s)), 10.0 ** math.ceil(math.log10(most_s)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda time_s, _: _in_words(time_s)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _in_words(time_s: float) -> str:
    return format_delay(float(f"{time_s:.3g}")).replace("us", "µs")
