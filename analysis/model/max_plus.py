"""The timing model for schedules in which no two flows share a link: when each transfer leaves and arrives."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_CACHE_BYTES = 5 << 18  # part of a second-level cache that the state of a batch may take
_MIN_BATCH, _MAX_BATCH = 256, 8192
_NUMBERS_AT_A_TIME = 4096  # an instruction should compute this many, so that numpy's overhead per call is small

_Rows = tuple[int, int, int]  # state rows of one transfer's instruction: two inputs and the output
_Instruction = tuple[np.ufunc, slice, slice, slice]


class Transfer(Protocol):
    """What the model needs of a transfer: its flow, its amount (in slots, or in seconds on a stream), and the indices
    of the transfers whose arrival it waits for."""

    @property
    def flow(self) -> int: ...
    @property
    def amount(self) -> float: ...
    @property
    def after(self) -> Sequence[int]: ...


class CompiledSchedule:
    """A schedule compiled for evaluation of any number of instances by `completion_s`.

    A level is a set of transfers on different flows that wait only for transfers of earlier levels. The state of a
    batch of instances is a matrix with a column for each instance. Its rows are the delay of each flow, the time when
    each flow is free again, the time that each amount takes on its flow, and the arrivals that later levels wait for.
    Compiling assigns the rows; adjacent or evenly spaced rows that a level treats alike become one numpy instruction.
    """

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        levels = _levels(transfers)
        # Amounts are in the order of first use, so that the rows of a level are adjacent.
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
        fitting = _CACHE_BYTES // 8 // max(1, self._rows)
        amortizing = _NUMBERS_AT_A_TIME * instructions // max(1, 3 * len(transfers))
        self._batch = min(max(fitting, amortizing, _MIN_BATCH), _MAX_BATCH)

    def completion_s(self, alpha_s: Floats, beta_s: Floats) -> Floats:
        """Return when the last transfer of each of K instances arrives, [K] s; 0 without transfers.

        `alpha_s` and `beta_s`, [flows, K] seconds, are as for `times`; the result equals the maximum of its `arrives_s`
        bit for bit. Transposed views of [K, flows] are as fast. Raises ValueError for arrays of different shapes, or
        with fewer flows than the transfers use.
        """
        _check_shapes(alpha_s, beta_s, self._least_flows)
        count = alpha_s.shape[1]
        completion = np.zeros(count)
        if not self._program or not count:
            return completion
        batch_size = -(-count // -(-count // self._batch))  # batches of about equal size
        state = np.empty((self._rows, batch_size))
        instructions: list[tuple[np.ufunc, Floats, Floats, Floats]] = []  # on the rows of a batch
        for start in range(0, count, batch_size):
            batch = slice(start, min(start + batch_size, count))
            size = batch.stop - start
            if not instructions or size < state.shape[1]:  # the first batch, and the last if it is smaller
                state = state[:, :size]
                instructions = [(step, state[a], state[b], state[out]) for step, a, b, out in self._program]
            delays, frees = state[self._delays], state[self._frees]
            delays[:] = alpha_s[:, batch][self._flows]
            frees[:] = 0.0
            np.multiply(beta_s[:, batch][self._cost_flows], self._amounts, out=state[self._costs])
            for step, a, b, out in instructions:
                step(a, b, out=out)
            # The last transfer to leave a flow is also the last of that flow to arrive.
            np.add(frees, delays, out=frees)
            frees.max(axis=0, out=completion[batch])
        return completion


def completion_s(transfers: Sequence[Transfer], alpha_s: Floats, beta_s: Floats) -> Floats:
    """Compile a schedule and evaluate it once: see `CompiledSchedule.completion_s`."""
    return CompiledSchedule(transfers).completion_s(alpha_s, beta_s)


def _levels(transfers: Sequence[Transfer]) -> list[list[int]]:
    """Return the transfers by level; within a level they are sorted by flow."""
    level_of: list[int] = []
    last: dict[int, int] = {}
    for index, transfer in enumerate(transfers):
        before = [level_of[dependency] for dependency in transfer.after]
        if transfer.flow in last:
            before.append(level_of[last[transfer.flow]])
        level_of.append(max(before, default=-1) + 1)
        last[transfer.flow] = index
    order = sorted(range(len(level_of)), key=lambda index: (level_of[index], transfers[index].flow))
    return [list(level) for _, level in groupby(order, key=level_of.__getitem__)]


@dataclass(frozen=True)
class _Layout:
    """The state row of each flow's delay, of the time when each flow is free again, of the time of each (flow, amount),
    and of the first arrival."""

    delay: dict[int, int]
    free: dict[int, int]
    cost: dict[tuple[int, float], int]
    first_arrival: int


def _index(flows: Sequence[int]) -> Any:
    """Return an index for the rows of these flows: a slice, which copies nothing, if they are 0, 1, 2 and so on."""
    return slice(len(flows)) if list(flows) == list(range(len(flows))) else np.array(flows)


def _program(
    transfers: Sequence[Transfer], levels: Sequence[Sequence[int]], layout: _Layout
) -> tuple[int, list[_Instruction]]:
    """Return the number of state rows, and the instructions level by level.

    The row of an arrival can be reused once the last level that waits for it has begun.
    """
    rows = layout.first_arrival
    needed_until = {
        one: depth for depth, level in enumerate(levels) for index in level for one in transfers[index].after
    }
    arrived: dict[int, int] = {}
    unused: list[int] = []  # a heap: the lowest row first, so that rows stay adjacent
    program: list[_Instruction] = []
    for depth, level in enumerate(levels):
        waits: dict[int, list[_Rows]] = {}
        leaves: list[_Rows] = []
        arrives: list[_Rows] = []
        for index in level:
            transfer, free = transfers[index], layout.free[transfers[index].flow]
            for position, dependency in enumerate(transfer.after):
                waits.setdefault(position, []).append((free, arrived[dependency], free))
            leaves.append((free, layout.cost[transfer.flow, transfer.amount], free))
        for dependency in {dependency for index in level for dependency in transfers[index].after}:
            if needed_until[dependency] == depth:
                heappush(unused, arrived[dependency])
        for index in level:
            if index in needed_until:
                if not unused:
                    heappush(unused, rows)
                    rows += 1
                arrived[index] = heappop(unused)
                flow = transfers[index].flow
                arrives.append((layout.free[flow], layout.delay[flow], arrived[index]))
        program += [(np.maximum, *run) for steps in waits.values() for run in _runs(steps)]
        program += [(np.add, *run) for part in (leaves, arrives) for run in _runs(part)]
    return rows, program


def _runs(steps: Sequence[_Rows]) -> list[tuple[slice, slice, slice]]:
    """Merge evenly spaced steps into runs: sorted by output, or grouped by equal distances if that gives fewer runs.

    Grouping finds ranks that swap with their neighbours, as in halving-doubling.
    """
    by_distance: dict[_Rows, list[_Rows]] = {}
    for a, b, out in steps:
        by_distance.setdefault((b - a, out - a, 0), []).append((a, b, out))
    grouped = [run for part in by_distance.values() for run in _even(sorted(part))]
    return min(_even(sorted(steps, key=lambda rows: rows[2])), grouped, key=len)


def _even(steps: Iterable[_Rows]) -> list[tuple[slice, slice, slice]]:
    """Split the steps, in this order, into runs of evenly spaced rows; an input row may be constant (broadcast)."""
    runs: list[list[_Rows]] = []
    for step in steps:
        run = runs[-1] if runs else None
        if run and (len(run) == 1 or _distance(run[-1], step) == _distance(run[0], run[1])):
            run.append(step)
        else:
            runs.append([step])
    return [_slices(run) for run in runs]


def _distance(first: _Rows, second: _Rows) -> _Rows:
    return second[0] - first[0], second[1] - first[1], second[2] - first[2]


def _slices(run: Sequence[_Rows]) -> tuple[slice, slice, slice]:
    a, b, out = map(_slice, run[0], run[min(1, len(run) - 1)], run[-1])
    return a, b, out


def _slice(first: int, second: int, last: int) -> slice:
    if second < first:
        return slice(first, last - 1 if last else None, second - first)
    return slice(first, last + 1, second - first or 1)


@dataclass(frozen=True, eq=False)
class Times:
    """When the transfers of K instances of a schedule begin, have left entirely and have arrived entirely, [T, K] s."""

    begins_s: Floats
    leaves_s: Floats
    arrives_s: Floats


def times(transfers: Sequence[Transfer], alpha_s: Floats, beta_s: Floats) -> Times:
    """Return when every transfer of K instances of a schedule begins, leaves and arrives.

    `alpha_s` and `beta_s`, [flows, K] seconds, are the delay of each flow and the time that it takes to send one slot;
    for a stream they are 0 and 1. The T transfers are in topological order: each comes after those that it waits for.

    A transfer begins when all transfers that it waits for have arrived and the previous one on its flow has left:

        F = max(A of those it waits for, F of the previous one on its flow) + amount * beta     it has left entirely
        A = F + alpha                                                                           it has arrived entirely

    This is a max-plus recursion (Baccelli et al., "Synchronization and Linearity", 1992). Raises ValueError for arrays
    of different shapes, or with fewer flows than the transfers use.
    """
    _check_shapes(alpha_s, beta_s, max((transfer.flow for transfer in transfers), default=-1) + 1)
    alpha_s, beta_s = np.ascontiguousarray(alpha_s), np.ascontiguousarray(beta_s)
    shape = len(transfers), alpha_s.shape[1]
    begins, leaves, arrives = np.zeros(shape), np.empty(shape), np.empty(shape)
    last: dict[int, int] = {}
    for index, transfer in enumerate(transfers):
        begin = begins[index]
        for dependency in transfer.after:
            np.maximum(begin, arrives[dependency], out=begin)
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
    """A transfer on a critical path, and the seconds that it contributes.

    `arrives`: the next transfer, or the end, waited for its arrival, so `seconds` includes its delay. Otherwise the
    next transfer waited only until it had left.
    """

    transfer: int
    seconds: float
    arrives: bool


def critical_path(transfers: Sequence[Transfer], timing: Times, instance: int = 0) -> tuple[Step, ...]:
    """Return the critical path of an instance, first transfer first; the seconds add up to the completion time.

    The times may be predicted or measured. The predecessor of a transfer on the path is the event that came last among
    those it had to wait for: the arrivals of transfers, and the leaving of the previous one on its flow. Of
    simultaneous events, an arrival precedes the leaving, and the earliest transfer in the schedule comes first. Time
    between an event and the transfer that waited for it counts for the later transfer.
    """
    if not transfers:
        return ()
    before: list[int | None] = []
    last: dict[int, int] = {}
    for position, transfer in enumerate(transfers):
        before.append(last.get(transfer.flow))
        last[transfer.flow] = position
    leaves, arrives = (part[:, instance].tolist() for part in (timing.leaves_s, timing.arrives_s))
    index: int | None = max(range(len(transfers)), key=arrives.__getitem__)
    end_s, ends_with_arrival, path = arrives[index], True, []
    while index is not None:
        dependencies, earlier = sorted(transfers[index].after), before[index]
        choices = [(arrives[dependency], True, dependency) for dependency in dependencies]
        choices += [] if earlier is None else [(leaves[earlier], False, earlier)]
        begin_s, by_arrival, previous = max(choices, key=lambda choice: choice[0], default=(0.0, True, None))
        path.append(Step(transfer=index, seconds=end_s - begin_s, arrives=ends_with_arrival))
        end_s, ends_with_arrival, index = begin_s, by_arrival, previous
    return tuple(reversed(path))


class Hop(NamedTuple):
    """A link on a flow's path, or the processor of a stream (delay 0): name, rate in bit/s and delay in seconds."""

    name: str
    rate_bps: float
    delay_s: float


class Cost(NamedTuple):
    """Seconds of a critical path: for sending (with waiting, if the times were measured), and propagation delay."""

    sending_s: float
    delay_s: float

    @property
    def seconds(self) -> float:
        """The sum of both."""
        return self.sending_s + self.delay_s


NO_LIMITS: Mapping[int, str] = MappingProxyType({})
"""The limits of flows that share no links."""


def seconds_by_link(
    transfers: Sequence[Transfer],
    path: Sequence[Step],
    hops: Sequence[Sequence[Hop]],
    limits: Mapping[int, str] = NO_LIMITS,
) -> dict[str, Cost]:
    """Return the contribution of each link to a critical path by name, largest first; they add up to its seconds.

    `hops` are the links on the path of each flow, at least one. The time for sending a message counts for the link that
    limited it: where flows share links the one that `limits` names for the transfer, otherwise the slowest, and of
    several the first. Every link contributes its delay if the next transfer waited for the arrival.
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
