"""The best schedule of whole blocks for small collectives, by constraint programming, with a bound that proves it.

A schedule sends whole blocks. A block may take any paths between GPUs and be forwarded by any GPU that has it, and a
GPU receives a block once. A transfer runs without a break at the full rate of its path, the lowest of its links' rates,
so several transfers use a link at once if their rates together fit. This is a restriction: schedules that cut blocks
into pieces, or run transfers at less than the full rate in order to share links, are not considered and can be faster.
No schedule at all is faster than the bound of `lower_bound` (`at_once`), and none of this kind than `Best.bound_s`.

OR-Tools' CP-SAT (Perron and Furnon; the extra [optimum]) works with times in whole ticks. For the bound all durations
are rounded down; any schedule with its times rounded down is then a schedule in ticks, too. The completion time is that
of the same transfers in the same order in seconds, each as early as possible.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PROVEN = 1e-4
"""Relative gap between completion time and bound that rounding to ticks can leave."""

_TICKS = 1_000_000  # ticks in the completion time of the initial schedule
_SHARES = 1_000_000  # units of a link's rate
_COARSE = 1000  # divides shares, so that the amount that a link carries fits 64 bits
_ROUNDING = 1e-9  # tolerance, as a share of a link's rate


COPIED = ("allgather", "broadcast", "alltoall", "scatter", "gather")
"""The kinds of collectives that only copy blocks and make no sums."""
MAX_GPUS = 16
"""The largest number of GPUs for which a search for the best schedule is practical."""


class NotInstalledError(ImportError):
    """OR-Tools is not installed; the message has the command that installs it."""


def solver_module() -> Any:
    """Return OR-Tools' module of CP-SAT; raises NotInstalledError."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise NotInstalledError("OR-Tools is not installed: .venv/bin/pip install 'longhaul[optimum]'") from None
    return cp_model


@dataclass(frozen=True, kw_only=True)
class GpuPath:
    """A path from one GPU to another: the indices of its links, its rate (the lowest of theirs) and its delay."""

    src: int
    dst: int
    links: tuple[int, ...]
    rate_bps: float
    delay_s: float


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of data: the GPU where it starts, and the GPUs that need it."""

    source: int
    sinks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ScheduledTransfer:
    """A transfer of a schedule: the indices of its block and path, and when it begins, leaves and arrives, in s."""

    block: int
    path: int
    begins_s: float
    leaves_s: float
    arrives_s: float


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best schedule found, its completion time, and a lower bound on that of any schedule of this kind."""

    sent: tuple[ScheduledTransfer, ...]
    completion_s: float
    bound_s: float

    @property
    def proven(self) -> bool:
        """Whether no schedule of this kind is faster by more than the share PROVEN."""
        return self.completion_s <= self.bound_s * (1 + PROVEN)


def blocks_of(kind: str, gpus: int) -> tuple[Block, ...]:
    """Return the blocks of a collective that only copies; GPU 0 is the root. Raises ValueError for other kinds."""
    ranks = range(gpus)

    def others(gpu: int) -> tuple[int, ...]:
        return tuple(rank for rank in ranks if rank != gpu)

    sources_and_sinks: dict[str, list[tuple[int, tuple[int, ...]]]] = {
        "allgather": [(gpu, others(gpu)) for gpu in ranks],
        "broadcast": [(0, others(0))],
        "alltoall": [(a, (b,)) for a in ranks for b in others(a)],
        "scatter": [(0, (gpu,)) for gpu in others(0)],
        "gather": [(gpu, (0,)) for gpu in others(0)],
    }
    if kind not in COPIED:
        raise ValueError(f"the best schedule of {kind}; allowed: {', '.join(COPIED)}, which make no sums")
    return tuple(Block(source=source, sinks=sinks) for source, sinks in sources_and_sinks[kind])


def assign_times(
    order: Sequence[tuple[int, int]], paths: Sequence[GpuPath], blocks: Sequence[Block], rates_bps: Floats, bits: float
) -> tuple[ScheduledTransfer, ...]:
    """Assign times to the transfers (block, path) in this order: each begins at the earliest time when its sender has
    the block and its links have enough rate left next to the transfers before it in the order.

    `rates_bps` [links]. Raises ValueError if a GPU sends a block that it has not received before.
    """
    has_s = {(index, block.source): 0.0 for index, block in enumerate(blocks)}
    scheduled: list[ScheduledTransfer] = []
    for block, index in order:
        path = paths[index]
        if (block, path.src) not in has_s:
            raise ValueError(f"GPU {path.src} sends block {block}, which it does not have")
        lasts_s = bits / path.rate_bps
        peers = [(sent, paths[sent.path]) for sent in scheduled if set(paths[sent.path].links) & set(path.links)]
        ready_s = has_s[block, path.src]
        times_s = sorted({ready_s, *(sent.leaves_s for sent, _ in peers if sent.leaves_s > ready_s)})
        begins_s = next(at_s for at_s in times_s if _fits(path, (at_s, at_s + lasts_s), peers, rates_bps))
        leaves_s = begins_s + lasts_s
        sent = ScheduledTransfer(
            block=block, path=index, begins_s=begins_s, leaves_s=leaves_s, arrives_s=leaves_s + path.delay_s
        )
        scheduled.append(sent)
        has_s[block, path.dst] = min(sent.arrives_s, has_s.get((block, path.dst), math.inf))
    return tuple(scheduled)


def _fits(
    path: GpuPath, span_s: tuple[float, float], peers: Sequence[tuple[ScheduledTransfer, GpuPath]], rates_bps: Floats
) -> bool:
    """Return whether a transfer over a path fits on all of its links in a span, next to `peers` on some of them."""
    begins_s, ends_s = span_s
    concurrent = [(sent, other) for sent, other in peers if sent.begins_s < ends_s and sent.leaves_s > begins_s]
    instants_s = [begins_s, *(sent.begins_s for sent, _ in concurrent if sent.begins_s > begins_s)]
    for link in path.links:
        on_link = [(sent, other.rate_bps) for sent, other in concurrent if link in other.links]
        for at_s in instants_s:
            used_bps = sum(rate_bps for sent, rate_bps in on_link if sent.begins_s <= at_s < sent.leaves_s)
            if used_bps + path.rate_bps > rates_bps[link] * (1 + _ROUNDING):
                return False
    return True


def best_schedule(
    blocks: Sequence[Block],
    paths: Sequence[GpuPath],
    rates_bps: Floats,
    *,
    block_bytes: float,
    known: Sequence[tuple[int, int]],
    seconds: float = math.inf,
    search: float = math.inf,
    least_s: float = 0.0,
    workers: int = 1,
) -> Best:
    """Return the best schedule found within a number of `seconds`, or an amount of `search`.

    `search` is the solver's `max_deterministic_time`, whose unit is some seconds of a processor: it counts the solver's
    own steps, so one worker always finds the same schedule. `rates_bps` [links]; `known` is the initial schedule, as
    (block, path) in the order of `assign_times`; `least_s` is a time that no schedule can beat. Raises
    NotInstalledError without OR-Tools, and ValueError if `known` is not a complete schedule.
    """
    first = assign_times(known, paths, blocks, rates_bps, 8 * block_bytes)
    received = {(sent.block, paths[sent.path].dst) for sent in first}
    for index, block in enumerate(blocks):
        if missing := [gpu for gpu in block.sinks if (index, gpu) not in received]:
            raise ValueError(f"in the initial schedule block {index} does not reach GPU {missing[0]}")
    problem = _Problem(blocks, paths, rates_bps, first, bits=8 * block_bytes, least_s=least_s)
    order, bound_s = problem.solve(seconds=seconds, search=search, workers=workers)
    best = min(first, assign_times(order, paths, blocks, rates_bps, 8 * block_bytes), key=_end_s) if order else first
    return Best(sent=best, completion_s=_end_s(best), bound_s=min(max(bound_s, least_s), _end_s(best)))


def _end_s(sent: Sequence[ScheduledTransfer]) -> float:
    return max(one.arrives_s for one in sent)


class _User(NamedTuple):
    """A possible transfer: whether it is `used` and its `interval` (variables), and its duration and delay in ticks."""

    used: Any
    interval: Any
    lasts: int
    delay: int


class _Problem:
    """The constraint model of all schedules in ticks, with `first` as the initial schedule.

    Every block and path has a variable for whether the block takes the path, and one for when it begins.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        paths: Sequence[GpuPath],
        rates_bps: Floats,
        first: Sequence[ScheduledTransfer],
        *,
        bits: float,
        least_s: float,
    ) -> None:
        self._cp = solver_module()
        self._model = self._cp.CpModel()
        self._blocks, self._paths, self._rates_bps = blocks, paths, rates_bps
        self._tick_s = _end_s(first) / _TICKS
        self._lasts = [int(bits / path.rate_bps / self._tick_s) for path in paths]
        self._delays = [int(path.delay_s / self._tick_s) for path in paths]
        self._end = self._model.new_int_var(min(int(least_s / self._tick_s), _TICKS), _TICKS, "end")
        self._begin: dict[tuple[int, int], Any] = {}
        self._used: dict[tuple[int, int], Any] = {}
        self._on_path: dict[int, list[_User]] = {}
        self._shares: dict[int, dict[int, int]] = {}  # for each link, the share of its rate by path
        hints = {(one.block, one.path): int(one.begins_s / self._tick_s) for one in first}
        for number, block in enumerate(blocks):
            self._add_block(number, block, hints)
        for link in self._shares:
            self._add_link(link)
        self._model.minimize(self._end)

    def _add_block(self, number: int, block: Block, hints: Mapping[tuple[int, int], int]) -> None:
        """Add the paths that a block can take: at most one into a GPU, and out of a GPU only once it has the block."""
        model = self._model
        gpus = {block.source, *(gpu for path in self._paths for gpu in (path.src, path.dst))}
        has = {gpu: model.new_int_var(0, 0 if gpu == block.source else _TICKS, "") for gpu in gpus}
        into: dict[int, list[Any]] = {gpu: [] for gpu in gpus}
        out: dict[int, list[Any]] = {gpu: [] for gpu in gpus}
        for index, path in enumerate(self._paths):
            lasts, delay = self._lasts[index], self._delays[index]
            latest = _TICKS - lasts - delay
            if path.dst == block.source or latest < 0:
                continue
            key = number, index
            begin, used = model.new_int_var(0, latest, ""), model.new_bool_var("")
            interval = model.new_optional_fixed_size_interval_var(begin, lasts, used, "")
            self._on_path.setdefault(index, []).append(_User(used, interval, lasts, delay))
            for link in path.links:
                share = int(_SHARES * path.rate_bps / self._rates_bps[link] * (1 - _ROUNDING))
                self._shares.setdefault(link, {})[index] = share
            model.add(begin >= has[path.src]).only_enforce_if(used)
            model.add(has[path.dst] == begin + lasts + delay).only_enforce_if(used)
            model.add_hint(used, key in hints)
            model.add_hint(begin, min(hints.get(key, 0), latest))
            self._begin[key], self._used[key] = begin, used
            into[path.dst].append(used)
            out[path.src].append(used)
        for gpu in gpus - {block.source}:
            if gpu in block.sinks:
                model.add_exactly_one(into[gpu])
                model.add(self._end >= has[gpu])
            else:
                model.add_at_most_one(into[gpu])
                for used in out[gpu]:
                    model.add(sum(into[gpu]) >= used)

    def _add_link(self, link: int) -> None:
        """Limit what a link carries at once, and add the implied constraints on the end, which help to prove bounds."""
        model, shares = self._model, self._shares[link]
        exclusive = self._one_at_a_time(link)
        users = [user for path in exclusive for user in self._on_path[path]]
        model.add_no_overlap([user.interval for user in users])
        if not shares.keys() <= exclusive:  # otherwise the solver derives this itself
            self._add_busy([user.lasts for user in users], users, 1)
            users = [user for path in shares for user in self._on_path[path]]
            demands = [share for path, share in shares.items() for _ in self._on_path[path]]
            model.add_cumulative([user.interval for user in users], demands, _SHARES)
            carried = [share * user.lasts // _COARSE for share, user in zip(demands, users, strict=True)]
            self._add_busy(carried, users, _SHARES // _COARSE)

    def _add_busy(self, carried: Sequence[int], users: Sequence[_User], at_once: int) -> None:
        """Require the end to be after the link has carried everything, `at_once` at a time, and the least delay."""
        tail = at_once * min((user.delay for user in users), default=0)
        total = sum(amount * user.used for amount, user in zip(carried, users, strict=True))
        self._model.add(total + tail <= at_once * self._end)

    def _one_at_a_time(self, link: int) -> set[int]:
        """Return paths over a link of which no two fit at once: all above half of its rate, and others greedily."""
        exclusive = {path for path, share in self._shares[link].items() if 2 * share > _SHARES}
        for path in sorted(self._shares[link], key=lambda path: -self._lasts[path]):
            if all(path == other or self._excludes(path, other) for other in exclusive):
                exclusive.add(path)
        return exclusive

    def _excludes(self, a: int, b: int) -> bool:
        """Return whether some link lacks the capacity for both paths at once."""
        common = {*self._paths[a].links} & {*self._paths[b].links}
        return any(self._shares[link][a] + self._shares[link][b] > _SHARES for link in common)

    def solve(self, *, seconds: float, search: float, workers: int) -> tuple[list[tuple[int, int]], float]:
        """Solve; return the best schedule's (block, path) in order, empty if none was found, and a bound in s."""
        solver = self._cp.CpSolver()
        solver.parameters.num_workers, solver.parameters.random_seed = workers, 1
        solver.parameters.catch_sigint_signal = False  # the run handles SIGINT itself
        solver.parameters.max_time_in_seconds, solver.parameters.max_deterministic_time = seconds, search
        status = solver.solve(self._model)
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return [], 0.0
        chosen = [key for key in self._used if solver.boolean_value(self._used[key])]
        chosen.sort(key=lambda key: (solver.value(self._begin[key]), self._lasts[key[1]]))
        return self._needed(chosen), solver.best_objective_bound * self._tick_s

    def _needed(self, order: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Keep the transfers, in this order, that bring a block to a sink, directly or over other GPUs."""
        needed = {(number, gpu) for number, block in enumerate(self._blocks) for gpu in block.sinks}
        in_use = []
        for number, index in reversed(order):
            if (number, self._paths[index].dst) in needed:
                needed.add((number, self._paths[index].src))
                in_use.append((number, index))
        return in_use[::-1]
