"""The report of a stored run: ``python -m analysis.report DIR`` writes DIR/report.html and draws DIR/figures.

One page that holds everything, loads nothing and runs nothing; it opens with the answer to the question that the run
asked, then says how far the numbers can be trusted. Decides what stands on it; how it looks is in report.html.j2 and
report.css, and what the figures show in `figures`.
"""

import argparse
import base64
import gzip
import io
import json
import math
import re
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import compute
from pyarrow.csv import write_csv

from analysis.figures.__main__ import drawn, jobs_of, reported
from analysis.figures.fidelity import fidelity_of
from analysis.figures.output import Picture, written
from analysis.figures.points import Configuration, Point, Points, configurations_of, points_of
from analysis.results.reader import Run, open_run
from analysis.statistics.answer import Contest, answer
from analysis.statistics.claims import ABOUT, PAPER_JOINT_GAIN, PAPER_ORDER, claims, is_papers
from analysis.statistics.fidelity import fifo_of, percentage
from analysis.statistics.intervals import Interval, gain, summarise
from analysis.statistics.sharing import loss_notes, notes

MOST_FIGURES = 6_000_000
"""Bytes of figures on one page; further ones are files in the run's folder."""
MOST_ROWS = 100_000
"""Rows on one page: less than 3 MB of it; all of them are in the run's folder."""
_MOST_LINES = 1_000  # of the summary
_PLAIN = 1_000  # rows up to which a file is not compressed

REPORT = "report.html"


@dataclass(frozen=True)
class Drawing:
    """The figures of a run that are being drawn, with the points that they are of."""

    configurations: Sequence[Configuration]
    points: Points
    pictures: Iterable[Picture]


def drawing(run: Run) -> Drawing:
    """Begin to draw the figures of a run, in processes forked from this one. Errors as `figures.draw`."""
    configurations = configurations_of(run)
    points = points_of(run, configurations)
    pictures = (picture for picture, _ in drawn(jobs_of(run, configurations, points), run, "report"))
    return Drawing(configurations, points, pictures)


def write(directory: str | Path, run: Run | None = None, begun: Drawing | None = None) -> Path:
    """Write the report of the run in a folder, and its figures; returns the page's path. Errors as `figures.draw`.

    `run` is what the folder holds, if that has been read, and `begun` the drawing of its figures, if that has begun.
    """
    run = run or open_run(directory)
    of = begun or drawing(run)
    return written(run.path / REPORT, report(run, of.configurations, of.points, of.pictures).encode())


def report(run: Run, configurations: Sequence[Configuration], points: Points, pictures: Iterable[Picture]) -> str:
    """The page of a run with these points and figures."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    page = Environment(autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True)
    every = list(points.values())
    orders, paper = _orders(every)
    summary = [_line(point, points) for point in every]
    queued = [line for point in every for line in _fifo_line(point)]
    rows = [_download(point, rows_a_point(every)) for point in every]
    shown, left_out = _figures(pictures)  # which are being drawn meanwhile
    return page.get_template("report.html.j2").render(
        name=run.provenance.get("name", "run"),
        answer=answer(list(_contests(every))),
        complete=run.complete,
        fidelity=fidelity_of(points, run.jobs),
        percentage=percentage,
        sharing=(
            *notes((one.label, one.shared_links) for one in configurations),
            *loss_notes((one.label, one.values.get("fabric.wan_loss", 0.0)) for one in configurations),
        ),
        scope=_scope(configurations, every),
        provenance=run.provenance,
        joined=lambda command: shlex.join(map(str, command)),
        dumps=lambda value: json.dumps(value, indent=2),
        pictures=shown,
        left_out=left_out,
        most_figures=MOST_FIGURES,
        summary=summary,
        jobs=list(_jobs(run, configurations)),
        queued=queued,
        most_lines=_MOST_LINES,
        orders=orders,
        paper=paper,
        claim={"order": PAPER_ORDER, "gain": PAPER_JOINT_GAIN, "about": ABOUT},
        rule=rule(every),
        rows=rows,
        scenario=run.scenario_text,
    )


def _scope(configurations: Sequence[Configuration], points: Sequence[Point]) -> str:
    """What was run: the configurations, and how many collectives each engine had."""
    labels = [one.label for one in configurations]
    parts = []
    for engine, word in (("emulation", "measured"), ("model", "predicted")):
        here = [len(point.rows) for point in points if point.engine == engine]
        if here:
            parts.append(f"{sum(here):,} collectives {word} at {len(here)} points")
    names = "; ".join(labels) if len(labels) <= 8 else f"{labels[0]} to {labels[-1]}, {len(labels)} settings"
    return f"{names}: {', '.join(parts)}"


def _contests(points: Sequence[Point]) -> Iterator[Contest]:
    """Yield the modes of every configuration in each engine."""
    for (engine, index), group in groupby(points, key=lambda point: (point.engine, point.configuration.index)):
        times = {point.mode: point for point in group}
        one = next(iter(times.values())).configuration
        yield Contest(
            index=index,
            label=one.label,
            kind=one.kind,
            is_measured=engine == "emulation",
            times={mode: point.series for mode, point in times.items()},
        )


def _figures(pictures: Iterable[Picture]) -> tuple[list[dict[str, Any]], list[str]]:
    """The figures that the page holds, and the names of those for which it has no room."""
    from markupsafe import Markup

    used, left_out = 0, []
    shown: list[dict[str, Any]] = []
    for picture in pictures:
        used += len(picture.svg) + len(picture.data) * 4 // 3
        if used > MOST_FIGURES:
            left_out.append(picture.name)
            continue
        files = [_file(f"{picture.name}.csv", picture.data.encode(), "text/csv", "data")]
        for ending, content in picture.more.items():
            words = "trace, to be opened at ui.perfetto.dev" if ending == ".json" else ending
            files.append(_file(f"{picture.name}{ending}", content.encode(), "application/json", words))
        drawing, width = _embedded(picture.svg, prefix=f"f{len(shown)}")
        shown.append({"svg": Markup(drawing), "width": width, "caption": picture.caption, "files": files})  # noqa: S704
    return shown, left_out


def _embedded(svg: str, *, prefix: str) -> tuple[str, int]:
    """An SVG as part of a page, and its natural width in pixels; its ids get the prefix, as two figures share some."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", body)
    width = re.search(r'width="([0-9.]+)pt"', body)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r'\1 role="img"', body, count=1)
    return body, round(float(width[1]) * 4 / 3) if width else 900


def _jobs(run: Run, configurations: Sequence[Configuration]) -> Iterable[list[str]]:
    """A line for each job of each point: its mean times, measured and predicted."""
    which = ["engine", "setting", "mode", "job"]
    for (engine, index, mode, job), rows in run.jobs.groupby(which, sort=False):
        times = rows[["completion_s", "predicted_s"]].mean() * 1e3
        background = "yes" if rows["background"].iloc[0] else ""
        measured = f"{times['completion_s']:,.3f}" if engine != "model" else "—"
        label = configurations[index].label
        yield [engine, label, mode, job, background, f"{len(rows):,}", measured, f"{times['predicted_s']:,.3f}"]


def _line(point: Point, points: Points) -> list[str]:
    """A point's line of the summary."""
    times = point.series
    found = summarise(times)
    line = [point.engine, point.configuration.label, point.mode, f"{found.collectives:,}"]
    line += [f"{found.mean_s.value * 1e3:,.3f}", _ends(found.mean_s, 1e3, 3), f"{found.total_s.value:,.3f}"]
    base = points.get((point.engine, point.configuration.index, "base"))
    less = None if base is None or point.mode == "base" else gain(base.series, times)
    return [*line, "", ""] if less is None else [*line, f"{less.value * 100:.1f} %", _ends(less, 100, 1)]


def _fifo_line(point: Point) -> Iterator[list[str]]:
    """A point's line of what fifo queues did to it, if it was measured in some."""
    found = fifo_of([point.rows[point.rows["undisturbed"]]])
    if found is not None:
        line = [point.configuration.label, point.mode, f"{found.collectives:,}", found.took, found.transfers_took]
        line += [f"{found.drops:,}", f"{found.retransmitted_bytes / 1e6:,.1f}"]
        yield [*line, "—" if found.fairness is None else f"{found.fairness:.3f}", found.fairness_link or "—"]


def _ends(interval: Interval, scale: float, digits: int) -> str:
    if math.isnan(interval.low):
        return "—"
    return f"{interval.low * scale:,.{digits}f} to {interval.high * scale:,.{digits}f}"


def _orders(points: Sequence[Point]) -> tuple[list[list[str]], list[list[str]]]:
    """The order of the modes at each configuration; the paper's own are held against its claims, in the second list."""
    others, papers = [], []
    for (engine, _), group in groupby(points, key=lambda point: (point.engine, point.configuration.index)):
        here = list(group)
        configuration = here[0].configuration
        found = claims({point.mode: point.series for point in here})
        line = [engine, configuration.label, found.order_text]
        if is_papers(configuration.values, [point.mode for point in here]):
            papers.append([*line, _verdict(found.order_holds), _verdict(found.joint_holds)])
        elif len(here) > 1:
            others.append(line)
    return others, papers


def _verdict(holds: bool | None) -> str:
    return {True: "holds", False: "differs", None: "open"}[holds]


def rule(points: Sequence[Point]) -> str:
    """Which rows are on the page and where the rest is, in words."""
    most = rows_a_point(points)
    lacking = sum(len(point.rows) > most for point in points)
    if not lacking:
        return "All rows of all points are in this page; the same rows are in collectives.parquet beside it."
    return (
        f"A page holds at most {MOST_ROWS:,} rows, here the first {most:,} of a point: {lacking} of {len(points)} "
        "points have more. All of them are in collectives.parquet beside this page."
    )


def rows_a_point(points: Sequence[Point]) -> int:
    """How many rows of a point are on the page, from the first: as many as leave room for those of the others."""
    room = MOST_ROWS
    sizes = sorted(len(point.rows) for point in points)
    for index, size in enumerate(sizes):
        share = room // (len(sizes) - index)
        if size > share:
            return share
        room -= size
    return max(sizes, default=0)


def _download(point: Point, most: int) -> dict[str, Any]:
    """A point and its first rows as a file, compressed where they are many."""
    count, name = len(point.rows), f"{point.engine}-{point.configuration.index}-{point.mode}.csv"
    words = "all" if count <= most else f"first {most:,}"
    content = as_csv(point.rows.head(most))
    if min(count, most) > _PLAIN:
        file = _file(f"{name}.gz", gzip.compress(content, 3, mtime=0), "application/gzip", f"{words}, CSV (gzip)")
    else:
        file = _file(name, content, "text/csv", f"{words}, CSV")
    label = point.configuration.label
    return {"engine": point.engine, "label": label, "mode": point.mode, "count": count, "file": file}


def _file(name: str, content: bytes, kind: str, words: str) -> dict[str, str]:
    """A file within the page: its name, its media type, the words of its link and its content in base64."""
    return {"name": name, "kind": kind, "words": words, "data": base64.b64encode(content).decode("ascii")}


def as_csv(rows: pd.DataFrame) -> bytes:
    """Rows as a CSV file; lists are words with a blank between."""
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
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Write the report of a stored run.")
    parser.add_argument("directory", metavar="DIR", help="a run's folder, as run.py leaves it")
    options = parser.parse_args(arguments)
    return reported(lambda: [write(options.directory)], "analysis.report")


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
