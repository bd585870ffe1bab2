"""The times of a measured collective's transfers, from the messages that a run stores."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.model.max_plus import Transfer

if TYPE_CHECKING:
    import pandas as pd


def times_of(
    transfers: Sequence[Transfer], ends: Sequence[tuple[int, int]], messages: "pd.DataFrame"
) -> tuple[list[float], list[float]]:
    """Return when each transfer of a schedule was handed to its connection, and when it was complete, [T] s each.

    `ends` are the source and destination rank of each flow. Each message has a row (`src`, `dst`, `start_s`, `end_s`);
    the rows from one rank to another are in the schedule's order. A computation, whose flow leads from a rank to
    itself, has no row: it runs after the transfers that it waits for and the previous one on its flow. Raises
    ValueError if the rows are not those of the schedule.
    """
    rows = defaultdict[tuple[int, int], deque[tuple[float, float]]](deque)
    columns = (messages[name].tolist() for name in ("src", "dst", "start_s", "end_s"))
    for src, dst, start_s, end_s in zip(*columns, strict=True):
        rows[src, dst].append((start_s, end_s))
    handed_s, over_s, free_s = list[float](), list[float](), dict[int, float]()
    for transfer in transfers:
        src, dst = ends[transfer.flow]
        if src == dst:
            start_s = max((over_s[index] for index in transfer.after), default=0.0)
            end_s = free_s[transfer.flow] = max(start_s, free_s.get(transfer.flow, 0.0)) + transfer.amount
        elif remaining := rows[src, dst]:
            start_s, end_s = remaining.popleft()
        else:
            raise ValueError("there are fewer messages than the schedule has")
        handed_s.append(start_s)
        over_s.append(end_s)
    if any(rows.values()):
        raise ValueError("there are more messages than the schedule has")
    return handed_s, over_s
