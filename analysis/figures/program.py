"""The run of a program over time: the utilisation of each WAN link, and the end of each rank."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.figures.output import Picture, canvas, csv_text, heading
from analysis.figures.style import INK, MODE_STYLES, line_style, time_unit

_LOOKS = [style.colour for style in MODE_STYLES.values()]
_LINES = ("-", (0, (4, 1.5)), (0, (1, 1)))
_WRONG = "#C2185B"
_MOST = 1.05  # utilisation that is shown: packets that wait in a queue's burst may leave up to that much faster


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


def steps(results: Sequence[tuple[Mapping[str, Any], float | None]]) -> Picture:
    """Draw the median step time of a program against the last swept value, a line for each combination of the others.

    `results` are the values by swept key (the mode is one) of each run, and its median step time in s, None if its
    ranks told none. Values stand in the order of the sweep, equally far apart.
    """
    known = [(values, step_s) for values, step_s in results if step_s is not None]
    keys = [key for key in known[0][0] if key != "mode"] or ["mode"]
    x_key, others = keys[-1], [key for key in known[0][0] if key != keys[-1]]
    ticks = list(dict.fromkeys(str(values[x_key]) for values, _ in results))
    scale, unit = time_unit(max(step_s for _, step_s in known))
    lines: dict[str, list[tuple[int, float]]] = {}
    for values, step_s in known:
        name = ", ".join(str(values[key]) for key in others)
        lines.setdefault(name, []).append((ticks.index(str(values[x_key])), step_s / scale))
    with canvas(5.2, 3.2) as figure:
        axes = figure.subplots()
        for index, (name, spots) in enumerate(lines.items()):
            look = line_style(index) | {"linestyle": "-", "markersize": 5}
            axes.plot(*zip(*spots, strict=True), label=name, **look)
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x_key)
        axes.set_ylabel(f"median time of a step ({unit})")
        if others:
            axes.legend(fontsize="small", title=", ".join(others), title_fontsize="small")
    rows = [{**values, "step_s": step_s} for values, step_s in known]
    caption = f"Median time of a program's step against {x_key}."
    return Picture(name="steps", caption=caption, figure=figure, data=csv_text(rows))


def picture(run: Mapping[str, Any], samples: Sequence[tuple[int, Sequence[int], Sequence[float]]]) -> Picture:
    """Draw a run, given as the contents of program.json.

    Each of the samples, at least one, has the ns since the run's start, the bytes that each WAN link has carried since
    then, and the bytes that it could have carried.
    """
    at_s = np.array([at_ns for at_ns, _, _ in samples]) / 1e9
    sent, possible = (np.array([one[part] for one in samples], dtype=np.float64) for part in (1, 2))  # [samples, links]
    keep = _kept(at_s)
    at_s, sent = at_s[keep], sent[keep]
    with np.errstate(divide="ignore", invalid="ignore"):  # a link without rate
        used = np.diff(sent, axis=0) / np.diff(possible[keep], axis=0)
    used = np.where(used <= _MOST, used, np.nan)  # more than a few packets too many: the run was too short to tell
    last_s = max(float(run["run_s"]), 1e-9)
    scale, unit = time_unit(last_s)
    ranks = run["ranks"]
    with canvas(7.0, 3.2 + 0.16 * len(ranks)) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2.6, 0.4 + 0.16 * len(ranks)])
        for index, link in enumerate(np.flatnonzero(sent[-1])):
            look = {"color": _LOOKS[index % len(_LOOKS)], "linestyle": _LINES[index // len(_LOOKS) % len(_LINES)]}
            name = run["links"][link]["link"]
            above.stairs(100 * used[:, link], at_s / scale, baseline=None, label=name, linewidth=1.3, **look)
        for fault in run.get("faults", ()):
            over_s = last_s if fault["over_s"] is None else fault["over_s"]
            for axes in (above, below):
                axes.axvspan(fault["began_s"] / scale, over_s / scale, color=_WRONG, alpha=0.12, linewidth=0)
        above.set_ylim(0, None)
        above.set_ylabel("utilisation (%)")
        if above.get_legend_handles_labels()[0]:
            above.legend(fontsize="x-small", ncols=2)
        for y, one in enumerate(ranks):
            end_s = last_s if one["end_s"] is None else one["end_s"]
            colour = _LOOKS[0] if one["status"] == 0 else _WRONG
            below.barh(y, end_s / scale, height=0.7, color=colour)
        below.set_yticks(range(len(ranks)), [f"{one['rank']} ({one['gpu']})" for one in ranks], fontsize=7)
        below.invert_yaxis()
        below.grid(False)
        below.set_ylabel("rank")
        below.set_xlabel(f"time since the ranks were started ({unit})", color=INK)
        below.set_xlim(0, last_s / scale)
        heading(figure, "WAN links and ranks of a program")
    rows = [
        {"from_s": at_s[row], "until_s": at_s[row + 1], "link": link["link"], "utilisation": used[row, number]}
        for row in range(len(used))
        for number, link in enumerate(run["links"])
    ] or [{"from_s": 0.0, "until_s": 0.0, "link": "", "utilisation": 0.0}]
    failed = " Ranks that failed are red." if any(one["status"] for one in ranks) else ""
    failed += " Faults are in force where it is shaded." if run.get("faults") else ""
    return Picture(
        name="program",
        caption=f"Utilisation of the WAN links that carried traffic, and the lifetimes of the ranks.{failed}",
        figure=figure,
        data=csv_text(rows),
    )
