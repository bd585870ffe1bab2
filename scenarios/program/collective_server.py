"""The run's end of the sockets at which ranks ask for their collectives (`rank/longhaul_torch`), in the VM.

Each rank has a socket of its own, so that whoever asks is known. Questions and answers are JSON objects, one a line.
{"ask": "group", "group": NAME, "made": TEXT, "ranks": [...]} announces a process group by its ranks of the program and
a text that all of them know and that no group of this name has had before; it gets {"connect": BOOL}, whether to
connect all of its ranks at once. {"ask": "plan", "group", "number", "kind", "bytes", "unit", "root"} asks for
collective `number` of that group (`collectives.Request`), and gets {"plan": ID, "content"}, or null as content if this
connection has had it before. With "forget": ID in it, the content of another plan is not needed any more. {"tell":
"ended", "group", "number", "asked_ns", "begun_ns", "ended_ns"} tells when (CLOCK_MONOTONIC) the script asked for it,
and when it began and ended on this rank. If the answer had "messages": true, it also has "sent", [[TASK, NS, BYTES],
...], and "arrived", [[TASK, NS], ...]: when, in ns after it began, each message was handed over and had arrived. What
cannot be had gets {"error": SENTENCE}.

A group ends with the last connection that has announced it.

The first rank that asks for a collective has it planned. If the policy chooses new paths, its answer and those of the
others wait until the controller has installed them.
"""

import json
import os
import selectors
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hosts.collectives.kinds import ALGORITHMS
from scenarios.program.collectives import (
    MAX_BYTES,
    MAX_UNIT_BYTES,
    CollectiveRefusedError,
    Group,
    Planned,
    Request,
    content_of,
)
from scenarios.program.message_times import RankMessages

_CHUNK = 1 << 16
_MAX_LINE_BYTES = 1 << 20
_MAX_MESSAGES_BYTES = 1 << 26  # a line with the times of messages
_MAX_NAME = 1000
_MAX_GROUPS = 10_000  # at once
_MAX_PLANS = 256  # of a group that ranks remember; each may have megabytes
_BACKLOG = 64


class Paths(Protocol):
    """Puts WAN paths into force."""

    def direct(self, paths: Mapping[tuple[int, int], int]) -> Future[int] | None:
        """Have the controller put these pairs of GPUs on paths, by index; None if they are on them already. The future
        has the number of OpenFlow messages, or an error."""


@dataclass(eq=False)
class _Connection:
    """A connection of a rank: what has been read of the next line, what could not be sent yet, and the groups that it
    has announced, by name."""

    rank: int
    socket: socket.socket
    unread: bytes = b""
    unsent: bytes = b""
    groups: dict[str, "_Members"] = field(default_factory=dict)


@dataclass(eq=False)
class _Collective:
    """A collective that the ranks `asked` have asked for. `waiting` are connections without an answer, with their rank
    of the group; `times_ns` has asked, begun and ended of each rank of the group that has told them, and `told` what
    each has told of its messages. `is_moved` is whether some of its paths were changed for another one."""

    request: Request
    planned: Planned
    ready: bool = True
    messages: int = 0
    error: str | None = None
    waiting: list[tuple[_Connection, int]] = field(default_factory=list)
    times_ns: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    told: list[RankMessages] = field(default_factory=list)
    is_moved: bool = False
    asked: set[int] = field(default_factory=set)


class _Members:
    """A process group: its ranks of the program, what plans its collectives, and those that have not ended."""

    def __init__(self, ranks: tuple[int, ...], group: Group) -> None:
        self.ranks, self.group = ranks, group
        self.collectives = dict[int, _Collective]()
        # The numbers of plans, of which equal ones have one, and those whose content each connection has. In both, what
        # was used last is last.
        self.plans = dict[tuple[Any, ...], int]()
        self.known = dict[_Connection, dict[int, None]]()


class CollectiveServer:
    """Answers ranks at their listening sockets, by rank; `register` and `unregister` are a selector's.

    `new_group` makes the group of some ranks of the program, and `record` is called with a mapping for each collective
    that has ended; `announced` with the number of a collective, from 0 in the order in which they begin, when a rank
    asks for it first. The owner of the selector calls what is registered as data of a descriptor that is ready.
    """

    def __init__(
        self,
        listeners: Mapping[int, socket.socket],
        selector: selectors.BaseSelector,
        *,
        paths: Paths,
        new_group: Callable[[tuple[int, ...]], Group],
        record: Callable[[Mapping[str, Any]], object],
        announced: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._selector, self._paths, self._new_group, self._record = selector, paths, new_group, record
        self._announced, self._count = announced, 0
        self._listeners = listeners
        self._groups = dict[tuple[str, str, tuple[int, ...]], _Members]()  # by name, what was made, and ranks
        self._unfinished = 0  # collectives of groups that have ended
        self._plans = 0  # so far, in all groups
        self._connections = set[_Connection]()
        self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._finished: list[tuple[_Members, int, Future[int]]] = []
        selector.register(self._done, selectors.EVENT_READ, self._answer_waiting)
        for rank, listener in listeners.items():
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ, self._accepting(rank))

    def close(self) -> None:
        """Close all sockets."""
        for connection in list(self._connections):
            self._drop(connection)
        for listener in self._listeners.values():
            self._selector.unregister(listener)
            listener.close()
        self._selector.unregister(self._done)
        os.close(self._done)

    def unfinished(self) -> int:
        """Return how many collectives some ranks have begun, and not all have ended."""
        return self._unfinished + sum(len(members.collectives) for members in self._groups.values())

    def runs(self) -> bool:
        """Return whether any collective runs: all of its ranks have asked for it, and not all have ended it."""
        return any(
            len(one.asked) == len(members.ranks)
            for members in self._groups.values()
            for one in members.collectives.values()
        )

    # --- sockets -----------------------------------------------------------------------------------------------------

    def _accepting(self, rank: int) -> Callable[[], None]:
        def accept() -> None:
            with suppress(OSError):  # it has gone again, or there are no descriptors left for it
                accepted, _ = self._listeners[rank].accept()
                accepted.setblocking(False)
                connection = _Connection(rank, accepted)
                self._connections.add(connection)
                self._selector.register(accepted, selectors.EVENT_READ, lambda: self._read(connection))

        return accept

    def _read(self, connection: _Connection) -> None:
        if connection.unsent:
            self._flush(connection)
        try:
            data = connection.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, connection.unread = (connection.unread + data).split(b"\n")
        for line in lines:
            try:
                answer = self._process(connection, line)
            except CollectiveRefusedError as error:
                answer = {"error": str(error)}
            if answer is not None:
                self._send(connection, answer)
        learns = any(members.group.learns for members in connection.groups.values())
        if not data or len(connection.unread) > (_MAX_MESSAGES_BYTES if learns else _MAX_LINE_BYTES):
            self._drop(connection)

    def _send(self, connection: _Connection, answer: Mapping[str, Any]) -> None:
        if connection in self._connections:
            connection.unsent += json.dumps(answer, separators=(",", ":")).encode() + b"\n"
            self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        connection.unsent = connection.unsent[sent:]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.socket, events, self._selector.get_key(connection.socket).data)

    def _drop(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()
            for members in connection.groups.values():
                self._leave(members, connection)

    def _leave(self, members: _Members, connection: _Connection) -> None:
        del members.known[connection]
        if not members.known:
            self._unfinished += len(members.collectives)
            self._groups = {key: one for key, one in self._groups.items() if one is not members}

    # --- questions ---------------------------------------------------------------------------------------------------

    def _process(self, connection: _Connection, line: bytes) -> Mapping[str, Any] | None:
        """Return the answer to a line; None if there is none, or later. Raises CollectiveRefusedError."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise CollectiveRefusedError(f"{line[:60]!r} is not a JSON object")
        if message.get("ask") == "group":
            return self._announce(connection, message)
        members = connection.groups.get(_text(message, "group"))
        if members is None:
            raise CollectiveRefusedError(f"the group {message['group']} is not known; allowed: one announced before")
        number, rank = _whole(message, "number", 0, 1 << 60), members.ranks.index(connection.rank)
        if message.get("ask") == "plan":
            self._ask(members, number, connection, _request(message, len(members.ranks)))
        elif message.get("tell") == "ended":
            self._end(members, number, rank, message)
        elif message.get("tell") == "failed":
            self._fail(members, number, {**message, "rank": connection.rank})
        else:
            raise CollectiveRefusedError('neither "ask" is "group" or "plan", nor "tell" "ended" or "failed"')
        return None

    def _announce(self, connection: _Connection, message: Mapping[str, Any]) -> Mapping[str, Any]:
        name, ranks = _text(message, "group"), message.get("ranks")
        everyone = range(len(self._listeners))
        if not (isinstance(ranks, list) and all(type(rank) is int and rank in everyone for rank in ranks)):
            raise CollectiveRefusedError(
                f"the group {name} has the ranks {ranks}; allowed: a list of ranks from 0 to {everyone[-1]}"
            )
        if len(set(ranks)) != len(ranks) or connection.rank not in ranks:
            raise CollectiveRefusedError(
                f"the group {name} has the ranks {ranks}; allowed: each once, and rank {connection.rank} among them"
            )
        # A script that destroys its groups and makes them again uses the same names, and so do ranks that are started
        # again. How often a rank has announced a name does not tell which is meant: one may have failed before it did.
        key = name, _text(message, "made"), tuple(ranks)
        if key not in self._groups:
            if len(self._groups) >= _MAX_GROUPS:
                raise CollectiveRefusedError(f"the script has more than {_MAX_GROUPS:,} groups; allowed: so many")
            self._groups[key] = _Members(tuple(ranks), self._new_group(tuple(ranks)))
        members, before = self._groups[key], connection.groups.get(name)
        if before is not None and before is not members:
            self._leave(before, connection)
        connection.groups[name] = members
        members.known.setdefault(connection, {})
        return {"group": name, "connect": members.group.connects}

    def _ask(self, members: _Members, number: int, connection: _Connection, request: Request) -> None:
        if number not in members.collectives:
            self._count += 1
            self._announced(self._count - 1)
            planned = members.group.plan(request)
            collective = members.collectives[number] = _Collective(request, planned)
            future = self._paths.direct(planned.crossings) if planned.is_directed else None
            if future is not None:
                self._note_moved(collective)
                collective.ready = False
                future.add_done_callback(lambda done: self._installed(members, number, done))
        collective = members.collectives[number]
        rank = members.ranks.index(connection.rank)
        if not _agree(collective.request, request):
            raise CollectiveRefusedError(
                f"rank {rank} of the group asks for {request} as its collective {number}, and another rank for "
                f"{collective.request}; allowed: the same on all ranks"
            )
        collective.asked.add(rank)
        if collective.ready:
            self._answer(members, collective, connection, rank)
        else:
            collective.waiting.append((connection, rank))

    def _note_moved(self, new: _Collective) -> None:
        """Note which collectives under way have pairs of GPUs whose paths are changed for a new one."""
        paths = new.planned.crossings
        for members in self._groups.values():
            for one in members.collectives.values() if members.group.learns else ():
                was = one.planned.crossings
                one.is_moved |= any(was[pair] != paths[pair] for pair in was.keys() & paths.keys())

    def _answer(self, members: _Members, collective: _Collective, connection: _Connection, rank: int) -> None:
        if collective.error is not None:
            self._send(connection, {"error": collective.error})
            return
        if connection not in members.known:
            return  # it has closed its connection while it waited
        of, placement, known = collective.planned.workload, collective.planned.placement, members.known[connection]
        key = of.kind, of.algorithm, len(of.schedule.transfers), of.slot_bytes, placement
        plan = members.plans.pop(key, self._plans)
        self._plans = max(self._plans, plan + 1)
        answer: dict[str, Any] = {"plan": plan}
        answer["content"] = None if plan in known else content_of(collective.planned, rank)
        if members.group.learns:
            answer["messages"] = True
        known.pop(plan, None)
        members.plans[key], known[plan] = plan, None
        if len(members.plans) > _MAX_PLANS:
            del members.plans[next(iter(members.plans))]
        if len(known) > _MAX_PLANS:
            answer["forget"] = oldest = next(iter(known))
            del known[oldest]
        self._send(connection, answer)

    def _installed(self, members: _Members, number: int, future: Future[int]) -> None:
        """Note that paths are in force, in the thread that has installed them, and wake the selector."""
        self._finished.append((members, number, future))
        os.eventfd_write(self._done, 1)

    def _answer_waiting(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._done)
        while self._finished:
            members, number, future = self._finished.pop(0)
            collective = members.collectives.get(number)
            if collective is None:
                continue
            error = future.exception()
            if error is None:
                collective.messages = future.result()
            else:
                collective.error = f"{collective.request} has no paths: {error}"
            collective.ready = True
            waiting, collective.waiting = collective.waiting, []
            for connection, rank in waiting:
                self._answer(members, collective, connection, rank)

    def _fail(self, members: _Members, number: int, message: Mapping[str, Any]) -> None:
        """Give a collective up that has failed on a rank: those that wait for its paths fail, too."""
        collective = members.collectives.pop(number, None)
        for connection, _ in () if collective is None else collective.waiting:
            why = str(message.get("why"))[:_MAX_NAME]
            self._send(connection, {"error": f"the collective has failed on rank {message['rank']}: {why}"})

    def _end(self, members: _Members, number: int, rank: int, message: Mapping[str, Any]) -> None:
        collective = members.collectives.get(number)
        if collective is None:
            return  # told twice, or after it has failed
        asked_ns, begun_ns, ended_ns = (
            _whole(message, name, 0, 1 << 62) for name in ("asked_ns", "begun_ns", "ended_ns")
        )
        if members.group.learns and "sent" in message:
            collective.told.append(_messages(message, begun_ns))
        collective.times_ns[rank] = asked_ns, begun_ns, ended_ns
        if len(collective.times_ns) < len(members.ranks):
            return
        del members.collectives[number]
        times = [*collective.times_ns.values()]
        begun_ns, ended_ns = max(begun for _, begun, _ in times), max(ended for _, _, ended in times)
        request, planned = collective.request, collective.planned
        members.group.ended(request, planned, (ended_ns - begun_ns) / 1e9)
        self._record(
            {
                "ranks": members.ranks,
                "number": number,
                "kind": request.kind,
                "size_bytes": request.size_bytes,
                "algorithm": planned.workload.algorithm,
                "transfers": len(planned.workload.schedule.transfers),
                "placement": [members.ranks[one] for one in planned.placement],
                "crossings": [[*pair, path] for pair, path in planned.crossings.items()],
                "reembedded": planned.reembedded,
                "rerouted": planned.rerouted,
                "messages": collective.messages,
                "asked_ns": [min(asked for asked, _, _ in times), max(asked for asked, _, _ in times)],
                "begun_ns": [min(begun for _, begun, _ in times), begun_ns],
                "ended_ns": ended_ns,
                "predicted_s": planned.predicted_s,
            }
        )
        if members.group.learns and not collective.is_moved:
            members.group.observed(planned, collective.told)


def _agree(one: Request, other: Request) -> bool:
    """Whether ranks ask for the same collective: the parts of an alltoall may differ, and thus what each rank sends."""
    return one == other or (one.kind == "alltoall" and replace(one, size_bytes=other.size_bytes) == other)


def _text(message: Mapping[str, Any], name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str) or len(value) > _MAX_NAME:
        raise CollectiveRefusedError(f'"{name}" is {str(value)[:60]}; allowed: a text of up to {_MAX_NAME} characters')
    return value


def _whole(message: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = message.get(name)
    if type(value) is not int or not least <= value <= most:
        raise CollectiveRefusedError(f'"{name}" is {str(value)[:60]}; allowed: {least} to {most}')
    return value


def _messages(message: Mapping[str, Any], begun_ns: int) -> RankMessages:
    """Return what a rank tells of its messages, with times by its clock; raises CollectiveRefusedError."""
    rows: dict[str, list[tuple[int, ...]]] = {}
    for name, width in (("sent", 3), ("arrived", 2)):
        found = message.get(name)
        if not (
            isinstance(found, list)
            and all(
                isinstance(row, list)
                and len(row) == width
                and all(type(one) is int and 0 <= one < 1 << 62 for one in row)
                for row in found
            )
        ):
            raise CollectiveRefusedError(
                f'"{name}" is {str(found)[:60]}; allowed: a list of lists of {width} whole numbers'
            )
        rows[name] = [tuple(row) for row in found]
    return RankMessages(
        sent={task: (begun_ns + at_ns, size) for task, at_ns, size in rows["sent"]},
        arrived={task: begun_ns + at_ns for task, at_ns in rows["arrived"]},
    )


def _request(message: Mapping[str, Any], ranks: int) -> Request:
    kind = message.get("kind")
    if not isinstance(kind, str) or kind not in ALGORITHMS:
        raise CollectiveRefusedError(f'"kind" is {str(kind)[:60]}; allowed: {", ".join(ALGORITHMS)}')
    return Request(
        kind=kind,
        size_bytes=_whole(message, "bytes", 1, MAX_BYTES),
        unit_bytes=_whole(message, "unit", 1, MAX_UNIT_BYTES),
        root=_whole(message, "root", 0, ranks - 1),
    )
