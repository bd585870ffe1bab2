"""``python -m topologies.conditions.convert FILE...``: make a trace, or delays of links, of what was measured."""

import argparse
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from topologies.command_line import BAD_USAGE, CommandParser
from topologies.conditions.convert.iperf import read_iperf
from topologies.conditions.convert.links import link_map, site_map
from topologies.conditions.convert.readings import KINDS, UNIT_NAMES, ConvertError, counted, is_unit
from topologies.conditions.convert.series import Series
from topologies.conditions.convert.tables import Table, is_matrix, is_wide, read_long, read_matrices, read_wide
from topologies.errors import format_value, one_line
from topologies.text_files import TextFileError, read_text

MAX_BYTES = 64_000_000
"""Largest file that is read: all of its measurements are held in memory."""

_FORMATS = ("long", "wide", "matrix", "iperf")
_PROGRAM = "convert"
_MOST_FILES = 4  # that are told one by one


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert files; return exit status 0, or 2 for a wrong use or a file that cannot be converted."""
    options = _parser().parse_args(arguments)
    try:
        text, notes = _converted(options)
        for note in notes:
            print(f"{_PROGRAM}: {note}", file=sys.stderr)
        _write(text, options.out)
    except ConvertError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return BAD_USAGE
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m topologies.conditions.convert",
        description="Make a trace for conditions.trace, or delays for conditions.links, of what was measured.",
        is_operand=lambda word: Path(word).exists(),
    )
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path, help="CSV, or JSON of iperf3")
    parser.add_argument("--from", dest="form", choices=_FORMATS, help="the form of the files (default: detected)")
    parser.add_argument("--as", dest="kind", choices=KINDS, default="rates", help="what was measured (default: rates)")
    parser.add_argument("--unit", help=f"the unit of values that name none: {UNIT_NAMES}")
    parser.add_argument(
        "--site",
        action="append",
        default=[],
        metavar="NAME=s0",
        help="a site's node: s0 is border router s0b0, or any router",
    )
    parser.add_argument(
        "--link",
        action="append",
        default=[],
        metavar="[NAME=]LINK",
        help="the link that a name of a link stands for; without a name: what iperf3 measured, once for each file",
    )
    parser.add_argument("--rtt", action="store_true", help="delays: the values are round-trip times")
    parser.add_argument(
        "--both-directions", action="store_true", help="values of one direction of a WAN link hold for the other, too"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="a new file to write (default: standard output)")
    return parser


def _converted(options: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the text to be written, and what was assumed; raises ConvertError."""
    kind = options.kind
    if options.unit is not None and not is_unit(options.unit, kind):
        raise ConvertError(f"--unit {format_value(options.unit)} is not a unit of {kind}; allowed: {UNIT_NAMES}")
    if options.rtt and kind != "delays":
        raise ConvertError("--rtt is for delays; allowed: with --as delays")
    if options.out is not None and os.path.lexists(options.out):
        raise ConvertError(_exists(options.out))
    sites = site_map(options.site)
    links = link_map(text for text in options.link if "=" in text)
    tables = _tables(options, links)
    units = {table.time_unit for table in tables}
    if len(units) > 1:
        raise ConvertError("the files' columns of times have several units; allowed: one")
    notes = [*_named([each for table in tables for each in table.named]), *_of_files(tables)]
    readings = [reading for table in tables for reading in table.readings]
    both: bool = options.both_directions
    of_values = {"kind": kind, "unit": options.unit or "", "time_unit": units.pop(), "both_directions": both}
    series = Series(readings, sites, links, **of_values)
    round_trips = {table.is_round_trip for table in tables}
    if kind == "delays" and len(round_trips) > 1 and not options.rtt:
        raise ConvertError("some of the files have round-trip times and some do not; allowed: files of one kind")
    is_round_trip = options.rtt or True in round_trips
    text = series.trace() if kind == "rates" else series.delays(is_round_trip=is_round_trip)
    return text, notes + series.notes


def _tables(options: argparse.Namespace, named: Collection[str]) -> list[Table]:
    """Return what the files have, of which links may be `named`; raises ConvertError."""
    texts = [(path, _text(path)) for path in options.files]
    forms = [options.form or _form(path, text, named, options.kind) for path, text in texts]
    tests, measured = forms.count("iperf"), [text for text in options.link if "=" not in text]
    if tests != len(measured):
        allowed = f"once for each file of iperf3, of which there are {tests:,}, or NAME=LINK"
        raise ConvertError(f"--link is given {counted(len(measured), 'time')}; allowed: {allowed}")
    if tests and options.kind == "delays":
        raise ConvertError(f"{one_line(str(texts[forms.index('iperf')][0]))}: iperf3 has rates; allowed: --as rates")
    links = iter(measured)
    return [_table(path, text, form, options.kind, links) for (path, text), form in zip(texts, forms, strict=True)]


def _named(times: Sequence[tuple[str, str]]) -> list[str]:
    """Return the times that the names of files tell: of many files the first and the last one."""
    if len(times) <= _MOST_FILES:
        return [f"{file}: its time is {time}, from its name" for file, time in times]
    (first, begin), (last, end) = times[0], times[-1]
    return [f"{len(times):,} files have their times from their names: {first} has {begin}, ..., {last} has {end}"]


def _of_files(tables: Sequence[Table]) -> list[str]:
    """Return what was assumed of each file, once where it is the same of many."""
    alike: dict[str, list[str]] = {}
    for note in (note for table in tables for note in table.notes):
        file, _, what = note.partition(": ")
        alike.setdefault(what, []).append(file)
    return [
        f"{one}: {what}"
        for what, files in alike.items()
        for one in (files if len(files) <= _MOST_FILES else [f"{files[0]} and {len(files) - 1:,} more files"])
    ]


def _table(path: Path, text: str, form: str, kind: str, links: Iterator[str]) -> Table:
    if form == "iperf":
        return read_iperf(path, text, next(links))
    return {"matrix": read_matrices, "wide": read_wide, "long": read_long}[form](path, text, kind)


def _form(path: Path, text: str, named: Collection[str], kind: str) -> str:
    """Return the form that a file has."""
    if text.lstrip()[:1] in ("{", "["):
        return "iperf"
    if is_matrix(path, text):
        return "matrix"
    return "wide" if is_wide(path, text, named, kind) else "long"


def _text(path: Path) -> str:
    try:
        text = read_text(path, most_bytes=MAX_BYTES)
    except TextFileError as error:
        raise ConvertError(f"{one_line(str(path))}: {error}") from None
    if not text.strip():
        raise ConvertError(f"{one_line(str(path))}: it is empty; allowed: a table or the JSON of iperf3")
    return text


def _write(text: str, out: Path | None) -> None:
    if out is None:
        _print(text)
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:  # what is left would look like a trace
                out.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise ConvertError(_exists(out)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConvertError(f"--out {format_value(str(out))} cannot be written: {reason}") from None


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:  # its reader has seen enough; Python would report it again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise ConvertError(f"standard output cannot be written: {error.strerror}") from None


def _exists(out: Path) -> str:
    return f"--out {format_value(str(out))} exists; allowed: a new file"


if __name__ == "__main__":
    sys.exit(main())
