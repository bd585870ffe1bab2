"""The completion times of the jobs in the rounds of a run: a panel for each job, with measured and predicted bars by
mode, or if there is one mode, by the configurations that have this job.

A bar is the mean over the rounds; its whisker spans the 5th to the 95th percentile.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from string import ascii_uppercase
from textwrap import fill, wrap
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.output import ON_WHITE, Picture, canvas, csv_text, heading, legend, panels
from analysis.figures.run_points import Configuration
from analysis.figures.style import INK, MODE_STYLES, SIDES, paler, place_of, time_unit
from analysis.results.reader import Run
from analysis.statistics.jobs_in_words import classes_sentence

_TICK_WIDTH = 14  # characters in a line of a tick's label
_MOST_LINES = 2  # of a tick's label; where one has more, letters stand for them
_TICK, _BESIDE = 1.15, 0.7  # inches of a tick with its label, and of what is beside a panel
_LETTER, _COLUMN = 0.55, 5.6  # inches of a bar with a letter, and of the figure that a column of a paper has room for
_BAR_PT = 6.5  # size of the number on a bar
_ROW_WIDTH, _ROW = 40, 0.17  # characters in a line of the label of a row, and inches of this line
_PAGE = 7.2  # inches of the widest figure, which a page has room for
_ACROSS = 28  # characters of a line of the label of an axis of times


class Bar(NamedTuple):
    """The mean and the percentiles (s) of one job's times in one mode of a configuration, measured or predicted, over
    `rounds` rounds."""

    setting: int
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
    of_mode = rows.groupby(["job", "mode"], sort=False)
    return [bar for (job, mode), own in of_mode for bar in _bars(setting, job, mode, own)]


def _bars(setting: int, job: str, mode: str, rows: pd.DataFrame) -> Iterator[Bar]:
    is_measured = rows["engine"].iloc[0] == "emulation"
    for column, measured in (("completion_s", True), ("predicted_s", False)):
        if is_measured or not measured:
            low_s, high_s = rows[column].quantile([0.05, 0.95])
            yield Bar(setting, job, mode, measured, len(rows), float(rows[column].mean()), float(low_s), float(high_s))


def picture(name: str, run: Run, configuration: Configuration) -> Picture | None:
    """Draw the jobs of a configuration of the run called `name`; None if it has no jobs."""
    bars = bars_of(run, configuration.index)
    modes = sorted({bar.mode for bar in bars}, key=place_of)
    suffix = f"-{configuration.index}" if len(run.settings) > 1 else ""
    about = configuration.label if len(modes) > 1 else f"{configuration.label}, mode {' '.join(modes)}"
    return _picture(
        f"{name}{suffix}-jobs",
        bars,
        title=configuration.title,
        caption=f"{_times(configuration.measures_of_jobs)}{' by mode' * (len(modes) > 1)}: {about}.",
        ticks={(configuration.index, mode): mode for mode in modes},
        measures=configuration.measures_of_jobs,
        amounts=configuration.amounts_of_jobs,
        whole=_rounds(run),
    )


def picture_of_sweep(name: str, run: Run, configurations: Sequence[Configuration], title: str) -> Picture | None:
    """Draw the jobs of configurations with one mode, side by side; None if none of them has jobs."""
    bars = [bar for one in configurations for bar in bars_of(run, one.index)]
    modes = {(bar.setting, bar.mode) for bar in bars}
    ticks = {
        (one.index, mode): ", ".join(one.words(key) for key in one.swept)
        for one in configurations
        for index, mode in sorted(modes)
        if index == one.index
    }
    where = f"{title}, mode {' '.join(sorted({mode for _, mode in modes}))}"
    measures = {job: measure for one in configurations for job, measure in one.measures_of_jobs.items()}
    classes = classes_sentence(
        [(one.values.get("job") or (), one.values.get("class")) for one in configurations], f"{where} {ticks}"
    )
    caption = f"{_times(measures)} by configuration: {where}.{f' {classes}' * bool(classes)}"
    amounts = _amounts(configurations)
    return _picture(
        f"{name}-jobs",
        bars,
        title=where,
        caption=caption,
        ticks=ticks,
        measures=measures,
        amounts=amounts,
        whole=_rounds(run),
        classes=classes,
    )


def _amounts(configurations: Sequence[Configuration]) -> dict[str, str]:
    """Return how many repetitions each job is in all configurations that have it, if that is the same number."""
    found = dict[str, set[str]]()
    for one in configurations:
        for job in one.values.get("job") or ():
            name = str(job["name"])
            found.setdefault(name, set()).add(one.amounts_of_jobs.get(name, ""))
    return {name: words.pop() for name, words in found.items() if len(words) == 1 and words != {""}}


def _times(measures: Mapping[str, str]) -> str:
    return f"Completion time of each job, counted from its start{', or what its axis says,' * bool(measures)}"


def _rounds(run: Run) -> int:
    """Return how many rounds the longest point of a run has."""
    return int(run.jobs["collective"].max()) + 1 if len(run.jobs) else 0


def _picture(
    name: str,
    bars: Sequence[Bar],
    *,
    title: str,
    caption: str,
    ticks: Mapping[tuple[int, str], str],
    measures: Mapping[str, str],
    amounts: Mapping[str, str],
    whole: int,
    classes: str = "",
) -> Picture | None:
    """Draw bars in a panel for each job, at ticks with these labels by configuration and mode; None without bars. A
    point of the run has `whole` rounds. `measures` tell what a job's time is in place of its completion time, and
    `amounts` of how many repetitions it is; `classes` what the classes of jobs are."""
    if not bars:
        return None
    of_job: dict[str, list[Bar]] = {}
    for bar in bars:
        of_job.setdefault(bar.job, []).append(bar)
    unit_s, unit = time_unit(max(bar.mean_s for bar in bars))
    places = {
        job: {place: text for place, text in ticks.items() if place in {(bar.setting, bar.mode) for bar in own}}
        for job, own in of_job.items()
    }
    most, sides = max(map(len, places.values())), 1 + any(bar.measured for bar in bars)
    widest, key = max(3.0, _BESIDE + _TICK * most), list[str]()
    if widest <= _PAGE and any(len(wrap(text, _TICK_WIDTH)) > _MOST_LINES for text in ticks.values()):
        letters = dict(zip(dict.fromkeys(ticks.values()), ascii_uppercase, strict=False))
        key = [f"{letter}: {text}" for text, letter in letters.items()]
        places = {job: {place: letters[text] for place, text in own.items()} for job, own in places.items()}
        widest = max(2.6, _BESIDE + _LETTER * sides * most)
    with _canvas(places, widest) as (figure, grid):
        for axes, (job, own) in zip(grid, of_job.items(), strict=True):
            _draw(axes, own, places[job], unit_s, is_flat=widest > _PAGE)
            axes.set_title(f"{job} ({amounts[job]})" if job in amounts else job)
            label = f"{measures.get(job, 'completion time')} ({unit})"
            axes.set_xlabel(label) if widest > _PAGE else axes.set_ylabel(fill(label, _ACROSS))
        heading(figure, title)
        engines = SIDES if sides > 1 else "predicted"
        if widest > _PAGE:
            engines = engines.replace("left", "upper").replace("right", "lower")
        rounds = max(bar.rounds for bar in bars)
        of_all = f" of {whole:,}" if whole > rounds else ""
        how = (
            f"mean over {rounds:,}{of_all} rounds; whiskers: 5th to 95th percentile"
            if rounds > 1
            else f"one round{of_all}"
        )
        legend(figure, [], "\n".join([*key, *[classes] * bool(classes), engines, how]))
    return Picture(
        name=name,
        caption=caption,
        figure=figure,
        data=csv_text(bar._asdict() for bar in bars),
    )


@contextmanager
def _canvas(places: Mapping[str, Mapping[Any, str]], widest: float) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a figure no wider than a page with a panel for each job, whose places have these labels; the widest has so
    many inches. If that is more than a page, bars lie on their sides, a panel below the other."""
    if widest > _PAGE:
        lines = [sum(max(2, len(wrap(label, _ROW_WIDTH))) for label in of_job.values()) for of_job in places.values()]
        heights = [0.3 + _ROW * count for count in lines]
        with canvas(7.2, sum(heights) + 0.55 * len(heights) + 0.7) as figure:
            yield figure, list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
        return
    columns = max(1, min(3, len(places), int((_COLUMN if widest <= _COLUMN / 2 else _PAGE) / widest)))
    lines_high = max(len(wrap(label, _TICK_WIDTH)) for of_job in places.values() for label in of_job.values())
    height = (2.45 + 0.15 * lines_high) * -(-len(places) // columns) + 0.7
    with canvas(max(5.2, widest * columns), height) as figure:
        yield figure, panels(figure, len(places), columns=columns)


def _draw(
    axes: Axes, bars: Sequence[Bar], ticks: Mapping[tuple[int, str], str], unit_s: float, *, is_flat: bool
) -> None:
    """Draw bars at their ticks; with `is_flat` from left to right, a row for each tick."""
    places = list(ticks)
    sides = 1 + any(bar.measured for bar in bars)
    draw, error = (axes.barh, "xerr") if is_flat else (axes.bar, "yerr")
    end = 1.12 * max(max(bar.mean_s, bar.high_s) for bar in bars) / unit_s
    beside: dict[str, Any] = {"textcoords": "offset points", "fontsize": _BAR_PT, "bbox": ON_WHITE, "zorder": 4}
    beside |= {"ha": "left", "va": "center"} if is_flat else {"ha": "center", "va": "bottom"}
    for bar in bars:
        style, side = MODE_STYLES[bar.mode], 0 if bar.measured or sides == 1 else 1
        at = places.index((bar.setting, bar.mode)) + (side - (sides - 1) / 2) * 0.8 / sides
        face = style.colour if side == 0 else paler(style.colour)
        look: dict[str, Any] = {"facecolor": face, "hatch": style.hatch, "edgecolor": INK, "linewidth": 0.6}
        mean = bar.mean_s / unit_s
        draw(at, mean, 0.8 / sides, **look)
        ends = [[max(0.0, bar.mean_s - bar.low_s) / unit_s], [max(0.0, bar.high_s - bar.mean_s) / unit_s]]
        whisker: dict[str, Any] = {"fmt": "none", "ecolor": INK, "elinewidth": 0.8, "capsize": 1.8, error: ends}
        axes.errorbar(*((mean, at) if is_flat else (at, mean)), **whisker)
        top = max(bar.mean_s, bar.high_s) / unit_s
        axes.annotate(f"{mean:,.4g}", (top, at) if is_flat else (at, top), (3, 0) if is_flat else (0, 2), **beside)
    if is_flat:
        axes.set_yticks(range(len(places)), [fill(label, _ROW_WIDTH) for label in ticks.values()])
        axes.tick_params(axis="y", labelsize=8)
        axes.set_ylim(len(places) - 0.5, -0.5)
        axes.set_xlim(0, end)
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
    else:
        axes.set_xticks(range(len(places)), [fill(label, _TICK_WIDTH) for label in ticks.values()])
        axes.set_ylim(0, end)
