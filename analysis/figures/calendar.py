"""The calendar of transfers (admission control): the rates promised to each transfer over time, and those delivered.

Each transfer has a row. Promised rates are filled areas, which have the same look over the same routers. Delivered
rates are a line for each mode: the bytes that arrived in each of `_PARTS` intervals. The bytes of a message count as
arriving evenly from the first moment at which its first bit can arrive until the message is complete.

For several configurations a second figure compares the arrival times of transfers as a share of their deadlines, with
routings side by side and other swept keys in panels.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import Normal, Stroke

from analysis.figures.collective_detail import Collective
from analysis.figures.output import ON_WHITE, Picture, canvas, csv_text, heading, legend, panels
from analysis.figures.run_points import Configuration
from analysis.figures.style import CRITICAL, FAINT, INK, MODE_STYLES, time_unit
from analysis.results.reader import Run

_PARTS = 60  # intervals of equal length over which arriving bytes are added up
_SHADES = ("#8FBBD9", "#C7DDEC", "#A9C9A4", "#D7E6D3", "#E3C9A0", "#F1E4CE")
_HATCHES = ("", "///", "...")  # one for every two shades, because the three pairs of shades are equally dark
_MORE_HATCHES = ("", "xxx", "ooo", "|||")  # once all shades are used

_MOST_WAYS = 12  # that the legend names
_DARK_EDGE = [Stroke(linewidth=2.6, foreground=INK), Normal()]
"""The edge of lines that cross areas: the colours of some modes are as light as these."""

Floats = npt.NDArray[np.float64]


def picture(name: str, collectives: Sequence[Collective]) -> Picture:
    """Draw the calendar of a round in each mode for the run called `name`; the configuration must have transfers.

    `collectives` are that round in each mode.
    """
    configuration, number = collectives[0].configuration, collectives[0].number
    transfers = configuration.admission
    is_promised = any(one["rates_bps"] for one in transfers)
    last_s = max(
        *(end_s for one in transfers for end_s in (one["due_s"], *one["edges_s"])),
        *(timed.end_s for one in collectives for timed in one.transfers),
    )
    unit_s, unit = time_unit(last_s)
    edges_s = np.linspace(0.0, last_s, _PARTS + 1)
    looks = {way: _look(index) for index, way in enumerate(_ways(transfers))}
    with canvas(8.0, 0.9 + 1.25 * len(transfers)) as figure:
        rows = figure.subplots(len(transfers), 1, squeeze=False, sharex=True)[:, 0]
        for axes, transfer in zip(rows, transfers, strict=True):
            _fill_promised(axes, transfer, unit_s, looks)
            for collective in collectives:
                colour = MODE_STYLES[collective.mode].colour
                gbps = _delivered_bps(collective, transfer, edges_s) / 1e9
                axes.stairs(gbps, edges_s / unit_s, color=colour, linewidth=1.4, baseline=None, path_effects=_DARK_EDGE)
            is_sent = bool(transfer["edges_s"][1:]) or transfer["transfers"] != [0, 0]
            axes.set_title(transfer["sentence"], fontsize=8, loc="left", color=INK if is_sent else FAINT)
            if is_sent:
                axes.axvline(transfer["due_s"] / unit_s, color=CRITICAL, linestyle="--", linewidth=1.2)
            else:
                axes.set_yticks([])
            for at_s in {*collectives[0].failing.values()}:
                axes.axvline(at_s / unit_s, color=INK, linestyle=":", linewidth=1.2)
            axes.set_ylabel("Gbit/s", fontsize=8)
            axes.set_ylim(bottom=0)
        rows[-1].set_xlim(0, last_s * 1.02 / unit_s)
        rows[-1].set_xlabel(f"time since the start of the round ({unit})")
        how = "measured" if collectives[0].measured else "predicted"
        handles: list[Any] = [
            Patch(edgecolor=INK, linewidth=0.4, label=f"promised over {way}", **look)
            for way, look in [*looks.items()][:_MOST_WAYS]
        ]
        if len(looks) > _MOST_WAYS:
            handles.append(
                Patch(fill=False, linewidth=0, label=f"{len(looks) - _MOST_WAYS} more in {name}-calendar.csv")
            )
        handles += [
            Line2D(
                *([], []),
                color=MODE_STYLES[one.mode].colour,
                label=f"delivered, {one.mode} ({how})",
                path_effects=_DARK_EDGE,
            )
            for one in collectives
        ]
        if collectives[0].failing:
            handles.append(Line2D([], [], color=INK, linestyle=":", label="a link goes down"))
        if any(line.get_color() == CRITICAL for axes in rows for line in axes.lines):
            handles.append(Line2D([], [], color=CRITICAL, linestyle="--", label="deadline"))
        legend(figure, handles)
        heading(figure, f"{configuration.title}: collective {number}")
    return Picture(
        name=f"{name}-calendar",
        caption=f"Rates {'promised and ' if is_promised else ''}delivered to each transfer over time, and its "
        f"deadline: {configuration.label}.",
        figure=figure,
        data=csv_text(_data(transfers, collectives, edges_s)),
    )


class Arrival(NamedTuple):
    """When a transfer arrived in a mode, `there_s`: the latest of all rounds of a configuration, NaN if not sent."""

    setting: int
    engine: str
    mode: str
    job: str
    outcome: str
    due_s: float
    there_s: float

    @property
    def in_time(self) -> bool:
        """Whether the transfer arrived by its deadline: the requested one or, if it was deferred, the promised one."""
        return self.there_s <= self.due_s


_Column = tuple[str, list[Arrival]]
"""The label of a column and the arrivals of its transfers."""


def arrivals_of(run: Run, configuration: Configuration) -> list[Arrival]:
    """Return the arrivals of a configuration's transfers in each mode: measured if there are any, else predicted."""
    rows = run.jobs[run.jobs["setting"] == configuration.index]
    is_measured = rows["engine"] == "emulation"
    rows, arrivals = (rows[is_measured] if is_measured.any() else rows), []
    for (engine, mode), here in rows.groupby(["engine", "mode"], sort=False):
        there_s = (here["start_s"] + here["completion_s"]).groupby(here["job"]).max()
        for one in configuration.admission:
            at_s = float(there_s.get(one["job"], math.nan))
            arrivals.append(Arrival(configuration.index, engine, mode, one["job"], one["outcome"], one["due_s"], at_s))
    return arrivals


def deadlines(name: str, run: Run, configurations: Sequence[Configuration]) -> Picture | None:
    """Draw the arrival times of transfers in several configurations of the run called `name`; None if it stores none.

    A panel compares the values of `fabric.routing` if it was swept, otherwise all configurations.
    """
    groups = [
        (one, mode, [arrival for arrival in arrivals if arrival.mode == mode])
        for one in configurations
        if (arrivals := arrivals_of(run, one))
        for mode in dict.fromkeys(arrival.mode for arrival in arrivals)
    ]
    if not groups:
        return None
    jobs = dict.fromkeys(arrival.job for *_, arrivals in groups for arrival in arrivals)
    looks = {job: _look(index) for index, job in enumerate(jobs)}
    by_panel = _columns_by_panel(groups)
    width = max(5.6, 0.9 + 1.8 * max(map(len, by_panel.values())))
    with canvas(width, 0.6 + 2.7 * len(by_panel)) as figure:
        grid = panels(figure, len(by_panel), columns=1, sharey=True)
        for axes, (title, columns) in zip(grid, by_panel.items(), strict=True):
            _draw_arrivals(axes, columns, looks)
            axes.set_title(title)
        handles: list[Any] = [Patch(edgecolor=INK, linewidth=0.6, label=job, **look) for job, look in looks.items()]
        handles.append(Line2D([], [], color=CRITICAL, linestyle="--", label="deadline"))
        legend(figure, handles)
        is_measured = any(arrival.engine == "emulation" for *_, arrivals in groups for arrival in arrivals)
        heading(figure, f"Arrival time / deadline of each transfer ({'measured' if is_measured else 'predicted'})")
    return Picture(
        name=f"{name}-deadlines",
        caption="Arrival time of each transfer as a share of its deadline, in each configuration.",
        figure=figure,
        data=csv_text({**one._asdict(), "in_time": one.in_time} for *_, arrivals in groups for one in arrivals),
    )


def _look(index: int) -> dict[str, Any]:
    """Return the shade and the hatch of the transfer, or of the way, with an index; they differ in grey, too."""
    times, of_shade = divmod(index, len(_SHADES))
    hatch = _HATCHES[of_shade // 2] + _MORE_HATCHES[times % len(_MORE_HATCHES)]
    return {"facecolor": _SHADES[of_shade], "hatch": hatch}


def _ways(transfers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the routers of all tunnels with a promised rate, once each: "s0b0 → s1b1"."""
    tunnels = (name for one in transfers for name, rates_bps in one["rates_bps"].items() if any(rates_bps))
    return list(dict.fromkeys(map(_way, tunnels)))


def _way(tunnel: str) -> str:
    """Return the routers of a tunnel, whose name has the GPUs at its ends, too."""
    return " → ".join(tunnel.split(">")[1:-1])


def _columns_by_panel(groups: Sequence[tuple[Configuration, str, list[Arrival]]]) -> dict[str, list[_Column]]:
    """Return the columns of each panel by the panel's title, given the arrivals of each configuration and mode."""
    modes = {mode for _, mode, _ in groups}
    by_panel: dict[str, list[_Column]] = {}
    for configuration, mode, arrivals in groups:
        swept = {key: configuration.words(key) for key in configuration.swept}
        if "fabric.routing" in swept:
            label = [swept.pop("fabric.routing")]
            title = ", ".join(swept.values())
        else:
            label, title = [*swept.values()] or [configuration.label], ""
        if len(modes) > 1:
            label.append(mode)
        label.append("without admission" if all(one.outcome == "sent" for one in arrivals) else "with admission")
        label.append(f"{sum(arrival.in_time for arrival in arrivals)} of {len(arrivals)} in time")
        by_panel.setdefault(title, []).append(("\n".join(label), arrivals))
    return by_panel


def _draw_arrivals(axes: Axes, columns: Sequence[_Column], looks: Mapping[str, dict[str, Any]]) -> None:
    """Draw a bar for each transfer of each column, with the look of its job; write the outcome of those not sent."""
    jobs = list(looks)
    for column, (_, arrivals) in enumerate(columns):
        for arrival in arrivals:
            x = column + ((jobs.index(arrival.job) + 0.5) / len(jobs) - 0.5) * 0.84
            if math.isnan(arrival.there_s):
                look: dict[str, Any] = {"ha": "center", "va": "bottom", "color": CRITICAL, "fontsize": 8}
                axes.text(x, 0.02, arrival.outcome, rotation=90, bbox=ON_WHITE, **look)
                continue
            look = {"edgecolor": INK if arrival.in_time else CRITICAL, "linewidth": 0.6 if arrival.in_time else 1.8}
            axes.bar(x, arrival.there_s / arrival.due_s, 0.84 / len(jobs), **looks[arrival.job], **look)
    axes.axhline(1.0, color=CRITICAL, linestyle="--", linewidth=1.2)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_xticks(range(len(columns)), [label for label, _ in columns])
    axes.set_ylabel("arrival / deadline")


def _fill_promised(
    axes: Axes, transfer: Mapping[str, Any], unit_s: float, looks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Fill the rates promised to a transfer, stacked over its tunnels."""
    edges_s, below = np.array(transfer["edges_s"]), np.zeros(max(0, len(transfer["edges_s"]) - 1))
    for tunnel, rates_bps in transfer["rates_bps"].items():
        if any(rates_bps):
            above = below + np.array(rates_bps) / 1e9
            look: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.4, **looks[_way(tunnel)]}
            axes.stairs(above, edges_s / unit_s, baseline=below, fill=True, **look)
            below = above


def _delivered_bps(collective: Collective, transfer: Mapping[str, Any], edges_s: Floats) -> Floats:
    """Return the mean rate at which a transfer's bytes arrive between successive edges, bit/s."""
    first, last = transfer["transfers"]
    arrived = np.zeros(len(edges_s))
    for index, flow in enumerate(collective.flows):
        before_s = 0.0
        for timed in collective.transfers_over(index) if flow.links else ():
            if first <= timed.transfer < last:
                # A message that queues at a link left early; it arrives after the previous message of its flow.
                begins_s = min(max(timed.leaves_s + flow.delay_s, before_s), timed.end_s - 1e-9)
                arrived += 8.0 * timed.size * np.clip((edges_s - begins_s) / (timed.end_s - begins_s), 0.0, 1.0)
                before_s = timed.end_s
    return np.asarray(np.diff(arrived) / np.diff(edges_s), dtype=np.float64)


def _data(
    transfers: Sequence[Mapping[str, Any]], collectives: Sequence[Collective], edges_s: Floats
) -> Iterator[dict[str, Any]]:
    """Yield a row for each transfer's deadline, and for each interval of its promised and delivered rates."""
    for one in transfers:
        about = {"job": one["job"], "outcome": one["outcome"]}
        spans = zip(one["edges_s"][:-1], one["edges_s"][1:], strict=True)
        yield {**about, "what": "due", "mode": "", "from_s": one["start_s"], "to_s": one["due_s"], "bps": math.nan}
        for span, *rates_bps in zip(spans, *one["rates_bps"].values(), strict=False):
            for tunnel, bps in zip(one["rates_bps"], rates_bps, strict=True):
                yield {**about, "what": tunnel, "mode": "", "from_s": span[0], "to_s": span[1], "bps": bps}
        for collective in collectives:
            which = {**about, "what": "delivered", "mode": collective.mode}
            rates = _delivered_bps(collective, one, edges_s).tolist()
            for (from_s, to_s), bps in zip(pairwise(edges_s), rates, strict=True):
                yield {**which, "from_s": from_s, "to_s": to_s, "bps": bps}
