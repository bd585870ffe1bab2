"""Kinds of collectives: what every place's buffer holds before and must hold after, and the algorithms of each.

A buffer of n places is cut into *blocks* of equal size, and each block into the slots that an algorithm works with:

    allgather       n blocks; place p begins with block p and ends with all
    reducescatter   n blocks; place p ends with the sum of all places' blocks p
    allreduce       every place ends with the sum of all buffers
    alltoall        2 n blocks; block q of place p goes to block n + p of place q
    broadcast       every place ends with the root's buffer
    reduce          the root ends with the sum of all buffers
    gather          n blocks; the root ends with block p of every place p
    scatter         n blocks; place p ends with block p of the root
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from hosts.collectives import algorithms
from hosts.collectives.schedule import (
    MOST_PROVEN,
    Contents,
    Schedule,
    ScheduleError,
    Transfer,
    dual,
    prove,
    sliced,
    then,
)

Sites = tuple[int, ...]

MOST_TRANSFERS = 2**21
"""Of a collective; as many take a minute and a gigabyte to be made."""

_ALLGATHERS: dict[str, Callable[[Sites, int], Schedule]] = {
    "ring": lambda sites, channels: algorithms.ring_allgather(sum(sites), channels=channels),
    "halving-doubling": lambda sites, _: algorithms.recursive_doubling(sum(sites)),
    "bruck": lambda sites, _: algorithms.bruck(sum(sites)),
    "direct": lambda sites, _: algorithms.direct_allgather(sum(sites)),
    "hierarchical": lambda sites, _: algorithms.hierarchical_allgather(sites),
    "hierarchical-direct": lambda sites, _: algorithms.hierarchical_allgather(sites, direct=True),
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
    "alltoall": ("direct",),
    "broadcast": tuple(_BROADCASTS),
    "reduce": tuple(_BROADCASTS),
    "gather": tuple(_SCATTERS),
    "scatter": tuple(_SCATTERS),
}
"""The algorithms of each kind of collective."""


def schedule(kind: str, algorithm: str, *, sites: Sites, channels: int = 1, pieces: int = 1) -> Schedule:
    """The schedule of a collective over the places of these sites, site by site; the root is place 0.

    `channels` are rings, every other one in the opposite direction; `pieces` are the messages that each slot is sent
    as. Proven before it is returned, unless it is too large (MOST_PROVEN). Raises ScheduleError where there is no such
    collective or algorithm, for channels of anything but rings, for fewer than two places, and for more than
    MOST_TRANSFERS.
    """
    if kind not in ALGORITHMS:
        raise ScheduleError(f"there is no collective {kind!r}; allowed: {', '.join(ALGORITHMS)}")
    if algorithm not in ALGORITHMS[kind]:
        raise ScheduleError(f"there is no algorithm {algorithm!r} of {kind}; allowed: {', '.join(ALGORITHMS[kind])}")
    if channels < 1 or pieces < 1 or (channels > 1 and algorithm != "ring"):
        raise ScheduleError(
            f"{algorithm} with {channels} channels and {pieces} pieces; allowed: 1 or more pieces, and 1 channel, "
            "or more with ring"
        )
    if sum(sites) < 2:
        raise ScheduleError(f"a collective among {sum(sites)} GPUs; allowed: 2 or more")
    whole = _whole(kind, algorithm, sites, channels)
    if (transfers := len(whole.transfers) * pieces) > MOST_TRANSFERS:
        raise ScheduleError(
            f"{algorithm} among {sum(sites)} GPUs with {channels} channels and {pieces:,} pieces has {transfers:,} "
            f"transfers; allowed: {MOST_TRANSFERS:,}"
        )
    found = sliced(whole, pieces)
    if len(found.transfers) <= MOST_PROVEN:
        prove(found, *contents(kind, places=found.places, slots=found.slots))
    return found


def _whole(kind: str, algorithm: str, sites: Sites, channels: int) -> Schedule:
    if kind == "alltoall":
        return algorithms.direct_alltoall(sum(sites))
    if kind in ("scatter", "gather"):
        scatter = _SCATTERS[algorithm](sites)
        return scatter if kind == "scatter" else dual(scatter, adds=False)
    if kind in ("broadcast", "reduce") or algorithm not in _ALLGATHERS:
        down = _BROADCASTS[algorithm](sites)
        if kind == "broadcast":
            return down
        return dual(down) if kind == "reduce" else then(dual(down), down)
    out = _ALLGATHERS[algorithm](sites, channels)
    if kind == "allgather":
        return out
    # Backwards in time a ring turns round; one that goes on in the same direction uses the same links throughout.
    backwards = algorithms.ring_allgather(sum(sites), channels=channels, backwards=True) if algorithm == "ring" else out
    back = dual(backwards)
    return back if kind == "reducescatter" else then(back, out)


@dataclass(frozen=True, kw_only=True)
class JobSpan:
    """One of several jobs in their common schedule: its transfers, when it begins, its places, and what each of these
    computes if it is training, as `Workload.works` of one collective after the other.

    Nobody waits for a background job.
    """

    name: str
    transfers: range
    start_s: float = 0.0
    is_background: bool = False
    places: tuple[int, ...] = ()
    works: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """A collective ready to be carried out: its schedule, the bytes of a slot, and what the slots hold before it.

    `kind` is "messages" where the content of what is sent means nothing. `is_ring`: the places are around a ring, each
    sending to the next or to the one before it alone. `is_rooted`: place 0 is rank 0.

    Of several jobs at once `kind` is "jobs" (`hosts.collectives.jobs`), and `jobs` says which transfers are whose.
    There, in training and in traces a slot has the bytes of `slot_sizes`, a transfer's amount counts bytes, as
    `slot_bytes` is 1, `contents` is what `holds` says, and `groups` are the places that may exchange their ranks; all
    others stay. `dscp` is that of the packets of each flow, none where all are alike; flows of a channel have one.
    `assured` is the part of a WAN link that its class is assured, and `wanted_bps` what it sends on average, infinite
    for all that it can.

    `works` is what each place computes in training, in order: "F2" is its part of micro-batch 2's forward.

    `ways` are those that flows are confined to where the network spreads flows over several, by the channels that take
    them (`hosts.collectives.spraying`), -1 for a flow that is spread; none where all are.

    `before_spraying` is the workload whose messages were cut into pieces to make this one, if they were.
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
    assured: tuple[float, ...] = ()
    wanted_bps: tuple[float, ...] = ()
    works: tuple[tuple[str, ...], ...] = ()
    ways: tuple[int, ...] = ()
    before_spraying: "Workload | None" = None

    @property
    def unsprayed(self) -> "Workload":
        """The workload with its messages whole."""
        return self.before_spraying or self

    def bytes_of(self, slot: int) -> int:
        """The bytes of a slot."""
        return self.slot_sizes[slot] if self.slot_sizes else self.slot_bytes

    @property
    def largest_slot_bytes(self) -> int:
        """The bytes of the largest slot."""
        return max(self.slot_sizes, default=self.slot_bytes)

    @property
    def waited_for(self) -> tuple[Transfer, ...]:
        """The transfers without which it is not over: all, or those of the jobs that are not background."""
        count = max((one.transfers.stop for one in self.jobs if not one.is_background), default=None)
        return self.schedule.transfers[:count]

    @property
    def unit_bytes(self) -> int:
        """What the bytes of a slot are a multiple of: a word where sums are made, else a byte."""
        return 4 if any(task.adds for task in self.schedule.transfers) else 1

    @property
    def largest_message_bytes(self) -> int:
        """The bytes of the largest message; paths are compared for it."""
        return max(1, round(max(task.amount for _, task in self.schedule.sends()) * self.slot_bytes))

    def owner(self, transfer: Transfer) -> int:
        """The place whose block a transfer begins with; -1 where contents mean nothing, and of one common block."""
        if self.kind in OWN_SIZES or not transfer.slots or blocks(self.kind, self.schedule.places) == 1:
            return -1
        slots = slots_in_size(self.kind, places=self.schedule.places, slots=self.schedule.slots)
        return transfer.slots[0][0] * self.schedule.places // slots % self.schedule.places

    @property
    def holds(self) -> Contents:
        """What all slots hold before it, as `contents` says; nothing where contents mean nothing."""
        places, slots = self.schedule.places, self.schedule.slots
        if self.kind == MESSAGES:
            return [[0] * slots for _ in range(places)]
        if self.contents is not None:
            return [list(slots_of_one) for slots_of_one in self.contents]
        return contents(self.kind, places=places, slots=slots, scratch=self.schedule.scratch)[0]


MESSAGES = "messages"
"""The kind of a schedule of messages whose content means nothing."""

JOBS = "jobs"
"""The kind of several jobs at once."""

TRAINING = "training"
"""The kind of a training iteration (`hosts.collectives.training`)."""

TRACE = "trace"
"""The kind of an iteration that was recorded (`hosts.collectives.chakra`)."""

OWN_SIZES = (MESSAGES, JOBS, TRAINING, TRACE)
"""The kinds whose messages have sizes of their own, and no blocks."""

ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""The kinds of which one place, 0, is the root."""


def workload(
    kind: str, algorithm: str, *, sites: Sites, size_bytes: int, channels: int = 1, pieces: int = 1
) -> Workload:
    """The collective of this size over these sites' places; arguments and errors as for `schedule`.

    `size_bytes` are as nccl-tests counts them (`slots_in_size`). A slot is rounded up to a whole byte, or to a whole
    word of 4 bytes where sums are made.
    """
    return sized(
        Workload(
            kind=kind,
            algorithm=algorithm,
            schedule=schedule(kind, algorithm, sites=sites, channels=channels, pieces=pieces),
            slot_bytes=1,
            is_ring=algorithm == "ring",
            is_rooted=kind in ROOTED,
        ),
        size_bytes,
    )


def sized(found: Workload, size_bytes: int) -> Workload:
    """The same collective with slots for a buffer of this size, rounded up to a whole byte or word."""
    schedule = found.schedule
    slots = slots_in_size(found.kind, places=schedule.places, slots=schedule.slots - schedule.scratch)
    return replace(found, slot_bytes=-(-size_bytes // (slots * found.unit_bytes)) * found.unit_bytes)


def blocks(kind: str, places: int) -> int:
    """How many blocks the size of a collective consists of."""
    return 1 if kind in ("broadcast", "reduce") else places


def slots_in_size(kind: str, *, places: int, slots: int) -> int:
    """How many slots the size of a collective is spread over, where size is counted as nccl-tests does: the whole
    buffer; of an alltoall that is what one place sends, its own block included."""
    return slots // 2 if kind == "alltoall" else slots


def contents(kind: str, *, places: int, slots: int, scratch: int = 0) -> tuple[Contents, Contents]:
    """What all slots hold before and must hold after a collective (0: anything), for `prove`; the root is place 0.

    Contribution p * slots + s is what slot s of place p holds before it; the last `scratch` slots are no part of it.
    """
    everyone, of_each, slots = range(places), slots, slots - scratch

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
            "broadcast": place == 0,
            "scatter": place == 0,
        }.get(kind, True)
        return mine(place, slot) if begins else 0

    def wanted(place: int, slot: int) -> int:
        if kind == "allgather" or (kind == "gather" and place == 0):
            return mine(block(slot), slot)
        if kind == "allreduce" or (kind == "reducescatter" and block(slot) == place) or (kind, place) == ("reduce", 0):
            return total(slot)
        if kind == "broadcast" or (kind == "scatter" and block(slot) == place):
            return mine(0, slot)
        if kind == "alltoall" and block(slot) >= places and block(slot) - places != place:
            each = slots // (2 * places)
            return mine(block(slot) - places, place * each + slot % each)
        return 0

    return (
        [[holds(place, slot) for slot in range(slots)] + [0] * scratch for place in everyone],
        [[wanted(place, slot) for slot in range(slots)] + [0] * scratch for place in everyone],
    )
