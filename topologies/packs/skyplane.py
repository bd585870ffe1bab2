"""Skyplane's grid of throughputs between cloud regions (https://github.com/skyplane-project/skyplane). Reads files.

Of its columns these are read: src_region, dst_region, src_tier, dst_tier, success, and throughput_received, in older
files throughput_recieved, in bit/s. A link has the throughput of each direction as its capacity. Of several tiers that
one counts which comes first in the alphabet, PREMIUM, and of several measurements of it the least. A measurement that
failed or received nothing makes no link: its regions are not joined. If the folder has a file latency.csv, a link's
delay is half of its avg_rtt.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from topologies.errors import format_value, list_all
from topologies.fabric.map_links import MapLink, MapNode
from topologies.packs.published import PackError, Published, counted, delay_of, number, rate_of, shown, text_of

LATENCY = "latency.csv"

_ENDS = ("src_region", "dst_region", "src_tier", "dst_tier")
_RECEIVED = ("throughput_received", "throughput_recieved")
_MAX_RTT_MS = 980.0

Way = tuple[str, str]


def wan(source: str) -> Published:
    """Return regions, joined by links with the throughputs of both directions; raises PackError."""
    path = Path(source)
    rates, failed = _by_way(path, _RECEIVED, 1e15)
    beside = path.with_name(LATENCY)
    rtt_ms = _by_way(beside, ("avg_rtt",), _MAX_RTT_MS)[0] if beside != path and beside.is_file() else {}
    links = []
    for way, bps in rates.items():
        both = [rtt_ms[one] for one in (way, way[::-1]) if one in rtt_ms]
        delay = delay_of(sum(both) / len(both) / 2e3) if both else {}
        # A capacity in one direction would be taken for the other, too.
        if way[::-1] in rates:
            links.append(MapLink(ends=way, data=rate_of(bps) | delay, is_directed=True))
    if not links:
        raise PackError(f"{shown(path)} has no two regions with a throughput in both directions; allowed: some")
    told = {
        "measurements that failed or received nothing, which make no link": failed,
        "measurements without one in the other direction, which make no link": len(rates) - len(links),
    }
    return Published(
        nodes={name: MapNode(title=name) for name in dict.fromkeys(end for way in rates for end in way)},
        links=tuple(links),
        is_direct=True,
        notes=counted(told),
    )


def _by_way(path: Path, columns: Sequence[str], most: float) -> tuple[dict[Way, float], int]:
    """Return the value of a column from region to region, and how many rows have none; raises PackError."""
    found: dict[Way, tuple[Way, float]] = {}
    failed = 0
    for where, row, column in _rows(path, columns):
        text, way = row[column] or "", (row["src_region"], row["dst_region"])
        value = number(text, f"{where}: {column}", most=most) if text.strip() else 0.0
        if row.get("success", "True") != "True" or not value:
            failed += 1
        elif way[0] != way[1]:
            tiers = (row["src_tier"], row["dst_tier"])
            found[way] = min(found.get(way, (tiers, value)), (tiers, value))
    return {way: value for way, (_, value) in found.items()}, failed


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield each row by column, with its line for messages and the one of `columns` that the file has."""
    name = shown(path)
    reader = csv.DictReader(io.StringIO(text_of(path)), strict=True)
    try:
        head = reader.fieldnames or ()
        column = next((one for one in columns if one in head), None)
        missing = [one for one in (*_ENDS, column or columns[0]) if one not in head]
        if missing or column is None:
            raise PackError(f"{name} lacks the column {list_all(missing)}; allowed: the columns of Skyplane's profiles")
        for row in reader:
            where = f"{name}:{reader.line_num}"
            if None in row or None in row.values():
                raise PackError(f"{where}: another number of fields; allowed: {len(head)}, as in the header")
            if not row["src_region"] or not row["dst_region"]:
                raise PackError(f"{where}: the region {format_value('')}; allowed: a name, such as aws:us-east-1")
            yield where, row, column
    except csv.Error as error:
        raise PackError(f"{name}:{reader.line_num}: it is not valid CSV: {error}; allowed: a table") from None
