"""`run.py authors`: the figure of the paper's authors, simulated as they did, and the sensitivity of its gains.

The semantics are those of the authors' public simulator (`analysis.authors`), not those of this project's model. The
draws are theirs, read from a folder with the files of their repository, or new ones of the same distribution. The first
table compares the totals with those printed in their repository; the second changes one assumption at a time.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.studies.harness import Answer, Column, Show, Study, Table, check_range, quantity
from topologies.command_line import CommandParser

if TYPE_CHECKING:
    from analysis.authors.draws import Floats
    from analysis.authors.study import VariationResult
    from scenarios.experiment.run_folder import RunFolder

COMMAND = "run.py authors"
COLLECTIVES, _MIN_COLLECTIVES, _MAX_COLLECTIVES = 100_000, 10, 1_000_000
ANSWER, FIGURE = "authors.json", "authors"


def _answer(options: argparse.Namespace, show: Show) -> Answer:
    from scenarios.experiment.run_folder import FolderError, RunFolder
    from topologies.errors import one_line

    folder: RunFolder | None = None
    try:
        delay_s = _check(options)
        shares = _shares(options, show)
        folder = RunFolder.dated("authors", datetime.now()) if options.out is None else RunFolder.new(options.out)
        return _run(options, shares, delay_s, folder, show)
    except FolderError as error:
        other = "; allowed: --out DIR for another folder"
        raise ValueError(f"--out: {error}" if options.out is not None else f"{error}{other}") from None
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None
    finally:
        if folder is not None:
            folder.abandon()  # removes the folder if nothing has been written
            folder.close()


def _parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(
        prog=COMMAND,
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

    check_range(options, _MIN_COLLECTIVES, _MAX_COLLECTIVES, "collectives")
    check_range(options, 0, 2**63 - 1, "seed")
    if options.out is not None:
        check(options.out)
    return quantity(COMMAND, "--wan-delay", options.wan_delay, parse_delay_s)


def _shares(options: argparse.Namespace, show: Show) -> "Floats":
    """Return the drawn shares of links' nominal capacities, [1 + collectives, links]; raises DrawsError."""
    from analysis.authors.draws import DrawsError, count_draws, gaussian, read

    if options.draws is None:
        return gaussian(1 + (options.collectives or COLLECTIVES), options.seed)
    stored = count_draws(options.draws)
    count = min(stored - 1, COLLECTIVES) if options.collectives is None else options.collectives
    if count < _MIN_COLLECTIVES or count + 1 > stored:
        needed = max(count, _MIN_COLLECTIVES) + 1
        raise DrawsError(f"{options.draws} has {stored:,} draws; allowed: {needed:,} or more, one for the initial ring")
    show("the draws are being read")
    return read(options.draws, count + 1)


def _run(options: argparse.Namespace, shares: "Floats", delay_s: float, folder: "RunFolder", show: Show) -> Answer:
    """Simulate, write the folder and return the answer; raises RunError if the folder cannot be written."""
    from analysis.authors.study import SIZES_MB, totals_s, variation_results
    from analysis.figures.authors import picture
    from analysis.results.reader import FIGURES, PROVENANCE
    from analysis.results.writer import write_text
    from scenarios.api import RunError
    from scenarios.experiment.run_files import circumstances, now

    started = now()
    show("the collectives are being simulated")
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
    figure = picture(variations, title=_title(answer), name=FIGURE)
    command = ["run.py", "authors", *options.arguments]
    provenance = {"name": "authors", "command": command, "started": started, "ended": now()}
    try:
        write_text(folder.path / ANSWER, json.dumps(answer, indent=1) + "\n")
        (folder.path / FIGURES).mkdir(exist_ok=True)
        figure.write(folder.path / FIGURES)
        write_text(folder.path / PROVENANCE, json.dumps(provenance | circumstances(), indent=1) + "\n")
    except OSError as error:
        raise RunError(f"{folder.path} cannot be written to: {error.strerror or error}") from None
    return Answer(tables=list(_tables(answer)), as_json=answer, problems=[str(folder.path)])


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


def _tables(answer: Mapping[str, Any]) -> Iterator[Table[Any] | str]:
    yield _title(answer)
    yield Table(_TOTALS, answer["totals"])
    for size in dict.fromkeys(result["size_mb"] for result in answer["sensitivity"]):
        results = [result for result in answer["sensitivity"] if result["size_mb"] == size]
        modes = [mode for mode in results[0]["gain"] if mode != "base"]
        columns: list[Column[Any]] = [
            Column("changed", lambda result: result["variation"], left=True),
            Column("base (s)", lambda result: f"{result['total_s']['base']:,.1f}"),
            *(Column(f"gain of {mode} (%)", partial(_gain_of, mode)) for mode in modes),
            Column("base > ccl > wan > joint", lambda result: "yes" if result["in_order"] else "no"),
        ]
        yield Table(columns, results, title=f"chunks of {size} MB, one thing changed at a time")
    own = [result for result in answer["sensitivity"] if "initial rings of other draws" in result["variation"]]
    yield (
        f"For initial rings of other draws ({own[0]['collectives']:,} AllGathers) the gains are the median [least, "
        "greatest];\nfor all other lines they are the gain of the total [95 % interval]."
    )


_TOTALS: list[Column[Any]] = [
    Column("size", lambda one: f"{one['size_mb']} MB", left=True),
    Column("mode", lambda one: one["mode"]),
    Column("total (s)", lambda one: f"{one['total_s']:,.2f}"),
    Column("gain (%)", lambda one: f"{100 * one['gain']:.1f}"),
    Column("published (s)", lambda one: "" if one["published_s"] is None else f"{one['published_s']:,.2f}"),
    Column("difference", lambda one: "" if one["difference"] is None else f"{one['difference']:.1e}"),
]


def _gain_of(mode: str, result: Mapping[str, Any]) -> str:
    return _gain(result["gain"][mode])


def _gain(gain: Mapping[str, float | None]) -> str:
    value, low, high = (None if one is None else f"{100 * one:.1f}" for one in gain.values())
    return f"{value} [{low}, {high}]" if low is not None else f"{value}"


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
