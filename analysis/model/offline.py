"""The best that any policy could have done that knows all conditions beforehand, counting what each change costs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class OfflinePolicy:
    """What the best policy uses for each of K collectives, [K] candidates by index, and the seconds of all together."""

    chosen: Indices
    total_s: float


def offline_optimum(times_s: Floats, switch_s: Floats, *, first_s: Floats | None = None) -> OfflinePolicy:
    """The choice of a candidate (a ring and its paths) for every collective that takes the least time in all.

    `times_s` [K, C] is the time of each collective with each candidate, infinity where it cannot be used; `switch_s`
    [C, C] what it costs to change from one candidate to another before a collective, and `first_s` [C] what it costs to
    begin with one, by default nothing. No policy that chooses among these candidates has a smaller total, as every
    sequence of them is considered, by dynamic programming in K C^2 steps (Bellman, 1957; as Viterbi's algorithm). Of
    equal choices the earlier candidate is taken. Raises ValueError for arrays of another shape, costs that are negative
    or not numbers, and where a collective has no candidate.
    """
    count, candidates = times_s.shape
    begin_s = np.zeros(candidates) if first_s is None else first_s
    if switch_s.shape != (candidates, candidates) or begin_s.shape != (candidates,):
        raise ValueError(
            f"times {times_s.shape}, costs of a change {switch_s.shape} and of beginning {begin_s.shape}: "
            f"of {candidates} candidates they must be [K, {candidates}], [{candidates}, {candidates}], [{candidates}]"
        )
    for name, values_s in (("time", times_s), ("cost of a change", switch_s), ("cost of beginning", begin_s)):
        if not (values_s >= 0).all():
            raise ValueError(f"a {name} is {values_s[~(values_s >= 0)][0]}; allowed: 0 and more seconds")
    before = np.zeros((count, candidates), dtype=np.intp)  # the best candidate before each
    every, total_s = np.arange(candidates), begin_s.astype(np.float64)
    for number in range(count):
        if number:
            reached_s = total_s[:, None] + switch_s
            before[number] = reached_s.argmin(axis=0)
            total_s = reached_s[before[number], every]
        total_s = total_s + times_s[number]
        if not np.isfinite(total_s).any():
            raise ValueError(f"collective {number} has no candidate that can be used and reached")
    chosen = np.zeros(count, dtype=np.intp)
    if count:
        chosen[-1] = total_s.argmin()
        for number in range(count - 1, 0, -1):
            chosen[number - 1] = before[number, chosen[number]]
    return OfflinePolicy(chosen, float(total_s.min()) if count else 0.0)
