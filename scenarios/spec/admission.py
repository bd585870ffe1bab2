"""Transfers over the WAN: the tables that declare them, and the decision which of them are admitted.

[admission]
protect = "link"           # promises hold whichever single WAN link fails
recovery = "300 ms"        # without a failure a transfer is complete this long before its deadline
[[job]]
kind = "transfer"
ranks = [0, 4]             # from the first rank to the second, which is in another site
size = "400 MB"
deadline = "60 ms"         # after the round's beginning; or a rate and a duration
latest = "90 ms"           # the latest end that the transfer may be deferred to

A promise holds under all conditions, because every link is assumed to have the lowest rate that the conditions allow. A
promised transfer is paced: each message is handed to the transport when the calendar begins to send it, on a connection
that belongs to one tunnel. When a link fails, the network moves a connection to the substitute path of its channel
(`controller.routing.multipath`). The calendar of protected promises therefore plans each tunnel together with its
substitutes, and senders need not react to failures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from controller.admission import Calendar, Capacities, Decision, Request, decide_after_failure, decide_all
from controller.routing.multipath import SUBSTITUTES, multipath
from controller.routing.switch_paths import FabricPaths
from hosts.agent.transport import Transport, segment_bytes
from hosts.collectives.background import MAX_MESSAGES, timed
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Flow, ScheduleError
from scenarios.spec import failover
from scenarios.spec.classes import ClassSpec
from scenarios.spec.jobs import TRANSFER, JobSpec
from topologies.conditions.sampler import ConditionsSpec, delays_s, ranges_bps, sampler
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.failures import NO_CABLES, Cable, Cables, cable, failed_links
from topologies.fabric.link_names import end
from topologies.fabric.ports import links_in_grain
from topologies.shaping.classes import FRAME_BYTES, SHORT_SEGMENT_BYTES
from topologies.shaping.frames import TCP_FRAMES
from topologies.units import format_delay, format_rate, format_size

Floats = npt.NDArray[np.float64]
Tunnels = dict[tuple[tuple[int, ...], ...], list[int]]

PROTECT = ("none", "link")
BROKEN, UNADMITTED = "broken", "sent"
"""Outcomes besides the controller's: a promise that does not hold without the links that are down, and a transfer that
is sent as requested, without admission."""
ADMITTING_ROUTING = "spray"
"""The routing with which transfers are admitted; with any other routing they are UNADMITTED."""

_CALENDAR_SHARE = 0.95  # share of a link's capacity for the calendar; rounding up to whole connections may use the rest
_DEFAULT_MESSAGES = 256  # messages of a transfer whose message size is not given
_MIN_MESSAGE_BYTES = 16_384  # least size of such a message
_RESIDUE = 1e-7  # share of a transfer's highest rate: a tunnel's rate below it is the solver's rounding error
_NEGLIGIBLE = 1e-3  # share of a request: less is reported as "nothing", since deferred promises leave such remainders
_LAG_STEP = 0.05  # share of a transfer's duration: lags are rounded up to multiples, so that few instants differ
_QUEUED_SEGMENTS = 3  # of a connection at a link (`transport.fair_share_limits`)
_WAIT_MARGIN = 1.25  # headers and labels
_ROUNDING = 1e-6  # relative tolerance when capacities and rates are divided into connections


@dataclass(frozen=True)
class AdmissionSpec:
    """The [admission] table. `protect`, one of PROTECT, is what promises are protected from. `recovery_s` is how long
    before its deadline, in s, a transfer is complete when nothing fails, so that it is still in time when a link fails
    during it."""

    protect: str = "none"
    recovery_s: float | None = None

    @property
    def protects(self) -> bool:
        """Whether promises are protected from failures."""
        return self.protect != "none"


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfer:
    """A transfer job with its outcome: one of the controller's outcomes, BROKEN or UNADMITTED.

    The transfer may begin `start_s` after the round's beginning and is complete by `due_s`; a refused transfer has the
    times that it requested. For a refused or broken transfer, `most` is the largest amount that could be granted
    (bytes, or bit/s for a rate), and `earliest_s` is the earliest time at which all of it could be complete, None if
    there is none. Interval i of its calendar lasts from `edges_s[i]` to `edges_s[i + 1]`. `rates_bps` holds the rate in
    each interval, by tunnel; a tunnel is named by the nodes that it passes.
    """

    job: JobSpec
    outcome: str
    start_s: float
    due_s: float
    most: float
    earliest_s: float | None
    edges_s: Floats
    rates_bps: Mapping[str, Floats]
    workload: Workload | None

    @property
    def sentence(self) -> str:
        """The outcome in one sentence; if the transfer is not carried, with what would be possible instead."""
        job = self.job
        write = format_size if job.rate_bps is None else format_rate
        what = write(job.size_bytes or job.rate_bps or 0)
        when = f"by {_format_time(self.due_s)}"
        if job.duration_s is not None:
            when = f"for {_format_time(job.duration_s)} from {_format_time(self.start_s)} on"
        if self.workload is not None:
            return f"{job.name} is {self.outcome}: {what} {when}"
        could = "at no time"
        if self.earliest_s is not None:
            could = f"by {_format_time(self.earliest_s)}"
            if job.duration_s is not None:
                could = f"from {_format_time(self.earliest_s - (self.due_s - self.start_s))} on"
        least = max(1, _NEGLIGIBLE * (job.size_bytes or job.rate_bps or 0))
        at_most = f"{write(int(self.most))} at most" if self.most >= least else "nothing"
        return f"{job.name} is {self.outcome}: {at_most} {when}, and {what} {could}"

    def kept(self, longest_s: float | None) -> dict[str, object]:
        """Return when the transfer completed, and whether that was in time. `longest_s` is its longest time from its
        start; None if it was not measured, which gives an empty dict."""
        if longest_s is None:
            return {}
        return {"there_s": self.start_s + longest_s, "kept": self.start_s + longest_s <= self.due_s}

    def as_json(self) -> dict[str, object]:
        """Return the outcome and the calendar as JSON can hold them, in seconds, bytes and bit/s."""
        return {
            "job": self.job.name,
            "outcome": self.outcome,
            "sentence": self.sentence,
            "start_s": self.start_s,
            "due_s": self.due_s,
            "bytes": _total_bytes(self.job),
            "most": None if self.workload is not None else self.most,
            "earliest_s": self.earliest_s,
            "edges_s": self.edges_s.tolist(),
            "rates_bps": {tunnel: bps.tolist() for tunnel, bps in self.rates_bps.items()},
        }


@dataclass(frozen=True)
class AdmissionPlan:
    """The network in which transfers are admitted. The WAN cables in `dead` are down during the whole run, and the
    links `served` serve classes."""

    spec: AdmissionSpec
    fabric: FabricSpec
    conditions: ConditionsSpec
    classes: tuple[ClassSpec, ...]
    dead: Cables = NO_CABLES
    served: frozenset[int] = frozenset()

    def joins(self, job: JobSpec) -> bool:
        """Return whether a WAN path joins the sites of a transfer's ranks."""
        fabric = build_fabric(self.fabric)
        ranks = job.ranks or ()
        if not ranks or max(ranks) >= len(fabric.gpus):
            return False
        return bool(fabric.paths_between.get((fabric.gpus[ranks[0]].site, fabric.gpus[ranks[1]].site)))

    def transfers(self, jobs: Sequence[JobSpec]) -> tuple[Transfer, ...]:
        """Return the transfers among these jobs, with outcomes; raises ScheduleError for too many messages."""
        return _transfers(self, tuple(job for job in jobs if job.kind == TRANSFER))


def least_recovery_s(
    plan: AdmissionPlan,
    job: JobSpec,
    transport: Transport,
    control_s: Sequence[float] = (),
    *,
    connections: int = 1,
) -> float:
    """Return the least `recovery_s` with which a transfer is in time whenever one WAN link fails, in s (`failover`).

    Packets are lost at the transfer's highest rate on any of its tunnels, and a message of each connection at once.
    `control_s` are the one-way delays from the controller to the sites. TCP's timeout is longer than what all
    `connections` of the round may have queued ahead of a packet at each link of a tunnel.
    """
    fabric = build_fabric(plan.fabric)
    trips_s = _round_trips_s(plan, fabric, job)
    outage_s = failover.REACTION_S + 2 * max(control_s, default=0.0)
    (lowest_bps,) = _capacities(plan, fabric, job.traffic_class).bps
    link_bps = max(lowest_bps[list(links)].min() for tunnel in _tunnels_of(plan, fabric, job) for links in tunnel)
    rate_bps = min(link_bps, job.rate_bps or math.inf)
    frame_bytes, message_bytes = TCP_FRAMES.payload_bytes, _message_bytes(job)
    fastest_bps = float(ranges_bps(fabric, plan.conditions)[1].max())
    per_segment = round(segment_bytes(message_bytes=message_bytes, fastest_bps=fastest_bps) / frame_bytes)
    hops = max(len(links) for tunnel in _tunnels_of(plan, fabric, job) for links in tunnel)
    queued_bytes = connections * hops * _QUEUED_SEGMENTS * per_segment * FRAME_BYTES
    rto_min_s = max(transport.rto_min_s, _WAIT_MARGIN * 8 * queued_bytes / link_bps)
    longest_s = 0.0
    for before_s, after_s, upstream_s in trips_s:
        trips = {"before_s": before_s, "after_s": after_s, "outage_s": outage_s, "rto_min_s": rto_min_s}
        lost_s = upstream_s + (max(outage_s, after_s) if failover.stalls(**trips) else outage_s)
        lost_bytes = min(_total_bytes(job), rate_bps / 8 * lost_s + message_bytes)
        packets = math.ceil(lost_bytes / frame_bytes) + _QUEUED_SEGMENTS * per_segment
        longest_s = max(longest_s, failover.behind_s(**trips, packets=packets, per_segment=per_segment))
    return longest_s


def _round_trips_s(plan: AdmissionPlan, fabric: Fabric, job: JobSpec) -> list[tuple[float, float, float]]:
    """Return the round trips of each tunnel of a transfer before and after each failure of a WAN cable, and the
    tunnel's delay up to the failed cable, 0 if it does not pass it: in s.

    Acknowledgements take the default path back.
    """
    assert job.ranks is not None, "transfers are checked"
    src, dst = job.ranks
    links, delay_s = links_in_grain(fabric), delays_s(fabric, plan.conditions)
    backs_s = []
    for dead in (NO_CABLES, *(frozenset({one}) for one in wan_cables(fabric))):
        paths = FabricPaths(fabric, dead)
        first = paths.first(dst, src)
        index = paths.default(dst, src) if first is None else first.index
        back = links.of(np.array([dst]), np.array([src]), np.array([index]))[0]
        backs_s.append(float(delay_s[back[back >= 0]].sum()))
    trips_s, cables = [], wan_cables(fabric)
    for usual, *moved in _tunnels_of(plan, fabric, job):
        before_s = float(delay_s[list(usual)].sum()) + backs_s[0]
        for failed, links_after, back_s in zip(cables, moved, backs_s[1:], strict=True):
            reached = [cable(links.all[link].src, links.all[link].far_end) for link in usual]
            upstream = usual[: reached.index(failed)] if failed in reached else ()
            after_s = float(delay_s[list(links_after)].sum()) + back_s
            trips_s.append((before_s, after_s, float(delay_s[list(upstream)].sum())))
    return trips_s


def _total_bytes(job: JobSpec) -> int:
    """Return how many bytes a transfer sends in all."""
    if job.rate_bps is None or job.duration_s is None:
        return job.size_bytes or 0
    return max(1, round(job.rate_bps * job.duration_s / 8))


def _message_bytes(job: JobSpec) -> int:
    """Return the size of a transfer's messages in bytes; the last may be smaller."""
    size = job.chunk_bytes or max(_MIN_MESSAGE_BYTES, -(-_total_bytes(job) // _DEFAULT_MESSAGES))
    if (messages := -(-_total_bytes(job) // size)) > MAX_MESSAGES:
        raise ScheduleError(
            f"{job.name}: a transfer of {messages:,} messages; allowed: {MAX_MESSAGES:,}, so a larger chunk"
        )
    return size


@lru_cache(maxsize=64)
def _transfers(plan: AdmissionPlan, jobs: tuple[JobSpec, ...]) -> tuple[Transfer, ...]:
    if plan.fabric.routing != ADMITTING_ROUTING:
        return tuple(map(_without_admission, jobs))
    if not jobs:
        return ()
    fabric = build_fabric(plan.fabric)
    tunnels = [_tunnels_of(plan, fabric, job) for job in jobs]
    capacities = _capacities(plan, fabric, jobs[0].traffic_class)
    link_bps = capacities.bps[0]
    lags_of = _lags_of(plan, fabric, jobs, tunnels, link_bps)
    capacities = replace(capacities, bps=_CALENDAR_SHARE * capacities.bps)
    ends = np.cumsum([len(of_job) for of_job in tunnels])[:-1]

    def admit(lags_s: Floats) -> tuple[list[Decision], Calendar]:
        requests = [_request(*each) for each in zip(jobs, tunnels, np.split(lags_s, ends), strict=True)]
        return decide_all(capacities, requests, protects=plan.spec.protects)

    decisions, calendar, lags_s = _settle(admit, lags_of, lags_of(None))
    promised_lags_s = lags_s
    down = _wan_links(fabric, plan.dead)
    broken: dict[str, Decision] = {}
    if down and not plan.spec.protects:
        promised = calendar

        def admit_after_failure(lags_s: Floats) -> tuple[list[Decision], Calendar]:
            lags = zip(jobs, np.split(promised_lags_s, ends), np.split(lags_s, ends), strict=True)
            by_name = {job.name: (before_s.min(), now_s) for job, before_s, now_s in lags}
            requests = [each if each.is_rate else _with_lags(each, *by_name[each.name]) for each in promised.requests]
            return decide_after_failure(capacities, replace(promised, requests=tuple(requests)), down, at_s=-math.inf)

        later, calendar, lags_s = _settle(admit_after_failure, lags_of, lags_s)
        broken = {decision.request.name: decision for decision in later if decision.promised is None}
    index_of = {request.name: index for index, request in enumerate(calendar.requests)}
    connections = _connections(link_bps, calendar) if index_of else []
    case = 1 + capacities.failures.index(down) if down and plan.spec.protects else 0
    result = []
    before, after = np.split(promised_lags_s, ends), np.split(lags_s, ends)
    for job, of_job, as_promised_s, now_s, decision in zip(jobs, tunnels, before, after, decisions, strict=True):
        last = broken.get(job.name, decision)
        request = last.promised or last.request
        job_lags_s = now_s if job.name in broken else as_promised_s  # a promise that holds is told as it was made
        lag_s = float(job_lags_s.max() if request.is_rate else job_lags_s.min())
        edges_s, workload = np.zeros(1), None
        rates_bps: dict[str, Floats] = {}
        if (index := index_of.get(job.name)) is not None:
            number, edges_s = connections[index], calendar.edges_s
            together_bps = calendar.bps[index].sum(axis=1, keepdims=True)
            bps = together_bps * number / np.maximum(1, number.sum(axis=1, keepdims=True))
            workload = _paced(job, request.begin_s, (edges_s, bps), number, list(of_job.values()))
            rates_bps = _rates_by_name(fabric, [links[case] for links in of_job], bps)
        result.append(
            Transfer(
                job=job,
                outcome=BROKEN if job.name in broken else decision.outcome,
                start_s=request.begin_s,
                due_s=request.end_s + lag_s,
                most=last.most / (1 if request.is_rate else 8),
                earliest_s=None if last.earliest_s is None else last.earliest_s + lag_s,
                edges_s=edges_s,
                rates_bps=rates_bps,
                workload=workload,
            )
        )
    return tuple(result)


def _rates_by_name(fabric: Fabric, tunnels: Sequence[Sequence[int]], bps: Floats) -> dict[str, Floats]:
    """Return the rates of the tunnels that are used, by name; `bps` are [intervals, tunnels]."""
    rates_bps: dict[str, Floats] = {}
    for links, rate_bps in zip(tunnels, bps.T, strict=True):
        if rate_bps.any():
            name = _tunnel_name(fabric, links)
            rates_bps[name] = rates_bps.get(name, 0.0) + rate_bps
    return rates_bps


def _without_admission(job: JobSpec) -> Transfer:
    """Return a transfer that is sent as requested, all at once, over the paths of the fabric's routing."""
    size, total = _message_bytes(job), _total_bytes(job)
    messages = [(0.0, Flow(0, 1, 0), min(size, total - first)) for first in range(0, total, size)]
    return Transfer(
        job=job,
        outcome=UNADMITTED,
        start_s=job.start_s,
        due_s=job.deadline_s or 0.0,
        most=0.0,
        earliest_s=None,
        edges_s=np.zeros(1),
        rates_bps={},
        workload=replace(timed(messages, places=2, algorithm=TRANSFER), groups=()),
    )


def wan_cables(fabric: Fabric) -> list[Cable]:
    """Return the cables of the WAN; any one of them may fail."""
    ends = zip(fabric.wan.links, fabric.wan.numbers, strict=True)
    return [cable(a, end(b, number)) for (a, b), number in ends]


def _tunnels_of(plan: AdmissionPlan, fabric: Fabric, job: JobSpec) -> Tunnels:
    """Return a transfer's tunnels. A key holds the indices of the links that the tunnel passes without a failure, then
    those that it passes after each failure that promises are protected from; its value lists the channels (modulo the
    number of all channels) that take this tunnel."""
    paths = multipath(fabric)
    assert paths is not None and job.ranks is not None, "transfers are checked"
    channel = np.arange(paths.width * SUBSTITUTES)
    src, dst = (np.full(channel.size, rank) for rank in job.ranks)
    passed = []
    for dead in (NO_CABLES, *(frozenset({one}) for one in wan_cables(fabric) if plan.spec.protects)):
        links = paths.links(src, dst, paths.paths(src, dst, channel, failed_links(fabric, dead)), channel)
        passed.append([tuple(int(link) for link in row if link >= 0) for row in links])
    tunnels: Tunnels = {}
    for number, tunnel in enumerate(zip(*passed, strict=True)):
        tunnels.setdefault(tunnel, []).append(number)
    return tunnels


def _wan_links(fabric: Fabric, dead: Cables) -> frozenset[int]:
    """Return the indices of the logical links or ports that these WAN cables carry."""
    return frozenset(one.index for one in links_in_grain(fabric).all if cable(one.src, one.far_end) in dead)


def _capacities(plan: AdmissionPlan, fabric: Fabric, traffic_class: str | None) -> Capacities:
    """Return the lowest rates that the conditions allow; of links with classes only the part that the transfers' class
    gets."""
    if plan.conditions.is_recorded:
        load = plan.conditions.load
        load = None if load is None else replace(load, repeats=False)
        once = sampler(fabric, replace(plan.conditions, trace_repeat=False, load=load), seed=0)
        bps = once.rates_bps(0, once.limit or 1).min(axis=0)
    else:
        bps = ranges_bps(fabric, plan.conditions)[0].copy()
    other_shares = sum(each.share for each in plan.classes if each.name != traffic_class)
    ceiling = min((each.ceiling for each in plan.classes if each.name == traffic_class), default=1.0)
    bps[sorted(plan.served)] *= max(0.0, min(ceiling, 1.0 - other_shares))
    return Capacities(
        bps=bps[None], failures=tuple(_wan_links(fabric, frozenset({each})) for each in wan_cables(fabric))
    )


def _settle(
    admit: Callable[[Floats], tuple[list[Decision], Calendar]],
    lags_of: Callable[[Calendar | None], Floats],
    lags_s: Floats,
) -> tuple[list[Decision], Calendar, Floats]:
    """Return decisions and a calendar that are consistent with the lags of the tunnels, and these lags.

    How long a message queues depends on the calendar, and the calendar on the lags that were assumed. So the calendar
    is computed repeatedly until no tunnel needs a longer lag than was assumed; lags only grow.
    """
    while True:
        decisions, calendar = admit(lags_s)
        needed_s = lags_of(calendar)
        if (needed_s <= lags_s).all():
            return decisions, calendar, lags_s
        lags_s = np.maximum(lags_s, needed_s)


def _lags_of(
    plan: AdmissionPlan, fabric: Fabric, jobs: Sequence[JobSpec], tunnels: Sequence[Tunnels], bps: Floats
) -> Callable[[Calendar | None], Floats]:
    """Return a function from calendars to lags: how long the last byte of each tunnel may take to arrive, in s.

    A lag holds whichever link fails. It is the propagation delay and, at each link, the time of two frames and the
    difference in delay between the tunnels that reach this link, since for so long the link may carry the traffic of
    two intervals. A fair queue serves connections in turn, so every other connection that a tunnel meets may delay it
    by one frame, at the slowest link that both pass. `bps` are the rates of the links. Without a calendar the
    lags are those of tunnels that meet no other connection.
    """
    delay_s = delays_s(fabric, plan.conditions)
    served = np.isin(np.arange(len(bps)), sorted(plan.served))
    bytes_ahead = 2 * FRAME_BYTES + SHORT_SEGMENT_BYTES * served  # a port first finishes a segment of another class
    byte_s = 8 / np.maximum(bps, 1.0)
    link_s = delay_s + byte_s * bytes_ahead
    alone_s = np.array([[link_s[list(links)].sum() for links in tunnel] for of_job in tunnels for tunnel in of_job])
    ends = np.cumsum([0, *map(len, tunnels)]).tolist()
    first = {job.name: end for job, end in zip(jobs, ends, strict=False)}

    def lags_of(calendar: Calendar | None) -> Floats:
        lags_s = alone_s.copy()  # [tunnels, cases]
        if calendar is not None and calendar.requests:
            number = np.concatenate(_connections(bps, calendar), axis=1)
            number = np.maximum(number, number[[*range(1, len(number)), -1]])  # two intervals overlap at their edge
            used = np.flatnonzero(number.any(axis=0)).tolist()
            row_of = [first[request.name] + p for request in calendar.requests for p in range(len(request.tunnels))]
            for case, links_of in enumerate(_links_by_case(calendar.requests)):
                passes = _incidence(links_of, len(bps))
                apart_s = _delay_spread_s([links_of[tunnel] for tunnel in used], delay_s)
                for tunnel in used:
                    links = list(links_of[tunnel])
                    meets_s = FRAME_BYTES * (passes[:, links] * byte_s[links]).max(axis=1)
                    ahead_s = float((number @ meets_s)[number[:, tunnel] > 0].max()) + float(apart_s[links].sum())
                    at = row_of[tunnel], case
                    lags_s[at] = max(lags_s[at], alone_s[at] + ahead_s)
        by_job = np.split(lags_s.max(axis=1) + (plan.spec.recovery_s or 0.0), ends[1:-1])
        steps_s = [_LAG_STEP * _requested_s(job) for job in jobs]
        return np.concatenate([_round_up_lags(*each) for each in zip(by_job, steps_s, strict=True)])

    return lags_of


def _links_by_case(requests: Sequence[Request]) -> list[list[tuple[int, ...]]]:
    """Return the links of all tunnels of these requests: without a failure, then after each failure."""
    every = ((one.tunnels, *one.tunnels_after_failure) for one in requests)
    return [list(chain.from_iterable(of_requests)) for of_requests in zip(*every, strict=True)]


def _requested_s(job: JobSpec) -> float:
    """Return the duration that a transfer requests."""
    return job.duration_s or (job.deadline_s or 0.0) - job.start_s


def _round_up_lags(lags_s: Floats, step_s: float) -> Floats:
    """Round lags up to whole steps from the longest, because each distinct lag is an instant of the calendar."""
    longest_s: Floats = np.full_like(lags_s, lags_s.max())
    return longest_s - np.floor((longest_s - lags_s) / step_s) * step_s


def _delay_spread_s(tunnels: Sequence[Sequence[int]], delay_s: Floats) -> Floats:
    """Return, for each link, by how much the delays of these tunnels up to this link differ, [links] s."""
    soonest_s, latest_s = np.full(len(delay_s), np.inf), np.zeros(len(delay_s))
    for links in map(list, tunnels):
        reached_s = np.cumsum(delay_s[links]) - delay_s[links]
        soonest_s[links] = np.minimum(soonest_s[links], reached_s)
        latest_s[links] = np.maximum(latest_s[links], reached_s)
    return np.maximum(latest_s - soonest_s, 0.0)  # type: ignore[no-any-return]


def _incidence(tunnels: Sequence[Sequence[int]], links: int) -> npt.NDArray[np.int64]:
    """Return whether each tunnel passes each link, as 1 or 0: [tunnels, links]."""
    incidence = np.zeros((len(tunnels), links), dtype=np.int64)
    for row, passed in zip(incidence, tunnels, strict=True):
        row[list(passed)] = 1
    return incidence


def _connections(capacity_bps: Floats, calendar: Calendar) -> list[npt.NDArray[np.int64]]:
    """Return each request's number of connections in each tunnel and interval: [intervals, tunnels] per request.

    All connections have one rate, and the connections of a request together have the rate of the request. A
    connection's fair share of every link is at least its rate: where n connections pass a link, each gets at least 1/n
    of it, whatever the others do, also after a failure. The rate is the highest that the search finds, because every
    connection may delay the others by a frame. Rounding up to whole connections uses the capacity that the calendar
    leaves free.
    """
    bps = np.concatenate(
        [np.where(of_job > _RESIDUE * of_job.max(initial=0.0), of_job, 0.0) for of_job in calendar.bps], axis=1
    )
    usual, *failed = (_incidence(tunnels, len(capacity_bps)) for tunnels in _links_by_case(calendar.requests))
    # After a failure only links that new tunnels pass can be too narrow.
    loaded = [(usual, np.arange(len(capacity_bps)))]
    loaded += [(passes, np.flatnonzero((passes > usual).any(axis=0))) for passes in failed]
    passes = np.concatenate([passes[:, links] for passes, links in loaded], axis=1)
    capacity_bps = np.concatenate([capacity_bps[links] for _, links in loaded])
    ends = np.cumsum([0, *(of_job.shape[1] for of_job in calendar.bps)])
    parts = 1
    while True:
        unit_bps = bps.max() / parts  # the rate of a connection
        number = np.floor(bps / unit_bps + _ROUNDING).astype(np.int64)
        room = np.floor(capacity_bps / unit_bps * (1 + _ROUNDING)) - number @ passes
        for first, last in pairwise(ends.tolist()):
            together_bps = bps[:, first:last].sum(axis=1)
            needed = np.maximum(np.ceil(together_bps / unit_bps - _ROUNDING), together_bps > 0)
            missing = np.maximum(needed - number[:, first:last].sum(axis=1), 0).astype(int)
            for i in np.repeat(np.arange(len(bps)), missing).tolist():
                used = first + np.flatnonzero(bps[i, first:last] > 0)
                roomiest = used[np.argmax([room[i, passes[tunnel] > 0].min() for tunnel in used])]
                number[i, roomiest] += 1
                room[i] -= passes[roomiest]
        if (room >= 0).all():
            return np.split(number, ends[1:-1].tolist(), axis=1)
        parts = max(parts + 1, parts * 11 // 10)


def _with_lags(request: Request, before_s: float, lags_s: Floats) -> Request:
    """Return the request for new lags of its tunnels; `before_s` is the smallest of its previous lags."""
    least_s = float(lags_s.min())
    return replace(request.until(request.end_s + before_s - least_s), stops_early_s=tuple((lags_s - least_s).tolist()))


def _request(job: JobSpec, of_job: Tunnels, lags_s: Floats) -> Request:
    """Return a transfer's request in sending times: data of a tunnel arrives its lag, `lags_s`, later."""
    tunnels, *after_failures = zip(*of_job, strict=True)
    is_rate, lag_s = job.rate_bps is not None, float(lags_s.min())
    end_s = job.start_s + (job.duration_s or 0.0) if is_rate else (job.deadline_s or 0.0) - lag_s
    return Request(
        name=job.name,
        tunnels=tunnels,
        tunnels_after_failure=tuple(after_failures),
        amount=float(job.rate_bps or 0.0) if is_rate else 8.0 * _total_bytes(job),
        begin_s=job.start_s,
        end_s=end_s,
        is_rate=is_rate,
        latest_s=0.0 if job.latest_s is None else job.latest_s - (float(lags_s.max()) if is_rate else lag_s),
        stops_early_s=() if is_rate else tuple((lags_s - lag_s).tolist()),
    )


def _paced(
    job: JobSpec,
    begin_s: float,
    calendar: tuple[Floats, Floats],
    number: npt.NDArray[np.int64],
    taking: Sequence[Sequence[int]],
) -> Workload:
    """Return the messages of a transfer, evenly spaced on each connection within each interval.

    `calendar` holds the edges of the intervals and the rate of each tunnel in each of them, `number` the connections
    per interval and tunnel, and `taking` the channels that take each tunnel. So a message has been sent when the next
    one is handed over, and the last message of an interval at the interval's end.
    """
    (edges_s, bps), message_bytes = calendar, _message_bytes(job)
    bits = bps * np.diff(edges_s)[:, None]
    ends = np.rint(np.cumsum(bits) / bits.sum() * _total_bytes(job)).astype(int)
    sizes = np.diff(ends, prepend=0).reshape(bits.shape)
    channels: dict[tuple[int, int], int] = {}
    messages = []
    for i, tunnel in np.argwhere(sizes > 0).tolist():
        connections = int(number[i, tunnel])
        for connection in range(connections):
            size = (int(sizes[i, tunnel]) + connection) // connections
            channel = channels.setdefault((tunnel, connection), len(channels))
            for first in range(0, size, message_bytes):
                at_s = edges_s[i] + (edges_s[i + 1] - edges_s[i]) * first / size - begin_s
                messages.append((max(0.0, float(at_s)), Flow(0, 1, channel), min(message_bytes, size - first)))
    if len(messages) > MAX_MESSAGES:
        raise ScheduleError(
            f"{job.name}: a transfer of {len(messages):,} messages; allowed: {MAX_MESSAGES:,}, so a larger chunk"
        )
    workload = timed(sorted(messages, key=lambda message: message[0]), places=2, algorithm=TRANSFER)
    pinned = {channel: taking[tunnel][number % len(taking[tunnel])] for (tunnel, number), channel in channels.items()}
    flows = workload.schedule.flows
    return replace(
        workload,
        pinned_channels=tuple(pinned[flow.channel] if isinstance(flow, Flow) else -1 for flow in flows),
        groups=(),
    )


def _tunnel_name(fabric: Fabric, links: Sequence[int]) -> str:
    """Return a tunnel's name in reports: the nodes that it passes."""
    every = links_in_grain(fabric).all
    return ">".join((every[links[0]].src, *(every[link].far_end for link in links)))


def _format_time(seconds: float) -> str:
    """Format a time for a sentence."""
    rounded_s = float(f"{seconds:.6g}")  # adding and subtracting lags leaves rounding errors, as in a deadline of 1 ns
    return format_delay(rounded_s) if rounded_s >= 1e-9 else "0 s"
