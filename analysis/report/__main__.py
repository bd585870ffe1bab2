"""Write the report of a stored run: ``python -m analysis.report DIR`` writes DIR/report.html and draws DIR/figures.

The report is one self-contained HTML page without scripts. It opens with the answer to the question that the run asked
and with the fidelity of its measurements. This module collects the contents of the page; report.html.j2 and report.css
lay it out, and `analysis.figures` draws the figures.
"""

import base64
import gzip
import io
import json
import math
import re
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import compute
from pyarrow.csv import write_csv

from analysis.figures.__main__ import draw_all, exit_status_of, tasks_of, without_words
from analysis.figures.collective_detail import schedule_of
from analysis.figures.fidelity import fidelity_of
from analysis.figures.output import Picture, write_file
from analysis.figures.run_points import (
    Configuration,
    PointRows,
    Points,
    configurations_of,
    in_print,
    points_of,
    settings_of,
)
from analysis.figures.style import place_of
from analysis.results.paragraphs import About, Paragraph, those_about
from analysis.results.reader import Run, choices_of, open_run, reconfigurations_of
from analysis.statistics.answer import answer, winners
from analysis.statistics.block_notes import few_blocks_sentence
from analysis.statistics.claims import ABOUT, PAPER_JOINT_GAIN, PAPER_ORDER, claims, is_paper_configuration
from analysis.statistics.contests import BASELINE, MODE, Place, Setting, baselines_of, contests_of
from analysis.statistics.fault_costs import (
    FaultCost,
    FaultResult,
    PointCosts,
    chance,
    cost_words,
    faults_of,
    pooled_costs,
    told,
    worst_first,
)
from analysis.statistics.fidelity import fifo_of, percentage
from analysis.statistics.gain_times import gain_times_sentence
from analysis.statistics.grain_notes import grain_sentence, most_at_a_time
from analysis.statistics.intervals import Interval, Series, Summary, gain, reasons, summarise
from analysis.statistics.job_times import series_of_jobs
from analysis.statistics.number_words import bracketed, ends, estimate, fixed, quoted
from analysis.statistics.orders import SIGNS, orders_of
from analysis.statistics.rates import drawn_sentence
from analysis.statistics.shared_link_notes import notes, unmodelled_notes
from topologies.command_line import CommandParser
from topologies.conditions.sampler import sampler, trace_of
from topologies.errors import SpecError, list_first
from topologies.heartbeat import heartbeat

MAX_FIGURES = 6_000_000
"""Bytes of figures on one page; further figures are only files in the run's folder."""
MAX_ROWS = 100_000
"""Rows of collectives on one page, less than 3 MB of it; the run's folder holds all rows."""
_MAX_LINES = 1_000  # of the summary and every other table
_MOST_COSTS = 4  # collectives of a fault whose costs are in its line
_MAX_PLAIN_ROWS = 1_000  # a downloadable file with more rows is compressed

REPORT = "report.html"

_NONE = "-"  # in a cell that has nothing to tell
_NO_INTERVAL = "[-]"
_EMPTY = ("", _NONE)
_CHOICES = (
    *("engine", "setting", "mode", "collectives", "re-routed", "re-embedded"),
    *("to the paths in force", "to the ring in force"),
)
_JOBS = ("engine", "setting", "mode", "job", "background", "rounds", "measured (ms)", "predicted (ms)")
_FIFO = (
    *("setting", "mode", "collectives", "collectives' times", "transfers' times", "drops", "MB retransmitted"),
    *("lowest fairness", "on link"),
)
_FAULTS = (
    *("setting", "mode", "fault", "outcome", "at collective", "detected (ms)", "recovered (ms)", "cost (ms)"),
    *("gained (ms)", "as before"),
    *("to each job (ms)", "lasting part (ms)", "by collective (ms)", "attempts lost", "bytes again"),
)
_POOLED_FAULTS = ("engine", "setting", "mode", "fault", "at collective", "mean cost")
_RECONFIGURATION = "reconfiguration (ms), how often"
_UNMEASURED = "it was not measured"
_WHY_EMPTY = MappingProxyType(
    {
        "lower bound (ms)": "none is known for this kind of collective",
        _RECONFIGURATION: "nothing was changed, or the time of changes is not counted (control.counted = false)",
        "background": "the rounds wait for this job",
        "measured (ms)": _UNMEASURED,
        "lowest fairness": "no link was shared",
        "on link": "no link was shared",
        "detected (ms)": "it was never detected, or not measured",
        "recovered (ms)": "nothing was recovered, or not measured",
        "cost (ms)": "it is not predicted, or the time without the fault is not",
        "gained (ms)": "it is not predicted, or an earlier version did not store it",
        "as before": "no time was another one, or it is not known when",
        "to each job (ms)": "it is not predicted, rounds have one job, or an earlier version did not store it",
        "lasting part (ms)": "an earlier version did not store it, or the whole cost is predicted",
        "by collective (ms)": "the fault hit one collective, or an earlier version did not store it",
        "mean cost": "it is not predicted, or the time without the fault is not",
        "attempts lost": _UNMEASURED,
        "bytes again": _UNMEASURED,
    }
)
"""Why cells of tables are empty while others of their column are not, by the column."""

Baselines = Mapping[Place, tuple[str, Place]]
"""The name and the point of each point's baseline."""


@dataclass(frozen=True)
class PendingReport:
    """The figures of a run while they are being drawn, with the configurations and points that they show."""

    configurations: Sequence[Configuration]
    points: Points
    pictures: Iterable[Picture]


def start_drawing(run: Run) -> PendingReport:
    """Start to draw the figures of a run in forked processes. Raises the errors of `analysis.figures.__main__.draw`."""
    configurations = configurations_of(run)
    points = points_of(run, configurations)
    pictures = (picture for picture, _ in draw_all(tasks_of(run, configurations, points), run, "report"))
    return PendingReport(configurations, points, pictures)


def write(directory: str | Path, run: Run | None = None, begun: PendingReport | None = None) -> Path:
    """Write the report of the run in a folder, and its figures; returns the path of the page.

    `run` is the run of that folder if it has been read already, and `begun` the drawing of its figures if it was
    started already. Raises the errors of `analysis.figures.__main__.draw`.
    """
    if run is None or begun is None:
        with heartbeat(lambda: "report: reading the run"):
            run = run or open_run(directory)
            begun = begun or start_drawing(run)
    page = report(run, begun.configurations, begun.points, begun.pictures)
    return write_file(run.path / REPORT, page.encode())


def report(run: Run, configurations: Sequence[Configuration], points: Points, pictures: Iterable[Picture]) -> str:
    """Return the HTML page of a run with these points and figures."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    with heartbeat(lambda: "report: computing its tables"):
        loader = FileSystemLoader(Path(__file__).parent)
        page = Environment(autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True)
        all_points = list(points.values())
        times = {(one.engine, _place(one)): one.series for one in all_points}
        orders, paper = _orders(points)
        baselines = baselines_of(settings_of(points))
        gains = {id(point): _gain(point, points, baselines) for point in all_points}
        over = list(dict.fromkeys(name for point in all_points if (name := _over(point, baselines))))
        estimates = [(point, summarise(point.series), gains[id(point)]) for point in all_points]
        bases = {place for _, place in baselines.values()}
        summary = [_line(*estimate, is_baseline=_place(estimate[0]) in bases) for estimate in estimates]
        intervals = [
            (point.mode, times.mean_s, None if _place(point) in bases else over_base)
            for point, times, over_base in estimates
        ]
        queued = [line for point in all_points for line in _fifo_line(point)]
        costs = pooled_costs(settings_of(points), faults_of(run))
        rows = [_download(point, rows_a_point(all_points)) for point in all_points]
        said = _said(run)
    shown, left_out = _figures(pictures)  # last: they are drawn in other processes meanwhile
    return page.get_template("report.html.j2").render(
        name=run.provenance.get("name", "run"),
        answer=" ".join(said[About.ANSWER][0].lines)
        if said[About.ANSWER]
        else _answer(settings_of(points), times, _job_times(run, points), configurations, without_words(run, points)),
        said=said,
        about=About,
        complete=run.complete,
        fidelity=fidelity_of(points, run.jobs),
        measured=any(one.engine == "emulation" for one in all_points),
        percentage=percentage,
        sharing=_notes(configurations),
        scope=_scope(configurations, all_points),
        provenance=run.provenance,
        joined=lambda command: shlex.join(map(str, command)),
        dumps=lambda value: json.dumps(value, indent=2),
        pictures=shown,
        left_out=left_out,
        most_figures=MAX_FIGURES,
        summary=_sheet(_summary_columns(over), summary, 3, _WHY_EMPTY),
        no_intervals=reasons(intervals),
        few_blocks=few_blocks_sentence(intervals),
        choices=_sheet(_CHOICES, [*_choices(all_points)], 3),
        jobs=_sheet(_JOBS, [*_jobs(run, configurations)], 5, _WHY_EMPTY),
        queued=_sheet(_FIFO, queued, 2, _WHY_EMPTY),
        faults=_sheet(_FAULTS, [*_fault_lines(run, configurations)], 4, _WHY_EMPTY),
        pooled_faults=_sheet(_POOLED_FAULTS, [*_pooled_fault_lines(costs)], 6, _WHY_EMPTY),
        unpredicted=any(one.cost_words is None for point in costs if point.engine == "model" for one in point.faults),
        chance=chance(
            (one.fabric, one.conditions, one.seed)
            for one in configurations
            if any(one.index in c.settings for c in costs)
        ),
        cost_words=cost_words(one for point in costs for fault in point.faults for one in fault.results),
        most_lines=_MAX_LINES,
        orders=_sheet(("engine", "setting", "order found"), orders, 3),
        several_modes=len({one.mode for one in all_points}) > 1,
        signs=SIGNS,
        paper=_sheet(("engine", "setting", "order found", "order", "joint about 33 % below base"), paper, 5),
        claim={"order": PAPER_ORDER, "gain": PAPER_JOINT_GAIN, "about": ABOUT},
        rule=rule(all_points),
        rows=rows,
        scenario=run.scenario_text,
    )


def _answer(
    settings: Sequence[Setting],
    times: Mapping[tuple[str, Place], Series],
    jobs: Mapping[tuple[str, Place], Mapping[str, Series]],
    configurations: Sequence[Configuration],
    without: str,
) -> str:
    """Return the answer of a run that has not said any, as it is not finished or of an earlier version. `without` are
    sentences on what its times are without."""
    by_index = {one.index: one for one in configurations}
    grain = grain_sentence(
        winners(settings, times),
        lambda index: by_index[index].algorithm,
        lambda index: _most_at_a_time(by_index[index]),
    )
    drawn = drawn_sentence((one.fabric, one.conditions) for one in configurations)
    conditions = {one.index: one.conditions for one in configurations}
    when = gain_times_sentence(settings, times, conditions, {one.index: _in_gaps(one) for one in configurations})
    return " ".join(filter(None, [answer(settings, times, jobs), when, drawn, grain, without]))


def _in_gaps(configuration: Configuration) -> set[int]:
    """Return the collectives in gaps of a configuration's trace, if it has one that can still be read."""
    if configuration.conditions.trace is None:
        return set()
    try:
        trace = trace_of(sampler(configuration.fabric, configuration.conditions, seed=configuration.seed))
    except (SpecError, OSError):
        return set()
    return set() if trace is None else trace.in_gaps_of(int(configuration.value("collective.count")))


def _notes(configurations: Sequence[Configuration]) -> tuple[str, ...]:
    """Return the notes on a run of a version that stored none."""
    return (
        *notes((one.label, one.shared_links, one.classes is not None) for one in configurations),
        *unmodelled_notes(
            (one.label, ["fabric.wan_loss"] * bool(one.values.get("fabric.wan_loss"))) for one in configurations
        ),
    )


def _said(run: Run) -> dict[About, tuple[Paragraph, ...]]:
    """Return what the command said of a run, by what it is about, as the page prints it."""
    return {
        about: tuple(
            replace(one, heading=in_print(one.heading), lines=tuple(map(in_print, one.lines)))
            for one in those_about(run.sentences, about)
        )
        for about in About
    }


@dataclass(frozen=True)
class Sheet:
    """A table of the page: its columns, of which the first ones are `words`, its rows, and why cells are empty."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int
    reasons: Sequence[str]


def _sheet(
    columns: Sequence[str], rows: Sequence[Sequence[str]], words: int, whys: Mapping[str, str] = MappingProxyType({})
) -> Sheet:
    """Return a table without the columns that are empty throughout, with the reasons for empty cells of others."""
    shown = [number for number in range(len(columns)) if any(row[number] not in _EMPTY for row in rows)]
    reasons = [
        f"{_NONE} under {columns[number]}: {whys[columns[number]]}"
        for number in shown
        if columns[number] in whys and any(row[number] in _EMPTY for row in rows)
    ]
    return Sheet(
        columns=[columns[number] for number in shown],
        rows=[[row[number] or _NONE for number in shown] for row in rows],
        words=sum(number < words for number in shown),
        reasons=reasons,
    )


def _summary_columns(over: Sequence[str]) -> list[str]:
    baseline = quoted(over[0]) if len(over) == 1 else "the baseline"
    times = ["mean (ms)", "95 % interval", "lower bound (ms)", _RECONFIGURATION, "total (s)"]
    return ["engine", "setting", "mode", "collectives", *times, f"gain over {baseline}, 95 % interval"]


def _most_at_a_time(configuration: Configuration) -> int:
    spec = configuration.fabric.spec
    if spec.grain == "physical":
        return 0
    try:
        schedule = schedule_of(configuration, sum(spec.gpus_per_site))
    except (KeyError, TypeError, ValueError):  # damaged: the figures tell so
        return 0
    return most_at_a_time(schedule.ends, ((one.flow, one.after) for one in schedule.transfers), spec.gpus_per_site)


def _scope(configurations: Sequence[Configuration], points: Sequence[PointRows]) -> str:
    """Return in words what was run: the configurations, and the number of collectives and points of each engine."""
    labels = [one.label for one in configurations]
    parts = []
    for engine, word in (("emulation", "measured"), ("model", "predicted")):
        here = [len(point.rows) for point in points if point.engine == engine]
        if here:
            parts.append(f"{sum(here):,} collectives {word} at {len(here)} points")
    names = "; ".join(labels) if len(labels) <= 8 else f"{labels[0]} to {labels[-1]}, {len(labels)} configurations"
    return f"{names}: {', '.join(parts)}"


def _figures(pictures: Iterable[Picture]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the figures that fit on the page, and the names of the others."""
    from markupsafe import Markup

    used, left_out = 0, []
    shown: list[dict[str, Any]] = []
    for picture in pictures:
        used += len(picture.svg) + len(picture.data) * 4 // 3
        if used > MAX_FIGURES:
            left_out.append(picture.name)
            continue
        files = [_file(f"{picture.name}.csv", picture.data.encode(), "text/csv", "data")]
        for ending, content in picture.more.items():
            words = "trace, to be opened at ui.perfetto.dev" if ending == ".json" else ending
            files.append(_file(f"{picture.name}{ending}", content.encode(), "application/json", words))
        svg, width = _embedded(picture.svg, prefix=f"f{len(shown)}")
        shown.append({"svg": Markup(svg), "width": width, "caption": picture.caption, "files": files})  # noqa: S704
    return shown, left_out


def _embedded(svg: str, *, prefix: str) -> tuple[str, int]:
    """Return an SVG to embed in the page and its natural width in pixels.

    Its ids get the prefix, because ids must be unique in a page and figures share some.
    """
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", body)
    width = re.search(r'width="([0-9.]+)pt"', body)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r'\1 role="img"', body, count=1)
    return body, round(float(width[1]) * 4 / 3) if width else 900


def _jobs(run: Run, configurations: Sequence[Configuration]) -> Iterable[list[str]]:
    """Yield a line of the table of jobs, with mean measured and predicted times, for each job of each point."""
    which = ["engine", "setting", "mode", "job"]
    for (engine, index, mode, job), rows in run.jobs.groupby(which, sort=False):
        times = rows[["completion_s", "predicted_s"]].mean() * 1e3
        background = "yes" if rows["background"].iloc[0] else ""
        measured = f"{times['completion_s']:,.3f}" if engine != "model" else _NONE
        label, measure = configurations[index].label, configurations[index].measures_of_jobs.get(job)
        told = f"{job} ({measure})" if measure else job
        yield [engine, label, mode, told, background, f"{len(rows):,}", measured, f"{times['predicted_s']:,.3f}"]


def _choices(points: Iterable[PointRows]) -> Iterator[list[str]]:
    """Yield a line for each point of a mode of which it is told how often it has chosen."""
    for point in points:
        if point.mode in point.configuration.deciding:
            counts = (int((point.rows["collective"] > 0).sum()), *choices_of(point.rows))
            yield [point.engine, point.configuration.label, point.mode, *(f"{count:,}" for count in counts)]


def _job_times(run: Run, points: Points) -> dict[tuple[str, Place], dict[str, Series]]:
    """Return the times of the jobs of each point, by name."""
    found = dict[tuple[str, Place], dict[str, Series]]()
    for (engine, index, mode), rows in run.jobs.groupby(["engine", "setting", "mode"], sort=False):
        times = {
            str(name): own["completion_s"].to_numpy() for name, own in rows.sort_values("collective").groupby("job")
        }
        if (point := points.get((engine, index, mode))) is not None:
            found[engine, Place(index, mode)] = series_of_jobs(point.series, times)
    return found


def _place(point: PointRows) -> Place:
    return Place(point.configuration.index, point.mode)


def _over(point: PointRows, baselines: Baselines) -> str:
    """Return the name of a point's baseline; "" for the baseline itself, and without any."""
    name, place = baselines.get(_place(point), ("", _place(point)))
    return "" if place == _place(point) else name


def _gain(point: PointRows, points: Points, baselines: Baselines) -> Interval | None:
    """Return a point's gain over its baseline; None for the baseline itself and without any."""
    if not _over(point, baselines):
        return None
    _, (index, mode) = baselines[_place(point)]
    baseline = points.get((point.engine, index, mode))
    return None if baseline is None else gain(baseline.series, point.series)


def _line(point: PointRows, summary: Summary, over_base: Interval | None, *, is_baseline: bool) -> list[str]:
    """Return a point's line of the summary; `is_baseline`: gains are over this point."""
    line = [point.engine, point.configuration.label, point.mode, f"{summary.collectives:,}"]
    line += [estimate(summary.mean_s, 1e3, 3), _bounds(summary.mean_s, 1e3, 3)]
    changes = reconfigurations_of(point.rows, point.engine).words
    line += [_ms(float(point.rows["bound_s"].mean())), changes, f"{summary.total_s.value:,.3f}"]
    if over_base is None:
        return [*line, BASELINE if is_baseline else ""]
    return [*line, f"{estimate(over_base, 100, 1)} % {bracketed(over_base, 100, 1)}"]


def _ms(time_s: float | None) -> str:
    """Return a time in ms; _NONE if there is none."""
    return _NONE if time_s is None or math.isnan(time_s) else f"{time_s * 1e3:,.3f}"


def _fifo_line(point: PointRows) -> Iterator[list[str]]:
    """Yield a point's line of the table of FIFO queues, if it was measured with them."""
    fifo = fifo_of([point.rows[point.rows["undisturbed"]]])
    if fifo is not None:
        line = [point.configuration.label, point.mode, f"{fifo.collectives:,}", fifo.took, fifo.transfers_took]
        line += [f"{fifo.drops:,}", fifo.retransmitted_mb]
        yield [*line, _NONE if fifo.fairness is None else f"{fifo.fairness:.3f}", fifo.fairness_link or _NONE]


def _fault_lines(run: Run, configurations: Sequence[Configuration]) -> Iterator[list[str]]:
    """Yield a line for each fault of each point, with its times and its cost in ms: predicted where none was
    measured."""
    shown = told(faults_of(run))
    of_point = {
        (row.engine, row.setting, row.mode, row.number, row.at_collective): row for row in run.faults.itertuples()
    }
    for point in sorted(shown, key=lambda one: (one.setting, place_of(one.mode))):
        for one in sorted(shown[point], key=lambda one: (one.at_collective, one.number)):
            row = of_point[(*point, one.number, one.at_collective)]
            times = (one.detected_s, one.recovered_s, one.cost_s, one.gained_s)
            times_ms = [_NONE if time_s is None else f"{time_s * 1e3:,.3f}" for time_s in times]
            label = configurations[point.setting].label if len(configurations) > 1 else ""
            line = [label, point.mode, f"{one.number}: {one.what}" if one.number else one.what]
            line += [f"{one.outcome_words}{FaultCost(results=(one,)).some_words}", f"{one.at_collective:,}", *times_ms]
            is_measured = point.engine != "model"
            yield [
                *line,
                FaultCost(results=(one,)).as_before_words or _NONE,
                "; ".join(f"{job['job']} {fixed(job['cost_s'] * 1e3, 3)}" for job in one.told_jobs) or _NONE,
                _NONE if one.lasting_cost_s is None or not is_measured else f"{one.lasting_cost_s * 1e3:,.3f}",
                _by_collective(one),
                *(f"{count:,}" if is_measured else _NONE for count in (row.collectives_lost, row.bytes_again)),
            ]


def _by_collective(fault: FaultResult) -> str:
    """Return the cost of a fault in ms in each of the collectives that it hit, of many in those where it is largest."""
    costs = {one["collective"]: one["cost_s"] for one in fault.costs or ()}
    if len(costs) < 2:
        return _NONE
    shown = costs if len(costs) <= _MOST_COSTS else worst_first(costs)
    return list_first([f"{number:,}: {fixed(cost_s * 1e3, 3)}" for number, cost_s in shown.items()], _MOST_COSTS, "; ")


def _pooled_fault_lines(costs: Sequence[PointCosts]) -> Iterator[list[str]]:
    """Yield a line for each fault of points with several seeds, with its mean cost."""
    for point in costs:
        for one in point.faults if len(point.settings) > 1 else ():
            first = one.results[0]
            what = [point.engine, point.label, point.mode, first.what, f"{first.at_collective:,}"]
            yield [*what, (one.cost_words or _NONE) + one.some_words + one.jobs_words]


def _bounds(interval: Interval, scale: float, digits: int) -> str:
    if math.isnan(interval.low):
        return _NO_INTERVAL
    low, high = ends(interval, scale, digits)
    return "all alike" if low == high else f"{low} to {high}"


def _orders(points: Points) -> tuple[list[list[str]], list[list[str]]]:
    """Return lines with the order of what each contest compares, in each engine.

    The second list has the lines of the paper's own configurations, with verdicts on its claims.
    """
    others, papers = [], []
    for engine in dict.fromkeys(engine for engine, _, _ in points):
        contests = []
        points_by_place = {_place(one): one for (of, _, _), one in points.items() if of == engine}
        known = {place: one.series for place, one in points_by_place.items()}
        for contest in contests_of(settings_of(points)):
            times = contest.times(known)
            if not times:
                continue
            first = points_by_place[next(place for place in contest.all_places if place in known)]
            if contest.key == MODE and is_paper_configuration(first.configuration.values, list(times)):
                tested = claims(times)
                verdicts = _verdict(tested.order_holds), _verdict(tested.joint_holds)
                papers.append([engine, contest.where, tested.order_text, *verdicts])
            elif len(times) > 1 and contest.has_order(engine):
                contests.append((contest, times))
        others += [[engine, where, order] for where, order in orders_of(contests)]
    return others, papers


def _verdict(holds: bool | None) -> str:
    return {True: "holds", False: "differs", None: "open"}[holds]


def rule(points: Sequence[PointRows]) -> str:
    """Return in words which rows the page holds and where all of them are."""
    most = rows_a_point(points)
    cut = sum(len(point.rows) > most for point in points)
    if not cut:
        return "This page holds all rows of all points; collectives.parquet in the same folder holds the same rows."
    return (
        f"This page holds at most {MAX_ROWS:,} rows, the first {most:,} of each point: {cut} of {len(points)} "
        "points have more. collectives.parquet in the same folder holds all rows."
    )


def rows_a_point(points: Sequence[PointRows]) -> int:
    """Return how many first rows of each point the page holds: the largest number with at most `MAX_ROWS` in all."""
    room = MAX_ROWS
    sizes = sorted(len(point.rows) for point in points)
    for index, size in enumerate(sizes):
        share = room // (len(sizes) - index)
        if size > share:
            return share
        room -= size
    return max(sizes, default=0)


def _download(point: PointRows, most: int) -> dict[str, Any]:
    """Return a line of the table of rows: a point and a file with its first rows, compressed if they are many."""
    count, name = len(point.rows), f"{point.engine}-{point.configuration.index}-{point.mode}.csv"
    words = "all" if count <= most else f"first {most:,}"
    content = as_csv(point.rows.head(most))
    if min(count, most) > _MAX_PLAIN_ROWS:
        file = _file(f"{name}.gz", gzip.compress(content, 3, mtime=0), "application/gzip", f"{words}, CSV (gzip)")
    else:
        file = _file(name, content, "text/csv", f"{words}, CSV")
    label = point.configuration.label
    return {"engine": point.engine, "label": label, "mode": point.mode, "count": count, "file": file}


def _file(name: str, content: bytes, kind: str, words: str) -> dict[str, str]:
    """Return a file embedded in the page: its name, media type, link text and base64 content."""
    return {"name": name, "kind": kind, "words": words, "data": base64.b64encode(content).decode("ascii")}


def as_csv(rows: pd.DataFrame) -> bytes:
    """Return rows as the bytes of a CSV file; the items of a list are separated by blanks."""
    table = pa.Table.from_pandas(rows, preserve_index=False)
    for index, field in enumerate(table.schema):
        column = table[index]
        if pa.types.is_list(field.type):
            # take() copies the slice; casting a sliced array would cast its whole parent buffer.
            own = column.take(pa.array(range(len(rows)), pa.int64()))
            column = compute.binary_join(own.cast(pa.list_(pa.string())), " ")
        elif pa.types.is_boolean(field.type):
            column = compute.if_else(column, "True", "False")
        table = table.set_column(index, field.name, column)
    text = io.BytesIO()
    write_csv(table, text)
    return text.getvalue()


def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit status; messages go to stderr."""
    parser = CommandParser(prog="python -m analysis.report", description="Write the report of a stored run.")
    parser.add_argument("directory", metavar="DIR", help="the folder of a run, as written by run.py")
    options = parser.parse_args(arguments)
    return exit_status_of(lambda: [write(options.directory)], "analysis.report")


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
