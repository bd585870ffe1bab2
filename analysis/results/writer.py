"""Writing run folders: atomic replacement of files, and storing the rows of a run as they arrive.

During a run, its rows are in Parquet files in parts/, each with some collectives of one point, in order. A part is
written once: when its point is complete, when its first collective has waited for `PART_S`, or when the run ends (only
measured rows if it is interrupted). At the end the parts are merged into collectives.parquet, transfers.parquet and so
on; parts that are still in memory are not read again.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.results import reader, schema
from analysis.results.columns import JOBS, OF_PARTS
from analysis.results.reader import ResultsError
from analysis.results.rows import Point, Rows, joined

PART_S = 5.0
_PART_ROWS = 200_000  # waiting rows at which a part is also written
_FILES_KEY = b"beside"  # metadata key in the collectives of a part: the names of the files that belong to them
_KEPT_BYTES = 1 << 29  # limit of the parts that are kept in memory for the end of the run

_UNIQUE = ("collective", "completion_s", "predicted_s", "bound_s", "start_s", "end_s", "rate_bps")
"""Columns whose values hardly ever repeat: encoding them with a dictionary would cost time and save nothing."""


@contextmanager
def atomic_replacement(path: Path, *, writer: str = "") -> Iterator[Path]:
    """Yield a temporary path for a new file, then move it to `path` and sync it to the disk.

    Even after a power failure, `path` is either the complete old file or the complete new one. Writers of the same file
    at the same time need different names (`writer`).
    """
    temporary = temporary_of(path, writer)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def temporary_of(path: Path, writer: str = "") -> Path:
    """Return the path where a file is written before it is moved to `path`."""
    return path.with_name(f".{path.name}{writer and f'.{writer}'}.new")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; raises OSError on failure."""
    with atomic_replacement(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_table(path: Path, columns: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """Write the parts to a Parquet file, atomically; raises OSError on failure."""
    leaves = [f"{column.name}.list.element" if pa.types.is_list(column.type) else column.name for column in columns]
    repetitive = [name for name in leaves if name not in _UNIQUE]
    with (
        atomic_replacement(path) as temporary,
        temporary.open("wb") as file,  # errors of Python's own files name only the cause
        pq.ParquetWriter(
            file,
            columns,
            compression={name: "snappy" if name in repetitive else "none" for name in leaves},
            use_dictionary=repetitive,
            write_statistics=[name for name in leaves if "." not in name],
            write_page_checksum=True,
        ) as writer,
    ):
        for part in parts:
            writer.write_table(part)


def _listed_files(path: Path) -> set[str]:
    """Return the names of the files that belong to the collectives of a part; empty for parts of earlier versions."""
    return set((pq.read_schema(path).metadata or {}).get(_FILES_KEY, b"").decode(errors="replace").split())


@dataclass
class _Progress:
    """The rows that have arrived of a point: the first `written` of its collectives are on the disk, the `ready` ones
    follow them without a gap, and the `early` ones, by their first collective, wait for rows that come before them."""

    written: int = 0
    ready: list[Rows] = field(default_factory=list)
    early: dict[int, Rows] = field(default_factory=dict)
    ready_since_s: float = 0.0

    @property
    def arrived(self) -> int:
        """How many collectives have arrived without a gap from the first on."""
        return self.written + sum(map(len, self.ready))


class Writer:
    """Stores the rows of a run in parts/; call `close` at the end."""

    def __init__(self, path: Path, settings: list[dict[str, Any]], numbers: Mapping[Point, range]) -> None:
        """Continue with the parts that are in the folder already.

        `settings` are the content of settings.json, `numbers` those of the collectives of each point of the run. Raises
        ResultsError if a part in the folder is damaged or belongs to another run.
        """
        self._path, self._settings, self._numbers = path, settings, numbers
        self._schema = reader.collectives_schema(settings)
        self._kept, self._kept_bytes = dict[Path, pa.Table](), 0
        self._points = {point: _Progress() for point in numbers}
        for part in reader.parts_of(path):
            if part.point not in numbers:
                raise ResultsError(f"{part.collectives} belongs to a point that the run does not have")
            found = reader.table_in(part.collectives, self._schema, ["collective"])["collective"].to_numpy()
            progress = self._points[part.point]
            stop = progress.written + len(found)
            follows = len(found) and np.array_equal(found, numbers[part.point][progress.written : stop])
            if not follows or not self._has_all_files(part):
                problem = "it does not continue where the previous part ends, or its other files are missing"
                raise ResultsError(f"{part.collectives} is damaged: {problem}")
            progress.written = stop

    @property
    def points(self) -> tuple[Point, ...]:
        """All points of the run, in order."""
        return tuple(self._numbers)

    def _jobs(self, point: Point) -> list[dict[str, Any]]:
        """Return the jobs of a point; empty if it runs single collectives."""
        jobs: list[dict[str, Any]] = self._settings[point.setting].get("jobs", [])
        return jobs

    def _has_all_files(self, part: reader.Part) -> bool:
        """Return whether all files that belong to the collectives of a part exist."""
        required = _listed_files(part.collectives)
        if part.point.engine != "model":
            required.add(part.others["transfers"].name)
        if self._jobs(part.point):
            required.add(part.others[JOBS].name)
        return required <= {file.name for file in part.others.values() if file.exists()}

    def has(self, point: Point, stop: int) -> bool:
        """Return whether the first `stop` of the collectives of a point are on the disk."""
        return self._points[point].written >= stop

    def finished(self, point: Point) -> bool:
        """Return whether every collective of a point is on the disk."""
        return self.has(point, len(self._numbers[point]))

    def rows(self, point: Point) -> Iterator[Rows]:
        """Yield the rows of a point that are on the disk, in order, without transfers; raises ResultsError."""
        for part in reader.parts_of(self._path):
            if part.point == point:
                table = reader.table_in(part.collectives, self._schema)
                try:
                    yield schema.rows_of(table)
                except ValueError:  # rings of different lengths
                    raise ResultsError(f"{part.collectives} is damaged") from None

    def add(self, point: Point, rows: Rows) -> Rows | None:
        """Add rows of a point; return those that are new, or None. Raises OSError if rows cannot be written.

        When the last rows of a point have been added, all of the point is on the disk.
        """
        progress, numbers = self._points[point], self._numbers[point]
        if progress.arrived == len(numbers) or rows.stop <= numbers[progress.arrived]:
            return None
        (self._path / reader.PARTS).mkdir(exist_ok=True)  # the folder shows that the run can be resumed
        fresh = rows.part(max(rows.start, numbers[progress.arrived]), rows.stop)
        progress.early[fresh.start] = fresh
        while progress.arrived < len(numbers) and (following := numbers[progress.arrived]) in progress.early:
            if not progress.ready:
                progress.ready_since_s = time.monotonic()
            progress.ready.append(progress.early.pop(following))
        ready = progress.arrived - progress.written
        waited_s = time.monotonic() - progress.ready_since_s
        whole = progress.arrived == len(numbers)
        if ready and (whole or ready >= _PART_ROWS or waited_s >= PART_S):
            self._write(point, progress)
        return fresh

    def _write(self, point: Point, progress: _Progress) -> None:
        rows = joined(progress.ready)
        part, columns = reader.part_of(self._path, point, rows.start), reader.point_columns(self._settings, point)
        # The other tables are written first: a part exists once its collectives do.
        others = [
            (part.others[name], schema.records_table(records, columns, name)) for name, records in rows.records.items()
        ]
        if rows.jobs:
            others.append((part.others[JOBS], schema.jobs_table(rows, columns, self._jobs(point))))
        for path, table in others:
            self._write_part(path, table.schema, table)
        collectives = self._schema.with_metadata({_FILES_KEY: " ".join(path.name for path, _ in others)})
        self._write_part(part.collectives, collectives, schema.collectives_table(rows, columns, self._schema))
        progress.written, progress.ready = progress.written + len(rows), []

    def _write_part(self, path: Path, columns: pa.Schema, table: pa.Table) -> None:
        write_table(path, columns, [table])
        if self._kept_bytes + table.nbytes <= _KEPT_BYTES:
            self._kept[path] = table
            self._kept_bytes += table.nbytes

    def flush(self, *, measured_only: bool = False) -> None:
        """Write the rows that are ready; raises OSError on failure."""
        for point, progress in self._points.items():
            if progress.ready and not (measured_only and point.engine == "model"):
                self._write(point, progress)

    def tables(self) -> reader.Tables:
        """Return all parts, point by point; raises OSError, and ResultsError if one is damaged or has been removed."""
        self.flush()
        parts = sorted(reader.parts_of(self._path), key=lambda part: self.points.index(part.point))
        collectives = [self._table(part.collectives, self._schema) for part in parts]
        stored = dict.fromkeys(self.points, 0)
        for part, table in zip(parts, collectives, strict=True):
            stored[part.point] += len(table)
        written = {point: progress.written for point, progress in self._points.items()}
        if stored != written or not all(map(self._has_all_files, parts)):
            raise ResultsError(f"{self._path / reader.PARTS} lacks files that the run has written to it")
        others = {
            name: [self._table(part.others[name], schema.SCHEMAS[name]) for part in parts if part.others[name].exists()]
            for name in OF_PARTS[1:]
        }
        return reader.Tables(collectives, others)

    def _table(self, path: Path, columns: pa.Schema) -> pa.Table:
        kept = self._kept.get(path)
        return reader.table_in(path, columns) if kept is None else kept

    def write_tables(self, tables: reader.Tables | None = None) -> None:
        """Merge all parts into the tables of the run, with a row group for each part; raises OSError, ResultsError.

        `tables` is the return value of the method `tables`, if the caller has it.
        """
        merged = tables or self.tables()
        write_table(self._path / reader.COLLECTIVES, self._schema, merged.collectives)
        for name, parts in merged.others.items():
            if parts:
                write_table(self._path / f"{name}.parquet", schema.SCHEMAS[name], parts)

    def close(self) -> None:
        """Write the measured rows that are ready; raises OSError on failure.

        Rows of the model are dropped: an interrupted command has little time, and they can be computed again.
        """
        self.flush(measured_only=True)
