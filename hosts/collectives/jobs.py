"""Combines several simultaneous jobs into one workload, the union of their schedules; jobs may share GPUs.

Jobs share only links: even between the same two GPUs they use different connections, and their slots and computation
streams are separate. A place has gates for each of its jobs: computations on a separate stream. The first gate lasts
until the job's start; each later gate has length zero and separates two collectives of the job. A place's first message
on each connection waits for the gate. So a place begins a collective once it has received the whole previous one. If a
job repeats by time, its places have a clock, too: computations one after the other, of which each ends when a
collective is due, and for which its gate waits as well.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from hosts.collectives.kinds import JOBS, FirstTokens, JobSpan, Workload
from hosts.collectives.schedule import Contents, Flow, Schedule, ScheduleError, Stream, Transfer

MAX_TRANSFERS = 200_000
MAX_SLOTS = 2**15
"""Maximum number of slots of all places together. The contents of a slot are a set with a bit for each of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A collective that runs `count` times from `start_s` after the start of the round: back to back, or if `every_s`
    is given once in this time, or as soon as the previous one has ended if that is later.

    Place i of the job's workload is `places[i]` of the union. A round does not wait for a background job, and the
    places of a background job keep their ranks. The job's packets carry `dscp`, and their class is guaranteed the
    fraction `guaranteed_share` of a WAN link. `demand_bps` is the rate that each of its flows wants, if it is limited.
    `first_tokens` counts transfers of `workload`.
    """

    name: str
    workload: Workload
    places: tuple[int, ...]
    start_s: float = 0.0
    count: int = 1
    every_s: float | None = None
    is_background: bool = False
    dscp: int = 0
    guaranteed_share: float = 0.0
    demand_bps: float = math.inf
    first_tokens: FirstTokens | None = None


def combine(jobs: Sequence[Job], sites: Sequence[int]) -> Workload:
    """Return the union of `jobs` over the places of `sites` (GPUs per site); `Workload.jobs` is in the order of `jobs`.

    The unit of its schedule is the byte. If any job computes sums, all slots are rounded up to whole words. Raises
    ScheduleError if a job's places do not exist or differ in number from its workload's,
    for a start that is negative or not finite, for a count below 1, and for too many transfers or slots.
    """
    places = sum(sites)
    for job in jobs:
        _check(job, places)
    gates = [len(job.places) * (1 if job.every_s is None else 2) for job in jobs]
    transfers = sum(
        (len(job.workload.schedule.transfers) + of_job) * job.count for job, of_job in zip(jobs, gates, strict=True)
    )
    slots = sum(job.workload.schedule.slots * job.count for job in jobs) * places
    if transfers > MAX_TRANSFERS or slots > MAX_SLOTS:
        raise ScheduleError(
            f"the jobs have {transfers:,} transfers and {slots:,} slots of all GPUs together; allowed: "
            f"{MAX_TRANSFERS:,} and {MAX_SLOTS:,}"
        )
    union = _Union(places, word=max(job.workload.unit_bytes for job in jobs))
    spans = {}
    # Background jobs come last, so that the other jobs' transfers and flows are a prefix of all.
    for index in sorted(range(len(jobs)), key=lambda index: jobs[index].is_background):
        spans[index] = union.add(jobs[index])
    return Workload(
        kind=JOBS,
        algorithm=", ".join(job.name for job in jobs),
        schedule=union.schedule(),
        slot_bytes=1,
        slot_sizes=tuple(union.slot_sizes),
        contents=union.contents(),
        groups=_groups(jobs, sites),
        dscp=tuple(union.dscp),
        pinned_channels=union.pinned_channels(),
        guaranteed_share=tuple(union.guaranteed_share),
        demand_bps=tuple(union.demand_bps),
        jobs=tuple(spans[index] for index in range(len(jobs))),
    )


def _check(job: Job, places: int) -> None:
    expected = job.workload.schedule.places
    if not len(job.places) == len(set(job.places)) == expected or not set(job.places) <= set(range(places)):
        raise ScheduleError(
            f"{job.name} is at the places {list(job.places)}; allowed: {expected} of 0 to {places - 1}, each once"
        )
    if not 0 <= job.start_s < math.inf or job.count < 1:
        raise ScheduleError(
            f"{job.name} begins at {job.start_s:g} s, {job.count} times; allowed: 0 s or later, and once or more"
        )
    if job.every_s is not None and not 0 < job.every_s < math.inf:
        raise ScheduleError(f"{job.name} repeats every {job.every_s:g} s; allowed: more than 0 s")


def _behind(tokens: FirstTokens, gates: int) -> FirstTokens:
    """Return what a job measures if it has this many transfers before those of its workload."""
    return replace(tokens, caches=tuple((gates + transfer, request) for transfer, request in tokens.caches))


def _groups(jobs: Sequence[Job], sites: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return groups of places that may exchange their ranks: same site, same jobs, and the same role in each job."""
    places_by_role: dict[tuple[object, ...], list[int]] = {}
    for place, site in enumerate(site for site, gpus in enumerate(sites) for _ in range(gpus)):
        own_jobs = {index: job for index, job in enumerate(jobs) if place in job.places}
        roots = [job.places[0] for job in own_jobs.values() if job.workload.is_rooted]
        if place not in roots and not any(job.is_background for job in own_jobs.values()):
            roles = [_role(job, place) for job in own_jobs.values()]
            places_by_role.setdefault((site, *own_jobs, *roles), []).append(place)
    return tuple(map(tuple, places_by_role.values()))


def _role(job: Job, place: int) -> int:
    """Return the role of a place in a job, as a number; places with the same role are interchangeable."""
    groups, index = job.workload.groups, job.places.index(place)
    if groups is None:
        return 0
    return next((role for role, group in enumerate(groups, 1) if index in group), -1 - index)


class _Union:
    """The union under construction. `slot_sizes` has the bytes of each slot; `dscp`, `guaranteed_share` and
    `demand_bps` have a value for each flow."""

    def __init__(self, places: int, *, word: int) -> None:
        self._places, self._word = places, word
        self._flows: dict[Flow | Stream, int] = {}
        self._transfers: list[Transfer] = []
        self._channels = self._streams = 0  # numbers already in use
        self._holds: list[tuple[Contents, tuple[int, ...], int]] = []
        self._pinned_channels: dict[int, int] = {}  # `Workload.pinned_channels` of each flow that is confined to a path
        self.notes: dict[str, None] = {}  # of the schedules, in order
        self.slot_sizes: list[int] = []
        self.dscp: list[int] = []
        self.guaranteed_share: list[float] = []
        self.demand_bps: list[float] = []

    def add(self, job: Job) -> JobSpan:
        """Add a job's collectives; return the span of its transfers."""
        first, gates, arrived = len(self._transfers), dict[int, int](), dict[int, Collection[int]]()
        clock, collectives = self._streams, list[range]()
        self._streams += job.every_s is not None  # a clock's stream is before those of gates and of computations
        if job.start_s:
            gates = {place: self._gate(place, job.start_s) for place in job.places}
        gated = len(self._transfers) - first
        for repetition in range(job.count):
            if repetition:
                due = self._due(job, repetition, clock)
                gates = {place: self._gate(place, 0.0, (*arrived[place], *due.get(place, ()))) for place in job.places}
            begun = len(self._transfers)
            arrived = self._collective(job, gates)
            collectives.append(range(begun, len(self._transfers)))
        self.notes |= dict.fromkeys(job.workload.schedule.notes)
        flows = job.workload.schedule.flows
        self._channels += 1 + max(flow.channel if isinstance(flow, Flow) else 0 for flow in flows)
        self._streams += 2 + max(flow.number if isinstance(flow, Stream) else 0 for flow in flows)
        new_flows = range(len(self.dscp), len(self._flows))
        self.dscp += [job.dscp] * len(new_flows)
        self.guaranteed_share += [job.guaranteed_share] * len(new_flows)
        self.demand_bps += [job.demand_bps] * len(new_flows)
        return JobSpan(
            name=job.name,
            transfers=range(first, len(self._transfers)),
            start_s=job.start_s,
            is_background=job.is_background,
            places=job.places,
            computations=tuple(works * job.count for works in job.workload.computations),
            first_tokens=job.first_tokens and _behind(job.first_tokens, gated),
            collectives=tuple(collectives),
            due_s=() if job.every_s is None else tuple(at * job.every_s for at in range(job.count)),
        )

    def _due(self, job: Job, repetition: int, clock: int) -> dict[int, tuple[int]]:
        """Add the time until a job's collective is due to the clock of each of its places; return what it waits for by
        place, nothing if it runs back to back."""
        if job.every_s is None:
            return {}
        seconds = job.every_s + (job.start_s if repetition == 1 else 0.0)
        return {place: (self._gate(place, seconds, number=clock),) for place in job.places}

    def _gate(self, place: int, seconds: float, after: Collection[int] = (), number: int | None = None) -> int:
        """Add a computation to a place's stream of gates, or to that of this number; return its transfer."""
        stream = self._flow(Stream(place, self._streams if number is None else number))
        self._transfers.append(Transfer(flow=stream, size=seconds, after=tuple(sorted(after))))
        return len(self._transfers) - 1

    def _flow(self, flow: Flow | Stream) -> int:
        return self._flows.setdefault(flow, len(self._flows))

    def _collective(self, job: Job, gates: dict[int, int]) -> dict[int, Collection[int]]:
        """Add one collective that waits for `gates` (by place); return the last task of each flow by its end place."""
        workload, first, slot = job.workload, len(self._transfers), len(self.slot_sizes)
        schedule, at = workload.schedule, job.places
        begins, ends = schedule.ends
        flows = [
            self._flow(
                Flow(at[flow.src], at[flow.dst], self._channels + flow.channel)
                if isinstance(flow, Flow)
                else Stream(at[flow.place], self._streams + 1 + flow.number)
            )
            for flow in schedule.flows
        ]
        self._pinned_channels |= {
            flow: pin for flow, pin in zip(flows, workload.pinned_channels, strict=False) if pin >= 0
        }
        slot_sizes = [self._whole(workload.bytes_of(index)) for index in range(schedule.slots)]
        begun_flows: set[int] = set()
        last_tasks: dict[int, dict[int, int]] = {place: {} for place in at}
        for index, transfer in enumerate(schedule.transfers):
            after = [first + other for other in transfer.after]
            if transfer.flow not in begun_flows and at[begins[transfer.flow]] in gates:
                after.append(gates[at[begins[transfer.flow]]])
            begun_flows.add(transfer.flow)
            size = transfer.size
            if transfer.slots:
                size = sum(slot_sizes[there] for there, _ in transfer.slots)
            elif isinstance(schedule.flows[transfer.flow], Flow):
                size = self._whole(transfer.size * workload.slot_bytes)
            last_tasks[at[ends[transfer.flow]]][transfer.flow] = first + index
            slots = tuple((slot + here, slot + there) for here, there in transfer.slots)
            self._transfers.append(
                replace(transfer, flow=flows[transfer.flow], slots=slots, after=tuple(sorted(after)), size=size)
            )
        self.slot_sizes += slot_sizes
        self._holds.append((workload.initial_contents, at, slot))
        return {place: tasks.values() for place, tasks in last_tasks.items()}

    def _whole(self, size_bytes: float) -> int:
        """Round a size up to whole words."""
        return -(-round(size_bytes) // self._word) * self._word

    def schedule(self) -> Schedule:
        """Return the schedule of all jobs."""
        return Schedule(
            places=self._places,
            slots=len(self.slot_sizes),
            flows=tuple(self._flows),
            transfers=tuple(self._transfers),
            notes=tuple(self.notes),
        )

    def pinned_channels(self) -> tuple[int, ...]:
        """Return `Workload.pinned_channels` of all flows: -1 for a flow that is not confined; empty if none is."""
        return (
            tuple(self._pinned_channels.get(index, -1) for index in range(len(self._flows)))
            if self._pinned_channels
            else ()
        )

    def contents(self) -> Contents:
        """Return the initial contents of all slots, which are those of each collective's workload."""
        slots = len(self.slot_sizes)
        contents = [[0] * slots for _ in range(self._places)]
        for holds, at, slot in self._holds:
            for place, initial in zip(at, holds, strict=True):
                contents[place][slot : slot + len(initial)] = [
                    1 << (place * slots + slot + here) if content else 0 for here, content in enumerate(initial)
                ]
        return contents
