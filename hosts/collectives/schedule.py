"""Schedules: the transfers between GPUs, their dependencies, and a proof of what they deliver.

A schedule is a list of transfers on *flows*, each one TCP connection between two GPUs, which delivers in order. A flow
serves its transfers in program order, one at a time. A transfer begins when all transfers on which it depends have
arrived and the previous one on its flow has left. This is the form of GOAL (Hoefler et al., "Group Operation Assembly
Language", ICPP 2009); in addition, a transfer names the slots of the sender's buffer and those of the receiver's.

A schedule is written in terms of *places* 0 .. n-1; an embedding assigns a rank to each place.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

MAX_PROVEN = 40_000
"""The number of transfers up to which a schedule is proven when it is generated: memory of a proof grows quadratically.

Larger schedules come from the same generators, which tests prove for many numbers of GPUs, and agents verify every
byte.
"""


class ScheduleError(ValueError):
    """Raised for an invalid schedule; the message is one sentence with the place, slot and task at fault."""


@dataclass(frozen=True, order=True)
class Flow:
    """A connection from one place to another; each channel is a separate connection between the same two places."""

    src: int
    dst: int
    channel: int = 0


@dataclass(frozen=True, order=True)
class Stream:
    """A processor of a place, which runs one computation at a time."""

    place: int
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One message: `flow` is an index in `Schedule.flows`, `slots` are pairs (sender's slot, receiver's slot).

    With `adds` the receiver adds the message to its slots; otherwise it overwrites them. `after` are indices of earlier
    transfers, which must have arrived at the sender before this one begins. Without slots the transfer is a message of
    `size` slots without contents or, on a stream, a computation of `size` seconds. If slots differ in size, `size` is
    their total in the schedule's unit; it is 0 if each slot is one unit.
    """

    flow: int
    slots: tuple[tuple[int, int], ...] = ()
    adds: bool = False
    after: tuple[int, ...] = ()
    size: float = 0.0

    @property
    def amount(self) -> float:
        """The work for its flow or stream: slots, or seconds."""
        return self.size or len(self.slots)


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Transfers in program order, each after the transfers on which it depends; a place's buffer has `slots` slots.

    The last `scratch` slots are not part of the collective's buffer: they are empty before it, and hold anything after.
    `notes` are sentences on what was left out or changed when it was read from a file, each with the file's name.
    """

    places: int
    slots: int
    flows: tuple[Flow | Stream, ...]
    transfers: tuple[Transfer, ...]
    scratch: int = 0
    notes: tuple[str, ...] = ()

    @cached_property
    def ends(self) -> tuple[list[int], list[int]]:
        """The source place of each flow, and its destination place; for a stream both are its place."""
        pairs = [(flow.src, flow.dst) if isinstance(flow, Flow) else (flow.place, flow.place) for flow in self.flows]
        begins, ends = zip(*pairs, strict=True)
        return list(begins), list(ends)

    @property
    def turns_both_ways(self) -> bool:
        """Whether any two places send to each other."""
        pairs = {*zip(*self.ends, strict=True)}
        return any(a != b and (b, a) in pairs for a, b in pairs)

    def sends(self) -> Iterator[tuple[Flow, Transfer]]:
        """Yield the messages in program order, each with its flow, without the computations."""
        for transfer in self.transfers:
            flow = self.flows[transfer.flow]
            if isinstance(flow, Flow):
                yield flow, transfer


class Builder:
    """Builds a schedule from sends in program order; dependencies are derived from the slots that a message sends.

    Example: a broadcast along a chain of three places::

        builder = Builder(places=3, slots=1)
        builder.send(0, 1, [0])
        builder.send(1, 2, [0])  # depends on the first message, which wrote slot 0 of place 1
        schedule = builder.done()
    """

    def __init__(self, *, places: int, slots: int) -> None:
        self._places, self._slots = places, slots
        self._flows: dict[Flow, int] = {}
        self._transfers: list[Transfer] = []
        self._order = _Order()
        self._reduced: dict[frozenset[int], tuple[int, ...]] = {}
        self._writers: dict[tuple[int, int], tuple[int, ...]] = {}

    def send(
        self, src: int, dst: int, slots: Iterable[int | tuple[int, int]], *, adds: bool = False, channel: int = 0
    ) -> None:
        """Send these slots as one message; a pair is (sender's slot, receiver's slot)."""
        slot_pairs = tuple(slot if isinstance(slot, tuple) else (slot, slot) for slot in slots)
        writers = frozenset(writer for slot, _ in slot_pairs for writer in self._writers.get((src, slot), ()))
        flow = self._flows.setdefault(Flow(src, dst, channel), len(self._flows))
        self._transfers.append(Transfer(flow=flow, slots=slot_pairs, adds=adds, after=self._last_of(writers)))
        index = len(self._transfers) - 1
        for _, slot in slot_pairs:
            self._writers[dst, slot] = (*(self._writers.get((dst, slot), ()) if adds else ()), index)

    def _last_of(self, writers: frozenset[int]) -> tuple[int, ...]:
        """Return those of `writers`, in order, that no other one implies."""
        if len(writers) < 2:
            return tuple(writers)
        if writers not in self._reduced:  # a sum of many is often sent to many
            implied = {early for early in writers if any(self._follows(late, early) for late in writers)}
            self._reduced[writers] = tuple(sorted(writers - implied))
        return self._reduced[writers]

    def _follows(self, late: int, early: int) -> bool:
        for transfer in self._transfers[self._order.count :]:
            self._order.append(transfer.flow, transfer.after)
        return self._order.follows(late, early)

    def done(self) -> Schedule:
        """Return the schedule; raises ScheduleError, as `final_contents` does, if its outcome depends on the network.

        A schedule of more than MAX_PROVEN transfers is not checked.
        """
        schedule = Schedule(
            places=self._places, slots=self._slots, flows=tuple(self._flows), transfers=tuple(self._transfers)
        )
        if len(schedule.transfers) <= MAX_PROVEN:
            final_contents(schedule, [[0] * self._slots for _ in range(self._places)])
        return schedule


class _Order:
    """The partial order of transfers: those that precede each transfer under any timing of the network."""

    def __init__(self) -> None:
        self._earlier: list[int] = []  # per task, as bits: all other tasks that have arrived when it arrives
        self._last: dict[int, int] = {}  # the last task of each flow

    @property
    def count(self) -> int:
        """The number of transfers."""
        return len(self._earlier)

    def append(self, flow: int, after: Iterable[int]) -> None:
        """Add the next transfer."""
        previous = [self._last[flow]] if flow in self._last else []
        self._earlier.append(self.closure([*after, *previous]))
        self._last[flow] = len(self._earlier) - 1

    def closure(self, tasks: Iterable[int]) -> int:
        """Return, as bits, `tasks` and all tasks that have arrived when these have."""
        bits = 0
        for task in tasks:
            bits |= self._earlier[task] | 1 << task
        return bits

    def before(self, task: int) -> int:
        """Return, as bits, all tasks that `task` follows, as in `follows`."""
        return self._earlier[task]

    def follows(self, late: int, early: int) -> bool:
        """Return whether `early` has always left its sender, and arrived if both have the same receiver, before `late`
        arrives."""
        return bool(self._earlier[late] >> early & 1)


Contents = list[list[int]]
"""The contents of every place's slots, `[places][slots]`: a set of contributions as bits of an integer, 0 if empty."""


def own_contributions(held: Sequence[Collection[int]], slots: int) -> Contents:
    """Return contents in which each place p has a contribution of its own in every slot in `held[p]`."""
    return [
        [1 << (place * slots + slot) if slot in held_here else 0 for slot in range(slots)]
        for place, held_here in enumerate(held)
    ]


def final_contents(schedule: Schedule, holds: Contents) -> Contents:
    """Return the contents of all slots at the end of a schedule, given those at its beginning.

    Raises ScheduleError if the outcome depends on the network's timing (a slot may be sent before it has been written,
    written while it is still being sent, or overwritten and added to in either order), if a contribution is added to a
    slot that has it already, and if a transfer names a place, a slot or a transfer that does not exist.
    """
    now = [list(slots) for slots in holds]
    order = _Order()
    # By (place, slot), sets of transfers as bits:
    writers: dict[tuple[int, int], int] = {}  # the last copy and the adds after it
    copied: dict[tuple[int, int], int] = {}  # the index of the last copy
    readers: dict[tuple[int, int], int] = {}  # the sends after the last copy
    arrived_by: dict[int, int] = {}  # per flow, as bits: the transfers that have arrived when its last one begins
    for index, transfer in enumerate(schedule.transfers):
        _check_indices(schedule, index, transfer)
        order.append(transfer.flow, transfer.after)
        # A transfer begins after everything for which the earlier ones on its flow have waited.
        arrived = arrived_by[transfer.flow] = arrived_by.get(transfer.flow, 0) | order.closure(transfer.after)
        if not transfer.slots:
            continue
        flow = schedule.flows[transfer.flow]
        assert isinstance(flow, Flow)
        src, dst = flow.src, flow.dst
        for slot, _ in transfer.slots:
            if late := writers.get((src, slot), 0) & ~arrived:
                raise ScheduleError(
                    f"transfer {index} sends slot {slot} of place {src} without waiting for transfer {_first(late)}, "
                    "which writes it"
                )
            readers[src, slot] = readers.get((src, slot), 0) | 1 << index
        arriving = [now[src][slot] for slot, _ in transfer.slots]
        for (_, slot), content in zip(transfer.slots, arriving, strict=True):
            target = (dst, slot)
            if late := readers.get(target, 0) & ~order.before(index):
                raise ScheduleError(
                    f"transfer {index} writes slot {slot} of place {dst} while transfer {_first(late)} may still send "
                    "it"
                )
            if transfer.adds:
                if target in copied:
                    _check_order(1 << copied[target] & ~order.before(index), index, target)
                if now[dst][slot] & content:
                    raise ScheduleError(
                        f"transfer {index} adds to slot {slot} of place {dst} a contribution that it has already"
                    )
                now[dst][slot] |= content
                writers[target] = writers.get(target, 0) | 1 << index
                continue
            _check_order(writers.get(target, 0) & ~order.before(index), index, target)
            now[dst][slot] = content
            writers[target], copied[target], readers[target] = 1 << index, index, 0
    return now


def _check_order(unordered: int, index: int, where: tuple[int, int]) -> None:
    if unordered:
        raise ScheduleError(
            f"transfers {_first(unordered)} and {index} write slot {where[1]} of place {where[0]} in no fixed order"
        )


def _first(bits: int) -> int:
    """Return the index of the lowest set bit."""
    return (bits & -bits).bit_length() - 1


def prove(schedule: Schedule, holds: Contents, wanted: Contents) -> None:
    """Raise ScheduleError unless the final contents of every slot are those in `wanted` (0: any)."""
    for place, (final, required) in enumerate(zip(final_contents(schedule, holds), wanted, strict=True)):
        for slot, (content, expected) in enumerate(zip(final, required, strict=True)):
            if expected and content != expected:
                raise ScheduleError(
                    f"slot {slot} of place {place} ends with {content.bit_count()} contributions, which are not the "
                    f"{expected.bit_count()} required ones"
                )


def _check_indices(schedule: Schedule, index: int, transfer: Transfer) -> None:
    if not 0 <= transfer.flow < len(schedule.flows):
        raise ScheduleError(f"transfer {index} is on flow {transfer.flow}; allowed: 0 to {len(schedule.flows) - 1}")
    flow = schedule.flows[transfer.flow]
    begins, ends = (end[transfer.flow] for end in schedule.ends)
    if not all(0 <= end < schedule.places for end in (begins, ends)) or (isinstance(flow, Flow) and begins == ends):
        raise ScheduleError(
            f"transfer {index} is from place {begins} to {ends}; allowed: two places of 0 to {schedule.places - 1}"
        )
    for slot in (slot for pair in transfer.slots for slot in pair):
        if not 0 <= slot < schedule.slots:
            raise ScheduleError(f"transfer {index} has slot {slot}; allowed: 0 to {schedule.slots - 1}")
    if len({slot for _, slot in transfer.slots}) != len(transfer.slots):
        raise ScheduleError(f"transfer {index} writes a slot twice; allowed: each once")
    if isinstance(flow, Stream) and transfer.slots:
        raise ScheduleError(f"transfer {index} computes and has {len(transfer.slots)} slots; allowed: none")
    if not 0 <= transfer.size < float("inf"):
        raise ScheduleError(f"transfer {index} has the size {transfer.size:g}; allowed: 0 or more")
    for one in transfer.after:
        if not 0 <= one < index:
            raise ScheduleError(f"transfer {index} waits for transfer {one}; allowed: those before it")
        if schedule.ends[1][schedule.transfers[one].flow] != begins:
            raise ScheduleError(f"transfer {index} waits for transfer {one}, which arrives at another place")


def check_placement(placement: Sequence[int], places: int) -> None:
    """Raise ScheduleError unless `placement`, the rank at each place, is a permutation of the ranks."""
    if sorted(placement) != list(range(places)):
        raise ScheduleError(f"the placement is {list(placement)}; allowed: the ranks 0 to {places - 1}, each once")


def then(first: Schedule, second: Schedule) -> Schedule:
    """Return `first` followed by `second` on the same buffers; a slot is sent on as soon as it has arrived."""
    builder = Builder(places=first.places, slots=first.slots)
    for flow, task in (*first.sends(), *second.sends()):
        builder.send(flow.src, flow.dst, task.slots, adds=task.adds, channel=flow.channel)
    return builder.done()


def sliced(schedule: Schedule, pieces: int) -> Schedule:
    """Return the schedule with each slot s cut into slots s * pieces, s * pieces + 1 ..., each a separate message."""
    if pieces == 1:
        return schedule
    builder = Builder(places=schedule.places, slots=schedule.slots * pieces)
    for flow, task in schedule.sends():
        for piece in range(pieces):
            slots = [(a * pieces + piece, b * pieces + piece) for a, b in task.slots]
            builder.send(flow.src, flow.dst, slots, adds=task.adds, channel=flow.channel)
    return builder.done()


def dual(schedule: Schedule, *, adds: bool = True) -> Schedule:
    """Return the schedule reversed in time: transfers in the opposite direction, with copies turned into sums.

    This turns an AllGather into a ReduceScatter and a Broadcast into a Reduce. Without `adds` copies stay copies, which
    turns a Scatter into a Gather.
    """
    builder = Builder(places=schedule.places, slots=schedule.slots)
    for flow, task in reversed(list(schedule.sends())):
        slots = [(b, a) for a, b in task.slots]
        builder.send(flow.dst, flow.src, slots, adds=adds and not task.adds, channel=flow.channel)
    return builder.done()
