"""Conditions that change by time: row r of a sampler is in force from r * every to (r + 1) * every. Pure.

Collectives begin every `interval`, so collective k begins under row k * interval // every, and later rows come into
force while it runs. If the sampler ends, its last row stays in force for the collectives that began before. Times are
whole nanoseconds, so that every engine and process computes the same instants.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_BLOCK_RATES, _MAX_BLOCKS = 1 << 14, 64  # rates in a block that is drawn at once, and blocks that are cached
_MAX_UNUSED_ROWS = 64  # most rows between the wanted ones that are drawn without need


class Source(Protocol):
    """A sampler whose rows follow each other in time; `limit` is the number of rows, None if endless."""

    @property
    def limit(self) -> int | None: ...

    @property
    def mean_bps(self) -> Floats: ...

    def rates_bps(self, start: int, count: int) -> Floats: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Timed:
    """Conditions by time: those under which each collective begins, and those that come into force while it runs.

    Row r of `source` is in force from r * `every_ns` on; collective k begins at k * `interval_ns`.
    """

    source: Source
    every_ns: int
    interval_ns: int
    _blocks: dict[int, Floats] = field(default_factory=dict, init=False, repr=False)

    @property
    def limit(self) -> int | None:
        """The number of collectives that begin before the end of the last row; None if endless."""
        rows = self.source.limit
        return None if rows is None else -(-rows * self.every_ns // self.interval_ns)

    @property
    def mean_bps(self) -> Floats:
        """Every link's long-run mean rate, [links] bit/s."""
        return self.source.mean_bps

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return every link's rate when collectives start .. start+count-1 begin: [count, links], whole bit/s."""
        return self.earlier_bps(start, count, 0)

    def earlier_bps(self, start: int, count: int, age_ns: int) -> Floats:
        """Return every link's rate `age_ns` before each of these collectives begins, [count, links] bit/s.

        At instants before time 0 these are the rates of row 0.
        """
        begins_ns = np.arange(start, start + count) * self.interval_ns
        rows: Rows = np.maximum(begins_ns - age_ns, 0) // self.every_ns
        if not count:
            return self.source.rates_bps(0, 0)
        first, last = int(rows[0]), int(rows[-1])
        if last - first < 2 * count + _MAX_UNUSED_ROWS:
            return self.source.rates_bps(first, last - first + 1)[rows - first]
        return np.concatenate([self.source.rates_bps(int(row), 1) for row in rows])

    def row(self, number: Rows) -> Rows:
        """Return the row under which each of these collectives begins."""
        return number * self.interval_ns // self.every_ns

    def first_change_s(self, number: Rows) -> Floats:
        """Return the time from each collective's beginning to the first change of conditions, in seconds."""
        first_change_s: Floats = ((self.row(number) + 1) * self.every_ns - number * self.interval_ns) / 1e9
        return first_change_s

    def change_ns(self, number: int, change: int) -> int:
        """Return the instant of a change (0, 1, ...) during collective `number`, in ns from its beginning."""
        return (number * self.interval_ns // self.every_ns + 1 + change) * self.every_ns - number * self.interval_ns

    def rates_after_change(self, number: int, change: int) -> Floats:
        """Return every link's rate from a change (0, 1, ...) during collective `number` on, [links] bit/s."""
        row = number * self.interval_ns // self.every_ns + 1 + change
        (rates_bps,) = self.source.rates_bps(row if self.source.limit is None else min(row, self.source.limit - 1), 1)
        return rates_bps  # type: ignore[no-any-return]

    def rows_from_start(self, number: int, count: int) -> Floats:
        """Return the first `count` rows in force from the beginning of collective `number` on, [count, links] bit/s."""
        first, size = number * self.interval_ns // self.every_ns, self._block_rows
        blocks = range(first // size, (first + count - 1) // size + 1)
        rows = np.concatenate([self._block(index) for index in blocks])
        return rows[first - blocks.start * size :][:count]

    @cached_property
    def _block_rows(self) -> int:
        return max(1, _BLOCK_RATES // self.source.rates_bps(0, 1).size)

    def _block(self, index: int) -> Floats:
        """Return a block of rows; the latest blocks are cached, as neighbouring collectives run under the same rows."""
        if index not in self._blocks:
            if len(self._blocks) == _MAX_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            first, rows, limit = index * self._block_rows, self._block_rows, self.source.limit
            if limit is not None and first + rows > limit:
                first, rows = min(first, limit - 1), max(1, limit - first)
            drawn = self.source.rates_bps(first, rows)
            lacking = self._block_rows - rows
            self._blocks[index] = np.concatenate([drawn, np.repeat(drawn[-1:], lacking, axis=0)])
        return self._blocks[index]
