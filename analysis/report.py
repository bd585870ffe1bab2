"""The report of a stored run: ``python -m analysis.report DIR`` writes DIR/report.html and draws DIR/figures.

One page that holds everything and needs no network. Decides what stands on it; how a page is made is in `page`, what
the figures show in `figures`, and what fits of the rows in `downloads`.
"""

import argparse
import json
import math
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from analysis.canvas import Picture, written
from analysis.certificate_picture import certified
from analysis.claims import ABOUT, PAPER_JOINT_GAIN, PAPER_ORDER, claims
from analysis.downloads import downloads, rule
from analysis.figures import jobs_of, said, with_progress
from analysis.metrics import Interval, gain, summarise
from analysis.page import Markup, download, element, figure, joined, page, table
from analysis.points import Point, Points, Setting, block_of, checked, label_of, points_of
from analysis.results import Run, open_run

MOST_FIGURES = 6_000_000
"""Bytes of figures on one page; further ones are files in the run's folder."""
_MOST_LINES = 1_000  # of the summary

REPORT = "report.html"


def write(directory: str | Path) -> Path:
    """Write the report of the run in a folder, and its figures; returns the page's path. Errors as `figures.draw`."""
    path = Path(directory)
    run = open_run(path)
    folder = path / "figures"
    points = points_of(checked(run))
    jobs = jobs_of(run, points)
    folder.mkdir(exist_ok=True)
    pictures = []
    for picture in with_progress(jobs, "report"):
        picture.write(folder)
        pictures.append(picture)
    return written(path / REPORT, report(run, points, pictures).encode())


def report(run: Run, points: Points, pictures: Sequence[Picture]) -> str:
    """The page of a run with these points and figures."""
    name = run.provenance.get("name", "run")
    sections = [
        _heading(run, points),
        _facts(points),
        element("h2", "Figures"),
        *_figures(pictures),
        element("h2", "Summary"),
        *_summary(run, points),
        element("h2", "The paper's claims"),
        *_claims(run, points),
        element("h2", "Rows"),
        element("p", rule(list(points.values()))),
        downloads(list(points.values()), run.settings),
        element("h2", "Provenance"),
        *_provenance(run),
    ]
    return page(f"{name}: Longhaul", sections)


def _heading(run: Run, points: Points) -> Markup:
    labels = [label_of(setting) for setting in run.settings]
    shown = "; ".join(labels) if len(labels) <= 8 else f"{labels[0]} to {labels[-1]}, {len(labels)} settings"
    engines = {engine: len({key for key in points if key[0] == engine}) for engine, _, _ in points}
    counts = [
        f"{sum(len(p.rows) for p in points.values() if p.engine == engine):,} collectives "
        f"{'reckoned' if engine == 'model' else 'measured'} at {number} points"
        for engine, number in engines.items()
    ]
    parts = [
        element("h1", run.provenance.get("name", "run")),
        element("p", f"{shown}: {', '.join(counts)}.", class_="soft"),
        element("p", f"Began {run.provenance['started']}, ended {run.provenance['ended'] or '—'}.", class_="soft"),
    ]
    if not run.complete:
        words = "This run is not finished: the page holds what there was when it was written."
        parts.append(element("p", words, class_="warning"))
    return joined(parts)


def _facts(points: Points) -> Markup:
    """The certificate, in figures large enough to be seen first."""
    found = certified(points)
    if found is None:
        return element("p", "Nothing was measured in this run: all times are the timing model's.", class_="soft")
    facts = {
        "collectives measured": f"{found.collectives:,}",
        "median of measured / predicted": f"{found.median_ratio:.4f}",
        "99th percentile of its distance from 1": f"{found.p99_abs_error * 100:.2f} %",
        "packets dropped": f"{found.drops:,}",
    }
    shown = element(
        "div", *(element("div", element("b", v), element("span", k)) for k, v in facts.items()), class_="facts"
    )
    return joined([shown, *(element("p", f"{words}.", class_="warning") for words in found.warnings)])


def _figures(pictures: Sequence[Picture]) -> Iterator[Markup]:
    used, left = 0, []
    for picture in pictures:
        used += len(picture.svg) + len(picture.data) * 4 // 3
        if used > MOST_FIGURES:
            left.append(picture.name)
            continue
        files = [download(f"{picture.name}.csv", picture.data.encode(), "text/csv", "data")]
        for ending, content in picture.more.items():
            words = "trace, to be opened at ui.perfetto.dev" if ending == ".json" else ending
            files.append(download(f"{picture.name}{ending}", content.encode(), "application/json", words))
        notes = Markup(f"({', '.join(files)})")
        yield figure(picture.svg, picture.caption, notes, prefix=f"f{used}")
    if left:
        words = f"A page holds at most {MOST_FIGURES // 10**6} MB of figures; in figures/ beside it are also: "
        yield element("p", words, ", ".join(left), ".")


def _summary(run: Run, points: Points) -> Iterator[Markup]:
    columns = ["engine", "setting", "mode", "collectives", "mean (ms)", "95 % interval", "total (s)", "gain over base"]
    columns.append("95 % interval")
    shown = list(points.values())[:_MOST_LINES]
    yield table(columns, (_line(run.settings[point.setting], point, points) for point in shown), words=3)
    if len(shown) < len(points):
        yield element("p", f"{len(points) - len(shown):,} more points are in summary.csv beside this page.")


def _line(setting: Setting, point: Point, points: Points) -> list[str]:
    seed, block = setting["values"]["run.seed"], block_of(setting, len(point.rows))
    found = summarise(point.completion_s, block=block, seed=seed)
    line = [point.engine, label_of(setting), point.mode, f"{found.collectives:,}"]
    line += [f"{found.mean_s.value * 1e3:,.3f}", _ends(found.mean_s, 1e3, 3), f"{found.total_s.value:,.3f}"]
    base = points.get((point.engine, point.setting, "base"))
    count = 0 if base is None else min(len(base.rows), len(point.rows))
    if base is None or point.mode == "base" or not count:
        return [*line, "", ""]
    # An unfinished run may have more of one mode than of another: a gain is over those that both have.
    less = gain(base.completion_s[:count], point.completion_s[:count], block=block, seed=seed)
    return [*line, f"{less.value * 100:.1f} %", _ends(less, 100, 1)]


def _ends(interval: Interval, scale: float, digits: int) -> str:
    if math.isnan(interval.low):
        return "—"
    return f"{interval.low * scale:,.{digits}f} to {interval.high * scale:,.{digits}f}"


def _claims(run: Run, points: Points) -> Iterator[Markup]:
    order = " > ".join(PAPER_ORDER)
    yield element(
        "p",
        f"Totals in the order {order}, and joint about {PAPER_JOINT_GAIN * 100:.0f} % below base (here: within "
        f"{ABOUT * 100:.0f} points of it). > stands where the interval of the difference excludes zero, ~ where not.",
    )
    columns = ["engine", "setting", "order found", "order", "joint about 33 % below base"]
    rows = []
    for (engine, number), group in groupby(points.values(), key=lambda point: (point.engine, point.setting)):
        here = list(group)
        setting, count = run.settings[number], min(len(point.rows) for point in here)
        over = partial(gain, block=block_of(setting, count), seed=setting["values"]["run.seed"])
        found = claims({point.mode: point.completion_s[:count] for point in here}, over)
        verdicts = [_verdict(found.order_holds), _verdict(found.joint_holds)]
        rows.append([engine, label_of(setting), found.order_text, *verdicts])
    yield table(columns, rows[:_MOST_LINES], words=5)


def _verdict(holds: bool | None) -> str:
    return {True: "holds", False: "differs", None: "open"}[holds]


def _provenance(run: Run) -> Iterator[Markup]:
    facts = []
    for key, value in run.provenance.items():
        shown: Any = value
        if key == "command" and isinstance(value, list):
            shown = element("code", shlex.join(map(str, value)))
        elif isinstance(value, dict | list):
            words = f"{len(value)} entries"
            shown = element("details", element("summary", words), element("pre", json.dumps(value, indent=2)))
        facts += [element("dt", key), element("dd", "—" if shown is None else shown)]
    yield element("dl", *facts)
    words = "The scenario, resolved: run it again and get the same numbers"
    yield element("details", element("summary", words), element("pre", run.scenario_text))


def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit status; messages go to stderr."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Write the report of a stored run.")
    parser.add_argument("directory", metavar="DIR", help="a run's folder, as run.py leaves it")
    options = parser.parse_args(arguments)
    return said(lambda: [write(options.directory)], "analysis.report")


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
