"""Sorts the operations that files list by rank, and derives the dependencies of a schedule's tasks from theirs.

An operation begins when all operations that it requires are done. A send is done as soon as it begins, because only the
network takes time; a receive is done when its message has arrived, and a computation when it has run. So the tasks on
which a task of a schedule depends are the arrivals and computations at its place that are found by following
dependencies back through all other operations.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from hosts.collectives.schedule import Flow, ScheduleError, Stream

MOST_WAITS = 16_000_000
"""Maximum number of dependencies that are examined; with many operations that each require many, it is the product."""

MOST_OPERATIONS = 200_000
"""Maximum number of operations of a file, or of all files of a trace; a message is two operations."""
MOST_MESSAGE_BYTES = 10**12
MOST_CALC_NS = 10**13

Waits = dict[int, int]
"""Dependencies: for each flow or stream (an index), the last of its tasks (an index) that must have arrived."""


@dataclass(slots=True, kw_only=True)
class Operation:
    """One operation of a rank; it refers to other operations by their indices.

    `server` is the flow of a send or a receive, or the stream of a computation; an operation without one takes no time.
    Before it begins, all of `requires` must be done and all of `started` must have begun. `message` is the send that
    matches a receive. `waits_for` are the receives among `requires` that become dependencies even if other dependencies
    imply them. `where` and `what` name the operation in error messages.
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
    """Operations in order: `events` has the beginning (operation, False) and the end (operation, True) of each.

    `tasks` are the operations that become tasks of a schedule (sends and computations), in program order. For each
    task, `server` has its index in `servers`, and `after` the tasks on which it depends.
    """

    events: list[tuple[int, bool]]
    servers: tuple[Flow | Stream, ...]
    tasks: list[int]
    server: list[int]
    after: list[tuple[int, ...]]


Ends = Mapping[tuple[int, int, int], Sequence[int]]
"""The sends, or the receives, by source, destination and tag, in the order of the file."""


def match(operations: Sequence[Operation], sizes: Sequence[float], sends: Ends, receives: Ends) -> None:
    """Match the n-th receive with the n-th send of the same ends; raises ScheduleError if numbers or sizes differ."""
    for ends in dict.fromkeys((*receives, *sends)):
        out, into = sends.get(ends, ()), receives.get(ends, ())
        for receive, send in zip(into, out, strict=False):
            if sizes[send] != sizes[receive]:
                raise ScheduleError(
                    f"{operations[receive].where}: it receives {sizes[receive]:,.0f} bytes, but "
                    f"{operations[send].what} of rank {ends[0]} has {sizes[send]:,.0f}; allowed: equal sizes"
                )
            operations[receive].message = send
            # The sender's NIC decides on the connection; that of the receiver is ignored.
            operations[receive].server = operations[send].server
        if len(out) != len(into):
            more, other = (into, "send") if len(into) > len(out) else (out, "recv")
            one = operations[more[min(len(out), len(into))]]
            raise ScheduleError(
                f"{one.where}: {one.what} has no matching {other}; allowed: one send and one recv per message"
            )


def in_order(operations: Sequence[Operation], positions: Sequence[int] = ()) -> Order:
    """Return the operations in the order in which they begin if nothing takes time.

    Of several that are ready, the one that became ready first comes first or, with `positions` (one per operation), the
    one with the lowest position. Raises ScheduleError for cyclic dependencies and for more than MOST_WAITS of them.
    """
    order = Order(events=_events(operations, positions), servers=(), tasks=[], server=[], after=[])
    servers: dict[Flow | Stream, int] = {}
    task_of: dict[int, int] = {}
    begun, done = dict[int, Waits](), dict[int, Waits]()
    known: list[Waits] = []  # per server: everything for which its tasks so far have waited
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
                f"{one.where}: the operations up to here have more than {MOST_WAITS:,} dependencies, indirect ones "
                "included; allowed: that many"
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
            # Tasks for which an earlier task of the server has waited have arrived already.
            if source != server and known[server].get(source, -1) < task:
                known[server][source] = task
                wanted[source] = max(task, wanted.get(source, -1))
        if isinstance(one.server, Stream) and server in latest:
            begun[index] = {**found, server: latest[server]}  # it begins when the stream's previous one is done
        task_of[index] = latest[server] = len(order.tasks)
        order.tasks.append(index)
        order.server.append(server)
        order.after.append(tuple(sorted(wanted.values())))
    return Order(events=order.events, servers=tuple(servers), tasks=order.tasks, server=order.server, after=order.after)


def _merged(sources: Sequence[Waits]) -> Waits:
    """Return the union of dependencies, the latest task per server; a single source is returned without a copy."""
    if len(sources) == 1:
        return sources[0]
    found: Waits = {}
    for source in sources:
        for server, task in source.items():
            if found.get(server, -1) < task:
                found[server] = task
    return found


def _events(operations: Sequence[Operation], positions: Sequence[int]) -> list[tuple[int, bool]]:
    """Return the beginnings and ends of operations in topological order: first ready first, or lowest position first.

    In the graph, node 2 i is the beginning and node 2 i + 1 the end of operation i.
    """
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
    """Yield the edges into an operation's nodes: pairs (node of the operation, predecessor)."""
    yield from ((2 * index, 2 * other + 1) for other in one.requires)
    yield from ((2 * index, 2 * other) for other in one.started)
    if one.message is not None:
        yield 2 * index + 1, 2 * one.message


def _deadlock(operations: Sequence[Operation], missing: Sequence[int]) -> str:
    """Return an error message about a dependency cycle, found by following predecessors of a node that never runs."""
    node, seen = next(node for node, count in enumerate(missing) if count), set[int]()
    while node not in seen:
        seen.add(node)
        before = [other for mine, other in _before(node // 2, operations[node // 2]) if mine == node]
        if node % 2:
            before.append(node - 1)
        node = next(other for other in before if missing[other])
    one = operations[node // 2]
    return f"{one.where}: {one.what} waits for itself through its dependencies; allowed: dependencies without a cycle"
