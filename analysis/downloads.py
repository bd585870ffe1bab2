"""The rows of a run as downloads within a page: a CSV file for each point, as long as the page can hold them.

A page of a run of millions of rows would be too large to open; what is left out is in the run's folder.
"""

import gzip
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import compute

from analysis.page import Markup, download, table
from analysis.points import Point, Setting, label_of

MOST_ROWS = 100_000
"""Rows on one page: less than 3 MB of it, and seconds to write."""
_PLAIN = 1_000  # rows up to which a file is not compressed

_LISTS = ("ring", "paths")


def rule(points: Sequence[Point]) -> str:
    """What is on the page and where the rest is, in words."""
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
    for place, size in enumerate(sizes):
        share = room // (len(sizes) - place)
        if size > share:
            return share
        room -= size
    return max(sizes, default=0)


def downloads(points: Sequence[Point], settings: Sequence[Setting]) -> Markup:
    """The table of points, a file each."""
    most = rows_a_point(points)
    rows = []
    for point in points:
        shown = min(most, len(point.rows))
        which = [point.engine, label_of(settings[point.setting]), point.mode]
        rows.append([*which, f"{len(point.rows):,}", _file(point, shown)])
    return table(["engine", "setting", "mode", "collectives", "rows"], rows, words=3)


def _file(point: Point, rows: int) -> Markup:
    name = f"{point.engine}-{point.setting}-{point.mode}.csv"
    content = as_csv(point.rows.head(rows)).encode()
    said = "all" if rows == len(point.rows) else f"first {rows:,}"
    if rows <= _PLAIN:
        return download(name, content, "text/csv", f"{said}, CSV")
    return download(f"{name}.gz", gzip.compress(content, 6, mtime=0), "application/gzip", f"{said}, CSV (gzip)")


def as_csv(rows: pd.DataFrame) -> str:
    """Rows as CSV; lists are words with a blank between."""
    return str(rows.assign(**{name: _words(rows[name]) for name in _LISTS}).to_csv(index=False, lineterminator="\n"))


def _words(lists: "pd.Series[Any]") -> Any:
    array = pa.array(lists)
    # Its own rows alone: a cast of a part is one of everything that it is a part of.
    own = array.take(pa.array(range(len(array)), pa.int64()))
    return compute.binary_join(own.cast(pa.list_(pa.string())), " ").to_pylist()
