"""The rows of a run on their way into its folder: each is on the disk before anybody is told of it, none is twice.

Knows the points of a run and what there is of them; how a folder is made, described and completed is for `folder`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis.results.journal import Journal
from analysis.results.reader import POINTS, Point, ResultsError, points_of, stored
from analysis.results.rows import Rows, packed
from analysis.statistics.fidelity import Measured
from scenarios.engines.base import Have, News, Slice
from scenarios.experiment.spans import Spans

Floats = npt.NDArray[np.float64]


class StoreError(RuntimeError):
    """A folder that rows cannot be written to any more; one sentence that names it."""


class Store:
    """The points of a run in its folder, some of which may be there from before; to be closed."""

    def __init__(self, path: Path, counts: Mapping[Point, int]) -> None:
        """`counts` are all points of the run and how many collectives each has.

        Raises ResultsError where what is there is damaged or of no point of this run.
        """
        self._path, self._counts = path, counts
        self._spans = {point: Spans() for point in counts}
        self._journals: dict[Point, Journal] = {}
        for point in points_of(path):
            if point not in counts:
                raise ResultsError(f"{path / POINTS / point.file} is of a point that the run does not have")
            for rows in stored(path, point):
                self._spans[point].add(rows.start, rows.stop)

    def have(self, engine: str) -> Have:
        """What an engine need not run, as it is there."""
        return lambda setting, mode, start, stop: self._spans[Point(engine, setting, mode)].covers(start, stop)

    def finished(self, point: Point) -> bool:
        """Whether every collective of a point is there."""
        return self._spans[point].covers(0, self._counts[point])

    def begun(self, point: Point) -> bool:
        """Whether any collective of a point is there."""
        return bool(self._spans[point])

    @property
    def points(self) -> tuple[Point, ...]:
        """Every point of the run, in its order."""
        return tuple(self._counts)

    def rows(self, point: Point) -> Iterator[Rows]:
        """What there is of a point, in order."""
        if (self._path / POINTS / point.file).exists():
            yield from stored(self._path, point)

    def times(self, point: Point) -> Floats | None:
        """The completion times of a point that is finished."""
        return np.concatenate([rows.completion_s for rows in self.rows(point)]) if self.finished(point) else None

    def measured(self) -> Iterator[Measured]:
        """What was measured undisturbed, for a certificate."""
        for point in self._counts:
            if point.engine != "model":
                for rows in self.rows(point):
                    if rows.drops is not None:
                        late = np.zeros(len(rows), dtype=np.bool_) if rows.late is None else rows.late
                        whole = np.ones(len(rows), dtype=np.bool_) if rows.undisturbed is None else rows.undisturbed
                        yield rows.completion_s[whole], rows.predictions_s[whole], rows.drops[whole], late[whole]

    def kept(self, news: Iterable[News], engine: str) -> Iterator[News]:
        """Pass news on, and of slices what was not there, once it is on the disk; raises StoreError where it cannot
        be written."""
        for item in news:
            if not isinstance(item, Slice):
                yield item
                continue
            point = Point(engine, item.setting, item.mode)
            for start, stop in list(self._spans[point].gaps(item.rows.start, item.rows.stop)):
                rows = item.rows.part(start, stop)
                try:
                    self._journal(point).append(packed(rows))
                except OSError as error:
                    raise StoreError(f"{self._path} cannot be written to: {error.strerror}") from None
                self._spans[point].add(start, stop)
                if self.finished(point):
                    self._journals.pop(point).close()
                yield Slice(setting=item.setting, mode=item.mode, rows=rows)

    def _journal(self, point: Point) -> Journal:
        if point not in self._journals:
            self._journals[point] = Journal(self._path / POINTS / point.file)
        return self._journals[point]

    def close(self) -> None:
        """Close every file."""
        for journal in self._journals.values():
            journal.close()
        self._journals.clear()
