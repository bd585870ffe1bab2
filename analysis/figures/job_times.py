"""The completion times of the jobs in the rounds of a run: a panel for each job, with measured and predicted bars by
mode.

A bar is the mean over the rounds; its whisker spans the 5th to the 95th percentile.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from analysis.figures.output import Picture, canvas, csv_text, heading, legend, panels
from analysis.figures.run_points import Configuration
from analysis.figures.style import INK, MODE_STYLES, paler, time_unit
from analysis.results.reader import Run


class Bar(NamedTuple):
    """The mean and the percentiles (s) of one job's times in one mode, measured or predicted, over `rounds` rounds."""

    job: str
    mode: str
    measured: bool
    rounds: int
    mean_s: float
    low_s: float
    high_s: float


def bars_of(run: Run, setting: int) -> list[Bar]:
    """Return the bars of a configuration: measured and predicted for the measured rounds, or predicted if none were."""
    rows = run.jobs[run.jobs["setting"] == setting]
    is_measured = rows["engine"] == "emulation"
    rows = rows[is_measured] if is_measured.any() else rows
    return [bar for (job, mode), own in rows.groupby(["job", "mode"], sort=False) for bar in _bars(job, mode, own)]


def _bars(job: str, mode: str, rows: pd.DataFrame) -> Iterator[Bar]:
    is_measured = rows["engine"].iloc[0] == "emulation"
    for column, measured in (("completion_s", True), ("predicted_s", False)):
        if is_measured or not measured:
            low_s, high_s = rows[column].quantile([0.05, 0.95])
            yield Bar(job, mode, measured, len(rows), float(rows[column].mean()), float(low_s), float(high_s))


def picture(name: str, run: Run, configuration: Configuration) -> Picture | None:
    """Draw the jobs of a configuration of the run called `name`; None if it has no jobs."""
    bars = bars_of(run, configuration.index)
    if not bars:
        return None
    jobs, modes = (list(dict.fromkeys(getattr(bar, field) for bar in bars)) for field in ("job", "mode"))
    modes.sort(key=[*MODE_STYLES].index)
    columns = min(3, len(jobs))
    unit_s, unit = time_unit(max(bar.mean_s for bar in bars))
    with canvas(max(5.2, 3.0 * columns), 2.6 * -(-len(jobs) // columns) + 0.7) as figure:
        for axes, job in zip(panels(figure, len(jobs), columns=columns), jobs, strict=True):
            _draw(axes, [bar for bar in bars if bar.job == job], modes, unit_s)
            axes.set_title(job)
            axes.set_ylabel(f"completion time ({unit})")
        heading(figure, configuration.title)
        look: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6}
        sides = [("predicted", "#666666")]
        if any(bar.measured for bar in bars):
            sides = [("left: measured", "#666666"), ("right: predicted", paler("#666666"))]
        handles = [Patch(facecolor=face, label=text, **look) for text, face in sides]
        rounds = max(bar.rounds for bar in bars)
        legend(figure, handles, "mean over the rounds; whiskers: 5th to 95th percentile" if rounds > 1 else "one round")
    about = configuration.label if len(modes) > 1 else f"{configuration.label}, mode {modes[0]}"
    suffix = f"-{configuration.index}" if len(run.settings) > 1 else ""
    return Picture(
        name=f"{name}{suffix}-jobs",
        caption=f"Completion time of each job{' by mode' * (len(modes) > 1)}, counted from its start: {about}.",
        figure=figure,
        data=csv_text({"setting": configuration.index} | bar._asdict() for bar in bars),
    )


def _draw(axes: Axes, bars: Sequence[Bar], modes: Sequence[str], unit_s: float) -> None:
    sides = 1 + any(bar.measured for bar in bars)
    for bar in bars:
        style, side = MODE_STYLES[bar.mode], 0 if bar.measured or sides == 1 else 1
        x = modes.index(bar.mode) + (side - (sides - 1) / 2) * 0.8 / sides
        face = style.colour if side == 0 else paler(style.colour)
        look: dict[str, Any] = {"facecolor": face, "hatch": style.hatch, "edgecolor": INK, "linewidth": 0.6}
        axes.bar(x, bar.mean_s / unit_s, 0.8 / sides, **look)
        ends = [[max(0.0, bar.mean_s - bar.low_s) / unit_s], [max(0.0, bar.high_s - bar.mean_s) / unit_s]]
        axes.errorbar(x, bar.mean_s / unit_s, yerr=ends, fmt="none", ecolor=INK, elinewidth=0.8, capsize=1.8)
    axes.set_xticks(range(len(modes)), modes)
    axes.set_ylim(bottom=0)
