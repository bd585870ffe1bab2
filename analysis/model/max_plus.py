"""The timing model for any schedule in which no two flows share a link: when each transfer leaves and arrives."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_CACHE_BYTES = 5 << 18  # of a second-level cache: what a batch of instances may take
_LEAST_BATCH, _MOST_BATCH = 256, 8192
_NUMBERS_AT_A_TIME = 4096  # of one instruction, so that numpy's overhead stays below what it computes

_Rows = tuple[int, int, int]  # of an instruction for one transfer: its two inputs, its output
_Instruction = tuple[np.ufunc, slice, slice, slice]


class Transfer(Protocol):
    """What the model needs to know of a transfer: its flow, what it asks of it (slots, seconds), and what it waits
    for."""

    @property
    def flow(self) -> int: ...
    @property
    def amount(self) -> float: ...
    @property
    def after(self) -> Sequence[int]: ...


class Compiled:
    """A schedule made ready to evaluate, for any number of instances: `completion_s`.

    A level are transfers on different flows that wait only for transfers of earlier levels. The state of a batch of
    instances is a matrix, one instance a column, whose rows are each flow's delay, when it is free again, the time that
    each amount takes on it, and the arrivals that are still waited for. Compiling names the rows; neighbouring or
    evenly spaced rows on which a level does the same are one numpy instruction.
    """

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        levels = _levels(transfers)
        # Amounts in the order in which they are first needed, so that a level's rows are neighbours.
        costs = dict.fromkeys((transfers[index].flow, transfers[index].amount) for level in levels for index in level)
        flows = sorted({flow for flow, _ in costs})
        self._least_flows = max(flows, default=-1) + 1
        self._flows, self._cost_flows = _index(flows), _index([flow for flow, _ in costs])
        self._amounts = np.array([amount for _, amount in costs], dtype=np.float64)[:, None]
        free, first_cost = len(flows), 2 * len(flows)
        first_arrival = first_cost + len(costs)
        self._delays, self._frees = slice(0, free), slice(free, first_cost)
        self._costs = slice(first_cost, first_arrival)
        rows = _Layout(
            delay={flow: row for row, flow in enumerate(flows)},
            free={flow: row for row, flow in enumerate(flows, start=free)},
            cost={cost: row for row, cost in enumerate(costs, start=first_cost)},
            first_arrival=first_arrival,
        )
        self._rows, self._program = _program(transfers, levels, rows)
        instructions = max(1, len(self._program))
        fits = _CACHE_BYTES // 8 // max(1, self._rows)
        worth = _NUMBERS_AT_A_TIME * instructions // max(1, 3 * len(transfers))
        self._batch = min(max(fits, worth, _LEAST_BATCH), _MOST_BATCH)

    def completion_s(self, alpha_s: Floats, beta_s: Floats) -> Floats:
        """When the last transfer of each of K instances has arrived, [K] s; 0 without transfers.

        `alpha_s` and `beta_s`, [flows, K] seconds, are as for `times`, whose greatest `arrives_s` this is, bit for bit.
        Transposed views of [K, flows] are as fast. Raises ValueError for arrays whose shapes differ, or with fewer
        flows than the transfers name.
        """
        _check_shapes(alpha_s, beta_s, self._least_flows)
        count = alpha_s.shape[1]
        completion = np.zeros(count)
        if not self._program or not count:
            return completion
        step_by = -(-count // -(-count // self._batch))  # batches of about equal size
        state = np.empty((self._rows, step_by))
        bound: list[tuple[np.ufunc, Floats, Floats, Floats]] = []
        for start in range(0, count, step_by):
            batch = slice(start, min(start + step_by, count))
            size = batch.stop - start
            if not bound or size < state.shape[1]:  # the first batch, and the last if it is smaller
                state = state[:, :size]
                bound = [(step, state[a], state[b], state[out]) for step, a, b, out in self._program]
            delays, frees = state[self._delays], state[self._frees]
            delays[:] = alpha_s[:, batch][self._flows]
            frees[:] = 0.0
            np.multiply(beta_s[:, batch][self._cost_flows], self._amounts, out=state[self._costs])
            for step, a, b, out in bound:
                step(a, b, out=out)
            # What leaves a flow last arrives last of what it serves.
            np.add(frees, delays, out=frees)
            frees.max(axis=0, out=completion[batch])
        return completion


def completion_s(transfers: Sequence[Transfer], alpha_s: Floats, beta_s: Floats) -> Floats:
    """As `Compiled.completion_s`, for a schedule that is evaluated once."""
    return Compiled(transfers).completion_s(alpha_s, beta_s)


def _levels(transfers: Sequence[Transfer]) -> list[list[int]]:
    """The transfers by level, each level in the order of its flows."""
    of: list[int] = []
    last: dict[int, int] = {}
    for index, transfer in enumerate(transfers):
        before = [of[one] for one in transfer.after]
        if transfer.flow in last:
            before.append(of[last[transfer.flow]])
        of.append(max(before, default=-1) + 1)
        last[transfer.flow] = index
    order = sorted(range(len(of)), key=lambda index: (of[index], transfers[index].flow))
    return [list(level) for _, level in groupby(order, key=of.__getitem__)]


@dataclass(frozen=True)
class _Layout:
    """The row of each flow's delay, of when it is free again, of each amount's time on a flow, and of the first
    arrival."""

    delay: dict[int, int]
    free: dict[int, int]
    cost: dict[tuple[int, float], int]
    first_arrival: int


def _index(flows: Sequence[int]) -> Any:
    """An index that takes the rows of these flows: a slice, which copies nothing, where they are the first in order."""
    return slice(len(flows)) if list(flows) == list(range(len(flows))) else np.array(flows)


def _program(
    transfers: Sequence[Transfer], levels: Sequence[Sequence[int]], layout: _Layout
) -> tuple[int, list[_Instruction]]:
    """How many rows the state has, and the instructions level by level.

    The row of an arrival is free again once the last level that waits for it has begun.
    """
    rows = layout.first_arrival
    needed_until = {
        one: number for number, level in enumerate(levels) for index in level for one in transfers[index].after
    }
    arrived: dict[int, int] = {}
    unused: list[int] = []  # a heap: the lowest row first, so that rows stay neighbours
    program: list[_Instruction] = []
    for number, level in enumerate(levels):
        waits: dict[int, list[_Rows]] = {}
        leaves: list[_Rows] = []
        arrives: list[_Rows] = []
        for index in level:
            transfer, free = transfers[index], layout.free[transfers[index].flow]
            for turn, one in enumerate(transfer.after):
                waits.setdefault(turn, []).append((free, arrived[one], free))
            leaves.append((free, layout.cost[transfer.flow, transfer.amount], free))
        for one in {one for index in level for one in transfers[index].after}:
            if needed_until[one] == number:
                heappush(unused, arrived[one])
        for index in level:
            if index in needed_until:
                if not unused:
                    heappush(unused, rows)
                    rows += 1
                arrived[index] = heappop(unused)
                flow = transfers[index].flow
                arrives.append((layout.free[flow], layout.delay[flow], arrived[index]))
        program += [(np.maximum, *run) for turn in waits.values() for run in _runs(turn)]
        program += [(np.add, *run) for part in (leaves, arrives) for run in _runs(part)]
    return rows, program


def _runs(steps: Sequence[_Rows]) -> list[tuple[slice, slice, slice]]:
    """The same steps with evenly spaced ones as one: in order of their outputs, or of equal distances if that is less.

    The second finds places that swap with their neighbours, as in halving-doubling.
    """
    apart: dict[_Rows, list[_Rows]] = {}
    for a, b, out in steps:
        apart.setdefault((b - a, out - a, 0), []).append((a, b, out))
    by_distance = [run for part in apart.values() for run in _even(sorted(part))]
    return min(_even(sorted(steps, key=lambda rows: rows[2])), by_distance, key=len)


def _even(steps: Iterable[_Rows]) -> list[tuple[slice, slice, slice]]:
    """Runs of steps in this order whose rows are evenly spaced; an input may stay the same row, which numpy repeats."""
    runs: list[list[_Rows]] = []
    for step in steps:
        run = runs[-1] if runs else None
        if run and (len(run) == 1 or _apart(run[-1], step) == _apart(run[0], run[1])):
            run.append(step)
        else:
            runs.append([step])
    return [_slices(run) for run in runs]


def _apart(one: _Rows, other: _Rows) -> _Rows:
    return other[0] - one[0], other[1] - one[1], other[2] - one[2]


def _slices(run: Sequence[_Rows]) -> tuple[slice, slice, slice]:
    a, b, out = map(_slice, run[0], run[min(1, len(run) - 1)], run[-1])
    return a, b, out


def _slice(first: int, second: int, last: int) -> slice:
    if second < first:
        return slice(first, last - 1 if last else None, second - first)
    return slice(first, last + 1, second - first or 1)


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

    A max-plus recursion (Baccelli et al., "Synchronization and Linearity", 1992). Raises ValueError for arrays whose
    shapes differ, or with fewer flows than the transfers name.
    """
    _check_shapes(alpha_s, beta_s, max((transfer.flow for transfer in transfers), default=-1) + 1)
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


def _check_shapes(alpha_s: Floats, beta_s: Floats, flows: int) -> None:
    if alpha_s.shape != beta_s.shape or alpha_s.ndim != 2 or len(alpha_s) < flows:
        raise ValueError(
            f"alpha {alpha_s.shape} and beta {beta_s.shape}: both must be [flows, K], flows {flows} or more"
        )


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


NO_LIMITS: Mapping[int, str] = MappingProxyType({})
"""Where flows have links of their own."""


def seconds_by_link(
    transfers: Sequence[Transfer],
    path: Sequence[Step],
    hops: Sequence[Sequence[Hop]],
    limits: Mapping[int, str] = NO_LIMITS,
) -> dict[str, Cost]:
    """What each link adds to the seconds of a critical path, by its name, the most first; all together are its seconds.

    `hops`, by flow, are the links that it takes, at least one. The sending of a message is the link's that limited it:
    where flows share links the one that `limits` names by transfer, else the slowest, of several the first. Every link
    adds its delay where the arrival was waited for.
    """
    spent: dict[str, Cost] = {}
    for step in path:
        over = hops[transfers[step.transfer].flow]
        delays_s = [hop.delay_s if step.arrives else 0.0 for hop in over]
        limit = limits.get(step.transfer)
        slowest = min(over, key=lambda hop: (hop.name != limit, hop.rate_bps))
        for hop, delay_s in zip(over, delays_s, strict=True):
            sending_s = step.seconds - sum(delays_s) if hop is slowest else 0.0
            if sending_s or delay_s:
                before = spent.get(hop.name, Cost(0.0, 0.0))
                spent[hop.name] = Cost(before.sending_s + sending_s, before.delay_s + delay_s)
    return dict(sorted(spent.items(), key=lambda item: -item[1].seconds))
