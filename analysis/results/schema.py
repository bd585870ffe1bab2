"""The tables of a run folder as Arrow tables: their schemas, and the conversion of rows to tables and back."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import compute

from analysis.results import columns
from analysis.results.columns import Column, Value
from analysis.results.rows import Array, Rows

Columns = Mapping[str, Any]  # values that are the same in every row of a point, by column name

_COSTS = pa.list_(pa.struct([("collective", pa.int64()), ("cost_s", pa.float64()), ("lasting_cost_s", pa.float64())]))
_KINDS = {
    "float": pa.float64(),
    "int": pa.int64(),
    "int32": pa.int32(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "ranks": pa.list_(pa.int16()),
    "costs": _COSTS,
    "costs of jobs": pa.list_(
        pa.struct([("job", pa.string()), ("cost_s", pa.float64()), ("lasting_cost_s", pa.float64()), ("costs", _COSTS)])
    ),
}


def _fields(of: Iterable[Column]) -> list[tuple[str, pa.DataType]]:
    return [(column.name, _KINDS[column.kind]) for column in of]


SCHEMAS: Mapping[str, pa.Schema] = {
    **{name: pa.schema(_fields((*columns.POINT, *own))) for name, own in columns.RECORDS.items()},
    columns.JOBS: pa.schema(_fields((*columns.POINT, *columns.JOB))),
    "faults": pa.schema(_fields((*columns.POINT, *columns.FAULT))),
    "conditions": pa.schema(_fields(columns.CONDITION)),
}
"""The columns of every table but the collectives, which also have those of swept keys (`collectives_schema`)."""

LATER: Mapping[str, Value] = {
    column.name: column.otherwise for column in (*columns.COLLECTIVE, *columns.JOB, *columns.FAULT) if column.is_later
}
"""Columns that runs of earlier versions may lack, with the value that they get on reading."""
_FROM_0 = {"fault": "number"}
"""Columns of earlier versions that counted from 0 (-1: none), and those that count from 1 (0: none) in their place."""


def collectives_schema(swept: Sequence[Columns]) -> pa.Schema:
    """Return the columns of collectives.parquet; `swept` holds each configuration's values of further swept keys."""
    further = [(name, _column_type({type(one[name]) for one in swept})) for name in swept[0]]
    own = (*columns.POINT, *columns.CONFIGURATION, *columns.COLLECTIVE)
    return pa.schema([*_fields(own), *further])


def _column_type(types: Set[type]) -> pa.DataType:
    """Return the type of a column whose values have these types: text unless all are bool, or all are numbers."""
    if types == {bool}:
        return pa.bool_()
    if types <= {int, float}:
        return pa.int64() if types == {int} else pa.float64()
    return pa.string()


def collectives_table(rows: Rows, point: Columns, schema: pa.Schema) -> pa.Table:
    """Convert rows of one point to a table; `point` are the columns that are the same in all rows."""
    otherwise = {column.name: column.otherwise for column in columns.COLLECTIVE}
    numbers = {"collective": rows.numbers, "predicted_s": rows.predictions_s}
    return _table({**point, **otherwise, **rows.columns, **numbers}, len(rows), schema)


def _table(values: Columns, count: int, schema: pa.Schema) -> pa.Table:
    """Build a table of `count` rows from columns that are arrays, or single values for all rows."""
    arrays = [_column(values[field.name], count, field.type) for field in schema]
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
    """Convert a table of collectives of one point to rows, without their jobs and records."""
    values = {}
    for name, *_ in columns.COLLECTIVE:
        array = table[name].combine_chunks()
        if pa.types.is_list(array.type):
            values[name] = array.flatten().to_numpy().reshape(len(table), -1)
        else:
            values[name] = array.to_numpy(zero_copy_only=False)
    numbers = values.pop("collective")
    return Rows(int(numbers[0]), values, numbers=numbers)


def records_table(records: Array, point: Columns, name: str) -> pa.Table:
    """Convert records of one point, with times in ns, to the table of `columns.RECORDS` called `name`, in s."""
    fields = zip((column.name for column in columns.RECORDS[name]), records.T, strict=True)
    values = {field: numbers / 1e9 if field.endswith("_s") else numbers for field, numbers in fields}
    return _table({**point, **values}, len(records), SCHEMAS[name])


def jobs_table(rows: Rows, point: Columns, jobs: Sequence[Columns]) -> pa.Table:
    """Convert the times of `jobs` in the rows of one point to a table, with a row for each job of each collective."""
    otherwise = {column.name: column.otherwise for column in columns.JOB}
    completion_s = rows.jobs["completion_s"]
    predicted_s = rows.jobs.get("predicted_s", completion_s)
    values = {
        **point,
        **otherwise,
        **{name: times.reshape(-1) for name, times in rows.jobs.items()},
        "collective": np.repeat(rows.numbers, len(jobs)),
        **{name: np.tile([job[name] for job in jobs], len(rows)) for name in ("background", "start_s")},
        "job": np.tile([job["name"] for job in jobs], len(rows)),
        "predicted_s": predicted_s.reshape(-1),
    }
    return _table(values, len(rows) * len(jobs), SCHEMAS[columns.JOBS])


def faults_table(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert the outcomes of faults to a table; missing numbers (None) become NaN."""
    wanted = SCHEMAS["faults"]
    numbers = {name for name in wanted.names if not pa.types.is_list(wanted.field(name).type)}
    rows = [
        {name: math.nan if value is None and name in numbers else value for name, value in record.items()}
        for record in records
    ]
    return pa.Table.from_pylist(rows, schema=wanted)


def conditions_table(setting: int, start: int, rates_bps: Array, delays_s: Array) -> pa.Table:
    """Convert the rates [K, links] and delays [links] of K consecutive collectives of one setting to a table."""
    count, links = rates_bps.shape
    values = {
        "setting": setting,
        "collective": np.repeat(np.arange(start, start + count), links),
        "link": np.tile(np.arange(links), count),
        "rate_bps": rates_bps.reshape(-1),
        "delay_s": np.tile(delays_s, count),
    }
    return _table(values, count * links, SCHEMAS["conditions"])


def read_table(path: Path, wanted: pa.Schema, chosen: Iterable[str] | None = None) -> pa.Table:
    """Read all columns of the table in a file, or only the chosen ones; columns of LATER that it lacks are added, and
    those of `_FROM_0` are renamed.

    Raises pyarrow's errors and OSError if the file is damaged, missing, or has other columns than `wanted`.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        former = {new: old for old, new in _FROM_0.items() if new in wanted.names and old in file.schema_arrow.names}
        present = [_FROM_0[name] if name in former.values() else name for name in file.schema_arrow.names]
        names = wanted.names if chosen is None else list(chosen)
        if chosen is None and present != [name for name in names if name in present or name not in LATER]:
            raise pa.ArrowInvalid("its columns are not those of the run's settings")
        # Reading group by group takes half the memory: reading a whole column would copy all of its groups into one.
        stored = [former.get(name, name) for name in names if name in present]
        groups = [file.read_row_group(group, columns=stored) for group in range(file.num_row_groups)]
        table = pa.concat_tables([file.schema_arrow.empty_table().select(stored), *groups])
        count = file.metadata.num_rows
    arrays = [
        compute.add(table[former[name]], 1).cast(wanted.field(name).type)
        if name in former
        else table[name]
        if name in present
        else pa.repeat(pa.scalar(LATER[name], wanted.field(name).type), count)
        for name in names
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema([wanted.field(name) for name in names]))
