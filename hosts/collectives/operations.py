"""Sorts the operations that files list by rank, and derives the dependencies of a schedule's tasks from theirs.

An operation begins when all operations that it requires are done. A send is done as soon as it begins, because only the
network takes time; a receive is done when its message has arrived, and a computation when it has run. So the tasks on
which a task of a schedule depends are the arrivals and computations at its place that are found by following
dependencies back through all other operations.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

from hosts.collectives.schedule import Flow, ScheduleError, Stream

MAX_WAITS = 16_000_000
"""Maximum number of dependencies that are examined, indirect ones included."""

MAX_OPERATIONS = 200_000
"""Maximum number of operations of a file, or of all files of a trace; a message is two operations."""
MAX_MESSAGE_BYTES = 10**12
MAX_CALC_NS = 10**13

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


def match(
    operations: Sequence[Operation],
    sizes: Sequence[float],
    sends: Ends,
    receives: Ends,
    *,
    of_one_size: bool = True,
) -> int:
    """Match the n-th receive with the n-th send of the same ends; return how many have another size than their send.

    Raises ScheduleError if numbers differ or, with `of_one_size`, sizes.
    """
    others = 0
    for ends in dict.fromkeys((*receives, *sends)):
        sent, received = sends.get(ends, ()), receives.get(ends, ())
        for receive, send in zip(received, sent, strict=False):
            if sizes[send] != sizes[receive]:
                others += 1
                if of_one_size:
                    raise ScheduleError(
                        f"{operations[receive].where}: it receives {sizes[receive]:,.0f} bytes, but "
                        f"{operations[send].what} of rank {ends[0]} has {sizes[send]:,.0f}; allowed: equal sizes"
                    )
            pair(operations, send, receive)
        if len(sent) != len(received):
            more, other = (received, "send") if len(received) > len(sent) else (sent, "recv")
            unmatched = operations[more[min(len(sent), len(received))]]
            raise ScheduleError(
                f"{unmatched.where}: {unmatched.what} has no matching {other}; allowed: one send and one recv per "
                "message"
            )
    return others


def pair(operations: Sequence[Operation], send: int, receive: int) -> None:
    """Make two operations the ends of one message. A message without a flow, to the own rank, takes no time."""
    # The sender's NIC decides on the connection; that of the receiver is ignored.
    operations[receive].server = operations[send].server
    if operations[send].server is None:
        operations[receive].requires.append(send)
    else:
        operations[receive].message = send


def dry_run(
    operations: Sequence[Operation],
    held: Collection[int],
    on_begin: Callable[[int], Iterable[int]],
    positions: Sequence[int] = (),
) -> None:
    """Call `on_begin` with each operation in the order in which they begin if nothing takes time, as far as they do.

    The operations in `held` end only after `on_begin` has returned them.
    """
    _events(operations, positions, held, on_begin)


def topological_order(operations: Sequence[Operation], positions: Sequence[int] = ()) -> Order:
    """Return the operations in the order in which they begin if nothing takes time.

    Of several that are ready, the one that became ready first comes first or, with `positions` (one per operation), the
    one with the lowest position. Raises ScheduleError for cyclic dependencies and for more than MAX_WAITS of them.
    """
    order = Order(events=_ordered_events(operations, positions), servers=(), tasks=[], server=[], after=[])
    servers: dict[Flow | Stream, int] = {}
    task_of: dict[int, int] = {}
    begun, done = dict[int, Waits](), dict[int, Waits]()
    waited_for: list[Waits] = []  # per server: everything for which its tasks so far have waited
    latest: dict[int, int] = {}
    budget = MAX_WAITS
    for index, is_done in order.events:
        operation = operations[index]
        if is_done:
            done[index] = begun[index]
            if operation.message is not None:
                task = task_of[operation.message]
                done[index] = {**begun[index], order.server[task]: task}
                budget -= len(done[index])
            elif isinstance(operation.server, Stream):
                done[index] = {servers[operation.server]: task_of[index]}
            continue
        sources = [*(done[other] for other in operation.requires), *(begun[other] for other in operation.started)]
        budget -= sum(map(len, sources))
        if budget < 0:
            raise ScheduleError(
                f"{operation.where}: the operations up to here have more than {MAX_WAITS:,} dependencies, indirect "
                "ones included; allowed: that many"
            )
        inherited = begun[index] = _merged(sources)
        if operation.server is None or operation.message is not None:
            continue
        server = servers.setdefault(operation.server, len(servers))
        if server == len(waited_for):
            waited_for.append({})
        direct = [
            task_of[message] for other in operation.waits_for if (message := operations[other].message) is not None
        ]
        latest_by_server = _merged([{order.server[task]: task} for task in direct])
        for source, task in inherited.items():
            # Tasks for which an earlier task of the server has waited have arrived already.
            if source != server and waited_for[server].get(source, -1) < task:
                waited_for[server][source] = task
                latest_by_server[source] = max(task, latest_by_server.get(source, -1))
        if isinstance(operation.server, Stream) and server in latest:
            begun[index] = {**inherited, server: latest[server]}  # it begins when the stream's previous one is done
        task_of[index] = latest[server] = len(order.tasks)
        order.tasks.append(index)
        order.server.append(server)
        order.after.append(tuple(sorted(latest_by_server.values())))
    return replace(order, servers=tuple(servers))


def _merged(sources: Sequence[Waits]) -> Waits:
    """Return the union of dependencies, the latest task per server; a single source is returned without a copy."""
    if len(sources) == 1:
        return sources[0]
    merged: Waits = {}
    for source in sources:
        for server, task in source.items():
            if merged.get(server, -1) < task:
                merged[server] = task
    return merged


def _ordered_events(operations: Sequence[Operation], positions: Sequence[int]) -> list[tuple[int, bool]]:
    """Return the beginnings and ends of all operations in topological order; raises ScheduleError for a cycle."""
    events, unmet = _events(operations, positions)
    if len(events) < 2 * len(operations):
        raise ScheduleError(_deadlock(operations, unmet))
    return events


def _events(
    operations: Sequence[Operation],
    positions: Sequence[int],
    held: Collection[int] = (),
    on_begin: Callable[[int], Iterable[int]] = lambda _: (),
) -> tuple[list[tuple[int, bool]], list[int]]:
    """Return the beginnings and ends of operations (nodes 2 i and 2 i + 1 for operation i) in topological order, first
    ready first, or lowest position first; and how many predecessors of each node never run. For `held` and `on_begin`
    see `dry_run`."""
    followers: list[list[int]] = [[2 * (node // 2) + 1] if node % 2 == 0 else [] for node in range(2 * len(operations))]
    unmet = [node % 2 for node in range(2 * len(operations))]
    for index, operation in enumerate(operations):
        for node, before in _before(index, operation):
            followers[before].append(node)
            unmet[node] += 1
    for index in held:
        unmet[2 * index + 1] += 1
    arrivals = count()
    ready: list[tuple[int, int]] = []  # (turn or position, node)

    def enqueue(node: int) -> None:
        heappush(ready, (positions[node // 2] if positions else next(arrivals), node))

    for node in range(0, 2 * len(operations), 2):
        if not unmet[node]:
            enqueue(node)
    events = []
    while ready:
        _, node = heappop(ready)
        events.append((node // 2, bool(node % 2)))
        released = () if node % 2 else (2 * index + 1 for index in on_begin(node // 2))
        for other in (*followers[node], *released):
            unmet[other] -= 1
            if not unmet[other]:
                enqueue(other)
    return events, unmet


def _before(index: int, operation: Operation) -> Iterable[tuple[int, int]]:
    """Yield the edges into an operation's nodes: pairs (node of the operation, predecessor)."""
    yield from ((2 * index, 2 * other + 1) for other in operation.requires)
    yield from ((2 * index, 2 * other) for other in operation.started)
    if operation.message is not None:
        yield 2 * index + 1, 2 * operation.message


def _deadlock(operations: Sequence[Operation], unmet: Sequence[int]) -> str:
    """Return an error message about a dependency cycle, found by following predecessors of a node that never runs."""
    node, seen = next(node for node, count in enumerate(unmet) if count), set[int]()
    while node not in seen:
        seen.add(node)
        before = [other for mine, other in _before(node // 2, operations[node // 2]) if mine == node]
        if node % 2:
            before.append(node - 1)
        node = next(other for other in before if unmet[other])
    operation = operations[node // 2]
    return f"{operation.where}: {operation.what} waits for itself through its dependencies; allowed: no cycles"
