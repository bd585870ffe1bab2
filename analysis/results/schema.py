"""The tables of a run folder: what their columns are, rows made into them, and files of them that are whole or absent.

Knows Parquet (pyarrow) and the columns; where the files lie and what a run is, is for `results`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.results.durable import replaced
from analysis.results.rows import TRANSFER, Array, Rows

Columns = Mapping[str, Any]  # what is the same in every row of a point, by column

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
    ("ring", pa.list_(pa.int16())),
    ("paths", pa.list_(pa.int16())),
    ("reembedded", pa.bool_()),
    ("rerouted", pa.bool_()),
    ("drops", pa.int64()),
    ("late", pa.bool_()),
    ("undisturbed", pa.bool_()),
)
FAULTS = pa.schema(
    [
        *_POINT[:3],
        ("fault", pa.int32()),
        ("at_collective", pa.int64()),
        ("what", pa.string()),
        ("detected_s", pa.float64()),
        ("recovered_s", pa.float64()),
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
CONDITIONS = pa.schema(
    [
        ("setting", pa.int32()),
        ("collective", pa.int32()),
        ("link", pa.int32()),
        ("rate_bps", pa.float64()),
        ("delay_s", pa.float64()),
    ]
)
_UNLIKE = ("collective", "completion_s", "predicted_s", "start_s", "end_s", "rate_bps")
"""Columns whose values are hardly ever the same twice: a dictionary of them would cost time and save nothing."""


def collectives_schema(swept: Columns) -> pa.Schema:
    """The columns of collectives.parquet where these further keys were swept, each with one of its values."""
    return pa.schema([*_POINT, *_ROW, *((name, _type(value)) for name, value in swept.items())])


def _type(value: Any) -> pa.DataType:
    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    return kinds.get(type(value), pa.string())


def collectives_table(rows: Rows, point: Columns, schema: pa.Schema) -> pa.Table:
    """Rows of one point as a table; `point` are the columns that are the same in all of them."""
    count = len(rows)
    columns = {name: _repeated(value, count, schema.field(name).type) for name, value in point.items()}
    columns |= {
        "collective": _array(np.arange(rows.start, rows.stop), pa.int64()),
        "completion_s": _array(rows.completion_s, pa.float64()),
        "predicted_s": _array(rows.predictions_s, pa.float64()),
        "ring": _lists(rows.ring),
        "paths": _lists(rows.paths),
        "reembedded": _truths(rows.reembedded),
        "rerouted": _truths(rows.rerouted),
        "drops": _array(np.zeros(count, dtype=np.int64) if rows.drops is None else rows.drops, pa.int64()),
        "late": _truths(np.zeros(count, dtype=np.bool_) if rows.late is None else rows.late),
        "undisturbed": _truths(np.ones(count, dtype=np.bool_) if rows.undisturbed is None else rows.undisturbed),
    }
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _array(values: Array, kind: pa.DataType) -> pa.Array:
    # pa.array would import pandas, to ask whether this is one of its series: half a second.
    numbers = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _repeated(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return _truths(np.full(count, value))
    if not pa.types.is_string(kind):
        return _array(np.full(count, value), kind)
    text = str(value).encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(text)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)])


def _truths(values: Array) -> pa.Array:
    bits = np.packbits(np.ascontiguousarray(values, dtype=np.bool_), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def _lists(array: Array) -> pa.Array:
    count, width = array.shape
    ends = np.arange(0, count * width + 1, width)
    return pa.ListArray.from_arrays(_array(ends, pa.int32()), _array(array.reshape(-1), pa.int16()))


def transfers_table(rows: Rows, point: Columns) -> pa.Table:
    """The transfers of measured rows of one point as a table."""
    found = np.empty((0, len(TRANSFER)), dtype=np.int64) if rows.transfers is None else rows.transfers
    columns = [_repeated(point[name], len(found), kind) for name, kind in _POINT[:3]]
    columns += [_array(found[:, place], pa.int32()) for place in range(5)]
    columns += [_array(found[:, place] / 1e9, pa.float64()) for place in (5, 6)]
    return pa.Table.from_arrays(columns, schema=TRANSFERS)


def faults_table(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """What became of faults as a table; numbers that never were are NaN."""
    columns = {
        field.name: [math.nan if record[field.name] is None else record[field.name] for record in records]
        for field in FAULTS
    }
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in FAULTS}, schema=FAULTS)


def conditions_table(setting: int, start: int, rates_bps: Array, delays_s: Array) -> pa.Table:
    """The conditions of some collectives in a row of one setting, [K, links] and [links], as a table."""
    count, links = rates_bps.shape
    columns = {
        "setting": np.full(count * links, setting),
        "collective": np.repeat(np.arange(start, start + count), links),
        "link": np.tile(np.arange(links), count),
        "rate_bps": rates_bps.reshape(-1),
        "delay_s": np.tile(delays_s, count),
    }
    arrays = [_array(columns[field.name], field.type) for field in CONDITIONS]
    return pa.Table.from_arrays(arrays, schema=CONDITIONS)


def write_table(path: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """Write a Parquet file of these parts, whole or not at all; raises OSError where that fails."""
    alike = [name for name in _leaves(schema) if name not in _UNLIKE]
    with (
        replaced(path) as temporary,
        pq.ParquetWriter(
            temporary,
            schema,
            compression={name: "snappy" if name in alike else "none" for name in _leaves(schema)},
            use_dictionary=alike,
            write_statistics=[name for name in _leaves(schema) if "." not in name],
            write_page_checksum=True,
        ) as writer,
    ):
        for part in parts:
            writer.write_table(part)


def _leaves(schema: pa.Schema) -> list[str]:
    """The columns as Parquet names them."""
    return [f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name for field in schema]


def read_table(path: Path, columns: Iterable[str] | None = None) -> pa.Table:
    """The table in a file; raises pyarrow's errors, and OSError, where it is damaged or there is none."""
    return pq.read_table(path, columns=None if columns is None else list(columns), page_checksum_verification=True)
