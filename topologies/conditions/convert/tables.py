"""Tables of measurements: a row for each (`long`), a column for each link (`wide`), or a square matrix for each time.
Pure.

    time,source,destination,throughput_mbps        time,2026-01-31T12:00:00Z
    0,Zurich,Geneva,4300                           Gbit/s,Zurich,Geneva
    0,Geneva,Zurich,3900                           Zurich,,4.3
                                                   Geneva,3.9,
    time,Zurich>Geneva (Gbit/s),Zurich>Bern (Gbit/s)
    0,4.3,8.6

Fields are separated by commas, semicolons, tabs or bars. Lines that begin with # are comments, but for "# time: 12"
before a matrix. A row of a matrix is a source, a column a destination.
"""

import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from topologies.conditions.clock import UNITS_NS
from topologies.conditions.convert.readings import (
    ConvertError,
    Reading,
    check_unit,
    is_unit,
    may_be_site,
    name_and_unit,
    split_header,
)
from topologies.errors import format_value, list_all, list_first, one_line
from topologies.units import UnitError, parse_number

_DELIMITERS = ",;\t|"
_MAX_FIELD = 200
_MAX_SITES = 1000
_NAMES = {
    "time": {"time", "t", "timestamp", "datetime", "date", "epoch", "date_time", "when"},
    "source": {"source", "src", "from", "sender", "client", "origin", "source_site", "src_site"},
    "destination": {
        "destination", "dst", "dest", "to", "receiver", "server", "target", "destination_site", "dst_site"
    },
    "link": {"link", "path", "pair"},
    "value": {
        "value", "rate", "throughput", "bandwidth", "bw", "capacity", "speed", "goodput", "latency", "delay", "rtt",
        "ping", "",
    },
}  # fmt: skip
_TIME_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_TIME_LINE = re.compile(r"\s*#?\s*(?:time|timestamp)\s*[:=,;\t| ]\s*([^,;\t|]+?)[\s,;|]*", re.IGNORECASE)
_NAMED_DATE = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)[T_ -](\d\d)[-:_.]?(\d\d)(?:[-:_.]?(\d\d))?(Z|[+-]\d\d:?\d\d)?(?!\d)", re.ASCII
)
_LINK = re.compile(r".+?(?:->|[-:>]).+")
_NAMED_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+", re.ASCII)


@dataclass
class Table:
    """What a file has: its readings, the unit of its times if it names one, and `notes` on what was assumed; `named`
    has the file and the time that its name tells."""

    readings: list[Reading] = field(default_factory=list)
    time_unit: str | None = None
    is_round_trip: bool = False
    notes: list[str] = field(default_factory=list)
    named: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Record:
    line: int
    fields: list[str]


# --- a row for each measurement ---------------------------------------------------------------------------------------


def read_long(path: Path, text: str, kind: str) -> Table:
    """Read a table with a row for each measurement, of "rates" or "delays"; raises ConvertError."""
    shown, records, table = one_line(str(path)), list(_records(path, _without_comments(text))), Table()
    if not records:
        raise ConvertError(f"{shown}: it has no rows; allowed: a table of time, source, destination and value")
    head = [split_header(name, kind) for name in records[0].fields]
    has_header = not any(_is_number(name) for name in records[0].fields)
    places = _places([name for name, _ in head]) if has_header else {}
    if has_header:
        places = _with_time(places, records[0].fields, table)
    missing = _missing(places, kind)
    if missing:
        places = _by_order(records[0], kind, missing, shown)
        table.notes.append(f"{shown}: its columns are taken by their order: {', '.join(places)}")
    if has_header:
        check_unit(records[0].fields[places["value"]], kind, f"{shown}:{records[0].line}")
    unit = head[places["value"]][1] if has_header else ""
    table.is_round_trip = has_header and head[places["value"]][0] in ("rtt", "ping")
    rows = records[1:] if has_header else records
    for record in rows:
        table.readings.append(_row(record, places, unit, len(head), shown))
    if not rows:
        raise ConvertError(f"{shown}:{records[0].line}: it has no row below its header; allowed: one or more")
    unused = [format_value(name) for at, name in enumerate(records[0].fields) if at not in places.values()]
    if has_header and unused:
        are = "columns" if len(unused) > 1 else "column"
        table.notes.append(f"{shown}: not used: the {are} {list_all(unused[:8])}")
    return table


def _row(record: _Record, places: dict[str, int], unit: str, width: int, shown: str) -> Reading:
    where = f"{shown}:{record.line}"
    if len(record.fields) != width:
        raise ConvertError(f"{where}: {len(record.fields)} fields; allowed: {width}, as in the first row")
    texts = {role: record.fields[at] for role, at in places.items()}
    ends = (texts["link"],) if "link" in texts else (texts["source"], texts["destination"])
    return Reading(texts.get("time", ""), ends, texts["value"], unit, where)


def _places(names: Sequence[str]) -> dict[str, int]:
    """Return the column of each role that a name tells."""
    found = {}
    for role, known in _NAMES.items():
        if (at := next((at for at, name in enumerate(names) if name in known), None)) is not None:
            found[role] = at
    if "source" in found and "destination" in found:
        found.pop("link", None)
    return found


def _with_time(places: dict[str, int], names: Sequence[str], table: Table) -> dict[str, int]:
    """Return the roles with a column of times whose name has a unit, such as time_ms."""
    for at, name in enumerate(names):
        stem, _, unit = re.sub(r"[(\[\])\s]+", "_", name.casefold()).strip("_").rpartition("_")
        if stem in _NAMES["time"] and unit in _TIME_UNITS and "time" not in places:
            table.time_unit = _TIME_UNITS[unit] if UNITS_NS[_TIME_UNITS[unit]] != 10**9 else None
            return {"time": at, **{role: place for role, place in places.items() if place != at}}
    return places


def _missing(places: dict[str, int], kind: str) -> list[str]:
    roles = ["value"] if "link" in places else ["source", "destination", "value"]
    return [role for role in (["time", *roles] if kind == "rates" else roles) if role not in places]


def _by_order(first: _Record, kind: str, missing: Sequence[str], shown: str) -> dict[str, int]:
    orders: dict[int, tuple[str, ...]] = {4: ("time", "source", "destination", "value")}
    orders[3] = ("time", "link", "value") if kind == "rates" else ("source", "destination", "value")
    order = orders.get(len(first.fields))
    if order is None:
        where = f"{shown}:{first.line}"
        for name in first.fields if "value" in missing else ():
            if split_header(name, "delays")[0] not in _NAMES["time"]:
                check_unit(name, kind, where)
        names = list_first([format_value(name) for name in first.fields], 6)
        raise ConvertError(
            f"{shown}:{first.line}: no column of {names} is the {list_all(list(missing))}; "
            "allowed: the columns time, source, destination (or link) and value"
        )
    return {role: at for at, role in enumerate(order)}


# --- a column for each link -------------------------------------------------------------------------------------------


def is_wide(path: Path, text: str, named: Collection[str], kind: str) -> bool:
    """Return whether a text is a table whose columns are links, by their names: each but that of times is "A>B", "A-B"
    or the like, or among those that are `named`. Raises ConvertError."""
    records = list(_records(path, _without_comments(text)))
    columns = [name_and_unit(name, kind)[0] for name in records[0].fields] if records else []
    _, links = _time_and_links(columns)
    if not links or any(_is_number(name) for name in columns):
        return False
    return all(columns[at] in named or _LINK.fullmatch(columns[at]) for at in links)


def read_wide(path: Path, text: str, kind: str) -> Table:
    """Read a table with a row for each time and a column for each link; raises ConvertError."""
    shown, records, table = one_line(str(path)), list(_records(path, _without_comments(text))), Table()
    if not records:
        raise ConvertError(f"{shown}: it has no rows; allowed: a table with a column for each link")
    head = [name_and_unit(name, kind) for name in records[0].fields]
    time, links = _time_and_links([name for name, _ in head])
    _with_time({}, records[0].fields[time : time + 1], table)
    for name in (records[0].fields[at] for at in links):
        if not may_be_site(name):
            check_unit(name, kind, f"{shown}:{records[0].line}")
    names = [head[at][0] for at in links]
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise ConvertError(f"{shown}:{records[0].line}: two columns are {format_value(twice[0])}; allowed: one a link")
    for record in records[1:]:
        if len(record.fields) != len(head):
            where, count = f"{shown}:{record.line}", len(record.fields)
            raise ConvertError(f"{where}: {count} fields; allowed: {len(head)}, as in the first row")
        for at in links:
            where = f"{shown}:{record.line}, column {format_value(head[at][0])}"
            table.readings.append(Reading(record.fields[time], (head[at][0],), record.fields[at], head[at][1], where))
    if not table.readings:
        raise ConvertError(f"{shown}:{records[0].line}: it has no row below its header; allowed: one or more")
    return table


def _time_and_links(columns: Sequence[str]) -> tuple[int, list[int]]:
    """Return the column of times, the first one unless another one has its name, and those of links."""
    stems = [re.split(r"[\s_(\[]", name.casefold())[0] for name in columns]
    time = next((at for at, name in enumerate(stems) if name in _NAMES["time"]), 0)
    return time, [at for at in range(len(columns)) if at != time]


# --- matrices ---------------------------------------------------------------------------------------------------------


def is_matrix(path: Path, text: str) -> bool:
    """Return whether a text begins with a line of time or with a labelled square; raises ConvertError."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    if _time_of(first) is not None:
        return True
    records = list(_records(path, _without_comments(text)))
    return _is_square(records[: len(records[0].fields)] if records else [])


def _is_square(records: Sequence[_Record]) -> bool:
    names = {name for name in records[0].fields[1:] if name} if records else set[str]()
    return len(names) > 1 and names == {record.fields[0] for record in records[1:]}


def read_matrices(path: Path, text: str, kind: str) -> Table:
    """Read one or more square matrices, each with a time that a line before it or else the file's name tells.

    Raises ConvertError.
    """
    table, shown = Table(), one_line(str(path))
    for time, records in _blocks(path, text):
        if not records:
            continue
        told = time
        if told is None:
            told = time_of_name(path.stem) or ""
            if told:
                table.named.append((shown, told))
        table.readings += _matrix(records, told, kind, shown)
    if not table.readings:
        raise ConvertError(f"{shown}: it has no matrix; allowed: a row of names, and below it a row for each name")
    return table


def time_of_name(stem: str) -> str | None:
    """Return the time that a file's name has, a date with a time or else its last number; None without any."""
    if match := _NAMED_DATE.search(stem):
        year, month, day, hour, minute, second, zone = match.groups()
        return f"{year}-{month}-{day}T{hour}:{minute}:{second or '00'}{zone or ''}"
    numbers = _NAMED_NUMBER.findall(stem)
    return numbers[-1] if numbers else None


def _time_of(line: str) -> str | None:
    """Return the time of a line that tells one: "time,12" or "# time: 12"; None for another line."""
    match = _TIME_LINE.fullmatch(line)
    is_time = match is not None and bool(re.fullmatch(r"[-+0-9][-+0-9.:TZeE ]*", match[1].strip('"')))
    return match[1].strip('"') if match and is_time else None


def _blocks(path: Path, text: str) -> Iterator[tuple[str | None, list[_Record]]]:
    """Yield each matrix with its time, None if no line tells it."""
    time, begun, lines = None, 0, list[str]()
    for number, line in enumerate(text.split("\n")):
        if (told := _time_of(line)) is not None:
            yield time, list(_records(path, _without_comments("\n".join(lines)), begun))
            time, begun, lines = told, number + 1, []
        else:
            lines.append(line)
    yield time, list(_records(path, _without_comments("\n".join(lines)), begun))


def _matrix(records: Sequence[_Record], time: str, kind: str, shown: str) -> Iterator[Reading]:
    head, rows = records[0], records[1:]
    names = head.fields[1:]
    if len(names) > _MAX_SITES:
        raise ConvertError(f"{shown}:{head.line}: {len(names):,} columns; allowed: {_MAX_SITES:,} sites")
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise ConvertError(f"{shown}:{head.line}: two columns are {format_value(twice[0])}; allowed: one for each site")
    sources = list[str]()
    check_unit(head.fields[0], kind, f"{shown}:{head.line}")
    _, unit = split_header(head.fields[0], kind)
    for record in rows:
        where, source = f"{shown}:{record.line}", record.fields[0]
        if source not in names or source in sources:
            problem = "is a second time the name of a row" if source in sources else "is not the name of a column"
            allowed = list_first([format_value(name) for name in names], 6)
            raise ConvertError(f"{where}: {format_value(source)} {problem}; allowed: one row for each of {allowed}")
        if len(record.fields) != len(head.fields):
            count = len(record.fields)
            raise ConvertError(f"{where}: {count} fields; allowed: {len(head.fields)}, the name and a value per column")
        sources.append(source)
        for name, value in zip(names, record.fields[1:], strict=True):
            if name != source:
                yield Reading(time, (source, name), value, unit, where)
    if lacking := [format_value(name) for name in names if name not in sources]:
        raise ConvertError(f"{shown}:{head.line}: no row for {list_first(lacking, 6)}; allowed: a square matrix")


# --- rows of fields ---------------------------------------------------------------------------------------------------


def _without_comments(text: str) -> str:
    return "\n".join("" if line.lstrip().startswith("#") else line for line in text.split("\n"))


def _records(path: Path, text: str, before: int = 0) -> Iterator[_Record]:
    """Yield the rows of a text that is not empty, with their lines, `before` of which precede the text."""
    shown = one_line(str(path))
    head = next((line for line in text.split("\n") if line.strip()), "")
    delimiter = max(_DELIMITERS, key=lambda sign: _count(head, sign))
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True, skipinitialspace=True)
    try:
        for fields in reader:
            where = f"{shown}:{before + reader.line_num}"
            if long := [one for one in fields if len(one) > _MAX_FIELD]:
                raise ConvertError(f"{where}: a field of {len(long[0]):,} characters; allowed: {_MAX_FIELD}")
            if any(one.strip() for one in fields):
                trimmed = [one.strip() for one in fields]
                points = trimmed if delimiter == "," else [_with_point(one, where) for one in trimmed]
                yield _Record(before + reader.line_num, points)
    except csv.Error as error:
        raise ConvertError(
            f"{shown}:{before + reader.line_num}: it is not valid CSV: {error}; allowed: a table"
        ) from None


def _count(line: str, sign: str) -> int:
    quoted = line.split('"')
    return sum(part.count(sign) for part in quoted[::2])


def _with_point(text: str, where: str) -> str:
    """Return a field with a decimal point in place of a comma, of a file whose fields no comma separates."""
    number = "".join(takewhile(lambda sign: sign in "-+0123456789.,eE", text))
    if "," not in number:
        return text
    if _THOUSANDS.fullmatch(number):
        raise ConvertError(f"{where}: {format_value(text)} may have thousands or decimals; allowed: a decimal point")
    return text.replace(",", ".") if _is_number(number.replace(",", ".")) else text


def _is_number(text: str) -> bool:
    try:
        parse_number(text)
    except UnitError:
        return False
    return not is_unit(text, "rates")
