"""Rows: what is known of some collectives in a row of one point, as arrays.

Without Parquet, so that a worker starts quickly.
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

BEST = ("best_ring_s", "best_ring_bound_s", "best_schedule_s", "best_schedule_bound_s", "best_policy_s")
"""The arrays of `Rows` that `run.referees` asks for."""

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


class Point(NamedTuple):
    """One point of a run: one mode at one setting (its index in settings.json) in one engine."""

    engine: str
    setting: int
    mode: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The collectives start .. start+K-1 of one point; arrays are None where the engine has no such values.

    `completion_s`, [K] seconds, is measured, and `predicted_s` the model's for the same conditions (None in the model
    engine). `bound_s`, [K] seconds, is a time that no schedule can beat under those conditions, faults aside;
    `best_ring_s` is that of the fastest ring, `best_ring_bound_s` one that no ring can beat, `best_schedule_s` and
    `best_schedule_bound_s` are likewise of the best schedule of whole blocks, and `best_policy_s` is that with the best
    policy that knows all conditions beforehand, NaN where it is not known. `ring` and `paths`, [K, n],
    are the ranks in ring order and the index of the WAN path of each ring edge, -1 within a site;
    `reembedded` and `rerouted`, [K], where they were chosen anew. `drops`, [K], are packets lost, `late`, [K], where a
    machine on a wall clock was too slow, `undisturbed`, [K], where no fault was injected in the middle, so that the
    model applies. `reconfigure_s`, [K] seconds, is what changing the routes before the collective took, NaN where they
    were not changed, and `reconfigure_messages`, [K], the OpenFlow messages it took. In fifo queues
    `retransmitted_bytes`, [K], is the payload that TCP sent again, and `quickest_transfer`, `slowest_transfer`,
    `fairness` and `fairness_link`, [K], are the `Shares` of the transfers. `transfers`, [any, 7], has the columns of
    TRANSFER and, where switches were asked for them, `counters`, [any, 5], those of COUNTER; `probes`, [any, 6], where
    paths were probed, those of PROBE. Of J jobs at once
    `job_completion_s` and `job_predicted_s`, [K, J] seconds, are what `completion_s` and `predicted_s` are of all.
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
        for name in {"transfers", "counters", "probes"} & values.keys():
            numbers = self._arrays()[name][:, 0]
            values[name] = self._arrays()[name][(numbers >= start) & (numbers < stop)]
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
