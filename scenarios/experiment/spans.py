"""Which numbers of a row are there already: spans of whole numbers, joined where they touch."""

from bisect import bisect_left, insort
from collections.abc import Iterator


class Spans:
    """Spans start .. stop-1 that do not overlap."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._spans)

    def add(self, start: int, stop: int) -> None:
        """Add a span of which nothing is there yet."""
        place = bisect_left(self._spans, (start, stop))
        if place < len(self._spans) and self._spans[place][0] == stop:
            _, stop = self._spans.pop(place)
        if place and self._spans[place - 1][1] == start:
            start, _ = self._spans.pop(place - 1)
        insort(self._spans, (start, stop))

    def gaps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The spans of start .. stop-1 that are not there."""
        for first, end in self._spans:
            if end <= start:
                continue
            if first >= stop:
                break
            if first > start:
                yield start, first
            start = end
        if start < stop:
            yield start, stop

    def covers(self, start: int, stop: int) -> bool:
        """Whether all of start .. stop-1 is there."""
        return next(self.gaps(start, stop), None) is None
