"""Writing run directories: files that are whole or absent, and the rows of a run on their way to the disk.

While a run is at work its rows are in Parquet files in parts/, each of them some consecutive collectives of one point.
A part is written once: when its point is whole, when its first collective has waited for `PART_S`, and when the run
ends (if it is interrupted, measured rows only). At the end the parts are put together into collectives.parquet and
transfers.parquet, without reading those again that are still in memory.
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
from analysis.results.reader import ResultsError
from analysis.results.rows import Point, Rows, joined

PART_S = 5.0
_PART_ROWS = 200_000  # and no part is larger
_BESIDE = b"beside"  # in the metadata of the collectives of a part: the files that were written with them
_KEPT_BYTES = 1 << 29  # of parts in memory, for the end of the run

_UNLIKE = ("collective", "completion_s", "predicted_s", "bound_s", "start_s", "end_s", "rate_bps")
"""Columns whose values are hardly ever the same twice: a dictionary of them would cost time and save nothing."""


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path to write a new file to, which then takes the place of the one at `path`; on the disk at the end.

    Whenever the power fails `path` is the old file or the new one, whole.
    """
    temporary = temporary_of(path)
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


def temporary_of(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(f".{path.name}.new")


def write_text(path: Path, text: str) -> None:
    """Have `path` hold this text, whole or not at all; raises OSError where that fails."""
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_table(path: Path, columns: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """Write a Parquet file of these parts, whole or not at all; raises OSError where that fails."""
    leaves = [f"{one.name}.list.element" if pa.types.is_list(one.type) else one.name for one in columns]
    alike = [name for name in leaves if name not in _UNLIKE]
    with (
        replaced(path) as temporary,
        temporary.open("wb") as file,  # Python's own errors name the cause alone
        pq.ParquetWriter(
            file,
            columns,
            compression={name: "snappy" if name in alike else "none" for name in leaves},
            use_dictionary=alike,
            write_statistics=[name for name in leaves if "." not in name],
            write_page_checksum=True,
        ) as writer,
    ):
        for part in parts:
            writer.write_table(part)


def _beside(path: Path) -> set[str]:
    """The files that were written beside the collectives of a part, by name; of a part of an earlier version none."""
    return set((pq.read_schema(path).metadata or {}).get(_BESIDE, b"").decode(errors="replace").split())


@dataclass
class _Progress:
    """What has arrived of a point: the first `written` collectives are on the disk, `ready` ones follow them, and the
    `early` ones, by their first collective, wait for others before them."""

    written: int = 0
    ready: list[Rows] = field(default_factory=list)
    early: dict[int, Rows] = field(default_factory=dict)
    ready_since_s: float = 0.0

    @property
    def arrived(self) -> int:
        """How many collectives from the first on have arrived."""
        return self.ready[-1].stop if self.ready else self.written


class Writer:
    """The rows of a run on their way into parts/; to be closed."""

    def __init__(self, path: Path, settings: list[dict[str, Any]], counts: Mapping[Point, int]) -> None:
        """`settings` are those of settings.json, `counts` all points of the run with their numbers of collectives.

        Raises ResultsError where a part that is there from before is damaged or of another run.
        """
        self._path, self._settings, self._counts = path, settings, counts
        self._schema = reader.collectives_schema(settings)
        self._kept, self._kept_bytes = dict[Path, pa.Table](), 0
        self._points = {point: _Progress() for point in counts}
        for part in reader.parts_of(path):
            if part.point not in counts:
                raise ResultsError(f"{part.collectives} is of a point that the run does not have")
            found = reader.table_in(part.collectives, self._schema, ["collective"])["collective"].to_numpy()
            progress = self._points[part.point]
            stop = progress.written + len(found)
            consecutive = len(found) and np.array_equal(found, np.arange(progress.written, stop))
            lacks = (part.point.engine != "model" and not part.transfers.exists()) or (
                self._jobs(part.point) and not part.jobs.exists()
            )
            lacks = lacks or not _beside(part.collectives) <= {file.name for file in part[3:] if file.exists()}
            if not consecutive or stop > counts[part.point] or lacks:
                raise ResultsError(f"{part.collectives} is damaged: it does not go on where the part before it ends")
            progress.written = stop

    @property
    def points(self) -> tuple[Point, ...]:
        """Every point of the run, in its order."""
        return tuple(self._counts)

    def _jobs(self, point: Point) -> list[dict[str, Any]]:
        """The jobs of a point; none where rounds are single collectives."""
        found: list[dict[str, Any]] = self._settings[point.setting].get("jobs", [])
        return found

    def has(self, point: Point, stop: int) -> bool:
        """Whether the first `stop` collectives of a point are on the disk."""
        return self._points[point].written >= stop

    def finished(self, point: Point) -> bool:
        """Whether every collective of a point is on the disk."""
        return self.has(point, self._counts[point])

    def rows(self, point: Point) -> Iterator[Rows]:
        """The rows of a point that are on the disk, in order, without transfers; raises ResultsError."""
        for part in reader.parts_of(self._path):
            if part.point == point:
                table = reader.table_in(part.collectives, self._schema)
                try:
                    yield schema.rows_of(table)
                except ValueError:  # rings of different lengths
                    raise ResultsError(f"{part.collectives} is damaged") from None

    def add(self, point: Point, rows: Rows) -> Rows | None:
        """Take rows in; return those that were not there before. Raises OSError where they cannot be written.

        A point that is whole is on the disk when this returns.
        """
        progress = self._points[point]
        if rows.stop <= progress.arrived:
            return None
        (self._path / reader.PARTS).mkdir(exist_ok=True)  # which says that there is something to resume
        fresh = rows.part(max(rows.start, progress.arrived), rows.stop)
        progress.early[fresh.start] = fresh
        while progress.arrived in progress.early:
            if not progress.ready:
                progress.ready_since_s = time.monotonic()
            progress.ready.append(progress.early.pop(progress.arrived))
        ready = progress.arrived - progress.written
        waited_s = time.monotonic() - progress.ready_since_s
        whole = progress.arrived == self._counts[point]
        if ready and (whole or ready >= _PART_ROWS or waited_s >= PART_S):
            self._write(point, progress)
        return fresh

    def _write(self, point: Point, progress: _Progress) -> None:
        rows = joined(progress.ready)
        part, columns = reader.part_of(self._path, point, rows.start), reader.point_columns(self._settings, point)
        beside = list[tuple[Path, pa.Table]]()  # written before the collectives, with which the part is there
        if rows.transfers is not None:
            beside.append((part.transfers, schema.transfers_table(rows, columns)))
        if rows.job_completion_s is not None:
            beside.append((part.jobs, schema.jobs_table(rows, columns, self._jobs(point))))
        if rows.counters is not None:
            beside.append((part.counters, schema.counters_table(rows, columns)))
        if rows.probes is not None:
            beside.append((part.probes, schema.probes_table(rows, columns)))
        for path, table in beside:
            self._write_part(path, table.schema, table)
        collectives = self._schema.with_metadata({_BESIDE: " ".join(path.name for path, _ in beside)})
        self._write_part(part.collectives, collectives, schema.collectives_table(rows, columns, self._schema))
        progress.written, progress.ready = rows.stop, []

    def _write_part(self, path: Path, columns: pa.Schema, table: pa.Table) -> None:
        write_table(path, columns, [table])
        if self._kept_bytes + table.nbytes <= _KEPT_BYTES:
            self._kept[path] = table
            self._kept_bytes += table.nbytes

    def flush(self, *, measured_only: bool = False) -> None:
        """Write the rows that are ready; raises OSError where that fails."""
        for point, progress in self._points.items():
            if progress.ready and not (measured_only and point.engine == "model"):
                self._write(point, progress)

    def tables(self) -> reader.Tables:
        """All parts, point by point; raises OSError, ResultsError."""
        self.flush()
        parts = sorted(reader.parts_of(self._path), key=lambda part: self.points.index(part.point))
        return reader.Tables(
            [self._table(part.collectives, self._schema) for part in parts],
            [self._table(part.transfers, schema.TRANSFERS) for part in parts if part.transfers.exists()],
            [self._table(part.jobs, schema.JOBS) for part in parts if part.jobs.exists()],
            [self._table(part.counters, schema.COUNTERS) for part in parts if part.counters.exists()],
            [self._table(part.probes, schema.PROBES) for part in parts if part.probes.exists()],
        )

    def _table(self, path: Path, columns: pa.Schema) -> pa.Table:
        kept = self._kept.get(path)
        return reader.table_in(path, columns) if kept is None else kept

    def write_tables(self, tables: reader.Tables | None = None) -> None:
        """Put all parts together into the tables of the run, a row group each; raises OSError, ResultsError.

        `tables` are what `tables` has returned.
        """
        found = tables or self.tables()
        write_table(self._path / reader.COLLECTIVES, self._schema, found.collectives)
        for name, columns, parts in (
            (reader.TRANSFERS, schema.TRANSFERS, found.transfers),
            (reader.JOBS, schema.JOBS, found.jobs),
            (reader.COUNTERS, schema.COUNTERS, found.counters),
            (reader.PROBES, schema.PROBES, found.probes),
        ):
            if parts:
                write_table(self._path / name, columns, parts)

    def close(self) -> None:
        """Write the measured rows that are ready; raises OSError where that fails.

        An interrupted command has little time, in which the model's can be computed again.
        """
        self.flush(measured_only=True)
