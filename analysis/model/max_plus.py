"""The timing model for any schedule in which no two flows share a link: when each transfer leaves and arrives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Transfer(Protocol):
    """What the model needs to know of a transfer: its flow, what it asks of it (slots, seconds), and what it waits
    for."""

    @property
    def flow(self) -> int: ...
    @property
    def amount(self) -> float: ...
    @property
    def after(self) -> Sequence[int]: ...


@dataclass(frozen=True, eq=False)
class Times:
    """When the transfers of K instances of a schedule begin, have left whole, and have arrived whole: [T, K] s each."""

    begins_s: Floats
    leaves_s: Floats
    arrives_s: Floats


def times(transfers: Sequence[Transfer], alpha_s: Floats, beta_s: Floats) -> Times:
    """When every transfer of K instances of a schedule begins, leaves and arrives.

    `alpha_s` and `beta_s`, [flows, K] seconds, are the delay of each flow and the time that it takes to send one slot;
    of a stream they are 0 and 1. T transfers are in an order in which each comes behind all that it waits for.

    A transfer begins when all that it waits for have arrived and the one before it on its flow has left:

        F = max(A of what it waits for, F of the one before it on its flow) + amount * beta     it has left, whole
        A = F + alpha                                                                           it has arrived, whole

    A max-plus recursion (Baccelli et al., "Synchronization and Linearity", 1992); on a ring it is that of
    `alpha_beta.completion_s`. Raises ValueError for arrays whose shapes differ.
    """
    if alpha_s.shape != beta_s.shape or alpha_s.ndim != 2:
        raise ValueError(f"alpha {alpha_s.shape} and beta {beta_s.shape}: both must be [flows, K]")
    alpha_s, beta_s = np.ascontiguousarray(alpha_s), np.ascontiguousarray(beta_s)
    shape = len(transfers), alpha_s.shape[1]
    begins, leaves, arrives = np.zeros(shape), np.empty(shape), np.empty(shape)
    last: dict[int, int] = {}
    for index, transfer in enumerate(transfers):
        begin = begins[index]
        for one in transfer.after:
            np.maximum(begin, arrives[one], out=begin)
        if transfer.flow in last:
            np.maximum(begin, leaves[last[transfer.flow]], out=begin)
        last[transfer.flow] = index
        np.multiply(beta_s[transfer.flow], transfer.amount, out=leaves[index])
        leaves[index] += begin
        np.add(leaves[index], alpha_s[transfer.flow], out=arrives[index])
    return Times(begins, leaves, arrives)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One transfer of a critical path and the seconds that it adds, with its delay where its arrival was waited for."""

    transfer: int
    seconds: float


def critical_path(transfers: Sequence[Transfer], found: Times, instance: int = 0) -> tuple[Step, ...]:
    """The transfers that an instance's completion time is made of, from first to last; their seconds add up to it.

    Each begins at the instant at which the one before it has arrived, or has left the same flow. Of several the
    earliest in the schedule is taken.
    """
    if not transfers:
        return ()
    before: list[int | None] = []
    last: dict[int, int] = {}
    for place, transfer in enumerate(transfers):
        before.append(last.get(transfer.flow))
        last[transfer.flow] = place
    begins, leaves, arrives = (part[:, instance] for part in (found.begins_s, found.leaves_s, found.arrives_s))
    index: int | None = int(np.argmax(arrives))
    end_s, path = float(arrives[index]), []
    while index is not None:
        path.append(Step(transfer=index, seconds=end_s - float(begins[index])))
        end_s = float(begins[index])
        waited = [one for one in transfers[index].after if arrives[one] == end_s]
        previous = before[index]
        index = min(waited) if waited else previous if previous is not None and leaves[previous] == end_s else None
    return tuple(reversed(path))


def completion_s(transfers: Sequence[Transfer], alpha_s: Floats, beta_s: Floats) -> Floats:
    """TEMPORARY"""
    found: Floats = times(transfers, alpha_s.T, beta_s.T).arrives_s.max(axis=0)
    return found
