"""The run of a program over time: the utilisation of each WAN link, and the end of each rank."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.figures.output import Picture, canvas, csv_text, explain, heading, legend
from analysis.figures.run_points import label_of, labelled, number_of, words
from analysis.figures.style import INK, MODE_STYLES, dashed_style, line, line_style, marker, name_modes, time_unit
from analysis.figures.swept_axis import SweptAxis, swept_axis
from topologies.shaping.classes import FRAME_BYTES
from topologies.units import parse_rate_range_bps

_DONE = MODE_STYLES["base"].colour
_STEPS_INCHES = 5.6
_WRONG = "#C2185B"
_MOST = 1.05  # utilisation above which the time between two samples was too short to tell
_MAX_BARS = 48
_PARTS = {"computing": "#7FA3B5", "exposed": "#B5472F", "waiting": "#CCCCCC"}
_COMPUTING = ("computing_rank", "computing_rank_step_s", "computing_s")
_LEGEND_COLUMNS = 6  # links in a row of the legend


def _kept(at_s: npt.NDArray[np.float64]) -> list[int]:
    """Return the indices of samples that are at least half as far apart as most are, the first and the last included. A
    packet counts whole when it leaves, so the bytes of a much shorter time say nothing about the link's use."""
    after = at_s[at_s > at_s[0]]
    if not after.size:
        return [0]
    least_s, kept = 0.5 * float(np.median(np.diff([at_s[0], *after]))), [0]
    for index in range(1, at_s.size):
        if at_s[index] >= at_s[kept[-1]] + least_s:
            kept.append(index)
    if kept[-1] != at_s.size - 1:
        kept[max(1, len(kept) - 1) :] = [at_s.size - 1]
    return kept


class StepsOfRun(NamedTuple):
    """The values by swept key (the mode is one) of a run, its median step time in s, None if its ranks told none, of
    how many steps, and the rank whose steps took longest together, its median step in s, and how many s of it are
    computing; None if it is not known."""

    values: Mapping[str, Any]
    step_s: float | None
    number: int
    computing: tuple[int, float, float] | None = None


def steps(results: Sequence[StepsOfRun], title: str, *, has_ranks: bool = True) -> Picture:
    """Draw the step time of a program against a swept key, a line for each combination of the others, and how much of
    it is computing. Unless it `has_ranks`, it is not known on which rank each step was.

    The key is the last one of quantities, or else the last one. No line joins values of the latter.
    """
    known = [(one.values, one.step_s, one.computing) for one in results if one.step_s is not None]
    counts = sorted({one.number for one in results if one.step_s is not None})
    keys = [key for key in known[0][0] if key != "mode"] or ["mode"]
    axes_of = {key: _axis(key, [one.values[key] for one in results]) for key in keys}
    x_key = next((key for key in reversed(keys) if axes_of[key].is_numeric), keys[-1])
    axis, others = axes_of[x_key], [key for key in known[0][0] if key != x_key]
    scale, unit = time_unit(max(step_s for _, step_s, _ in known))
    lines: dict[str, list[tuple[float, float]]] = {}
    computing: dict[str, list[tuple[float, float]]] = {}
    for values, step_s, found in known:
        name = ", ".join(_words(key, values[key]) for key in others)
        x = axis.x[axis.labels.index(words(*_stored(x_key, values[x_key])))]
        lines.setdefault(name, []).append((x, step_s / scale))
        if found is not None:  # not a share of step_s, which another rank may have at each step
            computing.setdefault(name, []).append((x, found[-1] / scale))
    if others == ["mode"]:
        name_modes(lines)
    with canvas(_STEPS_INCHES, 3.6) as figure:
        axes = figure.subplots()
        for index, (name, spots) in enumerate(lines.items()):
            look = line_style(index) if others != ["mode"] else marker(name, measured=True) | line(name)
            look |= {"markersize": max(4.0, 9.0 - 1.5 * index)}  # markers that coincide are all seen
            look |= {} if axis.is_numeric else {"linestyle": "none"}
            axes.plot(*zip(*sorted(spots), strict=True), label=name, **look)
            if name in computing:
                look |= {"markerfacecolor": "none", "markeredgecolor": look["color"], "linewidth": 0.7}
                axes.plot(*zip(*sorted(computing[name]), strict=True), label="_", **look)
        axis.draw(axes, inches=_STEPS_INCHES)
        axes.grid(True, axis="both")
        axes.margins(x=0.08, y=0.08)
        axes.update_datalim([(axes.dataLim.x0, 0)], updatex=False)  # so that equal times have room above, too
        axes.set_ylim(bottom=0)
        axes.set_xlabel(label_of(_stored(x_key, None)[0]))
        of = (
            f"{counts[0]:,} step{'s' * (counts[0] > 1)}"
            if len(counts) == 1
            else f"{counts[0]:,} to {counts[-1]:,} steps"
        )
        axes.set_ylabel(f"step time ({unit}), median of\n{of}{', each on its slowest rank' if has_ranks else ''}")
        heading(figure, "\n".join(["Step time of a program", title.replace(" us", " µs")]))
        hollow = "Hollow: computing in a step, on the rank whose steps took longest together." if computing else ""
        if others:
            legend(figure, axes.get_legend_handles_labels()[0], hollow)
        elif hollow:
            explain(figure, hollow)
    rows = [
        {**one.values, "step_s": one.step_s, "steps": one.number}
        | dict(zip(_COMPUTING, one.computing or [None] * len(_COMPUTING), strict=True))
        for one in results
        if one.step_s is not None
    ]
    against = label_of(_stored(x_key, None)[0])
    on_rank = ", each on its slowest rank" if has_ranks else ""
    caption = f"Time of a program's steps{on_rank}, the median of {of}, against {against}. {hollow}".strip()
    return Picture(name="steps", caption=caption, figure=figure, data=csv_text(rows))


def parts(results: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]], title: str) -> Picture:
    """Draw what the steps of a program consisted of in each run, a bar for each.

    `results` are the values by swept key (the mode is one) of each run, and the means of its steps' parts in s, as
    `script_steps` of program.json has them; None if there were none.
    """
    known = [(values, means) for values, means in results if means is not None]
    shown = known[:_MAX_BARS]
    scale, unit = time_unit(max(means["step_s"] for _, means in shown))
    names = [", ".join(_words(key, value) for key, value in values.items()) for values, _ in shown]
    with canvas(7.0, 1.5 + 0.24 * len(shown)) as figure:
        axes = figure.subplots()
        begins = [0.0] * len(shown)
        for part, colour in _PARTS.items():
            widths = [means[f"{part}_s"] / scale for _, means in shown]
            axes.barh(range(len(shown)), widths, left=begins, height=0.7, color=colour, label=part)
            begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
        axes.set_yticks(range(len(shown)), names, fontsize=7)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.grid(True, axis="x")
        axes.set_xlabel(f"mean of all ranks and steps ({unit})", color=INK)
        heading(figure, "\n".join(["Parts of a program's step", title.replace(" us", " µs")]))
        left_out = f"{len(known) - len(shown)} more runs are left out." if len(known) > len(shown) else ""
        legend(figure, axes.get_legend_handles_labels()[0], left_out)
    columns = [f"{part}_s" for part in ("step", *_PARTS)]
    rows = [{**values, **{name: means[name] for name in columns}} for values, means in known]
    caption = "Mean time of a step on a rank: computing, communication that no kernel hides (exposed), and waiting."
    return Picture(name="step-parts", caption=caption, figure=figure, data=csv_text(rows))


def _axis(key: str, values: Sequence[Any]) -> SweptAxis:
    """Return the x axis of the values of a swept key."""
    stored = {words(name, value): number_of(name, value) for name, value in (_stored(key, one) for one in values)}
    return swept_axis(list(stored), list(stored.values()))


def _stored(key: str, value: Any) -> tuple[str, Any]:
    """Return a swept key and its value as settings.json has them; tables of programs have times in s, and text."""
    if key.endswith("_rate") and isinstance(value, str):
        return key, list(parse_rate_range_bps(value))
    if key == "fabric.gpus" and isinstance(value, str) and value.isdecimal():
        return key, int(value)
    return key.removesuffix("_s"), value


def _words(key: str, value: Any) -> str:
    """Return a swept value in words with its key, and a mode by its name."""
    return str(value) if key == "mode" else labelled(*_stored(key, value))


def _has_failed(rank: Mapping[str, Any]) -> bool:
    """Return whether a rank has failed; one that only waited for others, and was stopped, has not."""
    return rank["status"] != 0 and not rank.get("stopped", False)


def which_of(run: Mapping[str, Any]) -> str:
    """Return which configuration of a sweep a run is, given as the contents of program.json, in words: what differs
    between them; "" of a single one."""
    values = run.get("values", {})
    return ", ".join(f"mode {value}" if key == "mode" else _words(key, value) for key, value in values.items())


def picture(run: Mapping[str, Any], samples: Sequence[tuple[int, Sequence[int], Sequence[float]]]) -> Picture:
    """Draw a run, given as the contents of program.json.

    Each of the samples, at least one, has the ns since the run's start, the bytes that each WAN link has carried since
    then, and the bytes that it could have carried.
    """
    at_s = np.array([at_ns for at_ns, _, _ in samples]) / 1e9
    sent, possible = (np.array([one[part] for one in samples], dtype=np.float64) for part in (1, 2))  # [samples, links]
    keep = _kept(at_s)
    at_s, sent = at_s[keep], sent[keep]
    carried, most = np.diff(sent, axis=0), np.diff(possible[keep], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a link without rate
        used = carried / most
    used[~(used <= _MOST) & (carried > 0)] = np.nan
    used[(used > 1) & (carried - most <= FRAME_BYTES)] = 1.0  # a packet counts whole when it leaves
    used[carried == 0] = 0.0
    is_gap = bool(np.isnan(used).any())
    last_s = max(float(run["run_s"]), 1e-9)
    scale, unit = time_unit(last_s)
    ranks = run["ranks"]
    with canvas(7.0, 3.2 + 0.16 * len(ranks)) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2.6, 0.4 + 0.16 * len(ranks)])
        for index, link in enumerate(np.flatnonzero(sent[-1])):
            look = {"linewidth": 1.3} | dashed_style(index)
            name, shown = run["links"][link]["link"], 100 * used[:, link]
            # Servers may end after the run. A line that leaves the axes, unclipped, leaves no room for these.
            edges = np.minimum(at_s, last_s) / scale
            above.stairs(shown, edges, baseline=None, label=name, clip_on=False, **look)
        for fault in run.get("faults", ()):
            over_s = last_s if fault["over_s"] is None else fault["over_s"]
            if fault["over_s"] is None and fault["what"] == "controller killed" and fault["recovered_s"] is not None:
                over_s = min(last_s, fault["began_s"] + fault["recovered_s"])  # a new one was started at once
            for axes in (above, below):
                axes.axvspan(fault["began_s"] / scale, over_s / scale, color=_WRONG, alpha=0.12, linewidth=0)
        above.set_ylim(0, max(100.0, 100 * float(np.nanmax(used, initial=0.0))))
        above.set_ylabel("utilisation (%)")
        if above.get_legend_handles_labels()[0]:
            where: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.02), "borderaxespad": 0}
            above.legend(fontsize="x-small", ncols=_LEGEND_COLUMNS, **where)
        for y, one in enumerate(ranks):
            end_s = last_s if one["end_s"] is None else one["end_s"]
            look = {"color": _WRONG, "hatch": "///", "edgecolor": "white"} if _has_failed(one) else {"color": _DONE}
            below.barh(y, min(end_s, last_s) / scale, height=0.7, linewidth=0, **look)
        below.set_yticks(range(len(ranks)), [f"{one['rank']} ({one['gpu']})" for one in ranks], fontsize=7)
        below.invert_yaxis()
        below.grid(False)
        below.set_ylabel("rank")
        below.set_xlabel(f"time since the ranks were started ({unit})", color=INK)
        below.set_xlim(0, last_s / scale)
        heading(figure, f"WAN links and ranks of a program\n{which_of(run)}")
        notes = ["Hatched: ranks that failed."] * any(map(_has_failed, ranks))
        notes += ["Where a line is missing, the time between two samples is too short to tell."] * is_gap
        notes += ["Faults are in force where it is shaded."] * bool(run.get("faults"))
        explain(figure, " ".join(notes))
    rows = [
        {"from_s": at_s[row], "until_s": at_s[row + 1], "link": link["link"], "utilisation": used[row, number]}
        for row in range(len(used))
        for number, link in enumerate(run["links"])
    ] or [{"from_s": 0.0, "until_s": 0.0, "link": "", "utilisation": 0.0}]
    of = which_of(run)
    return Picture(
        name="program",
        caption=f"Utilisation of the WAN links that carried traffic, and the lifetimes of the ranks{of and f': {of}'}."
        + "".join(f" {sentence}" for sentence in notes),
        figure=figure,
        data=csv_text(rows),
    )
