"""Rows: what is known of some collectives in a row of one point, as arrays, and as bytes that can be sent and stored.

The bytes are a line of JSON that names the arrays and then the arrays as they lie in memory, little-endian; reading
them checks every size and runs nothing. Knows nothing of files, engines or scenarios.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

TRANSFER = ("collective", "step", "src", "dst", "chunk", "start_ns", "end_ns")
"""The columns of `Rows.transfers`."""

_TYPES = ("|b1", "|i1", "<i2", "<i8", "<f8")
_MOST_SMALL = 127  # what fits a byte: ranks and paths of all but the largest fabrics

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


class RowsError(ValueError):
    """Bytes that are no rows."""


class Point(NamedTuple):
    """One point of a run: one mode at one setting (its index in settings.json) in one engine."""

    engine: str
    setting: int
    mode: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The collectives start .. start+K-1 of one point; arrays are None where the engine has no such values.

    `completion_s`, [K] seconds, is measured, and `predicted_s` the model's for the same conditions (None in the model
    engine). `bound_s`, [K] seconds, is a time that no schedule can beat under those conditions, faults aside. `ring`
    and `paths`, [K, n], are the ranks in ring order and the index of the WAN path of each ring edge, -1 within a site;
    `reembedded` and `rerouted`, [K], where they were chosen anew. `drops`, [K], are packets lost, `late`, [K], where a
    machine on a wall clock was too slow, `undisturbed`, [K], where no fault was injected in the middle, so that the
    model applies. `reconfigure_s`, [K] seconds, is what changing the routes before the collective took, NaN where they
    were not changed, and `reconfigure_messages`, [K], the OpenFlow messages it took. `transfers`, [any, 7], has the
    columns of TRANSFER.
    """

    start: int
    completion_s: Floats
    ring: npt.NDArray[np.int16]
    paths: npt.NDArray[np.int16]
    reembedded: npt.NDArray[np.bool_]
    rerouted: npt.NDArray[np.bool_]
    predicted_s: Floats | None = None
    drops: npt.NDArray[np.int64] | None = None
    late: npt.NDArray[np.bool_] | None = None
    undisturbed: npt.NDArray[np.bool_] | None = None
    bound_s: Floats | None = None
    reconfigure_s: Floats | None = None
    reconfigure_messages: npt.NDArray[np.int64] | None = None
    transfers: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.completion_s)

    @property
    def stop(self) -> int:
        """The number of the first collective after these."""
        return self.start + len(self)

    @property
    def predictions_s(self) -> Floats:
        """The model's times; those of a model are their own."""
        return self.completion_s if self.predicted_s is None else self.predicted_s

    def part(self, start: int, stop: int) -> "Rows":
        """The rows of collectives start .. stop-1, all of which must be among these."""
        if start == self.start and stop == self.stop:
            return self
        assert self.start <= start <= stop <= self.stop
        values = {name: array[start - self.start : stop - self.start] for name, array in self._arrays().items()}
        if self.transfers is not None:
            inside = (self.transfers[:, 0] >= start) & (self.transfers[:, 0] < stop)
            values["transfers"] = self.transfers[inside]
        return Rows(start=start, **values)

    def _arrays(self) -> dict[str, Array]:
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "start"}
        return {name: array for name, array in found.items() if array is not None}


def joined(parts: Sequence[Rows]) -> Rows:
    """One Rows of several that follow each other without a gap."""
    if len(parts) == 1:
        return parts[0]
    assert all(one.stop == other.start for one, other in pairwise(parts))
    names = parts[0]._arrays()
    return Rows(
        start=parts[0].start, **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )


def packed(rows: Rows) -> bytes:
    """The rows as bytes."""
    arrays = {name: _small(name, array) for name, array in rows._arrays().items()}
    shapes = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    head = json.dumps({"start": rows.start, "arrays": shapes}, separators=(",", ":")).encode()
    return b"\n".join([head, b"".join(array.tobytes() for array in arrays.values())])


def _small(name: str, array: Array) -> Array:
    if name in ("ring", "paths") and (not array.size or array.max() <= _MOST_SMALL):
        return array.astype(np.int8)
    return np.ascontiguousarray(array)


def unpacked(data: bytes) -> Rows:
    """The rows of these bytes; raises RowsError where they are none."""
    head, _, body = data.partition(b"\n")
    try:
        said = json.loads(head)
        arrays, place = {}, 0
        for name, kind, shape in said["arrays"]:
            if kind not in _TYPES or not all(isinstance(size, int) and size >= 0 for size in shape):
                raise RowsError(f"an array of type {kind} and shape {shape}")
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(body, dtype=kind, count=count, offset=place).reshape(shape)
            place += arrays[name].nbytes
        for name in ("ring", "paths"):
            arrays[name] = arrays[name].astype(np.int16)
        rows = Rows(start=int(said["start"]), **arrays)
    except (ValueError, KeyError, TypeError) as error:
        raise RowsError(f"these bytes are no rows: {error}") from None
    if place != len(body) or any(len(array) != len(rows) for name, array in arrays.items() if name != "transfers"):
        raise RowsError(f"these bytes are no rows: {len(body)} bytes of arrays where {place} were announced")
    return rows
