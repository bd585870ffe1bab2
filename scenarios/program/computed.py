"""What a rank tells of its computing and of its steps: for how long, and how much of it within these.

A line is `SECONDS`, of `longhaul-compute`; `SECONDS BEGIN PROCESS`, of `longhaul.compute`; or `step SECONDS END PROCESS
[TOKENS]`, of `longhaul.report`, with times in seconds. The rank may have written anything else.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_NUMBER = r"[0-9]{0,30}\.?[0-9]{1,30}(?:[eE][-+]?[0-9]{1,3})?"
_AT = rf"(?P<at>{_NUMBER}) (?P<process>[0-9]{{1,10}})"
_LINE = re.compile(rf"(?P<step>step )?(?P<seconds>{_NUMBER})(?: {_AT}(?(step)(?: (?P<tokens>{_NUMBER}))?))?")


class Reported(NamedTuple):
    """A step that a rank reported: its number from 0 on, its time in s, and its tokens if it told them."""

    number: int
    step_s: float
    tokens: float | None


class Computed(NamedTuple):
    """For how many seconds a rank has computed, all threads and processes together, and the share of its steps' time in
    which it did: None if it reported no steps, or if some of its computing was not in a process that did. `steps` are
    those that it reported, of one process after the other."""

    whole_s: float
    of_steps: float | None
    steps: tuple[Reported, ...] = ()


class ComputedOfStep(NamedTuple):
    """How much of a step a rank computes: its number, its median step in s, and for how many s of it it computed, on
    average over its steps."""

    rank: int
    step_s: float
    computed_s: float

    @property
    def share(self) -> float:
        """Which part of the median step is computing."""
        return self.computed_s / self.step_s if self.step_s else 0.0


class _Span(NamedTuple):
    process: str | None
    begin_s: float
    end_s: float
    seconds: float
    tokens: float | None


def computed(lines: Iterable[str]) -> Computed:
    """Return what the lines of a rank tell."""
    spans, steps = list[_Span](), list[_Span]()
    for match in filter(None, map(_LINE.fullmatch, lines)):
        seconds, at = float(match["seconds"]), float(match["at"] or 0.0)
        if math.isfinite(seconds + at):
            begin_s = at - seconds if match["step"] else at
            tokens = float(match["tokens"]) if match["tokens"] else None
            span = _Span(match["process"], begin_s, begin_s + seconds, seconds, tokens)
            (steps if match["step"] else spans).append(span)
    whole_s, took_s, reported = _sum_s(spans), _sum_s(steps), tuple(_numbered(steps))
    if not took_s or not {one.process for one in spans} <= {one.process for one in steps}:
        return Computed(whole_s, None, reported)
    return Computed(whole_s, _within_s(steps, spans) / took_s, reported)


def _numbered(steps: Sequence[_Span]) -> Iterator[Reported]:
    """Yield the steps of all processes, each of which counts its own. One that begins after another has ended counts on
    from there, as if it took its place."""
    of_process: dict[str | None, list[_Span]] = {}
    for one in steps:
        of_process.setdefault(one.process, []).append(one)
    counted = list[tuple[float, int]]()  # when the last step ended, and how many there were
    for own in sorted(of_process.values(), key=lambda own: own[0].begin_s):
        before = max((one for one in counted if one[0] <= own[0].begin_s), default=None)
        first = 0
        if before is not None:
            counted.remove(before)
            first = before[1]
        yield from (Reported(first + nth, one.seconds, one.tokens) for nth, one in enumerate(own))
        counted.append((own[-1].end_s, first + len(own)))


def _sum_s(spans: Iterable[_Span]) -> float:
    return sum(one.end_s - one.begin_s for one in spans)


def _within_s(steps: Sequence[_Span], spans: Sequence[_Span]) -> float:
    """Return for how long processes computed within their steps. Threads that compute at once fill one, and no more."""
    found_s = 0.0
    for process in {one.process for one in steps}:
        begin_s, end_s = _ends_s(steps, process)
        begins_s, ends_s = map(np.sort, _ends_s(spans, process))
        inside_s = _before_s(begins_s, ends_s, end_s) - _before_s(begins_s, ends_s, begin_s)
        found_s += float(np.minimum(end_s - begin_s, inside_s).sum())
    return found_s


def _ends_s(spans: Sequence[_Span], process: str | None) -> Floats:
    """Return when the spans of a process begin and end, [2, spans]."""
    return np.array([[one.begin_s, one.end_s] for one in spans if one.process == process]).reshape(-1, 2).T


def _before_s(begins_s: Floats, ends_s: Floats, until_s: Floats) -> Floats:
    """Return for how long was computed until these times, where spans begin and end at times in ascending order."""
    begun, ended = (np.append(0.0, np.cumsum(times_s)) for times_s in (begins_s, ends_s))
    begins, ends = (np.searchsorted(times_s, until_s) for times_s in (begins_s, ends_s))
    before_s: Floats = (begins - ends) * until_s - begun[begins] + ended[ends]
    return before_s
