"""Schedules as programs of ranks: what each sends and receives in which order, what it keeps and what must arrive."""

import hashlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hosts.agent.messages import LABEL_BYTES
from hosts.agent.program import Computation, Program, Receive, Send, Term, Use
from hosts.collectives.kinds import MESSAGES, Workload
from hosts.collectives.schedule import Flow, ScheduleError, Transfer

_WORD = 1 << 32


def programs(workload: Workload, placement: Sequence[int]) -> tuple[Program, ...]:
    """The program of every rank, by rank, where the rank `placement[p]` stands at place p.

    Raises ValueError unless `placement` has each rank once, ScheduleError where a transfer sends a slot that holds
    nothing.
    """
    schedule = workload.schedule
    if sorted(placement) != list(range(schedule.places)):
        raise ValueError(
            f"the placement {list(placement)} is not allowed; allowed: the ranks 0 to {schedule.places - 1}, each once"
        )
    terms = _Terms(workload, placement)
    parts = [_Part() for _ in placement]
    now = workload.holds
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
        if 0 in arriving:
            slot, _ = transfer.slots[arriving.index(0)]
            raise ScheduleError(f"transfer {task} sends slot {slot} of place {flow.src}, which holds nothing")
        sends.append(Send(task=task, slots=tuple(slot for slot, _ in transfer.slots), after=transfer.after))
        for slot, _ in transfer.slots:
            parts[src].send(slot)
        uses = []
        for (_, slot), content in zip(transfer.slots, arriving, strict=True):
            now[flow.dst][slot] = content | (now[flow.dst][slot] if transfer.adds else 0)
            uses.append(parts[dst].receive(slot, transfer.adds, terms.of(now[flow.dst][slot])))
        receives.append(
            Receive(
                task=task,
                slots=tuple(slot for _, slot in transfer.slots),
                terms=tuple(map(terms.of, arriving)),
                uses=tuple(uses),
                adds=transfer.adds,
            )
        )
    found = [
        Program(
            sends=tuple((*end, tuple(tasks)) for end, tasks in part.sends.items()),
            receives=tuple((*end, tuple(tasks)) for end, tasks in sorted(part.receives.items())),
            computations=tuple(tuple(tasks) for _, tasks in sorted(part.streams.items())),
            own=terms.own[rank],
            sizes=_sizes(workload, part),
            uses=tuple(part.uses),
            multiplier=terms.multipliers[rank],
        )
        for rank, part in enumerate(parts)
    ]
    kept, _ = peaks(workload, found)
    return tuple(replace(one, buffers=count) for one, count in zip(found, kept, strict=True))


def _sizes(workload: Workload, part: "_Part") -> tuple[tuple[int, int], ...]:
    """The slots of a rank's messages with their bytes, where they are of several sizes."""
    if not workload.slot_sizes:
        return ()
    messages = [task for of in (part.sends, part.receives) for tasks in of.values() for task in tasks]
    return tuple((slot, workload.bytes_of(slot)) for slot in sorted({slot for one in messages for slot in one.slots}))


class _Terms:
    """What contributions are: the windows of what all ranks begin with, and the ranks' multipliers.

    Without sums every contribution has a window of its own, in the order of ranks. With them all ranks' contributions
    to a slot have one window, or their sum would not be a multiple of it.
    """

    def __init__(self, workload: Workload, placement: Sequence[int]) -> None:
        self._slots, self._placement = workload.schedule.slots, placement
        held = sorted(
            (placement[place], slot)
            for place, contents in enumerate(workload.holds)
            for slot, content in enumerate(contents)
            if content
        )
        sums = makes_sums(workload)
        self._windows = {there: there[1] if sums else number for number, there in enumerate(held)}
        self.count = _contributions(workload)
        self.multipliers = [_multiplier(rank) if sums else 1 for rank in range(len(placement))]
        self.own: list[tuple[tuple[int, int], ...]] = [
            tuple((slot, self._windows[rank, slot]) for found, slot in held if found == rank)
            for rank in range(len(placement))
        ]
        self._known: dict[int, tuple[Term, ...]] = {}

    def of(self, content: int) -> tuple[Term, ...]:
        """The terms of a set of contributions, given as bits (`schedule.Contents`)."""
        if content not in self._known:
            found: dict[int, int] = {}
            for bit in _bits(content):
                place, slot = divmod(bit, self._slots)
                window = self._windows[self._placement[place], slot]
                found[window] = (found.get(window, 0) + self.multipliers[self._placement[place]]) % _WORD
            self._known[content] = tuple(sorted(found.items()))
        return self._known[content]


class _Part:
    """A rank's program while it is put together."""

    def __init__(self) -> None:
        self.sends: dict[tuple[int, int], list[Send]] = {}
        self.receives: dict[tuple[int, int], list[Receive]] = {}
        self.streams: dict[int, list[Computation]] = {}
        self.uses: list[Use] = []
        self._current: dict[int, int] = {}  # the use of each slot that a message has arrived in

    def send(self, slot: int) -> None:
        """Note that a slot is sent as it is now."""
        if slot in self._current:
            use = self.uses[self._current[slot]]
            use.tasks, use.total = use.tasks + 1, ()

    def receive(self, slot: int, adds: bool, total: tuple[Term, ...]) -> int:
        """Note that a message arrives in a slot, which then has these terms; returns the use that it is a part of."""
        if not adds or slot not in self._current:
            self.uses.append(Use())
            self._current[slot] = len(self.uses) - 1
        use = self.uses[self._current[slot]]
        use.arrivals, use.tasks, use.total = use.arrivals + 1, use.tasks + 1, total if adds else ()
        return self._current[slot]


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _multiplier(rank: int) -> int:
    """An odd number of 32 bits. Random ones, so that no two sets of few ranks have the same sum."""
    return int.from_bytes(hashlib.shake_128(f"longhaul rank {rank}".encode()).digest(4), "little") | 1


def makes_sums(workload: Workload) -> bool:
    """Whether anything is added."""
    return any(task.adds for task in workload.schedule.transfers)


def _contributions(workload: Workload) -> int:
    if makes_sums(workload):
        return workload.schedule.slots
    return sum(1 for contents in workload.holds for content in contents if content)


def windows(workload: Workload) -> tuple[int, int]:
    """How many windows a collective has, and the bytes of the largest."""
    without_slots = [
        message_bytes(workload, task)
        for _, task in workload.schedule.sends()
        if workload.kind == MESSAGES or not task.slots
    ]
    count = _contributions(workload) + (len(workload.schedule.transfers) if without_slots else 0)
    return count, max([workload.largest_slot_bytes, *without_slots])


def message_bytes(workload: Workload, transfer: Transfer) -> int:
    """The bytes of a message, its label not included."""
    return round(transfer.amount * workload.slot_bytes)


def flow_bytes(workload: Workload) -> int:
    """The bytes that the busiest flow carries in a collective, with their labels; all of them may be queued at once."""
    found: dict[Flow, int] = {}
    for flow, transfer in workload.schedule.sends():
        found[flow] = found.get(flow, 0) + message_bytes(workload, transfer) + LABEL_BYTES
    return max(found.values())


def flow_messages(workload: Workload) -> int:
    """The most messages that a flow carries in a collective."""
    return max(Counter(flow for flow, _ in workload.schedule.sends()).values())


def peaks(workload: Workload, of_ranks: Sequence[Program], *, slow: int = -1) -> tuple[list[int], int]:
    """The most buffers that each rank needs at once, and the most bytes that all have sent and that have not arrived.

    Both are of the case that messages arrive in the order in which they were sent, but those to the rank `slow` only
    when there is nothing else; computations take no time.
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
    left = [[use.tasks for use in program.uses] for program in of_ranks]
    holding: list[dict[int, int]] = [{} for _ in of_ranks]  # the use that each slot is in
    kept, most_kept = [set[int]() for _ in of_ranks], [0] * len(of_ranks)
    done: set[int] = set()
    flying, delayed = deque[int](), deque[int]()
    in_flight = most_in_flight = 0

    def finish(rank: int, use: int) -> None:
        left[rank][use] -= 1
        if left[rank][use] == 0:
            kept[rank].discard(use)

    def go_on(rank: int) -> None:
        nonlocal in_flight, most_in_flight
        again = True
        while again:
            again = False
            for stream in streams[rank]:
                while stream and done.issuperset(stream[0].after):
                    done.add(stream.popleft().task)
                    again = True
        for queue in queues[rank]:
            while queue and done.issuperset(queue[0].after):
                send = queue.popleft()
                (delayed if inbound[send.task][0] == slow else flying).append(send.task)
                in_flight += message_bytes(workload, transfers[send.task]) + LABEL_BYTES
                for slot in send.slots:
                    if slot in holding[rank]:
                        finish(rank, holding[rank][slot])
        most_in_flight = max(most_in_flight, in_flight)

    for rank in range(len(of_ranks)):
        go_on(rank)
    while flying or delayed:
        task = (flying or delayed).popleft()
        rank, receive = inbound[task]
        for slot, use in zip(receive.slots, receive.uses, strict=True):
            holding[rank][slot] = use
            if of_ranks[rank].uses[use].tasks > 1:  # else it is checked and forgotten
                kept[rank].add(use)
                most_kept[rank] = max(most_kept[rank], len(kept[rank]))
            finish(rank, use)
        in_flight -= message_bytes(workload, transfers[task]) + LABEL_BYTES
        done.add(task)
        go_on(rank)
    return most_kept, most_in_flight


@dataclass(frozen=True, kw_only=True)
class Move:
    """A message of a schedule: GPU `src` sends GPU `dst`, both ranks, transfer `task`.

    `step` is 1 more than the messages before it in the longest chain of messages each of which waits for the one
    before. `chunk` is the rank at whose place the block of its first slot is counted, -1 where contents mean nothing.
    """

    task: int
    step: int
    src: int
    dst: int
    chunk: int


def moves(workload: Workload, placement: Sequence[int]) -> list[Move]:
    """The messages of a schedule in program order, with the rank `placement[p]` at place p."""
    schedule = workload.schedule
    steps: list[int] = []
    found = []
    for task, transfer in enumerate(schedule.transfers):
        flow = schedule.flows[transfer.flow]
        before = max((steps[one] for one in transfer.after), default=0)
        steps.append(before + isinstance(flow, Flow))
        if not isinstance(flow, Flow):
            continue
        owner = workload.owner(transfer)
        chunk = -1 if owner < 0 else placement[owner]
        found.append(Move(task=task, step=steps[task], src=placement[flow.src], dst=placement[flow.dst], chunk=chunk))
    return found
