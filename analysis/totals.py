"""Figures in the paper's form (4a, 4b, 5a, 5b): the total time of many collectives by mode against what was varied.

The model reckons many collectives and the emulation measures the first few of them, so their totals do not compare.
The model's stand in a panel of their own; beside it stands the emulation's next to the model's of the same collectives.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.canvas import Picture, canvas, table
from analysis.metrics import Interval, gain, summarise
from analysis.points import ENGINES, Group, Points, Setting, block_of, collective_name
from analysis.style import INK, MODE_STYLES, paler

_LEGEND_HEIGHT = 0.55  # inches
_NOTE = "whiskers: 95 % interval over the conditions drawn; percentages: gain over base"
_MOST_GAINS = 6  # values of what was varied up to which every bar has room for the gain it shows


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: over that many collectives from the first, a total (s) and how much less it is than base's (or None)."""

    engine: str
    place: int
    mode: str
    collectives: int
    total_s: Interval
    gain: Interval | None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Bars that may be compared: all over the same collectives."""

    engines: tuple[str, ...]
    collectives: int
    bars: tuple[Bar, ...]


def picture(name: str, group: Group, points: Points) -> Picture:
    """The figure of a group of settings, `name` being the run's."""
    panels = panels_of(group, points)
    with canvas(_width(panels, len(group.settings)), 3.4 + _LEGEND_HEIGHT) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for place, panel in zip(axes, panels, strict=True):
            _draw(place, panel, group)
        _legend(figure, panels)
        figure.suptitle(group.title, fontsize="medium")
    stem = f"{name}-{group.name}" if group.name else name
    caption = f"Total completion time by mode against {group.x_label}: {group.title}."
    return Picture(name=stem, caption=caption, figure=figure, data=_data(group, panels))


def panels_of(group: Group, points: Points) -> list[Panel]:
    """What may be compared: the model by itself where it has more collectives, then both engines on the same ones."""
    count = {engine: _common(group, points, engine) for engine in ENGINES}
    model, emulation = count["model"], count["emulation"]
    if not emulation:
        return [_panel(("model",), model, group, points)]
    if not model:
        return [_panel(("emulation",), emulation, group, points)]
    both = _panel(("emulation", "model"), min(model, emulation), group, points)
    return [both] if model <= emulation else [_panel(("model",), model, group, points), both]


def _common(group: Group, points: Points, engine: str) -> int:
    """How many collectives, from the first, every point of the engine in this group has; 0 where it has none."""
    numbers = {setting["setting"] for setting in group.settings}
    found = [point for (name, number, _), point in points.items() if name == engine and number in numbers]
    return min((len(point.rows) for point in found), default=0)


def _panel(engines: tuple[str, ...], count: int, group: Group, points: Points) -> Panel:
    bars = tuple(
        bar
        for engine in engines
        for place, setting in enumerate(group.settings)
        for bar in _bars(engine, place, setting, count, points)
    )
    return Panel(engines=engines, collectives=count, bars=bars)


def _bars(engine: str, place: int, setting: Setting, count: int, points: Points) -> Iterator[Bar]:
    seed, block = setting["values"]["run.seed"], block_of(setting, count)
    base = points.get((engine, setting["setting"], "base"))
    for mode in MODE_STYLES:
        point = points.get((engine, setting["setting"], mode))
        if point is None:
            continue
        times = point.completion_s[:count]
        less = None if base is None else gain(base.completion_s[:count], times, block=block, seed=seed)
        total = summarise(times, block=block, seed=seed).total_s
        yield Bar(engine=engine, place=place, mode=mode, collectives=count, total_s=total, gain=less)


def _width(panels: Sequence[Panel], values: int) -> float:
    return max(5.4, sum(1.4 + max(2, values) * (0.75 if len(panel.engines) == 1 else 1.0) for panel in panels))


def _draw(axes: Axes, panel: Panel, group: Group) -> None:
    modes = [mode for mode in MODE_STYLES if any(bar.mode == mode for bar in panel.bars)]
    slots = len(modes) * len(panel.engines)
    width = 0.84 / slots
    for bar in panel.bars:
        slot = modes.index(bar.mode) * len(panel.engines) + panel.engines.index(bar.engine)
        x = bar.place + (slot - (slots - 1) / 2) * width
        pale = bar.engine != panel.engines[0]
        _draw_bar(axes, bar, x, width, pale=pale)
        if not pale:
            # Of a pair, both are over the same collectives and have the same interval: it stands between them.
            middle = x + (len(panel.engines) - 1) * width / 2
            _draw_interval(axes, bar.total_s, middle)
            if bar.gain is not None and bar.mode != "base" and len(group.settings) <= _MOST_GAINS:
                _write_gain(axes, bar, middle)
    axes.set_ylim(0, 1.24 * max(_top(bar.total_s) for bar in panel.bars))
    axes.set_xticks(range(len(group.settings)), group.ticks)
    axes.set_xlim(-0.6, len(group.settings) - 0.4)
    axes.set_xlabel(group.x_label)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.grid(False, axis="x")
    plural = "" if panel.collectives == 1 else "s"
    axes.set_ylabel(f"total time of {panel.collectives:,} {collective_name(group.settings[0])}{plural} (s)")
    both = len(panel.engines) > 1
    axes.set_title(f"measured and modelled: the same {panel.collectives:,} collectives" if both else panel.engines[0])


def _draw_bar(axes: Axes, bar: Bar, x: float, width: float, *, pale: bool) -> None:
    style = MODE_STYLES[bar.mode]
    axes.bar(
        x,
        bar.total_s.value,
        width,
        facecolor=paler(style.colour) if pale else style.colour,
        hatch=style.hatch,
        edgecolor=INK,
        linewidth=0.6,
    )


def _write_gain(axes: Axes, bar: Bar, x: float) -> None:
    assert bar.gain is not None
    axes.annotate(
        f"{bar.gain.value * 100:.1f} %".replace("-", "−"),
        (x, _top(bar.total_s)),
        (0, 4),
        textcoords="offset points",
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=6.5,
        color=INK,
    )


def _top(total: Interval) -> float:
    return total.value if math.isnan(total.high) else max(total.value, total.high)


def _draw_interval(axes: Axes, total: Interval, x: float) -> None:
    if math.isnan(total.low):
        return
    # Times that do not vary may have ends that miss the total by a rounding error, to either side.
    ends = [[max(0.0, total.value - total.low)], [max(0.0, total.high - total.value)]]
    axes.errorbar(x, total.value, yerr=ends, fmt="none", ecolor=INK, elinewidth=0.8, capthick=0.8, capsize=1.5)


def _legend(figure: Figure, panels: Sequence[Panel]) -> None:
    modes = [mode for mode in MODE_STYLES if any(bar.mode == mode for panel in panels for bar in panel.bars)]
    faces = [(MODE_STYLES[mode].colour, MODE_STYLES[mode].hatch, MODE_STYLES[mode].label) for mode in modes]
    if any(len(panel.engines) > 1 for panel in panels):
        faces += [("#666666", "", "measured (emulation)"), (paler("#666666"), "", "modelled, where beside it")]
    handles = [
        Patch(facecolor=face, hatch=hatch, edgecolor=INK, linewidth=0.6, label=text) for face, hatch, text in faces
    ]
    columns = len(handles) if len(panels) > 1 else 2
    figure.legend(
        handles=handles,
        fontsize="small",
        ncols=columns,
        loc="outside lower center",
        title=_NOTE,
        title_fontsize="x-small",
    )


def _data(group: Group, panels: Sequence[Panel]) -> str:
    columns = [group.x_column, "engine", "mode", "collectives", "total_s", "total_low_s", "total_high_s"]
    columns += ["gain", "gain_low", "gain_high"]
    return table(columns, (_row(group, bar) for panel in panels for bar in panel.bars))


def _row(group: Group, bar: Bar) -> list[object]:
    numbers = [bar.total_s.value, bar.total_s.low, bar.total_s.high]
    numbers += [math.nan] * 3 if bar.gain is None else [bar.gain.value, bar.gain.low, bar.gain.high]
    which = [group.values[bar.place], bar.engine, bar.mode, bar.collectives]
    return [*which, *("" if math.isnan(number) else number for number in numbers)]
