"""The faults of a run: for each, the times until it was detected and until the run had recovered from it, and its cost.

Times are those of the experiment's clock; in virtual time that is the clock of the emulated network.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.figures.output import ON_WHITE, Picture, canvas, csv_text, explain, heading
from analysis.figures.run_points import configurations_of
from analysis.figures.style import FAINT, INK, MODE_STYLES, place_of, time_unit, typical_unit
from analysis.results.reader import Run
from analysis.statistics.fault_costs import PARTLY, FaultCost, costs_words, faults_of
from topologies.errors import list_all, list_first

_MOST = 40  # faults that are drawn; the data file has all of them
_MOST_PARTS = 2  # parts of the collectives that a fault hits, which differ by mode
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MIN_S = 1e-6  # shorter times are drawn here


def measured(run: Run) -> pd.DataFrame:
    """Return the faults of a run that were measured: predicted ones have no times."""
    return run.faults if run.faults.empty else run.faults[run.faults["engine"] != "model"]


def picture(name: str, run: Run) -> Picture | None:
    """Draw the measured faults of the run called `name`, which must have some: their times, unless none is longer than
    1 us, and their costs, unless none is known. None without either."""
    by_mode = {"key": lambda column: column.map(place_of) if column.name == "mode" else column}
    rows = measured(run).sort_values(["setting", "at_collective", "number", "mode"], **by_mode)
    shown = rows.head(_MOST)
    has_times = bool((shown[["detected_s", "recovered_s"]] > _MIN_S).any(axis=None))
    has_costs = bool(shown["cost_s"].notna().any())
    parts = [_draw_times] * has_times + [_draw_costs] * has_costs
    if not parts:
        return None
    with canvas(5.6, 0.9 + (0.8 + 0.26 * len(shown)) * len(parts)) as figure:
        grid = figure.subplots(len(parts), 1, squeeze=False)[:, 0]
        for axes, draw in zip(grid, parts, strict=True):
            draw(axes, shown)
            axes.grid(True, axis="x")
        names, settings = _short_names(shown), _words_of_settings(run)
        records = [*shown.itertuples(index=False)]
        labels = [f"{settings.get(row.setting, '')}{names[_words(row)]}, {row.mode}" for row in records]
        for axes in grid:
            axes.set_yticks(range(len(shown)), labels)
            axes.set_ylim(len(shown) - 0.5, -0.5)
        lost, again = int(rows.collectives_lost.sum()), int(rows.bytes_again.sum())
        more = f"; the first {len(shown)} are shown" if len(rows) > len(shown) else ""
        sent = "sent again, those of failed attempts included" if lost else "retransmitted"
        told = f"{_counted(rows)}: {lost} collectives lost, {again:,} bytes {sent}{more}"
        heading(figure, told)
        parts_of = _parts(run, names)
        explain(figure, "\n".join(f"{name}: {words}{parts_of[words]}" for words, name in names.items()))
        what = ["time from each fault to its detection and to the recovery from it"] * has_times
        of_rounds = " the rounds (the report has its cost to each job)" if _has_jobs(rows) else ""
        what += [f"what each fault cost{of_rounds}{', failed attempts included' * bool(lost)}"] * has_costs
        caption = list_all(what)
        return Picture(
            name=f"{name}-faults",
            caption=f"{caption[0].upper()}{caption[1:]}.",
            figure=figure,
            data=csv_text(map(_cells, rows.to_dict("records"))),
        )


def _cells(record: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a fault's row of the figure's data, with its costs in a cell each: "3:0.12 4:0.06"."""
    lists = {"costs": "collective", "jobs": "job"}
    return {**record} | {
        name: " ".join(f"{one[key]}:{one['cost_s']!r}" for one in _list(record.get(name)))
        for name, key in lists.items()
    }


def _has_jobs(rows: pd.DataFrame) -> bool:
    """Return whether some of these faults hit rounds of several jobs."""
    return "jobs" in rows and any(len(_list(cell)) > 1 for cell in rows["jobs"])


def _list(cell: Any) -> Any:
    return cell if isinstance(cell, list | tuple | np.ndarray) else ()  # None, NaN or NA where it is not known


def _words(row: Any) -> str:
    return f"{row.what} in collective {row.at_collective:,}"


def _parts(run: Run, names: Iterable[str]) -> dict[str, str]:
    """Return for each of these faults, by its words, in which of the collectives that it hits its cost arises, if only
    some of these are measured; "" otherwise."""
    found, is_predicted = dict[str, set[str]](), bool((run.faults["engine"] == "model").any())
    results = faults_of(run) if is_predicted else {}  # or else all that there is is measured
    for one in (one for here in results.values() for one in here if one.is_measured):
        found.setdefault(_words(one), set()).add(FaultCost(results=(one,)).some_words)
    some = {words: sorted(found.get(words, set()) - {""}) for words in names}
    return {words: f"; costs{list_first(parts, _MOST_PARTS, ',')}" * bool(parts) for words, parts in some.items()}


def _short_names(rows: pd.DataFrame) -> dict[str, str]:
    """Return a short name of each fault of these rows by its words: its number, or a letter where configurations have
    others of the same numbers, or where no fault was declared."""
    numbers: dict[str, int] = {_words(row): row.number for row in rows.itertuples(index=False)}
    is_clear = all(numbers.values()) and len({*numbers.values()}) == len(numbers)
    return {
        words: f"fault {number if is_clear else _LETTERS[place % len(_LETTERS)] * (1 + place // len(_LETTERS))}"
        for place, (words, number) in enumerate(numbers.items())
    }


def _words_of_settings(run: Run) -> dict[int, str]:
    """Return in what a configuration differs from others, but for its faults, by its index; none of a single one."""
    if len(run.settings) < 2:
        return {}
    found = {
        one.index: ", ".join(one.words(key) for key in one.swept if key != "fault") for one in configurations_of(run)
    }
    return {index: f"{words}: " for index, words in found.items() if words}


def _draw_times(axes: Axes, shown: pd.DataFrame) -> None:
    """Draw when each fault was detected and recovered from."""
    times_s = [_MIN_S]
    for y, row in enumerate(shown.itertuples(index=False)):
        style = MODE_STYLES[row.mode]
        ends = [max(_MIN_S, time) for time in (row.detected_s, row.recovered_s) if not math.isnan(time)]
        times_s += ends
        axes.plot(ends, [y] * len(ends), color=FAINT, linewidth=1.2, zorder=1)
        for time, filled in ((row.detected_s, False), (row.recovered_s, True)):
            if not math.isnan(time):
                face = style.colour if filled else "white"
                size = 5 if filled else 8  # so that the open marker is seen around a filled one at the same place
                axes.plot(max(_MIN_S, time), y, style.marker, color=face, markeredgecolor=INK, markersize=size)
        if not ends:
            axes.plot(_MIN_S, y, "", color=FAINT)
            words = row.outcome.partition(":")[0]
            axes.annotate(words, (_MIN_S, y), va="center", color=FAINT, fontsize=7.5, bbox=ON_WHITE)
    axes.set_xscale("log")
    unit_s, unit = typical_unit([time_s for time_s in times_s if time_s > _MIN_S] or times_s)
    _label_decades(axes, times_s, unit_s)
    axes.set_xlabel(f"time since the fault ({unit}):\ndetected (open), recovered (filled)")


def _draw_costs(axes: Axes, shown: pd.DataFrame) -> None:
    """Draw what each fault cost, with the number beside the bar."""
    costs_s = shown["cost_s"].to_numpy(dtype=float)
    unit_s, unit = time_unit(float(np.nanmax(np.abs(costs_s))))
    for y, (row, cost_s) in enumerate(zip(shown.itertuples(index=False), costs_s, strict=True)):
        cost, style = cost_s / unit_s, MODE_STYLES[row.mode]
        words = row.outcome.partition(":")[0] if math.isnan(cost_s) else costs_words([cost_s], _error_s(row))
        words += " in later collectives" * (row.outcome == PARTLY)
        if not math.isnan(cost_s):
            axes.barh(y, cost, 0.6, color=style.colour, hatch=style.hatch, edgecolor=INK, linewidth=0.6)
        where: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 7.5}
        axes.annotate(words, (max(0.0, np.nan_to_num(cost)), y), color=INK, bbox=ON_WHITE, **where)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.margins(x=0.18)
    axes.set_xlabel(f"cost ({unit}): longer than predicted without faults")


def _error_s(row: Any) -> float:
    """Return how far a fault's cost may be off, 0 if that is not stored."""
    error_s = getattr(row, "error_s", 0.0)
    return 0.0 if error_s is None or math.isnan(error_s) else float(error_s)


def _counted(rows: pd.DataFrame) -> str:
    """Return how many faults there were, each of which has a row for each mode: "1 fault in 2 modes"."""
    faults, modes = len(rows[["setting", "number"]].drop_duplicates()), rows["mode"].nunique()
    return f"{faults} fault{'s' * (faults > 1)}" + (f" in {modes} modes" if modes > 1 else "")


def _label_decades(axes: Axes, times_s: Sequence[float], unit_s: float) -> None:
    """Make the logarithmic x axis have the decades of these times, at least one, in a unit of so many seconds."""
    least, most = math.floor(math.log10(min(times_s))), math.ceil(math.log10(max(times_s)))
    axes.set_xlim(0.8 * 10.0**least, 1.25 * 10.0 ** max(most, least + 1))
    axes.xaxis.set_major_formatter(FuncFormatter(partial(_tick_label, unit_s)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _tick_label(unit_s: float, time_s: float, _index: int | None = None) -> str:
    text = f"{time_s / unit_s:,.10g}"
    return f"≤ {text}" if time_s <= _MIN_S else text
