"""`run.py authors`: the figure of the paper's authors, simulated as they did, and the sensitivity of its gains.

The semantics are those of the authors' public simulator (`analysis.authors`), not those of this project's model. The
draws are theirs, read from a folder with the files of their repository, or new ones of the same distribution. The first
table compares the totals with those printed in their repository; the second changes one assumption at a time.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.experiment.options import BAD_USAGE, DONE, FAILED
from scenarios.text_table import aligned
from scenarios.tools import study_command
from topologies.command_line import CommandParser

if TYPE_CHECKING:
    from analysis.authors.draws import Floats
    from analysis.authors.study import VariationResult
    from scenarios.experiment.run_folder import RunFolder

COLLECTIVES, _MIN_COLLECTIVES, _MAX_COLLECTIVES = 100_000, 10, 1_000_000
ANSWER, FIGURE = "authors.json", "authors"


def main(arguments: Sequence[str]) -> int:
    """Print both tables and write the folder; return the exit status."""
    options = parser().parse_args(arguments)
    from scenarios.experiment.run_folder import FolderError, RunFolder
    from topologies.errors import one_line

    folder: RunFolder | None = None
    try:
        delay_s = _check(options)
        shares = _shares(options)
        folder = RunFolder.dated("authors", datetime.now()) if options.out is None else RunFolder.new(options.out)
        return _run(options, shares, delay_s, folder, arguments)
    except FolderError as error:
        other = "; allowed: --out DIR for another folder"
        print(f"--out: {error}" if options.out is not None else f"run.py authors: {error}{other}", file=sys.stderr)
    except ValueError as error:
        print(f"run.py authors: {one_line(str(error))}", file=sys.stderr)
    finally:
        if folder is not None:
            folder.abandon()  # removes the folder if nothing has been written
            folder.close()
    return BAD_USAGE


def parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(
        prog="run.py authors",
        description="The figure of the paper's authors by their own semantics, and the sensitivity of its gains.",
    )
    add = parser.add_argument
    add("--draws", type=Path, metavar="DIR", help="the folder TOPO of their repository (default: new draws)")
    add(
        "--collectives",
        type=int,
        metavar="N",
        help=f"number of AllGathers in a total (default {COLLECTIVES:,}, or all of DIR)",
    )
    add("--wan-delay", default="10 us", metavar="T", help="delay of a link that is not a GPU's (default 10 us)")
    add("--seed", type=int, default=1, metavar="S", help="seed of new draws (default 1)")
    add("--out", type=Path, metavar="DIR", help="folder for the results (default results/authors-DATE-TIME)")
    add("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    return parser


def _check(options: argparse.Namespace) -> float:
    """Check the options and return the WAN delay in s; raises ValueError or a subclass."""
    from scenarios.experiment.run_folder import check
    from topologies.units import parse_delay_s

    study_command.check(options, _MIN_COLLECTIVES, _MAX_COLLECTIVES, "collectives")
    study_command.check(options, 0, 2**63 - 1, "seed")
    if options.out is not None:
        check(options.out)
    return study_command.quantity("run.py authors", "--wan-delay", options.wan_delay, parse_delay_s)


def _shares(options: argparse.Namespace) -> "Floats":
    """Return the drawn shares of links' nominal capacities, [1 + collectives, links]; raises DrawsError."""
    from analysis.authors.draws import DrawsError, count_draws, gaussian, read
    from scenarios.experiment.heartbeat import heartbeat

    if options.draws is None:
        return gaussian(1 + (options.collectives or COLLECTIVES), options.seed)
    stored = count_draws(options.draws)
    count = min(stored - 1, COLLECTIVES) if options.collectives is None else options.collectives
    if count < _MIN_COLLECTIVES or count + 1 > stored:
        needed = max(count, _MIN_COLLECTIVES) + 1
        raise DrawsError(f"{options.draws} has {stored:,} draws; allowed: {needed:,} or more, one for the initial ring")
    with heartbeat(lambda: "the draws are being read"):
        return read(options.draws, count + 1)


def _run(
    options: argparse.Namespace, shares: "Floats", delay_s: float, folder: "RunFolder", arguments: Sequence[str]
) -> int:
    from analysis.authors.study import SIZES_MB, totals_s, variation_results
    from analysis.figures.authors import picture
    from analysis.results.reader import FIGURES, PROVENANCE
    from analysis.results.writer import write_text
    from scenarios.experiment.heartbeat import heartbeat
    from scenarios.experiment.run_files import circumstances, now

    started = now()
    with heartbeat(lambda: "the collectives are being simulated"):
        totals = {size: totals_s(shares, size, delay_s) for size in SIZES_MB}
        variations = list(variation_results(shares, (SIZES_MB[0], SIZES_MB[-1]), delay_s, seed=options.seed))
    answer = {
        "draws": "own" if options.draws is None else str(options.draws),
        "seed": options.seed,
        "collectives": len(shares) - 1,
        "wan_delay_s": delay_s,
        "totals": list(_totals(totals, is_published=_is_published(len(shares) - 1, delay_s))),
        "sensitivity": [_as_json(result) for result in variations],
    }
    text = json.dumps(answer, indent=1) + "\n"
    figure = picture(variations, title=_title(answer), name=FIGURE)
    provenance = {"name": "authors", "command": ["run.py", "authors", *arguments], "started": started, "ended": now()}
    try:
        write_text(folder.path / ANSWER, text)
        (folder.path / FIGURES).mkdir(exist_ok=True)
        figure.write(folder.path / FIGURES)
        write_text(folder.path / PROVENANCE, json.dumps(provenance | circumstances(), indent=1) + "\n")
    except OSError as error:
        print(f"run.py authors: {folder.path} cannot be written to: {error.strerror or error}", file=sys.stderr)
        return FAILED
    print(text if options.json else "\n\n".join(_tables(answer)), end="" if options.json else "\n")
    print(f"run.py authors: {folder.path}", file=sys.stderr)
    return DONE


def _is_published(collectives: int, delay_s: float) -> bool:
    from analysis.authors.study import PUBLISHED_COLLECTIVES, PUBLISHED_DELAY_S

    return collectives == PUBLISHED_COLLECTIVES and math.isclose(delay_s, PUBLISHED_DELAY_S)


def _totals(totals: Mapping[int, Mapping[str, float]], *, is_published: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each size and mode, with the published total if the same collectives were published."""
    from analysis.authors.study import PUBLISHED_S

    for size, by_mode in totals.items():
        for mode, total_s in by_mode.items():
            row = {"size_mb": size, "mode": mode, "total_s": total_s, "gain": 1 - total_s / by_mode["base"]}
            published_s = PUBLISHED_S[size][mode] if is_published else None
            difference = None if published_s is None else total_s / published_s - 1
            yield row | {"published_s": published_s, "difference": difference}


def _as_json(result: "VariationResult") -> dict[str, Any]:
    gains = {}
    for mode, gain in result.gain.items():
        numbers = {"value": gain.value, "low": gain.low, "high": gain.high}
        gains[mode] = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
    return {
        "variation": result.variation,
        "size_mb": result.size_mb,
        "collectives": result.collectives,
        "total_s": dict(result.total_s),
        "gain": gains,
        "in_order": result.in_order,
    }


def _title(answer: Mapping[str, Any]) -> str:
    from topologies.units import format_delay

    draws = "the authors' draws" if answer["draws"] != "own" else f"draws of our own, seed {answer['seed']}"
    delay = format_delay(answer["wan_delay_s"])
    return f"the authors' simulation, {answer['collectives']:,} AllGathers, WAN delay {delay}, {draws}"


def _tables(answer: Mapping[str, Any]) -> Iterator[str]:
    yield _title(answer)
    rows: list[tuple[str, ...]] = [("size", "mode", "total (s)", "gain (%)", "published (s)", "difference")]
    for one in answer["totals"]:
        row = (f"{one['size_mb']} MB", one["mode"], f"{one['total_s']:,.2f}", f"{100 * one['gain']:.1f}")
        if one["published_s"] is None:
            rows.append((*row, "", ""))
        else:
            rows.append((*row, f"{one['published_s']:,.2f}", f"{one['difference']:.1e}"))
    yield "\n".join(aligned(rows, (0,)))
    for size in dict.fromkeys(result["size_mb"] for result in answer["sensitivity"]):
        results = [result for result in answer["sensitivity"] if result["size_mb"] == size]
        modes = [mode for mode in results[0]["gain"] if mode != "base"]
        rows = [("changed", "base (s)", *(f"gain of {mode} (%)" for mode in modes), "base > ccl > wan > joint")]
        for result in results:
            order = "yes" if result["in_order"] else "no"
            gains = (_gain(result["gain"][mode]) for mode in modes)
            rows.append((result["variation"], f"{result['total_s']['base']:,.1f}", *gains, order))
        yield "\n".join((f"chunks of {size} MB, one thing changed at a time", *aligned(rows, (0,))))
    own = [result for result in answer["sensitivity"] if "initial rings of other draws" in result["variation"]]
    yield (
        f"For initial rings of other draws ({own[0]['collectives']:,} AllGathers) the gains are the median [least, "
        "greatest];\nfor all other lines they are the gain of the total [95 % interval]."
    )


def _gain(gain: Mapping[str, float | None]) -> str:
    value, low, high = (None if one is None else f"{100 * one:.1f}" for one in gain.values())
    return f"{value} [{low}, {high}]" if low is not None else f"{value}"
