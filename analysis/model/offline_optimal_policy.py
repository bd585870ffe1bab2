"""The best policy with full knowledge of all conditions in advance, including the cost of each change."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class OfflinePolicy:
    """The best policy: `chosen` [K], the index of the candidate for each of K collectives, and the total time."""

    chosen: Indices
    total_s: float


def offline_optimum(times_s: Floats, switch_s: Floats, *, first_s: Floats | None = None) -> OfflinePolicy:
    """Choose a candidate (a ring and its paths) for every collective such that the total time is minimal.

    `times_s` [K, C] is the time of each collective with each candidate, infinity if the candidate cannot be used;
    `switch_s` [C, C] is the cost of a change from one candidate to another before a collective, and `first_s` [C] the
    cost of starting with a candidate, by default zero. No policy that chooses among these candidates has a smaller
    total, because dynamic programming considers every sequence of them, in K C^2 steps (Bellman, 1957; the same
    recursion as Viterbi's algorithm). Ties go to the candidate with the lower index. Raises ValueError for arrays of
    another shape, for costs that are negative or not numbers, and for a collective without a candidate.
    """
    count, candidates = times_s.shape
    begin_s = np.zeros(candidates) if first_s is None else first_s
    if switch_s.shape != (candidates, candidates) or begin_s.shape != (candidates,):
        raise ValueError(
            f"times {times_s.shape}, costs of a change {switch_s.shape} and of starting {begin_s.shape}; allowed for "
            f"{candidates} candidates: [K, {candidates}], [{candidates}, {candidates}] and [{candidates}]"
        )
    for name, values_s in (("time", times_s), ("cost of a change", switch_s), ("cost of starting", begin_s)):
        if not (values_s >= 0).all():
            raise ValueError(f"a {name} is {values_s[~(values_s >= 0)][0]}; allowed: 0 or more seconds")
    before = np.zeros((count, candidates), dtype=np.intp)  # best predecessor of each candidate
    indices, total_s = np.arange(candidates), begin_s.astype(np.float64)
    for collective in range(count):
        if collective:
            reached_s = total_s[:, None] + switch_s
            before[collective] = reached_s.argmin(axis=0)
            total_s = reached_s[before[collective], indices]
        total_s = total_s + times_s[collective]
        if not np.isfinite(total_s).any():
            raise ValueError(f"collective {collective} has no candidate that can be used and reached")
    chosen = np.zeros(count, dtype=np.intp)
    if count:
        chosen[-1] = total_s.argmin()
        for collective in range(count - 1, 0, -1):
            chosen[collective - 1] = before[collective, chosen[collective]]
    return OfflinePolicy(chosen, float(total_s.min()) if count else 0.0)
