"""Operations of ranks, as files list them, put into one order and made into what a schedule's tasks wait for.

An operation begins when all that it requires are done. A send is done as soon as it begins, as it is the network that
takes time; a receive when its message is there; a computation when it has been served. So what a task of a schedule
waits for are the messages and computations that have to be at its place, found by going back through all the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from hosts.collectives.schedule import Flow, ScheduleError, Stream

MOST_WAITS = 16_000_000
"""How many waits are looked at: many operations that each require many others would be their product."""

MOST_OPERATIONS = 200_000
"""Of a file, or of the files of a trace; a message is two of them."""
MOST_MESSAGE_BYTES = 10**12
MOST_CALC_NS = 10**13

Waits = dict[int, int]
"""The last task of each flow or stream, both by index, that has to be there."""


@dataclass(slots=True, kw_only=True)
class Operation:
    """One operation of a rank; others are given by their indices.

    `server` is the flow of a send or of what is received, or the stream of a computation; without one an operation
    takes no time. All of `requires` are done and all of `started` have begun before it begins. `message` is the send
    that a receive is of. `waits_for` are receives among `requires` that are waited for even where others imply them.
    `where` and `what` name it in a sentence.
    """

    where: str
    what: str
    server: Flow | Stream | None = None
    message: int | None = None
    requires: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    waits_for: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Order:
    """Operations in order: `events` are the beginning (operation, False) and the end (operation, True) of each.

    `tasks` are the operations that are tasks of a schedule, sends and computations, in program order; of each
    `server` is the index in `servers`, and `after` are the tasks that it waits for.
    """

    events: list[tuple[int, bool]]
    servers: tuple[Flow | Stream, ...]
    tasks: list[int]
    server: list[int]
    after: list[tuple[int, ...]]


Ends = Mapping[tuple[int, int, int], Sequence[int]]
"""The operations that send, or that receive, by source, destination and tag, in the order of the file."""


def match(operations: Sequence[Operation], sizes: Sequence[float], sends: Ends, receives: Ends) -> None:
    """Give every receive its send, the n-th its n-th; raises ScheduleError for one without, or of another size."""
    for ends in dict.fromkeys((*receives, *sends)):
        out, into = sends.get(ends, ()), receives.get(ends, ())
        for receive, send in zip(into, out, strict=False):
            if sizes[send] != sizes[receive]:
                raise ScheduleError(
                    f"{operations[receive].where}: {sizes[receive]:,.0f} bytes are received of the "
                    f"{sizes[send]:,.0f} that {operations[send].what} of rank {ends[0]} has; allowed: as many"
                )
            operations[receive].message = send
            # One connection carries both, whatever NIC the receiver names.
            operations[receive].server = operations[send].server
        if len(out) != len(into):
            more, other = (into, "send") if len(into) > len(out) else (out, "recv")
            one = operations[more[min(len(out), len(into))]]
            raise ScheduleError(f"{one.where}: {one.what} has no {other} at the other end; allowed: one of each")


def in_order(operations: Sequence[Operation], positions: Sequence[int] = ()) -> Order:
    """The order in which operations begin if nothing takes time, of several the one that could begin first; or with
    `positions`, one each, the one of the lowest.

    Raises ScheduleError where operations wait for one another, or look at more than MOST_WAITS of each other.
    """
    order = Order(events=_events(operations, positions), servers=(), tasks=[], server=[], after=[])
    servers: dict[Flow | Stream, int] = {}
    task_of: dict[int, int] = {}
    begun, done = dict[int, Waits](), dict[int, Waits]()
    known: list[Waits] = []  # of each server: all that its tasks so far have waited for
    latest: dict[int, int] = {}
    left = MOST_WAITS
    for index, is_done in order.events:
        one = operations[index]
        if is_done:
            done[index] = begun[index]
            if one.message is not None:
                task = task_of[one.message]
                done[index] = {**begun[index], order.server[task]: task}
                left -= len(done[index])
            elif isinstance(one.server, Stream):
                done[index] = {servers[one.server]: task_of[index]}
            continue
        sources = [*(done[other] for other in one.requires), *(begun[other] for other in one.started)]
        left -= sum(map(len, sources))
        if left < 0:
            raise ScheduleError(
                f"{one.where}: up to here operations wait for more than {MOST_WAITS:,} others, counted through all "
                "that they require; allowed: so many"
            )
        found = begun[index] = _merged(sources)
        if one.server is None or one.message is not None:
            continue
        server = servers.setdefault(one.server, len(servers))
        if server == len(known):
            known.append({})
        direct = [task_of[message] for other in one.waits_for if (message := operations[other].message) is not None]
        wanted = _merged([{order.server[task]: task} for task in direct])
        for source, task in found.items():
            # What an earlier task of the server has waited for is there already.
            if source != server and known[server].get(source, -1) < task:
                known[server][source] = task
                wanted[source] = max(task, wanted.get(source, -1))
        if isinstance(one.server, Stream) and server in latest:
            begun[index] = {**found, server: latest[server]}  # it begins when the one before it is over
        task_of[index] = latest[server] = len(order.tasks)
        order.tasks.append(index)
        order.server.append(server)
        order.after.append(tuple(sorted(wanted.values())))
    return Order(events=order.events, servers=tuple(servers), tasks=order.tasks, server=order.server, after=order.after)


def _merged(sources: Sequence[Waits]) -> Waits:
    """What all of these have to wait for; what is shared is not copied."""
    if len(sources) == 1:
        return sources[0]
    found: Waits = {}
    for source in sources:
        for server, task in source.items():
            if found.get(server, -1) < task:
                found[server] = task
    return found


def _events(operations: Sequence[Operation], positions: Sequence[int]) -> list[tuple[int, bool]]:
    """The beginnings and ends of operations (node 2 i and 2 i + 1) in topological order, first come, first served, or
    the lowest position first."""
    followers: list[list[int]] = [[2 * (node // 2) + 1] if node % 2 == 0 else [] for node in range(2 * len(operations))]
    missing = [node % 2 for node in range(2 * len(operations))]
    for index, one in enumerate(operations):
        for node, before in _before(index, one):
            followers[before].append(node)
            missing[node] += 1
    turns = count()
    ready: list[tuple[int, int]] = []  # (turn or position, node)

    def is_ready(node: int) -> None:
        heappush(ready, (positions[node // 2] if positions else next(turns), node))

    for node in range(0, 2 * len(operations), 2):
        if not missing[node]:
            is_ready(node)
    events = []
    while ready:
        _, node = heappop(ready)
        events.append((node // 2, bool(node % 2)))
        for other in followers[node]:
            missing[other] -= 1
            if not missing[other]:
                is_ready(other)
    if len(events) < 2 * len(operations):
        raise ScheduleError(_deadlock(operations, missing))
    return events


def _before(index: int, one: Operation) -> Iterable[tuple[int, int]]:
    """What comes before the beginning and the end of an operation: pairs of (its node, the node before)."""
    yield from ((2 * index, 2 * other + 1) for other in one.requires)
    yield from ((2 * index, 2 * other) for other in one.started)
    if one.message is not None:
        yield 2 * index + 1, 2 * one.message


def _deadlock(operations: Sequence[Operation], missing: Sequence[int]) -> str:
    """A sentence on operations that wait for one another, found by going back from any that never ends."""
    node, seen = next(node for node, count in enumerate(missing) if count), set[int]()
    while node not in seen:
        seen.add(node)
        before = [other for mine, other in _before(node // 2, operations[node // 2]) if mine == node]
        if node % 2:
            before.append(node - 1)
        node = next(other for other in before if missing[other])
    one = operations[node // 2]
    return f"{one.where}: {one.what} waits for itself, through what it requires; allowed: an order without a cycle"
