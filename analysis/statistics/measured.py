"""The times of a measured collective's transfers, from the messages that a run stores of it."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.model.max_plus import Transfer

if TYPE_CHECKING:
    import pandas as pd


def times_of(
    transfers: Sequence[Transfer], ends: Sequence[tuple[int, int]], messages: "pd.DataFrame"
) -> tuple[list[float], list[float]]:
    """When each transfer of a schedule was handed over, and when it was over, [T] s each, of flows with these `ends`.

    A message has a row (`src`, `dst`, `start_s`, `end_s`) in the schedule's order among those of two ranks. A
    computation, whose flow leads from a rank to itself, takes its time after what it waits for and the one before it.
    Raises ValueError where the rows are not those of the schedule.
    """
    rows = defaultdict[tuple[int, int], deque[tuple[float, float]]](deque)
    columns = (messages[name].tolist() for name in ("src", "dst", "start_s", "end_s"))
    for src, dst, start_s, end_s in zip(*columns, strict=True):
        rows[src, dst].append((start_s, end_s))
    handed_s, over_s, free_s = list[float](), list[float](), dict[int, float]()
    for one in transfers:
        src, dst = ends[one.flow]
        if src == dst:
            start_s = max((over_s[index] for index in one.after), default=0.0)
            end_s = free_s[one.flow] = max(start_s, free_s.get(one.flow, 0.0)) + one.amount
        elif left := rows[src, dst]:
            start_s, end_s = left.popleft()
        else:
            raise ValueError("there are fewer messages than in the schedule")
        handed_s.append(start_s)
        over_s.append(end_s)
    if any(rows.values()):
        raise ValueError("there are more messages than in the schedule")
    return handed_s, over_s
