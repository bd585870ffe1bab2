"""The timing model for any schedule in which no two flows share a link: when each transfer leaves and arrives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
    """One transfer of a critical path and the seconds that it adds.

    `arrives`: the next one, or the end, waited for its arrival, so its delay is among them; else only for its leaving.
    """

    transfer: int
    seconds: float
    arrives: bool


def critical_path(transfers: Sequence[Transfer], found: Times, instance: int = 0) -> tuple[Step, ...]:
    """The transfers that an instance's completion time is made of, from first to last; their seconds add up to it.

    The times may be predicted or measured: before each transfer comes what it could begin after last, the arrival of
    one that it waits for or the leaving of the one before it on its flow. Of several the earliest in the schedule is
    taken, those that it waits for first. What passes between the two counts as the later one's.
    """
    if not transfers:
        return ()
    before: list[int | None] = []
    last: dict[int, int] = {}
    for place, transfer in enumerate(transfers):
        before.append(last.get(transfer.flow))
        last[transfer.flow] = place
    leaves, arrives = (part[:, instance].tolist() for part in (found.leaves_s, found.arrives_s))
    index: int | None = max(range(len(transfers)), key=arrives.__getitem__)
    end_s, ends_with_arrival, path = arrives[index], True, []
    while index is not None:
        waited, earlier = sorted(transfers[index].after), before[index]
        choices = [(arrives[one], True, one) for one in waited]
        choices += [] if earlier is None else [(leaves[earlier], False, earlier)]
        begin_s, by_arrival, previous = max(choices, key=lambda choice: choice[0], default=(0.0, True, None))
        path.append(Step(transfer=index, seconds=end_s - begin_s, arrives=ends_with_arrival))
        end_s, ends_with_arrival, index = begin_s, by_arrival, previous
    return tuple(reversed(path))


class Hop(NamedTuple):
    """A link of a flow, or the processor of a stream (delay 0): its name, rate in bit/s and delay in seconds."""

    name: str
    rate_bps: float
    delay_s: float


class Cost(NamedTuple):
    """Seconds of a critical path: sending (waiting included where times were measured), and bits on the way."""

    sending_s: float
    delay_s: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.sending_s + self.delay_s


def seconds_by_link(
    transfers: Sequence[Transfer], path: Sequence[Step], hops: Sequence[Sequence[Hop]]
) -> dict[str, Cost]:
    """What each link adds to the seconds of a critical path, by its name, the most first; all together are its seconds.

    `hops`, by flow, are the links that it takes, at least one. A message is sent at the rate of the slowest of them,
    the first of several, so its sending is that one's; every link adds its delay where the arrival was waited for.
    """
    spent: dict[str, Cost] = {}
    for step in path:
        over = hops[transfers[step.transfer].flow]
        delays_s = [hop.delay_s if step.arrives else 0.0 for hop in over]
        slowest = min(over, key=lambda hop: hop.rate_bps)
        for hop, delay_s in zip(over, delays_s, strict=True):
            sending_s = step.seconds - sum(delays_s) if hop is slowest else 0.0
            if sending_s or delay_s:
                before = spent.get(hop.name, Cost(0.0, 0.0))
                spent[hop.name] = Cost(before.sending_s + sending_s, before.delay_s + delay_s)
    return dict(sorted(spent.items(), key=lambda item: -item[1].seconds))


def completion_s(transfers: Sequence[Transfer], alpha_s: Floats, beta_s: Floats) -> Floats:
    """TEMPORARY"""
    found: Floats = times(transfers, alpha_s.T, beta_s.T).arrives_s.max(axis=0)
    return found
