"""The tables of a run folder: their columns, and the conversion of rows to Arrow tables and back."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.results.rows import COUNTER, PROBE, REFEREE_COLUMNS, TRANSFER, Array, Rows

Columns = Mapping[str, Any]  # values that are the same in every row of a point, by column name

_POINT = (
    ("engine", pa.string()),
    ("setting", pa.int32()),
    ("mode", pa.string()),
    ("gpus", pa.int32()),
    ("gpus_per_site", pa.string()),
    ("chunk_bytes", pa.int64()),
    ("wan_delay_s", pa.float64()),
    ("seed", pa.int64()),
)
_ROW = (
    ("collective", pa.int64()),
    ("completion_s", pa.float64()),
    ("predicted_s", pa.float64()),
    ("bound_s", pa.float64()),
    *((name, pa.float64()) for name in REFEREE_COLUMNS),
    ("ring", pa.list_(pa.int16())),
    ("paths", pa.list_(pa.int16())),
    ("reembedded", pa.bool_()),
    ("rerouted", pa.bool_()),
    ("drops", pa.int64()),
    ("late", pa.bool_()),
    ("undisturbed", pa.bool_()),
    ("reconfigure_s", pa.float64()),
    ("reconfigure_messages", pa.int64()),
    ("retransmitted_bytes", pa.float64()),
    ("quickest_transfer", pa.float64()),
    ("slowest_transfer", pa.float64()),
    ("fairness", pa.float64()),
    ("fairness_link", pa.string()),
)
LATER_COLUMNS: Mapping[str, float | str] = {
    "bound_s": math.nan,
    **dict.fromkeys(REFEREE_COLUMNS, math.nan),
    "reconfigure_s": math.nan,
    "reconfigure_messages": 0,
    "retransmitted_bytes": math.nan,
    "quickest_transfer": math.nan,
    "slowest_transfer": math.nan,
    "fairness": math.nan,
    "fairness_link": "",
    "cost_s": math.nan,
}
"""Columns of collectives.parquet and faults.parquet that runs of earlier versions lack, with the value that they get on
reading."""

_UNMEASURED: Mapping[str, float | str] = {"drops": 0, "late": False, "undisturbed": True, **LATER_COLUMNS}
"""The value of a column whose array in `Rows` is None."""

FAULTS = pa.schema(
    [
        *_POINT[:3],
        ("fault", pa.int32()),
        ("at_collective", pa.int64()),
        ("what", pa.string()),
        ("detected_s", pa.float64()),
        ("recovered_s", pa.float64()),
        ("cost_s", pa.float64()),
        ("collectives_lost", pa.int64()),
        ("bytes_again", pa.int64()),
        ("outcome", pa.string()),
    ]
)
TRANSFERS = pa.schema(
    [
        *_POINT[:3],
        *((name, pa.int32()) for name in TRANSFER[:5]),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
    ]
)
COUNTERS = pa.schema(
    [
        *_POINT[:3],
        *((name, pa.int32()) for name in COUNTER[:2]),
        ("since_s", pa.float64()),
        ("until_s", pa.float64()),
        ("sent_bytes", pa.int64()),
    ]
)
PROBES = pa.schema(
    [
        *_POINT[:3],
        *((name, pa.int32()) for name in PROBE[:4]),
        ("sent_s", pa.float64()),
        ("arrived_s", pa.float64()),
    ]
)
JOBS = pa.schema(
    [
        *_POINT[:3],
        ("collective", pa.int64()),
        ("job", pa.string()),
        ("background", pa.bool_()),
        ("start_s", pa.float64()),
        ("completion_s", pa.float64()),
        ("predicted_s", pa.float64()),
    ]
)
CONDITIONS = pa.schema(
    [
        ("setting", pa.int32()),
        ("collective", pa.int32()),
        ("link", pa.int32()),
        ("rate_bps", pa.float64()),
        ("delay_s", pa.float64()),
    ]
)


def collectives_schema(swept: Sequence[Columns]) -> pa.Schema:
    """Return the columns of collectives.parquet; `swept` holds each configuration's values of further swept keys."""
    further = [(name, _column_type({type(one[name]) for one in swept})) for name in swept[0]]
    return pa.schema([*_POINT, *_ROW, *further])


def _column_type(types: Set[type]) -> pa.DataType:
    """Return the type of a column whose values have these types: text unless all are bool, or all are numbers."""
    if types == {bool}:
        return pa.bool_()
    if types <= {int, float}:
        return pa.int64() if types == {int} else pa.float64()
    return pa.string()


def collectives_table(rows: Rows, point: Columns, schema: pa.Schema) -> pa.Table:
    """Convert rows of one point to a table; `point` are the columns that are the same in all rows."""
    columns: dict[str, Any] = dict(point)
    for name, _ in _ROW:
        array = getattr(rows, name, None)
        columns[name] = _UNMEASURED.get(name) if array is None else array
    columns["collective"] = np.arange(rows.start, rows.stop)
    columns["predicted_s"] = rows.predictions_s
    return _table(columns, len(rows), schema)


def _table(columns: Columns, count: int, schema: pa.Schema) -> pa.Table:
    """Build a table of `count` rows from columns that are arrays, or single values for all rows."""
    arrays = [_column(columns[field.name], count, field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    if not isinstance(value, np.ndarray):
        value = str(value) if kind == pa.string() and value is not None else value
        return pa.repeat(pa.scalar(value, kind), count)
    if value.ndim == 1:
        return pa.array(value, kind)
    ends = np.arange(0, value.size + 1, value.shape[1])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(value.reshape(-1), pa.int16()))


def rows_of(table: pa.Table) -> Rows:
    """Convert a table of consecutive collectives of one point to rows, without their transfers."""
    columns = {name: table[name].combine_chunks() for name, _ in _ROW}
    values = {}
    for name, array in columns.items():
        if pa.types.is_list(array.type):
            values[name] = array.flatten().to_numpy().reshape(len(table), -1)
        else:
            values[name] = array.to_numpy(zero_copy_only=False)
    return Rows(start=int(values.pop("collective")[0]), **values)


def measured_table(records: Array, point: Columns, columns: pa.Schema) -> pa.Table:
    """Convert the transfers, counters or probes of one point, with times in ns, to a table with times in s."""
    fields = zip(columns.names[3:], records.T, strict=True)  # after engine, setting and mode
    values = {name: numbers / 1e9 if name.endswith("_s") else numbers for name, numbers in fields}
    return _table({**point, **values}, len(records), columns)


def jobs_table(rows: Rows, point: Columns, jobs: Sequence[Columns]) -> pa.Table:
    """Convert the times of `jobs` in the rows of one point to a table, with a row for each job of each collective."""
    assert rows.job_completion_s is not None
    predicted = rows.job_completion_s if rows.job_predicted_s is None else rows.job_predicted_s
    columns = {
        **point,
        "collective": np.repeat(np.arange(rows.start, rows.stop), len(jobs)),
        **{name: np.tile([job[name] for job in jobs], len(rows)) for name in ("background", "start_s")},
        "job": np.tile([job["name"] for job in jobs], len(rows)),
        "completion_s": rows.job_completion_s.reshape(-1),
        "predicted_s": predicted.reshape(-1),
    }
    return _table(columns, len(rows) * len(jobs), JOBS)


def faults_table(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert the outcomes of faults to a table; missing numbers (None) become NaN."""
    rows = [{name: math.nan if value is None else value for name, value in record.items()} for record in records]
    return pa.Table.from_pylist(rows, schema=FAULTS)


def conditions_table(setting: int, start: int, rates_bps: Array, delays_s: Array) -> pa.Table:
    """Convert the rates [K, links] and delays [links] of K consecutive collectives of one setting to a table."""
    count, links = rates_bps.shape
    columns = {
        "setting": setting,
        "collective": np.repeat(np.arange(start, start + count), links),
        "link": np.tile(np.arange(links), count),
        "rate_bps": rates_bps.reshape(-1),
        "delay_s": np.tile(delays_s, count),
    }
    return _table(columns, count * links, CONDITIONS)


def read_table(path: Path, wanted: pa.Schema, columns: Iterable[str] | None = None) -> pa.Table:
    """Read all columns of the table in a file, or only `columns`; LATER_COLUMNS that the file lacks are added.

    Raises pyarrow's errors and OSError if the file is damaged, missing, or has other columns than `wanted`.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        present = file.schema_arrow.names
        names = wanted.names if columns is None else list(columns)
        if columns is None and [*present] != [name for name in names if name in present or name not in LATER_COLUMNS]:
            raise pa.ArrowInvalid("its columns are not those of the run's settings")
        # Reading group by group takes half the memory: reading a whole column would copy all of its groups into one.
        stored = [name for name in names if name in present]
        groups = [file.read_row_group(group, columns=stored) for group in range(file.num_row_groups)]
        table = pa.concat_tables([file.schema_arrow.empty_table().select(stored), *groups])
        count = file.metadata.num_rows
    arrays = [
        table[name] if name in present else pa.repeat(pa.scalar(LATER_COLUMNS[name], wanted.field(name).type), count)
        for name in names
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema([wanted.field(name) for name in names]))
