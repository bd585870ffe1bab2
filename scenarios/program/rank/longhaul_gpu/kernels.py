"""Tables of measured kernel times, in CSV. Pure; no torch.

The columns are operation, shapes, dtype and us: as torch.profiler names operations and shapes, with the time of one
call in microseconds:

operation,shapes,dtype,us
aten::mm,"[[4096, 768], [768, 3072]]",bfloat16,31.5
aten::gelu,,,12.0

Without shapes a row holds for all shapes, without dtype for all dtypes; the most specific row counts. Shapes are those
of an operation's tensors in the order of its arguments, lists of tensors included; scalars ([]) are left out, and rows
that differ only in them count with their mean.
"""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

COLUMNS = ("operation", "shapes", "dtype", "us")

Shapes = tuple[tuple[int, ...], ...]


class KernelTable:
    """Times by operation, shapes and dtype, in s."""

    def __init__(self, times_s: Mapping[tuple[str, Shapes | None, str], float]) -> None:
        self._times_s = times_s
        self._operations = frozenset(operation for operation, _, _ in times_s)

    def __len__(self) -> int:
        return len(self._times_s)

    def has(self, operation: str) -> bool:
        """Return whether any row is of this operation ("aten::mm")."""
        return operation in self._operations

    def seconds(self, operation: str, shapes: Shapes, dtype: str, *, unlisted: Shapes | None = None) -> float | None:
        """Return the time of an operation in s, None if no row holds for it. `shapes` are without those of scalars;
        `unlisted` are those without lists of tensors, which torch.profiler leaves out."""
        for known in (shapes, shapes if unlisted is None else unlisted, None):
            for kind in (dtype, ""):
                if (operation, known, kind) in self._times_s:
                    return self._times_s[operation, known, kind]
        return None


def parse(lines: Iterable[str]) -> KernelTable:
    """Return the table of a file's lines; raises ValueError with a sentence that names the line."""
    rows = csv.reader(lines)
    header = [name.strip() for name in next(rows, [])]
    if sorted(header) != sorted(COLUMNS):
        raise ValueError(f"line 1 is {','.join(header)[:80]!r}; allowed: the columns {', '.join(COLUMNS)}")
    times_s = dict[tuple[str, Shapes | None, str], list[float]]()
    seen = set[tuple[str, str, str]]()
    for row in rows:
        if not row:
            continue
        where = f"line {rows.line_num}"
        if len(row) != len(COLUMNS):
            raise ValueError(f"{where} has {len(row)} values; allowed: {len(COLUMNS)}, shapes in quotes")
        values = dict(zip(header, (value.strip() for value in row), strict=True))
        operation = values["operation"]
        if not operation:
            raise ValueError(f'{where} has no operation; allowed: a name such as "aten::mm"')
        operation = operation if "::" in operation else f"aten::{operation}"
        key = operation, _shapes(values["shapes"], where), values["dtype"].removeprefix("torch.")
        written = operation, values["shapes"], key[2]
        if written in seen:
            raise ValueError(f"{where} repeats the operation, shapes and dtype of a line before it; allowed: each once")
        seen.add(written)
        times_s.setdefault(key, []).append(_microseconds(values["us"], where) * 1e-6)
    if not times_s:
        raise ValueError("there is no row; allowed: one row or more below the names of the columns")
    return KernelTable({key: sum(times) / len(times) for key, times in times_s.items()})


def _microseconds(text: str, where: str) -> float:
    try:
        us = float(text)
    except ValueError:
        us = math.nan
    if not (math.isfinite(us) and us >= 0):
        raise ValueError(f"{where} has the time {text[:80]!r}; allowed: a number of microseconds from 0 up")
    return us


def _shapes(text: str, where: str) -> Shapes | None:
    if not text:
        return None
    try:
        return normal_shapes(json.loads(text.replace("(", "[").replace(")", "]")))
    except (ValueError, TypeError):
        raise ValueError(
            f'{where} has the shapes {text[:80]!r}; allowed: lists of sizes such as "[[4, 8], [8, 2]]", or nothing'
        ) from None


def normal_shapes(given: Sequence[Any]) -> Shapes:
    """Return shapes without those of scalars, and with those of lists of tensors in line; raises ValueError."""
    shapes = list[tuple[int, ...]]()
    for one in given:
        if not isinstance(one, Sequence) or isinstance(one, str):
            raise ValueError(f"{one!r} is not a shape")
        if one and all(isinstance(size, int) and not isinstance(size, bool) for size in one):
            shapes.append(tuple(one))
        elif one:
            shapes += normal_shapes(one)
    return tuple(shapes)
