"""The calendar of transfers: a row for each, what was promised to it over time and what was delivered.

What is promised is filled, a shade for each of its tunnels. What was delivered is a line for each mode: the bytes that
arrived in a part of the time, those of a message evenly from when its first can have arrived until it is whole.

Of several configurations a second figure compares when transfers are there, as a share of their time, routings
side by side and other swept keys in panels.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.collective import Collective
from analysis.figures.output import Picture, canvas, heading, legend, panels, table
from analysis.figures.points import Configuration, words
from analysis.figures.style import CRITICAL, FAINT, INK, MODE_STYLES, time_unit
from analysis.results.reader import Run

_PARTS = 60  # of the time in which what arrives is added up
_SHADES = ("#8FBBD9", "#C7DDEC", "#A9C9A4", "#D7E6D3", "#E3C9A0", "#F1E4CE")
_HATCHES = ("", "///", "...")  # of two shades each, which are as dark as other two are

Floats = npt.NDArray[np.float64]


def picture(name: str, collectives: Sequence[Collective]) -> Picture:
    """The calendar of a round in its modes, `name` being the run's; its configuration has transfers."""
    configuration, number = collectives[0].configuration, collectives[0].number
    found = configuration.admission
    is_promised = any(one["rates_bps"] for one in found)
    last_s = max(
        *(end_s for one in found for end_s in (one["due_s"], *one["edges_s"])),
        *(move.end_s for one in collectives for move in one.moves),
    )
    unit_s, unit = time_unit(last_s)
    edges_s = np.linspace(0.0, last_s, _PARTS + 1)
    with canvas(8.0, 0.9 + 1.25 * len(found)) as figure:
        every = figure.subplots(len(found), 1, squeeze=False, sharex=True)[:, 0]
        for axes, one in zip(every, found, strict=True):
            _promised(axes, one, unit_s)
            for seen in collectives:
                style = MODE_STYLES[seen.mode]
                bps = _delivered_bps(seen, one, edges_s) / 1e9
                axes.stairs(bps, edges_s / unit_s, color=style.colour, linewidth=1.4, baseline=None)
            is_sent = bool(one["edges_s"][1:]) or one["transfers"] != [0, 0]
            axes.set_title(one["sentence"], fontsize=8, loc="left", color=INK if is_sent else FAINT)
            if is_sent:
                axes.axvline(one["due_s"] / unit_s, color=CRITICAL, linestyle="--", linewidth=1.2)
            else:
                axes.set_yticks([])
            axes.set_ylabel("Gbit/s", fontsize=8)
            axes.set_ylim(bottom=0)
        every[-1].set_xlim(0, last_s * 1.02 / unit_s)
        every[-1].set_xlabel(f"time from the round's beginning ({unit})")
        words = "measured" if collectives[0].measured else "predicted"
        handles: list[Any] = [Patch(facecolor=_SHADES[0], label="promised, a shade for each tunnel")] * is_promised
        handles += [
            Line2D([], [], color=MODE_STYLES[one.mode].colour, label=f"delivered, {one.mode} ({words})")
            for one in collectives
        ]
        handles.append(Line2D([], [], color=CRITICAL, linestyle="--", label="all is due"))
        legend(figure, handles)
        heading(figure, f"{configuration.label}: collective {number}")
    return Picture(
        name=f"{name}-calendar",
        caption=f"What was {'promised to' if is_promised else 'asked for by'} each transfer over time and what was "
        f"delivered: {configuration.label}.",
        figure=figure,
        data=table(_data(found, collectives, edges_s)),
    )


class Kept(NamedTuple):
    """When a transfer was there in the last of all rounds of a configuration and mode, s; NaN if it was not sent."""

    setting: int
    engine: str
    mode: str
    job: str
    outcome: str
    due_s: float
    there_s: float

    @property
    def in_time(self) -> bool:
        """Whether that was by the time that it asked for or, deferred, was promised."""
        return self.there_s <= self.due_s


def kept_of(run: Run, configuration: Configuration) -> list[Kept]:
    """The transfers of a configuration in its modes, as measured, or else as the model has them."""
    rows = run.jobs[run.jobs["setting"] == configuration.index]
    is_measured = rows["engine"] == "emulation"
    rows, found = (rows[is_measured] if is_measured.any() else rows), []
    for (engine, mode), here in rows.groupby(["engine", "mode"], sort=False):
        there_s = (here["start_s"] + here["completion_s"]).groupby(here["job"]).max()
        for one in configuration.admission:
            at_s = float(there_s.get(one["job"], math.nan))
            found.append(Kept(configuration.index, engine, mode, one["job"], one["outcome"], one["due_s"], at_s))
    return found


def deadlines(name: str, run: Run, configurations: Sequence[Configuration]) -> Picture | None:
    """The figure that compares the transfers of configurations of a run of this name; None where none is stored."""
    groups = [
        (one, mode, [kept for kept in found if kept.mode == mode])
        for one in configurations
        if (found := kept_of(run, one))
        for mode in dict.fromkeys(kept.mode for kept in found)
    ]
    if not groups:
        return None
    jobs = list(dict.fromkeys(kept.job for *_, found in groups for kept in found))
    several = len({mode for _, mode, _ in groups}) > 1
    parts: dict[str, list[tuple[str, list[Kept]]]] = {}  # in a panel routings are compared, if they are swept
    for configuration, mode, found in groups:
        at = {key: words(key, value) for key, value in configuration.swept.items()}
        of = [at.pop("fabric.routing")] if "fabric.routing" in at else [*at.values()] or [configuration.label]
        part = ", ".join(at.values()) if "fabric.routing" in configuration.swept else ""
        how = "without admission" if all(kept.outcome == "sent" for kept in found) else "with admission"
        in_time = f"{sum(kept.in_time for kept in found)} of {len(found)} in time"
        parts.setdefault(part, []).append(("\n".join([*of, *[mode] * several, how, in_time]), found))
    looks: list[dict[str, Any]] = [
        {"facecolor": _SHADES[place % len(_SHADES)], "hatch": _HATCHES[place % len(_SHADES) // 2]}
        for place in range(len(jobs))
    ]
    width = max(5.6, 0.9 + 1.8 * max(map(len, parts.values())))
    with canvas(width, 0.6 + 2.7 * len(parts)) as figure:
        every = panels(figure, len(parts), columns=1, sharey=True)
        for axes, (part, columns) in zip(every, parts.items(), strict=True):
            for place, (_, found) in enumerate(columns):
                for kept in found:
                    x = place + ((jobs.index(kept.job) + 0.5) / len(jobs) - 0.5) * 0.84
                    if math.isnan(kept.there_s):
                        look: dict[str, Any] = {"ha": "center", "va": "bottom", "color": CRITICAL, "fontsize": 8}
                        axes.text(x, 0.02, kept.outcome, rotation=90, **look)
                        continue
                    look = {"edgecolor": INK if kept.in_time else CRITICAL, "linewidth": 0.6 if kept.in_time else 1.8}
                    share = kept.there_s / kept.due_s
                    axes.bar(x, share, 0.84 / len(jobs), **looks[jobs.index(kept.job)], **look)
            axes.axhline(1.0, color=CRITICAL, linestyle="--", linewidth=1.2)
            axes.set_xlim(-0.5, len(columns) - 0.5)
            axes.set_title(part)
            axes.set_xticks(range(len(columns)), [label for label, _ in columns])
            axes.set_ylabel("there / due")
        handles: list[Any] = [
            Patch(edgecolor=INK, linewidth=0.6, label=job, **look) for job, look in zip(jobs, looks, strict=True)
        ]
        handles.append(Line2D([], [], color=CRITICAL, linestyle="--", label="due"))
        legend(figure, handles)
        side = "measured" if any(kept.engine == "emulation" for *_, found in groups for kept in found) else "predicted"
        heading(figure, f"Time until each transfer is there, as a share of its time until it is due ({side})")
    return Picture(
        name=f"{name}-deadlines",
        caption="When each transfer was there, as a share of its time, in each configuration.",
        figure=figure,
        data=table({**kept._asdict(), "in_time": kept.in_time} for *_, found in groups for kept in found),
    )


def _promised(axes: Axes, one: Mapping[str, Any], unit_s: float) -> None:
    edges_s, below = np.array(one["edges_s"]), np.zeros(max(0, len(one["edges_s"]) - 1))
    for place, rates_bps in enumerate(one["rates_bps"].values()):
        above = below + np.array(rates_bps) / 1e9
        shade = _SHADES[place % len(_SHADES)]
        axes.stairs(above, edges_s / unit_s, baseline=below, fill=True, color=shade, linewidth=0)
        below = above


def _delivered_bps(seen: Collective, one: Mapping[str, Any], edges_s: Floats) -> Floats:
    """The rate at which a transfer's bytes arrive between these instants, bit/s."""
    first, last = one["transfers"]
    arrived = np.zeros(len(edges_s))
    for index, flow in enumerate(seen.flows):
        before_s = 0.0
        for move in seen.moves_over(index) if flow.links else ():
            if first <= move.transfer < last:
                # The first bit is on its way before that where it waits at a link.
                begins_s = min(max(move.leaves_s + flow.delay_s, before_s), move.end_s - 1e-9)
                arrived += 8.0 * move.size * np.clip((edges_s - begins_s) / (move.end_s - begins_s), 0.0, 1.0)
                before_s = move.end_s
    return np.asarray(np.diff(arrived) / np.diff(edges_s), dtype=np.float64)


def _data(
    found: Sequence[Mapping[str, Any]], collectives: Sequence[Collective], edges_s: Floats
) -> Iterator[dict[str, Any]]:
    for one in found:
        about = {"job": one["job"], "outcome": one["outcome"]}
        spans = zip(one["edges_s"][:-1], one["edges_s"][1:], strict=True)
        yield {**about, "what": "due", "mode": "", "from_s": one["start_s"], "to_s": one["due_s"], "bps": math.nan}
        for span, *rates_bps in zip(spans, *one["rates_bps"].values(), strict=False):
            for tunnel, bps in zip(one["rates_bps"], rates_bps, strict=True):
                yield {**about, "what": tunnel, "mode": "", "from_s": span[0], "to_s": span[1], "bps": bps}
        for seen in collectives:
            which = {**about, "what": "delivered", "mode": seen.mode}
            for place, bps in enumerate(_delivered_bps(seen, one, edges_s).tolist()):
                yield {**which, "from_s": edges_s[place], "to_s": edges_s[place + 1], "bps": bps}
