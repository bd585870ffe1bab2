"""Training: the pipeline diagram of an iteration, and what an iteration takes by the distance and the rate of the WAN.

The diagram has a row for each GPU, its forwards and backwards by colour with the number of the micro-batch, and an
arrow for each message over the WAN; measured and predicted where there are both. What is idle is white. That of a job
has the job's GPUs and messages alone, over the time of the round.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.collective import Collective, Move
from analysis.figures.output import Picture, canvas, heading, legend, table
from analysis.figures.points import Configuration, Points, named
from analysis.figures.style import FAINT, INK, MODE_STYLES, time_unit

KM_A_MS = 204
"""How far light goes in a fibre in a ms."""

GEOPIPE = {"bubble ratio": 78.91, "iteration": 9.1}
"""By how many percent GeoPipe's scheme lowers them (arXiv 2510.12064), "up to" and on average; its setting is not
public."""

_FIT = (
    f"below, dotted: GeoPipe's {GEOPIPE['bubble ratio']} % of the bubble ratio and {GEOPIPE['iteration']} % of the "
    "iteration; rings are a fit, as its setting is not public"
)
_SAVED = {"bubble ratio": "#4C8C4A", "iteration": "#8A5AAB"}
_DELAY, _RATE, _PIPELINE, _KIND = "conditions.wan_delay", "conditions.wan_rate", "training.pipeline", "training"
_WORK = {"F": ("forward", "#8FC1E3"), "B": ("backward", "#2C5F8A"), "W": ("of weights", "#F5D04C")}
_ARROW, _SUMS = "#C2185B", "#8A8A8A"
_MOST_WORKS = 3000  # bars of a panel
_MOST_NUMBERS = 400  # of micro-batches, written into them
_MOST_PANELS = 12
_MOST_INCHES = 15.0
_LOOKS = (("#17375E", "o"), ("#B5472F", "s"), ("#5BA4CF", "^"), ("#F5D04C", "D"), ("#4C8C4A", "v"))


class Trained(NamedTuple):
    """What is training in a collective: all of it, or the job of this name, from when on and with which transfers; and
    what each of its places computes, in order."""

    job: str
    start_s: float
    transfers: range
    places: Sequence[int]
    works: Sequence[Sequence[str]]


def trained(configuration: Configuration) -> list[Trained]:
    """What is training in the collectives of a configuration."""
    schedule = configuration.schedule or {}
    works = schedule.get("works") or ()
    found = [Trained("", 0.0, range(len(schedule.get("transfers", ()))), range(len(works)), works)]
    found += [
        Trained(str(one["name"]), float(one["start_s"]), range(*one["transfers"]), one["places"], one["works"])
        for one in configuration.jobs
        if one.get("works")
    ]
    return [one for one in found if one.works]


def diagram(name: str, measured: Sequence[Collective], predicted: Sequence[Collective], of: Trained) -> Picture | None:
    """The pipeline diagram of what is training in a collective, in each mode that has it; None where it is too
    large."""
    both = [one for mode in MODE_STYLES for group in (measured, predicted) for one in group if one.mode == mode]
    bars = [list(_bars(one, of)) for one in both]
    if not bars or not all(0 < len(found) <= _MOST_WORKS for found in bars):
        return None
    longest_s = max(move.end_s for one in both for move in one.moves if move.transfer in of.transfers)
    gpus = len(of.works)
    with canvas(11.0, (0.8 + 0.24 * gpus) * len(both) + 0.9) as figure:
        for axes, one, found in zip(figure.subplots(len(both), 1, squeeze=False)[:, 0], both, bars, strict=True):
            _draw(axes, one, of, found, longest_s)
        label, which = both[0].configuration.label, f"collective {both[0].number}"
        if of.job:
            which = f"{of.job} in round {both[0].number}"
        heading(figure, f"{label}: {which}")
        handles: list[Any] = [
            Patch(color=colour, label=what)
            for letter, (what, colour) in _WORK.items()
            if any(bar.work[0] == letter for bar in bars[0])
        ]
        arrows = {"over the WAN": _ARROW} | ({"gradients over the WAN": _SUMS} if _sums(both[0].configuration) else {})
        handles += [Line2D([], [], color=colour, label=what) for what, colour in arrows.items()]
        legend(figure, handles)
    return Picture(
        name=f"{name}-{of.job}-stages" if of.job else f"{name}-stages",
        caption=f"Pipeline of {which} of {label}: what GPUs compute, and what crosses the WAN.",
        figure=figure,
        data=table(
            one.which
            | {"measured": one.measured, "gpu": one.gpu(bar.rank), "work": bar.work[0], "micro_batch": bar.work[1:]}
            | {"start_s": bar.start_s, "end_s": bar.end_s}
            for one, found in zip(both, bars, strict=True)
            for bar in found
        ),
    )


class _Bar(NamedTuple):
    """What a rank, at a place of the schedule, computes from when to when."""

    place: int
    rank: int
    work: str
    start_s: float
    end_s: float


def computations(one: Collective) -> dict[int, str]:
    """What computations of training are, by transfer: "forward 2" is that of micro-batch 2."""
    return {
        move.transfer: f"{_WORK[work[0]][0]} {work[1:]}"
        for of in trained(one.configuration)
        for _, move, work in _works(one, of)
    }


def _bars(one: Collective, of: Trained) -> Iterator[_Bar]:
    """The computations of what is training, place by place."""
    for row, move, work in _works(one, of):
        yield _Bar(row, one.flows[move.flow].src, work, move.leaves_s, move.end_s)


def _works(one: Collective, of: Trained) -> Iterator[tuple[int, Move, str]]:
    """What each place computes, in order: its number, when, and what it is."""
    schedule = one.configuration.schedule or {}
    own = {move.flow for move in one.moves if move.transfer in of.transfers}
    streams = sorted(  # a job has one for its beginnings before that of its computations
        (number, place, flow)
        for flow, (place, number, *more) in enumerate(schedule["flows"])
        if flow in own and not more
    )
    flow_of = {place: flow for _, place, flow in streams}
    for row, (place, names) in enumerate(zip(of.places, of.works, strict=True)):
        moves = sorted(one.moves_over(flow_of[place]), key=lambda move: move.transfer)
        yield from ((row, move, str(work)) for move, work in zip(moves, names, strict=True))


def _draw(axes: Axes, one: Collective, of: Trained, bars: Sequence[_Bar], longest_s: float) -> None:
    scale, unit = time_unit(longest_s)
    row = {bar.rank: bar.place for bar in bars}
    corners = [
        [(x, bar.place + y) for x, y in ((left, -0.4), (right, -0.4), (right, 0.4), (left, 0.4))]
        for bar in bars
        for left, right in [(bar.start_s / scale, bar.end_s / scale)]
    ]
    colours = [_WORK[bar.work[0]][1] for bar in bars]
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=0.4))
    if len(bars) <= _MOST_NUMBERS:
        for bar in bars:
            x = (bar.start_s + bar.end_s) / 2 / scale
            on = "white" if bar.work[0] == "B" else INK
            if bar.end_s - bar.start_s > 0.0055 * longest_s * len(bar.work[1:]):
                axes.text(x, bar.place, bar.work[1:], ha="center", va="center", fontsize=5.5, color=on)
    moves = [move for move in one.moves if move.transfer in of.transfers]
    crossing = [move for move in moves if one.flows[move.flow].crosses]
    if crossing:
        first, last = (np.array([[row[getattr(one.flows[m.flow], e)] for m in crossing]]) for e in ("src", "dst"))
        start, end = (np.array([[getattr(m, e) / scale for m in crossing]]) for e in ("leaves_s", "end_s"))
        stage = _stages(one.configuration, len(of.works))
        is_sum = [stage[src] == stage[dst] for src, dst in zip(first[0], last[0], strict=True)]
        look: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.0011, "headwidth": 5}
        look["color"] = [_SUMS if found else _ARROW for found in is_sum]
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
    took_s = max(move.end_s for move in moves) - of.start_s if of.job else one.completion_s
    idle = 1 - sum(bar.end_s - bar.start_s for bar in bars) / (len(ranks) * took_s)
    title = f"{MODE_STYLES[one.mode].label}, {how}: {took_s / scale:.5g} {unit}, bubble {idle:.1%}"
    axes.set_title(title, fontsize=8.5)


def _sums(configuration: Configuration) -> bool:
    """Whether gradients of a stage are summed over sites."""
    return int(configuration.value("training.replicas")) > 1 and configuration.value("training.across") == "data"


def _stages(configuration: Configuration, places: int) -> list[int]:
    """The stage of each of so many places."""
    replicas = int(configuration.value("training.replicas"))
    if configuration.value("training.across") == "pipeline":
        return [place // replicas for place in range(places)]
    return [place % (places // replicas) for place in range(places)]


class Axis(NamedTuple):
    """What iterations are drawn by: the key that is swept, the name of the figure and of the column, its words."""

    key: str
    name: str
    column: str
    label: str
    unit: str

    def number(self, value: Any) -> float:
        """Where a value of the key stands: the km of a delay, the Gbit/s of a rate, or of the middle of a range."""
        if self.key == _DELAY:
            return float(value) * 1e3 * KM_A_MS
        return float(np.mean(value)) / 1e9


AXES = (
    Axis(_DELAY, "distance", "km", "distance (km)", "km"),
    Axis(_RATE, "rate", "wan_rate_gbps", "rate of the WAN (Gbit/s)", "Gbit/s"),
)


class Row(NamedTuple):
    """A pipeline at a distance or a rate, in an engine: the mean time of an iteration, and the share that is idle."""

    panel: str
    engine: str
    pipeline: str
    x: float
    iteration_s: float
    bubble_ratio: float


def rows_of(configurations: Sequence[Configuration], points: Points, axis: Axis) -> list[Row]:
    """The rows of a run in which an axis was swept, in the first mode that it has; else none."""
    swept = configurations[0].swept
    if axis.key not in swept or any(one.kind != _KIND for one in configurations):
        return []
    others = [key for key in swept if key not in (axis.key, _PIPELINE)]
    mode = next((mode for mode in MODE_STYLES if any(key[2] == mode for key in points)), "")
    found = []
    for one in configurations:
        panel = ", ".join(named(key, one.value(key)) for key in others)
        batches, every = (int(one.value(f"training.{key}")) for key in ("micro_batches", "every"))
        busy_s = batches * (one.value("training.forward") + one.value("training.backward"))
        for engine in ("model", "emulation"):
            if (point := points.get((engine, one.index, mode))) is not None:
                mean_s, x = float(point.completion_s.mean()) / every, axis.number(one.value(axis.key))
                found.append(Row(panel, engine, str(one.value(_PIPELINE)), x, mean_s, 1 - busy_s / mean_s))
    return sorted(found, key=lambda row: row.x)


def by(axis: Axis, name: str, configurations: Sequence[Configuration], points: Points) -> Picture | None:
    """Iterations by the distance of the sites or by the rate of the WAN, a line a pipeline, and what `overlapped` saves
    of 1F1B's; None where a run has no such sweep."""
    rows = rows_of(configurations, points, axis)
    names = list(dict.fromkeys(row.panel for row in rows))[:_MOST_PANELS]
    if not rows:
        return None
    pipelines = list(dict.fromkeys(row.pipeline for row in rows))
    saves = {"1f1b", "overlapped"} <= {*pipelines}
    scale, unit = time_unit(max(row.iteration_s for row in rows))
    with canvas(min(_MOST_INCHES, max(5.2, 3.6 * len(names))), 5.6 if saves else 3.4) as figure:
        grid = figure.subplots(1 + saves, len(names), squeeze=False, sharex=True, sharey="row")
        for column, panel in enumerate(names):
            here = [row for row in rows if row.panel == panel]
            for (colour, shape), pipeline in zip(_LOOKS, pipelines, strict=False):
                for engine, look in (("model", {"linestyle": "-"}), ("emulation", {"linestyle": "", "marker": shape})):
                    of = [row for row in here if (row.engine, row.pipeline) == (engine, pipeline)]
                    x, y = [row.x for row in of], [row.iteration_s / scale for row in of]
                    grid[0, column].plot(x, y, color=colour, **look)
            grid[0, column].set_title(panel.replace(", ", "\n"))
            if saves:
                _savings(grid[1, column], here, axis)
            grid[-1, column].set_xlabel(axis.label)
        grid[0, 0].set_ylabel(f"iteration ({unit})")
        grid[0, 0].set_ylim(bottom=0)
        if saves:
            grid[1, 0].set_ylabel("overlapped below 1f1b (%)")
        measured = any(row.engine == "emulation" for row in rows)
        handles = [
            Line2D([], [], color=colour, marker=shape if measured else "", label=pipeline)
            for (colour, shape), pipeline in zip(_LOOKS, pipelines, strict=False)
        ]
        handles += [Line2D([], [], color=_SAVED[what], label=f"{what} saved") for what in _SAVED if saves]
        legend(figure, handles, "lines: modelled" + "; markers: measured" * measured + (f"\n{_FIT}" if saves else ""))
    where = f"distance of the sites, at {KM_A_MS} km a ms" if axis.key == _DELAY else "rate of the WAN"
    fits = [(row, _saved(rows, row)) for row in rows]
    return Picture(
        name=f"{name}-{axis.name}",
        caption=f"Mean time of a training iteration by the {where}.",
        figure=figure,
        data=table(
            {axis.column if key == "x" else key: value for key, value in row._asdict().items()}
            | {f"{what} below 1f1b (%)": "" if of is None else of[what] for what in GEOPIPE}
            for row, of in fits
        ),
    )


def _saved(rows: Sequence[Row], row: Row) -> dict[str, float] | None:
    """By how many percent a row of `overlapped` is below that of 1F1B at the same x; None of others."""
    if row.pipeline != "overlapped":
        return None
    for other in rows:
        if (*other[:2], other.pipeline, other.x) == (*row[:2], "1f1b", row.x):
            bubble = 100 * (1 - row.bubble_ratio / other.bubble_ratio)
            return {"bubble ratio": bubble, "iteration": 100 * (1 - row.iteration_s / other.iteration_s)}
    return None


def crossings(x: Sequence[float], y: Sequence[float], level: float) -> list[float]:
    """Where the line through these points has this level, between neighbours of which one is below it."""
    return [
        a + (level - below) * (b - a) / (above - below)
        for a, b, below, above in zip(x, x[1:], y, y[1:], strict=False)
        if (below < level) != (above < level)
    ]


def _savings(axes: Axes, rows: Sequence[Row], axis: Axis) -> None:
    engine = "model" if any(row.engine == "model" for row in rows) else "emulation"
    found = [(row.x, of) for row in rows if row.engine == engine and (of := _saved(rows, row)) is not None]
    x = [at for at, _ in found]
    for what, colour in _SAVED.items():
        y = [of[what] for _, of in found]
        axes.plot(x, y, color=colour)
        axes.axhline(GEOPIPE[what], color=colour, linewidth=0.9, linestyle=":")
        at = crossings(x, y, GEOPIPE[what])
        ring: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
        axes.plot(at, [GEOPIPE[what]] * len(at), markeredgecolor=INK, **ring)
        for one in at:
            left = 2 * one > x[0] + x[-1]  # so that it stays within the panel
            look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": FAINT}
            number = f"{one:,.0f}" if axis.key == _DELAY else f"{one:.3g}"
            look |= {"xytext": (-5 if left else 5, 6), "ha": "right" if left else "left"}
            axes.annotate(f"{number} {axis.unit}", (one, GEOPIPE[what]), **look)
    axes.set_ylim(0, 100)
