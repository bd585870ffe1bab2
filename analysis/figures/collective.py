"""One collective of a stored run, in full: the links of every flow of its schedule, their rates, and every transfer.

Where it was measured, its transfers are the measured ones; where it was only predicted, they are the timing model's. A
run stores the conditions of what it measured; those of what it predicted, a hundred thousand times as many, are drawn
again from its seed, and compared with the stored times. Drawing is left to others.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.figures.points import Configuration, FigureError, Points
from analysis.figures.style import MODE_STYLES
from analysis.model import fluid
from analysis.model.max_plus import Cost, Hop, Times, critical_path, seconds_by_link, times
from analysis.results.reader import Run
from analysis.statistics.measured import times_of
from topologies.conditions.sampler import delays_s, sampler
from topologies.errors import ConditionsError
from topologies.fabric.fabric import Fabric
from topologies.fabric.ports import shared_by

Floats = npt.NDArray[np.float64]

_MOST_SPANS = 4000  # of time with constant rates, of which those of all flows are worked out in a second
_SAME = 1e-6  # the share by which predicted transfers may end before or after the predicted time: rounding, no more


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A transfer of a schedule: the index of its flow, its slots (on a stream seconds), the indices of those that it
    waits for, and the place whose block it begins with, -1 if there is none."""

    flow: int
    amount: float
    after: tuple[int, ...]
    block: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """A schedule as a run stores it, in program order; `ends` are the places that each flow joins, `channels` which of
    the flows between them it is. A stream, a processor, is a flow from a place to itself. It is over when the first
    `waited_for` transfers are, as the others are background traffic."""

    algorithm: str
    slot_bytes: int
    ends: tuple[tuple[int, int], ...]
    channels: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    waited_for: int

    @cached_property
    def steps(self) -> list[int]:
        """The step of each transfer: how many messages the longest chain of what it waits for has, with itself."""
        found: list[int] = []
        for transfer in self.transfers:
            src, dst = self.ends[transfer.flow]
            found.append((src != dst) + max((found[one] for one in transfer.after), default=0))
        return found

    @property
    def rows(self) -> list[int]:
        """The flows in the order in which a reader wants them: around a ring, each channel and direction by itself; of
        anything else by sender, in the order in which senders come up."""
        if self.algorithm == "ring":
            places = 1 + max(map(max, self.ends))

            def around(flow: int) -> tuple[int, bool, int]:
                src, dst = self.ends[flow]
                is_back = (src + 1) % places != dst
                return self.channels[flow], is_back, -src if is_back else src

            return sorted(range(len(self.ends)), key=around)
        senders = list(dict.fromkeys(src for src, _ in self.ends))
        return sorted(range(len(self.ends)), key=lambda flow: senders.index(self.ends[flow][0]))


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A flow from one rank to another: the logical links or ports it passes, the least of their rates, all their delay.

    A stream has the same rank at both ends, no links, an infinite rate and no delay.
    """

    src: int
    dst: int
    channel: int
    links: tuple[int, ...]
    crosses: bool
    rate_bps: float
    delay_s: float


@dataclass(frozen=True, kw_only=True)
class Move:
    """A transfer of the schedule, by its index, on a flow: seconds from the collective's start.

    At `start_s` the sender hands it to its transport, where it may wait for the one before it; at `leaves_s` its first
    bit is on the way, and at `end_s` the receiver has it whole. `block` is the rank whose block it begins with, -1 if
    there is none; `size` are bytes, of a computation seconds. `is_critical`: on the critical path.
    """

    transfer: int
    flow: int
    step: int
    block: int
    size: float
    start_s: float
    leaves_s: float
    end_s: float
    is_critical: bool


Span = tuple[float, float, float]
"""From when to when, in s, a transfer has a rate, and what share that is of the slowest link's on its way."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Collective:
    """A collective of one mode; `flows` are those of the schedule, `rates_bps` and `delays_s` by link or port.

    `measured` is whether `completion_s`, the moves and the critical path were measured or predicted; `costs` are the
    seconds of the critical path by link, the most first. `rows` are the flows' indices in the order to be shown, and
    `spans` the predicted rates over time of each transfer, by its index, where flows share links.
    """

    configuration: Configuration
    mode: str
    number: int
    measured: bool
    completion_s: float
    predicted_s: float
    flows: tuple[Flow, ...]
    rows: tuple[int, ...]
    moves: tuple[Move, ...]
    spans: Mapping[int, Sequence[Span]]
    costs: Mapping[str, Cost]
    rates_bps: Floats
    delays_s: Floats

    @property
    def which(self) -> dict[str, Any]:
        """The columns that say which collective it is."""
        about = {"setting": self.configuration.index, "label": self.configuration.label}
        return about | {"mode": self.mode, "collective": self.number}

    def gpu(self, rank: int) -> str:
        """The name of a rank's GPU."""
        return self.configuration.fabric.gpus[rank].name

    def name(self, flow: Flow) -> str:
        """A flow in words: "g0 → g1", with its channel where there are several."""
        if not flow.links:
            return f"{self.gpu(flow.src)} {'waits' if self.configuration.admission else 'computes'}"
        several = any(other.channel for other in self.flows if other.links)
        return f"{self.gpu(flow.src)} → {self.gpu(flow.dst)}" + (f" #{flow.channel}" if several else "")

    def moves_over(self, flow: int) -> list[Move]:
        """The moves over a flow, by its index, in the order in which they begin."""
        return sorted(self._moves_by_flow[flow], key=lambda move: (move.leaves_s, move.transfer))

    @cached_property
    def _moves_by_flow(self) -> Mapping[int, list[Move]]:
        found = defaultdict(list)
        for move in self.moves:
            found[move.flow].append(move)
        return found

    def via(self, flow: Flow) -> str:
        """The nodes of a flow in order: "g3>s0b1>s1b0>g4"; of a stream its GPU."""
        links = shared_by(self.configuration.fabric).all
        return ">".join([self.gpu(flow.src), *(links[index].dst for index in flow.links)])


def collectives_of(run: Run, points: Points, configuration: Configuration, *, number: int) -> list[Collective]:
    """That collective of a configuration in every mode that has it, measured where it was.

    Empty where no mode has it, or its conditions are neither stored nor can be drawn again. Raises FigureError where
    the configuration declares no fabric that can be built, or no schedule over it.
    """
    there = []
    for mode in MODE_STYLES:
        for engine in ("emulation", "model"):
            point = points.get((engine, configuration.index, mode))
            rows = None if point is None else point.rows[point.rows["collective"] == number]
            if rows is not None and len(rows):
                there.append((engine, mode, rows.iloc[0]))
                break
    if not there:
        return []
    try:
        schedule = schedule_of(configuration, len(configuration.fabric.gpus))
        conditions = _conditions(run, configuration, number)
    except ConditionsError:  # the trace is not there any more
        return []
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        what = f"setting {configuration.index} of its settings.json: {error}".partition("\n")[0]
        raise FigureError(f"{run.path} is damaged: {what}") from None
    found = []
    for engine, mode, row in there:
        transfers = _transfers(run, configuration.index, mode, number) if engine == "emulation" else None
        found.append(
            _collective(configuration, mode, row, schedule=schedule, transfers=transfers, conditions=conditions)
        )
    return [one for one in found if one is not None]


def _conditions(run: Run, configuration: Configuration, number: int) -> tuple[Floats, Floats]:
    """The rate and the delay of every logical link or port for a collective, [links or ports] each."""
    table, fabric = run.conditions, configuration.fabric
    if len(table):
        here = table[(table["setting"] == configuration.index) & (table["collective"] == number)].sort_values("link")
        if len(here) == len(shared_by(fabric).all):
            return here["rate_bps"].to_numpy(dtype=np.float64), here["delay_s"].to_numpy(dtype=np.float64)
    draws = sampler(fabric, configuration.conditions, seed=configuration.seed)
    return draws.rates_bps(number, 1)[0], delays_s(fabric, configuration.conditions)


def _collective(
    configuration: Configuration,
    mode: str,
    row: Any,
    *,
    schedule: Schedule,
    transfers: Any,
    conditions: tuple[Floats, Floats],
) -> Collective | None:
    """The collective of a row, None where it is not one under these conditions."""
    placement, paths = [[int(value) for value in row[name]] for name in ("ring", "paths")]
    predicted_s, measured, last = float(row["predicted_s"]), transfers is not None, schedule.waited_for
    try:
        flows = _flows(configuration.fabric, schedule, placement, paths, conditions)
        # Times where flows share links, if they can; runs of earlier versions gave each flow links of its own.
        ways = [True, False] if configuration.shared_links.get(mode) else [False]
        classes = _classes(configuration)
        models = [_predicted(schedule, flows, conditions[0], classes, shares=shares) for shares in ways]
        handed_s, seen = _measured(schedule, flows, transfers) if measured else ([], models[0])
    except (IndexError, KeyError, ValueError):
        return None
    fitting = [model for model in models if abs(model.arrives_s[:last].max() / predicted_s - 1) <= _SAME]
    if not measured:
        if not fitting:  # what was drawn again does not give the stored times
            return None
        seen = fitting[0]
        handed_s = seen.begins_s[:, 0].tolist()
    limits = fluid.limits(fitting[0], [link.name for link in shared_by(configuration.fabric).all]) if fitting else {}
    path = critical_path(schedule.transfers[:last], seen)
    hops = [_hops(configuration.fabric, flow, *conditions) for flow in flows]
    critical = {step.transfer for step in path}
    moves = [
        Move(
            transfer=index,
            flow=transfer.flow,
            step=step,
            block=-1 if transfer.block < 0 else placement[transfer.block],
            size=transfer.amount * (schedule.slot_bytes if flows[transfer.flow].links else 1),
            start_s=start_s,
            leaves_s=leaves_s,
            end_s=end_s,
            is_critical=index in critical,
        )
        for index, (transfer, step, start_s, leaves_s, end_s) in enumerate(
            zip(
                schedule.transfers,
                schedule.steps,
                handed_s,
                seen.begins_s[:, 0].tolist(),
                seen.arrives_s[:, 0].tolist(),
                strict=True,
            )
        )
    ]
    if measured:  # by rank, as in the table of transfers
        moves.sort(key=lambda move: (move.step, flows[move.flow].src))
    return Collective(
        configuration=configuration,
        mode=mode,
        number=int(row["collective"]),
        measured=measured,
        completion_s=float(row["completion_s"]) if measured else predicted_s,
        predicted_s=predicted_s,
        flows=flows,
        rows=tuple(schedule.rows),
        moves=tuple(moves),
        spans=_spans(schedule, flows, conditions[0], classes, fitting[0]) if fitting else {},
        costs=seconds_by_link(schedule.transfers, path, hops, limits),
        rates_bps=conditions[0],
        delays_s=conditions[1],
    )


def schedule_of(configuration: Configuration, places: int) -> Schedule:
    """The schedule of a configuration; runs of versions that stored none are ring AllGathers.

    Raises ValueError, TypeError or KeyError where what is stored is none.
    """
    stored = configuration.schedule
    if stored is None:
        return _ring_allgather(places, int(configuration.value("collective.chunk")))
    ends, channels = [], []
    for flow in stored["flows"]:
        src, dst, channel = flow if len(flow) == 3 else (flow[0], *flow)  # of a stream its place and number
        if not (0 <= src < places and 0 <= dst < places):
            raise ValueError(f"its schedule has the flow {flow}")
        ends.append((int(src), int(dst)))
        channels.append(int(channel))
    transfers: list[Transfer] = []
    for flow, amount, after, block in stored["transfers"]:
        fits = 0 <= flow < len(ends) and 0 <= amount < math.inf and -1 <= block < places
        if not fits or not all(0 <= one < len(transfers) for one in after):
            raise ValueError(f"its schedule has the transfer {[flow, amount, after, block]}")
        transfers.append(Transfer(flow=int(flow), amount=amount, after=tuple(map(int, after)), block=int(block)))
    if not transfers:
        raise ValueError("its schedule has no transfers")
    return Schedule(
        algorithm=str(stored["algorithm"]),
        slot_bytes=int(stored["slot_bytes"]),
        ends=tuple(ends),
        channels=tuple(channels),
        transfers=tuple(transfers),
        waited_for=int(stored.get("waited_for", len(transfers))),
    )


def _ring_allgather(places: int, chunk_bytes: int) -> Schedule:
    """In step 1 every place sends its own block to the next, and in each later step the one that it has just got."""
    transfers = [
        Transfer(
            flow=place,
            amount=1,
            after=((step - 2) * places + (place - 1) % places,) if step > 1 else (),
            block=(place - step + 1) % places,
        )
        for step in range(1, places)
        for place in range(places)
    ]
    return Schedule(
        algorithm="ring",
        slot_bytes=chunk_bytes,
        ends=tuple((place, (place + 1) % places) for place in range(places)),
        channels=(0,) * places,
        transfers=tuple(transfers),
        waited_for=len(transfers),
    )


def _flows(
    fabric: Fabric,
    schedule: Schedule,
    placement: Sequence[int],
    paths: Sequence[int],
    conditions: tuple[Floats, Floats],
) -> tuple[Flow, ...]:
    """The flows between the ranks of a placement, each over the WAN path of that index, or within a site (-1)."""
    (rates_bps, delays_s), flows, shared = conditions, [], shared_by(fabric)
    for (begin, end), channel, path in zip(schedule.ends, schedule.channels, paths, strict=True):
        src, dst = placement[begin], placement[end]
        links = shared.edge(src, dst, path) if src != dst else ()
        rate_bps = float(rates_bps[[*links]].min(initial=math.inf))
        about: dict[str, Any] = {"src": src, "dst": dst, "channel": channel, "links": links, "crosses": path >= 0}
        flows.append(Flow(**about, rate_bps=rate_bps, delay_s=float(delays_s[[*links]].sum())))
    return tuple(flows)


def _hops(fabric: Fabric, flow: Flow, rates_bps: Floats, delays_s: Floats) -> list[Hop]:
    """What a flow goes over: its links, or of a stream its GPU."""
    names = shared_by(fabric).all
    hops = [Hop(names[link].name, float(rates_bps[link]), float(delays_s[link])) for link in flow.links]
    return hops or [Hop(fabric.gpus[flow.src].name, math.inf, 0.0)]


def _transfers(run: Run, index: int, mode: str, number: int) -> Any:
    """The rows of a collective's transfers, None where there are none."""
    table = run.transfers
    if not len(table):
        return None
    here = table[(table["setting"] == index) & (table["mode"] == mode) & (table["collective"] == number)]
    return here if len(here) else None


def _measured(schedule: Schedule, flows: Sequence[Flow], transfers: Any) -> tuple[list[float], Times]:
    """When each transfer was handed over, and its times, from the rows of messages; raises ValueError (`times_of`).

    A flow carries one message after the other, so one leaves once the one before it has: when that arrived, less the
    time that bits are on the way.
    """
    handed_s, ends_s = times_of(schedule.transfers, [(flow.src, flow.dst) for flow in flows], transfers)
    leaves_s, delays_s, free_s = list[float](), list[float](), dict[int, float]()
    for transfer, start_s, end_s in zip(schedule.transfers, handed_s, ends_s, strict=True):
        leaves_s.append(min(end_s, max(start_s, free_s.get(transfer.flow, 0.0))))
        delays_s.append(flows[transfer.flow].delay_s)
        free_s[transfer.flow] = end_s - delays_s[-1]
    begins, ends, delays = (np.array(values)[:, None] for values in (leaves_s, ends_s, delays_s))
    return handed_s, Times(begins_s=begins, leaves_s=ends - delays, arrives_s=ends)


def _classes(configuration: Configuration) -> fluid.Classes | None:
    """The classes of traffic, which the links or ports of the WAN serve."""
    if configuration.classes is None:
        return None
    return fluid.Classes(
        **configuration.classes, serves=[link.kind == "wan" for link in shared_by(configuration.fabric).all]
    )


def _predicted(
    schedule: Schedule, flows: Sequence[Flow], rates_bps: Floats, classes: fluid.Classes | None, *, shares: bool
) -> Times:
    """The times of all transfers by the timing model, in which flows share links fairly or have their own."""
    alpha_s = np.array([[flow.delay_s for flow in flows]])
    if shares:
        links, slot_bytes = _links(flows), schedule.slot_bytes
        return fluid.times(schedule.transfers, links, rates_bps[None], alpha_s, slot_bytes=slot_bytes, classes=classes)
    beta_s = np.array([[8 * schedule.slot_bytes / flow.rate_bps if flow.links else 1.0 for flow in flows]])
    return times(schedule.transfers, alpha_s.T, beta_s.T)


def _spans(
    schedule: Schedule, flows: Sequence[Flow], rates_bps: Floats, classes: fluid.Classes | None, seen: Times
) -> dict[int, list[Span]]:
    """The predicted rates of transfers over time; empty where flows share nothing, or rates change too often."""
    if not isinstance(seen, fluid.SharedTimes):
        return {}
    begins, leaves = seen.begins_s[:, 0], seen.leaves_s[:, 0]
    moments = np.unique(np.concatenate([begins, leaves]))
    if len(moments) > _MOST_SPANS:
        return {}
    links, flow_of = _links(flows)[0], np.array([transfer.flow for transfer in schedule.transfers])
    found: defaultdict[int, list[Span]] = defaultdict(list)
    for start, end in pairwise(moments.tolist()):
        served = np.flatnonzero((begins <= start) & (leaves >= end) & (links[flow_of, 0] >= 0))
        of = classes and replace(classes, of_flow=np.array(classes.of_flow)[flow_of[served]].tolist())
        rates, _ = fluid.fair_rates(links[flow_of[served]], rates_bps, of)
        for transfer, rate in zip(served.tolist(), rates.tolist(), strict=True):
            found[transfer].append((start, end, rate / flows[flow_of[transfer]].rate_bps))
    return dict(found)


def _links(flows: Sequence[Flow]) -> npt.NDArray[np.int32]:
    """The links of every flow, [1, F, H], -1 for none."""
    links = np.full((1, len(flows), max(len(flow.links) for flow in flows)), -1, dtype=np.int32)
    for row, flow in zip(links[0], flows, strict=True):
        row[: len(flow.links)] = flow.links
    return links


def lanes(moves: Sequence[Move], *, touching: float = 0.0) -> list[int]:
    """For each of these moves, which leave one after the other, the first lane that is free when it leaves.

    A move may leave that share of its length before its lane is free.
    """
    free: list[float] = []
    chosen = []
    for move in moves:
        least = move.leaves_s + touching * (move.end_s - move.leaves_s)
        lane = next((lane for lane, until_s in enumerate(free) if until_s <= least), len(free))
        free[lane : lane + 1] = [move.end_s]
        chosen.append(lane)
    return chosen
