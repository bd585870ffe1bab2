"""One collective of a stored run in full: the links of every flow of its schedule, their rates, and every transfer.

The transfers of a measured collective are the measured ones, those of a predicted one come from the timing model. A run
stores the conditions of measured collectives only. Those of predicted ones, a hundred thousand times as many, are drawn
again from the run's seed and checked against the stored times. Other modules do the drawing.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.figures.faults_in_force import dead_cables, dead_links, failing_links, of_point, slowed_bps
from analysis.figures.run_points import Configuration, FigureError, Points
from analysis.figures.style import MODE_STYLES
from analysis.model import fluid
from analysis.model.max_plus import Cost, Hop, Step, Times, critical_path, seconds_by_link, times
from analysis.results.reader import Run
from analysis.results.rows import Point
from analysis.statistics.declared_faults import DeclaredFault, declared
from analysis.statistics.fault_costs import faults_by_point
from analysis.statistics.transfer_times import times_of
from topologies.conditions.sampler import delays_s, sampler
from topologies.errors import ConditionsError, list_all
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import Cables, cable
from topologies.fabric.ports import SharedLinks, links_in_grain
from topologies.units import format_delay

Floats = npt.NDArray[np.float64]

_MAX_SPANS = 4000  # intervals of constant rates; computing the rates of all flows in 4000 takes about a second
MAX_ROWS = 32
"""Flows that have a row in a timeline at most."""
AFTER = "after "
"""Before a fault, in the name under which seconds of a critical path after it count."""
_SAME = 1e-6  # relative difference by which a recomputed time may miss the stored one: rounding only


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A transfer of a schedule.

    `flow` is the index of its flow; `amount` its size in slots, on a stream its duration in s; `after` the indices of
    the transfers that it waits for; `block` the position whose block it starts with, -1 if there is none.
    """

    flow: int
    amount: float
    after: tuple[int, ...]
    block: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """A schedule as a run stores it; its transfers are in program order.

    `ends` are the two positions that each flow connects, `channels` tells flows between the same positions apart. A
    flow from a position to itself is a stream: a processor that computes. The schedule is complete when its first
    `waited_for` transfers are; the others are background traffic.
    """

    algorithm: str
    slot_bytes: int
    ends: tuple[tuple[int, int], ...]
    channels: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    waited_for: int

    @cached_property
    def steps(self) -> list[int]:
        """The step of each transfer: the messages in the longest chain of dependencies that ends with it."""
        steps: list[int] = []
        for transfer in self.transfers:
            src, dst = self.ends[transfer.flow]
            steps.append((src != dst) + max((steps[index] for index in transfer.after), default=0))
        return steps

    @property
    def rows(self) -> list[int]:
        """The indices of the flows in display order.

        Flows of a ring follow the ring, channel by channel and direction by direction. Other flows are grouped by
        sender, with senders in order of first appearance.
        """
        if self.algorithm == "ring":
            positions = 1 + max(map(max, self.ends))

            def around(flow: int) -> tuple[int, bool, int]:
                src, dst = self.ends[flow]
                is_back = (src + 1) % positions != dst
                return self.channels[flow], is_back, -src if is_back else src

            return sorted(range(len(self.ends)), key=around)
        senders = list(dict.fromkeys(src for src, _ in self.ends))
        return sorted(range(len(self.ends)), key=lambda flow: senders.index(self.ends[flow][0]))


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A flow from one rank to another, with the indices of the logical links or ports on its path.

    `rate_bps` is the rate of its slowest link, `delay_s` the sum of their delays; `crosses` whether it crosses the WAN.
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
class TimedTransfer:
    """The execution of a transfer of the schedule, by its index; times are seconds since the collective's start.

    At `start_s` the sender hands the transfer to its transport, where it may wait for the previous one. At `leaves_s`
    its first bit is sent, and at `end_s` the receiver has it whole. `block` is the rank whose block it starts with, -1
    if there is none; `size` is in bytes, for a computation in s; `is_critical` marks the critical path.
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
"""Start and end (s) of an interval in which a transfer has a constant rate, and that rate / its slowest link's rate."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Collective:
    """A collective in one mode; `flows` are in the order of the schedule, `rates_bps` and `delays_s` per link or port.

    `measured` tells whether `completion_s`, the times of `transfers` and the critical path were measured or predicted.
    `costs` are the seconds of the critical path by link, largest first; those of a flow after a fault cut a link under
    it are under "after link A-B down".
    `rows` are the indices of the flows in display order. `spans` are the predicted rates over time of each transfer of
    the flows that are `shown`, by its index, if flows share links. `faults` are those in force when it began or while
    it ran, in the scenario's words. `down` are the links or ports that are down when it begins, and `failing` those
    that went down while it ran, and after how many seconds. `may_be_again`: a fault that hit it has made attempts fail.
    """

    configuration: Configuration
    mode: str
    number: int
    measured: bool
    completion_s: float
    predicted_s: float
    flows: tuple[Flow, ...]
    rows: tuple[int, ...]
    transfers: tuple[TimedTransfer, ...]
    spans: Mapping[int, Sequence[Span]]
    costs: Mapping[str, Cost]
    rates_bps: Floats
    delays_s: Floats
    faults: tuple[str, ...] = ()
    down: tuple[int, ...] = ()
    failing: Mapping[int, float] = field(default_factory=dict)
    may_be_again: bool = False

    @property
    def busy(self) -> list[int]:
        """The flows that could have a row, in display order."""
        return _busy(self.rows, self.transfers)

    @property
    def shown(self) -> list[int]:
        """The flows that have a row, at most `MAX_ROWS`, in display order: those on the critical path, then those that
        differ most."""
        return shown_flows(self.rows, self.transfers)

    @property
    def computes(self) -> bool:
        """Whether streams are those of computations, or else clocks."""
        return self.configuration.computes and not self.configuration.admission

    @property
    def words(self) -> str:
        """The number in words, with the faults: "collective 4, hit by link s0b0-s1b0 down"."""
        return f"collective {self.number:,}" + (f", hit by {list_all(self.faults)}" if self.faults else "")

    @property
    def which(self) -> dict[str, Any]:
        """The columns of a data file that identify the collective."""
        about = {"setting": self.configuration.index, "label": self.configuration.label}
        return about | {"mode": self.mode, "collective": self.number}

    @property
    def title(self) -> str:
        """The mode and the completion time in words."""
        time = f"{self.completion_s * 1e3:,.4g} ms ({'measured' if self.measured else 'predicted'})"
        return f"{MODE_STYLES[self.mode].label}: {time}"

    @property
    def failing_words(self) -> str:
        """How long after its beginning links went down: "3 ms", "1 ms and 3 ms"."""
        return list_all([format_delay(after_s) for after_s in sorted({*self.failing.values()})])

    def gpu(self, rank: int) -> str:
        """Return the name of a rank's GPU."""
        return self.configuration.fabric.gpus[rank].name

    def name(self, flow: Flow) -> str:
        """Return a flow in words: "g0 → g1", with the channel if there are several."""
        if not flow.links:
            return f"{self.gpu(flow.src)} {'computes' if self.computes else 'waits'}"
        several = any(other.channel for other in self.flows if other.links)
        return f"{self.gpu(flow.src)} → {self.gpu(flow.dst)}" + (f" #{flow.channel}" if several else "")

    def transfers_over(self, flow: int) -> list[TimedTransfer]:
        """Return the transfers over the flow with this index, in the order in which they leave."""
        return sorted(self._transfers_by_flow[flow], key=lambda timed: (timed.leaves_s, timed.transfer))

    @cached_property
    def _transfers_by_flow(self) -> Mapping[int, list[TimedTransfer]]:
        transfers = defaultdict(list)
        for timed in self.transfers:
            transfers[timed.flow].append(timed)
        return transfers

    def via(self, flow: Flow) -> str:
        """Return the nodes on a flow's path in order, "g3>s0b1>s1b0>g4"; for a stream its GPU."""
        links = links_in_grain(self.configuration.fabric).all
        return ">".join([self.gpu(flow.src), *(links[index].far_end for index in flow.links)])


def collectives_of(run: Run, points: Points, configuration: Configuration, *, number: int) -> list[Collective]:
    """Return collective `number` of a configuration in every mode that has it: measured if it was, otherwise predicted.

    Returns none if no mode has it, or if its conditions are neither stored nor can be drawn again. Raises FigureError
    if the stored fabric cannot be built, if the stored schedule does not fit it, or if it is that of another round.
    """
    rows_by_mode = []
    for mode in MODE_STYLES:
        for engine in ("emulation", "model"):
            point = points.get((engine, configuration.index, mode))
            rows = None if point is None else point.rows[point.rows["collective"] == number]
            if rows is not None and len(rows):
                rows_by_mode.append((engine, mode, rows.iloc[0]))
                break
    if not rows_by_mode:
        return []
    if configuration.rounds_differ and number:
        raise FigureError(f"{run.path} has the background messages of collective 0 only, not of {number}; allowed: 0")
    try:
        schedule = schedule_of(configuration, len(configuration.fabric.gpus))
        conditions = _conditions(run, configuration, number)
    except ConditionsError:  # the file of the trace is missing
        return []
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        why = f"setting {configuration.index} of its settings.json: {error}".partition("\n")[0]
        raise FigureError(f"{run.path} is damaged: {why}") from None
    collectives = []
    for engine, mode, row in rows_by_mode:
        transfers = _transfers(run, configuration.index, mode, number) if engine == "emulation" else None
        faults = of_point(run, configuration, engine, mode)
        rates_bps = slowed_bps(configuration.fabric, faults, number, conditions[0])
        collective = _collective(
            configuration,
            mode,
            row,
            schedule=schedule,
            transfers=transfers,
            conditions=(rates_bps, conditions[1]),
            faults=faults,
        )
        if collective is not None:
            collectives.append(replace(collective, may_be_again=_may_be_again(run, configuration, mode, collective)))
    return collectives


def _may_be_again(run: Run, configuration: Configuration, mode: str, collective: Collective) -> bool:
    """Return whether the time is that of an attempt before which others may have failed: a fault that hit this measured
    collective has made attempts fail."""
    faults = faults_by_point(run.faults.to_dict("records")).get(Point("emulation", configuration.index, mode), ())
    lost = [one for one in faults if one.collectives_lost] if collective.measured else []
    hit = {part["collective"] for one in lost for part in one.costs or ()}
    return collective.number in hit.union(one.at_collective for one in lost)


def links_in_use(configuration: Configuration, rows: Any, faults: Sequence[DeclaredFault]) -> Counter[int]:
    """Return in how many of these collectives, rows of a point with these faults, each logical link or port is on a
    flow's path.

    It is empty if the stored schedule, placements and paths do not fit the fabric.
    """
    used, seen = Counter[int](), dict[tuple[Cables, int, int, int], tuple[int, ...]]()
    try:
        starts, ends = np.array(schedule_of(configuration, len(configuration.fabric.gpus)).ends).T
        for number, ring, paths in zip(rows["collective"], rows["ring"], rows["paths"], strict=True):
            dead, places = dead_cables(configuration.fabric, faults, int(number)), np.array(ring)
            of_collective = set[int]()
            for edge in zip(places[starts].tolist(), places[ends].tolist(), list(paths), strict=True):
                if (dead, *edge) not in seen:  # the links of an edge are slow to find, and edges come back
                    src, dst, path = map(int, edge)
                    shared = links_in_grain(configuration.fabric, dead)
                    seen[dead, src, dst, path] = shared.edge(src, dst, path) if src != dst else ()
                of_collective.update(seen[(dead, *edge)])
            used.update(of_collective)
    except (IndexError, KeyError, ValueError, TypeError):
        return Counter()
    return used


def _conditions(run: Run, configuration: Configuration, number: int) -> tuple[Floats, Floats]:
    """Return the rate and the delay of every logical link or port for a collective, [links or ports] each."""
    table, fabric = run.conditions, configuration.fabric
    if len(table):
        here = table[(table["setting"] == configuration.index) & (table["collective"] == number)].sort_values("link")
        if len(here) == len(links_in_grain(fabric).all):
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
    faults: Sequence[DeclaredFault],
) -> Collective | None:
    """Return the collective of a row of the table of collectives, or None if it does not fit these conditions.

    `faults` are those of its point. `transfers` are its measured transfers, None for a predicted collective.
    """
    placement, paths = [[int(value) for value in row[name]] for name in ("ring", "paths")]
    predicted_s, measured, last = float(row["predicted_s"]), transfers is not None, schedule.waited_for
    try:
        dead = dead_cables(configuration.fabric, faults, int(row["collective"]))
        shared = links_in_grain(configuration.fabric, dead)
        flows = _flows(shared, schedule, placement, paths, conditions)
        # Flows share links if the run says so, but runs of earlier versions gave each flow links of its own.
        sharing = [True, False] if configuration.shared_links.get(mode) else [False]
        classes = _classes(configuration)
        models = [_predicted(schedule, flows, conditions[0], classes, shares=shares) for shares in sharing]
        handed_s, shown = _measured(schedule, flows, transfers) if measured else ([], models[0])
    except (IndexError, KeyError, ValueError):
        return None
    fitting = [model for model in models if abs(model.arrives_s[:last].max() / predicted_s - 1) <= _SAME]
    if not measured:
        if not fitting:  # under the conditions drawn again the model does not give the stored time
            return None
        shown = fitting[0]
        handed_s = shown.begins_s[:, 0].tolist()
    limits = (
        fluid.bottleneck_names(fitting[0], [link.name for link in links_in_grain(configuration.fabric).all])
        if fitting
        else {}
    )
    path = critical_path(schedule.transfers[:last], shown)
    struck = _struck(configuration, int(row["collective"]), flows) if measured else {}
    hops = [_hops(configuration.fabric, flow, *conditions) for flow in flows]
    critical = {step.transfer for step in path}
    timed_transfers = _timed_transfers(schedule, flows, placement, shown, handed_s=handed_s, critical=critical)
    if measured:  # ordered by step and rank, like the table of transfers
        timed_transfers.sort(key=lambda timed: (timed.step, flows[timed.flow].src))
    rates_bps = conditions[0].copy()
    down = dead_links(configuration.fabric, dead)
    rates_bps[down] = 0.0
    return Collective(
        configuration=configuration,
        mode=mode,
        number=int(row["collective"]),
        measured=measured,
        completion_s=float(row["completion_s"]) if measured else predicted_s,
        predicted_s=predicted_s,
        flows=flows,
        rows=tuple(schedule.rows),
        transfers=tuple(timed_transfers),
        spans=_spans(
            schedule, flows, conditions[0], classes, fitting[0], shown=shown_flows(schedule.rows, timed_transfers)
        )
        if fitting
        else {},
        costs=_costs(schedule, path, hops, limits, struck=struck, shown=shown),
        rates_bps=rates_bps,
        delays_s=conditions[1],
        down=tuple(down),
        faults=tuple(one.what for one in faults if one.first <= row["collective"] < one.end),
        failing=failing_links(configuration.fabric, faults, int(row["collective"])) if measured else {},
    )


def _costs(
    schedule: Schedule,
    path: Sequence[Step],
    hops: Sequence[Sequence[Hop]],
    limits: Mapping[int, str],
    *,
    struck: Mapping[int, tuple[str, float]],
    shown: Times,
) -> dict[str, Cost]:
    """Return the seconds of a critical path by link. Those of messages over a path that has lost a link count, from the
    failure on, for what came after it, because nobody knows which links they took instead, and when."""
    whole, after, end_s = list[Step](), dict[str, float](), 0.0
    for step in path:
        begin_s, end_s = end_s, end_s + step.seconds
        what, at_s = struck.get(schedule.transfers[step.transfer].flow, ("", math.inf))
        if shown.arrives_s[step.transfer, 0] <= at_s:
            whole.append(step)
            continue
        before_s = min(max(0.0, at_s - begin_s), step.seconds)
        if before_s:
            whole.append(replace(step, seconds=before_s, arrives=False))
        after[what] = after.get(what, 0.0) + step.seconds - before_s
    costs = dict(seconds_by_link(schedule.transfers, whole, hops, limits))
    costs |= {f"{AFTER}{what}": Cost(seconds, 0.0) for what, seconds in after.items()}
    return dict(sorted(costs.items(), key=lambda item: -item[1].seconds))


def _struck(configuration: Configuration, number: int, flows: Sequence[Flow]) -> dict[int, tuple[str, float]]:
    """Return the flows whose paths lose a link while collective `number` runs, by index: the fault in the scenario's
    words, and its instant in s since the collective's beginning. Of several faults the first counts."""
    links, struck = links_in_grain(configuration.fabric).all, dict[int, tuple[str, float]]()
    for fault in declared(configuration.values.get("fault")):
        (a, b), after_s = fault.ends, fault.after_s
        if after_s is None or not a or fault.first != number:
            continue
        ends = cable(a, b) if b else {a}
        for index, flow in enumerate(flows):
            ports = [links[link] for link in flow.links]
            passed = [{port.src, port.dst} | cable(port.src, port.far_end) for port in ports]
            if any(ends <= names for names in passed) and (index not in struck or after_s < struck[index][1]):
                struck[index] = fault.what, after_s
    return struck


def _timed_transfers(
    schedule: Schedule,
    flows: Sequence[Flow],
    placement: Sequence[int],
    timing: Times,
    *,
    handed_s: Sequence[float],
    critical: Set[int],
) -> list[TimedTransfer]:
    """Return all transfers with times, in program order; `critical` are the indices of those on the critical path."""
    leaves_s, ends_s = timing.begins_s[:, 0].tolist(), timing.arrives_s[:, 0].tolist()
    return [
        TimedTransfer(
            transfer=index,
            flow=transfer.flow,
            step=schedule.steps[index],
            block=-1 if transfer.block < 0 else placement[transfer.block],
            size=transfer.amount * (schedule.slot_bytes if flows[transfer.flow].links else 1),
            start_s=handed_s[index],
            leaves_s=leaves_s[index],
            end_s=ends_s[index],
            is_critical=index in critical,
        )
        for index, transfer in enumerate(schedule.transfers)
    ]


def schedule_of(configuration: Configuration, ranks: int) -> Schedule:
    """Return the schedule of a configuration over `ranks` ranks: a ring AllGather if an early version stored none.

    Raises ValueError, TypeError or KeyError if the stored schedule is malformed.
    """
    stored = configuration.schedule
    if stored is None:
        return _ring_allgather(ranks, int(configuration.value("collective.chunk")))
    ends, channels = [], []
    for flow in stored["flows"]:
        src, dst, channel = flow if len(flow) == 3 else (flow[0], *flow)  # a stream is stored as position and channel
        if not (0 <= src < ranks and 0 <= dst < ranks):
            raise ValueError(f"its schedule has the flow {flow}")
        ends.append((int(src), int(dst)))
        channels.append(int(channel))
    transfers: list[Transfer] = []
    for flow, amount, after, block in stored["transfers"]:
        fits = 0 <= flow < len(ends) and 0 <= amount < math.inf and -1 <= block < ranks
        if not fits or not all(0 <= index < len(transfers) for index in after):
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


def _ring_allgather(ranks: int, chunk_bytes: int) -> Schedule:
    """Return a ring AllGather: in step 1 every position sends its own block to the next one, and in each later step the
    block that it received in the step before."""
    transfers = [
        Transfer(
            flow=position,
            amount=1,
            after=((step - 2) * ranks + (position - 1) % ranks,) if step > 1 else (),
            block=(position - step + 1) % ranks,
        )
        for step in range(1, ranks)
        for position in range(ranks)
    ]
    return Schedule(
        algorithm="ring",
        slot_bytes=chunk_bytes,
        ends=tuple((position, (position + 1) % ranks) for position in range(ranks)),
        channels=(0,) * ranks,
        transfers=tuple(transfers),
        waited_for=len(transfers),
    )


def _flows(
    shared: SharedLinks,
    schedule: Schedule,
    placement: Sequence[int],
    paths: Sequence[int],
    conditions: tuple[Floats, Floats],
) -> tuple[Flow, ...]:
    """Return the flows between the ranks of a placement, each over the WAN path with its index in `paths`, or within a
    site (-1)."""
    (rates_bps, delays_s), flows = conditions, []
    for (start, end), channel, path in zip(schedule.ends, schedule.channels, paths, strict=True):
        src, dst = placement[start], placement[end]
        links = shared.edge(src, dst, path) if src != dst else ()
        rate_bps = float(rates_bps[[*links]].min(initial=math.inf))
        about: dict[str, Any] = {"src": src, "dst": dst, "channel": channel, "links": links, "crosses": path >= 0}
        flows.append(Flow(**about, rate_bps=rate_bps, delay_s=float(delays_s[[*links]].sum())))
    return tuple(flows)


def _hops(fabric: Fabric, flow: Flow, rates_bps: Floats, delays_s: Floats) -> list[Hop]:
    """Return the hops on a flow's path: its links, or for a stream its GPU."""
    links = links_in_grain(fabric).all
    hops = [Hop(links[index].name, float(rates_bps[index]), float(delays_s[index])) for index in flow.links]
    return hops or [Hop(fabric.gpus[flow.src].name, math.inf, 0.0)]


def _transfers(run: Run, index: int, mode: str, number: int) -> Any:
    """Return the rows of a collective's measured transfers, or None if there are none."""
    table = run.transfers
    if not len(table):
        return None
    here = table[(table["setting"] == index) & (table["mode"] == mode) & (table["collective"] == number)]
    return here if len(here) else None


def _measured(schedule: Schedule, flows: Sequence[Flow], transfers: Any) -> tuple[list[float], Times]:
    """Return when each transfer was handed over (s) and its times, from its measured rows; raises ValueError.

    A flow carries its messages one after the other: a message leaves when it has been handed over and the previous one
    has been sent, which is its arrival less the flow's delay.
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
    """Return the classes of traffic, which the links or ports of the WAN serve in order, or None."""
    if configuration.classes is None:
        return None
    return fluid.Classes(
        **configuration.classes, serves=[link.kind == "wan" for link in links_in_grain(configuration.fabric).all]
    )


def _predicted(
    schedule: Schedule, flows: Sequence[Flow], rates_bps: Floats, classes: fluid.Classes | None, *, shares: bool
) -> Times:
    """Predict the times of all transfers, with flows that share links fairly or that each have their own."""
    alpha_s = np.array([[flow.delay_s for flow in flows]])
    if shares:
        links, slot_bytes = _links(flows), schedule.slot_bytes
        return fluid.times(schedule.transfers, links, rates_bps[None], alpha_s, slot_bytes=slot_bytes, classes=classes)
    beta_s = np.array([[8 * schedule.slot_bytes / flow.rate_bps if flow.links else 1.0 for flow in flows]])
    return times(schedule.transfers, alpha_s.T, beta_s.T)


def shown_flows(rows: Sequence[int], transfers: Sequence[TimedTransfer]) -> list[int]:
    """Return which of the flows have a row in a timeline, at most `MAX_ROWS`, in the order of rows: those on the
    critical path, and then each time the one whose last message ends furthest from those of all chosen ones."""
    rows = _busy(rows, transfers)
    critical = {timed.flow for timed in transfers if timed.is_critical}
    ends_s = dict.fromkeys(rows, 0.0)
    for timed in transfers:
        if timed.flow in ends_s:
            ends_s[timed.flow] = max(ends_s[timed.flow], timed.end_s)
    chosen = [flow for flow in rows if flow in critical][:MAX_ROWS]
    others = [flow for flow in rows if flow not in critical]
    apart = {flow: min((abs(ends_s[flow] - ends_s[one]) for one in chosen), default=math.inf) for flow in others}
    while apart and len(chosen) < MAX_ROWS:
        furthest = max(apart, key=apart.__getitem__)
        chosen.append(furthest)
        del apart[furthest]
        apart = {flow: min(gap, abs(ends_s[flow] - ends_s[furthest])) for flow, gap in apart.items()}
    return [flow for flow in rows if flow in {*chosen}]


def _busy(rows: Sequence[int], transfers: Sequence[TimedTransfer]) -> list[int]:
    """Return these flows without streams that take no time, where the repetitions of a job wait for each other."""
    busy = {timed.flow for timed in transfers if timed.size}
    return [flow for flow in rows if flow in busy]


def _spans(
    schedule: Schedule,
    flows: Sequence[Flow],
    rates_bps: Floats,
    classes: fluid.Classes | None,
    timing: Times,
    *,
    shown: Sequence[int],
) -> dict[int, list[Span]]:
    """Return the predicted rates over time of the transfers of some flows; none if flows share no link or rates change
    too often. A span lasts until the rate changes."""
    if not isinstance(timing, fluid.SharedTimes):
        return {}
    begins, leaves = timing.begins_s[:, 0], timing.leaves_s[:, 0]
    instants = np.unique(np.concatenate([begins, leaves]))
    if len(instants) > _MAX_SPANS:
        return {}
    links, flow_of = _links(flows)[0], np.array([transfer.flow for transfer in schedule.transfers])
    is_shown = np.isin(flow_of, shown)
    spans: defaultdict[int, list[Span]] = defaultdict(list)
    for start, end in pairwise(instants.tolist()):
        served = np.flatnonzero((begins <= start) & (leaves >= end) & (links[flow_of, 0] >= 0))
        own = classes and replace(classes, of_flow=np.array(classes.of_flow)[flow_of[served]].tolist())
        rates, _ = fluid.fair_rates(links[flow_of[served]], rates_bps, own)
        of_shown = is_shown[served]
        for transfer, rate in zip(served[of_shown].tolist(), rates[of_shown].tolist(), strict=True):
            mine, share = spans[transfer], rate / flows[flow_of[transfer]].rate_bps
            if mine and mine[-1][1:] == (start, share):
                mine[-1] = (mine[-1][0], end, share)
            else:
                mine.append((start, end, share))
    return dict(spans)


def _links(flows: Sequence[Flow]) -> npt.NDArray[np.int32]:
    """Return the link indices of every flow, [1, flows, hops], padded with -1."""
    links = np.full((1, len(flows), max(len(flow.links) for flow in flows)), -1, dtype=np.int32)
    for row, flow in zip(links[0], flows, strict=True):
        row[: len(flow.links)] = flow.links
    return links


def lanes(transfers: Sequence[TimedTransfer], *, touching: float = 0.0) -> list[int]:
    """Return for each transfer, in the order of leaving, the index of the first lane that is free when it leaves.

    A transfer may leave up to the share `touching` of its own length before its lane is free.
    """
    free: list[float] = []
    chosen = []
    for timed in transfers:
        least = timed.leaves_s + touching * (timed.end_s - timed.leaves_s)
        lane = next((lane for lane, until_s in enumerate(free) if until_s <= least), len(free))
        free[lane : lane + 1] = [timed.end_s]
        chosen.append(lane)
    return chosen
