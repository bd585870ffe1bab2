"""Points of several seeds as one: seeds are repetitions, which figures of means and distributions do not tell apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.run_points import Configuration, Floats, PointRows, Points
from analysis.statistics.contests import SEED, shared_words
from analysis.statistics.intervals import Numbers, Series, pooled


@dataclass(frozen=True, kw_only=True, eq=False)
class PooledRows(PointRows):
    """The rows of a point with several seeds; `parts` has those of each by the number of the seed."""

    parts: Mapping[int, PointRows]

    @cached_property
    def series(self) -> Series:
        """The completion times of all seeds, pooled."""
        return pooled({seed: part.series for seed, part in self.parts.items()})

    @cached_property
    def number(self) -> Numbers:
        """The numbers of the collectives, which differ between seeds."""
        return self.series.number

    @cached_property
    def completion_s(self) -> Floats:
        """The completion times, [K] s."""
        return self.series.completion_s

    @cached_property
    def predicted_s(self) -> Floats:
        """The predicted times, [K] s."""
        predicted = {
            seed: replace(part.series, completion_s=np.asarray(part.predicted_s)) for seed, part in self.parts.items()
        }
        return pooled(predicted).completion_s


def with_pooled_seeds(
    configurations: Sequence[Configuration], points: Points
) -> tuple[list[Configuration], dict[tuple[str, int, str], PointRows]]:
    """Return the configurations without those that differ only in the seed from an earlier one, and their points with
    the rows of all seeds."""
    groups: dict[tuple[str, ...], list[Configuration]] = {}
    for one in configurations:
        others = (f"{key}={value!r}" for key, value in one.swept.items() if key != SEED)
        groups.setdefault(tuple(others) if SEED in one.swept else (f"{one.index}",), []).append(one)
    first_of = {one.index: (group, number) for group in groups.values() for number, one in enumerate(group)}
    found: dict[tuple[str, int, str], dict[int, PointRows]] = {}
    for (engine, index, mode), point in points.items():
        group, number = first_of[index]
        found.setdefault((engine, group[0].index, mode), {})[number] = point
    merged = {group[0].index: _merged(group) for group in groups.values()}
    return [*merged.values()], {key: _pooled(merged[key[1]], parts) for key, parts in found.items()}


def _merged(group: Sequence[Configuration]) -> Configuration:
    """Return what configurations share that differ only in the seed."""
    first = group[0]
    if len(group) == 1:
        return first
    return replace(
        first,
        label=f"{shared_words([one.label for one in group])}, {len(group)} seeds",
        swept={key: value for key, value in first.swept.items() if key != SEED},
        at=tuple(value for value in first.at if value.key != SEED),
        further=(*first.further, f"{len(group)} seeds"),
    )


def _pooled(configuration: Configuration, parts: Mapping[int, PointRows]) -> PointRows:
    first = next(iter(parts.values()))
    if configuration is first.configuration:
        return first
    about: dict[str, Any] = {"engine": first.engine, "configuration": configuration, "mode": first.mode, "parts": parts}
    pooled_rows = PooledRows(**about, rows=first.rows)
    if pooled_rows.series.number.size == len(first.rows) and len(parts) > 1:  # a collective counts once
        return pooled_rows
    return replace(pooled_rows, rows=pd.concat([part.rows for part in parts.values()]))
