"""Records a rank's kernels, collectives and steps, and writes what they come to at the end of the process. No torch.

A step is split (`breakdown`) as soon as nothing can be added to it, so that only the records of steps under way are in
memory, beside a row for each step and the kernels and collectives of the last steps. What is beyond the limits below is
counted, and left out.
"""

import json
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from .breakdown import Interval, breakdown, merged
from .streams import Timeline

MAX_STEPS = 10_000
"""Steps of a rank that are told; later ones are counted and left out."""

MAX_EXPOSED = 50_000
"""Collectives in the rows of steps, in all; steps beyond are counted and left out."""

KEPT_STEPS = 4
"""Last steps whose kernels and collectives are kept."""

KEPT_KERNELS = 100_000
"""Kernels of all ranks that are kept, divided among them; a longer step is not kept."""

_MAX_PENDING = 100_000  # intervals of kernels, or collectives, that wait for the end of their step

Kernel = tuple[int, int, int, int, int, float, tuple[int, ...]]
"""A kernel: id, index of its name, stream, begin and time in ns, FLOPs, and the ids of what it waited for."""


class _Collective:
    """A collective on this rank; `ended_ns` is None while it runs."""

    __slots__ = ("after", "asked_ns", "begun_ns", "ended_ns", "group", "id", "kind", "number", "size_bytes")

    def __init__(self, id_: int, group: int, number: int, kind: str, size_bytes: int) -> None:
        self.id, self.group, self.number, self.kind, self.size_bytes = id_, group, number, kind, size_bytes
        self.asked_ns = self.begun_ns = 0
        self.ended_ns: int | None = None
        self.after: tuple[int, ...] = ()

    def as_list(self) -> list[Any]:
        """Return it for a file."""
        times = [self.asked_ns, self.begun_ns, self.ended_ns]
        return [self.id, self.group, self.number, self.kind, self.size_bytes, *times, self.after]


class Recorder:
    """The records of a rank, one of `ranks`; any thread may call its methods. Times are in ns of CLOCK_MONOTONIC."""

    def __init__(self, ranks: int = 1) -> None:
        self._most_kernels = max(1, KEPT_KERNELS // max(1, ranks))
        self._lock, self._ids = threading.Lock(), count()
        self._names = dict[str, int]()
        self._groups = dict[tuple[str, tuple[int, ...]], int]()
        self._busy = list[Interval]()
        self._lossy_until_ns = 0  # before this instant kernels were forgotten
        self._flops = self._at_peak_s = 0.0  # of what the script has issued since the last step
        self._kernels = deque[Kernel]()
        self._lost_kernels_ns = 0  # the begin of the last kernel that is not in _kernels
        self._collectives = list[_Collective]()
        self._settled = tuple[int, ...]()
        self._untold = deque[tuple[int, int, float, float]]()  # steps that can still change
        self._begin_ns: int | None = None
        self._number = 0
        self._rows = list[list[Any]]()
        self._exposed = 0
        self._kept = deque[dict[str, Any]]()
        self._left_out = self._lost = self._too_long = 0

    # --- records -----------------------------------------------------------------------------------------------------

    def kernel(self, stream: Timeline, name: str, took_ns: int, flops: float, at_peak_s: float) -> None:
        """Enter a kernel that has just been put on a stream; `at_peak_s` is the time of its FLOPs at the peak."""
        end_ns = stream.end_ns
        begin_ns = end_ns - took_ns
        with self._lock:
            if self._busy and self._busy[-1][1] == begin_ns:
                self._busy[-1] = self._busy[-1][0], end_ns
            else:
                self._busy.append((begin_ns, end_ns))
                if len(self._busy) > _MAX_PENDING:
                    self._shorten()
            self._flops += flops
            self._at_peak_s += at_peak_s
            one = next(self._ids)
            index = self._names.setdefault(name, len(self._names))
            after, self._settled = stream.after + self._settled, ()
            self._kernels.append((one, index, stream.number, begin_ns, took_ns, flops, after))
            if len(self._kernels) > 2 * self._most_kernels:
                self._lost_kernels_ns = max(self._lost_kernels_ns, self._kernels.popleft()[3])
        stream.after = (one,)

    def begun(
        self,
        group: str,
        ranks: Sequence[int],
        *,
        number: int,
        kind: str,
        size_bytes: int,
        asked_ns: int,
        begun_ns: int,
        after: tuple[int, ...],
    ) -> "_Collective":
        """Enter a collective that has begun on this rank, and that waited for what has the ids `after`; return it for
        `ended`. `group` and `ranks` name its process group."""
        with self._lock:
            key = group, tuple(ranks)
            one = _Collective(
                next(self._ids), self._groups.setdefault(key, len(self._groups)), number, kind, size_bytes
            )
            one.asked_ns, one.begun_ns, one.after = asked_ns, begun_ns, after
            self._collectives.append(one)
            if len(self._collectives) > _MAX_PENDING:
                self._shorten()
        return one

    def ended(self, collective: "_Collective", ended_ns: int) -> None:
        """Enter the end of a collective."""
        collective.ended_ns = ended_ns

    def settled(self, ids: Iterable[int]) -> None:
        """Have what comes next wait for these collectives, for whose futures the script may have waited."""
        with self._lock:
            self._settled += tuple(ids)

    def stepped(self, now_ns: int, end_ns: int) -> None:
        """Enter the end of a step on the GPU, which is now or later. The first step has no begin and does not count.

        FLOPs count for the step in which the script has issued them.
        """
        with self._lock:
            begin_ns = end_ns if self._begin_ns is None else self._begin_ns
            self._untold.append((begin_ns, end_ns, self._flops, self._at_peak_s))
            self._begin_ns, self._flops, self._at_peak_s = end_ns, 0.0, 0.0
            while self._untold and self._untold[0][1] <= now_ns:
                self._split(*self._untold.popleft())

    def _shorten(self) -> None:
        """Merge intervals of kernels; forget what waits for the end of a step if that is long in coming."""
        self._busy = merged(self._busy)
        if max(len(self._busy), len(self._collectives)) <= _MAX_PENDING // 2:
            return
        ends_ns = [end_ns for _, end_ns in self._busy] + [one.ended_ns or one.begun_ns for one in self._collectives]
        self._lossy_until_ns = max(self._lossy_until_ns, *ends_ns)
        self._busy, self._collectives = [], []

    # --- steps -------------------------------------------------------------------------------------------------------

    def _split(self, begin_ns: int, end_ns: int, flops: float, at_peak_s: float) -> None:
        """Split a step into a row, keep what it consists of, and forget what had ended before its end."""
        self._busy = merged(self._busy)
        here = [one for one in self._collectives if one.begun_ns < end_ns]
        is_first = not self._number
        if begin_ns < self._lossy_until_ns:
            self._lost += not is_first
        elif len(self._rows) >= MAX_STEPS or self._exposed + len(here) > MAX_EXPOSED:
            self._left_out += 1
        elif not is_first:
            found = breakdown(begin_ns, end_ns, self._busy, [(one.begun_ns, one.ended_ns or end_ns) for one in here])
            exposed = [
                [one.group, one.number, one.kind, one.size_bytes, exposed_ns]
                for one, exposed_ns in zip(here, found.exposed_of, strict=True)
            ]
            self._rows.append([self._number - 1, begin_ns, end_ns, *found[:5], flops, at_peak_s, exposed])
            self._exposed += len(here)
        self._keep(begin_ns, end_ns)
        self._number += 1
        self._busy = [(max(begin, end_ns), end) for begin, end in self._busy if end > end_ns]
        self._collectives = [one for one in self._collectives if one.ended_ns is None or one.ended_ns > end_ns]

    def _keep(self, begin_ns: int, end_ns: int) -> None:
        """Keep the kernels and the collectives that began in a step, in place of those of the oldest kept one."""
        kernels = [one for one in self._kernels if one[3] < end_ns]
        self._kernels = deque(one for one in self._kernels if one[3] >= end_ns)
        if not self._number:
            return
        if begin_ns <= self._lost_kernels_ns or len(kernels) > self._most_kernels:
            self._too_long += 1
            self._kept.clear()  # kept steps follow one another
            return
        collectives = [one for one in self._collectives if begin_ns <= one.begun_ns < end_ns]
        self._kept.append(
            {
                "step": self._number - 1,
                "begin_ns": begin_ns,
                "end_ns": end_ns,
                "kernels": kernels,
                "collectives": collectives,
            }
        )
        while len(self._kept) > KEPT_STEPS or sum(len(one["kernels"]) for one in self._kept) > self._most_kernels:
            self._kept.popleft()

    # --- the end -----------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Return what the records come to; the GPU has done everything."""
        with self._lock:
            while self._untold:
                self._split(*self._untold.popleft())
            return {
                "groups": [[name, list(ranks)] for name, ranks in self._groups],
                "names": [*self._names],
                "steps": self._rows,
                "left_out": self._left_out + self._lost,
                "too_long": self._too_long,
                "kept": [{**one, "collectives": [each.as_list() for each in one["collectives"]]} for one in self._kept],
            }

    def end(self, path: str | None) -> None:
        """Write it into a file as a line of JSON, if there was a step; a file that cannot be written is told."""
        found = self.as_json()
        if path and (found["steps"] or found["left_out"]):
            try:
                with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - imports nothing more
                    file.write(json.dumps(found, separators=(",", ":")) + "\n")
            except OSError as error:
                print(f"longhaul: {path} cannot be written: {error.strerror or error}", file=sys.stderr, flush=True)
