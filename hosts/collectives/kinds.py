"""Kinds of collectives: the initial and the required final contents of every place's buffer, and the algorithms.

A buffer of n places consists of *blocks* of equal size, and each block of the slots that an algorithm works with:

    allgather       n blocks; place p begins with block p and ends with all
    reducescatter   n blocks; place p ends with the sum of all places' blocks p
    allreduce       every place ends with the sum of all buffers
    alltoall        2 n blocks; block q of place p goes to block n + p of place q
    broadcast       every place ends with the root's buffer
    reduce          the root ends with the sum of all buffers
    gather          n blocks; the root ends with block p of every place p
    scatter         n blocks; place p ends with block p of the root
    sendrecv        2 buffers; place p's first one goes to the second one of place p + 1
    alltoallv       2 buffers of n (n - 1) / 2 parts; d of the parts go to the place d after it
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from hosts.collectives import algorithms
from hosts.collectives.schedule import (
    MAX_PROVEN,
    Contents,
    Flow,
    Schedule,
    ScheduleError,
    Transfer,
    dual,
    prove,
    sliced,
    then,
)

Sites = tuple[int, ...]

MAX_TRANSFERS = 2**21
"""Maximum number of transfers of a collective; to generate this many takes a minute and a gigabyte."""

SHIFTED: dict[str, Callable[[int], tuple[int, ...]]] = {
    "sendrecv": lambda places: (1,),
    "alltoallv": lambda places: tuple(away for away in range(1, places) for _ in range(away)),
}
"""The kinds in which a place sends each part of its buffer to the place at a distance of its own: the distances of the
parts, among this many places, as in nccl-tests. Their ranks keep their places, as distances are between ranks."""

MAX_SHIFTED = 64
"""Most places of an alltoallv: with these, a buffer has 2,016 parts."""


def _shifted(kind: str, sites: Sites) -> Schedule:
    if kind == "alltoallv" and sum(sites) > MAX_SHIFTED:
        raise ScheduleError(f"{kind} among {sum(sites)} GPUs; allowed: up to {MAX_SHIFTED}")
    return algorithms.shifted_blocks(sum(sites), SHIFTED[kind](sum(sites)))


_ALLGATHERS: dict[str, Callable[[Sites, int], Schedule]] = {
    "ring": lambda sites, channels: algorithms.ring_allgather(sum(sites), channels=channels),
    "halving-doubling": lambda sites, _: algorithms.recursive_doubling(sum(sites)),
    "bruck": lambda sites, _: algorithms.bruck(sum(sites)),
    "direct": lambda sites, _: algorithms.direct_allgather(sum(sites)),
    "hierarchical": lambda sites, _: algorithms.hierarchical_allgather(sites),
    "hierarchical-direct": lambda sites, _: algorithms.hierarchical_allgather(sites, direct=True),
}
_EXCHANGES: dict[str, dict[str, Callable[[Sites], Schedule]]] = {
    "alltoall": {"direct": lambda sites: algorithms.direct_alltoall(sum(sites))},
    "sendrecv": {"direct": lambda sites: _shifted("sendrecv", sites)},
    "alltoallv": {"direct": lambda sites: _shifted("alltoallv", sites)},
}
_BROADCASTS: dict[str, Callable[[Sites], Schedule]] = {
    "chain": lambda sites: algorithms.chain(sum(sites)),
    "tree": lambda sites: algorithms.binary_tree(sum(sites)),
    "double-tree": lambda sites: algorithms.double_binary_tree(sum(sites)),
    "direct": lambda sites: algorithms.direct_broadcast(sum(sites)),
    "hierarchical": algorithms.hierarchical_broadcast,
}
_SCATTERS: dict[str, Callable[[Sites], Schedule]] = {
    "tree": lambda sites: algorithms.binomial_scatter(sum(sites)),
    "direct": lambda sites: algorithms.direct_scatter(sum(sites)),
}

ALGORITHMS: dict[str, tuple[str, ...]] = {
    "allgather": tuple(_ALLGATHERS),
    "reducescatter": tuple(_ALLGATHERS),
    "allreduce": tuple(dict.fromkeys([*_ALLGATHERS, *_BROADCASTS])),
    "alltoall": tuple(_EXCHANGES["alltoall"]),
    "broadcast": tuple(_BROADCASTS),
    "reduce": tuple(_BROADCASTS),
    "gather": tuple(_SCATTERS),
    "scatter": tuple(_SCATTERS),
    "sendrecv": tuple(_EXCHANGES["sendrecv"]),
    "alltoallv": tuple(_EXCHANGES["alltoallv"]),
}
"""The algorithms of each kind of collective."""


@lru_cache(maxsize=64)  # one schedule is that of all sizes
def schedule(kind: str, algorithm: str, *, sites: Sites, channels: int = 1, pieces: int = 1) -> Schedule:
    """Return the schedule of a collective over the places of `sites` (GPUs per site, in order); the root is place 0.

    `channels` is the number of rings, with alternating directions; `pieces` is the number of messages per slot. A
    schedule of at most MAX_PROVEN transfers is proven correct before it is returned. Raises ScheduleError for an
    unknown collective or algorithm, for several channels of an algorithm other than ring, for fewer than two places,
    and for more than MAX_TRANSFERS transfers.
    """
    if kind not in ALGORITHMS:
        raise ScheduleError(f"there is no collective {kind!r}; allowed: {', '.join(ALGORITHMS)}")
    if algorithm not in ALGORITHMS[kind]:
        allowed = ", ".join(ALGORITHMS[kind])
        raise ScheduleError(f'"{algorithm}" is not an algorithm of {kind}; allowed: {allowed}')
    if channels < 1 or pieces < 1:
        raise ScheduleError(f"{channels} channels and {pieces} pieces; allowed: 1 or more of each")
    if channels > 1 and algorithm != "ring":
        raise ScheduleError(f"{channels} channels, which {algorithm} does not have; allowed: 1, or the algorithm ring")
    if sum(sites) < 2:
        raise ScheduleError(f"a collective among {sum(sites)} GPUs; allowed: 2 or more")
    whole = _whole(kind, algorithm, sites, channels)
    if (transfers := len(whole.transfers) * pieces) > MAX_TRANSFERS:
        raise ScheduleError(
            f"{algorithm} among {sum(sites)} GPUs with {channels} channels and {pieces:,} pieces has {transfers:,} "
            f"transfers; allowed: {MAX_TRANSFERS:,}"
        )
    cut = sliced(whole, pieces)
    if len(cut.transfers) <= MAX_PROVEN:
        prove(cut, *contents(kind, places=cut.places, slots=cut.slots))
    return cut


@lru_cache(maxsize=32)  # which is cut into several numbers of pieces
def _whole(kind: str, algorithm: str, sites: Sites, channels: int) -> Schedule:
    if kind in _EXCHANGES:
        return _EXCHANGES[kind][algorithm](sites)
    if kind in ("scatter", "gather"):
        scatter = _SCATTERS[algorithm](sites)
        return scatter if kind == "scatter" else dual(scatter, adds=False)
    if kind in ("broadcast", "reduce") or algorithm not in _ALLGATHERS:
        broadcast = _BROADCASTS[algorithm](sites)
        if kind == "broadcast":
            return broadcast
        return dual(broadcast) if kind == "reduce" else then(dual(broadcast), broadcast)
    allgather = to_reverse = _ALLGATHERS[algorithm](sites, channels)
    if kind == "allgather":
        return allgather
    if algorithm == "ring":  # time reversal turns a ring around: a backwards one keeps the links of the AllGather
        to_reverse = algorithms.ring_allgather(sum(sites), channels=channels, backwards=True)
    reducescatter = dual(to_reverse)
    return reducescatter if kind == "reducescatter" else then(reducescatter, allgather)


@dataclass(frozen=True, kw_only=True)
class FirstTokens:
    """What a job of requests measures: the time from the arrival of a request to its first token, of which `percentile`
    is the job's time.

    For each request there is its arrival, when its cache is there, infinity if it is sent, and how many tokens it gets.
    `caches` has the transfer that brings each cache that is sent, counted from the job's first, with the number of its
    request. A token is decoded in `token_s`, in one of `slots`; None: there is always one. Times are in s from the
    job's start.
    """

    percentile: float
    token_s: float
    slots: int | None
    arrivals_s: tuple[float, ...]
    there_s: tuple[float, ...]
    output_tokens: tuple[int, ...]
    caches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class JobSpan:
    """One of several jobs in their common schedule: its transfers, its start, its places and its computations.

    `computations` has the `Workload.computations` of a training job, repeated for each of its collectives. A round does
    not wait for a background job. A job with `first_tokens` has these times in place of its completion. `collectives`
    are the transfers of each of its collectives, and `due_s` when each is due, in s from the job's start: the mean of
    their times from then on is the job's. It is empty if they run back to back.
    """

    name: str
    transfers: range
    start_s: float = 0.0
    is_background: bool = False
    places: tuple[int, ...] = ()
    computations: tuple[tuple[str, ...], ...] = ()
    first_tokens: FirstTokens | None = None
    collectives: tuple[range, ...] = ()
    due_s: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """A collective ready to be executed: its schedule, the bytes of a slot, and the initial contents of the slots.

    `kind` is "messages" if messages have sizes but no contents. `is_ring`: the places form a ring, and on each channel
    all send to the next place or all to the previous one. `is_rooted`: place 0 is rank 0.

    For several simultaneous jobs `kind` is "jobs" (`hosts.collectives.jobs`), and `jobs` has the transfers of each. For
    jobs, training and traces, slots have the bytes of `slot_sizes`; `slot_bytes` is 1, so that a transfer's amount
    counts bytes; `contents` are the initial contents (`initial_contents`); and `groups` are the places that may
    exchange their ranks, while all other places keep theirs. `dscp`, `guaranteed_share` and `demand_bps` have a value
    for each flow: the DSCP of its packets (empty if none has one; flows of one channel have one DSCP), the fraction of
    a WAN link that is guaranteed to its class, and its mean demand, infinite if it takes any rate.

    `computations` has the computations of each place in training, in order: "F2" is its part of micro-batch 2's
    forward.

    Where the network chooses the path of a flow by its channel (`hosts.collectives.spraying`), `pinned_channels`
    confines flows to paths: for each flow a channel whose path it must take, or -1 for a flow to be spread. It is empty
    if no flow is confined.

    `before_spraying` is the workload from which spraying made this one, if it did.
    """

    kind: str
    algorithm: str
    schedule: Schedule
    slot_bytes: int
    is_ring: bool = False
    is_rooted: bool = False
    slot_sizes: tuple[int, ...] = ()
    contents: Contents | None = None
    groups: tuple[tuple[int, ...], ...] | None = None
    jobs: tuple[JobSpan, ...] = ()
    dscp: tuple[int, ...] = ()
    guaranteed_share: tuple[float, ...] = ()
    demand_bps: tuple[float, ...] = ()
    computations: tuple[tuple[str, ...], ...] = ()
    pinned_channels: tuple[int, ...] = ()
    before_spraying: "Workload | None" = None

    @property
    def unsprayed(self) -> "Workload":
        """The workload before spraying, with whole messages."""
        return self.before_spraying or self

    def bytes_of(self, slot: int) -> int:
        """Return the bytes of a slot."""
        return self.slot_sizes[slot] if self.slot_sizes else self.slot_bytes

    @property
    def largest_slot_bytes(self) -> int:
        """The bytes of the largest slot."""
        return max(self.slot_sizes, default=self.slot_bytes)

    @property
    def foreground_transfers(self) -> tuple[Transfer, ...]:
        """The transfers that end the collective: all, or those of the jobs that are not background."""
        count = max((job.transfers.stop for job in self.jobs if not job.is_background), default=None)
        return self.schedule.transfers[:count]

    @property
    def unit_bytes(self) -> int:
        """The granularity of slot sizes in bytes: a 4-byte word if sums are computed, and otherwise a byte."""
        return 4 if any(task.adds for task in self.schedule.transfers) else 1

    @property
    def largest_message_bytes(self) -> int:
        """The bytes of the largest message, for which paths are compared; background traffic does not count."""
        flows = self.schedule.flows
        sent = [one.amount for one in self.foreground_transfers if isinstance(flows[one.flow], Flow)]
        return max(1, round(max(sent, default=0) * self.slot_bytes))  # a round of requests may send none

    def owner(self, transfer: Transfer) -> int:
        """Return the place whose block is first in a transfer; -1 if messages have no blocks or all the same one."""
        if (
            self.kind in (*SELF_SIZED_KINDS, *SHIFTED)
            or not transfer.slots
            or blocks(self.kind, self.schedule.places) == 1
        ):
            return -1
        slots = slots_in_size(self.kind, places=self.schedule.places, slots=self.schedule.slots)
        return transfer.slots[0][0] * self.schedule.places // slots % self.schedule.places

    @property
    def initial_contents(self) -> Contents:
        """The initial contents of all slots: `contents`, or those of the kind; all 0 for messages without contents."""
        places, slots = self.schedule.places, self.schedule.slots
        if self.kind == MESSAGES:
            return [[0] * slots for _ in range(places)]
        if self.contents is not None:
            return [list(slots_of_one) for slots_of_one in self.contents]
        return contents(self.kind, places=places, slots=slots, scratch=self.schedule.scratch)[0]


MESSAGES = "messages"
"""The kind of a schedule of messages that have sizes but no contents."""

JOBS = "jobs"
"""The kind of several simultaneous jobs."""

TRAINING = "training"
"""The kind of a training iteration (`hosts.collectives.training`)."""

TRACE = "trace"
"""The kind of a recorded iteration (`hosts.collectives.chakra`)."""

SELF_SIZED_KINDS = (MESSAGES, JOBS, TRAINING, TRACE)
"""The kinds whose messages have individual sizes and no blocks."""

ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""The kinds with a root, which is place 0."""


def workload(
    kind: str, algorithm: str, *, sites: Sites, size_bytes: int, channels: int = 1, pieces: int = 1
) -> Workload:
    """Return the collective of this size over these sites' places; other arguments and errors as for `schedule`.

    `size_bytes` is the size as nccl-tests counts it (`slots_in_size`). A slot is rounded up to a whole byte, or to a
    whole word of 4 bytes if sums are computed.
    """
    return sized(
        Workload(
            kind=kind,
            algorithm=algorithm,
            schedule=schedule(kind, algorithm, sites=sites, channels=channels, pieces=pieces),
            slot_bytes=1,
            is_ring=algorithm == "ring",
            is_rooted=kind in ROOTED,
            groups=() if kind in SHIFTED else None,
        ),
        size_bytes,
    )


def sized(unsized: Workload, size_bytes: int) -> Workload:
    """Return the same collective with slots for a buffer of this size, rounded up to a whole byte or word."""
    schedule = unsized.schedule
    slots = slots_in_size(unsized.kind, places=schedule.places, slots=schedule.slots - schedule.scratch)
    return replace(unsized, slot_bytes=-(-size_bytes // (slots * unsized.unit_bytes)) * unsized.unit_bytes)


def blocks(kind: str, places: int) -> int:
    """Return the number of blocks in the size of a collective."""
    return 1 if kind in ("broadcast", "reduce", "sendrecv") else places


def slots_in_size(kind: str, *, places: int, slots: int) -> int:
    """Return the number of slots in the size of a collective, as nccl-tests counts it: the whole buffer or, for an
    alltoall or alltoallv, what one place sends, the block for itself included if there is one."""
    return slots // 2 if kind == "alltoall" or kind in SHIFTED else slots


def contents(kind: str, *, places: int, slots: int, scratch: int = 0) -> tuple[Contents, Contents]:
    """Return the initial and the required final contents of all slots, for `prove`; the root is place 0.

    Contribution p * slots + s, without scratch slots, is the initial content of slot s of place p. A required content
    of 0 means any. The last `scratch` slots are not part of the collective.
    """
    everyone, of_each, slots = range(places), slots, slots - scratch

    @cache  # a contribution has as many bits as there are contributions, and for each of them a place that wants it
    def mine(place: int, slot: int) -> int:
        return 1 << (place * of_each + slot)

    @cache
    def total(slot: int) -> int:
        return sum(mine(place, slot) for place in everyone)

    def block(slot: int) -> int:
        return slot * (2 * places if kind == "alltoall" else places) // slots

    def holds(place: int, slot: int) -> int:
        begins = {
            "allgather": block(slot) == place,
            "gather": block(slot) == place,
            "alltoall": block(slot) < places,
            "sendrecv": slot < slots // 2,
            "alltoallv": slot < slots // 2,
            "broadcast": place == 0,
            "scatter": place == 0,
        }.get(kind, True)
        return mine(place, slot) if begins else 0

    def received(place: int, slot: int) -> int:
        """Return the required content of an alltoall: block n + p is place p's block for this place."""
        src, slots_per_block = block(slot) - places, slots // (2 * places)
        return mine(src, place * slots_per_block + slot % slots_per_block) if src >= 0 and src != place else 0

    distances = SHIFTED[kind](places) if kind in SHIFTED else ()

    def shifted(place: int, slot: int) -> int:
        """Return the required content of the second half: the same slot of the first, of the place that sends it."""
        sent = slot - slots // 2
        return mine((place - distances[sent * 2 * len(distances) // slots]) % places, sent) if sent >= 0 else 0

    wanted: Callable[[int, int], int] = {
        "allgather": lambda place, slot: mine(block(slot), slot),
        "gather": lambda place, slot: mine(block(slot), slot) if place == 0 else 0,
        "reducescatter": lambda place, slot: total(slot) if block(slot) == place else 0,
        "allreduce": lambda place, slot: total(slot),
        "reduce": lambda place, slot: total(slot) if place == 0 else 0,
        "broadcast": lambda place, slot: mine(0, slot),
        "scatter": lambda place, slot: mine(0, slot) if block(slot) == place else 0,
        "alltoall": received,
        "sendrecv": shifted,
        "alltoallv": shifted,
    }[kind]
    return (
        [[holds(place, slot) for slot in range(slots)] + [0] * scratch for place in everyone],
        [[wanted(place, slot) for slot in range(slots)] + [0] * scratch for place in everyone],
    )
