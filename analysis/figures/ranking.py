"""What is compared where it is too much for lines or bars in one panel: a row for each, the fastest first.

A group of configurations gets this figure in place of `comparison` if it has more lines, or more equally distant ticks,
than can be told apart. It is as wide as a column of a paper. A panel has the modes, or the values of what is compared,
at one point of the sweep: their mean times with 95 % intervals, and beside them their gains. Values that do not compete
keep the order of the sweep. All are drawn: what does not fit into one figure is in further ones.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import fill
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from analysis.figures.comparison import (
    Comparison,
    Estimate,
    baseline_of,
    comparisons_of,
    has_rounds,
    rounds_note,
    row_of,
    subject_of,
)
from analysis.figures.output import Picture, balanced, canvas, csv_text, explain, heading, log_ticks
from analysis.figures.run_points import Configuration, FigureGroup, Points
from analysis.figures.style import INK, marker, typical_unit
from analysis.statistics.contests import is_rivalry
from analysis.statistics.intervals import Interval, reasons
from analysis.statistics.number_words import fixed

_INCHES = 3.3  # a column of a paper
_LABEL_WIDTH = 25  # the most characters in a line of a row's label
_TITLE_WIDTH = 32  # characters in a line of a panel's title
_ROW, _LINE, _PANEL = 0.19, 0.11, 0.5  # inches of a row, of a further line of its label, and of the rest of a panel
_MAX_ROWS = 48  # in one figure; further panels get further figures
_WIDE = 8.0  # ratio of the longest to the shortest time above which their axis is logarithmic
_BASELINE = "baseline"


class Row(NamedTuple):
    """A row of a panel: its label and its estimates, the measured one first."""

    label: str
    estimates: tuple[Estimate, ...]

    @property
    def mean_s(self) -> float:
        """The mean time by which rows are sorted."""
        return self.estimates[0].summary.mean_s.value


class Panel(NamedTuple):
    """A panel: its title, and its rows from the top."""

    title: str
    rows: tuple[Row, ...]

    @property
    def means_s(self) -> list[float]:
        """The mean times of all rows."""
        return [one.summary.mean_s.value for row in self.rows for one in row.estimates]

    @property
    def is_ranked(self) -> bool:
        """Whether the fastest row is first; rows of different work stand as they were swept."""
        return [*self.rows] == sorted(self.rows, key=lambda row: row.mean_s)

    @property
    def end_s(self) -> float:
        """The longest time that is drawn: a mean, or the end of its interval."""
        drawn = [row.estimates[0].summary.mean_s.high for row in self.rows]
        return max([*self.means_s, *(high for high in drawn if not math.isnan(high))])


def parts_of(name: str, group: FigureGroup) -> Iterator[tuple[str, tuple[Configuration, ...]]]:
    """Yield the name of each figure of a group and the configurations in it."""
    stem = f"{name}-{group.name}" if group.name else name
    parts: list[list[Configuration]] = [[]]
    rows = 0
    for here in _panelled(group):
        count = max(len(here), len(group.lines))
        if parts[-1] and rows + count > _MAX_ROWS:
            parts.append([])
            rows = 0
        parts[-1] += here
        rows += count
    for number, part in enumerate(parts, 1):
        yield stem if number == 1 else f"{stem}-{number}", tuple(part)


def picture(name: str, group: FigureGroup, shown: Sequence[Configuration], points: Points) -> Picture:
    """Draw the figure of this file name, with these configurations of a group."""
    comparisons = comparisons_of(group, points)
    all_panels = [panel for one in comparisons for panel in _panels(group, one, shown, is_alone=len(comparisons) == 1)]
    estimates = [one for panel in all_panels for row in panel.rows for one in row.estimates]
    unit_s, unit = typical_unit([one.summary.mean_s.value for one in estimates])
    over = baseline_of(estimates)
    means_s = [one.summary.mean_s.value for one in estimates]
    # One kind of scale in all panels, for a comparison from panel to panel.
    is_log = any(max(panel.means_s) > _WIDE * min(panel.means_s) for panel in all_panels)
    is_shared = max(means_s) <= _WIDE * min(means_s)
    inches = [_PANEL + sum(_ROW + _LINE * row.label.count("\n") for row in panel.rows) for panel in all_panels]
    ends_s = [panel.end_s for panel in all_panels]
    with canvas(_INCHES, 1.0 + sum(inches)) as figure:
        grid = figure.subplots(len(all_panels), 1, squeeze=False, sharex=is_shared, height_ratios=inches)[:, 0]
        for axes, panel in zip(grid, all_panels, strict=True):
            _draw(axes, panel, group, unit_s, over, is_log=is_log)
            if not is_log:
                axes.set_xlim(0, 1.08 * (max(ends_s) if is_shared else panel.end_s) / unit_s)
            axes.tick_params(labelbottom=True)
        mean = f"mean time{' of a round' * has_rounds(group)} ({unit}){', logarithmic' * is_log}"
        grid[-1].set_xlabel(mean, fontsize=8)
        subject = [subject_of(comparisons[0], group)] if len(comparisons) == 1 else []
        heading(figure, "\n".join([group.title, *subject]))
        explain(figure, "\n".join(filter(None, [*_notes(comparisons, estimates, over), rounds_note(group)])))
    order = ", fastest first" if all(panel.is_ranked for panel in all_panels) else ""
    against = f", for each {group.x_label}" if len(group.lines) > 1 and len(group.ticks) > 1 else ""
    caption = f"Mean completion time{f' and gain over {over}' if over else ''}{order}{against}: {group.title}."
    return Picture(name=name, caption=caption, figure=figure, data=csv_text(row_of(group, one) for one in estimates))


def _panelled(group: FigureGroup) -> Iterator[list[Configuration]]:
    """Yield the configurations of each panel: of a point of the sweep, or if there is one line, of a facet."""
    for facet in group.facets.values():
        if len(group.lines) == 1:
            yield list(facet)
            continue
        for tick in group.ticks:
            here = [one for one in facet if one.words(group.across) == tick]
            if here:
                yield here


def _panels(
    group: FigureGroup, comparison: Comparison, shown: Sequence[Configuration], *, is_alone: bool
) -> Iterator[Panel]:
    """Yield the panels of a comparison at these configurations; unless it `is_alone`, titles tell what it compares."""
    is_swept = len(group.lines) == 1
    rivals = [group.across] if is_swept else group.compared
    for here in _panelled(group):
        estimates = [one for one in comparison.estimates if one.configuration in here and one.configuration in shown]
        named: dict[str, list[Estimate]] = {}
        for one in estimates:
            name = one.configuration.words(group.across) if is_swept else group.line(one.configuration, one.mode)
            named.setdefault(name, []).append(one)
        rows = [Row(_label(group, name), tuple(of_row)) for name, of_row in named.items()]
        if all(map(is_rivalry, rivals)):
            rows.sort(key=lambda row: row.mean_s)
        first = here[0]
        keys = [key for key in (group.facet, None if is_swept or len(group.ticks) == 1 else group.across) if key]
        title = [", ".join(f"{group.key_words(key)} {first.words(key)}" for key in keys)]
        title += [] if is_alone else [subject_of(comparison, group)]
        if rows:
            yield Panel("\n".join(balanced(part, _TITLE_WIDTH) for part in title if part), tuple(rows))


def _label(group: FigureGroup, name: str) -> str:
    style = group.styles.get(name)
    return fill(name if style is None else style.label, _LABEL_WIDTH)


def _draw(axes: Axes, panel: Panel, group: FigureGroup, unit_s: float, over: str | None, *, is_log: bool) -> None:
    means_s = panel.means_s
    digits = max(0, 2 - math.floor(math.log10(max(means_s) / unit_s)))
    for y, row in enumerate(panel.rows):
        for one in reversed(row.estimates):
            style = group.styles[group.line(one.configuration, one.mode)]
            style = style if len(group.lines) > 1 else replace(style, colour=INK)
            look = marker(style, measured=one.engine == "emulation") | {"markersize": 5}
            axes.plot(one.summary.mean_s.value / unit_s, y, zorder=4, **look)
        _whisker(axes, y, row.estimates[0].summary.mean_s, unit_s)
        where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center", "ha": "left", "fontsize": 7}
        axes.annotate(_words(row.estimates[0], unit_s, digits, over), (1.03, y), annotation_clip=False, **where)
    for row in panel.rows if over else ():
        if row.estimates[0].gain is None:
            axes.axvline(row.mean_s / unit_s, color=INK, linestyle="--", linewidth=0.8, zorder=1)
    if is_log:
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
        axes.margins(x=0.08)
    axes.set_yticks(range(len(panel.rows)), [row.label for row in panel.rows])
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    axes.tick_params(labelsize=7)
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="both")
    axes.set_title(panel.title, fontsize=7.5, loc="left")


def _whisker(axes: Axes, y: float, mean_s: Interval, unit_s: float) -> None:
    if not math.isnan(mean_s.low):
        axes.plot([mean_s.low / unit_s, mean_s.high / unit_s], [y, y], color=INK, linewidth=1.1, zorder=3)


def _words(one: Estimate, unit_s: float, digits: int, over: str | None) -> str:
    """Return what is written beside a row: its gain in percent, with the sign ~ if its interval includes zero, or that
    it is the baseline; where nothing is, its mean time with so many decimals."""
    if over is None:
        return fixed(one.summary.mean_s.value / unit_s, digits)
    if one.gain is None:
        return _BASELINE
    words = f"{fixed(one.gain.value * 100, 1)} %".replace("-", "−")
    return f"~ {words}" if one.gain.low <= 0 <= one.gain.high else words


def _notes(comparisons: Sequence[Comparison], estimates: Sequence[Estimate], over: str | None) -> Iterator[str]:
    """Yield lines that explain the figure."""
    intervals = [(one.mode, one.summary.mean_s, one.gain) for one in estimates]
    both = "filled: measured, open: predicted for the same collectives"
    looks = {"model": "open: predicted", "emulation": "filled: measured"}
    words = [both if len(one.engines) > 1 else looks[one.engines[0]] for one in comparisons]
    bars = ["bars: 95 % intervals"] * any(not each.why for _, *both in intervals for each in both if each)
    yield "; ".join([*dict.fromkeys(words), *bars])
    if over is not None:
        unsure = any(one.gain and one.gain.low <= 0 <= one.gain.high for one in estimates)
        yield f"right: gain over {over} (dashed)" + "; ~: its 95 % interval includes 0" * unsure
    yield from (f"no intervals: {why}" for why in reasons(intervals))
