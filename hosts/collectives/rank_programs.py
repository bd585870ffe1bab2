"""Compiles a schedule into one program per rank: its sends, receives and computations in order, its buffers, and the
terms that verify every message."""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hosts.agent.messages import LABEL_BYTES
from hosts.agent.rank_program import Computation, Program, Receive, Send, Term, Use
from hosts.collectives.kinds import MESSAGES, Workload
from hosts.collectives.schedule import Flow, ScheduleError, Stream, Transfer, check_placement

_WORD = 1 << 32
_SHARE_OF_BUSIEST = 0.01


def programs(workload: Workload, placement: Sequence[int]) -> tuple[Program, ...]:
    """Return the program of every rank, by rank, with rank `placement[p]` at place p.

    Raises ScheduleError unless `placement` is a permutation of the ranks, and if a transfer sends an empty slot.
    """
    schedule = workload.schedule
    check_placement(placement, schedule.places)
    terms = _Terms(workload, placement)
    parts = [_RankProgram() for _ in placement]
    # What each slot of each place holds, with its terms: a set of many contributions takes long to look up.
    now = [[(content, terms.of(content)) for content in contents] for contents in workload.initial_contents]
    for task, transfer in enumerate(schedule.transfers):
        flow = schedule.flows[transfer.flow]
        if not isinstance(flow, Flow):
            step = Computation(task=task, duration_ns=round(transfer.size * 1e9), after=transfer.after)
            parts[placement[flow.place]].streams.setdefault(flow.number, []).append(step)
            continue
        src, dst = placement[flow.src], placement[flow.dst]
        sends = parts[src].sends.setdefault((dst, flow.channel), [])
        receives = parts[dst].receives.setdefault((src, flow.channel), [])
        if workload.kind == MESSAGES or not transfer.slots:
            size, window = message_bytes(workload, transfer), terms.count + task
            sends.append(Send(task=task, size_bytes=size, window=window, after=transfer.after))
            receives.append(Receive(task=task, size_bytes=size, terms=(((window, terms.multipliers[src]),),)))
            continue
        arriving = [now[flow.src][slot] for slot, _ in transfer.slots]
        if empty := [slot for (slot, _), (content, _) in zip(transfer.slots, arriving, strict=True) if not content]:
            slot = empty[0]
            raise ScheduleError(f"transfer {task} sends slot {slot} of place {flow.src}, which is empty")
        sends.append(Send(task=task, slots=tuple(slot for slot, _ in transfer.slots), after=transfer.after))
        for slot, _ in transfer.slots:
            parts[src].send(slot)
        uses = []
        for (_, slot), held in zip(transfer.slots, arriving, strict=True):
            if transfer.adds:
                total = held[0] | now[flow.dst][slot][0]
                now[flow.dst][slot] = total, terms.of(total)
            else:
                now[flow.dst][slot] = held
            uses.append(parts[dst].receive(slot, transfer.adds, now[flow.dst][slot][1]))
        receives.append(
            Receive(
                task=task,
                slots=tuple(slot for _, slot in transfer.slots),
                terms=tuple(of_content for _, of_content in arriving),
                uses=tuple(uses),
                adds=transfer.adds,
            )
        )
    results = [part.finished(workload, terms.own[rank], terms.multipliers[rank]) for rank, part in enumerate(parts)]
    kept, _ = peak_usage(workload, results)
    return tuple(replace(program, buffers=count) for program, count in zip(results, kept, strict=True))


class _Terms:
    """Maps contributions to terms: the windows of the initial data of all ranks, and the ranks' multipliers.

    Without sums every contribution has its own window, in the order of ranks. With sums, all ranks' contributions to a
    slot share one window, so that their sum is a multiple of that window.
    """

    def __init__(self, workload: Workload, placement: Sequence[int]) -> None:
        self._slots, self._placement = workload.schedule.slots, placement
        held = sorted(
            (placement[place], slot)
            for place, contents in enumerate(workload.initial_contents)
            for slot, content in enumerate(contents)
            if content
        )
        sums = has_sums(workload)
        self._windows = {key: key[1] if sums else index for index, key in enumerate(held)}
        self.count = _contributions(workload)
        self.multipliers = [_multiplier(rank) if sums else 1 for rank in range(len(placement))]
        self.own: list[tuple[tuple[int, int], ...]] = [
            tuple((slot, self._windows[rank, slot]) for owner, slot in held if owner == rank)
            for rank in range(len(placement))
        ]
        self._known: dict[int, tuple[Term, ...]] = {}

    def of(self, content: int) -> tuple[Term, ...]:
        """Return the terms of a set of contributions, given as bits (`schedule.Contents`)."""
        if content not in self._known:
            coefficients: dict[int, int] = {}
            for bit in _bits(content):
                place, slot = divmod(bit, self._slots)
                window = self._windows[self._placement[place], slot]
                coefficients[window] = (coefficients.get(window, 0) + self.multipliers[self._placement[place]]) % _WORD
            self._known[content] = tuple(sorted(coefficients.items()))
        return self._known[content]


class _RankProgram:
    """A rank's program under construction."""

    def __init__(self) -> None:
        self.sends: dict[tuple[int, int], list[Send]] = {}
        self.receives: dict[tuple[int, int], list[Receive]] = {}
        self.streams: dict[int, list[Computation]] = {}
        self.uses: list[Use] = []
        self._current: dict[int, int] = {}  # the current use of each slot that a message has written

    def send(self, slot: int) -> None:
        """Record that a message sends a slot's current content."""
        if slot in self._current:
            use = self.uses[self._current[slot]]
            use.tasks, use.total = use.tasks + 1, ()

    def receive(self, slot: int, adds: bool, total: tuple[Term, ...]) -> int:
        """Record that a message writes a slot, whose terms then are `total`; return the index of the slot's use."""
        if not adds or slot not in self._current:
            self.uses.append(Use())
            self._current[slot] = len(self.uses) - 1
        use = self.uses[self._current[slot]]
        use.arrivals, use.tasks, use.total = use.arrivals + 1, use.tasks + 1, total if adds else ()
        return self._current[slot]

    def finished(self, workload: Workload, own: tuple[tuple[int, int], ...], multiplier: int) -> Program:
        """Return the program, whose number of buffers is still unknown."""
        connections: list[Sequence[Send | Receive]] = [*self.sends.values(), *self.receives.values()]
        slots = sorted({slot for messages in connections for message in messages for slot in message.slots})
        return Program(
            sends=tuple((*end, tuple(tasks)) for end, tasks in self.sends.items()),
            receives=tuple((*end, tuple(tasks)) for end, tasks in sorted(self.receives.items())),
            computations=tuple(tuple(tasks) for _, tasks in sorted(self.streams.items())),
            own=own,
            sizes=tuple((slot, workload.bytes_of(slot)) for slot in slots) if workload.slot_sizes else (),
            uses=tuple(self.uses),
            multiplier=multiplier,
        )


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _multiplier(rank: int) -> int:
    """Return a rank's multiplier, odd and 32 bits long; pseudo-random, so that small sets of ranks differ in sum."""
    return int.from_bytes(hashlib.shake_128(f"longhaul rank {rank}".encode()).digest(4), "little") | 1


def has_sums(workload: Workload) -> bool:
    """Return whether any message is added on arrival."""
    return any(task.adds for task in workload.schedule.transfers)


def _contributions(workload: Workload) -> int:
    if has_sums(workload):
        return workload.schedule.slots
    return sum(1 for contents in workload.initial_contents for content in contents if content)


def windows(workload: Workload) -> tuple[int, int]:
    """Return the number of windows of a collective, and the bytes of the largest one."""
    without_slots = [
        message_bytes(workload, task)
        for _, task in workload.schedule.sends()
        if workload.kind == MESSAGES or not task.slots
    ]
    count = _contributions(workload) + (len(workload.schedule.transfers) if without_slots else 0)
    return count, max([workload.largest_slot_bytes, *without_slots])


def message_bytes(workload: Workload, transfer: Transfer) -> int:
    """Return the bytes of a message without its label."""
    return round(transfer.amount * workload.slot_bytes)


def small_message_bytes(workload: Workload) -> int:
    """Return the bytes of the largest message of a flow, for the flow for which they are least, at least 1: the largest
    messages of all do not show that those across the WAN are split over tunnels, or that another job has small ones.

    Flows of background traffic do not count, and those with less than `_SHARE_OF_BUSIEST` of the bytes of their job's
    busiest one, such as a schedule's signals.
    """
    transfers, flows, found = workload.schedule.transfers, workload.schedule.flows, list[int]()
    for part in [job.transfers for job in workload.jobs if not job.is_background] or [range(len(transfers))]:
        largest, totals = dict[int, int](), Counter[int]()
        for transfer in (transfers[at] for at in part if isinstance(flows[transfers[at].flow], Flow)):
            size = message_bytes(workload, transfer)
            largest[transfer.flow] = max(size, largest.get(transfer.flow, 0))
            totals[transfer.flow] += size
        enough = max(totals.values(), default=0) * _SHARE_OF_BUSIEST
        found += [size for flow, size in largest.items() if totals[flow] >= enough]
    return max(1, min(found, default=1))


def flow_bytes(workload: Workload) -> int:
    """Return the bytes of the busiest flow in a collective, labels included; all of them may be queued at once."""
    totals: dict[Flow, int] = {}
    for flow, transfer in workload.schedule.sends():
        totals[flow] = totals.get(flow, 0) + message_bytes(workload, transfer) + LABEL_BYTES
    return max(totals.values(), default=0)  # a round of requests may send nothing


def flow_messages(workload: Workload) -> int:
    """Return the largest number of messages of one flow in a collective."""
    return max(Counter(flow for flow, _ in workload.schedule.sends()).values(), default=0)


class Extent(NamedTuple):
    """The most that any of several workloads needs: the bytes and the messages of its busiest flow, its windows and the
    bytes of the largest one, the bytes of its largest message and of all its messages, and its computations in s."""

    flow_bytes: int
    flow_messages: int
    windows: int
    window_bytes: int
    message_bytes: int
    total_bytes: int
    computing_s: float


def extent(workloads: Iterable[Workload]) -> Extent:
    """Return the extent of workloads, at least one."""
    return Extent(*map(max, zip(*map(_extent, workloads), strict=True)))


def _extent(workload: Workload) -> Extent:
    schedule = workload.schedule
    sent = [message_bytes(workload, task) for _, task in schedule.sends()]
    computing_s = sum(task.size for task in schedule.transfers if isinstance(schedule.flows[task.flow], Stream))
    most, total = max(sent, default=0), sum(sent)
    return Extent(flow_bytes(workload), flow_messages(workload), *windows(workload), most, total, float(computing_s))


def peak_usage(workload: Workload, of_ranks: Sequence[Program], *, slow: int = -1) -> tuple[list[int], int]:
    """Return the most buffers that each rank needs at once, and the most bytes that are in flight at once.

    Both assume that messages arrive in the order in which they were sent, except that messages to rank `slow` arrive
    only when no others are in flight, and that computations take no time.
    """
    transfers = workload.schedule.transfers
    queues = [[deque(tasks) for _, _, tasks in program.sends] for program in of_ranks]
    streams = [[deque(tasks) for tasks in program.computations] for program in of_ranks]
    inbound = {
        task.task: (rank, task)
        for rank, program in enumerate(of_ranks)
        for _, _, tasks in program.receives
        for task in tasks
    }
    tasks_left = [[use.tasks for use in program.uses] for program in of_ranks]
    current_use: list[dict[int, int]] = [{} for _ in of_ranks]  # per rank, the current use of each slot
    in_use, most_in_use = [set[int]() for _ in of_ranks], [0] * len(of_ranks)
    done: set[int] = set()
    flying, delayed = deque[int](), deque[int]()
    in_flight = most_in_flight = 0

    def release(rank: int, use: int) -> None:
        tasks_left[rank][use] -= 1
        if tasks_left[rank][use] == 0:
            in_use[rank].discard(use)

    def start_ready(rank: int) -> None:
        nonlocal in_flight, most_in_flight
        progressed = True
        while progressed:
            progressed = False
            for stream in streams[rank]:
                while stream and done.issuperset(stream[0].after):
                    done.add(stream.popleft().task)
                    progressed = True
        for queue in queues[rank]:
            while queue and done.issuperset(queue[0].after):
                send = queue.popleft()
                (delayed if inbound[send.task][0] == slow else flying).append(send.task)
                in_flight += message_bytes(workload, transfers[send.task]) + LABEL_BYTES
                for slot in send.slots:
                    if slot in current_use[rank]:
                        release(rank, current_use[rank][slot])
        most_in_flight = max(most_in_flight, in_flight)

    for rank in range(len(of_ranks)):
        start_ready(rank)
    while flying or delayed:
        task = (flying or delayed).popleft()
        rank, receive = inbound[task]
        for slot, use in zip(receive.slots, receive.uses, strict=True):
            current_use[rank][slot] = use
            if of_ranks[rank].uses[use].tasks > 1:  # otherwise the data is verified and discarded
                in_use[rank].add(use)
                most_in_use[rank] = max(most_in_use[rank], len(in_use[rank]))
            release(rank, use)
        in_flight -= message_bytes(workload, transfers[task]) + LABEL_BYTES
        done.add(task)
        start_ready(rank)
    return most_in_use, most_in_flight


@dataclass(frozen=True, kw_only=True)
class Move:
    """A message of a schedule: rank `src` sends transfer `task` to rank `dst`.

    `step` is the 1-based position of the message in the longest chain of dependent messages that ends with it. `chunk`
    is the rank at the place that owns the block of its first slot, or -1 if `Workload.owner` is.
    """

    task: int
    step: int
    src: int
    dst: int
    chunk: int


def moves(workload: Workload, placement: Sequence[int]) -> list[Move]:
    """Return the messages of a schedule in program order, with rank `placement[p]` at place p."""
    schedule = workload.schedule
    steps: list[int] = []
    messages = []
    for task, transfer in enumerate(schedule.transfers):
        flow = schedule.flows[transfer.flow]
        depth = max((steps[dependency] for dependency in transfer.after), default=0)
        if not isinstance(flow, Flow):
            steps.append(depth)
            continue
        steps.append(depth + 1)
        owner = workload.owner(transfer)
        chunk = -1 if owner < 0 else placement[owner]
        messages.append(
            Move(task=task, step=steps[task], src=placement[flow.src], dst=placement[flow.dst], chunk=chunk)
        )
    return messages
