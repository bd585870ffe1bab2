"""Points of several seeds as one: seeds, of the conditions and of ECMP's hash, are repetitions, which figures of means
and distributions do not tell apart."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.run_points import Configuration, Floats, PointRows, Points
from analysis.statistics.contests import HASH_SEED, SEED, SEEDS, Repetition, seeds_words, shared_words
from analysis.statistics.intervals import Numbers, Series, pooled_repetitions


@dataclass(frozen=True, kw_only=True, eq=False)
class PooledRows(PointRows):
    """The rows of a point with several seeds; `parts` has those of each by the numbers of its seeds: of the hash, and
    of the conditions."""

    parts: Mapping[tuple[int, int], PointRows]

    @cached_property
    def series(self) -> Series:
        """The completion times of all seeds, pooled."""
        return pooled_repetitions({seeds: part.series for seeds, part in self.parts.items()})

    @property
    def repetitions(self) -> str:
        """What to say beside the number of its collectives: of how many seeds they are, or with how many each of them
        was repeated."""
        hashes, seeds = (len({*each}) for each in zip(*self.parts, strict=True))
        stored = sum(len(part.rows) for part in self.parts.values())
        is_apart = stored == hashes * self.number.size  # with a trace, seeds have the same collectives
        each = [f"{seeds} seeds"] * (seeds > 1 and not is_apart) + [f"{hashes} hash seeds"] * (hashes > 1)
        own = f" of {seeds} seeds" * (seeds > 1 and is_apart)
        return f"{own}, with each of {' and '.join(each)}" if each else own

    @cached_property
    def number(self) -> Numbers:
        """The numbers of the collectives, which differ between seeds."""
        return self.series.number

    @cached_property
    def completion_s(self) -> Floats:
        """The completion times, [K] s, of all hashes."""
        return self.series.all_s

    @cached_property
    def predicted_s(self) -> Floats:
        """The predicted times, [K] s."""
        predicted = {
            seeds: replace(part.series, completion_s=np.asarray(part.predicted_s)) for seeds, part in self.parts.items()
        }
        return pooled_repetitions(predicted).all_s


def with_pooled_seeds(
    configurations: Sequence[Configuration], points: Points
) -> tuple[list[Configuration], dict[tuple[str, int, str], PointRows]]:
    """Return the configurations without those that differ only in their seeds from an earlier one, and their points
    with the rows of all seeds."""
    groups: dict[tuple[str, ...], list[Configuration]] = {}
    for one in configurations:
        others = (f"{key}={value!r}" for key, value in one.swept.items() if key not in SEEDS)
        is_repeated = not one.swept.keys().isdisjoint(SEEDS)
        groups.setdefault(tuple(others) if is_repeated else (f"{one.index}",), []).append(one)
    first_of = {one.index: (group, numbers) for group in groups.values() for one, numbers in _numbered(group)}
    found: dict[tuple[str, int, str], dict[tuple[int, int], PointRows]] = {}
    for (engine, index, mode), point in points.items():
        group, numbers = first_of[index]
        found.setdefault((engine, group[0].index, mode), {})[numbers] = point
    merged = {group[0].index: _merged(group) for group in groups.values()}
    return [*merged.values()], {key: _pooled(merged[key[1]], parts) for key, parts in found.items()}


def _numbered(group: Sequence[Configuration]) -> Iterator[tuple[Configuration, tuple[int, int]]]:
    """Yield configurations with the numbers of their seeds: of the hash, and of the conditions."""
    hashes, seeds = (list(dict.fromkeys(one.swept.get(key) for one in group)) for key in (HASH_SEED, SEED))
    for one in group:
        yield one, (hashes.index(one.swept.get(HASH_SEED)), seeds.index(one.swept.get(SEED)))


def _merged(group: Sequence[Configuration]) -> Configuration:
    """Return what configurations share that differ only in their seeds."""
    first = group[0]
    if len(group) == 1:
        return first
    seeds = seeds_words(Repetition(str(draw), str(seed)) for _, (draw, seed) in _numbered(group))
    return replace(
        first,
        label=f"{shared_words([one.label for one in group])}, {seeds}",
        swept={key: value for key, value in first.swept.items() if key not in SEEDS},
        at=tuple(value for value in first.at if value.key not in SEEDS),
        further=(*first.further, seeds),
    )


def _pooled(configuration: Configuration, parts: Mapping[tuple[int, int], PointRows]) -> PointRows:
    first = next(iter(parts.values()))
    if configuration is first.configuration:
        return first
    about: dict[str, Any] = {"engine": first.engine, "configuration": configuration, "mode": first.mode, "parts": parts}
    pooled_rows = PooledRows(**about, rows=first.rows)
    series = pooled_rows.series
    if series.draws is None and series.number.size == len(first.rows) and len(parts) > 1:  # a collective counts once
        return pooled_rows
    return replace(pooled_rows, rows=pd.concat([part.rows for part in parts.values()]))
