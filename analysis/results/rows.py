"""Rows: the results of some collectives of one point, one after the other, as arrays.

This module does not import Parquet, so that a worker starts quickly.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.results.columns import COLLECTIVE, RECORDS

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_COLUMNS = frozenset(column.name for column in COLLECTIVE[1:])
_OF_JOBS = frozenset(("completion_s", "predicted_s", "first_token_p50_s", "requests_per_s"))


class Point(NamedTuple):
    """A point of a run: one mode of one setting (its index in settings.json) in one engine."""

    engine: str
    setting: int
    mode: str


class Rows:
    """The collectives of one point with these `numbers`, [K], in ascending order: by default start .. start+K-1.

    `columns` has arrays [K, ...] by the names of `columns.COLLECTIVE`, without those that the engine does not compute;
    `rows[name]` is one of them. `jobs` has "completion_s" and, if measured, "predicted_s" of each of J concurrent jobs,
    [K, J] seconds, and what is told of requests if there are any. `records` has arrays [any, columns] by the names of
    `columns.RECORDS`, with times in ns.
    """

    def __init__(
        self,
        start: int,
        columns: Mapping[str, Array | None],
        *,
        jobs: Mapping[str, Array | None] | None = None,
        records: Mapping[str, Array | None] | None = None,
        numbers: Array | None = None,
    ) -> None:
        """Leave out arrays that are None; raises ValueError for a name that the tables of columns do not have."""
        self.start, self.columns, self.jobs, self.records = start, _given(columns), _given(jobs), _given(records)
        unknown = [*self.columns.keys() - _COLUMNS, *self.jobs.keys() - _OF_JOBS, *self.records.keys() - RECORDS.keys()]
        if unknown:
            raise ValueError(f"no column of a run's tables is called {unknown[0]}")
        self.numbers = np.arange(start, start + len(self)) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self.completion_s)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    @property
    def stop(self) -> int:
        """The index of the first collective after these."""
        return int(self.numbers[-1]) + 1 if len(self) else self.start

    @property
    def completion_s(self) -> Floats:
        """The measured times, in the model engine the model's, [K] seconds."""
        return self.columns["completion_s"]

    @property
    def predictions_s(self) -> Floats:
        """The model's times, [K] seconds."""
        return self.columns.get("predicted_s", self.completion_s)

    def part(self, start: int, stop: int) -> "Rows":
        """Return the rows of those of these collectives that are among start .. stop-1."""
        if start == self.start and stop == self.stop:
            return self
        assert self.start <= start <= stop <= self.stop
        within = slice(*np.searchsorted(self.numbers, (start, stop)).tolist())
        return Rows(
            start,
            {name: array[within] for name, array in self.columns.items()},
            jobs={name: array[within] for name, array in self.jobs.items()},
            records={
                name: array[(array[:, 0] >= start) & (array[:, 0] < stop)] for name, array in self.records.items()
            },
            numbers=self.numbers[within],
        )


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows that follow each other."""
    if len(parts) == 1:
        return parts[0]
    assert all(part.stop <= following.start for part, following in pairwise(parts))
    return Rows(
        parts[0].start,
        _concatenated([part.columns for part in parts]),
        jobs=_concatenated([part.jobs for part in parts]),
        records=_concatenated([part.records for part in parts]),
        numbers=np.concatenate([part.numbers for part in parts]),
    )


def _given(arrays: Mapping[str, Array | None] | None) -> dict[str, Array]:
    return {name: array for name, array in (arrays or {}).items() if array is not None}


def _concatenated(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
