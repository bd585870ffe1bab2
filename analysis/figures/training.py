"""Training: the pipeline diagram of an iteration, and iteration times against the distance or the rate of the WAN.

The diagram has a row for each GPU. Forward and backward passes are coloured bars with the number of the micro-batch,
idle time is white, and each message over the WAN is an arrow. It is drawn from measured and from predicted times if
both exist. The diagram of a training job shows only the job's GPUs and messages, over the time of the round.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from analysis.figures.collective_detail import Collective, TimedTransfer
from analysis.figures.output import ON_WHITE, Picture, canvas, csv_text, heading, legend, legible_pt, log_ticks
from analysis.figures.run_points import Configuration, Points, labelled, numbers_of
from analysis.figures.style import INK, MODE_STYLES, time_unit
from analysis.statistics.contests import shared_words

KM_A_MS = 204
"""The distance in km that light travels in a fibre in 1 ms."""

GEOPIPE = {"bubble ratio": 78.91, "iteration": 9.1}
"""Reductions in percent reported for GeoPipe (arXiv 2510.12064): of the bubble ratio "up to", of the iteration time on
average. Its experimental setting is not public, so that only the scenario with its pipeline is compared with them."""

_COMPARED = "geopipe"  # the name of that scenario
_REPORTED = (
    f"below, dotted: GeoPipe's {GEOPIPE['bubble ratio']} % of the bubble ratio and {GEOPIPE['iteration']} % of the "
    "iteration"
)
_FIT = "rings are a fit, as its setting is not public"
_SAVED = {"bubble ratio": "#4C8C4A", "iteration": "#8A5AAB"}
_DELAY, _RATE, _PIPELINE, _KIND = "conditions.wan_delay", "conditions.wan_rate", "training.pipeline", "training"
_WORK = {"F": ("forward", "#8FC1E3"), "B": ("backward", "#2C5F8A"), "W": ("of weights", "#F5D04C")}
_ARROW, _GRADIENTS = "#C2185B", "#8A8A8A"
_MAX_BARS = 3000  # in a panel
_NUMBER_PT = 5.5  # size of the number of a micro-batch
_MAX_NUMBERS = 400  # with more bars the numbers of micro-batches are left out
_MAX_PANELS = 12
_MOST_TOGETHER = 8  # panels of diagrams of two configurations in one figure
_INCHES, _ROW_INCHES = 7.2, 0.3  # the width of a diagram, as that of a page, and the height of a GPU's row
_MAX_INCHES = 15.0
_DECADE = 10  # ratio of the largest to the smallest x above which its axis is logarithmic
_LOOKS_OF = {"model": "lines: predicted", "emulation": "markers: measured"}
_LOOKS = (("#17375E", "o"), ("#B5472F", "s"), ("#5BA4CF", "^"), ("#F5D04C", "D"), ("#4C8C4A", "v"))


class Trained(NamedTuple):
    """A training in a collective: all of it (`job` is ""), or a job of a round.

    `start_s` is when it starts and `transfers` are the indices of its transfers. `works` are the computations of each
    of its `positions` in the schedule, in order: "F2" is the forward pass of micro-batch 2.
    """

    job: str
    start_s: float
    transfers: range
    positions: Sequence[int]
    works: Sequence[Sequence[str]]


def trained(configuration: Configuration) -> list[Trained]:
    """Return the trainings in the collectives of a configuration."""
    schedule = configuration.schedule or {}
    works = schedule.get("works") or ()
    trainings = [Trained("", 0.0, range(len(schedule.get("transfers", ()))), range(len(works)), works)]
    trainings += [
        Trained(str(one["name"]), float(one["start_s"]), range(*one["transfers"]), one["places"], one["works"])
        for one in configuration.jobs
        if one.get("works")
    ]
    return [one for one in trainings if one.works]


class _Panel(NamedTuple):
    """A training in a collective of a mode, with its computations."""

    one: Collective
    training: Trained
    bars: Sequence["_Bar"]

    @property
    def longest_s(self) -> float:
        """When the last message or computation of the training ends."""
        return max(timed.end_s for timed in self.one.transfers if timed.transfer in self.training.transfers)


def most_different(configurations: Sequence[Configuration], shown: Configuration) -> Configuration | None:
    """Return the configuration whose swept values are furthest from those of the one that is shown: numbers by their
    order, other values by their place in the sweep. None if no other one has the same training jobs."""
    jobs = [one.job for one in trained(shown)]
    others = [one for one in configurations if one is not shown and jobs == [each.job for each in trained(one)]]
    places: list[dict[str, int]] = []
    for key in shown.swept:
        values = list(dict.fromkeys(one.words(key) for one in configurations))
        numbers = numbers_of(key, [next(c.value(key) for c in configurations if c.words(key) == v) for v in values])
        if None not in numbers:
            values = [value for _, value in sorted(zip(numbers, values, strict=True), key=lambda one: one[0] or 0.0)]
        places.append({value: place for place, value in enumerate(values)})

    def distance(one: Configuration) -> int:
        found = zip(shown.swept, places, strict=True)
        return sum(abs(place[one.words(key)] - place[shown.words(key)]) for key, place in found)

    return max(others, key=distance, default=None)


def diagram(
    name: str,
    measured: Sequence[Collective],
    predicted: Sequence[Collective],
    training: Trained,
    *,
    beside: tuple[Sequence[Collective], Sequence[Collective], Trained] | None = None,
) -> Picture | None:
    """Draw the pipeline diagram of a training in a collective, in each mode, with that of another configuration below
    it (`beside`) if there is room; None if it has no bars or too many."""
    panels = list(_panels(measured, predicted, training))
    if not panels or not all(0 < len(one.bars) <= _MAX_BARS for one in panels):
        return None
    more = list(_panels(*beside)) if beside is not None else []
    if len(panels) + len(more) <= _MOST_TOGETHER and all(0 < len(one.bars) <= _MAX_BARS for one in more):
        panels += more
    both = [panel.one for panel in panels]
    longest_s = max(panel.longest_s for panel in panels)
    configurations = list({one.configuration.index: one.configuration for one in both}.values())
    heights = [0.9 + _ROW_INCHES * len(panel.training.works) for panel in panels]
    with canvas(_INCHES, sum(heights) + 0.9) as figure:
        grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, panel in zip(grid, panels, strict=True):
            which = ", ".join(value.words for value in panel.one.configuration.at) if len(configurations) > 1 else ""
            _draw(axes, panel, longest_s, f"{which}\n" if which else "")
        label, which = shared_words([one.label for one in configurations]), both[0].words
        if training.job:
            which = f"{training.job} in round {both[0].number}"
        if len(configurations) > 1:
            differ = "; ".join(", ".join(value.words for value in one.at) for one in configurations)
            label = f"{label}, the most different configurations ({differ})"
        heading(figure, f"{shared_words([one.title for one in configurations])}: {which}")
        handles: list[Any] = [
            Patch(color=colour, label=work)
            for letter, (work, colour) in _WORK.items()
            if any(bar.work[0] == letter for bar in panels[0].bars)
        ]
        drawn = {
            colour
            for panel in panels
            for colour in _arrow_colours(panel.one, panel.training, _crossing(panel.one, panel.training))
        }
        names = {_ARROW: "over the WAN", _GRADIENTS: "gradients over the WAN"}
        handles += [Line2D([], [], color=colour, label=name) for colour, name in names.items() if colour in drawn]
        has_numbers = any(len(_batches(panel.bars)) > 1 for panel in panels)
        legend(figure, handles, "Numbers: the micro-batch." * has_numbers)
    return Picture(
        name=f"{name}-{training.job}-stages" if training.job else f"{name}-stages",
        caption=f"Pipeline of {which} of {label}: the computations of GPUs"
        + (", and the messages that cross the WAN." if drawn else "; no message crosses the WAN."),
        figure=figure,
        data=csv_text(
            one.which
            | {"measured": one.measured, "gpu": one.gpu(bar.rank), "work": bar.work[0], "micro_batch": bar.work[1:]}
            | {"start_s": bar.start_s, "end_s": bar.end_s}
            for one, _, bars in panels
            for bar in bars
        ),
    )


def _panels(measured: Sequence[Collective], predicted: Sequence[Collective], training: Trained) -> Iterator[_Panel]:
    for mode in MODE_STYLES:
        for one in (*measured, *predicted):
            if one.mode == mode:
                yield _Panel(one, training, list(_bars(one, training)))


class _Bar(NamedTuple):
    """A computation of a rank: the row of its position, the index of its transfer, and its times in s."""

    row: int
    rank: int
    transfer: int
    work: str
    start_s: float
    end_s: float


def computations(one: Collective) -> dict[int, str]:
    """Return the computations of trainings in words, by transfer: "forward 2" is that of micro-batch 2."""
    bars = (bar for training in trained(one.configuration) for bar in _bars(one, training))
    return {bar.transfer: f"{_WORK[bar.work[0]][0]} {bar.work[1:]}" for bar in bars}


def _bars(one: Collective, training: Trained) -> Iterator[_Bar]:
    """Yield the computations of a training, position by position, in order."""
    schedule = one.configuration.schedule or {}
    own = {timed.flow for timed in one.transfers if timed.transfer in training.transfers}
    streams = sorted(  # a job has a stream for its starts, with a lower channel than that of its computations
        (channel, position, flow)
        for flow, (position, channel, *more) in enumerate(schedule["flows"])
        if flow in own and not more
    )
    flow_of = {position: flow for _, position, flow in streams}
    for row, (position, works) in enumerate(zip(training.positions, training.works, strict=True)):
        transfers = sorted(one.transfers_over(flow_of[position]), key=lambda timed: timed.transfer)
        for timed, work in zip(transfers, works, strict=True):
            yield _Bar(row, one.flows[timed.flow].src, timed.transfer, str(work), timed.leaves_s, timed.end_s)


def _draw(axes: Axes, panel: _Panel, longest_s: float, which: str) -> None:
    """Draw a panel whose title begins with these words."""
    one, training, bars = panel
    scale, unit = time_unit(longest_s)
    row = {bar.rank: bar.row for bar in bars}
    corners = []
    for bar in bars:
        left, right, top, bottom = bar.start_s / scale, bar.end_s / scale, bar.row - 0.4, bar.row + 0.4
        corners.append([(left, top), (right, top), (right, bottom), (left, bottom)])
    colours = [_WORK[bar.work[0]][1] for bar in bars]
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=0.4))
    size_pt = legible_pt(axes.figure.figure, _NUMBER_PT)
    if len(bars) <= _MAX_NUMBERS and len(_batches(bars)) > 1:
        for bar in bars:
            x = (bar.start_s + bar.end_s) / 2 / scale
            ink = "white" if bar.work[0] == "B" else INK
            if bar.end_s - bar.start_s > 0.0014 * size_pt * longest_s * len(bar.work[1:]):
                look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size_pt, "color": ink, "zorder": 4}
                words = axes.text(x, bar.row, bar.work[1:], **look)
                words.set_path_effects([withStroke(linewidth=1.5, foreground=_WORK[bar.work[0]][1])])  # over arrows
    transfers = [timed for timed in one.transfers if timed.transfer in training.transfers]
    crossing = _crossing(one, training)
    if crossing:
        first = np.array([[row[one.flows[timed.flow].src] for timed in crossing]])
        last = np.array([[row[one.flows[timed.flow].dst] for timed in crossing]])
        start = np.array([[timed.leaves_s / scale for timed in crossing]])
        end = np.array([[timed.end_s / scale for timed in crossing]])
        look = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.0011, "headwidth": 5}
        look["color"] = _arrow_colours(one, training, crossing)
        axes.quiver(start, first, end - start, last - first, zorder=3, **look)
    ranks = sorted(row, key=row.__getitem__)
    axes.set_yticks(range(len(ranks)), [one.gpu(rank) for rank in ranks])
    axes.tick_params(axis="y", labelsize=7, length=0)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xlim(0, longest_s / scale * 1.01)
    axes.set_xlabel(f"time ({unit})")
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    how = "measured" if one.measured else "predicted"
    took_s = max(timed.end_s for timed in transfers) - training.start_s if training.job else one.completion_s
    idle = 1 - sum(bar.end_s - bar.start_s for bar in bars) / (len(ranks) * took_s)
    title = f"{which}{MODE_STYLES[one.mode].label}, {how}: {took_s / scale:.5g} {unit}, bubble {idle:.1%}"
    axes.set_title(title, fontsize=8.5)


def _batches(bars: Sequence[_Bar]) -> set[str]:
    """Return the numbers of the micro-batches of these computations."""
    return {bar.work[1:] for bar in bars}


def _crossing(one: Collective, training: Trained) -> list[TimedTransfer]:
    """Return the messages of a training that cross the WAN."""
    transfers = [timed for timed in one.transfers if timed.transfer in training.transfers]
    return [timed for timed in transfers if one.flows[timed.flow].crosses]


def _arrow_colours(one: Collective, training: Trained, crossing: Sequence[TimedTransfer]) -> list[str]:
    """Return the colours of these messages' arrows; messages between replicas of a stage are gradients."""
    row = {bar.rank: bar.row for bar in _bars(one, training)}
    stage = _stages(one.configuration, len(training.works))
    ends = [(one.flows[timed.flow].src, one.flows[timed.flow].dst) for timed in crossing]
    return [_GRADIENTS if stage[row[src]] == stage[row[dst]] else _ARROW for src, dst in ends]


def _stages(configuration: Configuration, positions: int) -> list[int]:
    """Return the pipeline stage of each position."""
    replicas = int(configuration.value("training.replicas"))
    if configuration.value("training.across") == "pipeline":
        return [position // replicas for position in range(positions)]
    return [position % (positions // replicas) for position in range(positions)]


class Axis(NamedTuple):
    """An x axis for iteration times: the swept key, the figure's name, the column of the data, the label and unit."""

    key: str
    name: str
    column: str
    label: str
    unit: str

    def number(self, value: Any) -> float:
        """Return the x coordinate of a value of the key: the km of a delay, or the Gbit/s of the middle of a range."""
        if self.key == _DELAY:
            return float(value) * 1e3 * KM_A_MS
        return float(np.mean(value)) / 1e9


AXES = (
    Axis(_DELAY, "distance", "km", "distance (km)", "km"),
    Axis(_RATE, "rate", "wan_rate_gbps", "rate of the WAN (Gbit/s)", "Gbit/s"),
)


class Row(NamedTuple):
    """A pipeline at a distance or a rate (`x`), in an engine: mean iteration time, and the idle share of GPU time."""

    panel: str
    engine: str
    pipeline: str
    x: float
    iteration_s: float
    bubble_ratio: float


def rows_of(configurations: Sequence[Configuration], points: Points, axis: Axis) -> list[Row]:
    """Return the rows of a run that sweeps the key of an axis, in the run's first mode; none for other runs."""
    swept = configurations[0].swept
    if axis.key not in swept or any(one.kind != _KIND for one in configurations):
        return []
    others = [key for key in swept if key not in (axis.key, _PIPELINE)]
    mode = next((mode for mode in MODE_STYLES if any(key[2] == mode for key in points)), "")
    rows = []
    for one in configurations:
        panel = ", ".join(labelled(key, one.value(key)) for key in others)
        batches, every = (int(one.value(f"training.{key}")) for key in ("micro_batches", "every"))
        busy_s = batches * (one.value("training.forward") + one.value("training.backward"))
        for engine in ("model", "emulation"):
            if (point := points.get((engine, one.index, mode))) is not None:
                mean_s, x = float(point.completion_s.mean()) / every, axis.number(one.value(axis.key))
                rows.append(Row(panel, engine, str(one.value(_PIPELINE)), x, mean_s, 1 - busy_s / mean_s))
    return sorted(rows, key=lambda row: row.x)


def iteration_times(axis: Axis, name: str, configurations: Sequence[Configuration], points: Points) -> Picture | None:
    """Draw iteration times against an axis, a line for each pipeline, and the savings of `overlapped` over 1F1B.

    Returns None if the run called `name` does not sweep the axis.
    """
    rows = rows_of(configurations, points, axis)
    every = list(dict.fromkeys(row.panel for row in rows))
    names = every[:_MAX_PANELS]
    if not rows:
        return None
    pipelines = list(dict.fromkeys(row.pipeline for row in rows))
    saves = {"1f1b", "overlapped"} <= {*pipelines}
    reported = GEOPIPE if name == _COMPARED else {}
    fitted, x_all = False, [row.x for row in rows]
    # Distances have none: two sites at one place are 0 km apart, or as good as that.
    is_log = axis.key == _RATE and max(x_all) > _DECADE * min(x_all)
    scale, unit = time_unit(max(row.iteration_s for row in rows))
    with canvas(min(_MAX_INCHES, max(5.2, 3.6 * len(names))), 5.6 if saves else 3.4) as figure:
        grid = figure.subplots(1 + saves, len(names), squeeze=False, sharex=True, sharey="row")
        for column, panel in enumerate(names):
            here = [row for row in rows if row.panel == panel]
            for (colour, shape), pipeline in zip(_LOOKS, pipelines, strict=False):
                for engine, look in (("model", {"linestyle": "-"}), ("emulation", {"linestyle": "", "marker": shape})):
                    own = [row for row in here if (row.engine, row.pipeline) == (engine, pipeline)]
                    x, y = [row.x for row in own], [row.iteration_s / scale for row in own]
                    grid[0, column].plot(x, y, color=colour, **look)
            grid[0, column].set_title(panel.replace(", ", "\n"))
            if saves:
                fitted |= _savings(grid[1, column], here, axis, reported, is_log=is_log)
            grid[-1, column].set_xlabel(axis.label)
            if is_log:
                grid[-1, column].set_xscale("log")
                log_ticks(grid[-1, column].xaxis)
        grid[0, 0].set_ylabel(f"iteration ({unit})")
        grid[0, 0].set_ylim(bottom=0)
        title = shared_words([one.label for one in configurations])
        heading(figure, f"Time of a training iteration\n{title}".replace(" us", " µs"))
        if saves:
            grid[1, 0].set_ylabel("overlapped below 1f1b (%)")
        measured = any(row.engine == "emulation" for row in rows)
        handles = [
            Line2D([], [], color=colour, marker=shape if measured else "", label=pipeline)
            for (colour, shape), pipeline in zip(_LOOKS, pipelines, strict=False)
        ]
        counts = {key[0]: point.number.size for key, point in points.items()}
        note = "; ".join(f"{look}, mean of {counts[one]:,}" for one, look in _LOOKS_OF.items() if one in counts)
        note += f"\nthe first {len(names)} of {len(every)} panels; the data have all" * (len(names) < len(every))
        if saves:
            handles += [Line2D([], [], color=colour, label=f"{what} saved") for what, colour in _SAVED.items()]
            if reported:
                note += f"\n{_REPORTED}" + f"; {_FIT}" * fitted
        legend(figure, handles, note)
    where = f"distance of the sites, at {KM_A_MS} km a ms" if axis.key == _DELAY else "rate of the WAN"
    return Picture(
        name=f"{name}-{axis.name}",
        caption=f"Mean time of a training iteration by the {where}.",
        figure=figure,
        data=csv_text(
            {axis.column if key == "x" else key: value for key, value in row._asdict().items()}
            | {f"{what} below 1f1b (%)": "" if saved is None else saved[what] for what in _SAVED}
            for row, saved in ((row, _saved(rows, row)) for row in rows)
        ),
    )


def _saved(rows: Sequence[Row], row: Row) -> dict[str, float] | None:
    """Return by how many percent a row of `overlapped` is below that of 1F1B at the same x; None for other rows."""
    if row.pipeline != "overlapped":
        return None
    for other in rows:
        if (*other[:2], other.pipeline, other.x) == (*row[:2], "1f1b", row.x):
            bubble = 100 * (1 - row.bubble_ratio / other.bubble_ratio)
            return {"bubble ratio": bubble, "iteration": 100 * (1 - row.iteration_s / other.iteration_s)}
    return None


def crossings(x: Sequence[float], y: Sequence[float], level: float) -> list[float]:
    """Return the x coordinates at which the line through these points crosses a level, by linear interpolation."""
    return [
        x0 + (level - y0) * (x1 - x0) / (y1 - y0)
        for (x0, y0), (x1, y1) in pairwise(zip(x, y, strict=True))
        if (y0 < level) != (y1 < level)
    ]


def _savings(axes: Axes, rows: Sequence[Row], axis: Axis, reported: Mapping[str, float], *, is_log: bool) -> bool:
    """Draw the savings of `overlapped` over 1F1B, and mark where they are the reported ones, if there are any; return
    whether they are anywhere."""
    fitted = False
    engine = "model" if any(row.engine == "model" for row in rows) else "emulation"
    savings = [(row.x, saved) for row in rows if row.engine == engine and (saved := _saved(rows, row)) is not None]
    x = [coordinate for coordinate, _ in savings]
    for what, colour in _SAVED.items():
        y = [saved[what] for _, saved in savings]
        axes.plot(x, y, color=colour)
        if what not in reported:
            continue
        axes.axhline(reported[what], color=colour, linewidth=0.9, linestyle=":")
        fits = (
            [math.exp(fit) for fit in crossings([*map(math.log, x)], y, reported[what])]
            if is_log
            else (crossings(x, y, reported[what]))
        )
        fitted |= bool(fits)
        ring: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
        axes.plot(fits, [reported[what]] * len(fits), markeredgecolor=INK, **ring)
        for fit in fits:
            is_left = 2 * fit > x[0] + x[-1]  # the label is on the left, so that it stays within the panel
            look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": INK, "bbox": ON_WHITE}
            number = f"{fit:,.0f}" if axis.key == _DELAY else f"{fit:.3g}"
            look |= {"xytext": (-5 if is_left else 5, 6), "ha": "right" if is_left else "left"}
            axes.annotate(f"{number} {axis.unit}", (fit, reported[what]), **look)
    axes.set_ylim(0, 100)
    return fitted
