"""Tables of round-trip times between regions, as Azure and IBM Cloud publish them, in Markdown or CSV. Reads files.

    | Average latency (ms) | Dallas | Toronto |        Source,East US,West Europe
    | --- | :---: | :---: |                             East US,,82
    | **Dallas** |   | 34 |                             West Europe,83,

A row is a source, a column a destination, a value the milliseconds there and back. Or a row has a source, a destination
and a value. A page may have several tables: a pair has the first value that it has anywhere, such as the newest one. A
link's delay is half of the round trip, of the mean of both directions if these differ.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from topologies.fabric.map_links import MapLink, MapNode
from topologies.packs.published import (
    MAX_NODES,
    PackError,
    Published,
    counted,
    delay_of,
    lines_of,
    number,
    shown,
    text_of,
)

MAX_RTT_MS = 980.0
"""Twice the longest delay of a link of a map."""

_RULE = re.compile(r"[-:\s]*")
_NO_VALUE = frozenset(("", "-", "--", "n/a", "na", "nan", "null"))
_PAIR = ({"source", "src", "from"}, {"destination", "target", "dst", "to"})

Rows = list[tuple[int, list[str]]]


def wan(source: str) -> Published:
    """Return regions, joined by links of half their round trips; raises PackError."""
    path = Path(source)
    rtt_ms: dict[tuple[str, str], float] = {}
    again = 0
    try:
        for table in _tables(text_of(path)):
            for ends, value in _values(table, shown(path)):
                again += ends in rtt_ms
                rtt_ms.setdefault(ends, value)
    except csv.Error as error:
        raise PackError(f"{shown(path)}: it is not valid CSV: {error}; allowed: a table") from None
    pairs = list(dict.fromkeys(tuple(sorted(ends)) for ends in rtt_ms if ends[0] != ends[1]))
    if not pairs:
        raise PackError(f"{shown(path)} has no table of round-trip times; allowed: a row and a column for each region")
    regions = list(dict.fromkeys(name for ends in rtt_ms for name in ends))
    if len(regions) > MAX_NODES:
        raise PackError(f"{shown(path)} has {len(regions):,} regions; allowed: {MAX_NODES}")
    links, unequal = [], 0
    for a, b in pairs:
        both = [rtt_ms[ends] for ends in ((a, b), (b, a)) if ends in rtt_ms]
        unequal += len(both) > 1 and both[0] != both[1]
        links.append(MapLink(ends=(a, b), data=delay_of(sum(both) / len(both) / 2e3)))
    told = {
        "pairs with several values, of which the first counts": again,
        "pairs with another round trip in each direction, of which the mean counts": unequal,
    }
    return Published(
        nodes={name: MapNode(title=name) for name in regions},
        links=tuple(links),
        is_direct=True,
        notes=counted(told),
    )


def _tables(text: str) -> Iterator[Rows]:
    """Yield the tables of a text, each a list of rows with their lines; a Markdown table ends with the next text."""
    is_markdown = any(line.startswith("|") for _, line in lines_of(text))
    rows: Rows = []
    for count, line in lines_of(text):
        if not is_markdown:
            rows.append((count, [field.strip() for field in next(csv.reader([line]), [])]))
        elif line.startswith("|"):
            fields = [field.strip(" *`") for field in line.strip("|").split("|")]
            if not all(map(_RULE.fullmatch, fields)) or not "".join(fields).strip():
                rows.append((count, fields))
        elif rows:
            yield rows
            rows = []
    if rows:
        yield rows


def _values(rows: Rows, name: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield each pair of regions with its round trip in ms; nothing for a table of something else."""
    (_, head), *below = rows
    columns = head[1:]
    is_long = len(head) == 3 and head[0].casefold() in _PAIR[0] and head[1].casefold() in _PAIR[1]
    is_matrix = {*columns} & {fields[0] for _, fields in below}
    for count, fields in below if is_long or is_matrix else ():
        if len(fields) != len(head):
            raise PackError(f"{name}:{count}: {len(fields)} fields; allowed: {len(head)}, as in the table's first row")
        pairs = [(fields[1], fields[2])] if is_long else zip(columns, fields[1:], strict=True)
        for column, value in pairs:
            if value.casefold() not in _NO_VALUE:
                yield (fields[0], column), number(value, f"{name}:{count}: a round trip in ms", most=MAX_RTT_MS)
