"""Rows: the results of some consecutive collectives of one point, as arrays.

This module does not import Parquet, so that a worker starts quickly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

TRANSFER = ("collective", "step", "src", "dst", "chunk", "start_ns", "end_ns")
"""The columns of `Rows.transfers`."""
COUNTER = ("collective", "link", "since_ns", "until_ns", "sent_bytes")
"""The columns of `Rows.counters`."""
PROBE = ("collective", "src", "dst", "path", "sent_ns", "arrived_ns")
"""The columns of `Rows.probes`."""

REFEREE_COLUMNS = ("best_ring_s", "best_ring_bound_s", "best_schedule_s", "best_schedule_bound_s", "best_policy_s")
"""The arrays of `Rows` that are computed only if `run.referees` asks for them."""

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


class Point(NamedTuple):
    """A point of a run: one mode of one setting (its index in settings.json) in one engine."""

    engine: str
    setting: int
    mode: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The collectives start .. start+K-1 of one point; arrays are None if the engine does not compute such values.

    - `completion_s`, [K] seconds: the measured time, in the model engine the model's; `predicted_s`: the model's time
      for the same conditions, None in the model engine.
    - `bound_s`, [K] seconds: a time that no schedule can beat under these conditions, faults aside.
    - Times of referees, [K] seconds, NaN if unknown: `best_ring_s`, of the fastest ring, `best_ring_bound_s`, which no
      ring can beat; `best_schedule_s` and `best_schedule_bound_s`, the same for schedules of whole blocks;
      `best_policy_s`, with the best policy that knows all conditions in advance.
    - `ring` and `paths`, [K, n]: the ranks in ring order, and the index of the WAN path of each ring edge, -1 within a
      site; `reembedded` and `rerouted`, [K]: whether they were chosen for this collective.
    - `drops`, [K]: packets lost. `late`, [K]: whether a machine on a wall clock was too slow. `undisturbed`, [K]:
      whether no fault was injected in the middle, so that the model applies.
    - `reconfigure_s`, [K] seconds: how long changing the routes before the collective took, NaN if they were not
      changed; `reconfigure_messages`, [K]: the number of OpenFlow messages for it.
    - In fifo queues `retransmitted_bytes`, [K]: the payload that TCP retransmitted; `quickest_transfer`,
      `slowest_transfer`, `fairness` and `fairness_link`, [K]: the `Shares` of the transfers.
    - `transfers`, [any, 7], with the columns of TRANSFER; `counters`, [any, 5], with those of COUNTER, if switches were
      polled; `probes`, [any, 6], with those of PROBE, if paths were probed.
    - `job_completion_s` and `job_predicted_s`, [K, J] seconds: the times of each of J concurrent jobs.
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
    best_ring_s: Floats | None = None
    best_ring_bound_s: Floats | None = None
    best_schedule_s: Floats | None = None
    best_schedule_bound_s: Floats | None = None
    best_policy_s: Floats | None = None
    reconfigure_s: Floats | None = None
    reconfigure_messages: npt.NDArray[np.int64] | None = None
    retransmitted_bytes: Floats | None = None
    quickest_transfer: Floats | None = None
    slowest_transfer: Floats | None = None
    fairness: Floats | None = None
    fairness_link: npt.NDArray[np.object_] | None = None
    transfers: npt.NDArray[np.int64] | None = None
    counters: npt.NDArray[np.int64] | None = None
    probes: npt.NDArray[np.int64] | None = None
    job_completion_s: Floats | None = None
    job_predicted_s: Floats | None = None

    def __len__(self) -> int:
        return len(self.completion_s)

    @property
    def stop(self) -> int:
        """The index of the first collective after these."""
        return self.start + len(self)

    @property
    def predictions_s(self) -> Floats:
        """The model's times: `predicted_s`, or `completion_s` in the model engine."""
        return self.completion_s if self.predicted_s is None else self.predicted_s

    def part(self, start: int, stop: int) -> "Rows":
        """Return the rows of collectives start .. stop-1, which must all be among these."""
        if start == self.start and stop == self.stop:
            return self
        assert self.start <= start <= stop <= self.stop
        values = {name: array[start - self.start : stop - self.start] for name, array in self._arrays().items()}
        for name in {"transfers", "counters", "probes"} & values.keys():
            numbers = self._arrays()[name][:, 0]
            values[name] = self._arrays()[name][(numbers >= start) & (numbers < stop)]
        return Rows(start=start, **values)

    def _arrays(self) -> dict[str, Array]:
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "start"}
        return {name: array for name, array in values.items() if array is not None}


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows that follow each other without a gap."""
    if len(parts) == 1:
        return parts[0]
    assert all(part.stop == following.start for part, following in pairwise(parts))
    names = parts[0]._arrays()
    return Rows(
        start=parts[0].start, **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )
