"""Reads Chakra execution traces, one file per rank, as workloads: computations, messages, and collectives of groups.

Sridharan et al., "Chakra: Advancing Performance Benchmarking and Co-design using Standardized Execution Traces"
(arXiv 2305.14516). A file is a GlobalMetadata and then Nodes of `et_def.proto` (github.com/mlcommons/chakra, schema
0.0.4), each prefixed with its length. This module decodes the few fields that it needs itself, message by message: this
takes less code and memory than a generated module with protobuf's runtime, and only these fields are kept.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, groupby, pairwise, takewhile
from pathlib import Path
from typing import BinaryIO

from hosts.collectives.kinds import ALGORITHMS, TRACE, Sites, Workload, blocks, contents, sized, workload
from hosts.collectives.operations import (
    MAX_CALC_NS,
    MAX_MESSAGE_BYTES,
    MAX_OPERATIONS,
    Operation,
    dry_run,
    match,
    topological_order,
)
from hosts.collectives.schedule import Flow, Schedule, ScheduleError, Stream, Transfer, own_contributions
from hosts.collectives.untrusted_file import MAX_BYTES, MAX_GPUS, MAX_SLOTS, opened
from topologies.errors import list_first

MAX_WAITS = 10_000_000
"""Maximum number of dependencies of all nodes together."""
MAX_DIMENSIONS = 16
MAX_GROUPS = 64
"""Maximum number of groups of a rank; each group has its own connections."""
MAX_NAME = 200

_NO_TIME, COMPUTES, SENDS, RECEIVES, COLLECTIVE = (0, 1), 4, 5, 6, 7  # NodeType
_COMMUNICATES = (SENDS, RECEIVES, COLLECTIVE)
_NAMES = ("INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")
_BARRIER = 9
KINDS = {  # CollectiveCommType
    **{0: "allreduce", 1: "reduce", 2: "allgather", 3: "gather", 4: "scatter", 5: "broadcast", 6: "alltoall"},
    **{7: "reducescatter", 8: "reducescatter", _BARRIER: "allreduce"},
}
OF_EACH = ("allgather", "gather")  # comm_size is a rank's contribution; for other kinds it is the whole buffer
_SUMS = ("allreduce", "reduce", "reducescatter")
_WORD = 4
_GPU, _CPU = 0, 1  # streams
_MIN_TAG = -(2**31)
_RECORD = "record_param_comms"
_PEERS = re.compile(r"nccl:(?:send (\d{1,9})->|recv (\d{1,9})<-)(\d{1,9})", re.ASCII)
"""PyTorch's name of an NCCL message: the rank that sends or receives it, and its peer, both numbered in the group."""


def files_of(path: Path) -> list[Path]:
    """Return the files of a path: if its name has a * for the rank, the existing files of ranks 0, 1, 2 ..., and
    otherwise the path itself."""
    if "*" not in path.name:
        return [path]
    return list(takewhile(os.path.exists, (of_rank(path, rank) for rank in count())))


def of_rank(path: Path, rank: int) -> Path:
    """Return the file of a rank: the path with the rank in place of the * in its name."""
    return path.with_name(path.name.replace("*", str(rank)))


def read(path: Path, *, sites: Sites, algorithm: str | None = None, tflops: float | None = None) -> Workload:
    """Return the workload of a trace with rank r at place r of `sites` (GPUs per site); `path` has a * for the rank.

    A node begins when the nodes on which it depends (data_deps and ctrl_deps) are done; a send is done once it begins.
    In files of Chakra's converters, whose GlobalMetadata has a schema, ctrl_deps are a node's callers, which continue
    while it runs, so only data_deps count. Computations and CPU nodes (is_cpu_op) take their duration_micros on their
    rank's GPU or CPU, one at a time, or, given `tflops`, num_ops at 10^12 `tflops` operations per second. The n-th send
    to a rank with a tag matches the n-th receive there. Chakra's converters write PyTorch's messages with a pg_name
    instead of a peer: such a message is between the ranks of the group that the caller's name gives ("nccl:send
    0->1"), or between the only two.

    A group is the set of ranks that have its pg_name, or the ranks along the dimensions of involved_dim: the GPUs of a
    site, and the sites. Its ranks begin its collectives in the order in which all of them could if nothing took time,
    and in file order among those that could begin together; each follows the previous one. Ranks match collectives by
    kind, size and name, or by kind and size alone. A group has its own connections. Collectives of 0 bytes synchronise
    like others, and those of one rank take no time. A collective uses `algorithm` if its kind has that one, and
    otherwise the first algorithm of its kind; the group's first rank is the root. Sums are of 4-byte words; if there
    are any, all sizes are rounded up to whole words.

    As in Chakra's feeder, a ctrl_dep on a node that is not in the file counts as met, and a data_dep never is. The
    schedule's notes say what was left out.

    Raises ScheduleError, one sentence that begins with the path, if a file is not such a trace or is too large, if the
    ranks' files contradict each other, and for cyclic dependencies.
    """
    if path.name.count("*") != 1:
        raise ScheduleError(f"{path}; allowed: a name with one * for the rank, such as trace.*.et")
    num_files, places = len(files_of(path)), sum(sites)
    if not num_files or num_files != places or places > MAX_GPUS:
        fewer = f", or a [[job]] with {num_files:,} ranks" if 1 < num_files < places else ""
        raise ScheduleError(
            f"{path}: {num_files:,} file{'s' * (num_files != 1)} for {places:,} GPUs; allowed: one for each, and at "
            f"most {MAX_GPUS:,} GPUs{fewer}"
        )
    trace = _Trace(path, sites, algorithm, tflops)
    for rank in range(places):
        trace.read(rank)
    return trace.workload()


# --- protobuf ---------------------------------------------------------------------------------------------------------


class _Malformed(Exception):
    """Raised for malformed content; the message lacks its beginning, the name of the file."""


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Decode the varint at a position, at most 64 bits; return the number and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise _Malformed("it ends within a number")
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (1 << 64) - 1, at
    raise _Malformed("a number has more than 10 bytes")


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message: the field number, and the value: an int for a varint, and otherwise bytes."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(content, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(content, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise _Malformed(f"a field has the wire type {kind}")
        if size > len(content) - at:
            raise _Malformed("a field is longer than the message")
        yield tag >> 3, content[at : at + size]
        at += size


def _messages(file: BinaryIO) -> Iterator[bytes]:
    """Yield the messages of a file, each of which is prefixed with its length."""
    while first := file.read(1):
        head = first
        while head[-1] >= 0x80 and len(head) < 10 and (byte := file.read(1)):
            head += byte
        size, _ = _varint(head, 0)
        if size > MAX_BYTES:
            raise _Malformed(f"it has {size:,} bytes; allowed: {MAX_BYTES:,}")
        content = file.read(size)
        if len(content) < size:
            raise _Malformed(f"the file ends after {len(content):,} of its {size:,} bytes")
        yield content


Value = int | str | tuple[bool, ...]


@dataclass(slots=True)
class _Node:
    """The fields of a node that are used. `waits` has its data_deps, `control` its ctrl_deps, `values` attributes."""

    id: int = 0
    name: str = ""
    type: int = 0
    duration_us: int = 0
    waits: set[int] = field(default_factory=set)
    control: set[int] = field(default_factory=set)
    values: dict[str, Value] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """The node's type and name, for error messages."""
        return f"{_NAMES[self.type]}_NODE {self.name!r}"

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """Return the value of a numeric attribute; raises _Malformed unless it is a number from `least` to `most`."""
        value = self.values.get(name, default)
        if not isinstance(value, int) or not least <= value <= most:
            shown = "is missing" if value is None else f"{value!r}"[:80]
            raise _Malformed(f"its {name} {shown}; allowed: a whole number from {least:,} to {most:,}")
        return value


_READ = (
    *("is_cpu_op", "num_ops", "comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "pg_name"),
    *("involved_dim", "schema"),
)


def _node(content: bytes) -> _Node:
    node = _Node()
    numbers = {1: "id", 3: "type", 7: "duration_us"}
    for number, value in _fields(content):
        if number in numbers:
            if not isinstance(value, int):
                raise _Malformed(f"its field {number} is not a number")
            setattr(node, numbers[number], value)
        elif number in (4, 5):
            waits = node.control if number == 4 else node.waits
            waits.update((value,) if isinstance(value, int) else _packed(value, MAX_OPERATIONS))
            if len(waits) > MAX_OPERATIONS:
                raise _Malformed(f"it depends on more than {MAX_OPERATIONS:,} nodes; allowed: that many")
        elif number in (2, 10):
            if not isinstance(value, bytes):
                raise _Malformed(f"its field {number} is a number")
            if number == 2:
                node.name = value[:60].decode(errors="replace")
            else:
                _attribute(value, node.values)
    if node.type >= len(_NAMES):
        raise _Malformed(f"its type is {node.type}; allowed: 0 to {len(_NAMES) - 1}")
    return node


def _is_converted(content: bytes) -> bool:
    """Return whether a file's GlobalMetadata has a schema, as the files of Chakra's converters do."""
    values: dict[str, Value] = {}
    for number, value in _fields(content):
        if not isinstance(value, bytes):
            raise _Malformed("it is not GlobalMetadata; allowed: GlobalMetadata followed by Nodes")
        if number == 2:
            _attribute(value, values)
    return "schema" in values


def _packed(content: bytes, most: int) -> list[int]:
    """Decode the numbers of a packed repeated field."""
    numbers, at = list[int](), 0
    while at < len(content):
        if len(numbers) > most:
            raise _Malformed(f"a list has more than {most:,} numbers; allowed: that many")
        number, at = _varint(content, at)
        numbers.append(number)
    return numbers


def _attribute(content: bytes, values: dict[str, Value]) -> None:
    """Store the value of an AttributeProto in `values` if its name is in `_READ`."""
    name = ""
    value: Value | None = None
    for number, given in _fields(content):
        if number == 1 and isinstance(given, bytes):
            name = given[:60].decode(errors="replace")
        elif isinstance(given, int) and number in (7, 9):  # int32, int64
            value = given - (given >> 63 << 64)
        elif isinstance(given, int) and number in (15, 17):  # sint32, sint64
            value = given >> 1 ^ -(given & 1)
        elif isinstance(given, int) and number in (11, 13, 27):  # uint32, uint64, bool
            value = given
        elif isinstance(given, bytes) and number in (19, 21, 23, 25):  # fixed32, fixed64, sfixed32, sfixed64
            value = int.from_bytes(given, "little", signed=number > 21)
        elif isinstance(given, bytes) and number == 29:
            value = given[: MAX_NAME + 1].decode(errors="replace")
        elif isinstance(given, bytes) and number == 28:  # BoolList
            bools = list[int]()
            for _, one in _fields(given):
                bools += [one] if isinstance(one, int) else _packed(one, MAX_DIMENSIONS)
                if len(bools) > MAX_DIMENSIONS:
                    raise _Malformed(f"a list has more than {MAX_DIMENSIONS} booleans; allowed: that many")
            value = tuple(map(bool, bools))
    if name in _READ and value is not None:
        values[name] = value


# --- all ranks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call:
    """A collective in a rank's trace, with the operations of its beginning and its end on that rank."""

    begin: int
    end: int
    kind: str
    size_bytes: int


_SlotBlock = tuple[tuple[int, int], int]
"""A block of slots: ((number of slots, bytes of a slot), index among blocks of this shape)."""

Group = tuple[int, ...] | str
"""A group: its ranks, or its pg_name."""


def _named(group: Group) -> str:
    return f"the group {group!r}" if isinstance(group, str) else f"the group of {len(group):,} ranks"


class _Trace:
    """A trace while its files are read: the operations so far, and the matching of messages and collectives."""

    def __init__(self, path: Path, sites: Sites, algorithm: str | None, tflops: float | None) -> None:
        self._path, self._sites, self._algorithm, self._tflops = path, sites, algorithm, tflops
        self._site = [site for site, gpus in enumerate(sites) for _ in range(gpus)]
        self._operations: list[Operation] = []
        self._positions: list[int] = []  # of each operation's node in its file
        self._sizes: list[float] = []  # bytes of a message, or seconds of a computation
        self._slots: dict[int, tuple[tuple[int, int], ...]] = {}  # of each operation that sends slots
        self._adds: set[int] = set()
        self._sends: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        self._receives: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        self._calls: defaultdict[Group, dict[int, list[_Call]]] = defaultdict(dict)
        self._members: defaultdict[str, set[int]] = defaultdict(set)  # the ranks of each named group
        self._without_peer: list[tuple[int, int, _Node, str]] = []  # messages: rank, operation, node and group
        self._callers: list[dict[int, _Node]] = []  # by rank and id: nodes whose names may give a message's peer
        self._waits = self._without_node = self._of_one_rank = 0
        self._slot_sizes: list[int] = []
        self._holds: list[set[int]] = [set() for _ in self._site]  # the slots of each place with initial contents
        self._blocks_in_use: list[set[_SlotBlock]] = [set() for _ in self._site]
        self._last_block: dict[tuple[tuple[int, ...], tuple[int, int]], int] = {}
        self._block_start: dict[_SlotBlock, int] = {}  # the first slot of each block
        self._workloads: dict[tuple[str, Sites], Workload] = {}

    def read(self, rank: int) -> None:
        """Read the file of a rank."""
        path = of_rank(self._path, rank)
        nodes: dict[int, int] = {}  # by node id, the operation of the node's end
        self._callers.append({})
        waiting: list[tuple[int, set[int], set[int]]] = []  # the operation of a beginning, data_deps and ctrl_deps
        number, converted = 0, False
        with opened(path) as file:
            try:
                messages = _messages(file)
                while True:
                    number += 1
                    if (content := next(messages, None)) is None:
                        break
                    if number == 1:
                        converted = _is_converted(content)
                        continue
                    node = _node(content)
                    if node.name == _RECORD or _PEERS.fullmatch(node.name):
                        self._callers[rank][node.id] = node
                    if node.id in nodes:
                        raise _Malformed(f"the id {node.id} is that of another node; allowed: unique ids")
                    begin, nodes[node.id] = self._add_node(rank, node, number, path)
                    control = set[int]() if converted else node.control
                    waiting.append((begin, node.waits, control))
                    self._waits += len(node.waits) + len(control)
                    if self._waits > MAX_WAITS:
                        raise _Malformed(f"nodes depend on more than {MAX_WAITS:,} others; allowed: that many")
            except _Malformed as error:
                raise ScheduleError(f"{path}, message {number:,}: {error}") from None
        if number == 1:
            raise ScheduleError(f"{path}: it is empty; allowed: GlobalMetadata followed by Nodes")
        for begin, waits, control in waiting:
            operation = self._operations[begin]
            missing = next((one for one in waits if one not in nodes), None)
            if missing is not None:
                raise ScheduleError(
                    f"{operation.where}: it has the data_dep {missing}, which names no node of the file, so that "
                    "Chakra's feeder would never begin it; allowed: data_deps on nodes of the file"
                )
            self._without_node += len(control - nodes.keys())
            operation.requires += [nodes[one] for one in sorted(waits | (control & nodes.keys()))]

    def _add_node(self, rank: int, node: _Node, position: int, path: Path) -> tuple[int, int]:
        """Add a node; return the operations of its beginning and its end."""
        where = f"{path}, node {node.id}"
        is_of_cpu = bool(node.number("is_cpu_op", 0, 1, 0))
        if node.type == COLLECTIVE and not is_of_cpu:
            return self._add_collective(rank, node, position, where)
        operation = Operation(where=where, what=node.what)
        size, index = 0.0, len(self._operations)
        # A CPU node of a communication type is only the call: the GPU's node communicates.
        if node.type == COMPUTES or (node.type in _COMMUNICATES and is_of_cpu):
            size = self._seconds(node)
            if size:
                operation.server = Stream(rank, _CPU if is_of_cpu else _GPU)
        elif node.type in (SENDS, RECEIVES):
            mine, theirs = ("comm_src", "comm_dst") if node.type == SENDS else ("comm_dst", "comm_src")
            node.number(mine, rank, rank, rank)
            tag = node.number("comm_tag", _MIN_TAG, 2**32, 0)
            if theirs not in node.values and (group := self._group_name(rank, node)):
                self._without_peer.append((rank, index, node, group))
            else:
                peer = node.number(theirs, 0, len(self._site) - 1)
                if peer == rank:
                    raise _Malformed(f"its {theirs} is {rank}, its own rank; allowed: another rank")
                self._add_message(operation, index, rank, peer, tag, sends=node.type == SENDS)
            size = node.number("comm_size", 0, MAX_MESSAGE_BYTES)
        elif node.type not in _NO_TIME:
            raise _Malformed(f"it is a {_NAMES[node.type]}_NODE; allowed: all other types, as memory is not modelled")
        self._add(operation, position, size)
        return index, index

    def _group_name(self, rank: int, node: _Node) -> str:
        """Return the pg_name of a node, or "" without one, and record the rank as a member of that group."""
        name = node.values.get("pg_name", "")
        if not isinstance(name, str) or len(name.encode()) > MAX_NAME:
            raise _Malformed(f"its pg_name is not text, or too long; allowed: text of {MAX_NAME} bytes at most")
        if name:
            self._members[name].add(rank)
        return name

    def _add_message(self, operation: Operation, index: int, rank: int, peer: int, tag: int, *, sends: bool) -> None:
        """Make operation `index` the sending or the receiving end, on `rank`, of a message with `peer` under `tag`."""
        if sends:
            operation.server = Flow(rank, peer)
            self._sends[rank, peer, tag].append(index)
        else:
            self._receives[peer, rank, tag].append(index)

    def _find_peers(self) -> None:
        """Find the peer of each message without one, from its callers' names or from a group of two ranks."""
        tags = {name: _MIN_TAG - number for number, name in enumerate(self._members, 1)}  # a separate tag per group
        of_groups = {name: sorted(ranks) for name, ranks in self._members.items()}
        for rank, index, node, group in self._without_peer:
            members, callers = of_groups[group], self._callers[rank]
            candidates = [callers[id_] for id_ in node.control if id_ in callers]
            candidates += [callers[id_] for caller in candidates for id_ in caller.control if id_ in callers]
            matched = next((match for caller in candidates if (match := _PEERS.fullmatch(caller.name))), None)
            if matched is not None:
                mine, other = int(matched[1] or matched[2] or 0), int(matched[3])
                fits = max(mine, other) < len(members) and members[mine] == rank != members[other]
                peer = members[other] if fits else None
            else:
                peer = sum(members) - rank if len(members) == 2 else None
            if peer is None:
                caller_text = f"a caller {matched[0]!r}" if matched else "no caller such as 'nccl:send 0->1'"
                theirs = "comm_dst" if node.type == SENDS else "comm_src"
                raise ScheduleError(
                    f"{self._operations[index].where}: {node.what} has {caller_text} and {_named(group)} the ranks "
                    f"{list_first(list(map(str, members)), 8)}; allowed: a {theirs}, a caller that fits, or two ranks"
                )
            operation = self._operations[index]
            self._add_message(operation, index, rank, peer, tags[group], sends=node.type == SENDS)

    def _seconds(self, node: _Node) -> float:
        """Return the duration of a computation in seconds."""
        most_us, ops = MAX_CALC_NS // 1000, node.number("num_ops", 0, 2**63, 0)
        if node.duration_us > most_us:
            raise _Malformed(f"its duration_micros is {node.duration_us:,}; allowed: {most_us:,} at most")
        if not ops or (self._tflops is None and node.duration_us):
            return node.duration_us * 1e-6
        if self._tflops is None:
            raise _Malformed(f"it has {ops:,} num_ops and no duration_micros; allowed: with collective.tflops")
        if (seconds := ops / (1e12 * self._tflops)) * 1e6 > most_us:
            raise _Malformed(f"its {ops:,} num_ops take {seconds:,.0f} s; allowed: {most_us / 1e6:,.0f} s at most")
        return seconds

    def _add(self, operation: Operation, position: int, size: float = 0.0) -> int:
        if len(self._operations) >= MAX_OPERATIONS:
            raise _Malformed(
                f"there are more than {MAX_OPERATIONS:,} operations; allowed: that many of all ranks, where a message "
                "is two"
            )
        self._operations.append(operation)
        self._positions.append(position)
        self._sizes.append(size)
        return len(self._operations) - 1

    def _add_collective(self, rank: int, node: _Node, position: int, where: str) -> tuple[int, int]:
        type_ = node.number("comm_type", 0, len(KINDS) - 1)
        size = _WORD if type_ == _BARRIER else node.number("comm_size", 0, MAX_MESSAGE_BYTES)
        name, dimensions = self._group_name(rank, node), node.values.get("involved_dim", ())
        if not isinstance(dimensions, tuple):
            raise _Malformed("its involved_dim is not a list of booleans; allowed: such a list")
        begin = self._add(Operation(where=where, what=node.what), position)
        calls = self._calls[name or self._ranks_along(rank, dimensions)].setdefault(rank, [])
        end = self._add(Operation(where=where, what=node.what, requires=[begin]), position)
        calls.append(_Call(begin, end, KINDS[type_], size))
        return begin, end

    def _ranks_along(self, rank: int, dimensions: tuple[bool, ...]) -> tuple[int, ...]:
        """Return the ranks of a collective along these dimensions: the GPUs within a site, and the sites."""
        everyone = tuple(range(len(self._site)))
        if all(dimensions):
            return everyone
        gpus = self._sites[0]
        if set(self._sites) != {gpus}:
            raise _Malformed(
                f"its involved_dim selects some dimensions, but sites have {', '.join(map(str, self._sites))} GPUs; "
                "allowed: sites of equal size"
            )
        inside, across = (*dimensions, False)[:2]
        return tuple(
            one for one in everyone if (inside or one % gpus == rank % gpus) and (across or one // gpus == rank // gpus)
        )

    def workload(self) -> Workload:
        """Return the workload of all files."""
        self._find_peers()
        match(self._operations, self._sizes, self._sends, self._receives)
        self._order_calls()
        kinds = {call.kind for ranks in self._calls.values() for calls in ranks.values() for call in calls}
        if self._algorithm is not None and not any(self._algorithm in ALGORITHMS[kind] for kind in kinds):
            allowed = ", ".join(sorted({name for kind in kinds for name in ALGORITHMS[kind]})) or "none, as it has none"
            raise ScheduleError(
                f"{self._path}: none of its collectives has the algorithm {self._algorithm}; allowed: {allowed}"
            )
        word = _WORD if kinds & {*_SUMS} else 1
        try:
            self._expand_groups(word)
        except _Malformed as error:
            raise ScheduleError(f"{self._path}: {error}") from None
        order = topological_order(self._operations, self._positions)
        if not any(isinstance(server, Flow) for server in order.servers):
            raise ScheduleError(f"{self._path}: the trace has no message; allowed: at least one")
        transfers = []
        for index, server, after in zip(order.tasks, order.server, order.after, strict=True):
            size = self._sizes[index]
            if isinstance(order.servers[server], Flow):
                size = float(-(-int(size) // word) * word)
            pairs = self._slots.get(index, ())
            transfers.append(Transfer(flow=server, size=size, slots=pairs, adds=index in self._adds, after=after))
        places, slots = len(self._site), len(self._slot_sizes)
        return Workload(
            kind=TRACE,
            algorithm=self._path.name,
            schedule=Schedule(
                places=places,
                slots=slots,
                flows=order.servers,
                transfers=tuple(transfers),
                notes=self._notes(),
            ),
            slot_bytes=1,
            slot_sizes=tuple(self._slot_sizes),
            contents=own_contributions(self._holds, slots),
            groups=(),
        )

    def _notes(self) -> tuple[str, ...]:
        counts = {
            "ctrl_deps on nodes that are in no file count as met": self._without_node,
            "collectives of groups of one rank take no time": self._of_one_rank,
        }
        return tuple(f"{self._path.name}: {number:,} {what}" for what, number in counts.items() if number)

    def _order_calls(self) -> None:
        """Match the collectives of each group, sort them, and let each wait for the previous one on its rank.

        They are in the order in which all members of the group can begin them if nothing takes time. Members match by
        kind, size and name or, if that leaves some over, by kind and size. Those left over stay last, in file order.
        """
        for with_names in (True, False):
            ordered = self._ordered_calls(with_names=with_names)
            if all(len(ordered[group, rank]) == len(calls) for group, rank, calls in self._all_calls()):
                break
        for group, rank, calls in self._all_calls():
            place = {call.begin: number for number, call in enumerate(ordered[group, rank])}
            calls.sort(key=lambda call: place.get(call.begin, len(place)))
            for before, call in pairwise(calls):
                self._operations[call.begin].requires.append(before.end)

    def _all_calls(self) -> Iterator[tuple[Group, int, list[_Call]]]:
        for group, ranks in self._calls.items():
            for rank, calls in ranks.items():
                yield group, rank, calls

    def _ordered_calls(self, *, with_names: bool) -> dict[tuple[Group, int], list[_Call]]:
        """Return the matched collectives of each group and rank, in order."""
        of = {call.begin: (group, rank, call) for group, rank, calls in self._all_calls() for call in calls}
        ready: defaultdict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)  # heaps (position, begin)
        ordered: defaultdict[tuple[Group, int], list[_Call]] = defaultdict(list)

        def on_begin(index: int) -> list[int]:
            """Begin a collective once its last member can; whatever else members begin meanwhile, they still can."""
            if index not in of:
                return []
            group, rank, call = of[index]
            key = call.kind, call.size_bytes, self._operations[index].what if with_names else ""
            heappush(ready[group, rank, key], (self._positions[index], index))
            members = self._members_of(group)
            if not all(ready[group, member, key] for member in members):
                return []
            begun = [of[heappop(ready[group, member, key])[1]][2] for member in members]
            for member, own in zip(members, begun, strict=True):
                ordered[group, member].append(own)
            return [own.end for own in begun]

        dry_run(self._operations, [call.end for _, _, call in of.values()], on_begin, self._positions)
        return ordered

    def _members_of(self, group: Group) -> tuple[int, ...]:
        """Return the ranks of a group, in order."""
        return tuple(sorted(self._calls[group])) if isinstance(group, str) else group

    def _expand_groups(self, word: int) -> None:
        """Give every group a channel that no other group of its ranks has, and add the messages of its collectives."""
        used_channels: list[set[int]] = [set() for _ in self._site]
        for group, calls in self._calls.items():
            members = self._members_of(group)
            matched = self._matched_calls(group, members, calls)
            if len(members) < 2:
                self._of_one_rank += sum(map(len, calls.values()))
                continue
            taken = set[int]().union(*(used_channels[member] for member in members))
            channel = next(channel for channel in count(1) if channel not in taken)
            if channel > MAX_GROUPS:
                raise _Malformed(
                    f"{_named(group)} has a rank that is in {MAX_GROUPS} other groups; allowed: {MAX_GROUPS} "
                    "groups for each rank"
                )
            for member in members:
                used_channels[member].add(channel)
            position = 0
            for calls_of_ranks in matched:
                # Messages of a collective must not overtake those of the group's previous one on their connections.
                position = max(position, self._positions[calls_of_ranks[0].begin])
                self._expand_collective(members, calls_of_ranks, channel, word, position=position)

    def _matched_calls(
        self, group: Group, members: Sequence[int], calls: dict[int, list[_Call]]
    ) -> Iterator[tuple[_Call, ...]]:
        """Return the collectives of a group in order, each as a tuple with the call of every member.

        Raises _Malformed and ScheduleError if members differ in the number, kinds or sizes of their collectives.
        """
        first = calls.get(members[0], [])
        for member in members:
            if len(own := calls.get(member, [])) != len(first):
                raise _Malformed(
                    f"{_named(group)} has {len(first):,} collectives on rank {members[0]} and {len(own):,} on rank "
                    f"{member}; allowed: equally many on each"
                )
            for expected, call in zip(first, own, strict=True):
                if (expected.kind, expected.size_bytes) != (call.kind, call.size_bytes):
                    raise ScheduleError(
                        f"{self._operations[call.begin].where}: {_named(group)} has {call.kind} of "
                        f"{call.size_bytes:,} bytes here and {expected.kind} of {expected.size_bytes:,} on rank "
                        f"{members[0]}; allowed: the same"
                    )
        return zip(*(calls[member] for member in members), strict=True)

    def _expand_collective(
        self, members: tuple[int, ...], calls: tuple[_Call, ...], channel: int, word: int, *, position: int
    ) -> None:
        """Add the messages of one collective of a group; among operations that are ready, `position` orders them."""
        kind, where, what = calls[0].kind, self._operations[calls[0].begin].where, self._operations[calls[0].begin].what
        size = calls[0].size_bytes * (len(members) if kind in OF_EACH else 1)
        collective = sized(self._collective_of(kind, members), max(1, size))
        schedule, slot_bytes = collective.schedule, -(-collective.slot_bytes // word) * word
        slot = self._free_slots(members, schedule.slots, slot_bytes) if size else 0
        holds, _ = contents(kind, places=len(members), slots=schedule.slots if size else 0)
        for member, held in zip(members, holds, strict=True):
            self._holds[member] |= {slot + here for here, content in enumerate(held) if content}
        last_send, received = dict[int, int](), list[int]()
        begins, ends = schedule.ends
        for transfer in schedule.transfers:
            src, dst = begins[transfer.flow], ends[transfer.flow]
            send = self._add(
                Operation(
                    where=where,
                    what=what,
                    server=Flow(members[src], members[dst], channel),
                    requires=[calls[src].begin, *(received[one] for one in transfer.after)],
                    started=[last_send[transfer.flow]] if transfer.flow in last_send else [],
                ),
                position,
                float(slot_bytes * len(transfer.slots)) if size else 0.0,
            )
            last_send[transfer.flow] = send
            if size:  # messages of empty collectives only synchronise
                self._slots[send] = tuple((slot + here, slot + there) for here, there in transfer.slots)
            if transfer.adds and size:
                self._adds.add(send)
            server = self._operations[send].server
            received.append(self._add(Operation(where=where, what=what, server=server, message=send), position))
            self._operations[calls[dst].end].requires.append(received[-1])

    def _free_slots(self, members: tuple[int, ...], slots: int, slot_bytes: int) -> int:
        """Return the first slot of a block of `slots` slots that no member uses yet; disjoint groups share blocks."""
        key = slots, slot_bytes
        start = self._last_block.get((members, key), -1) + 1
        index = next(
            one for one in count(start) if not any((key, one) in self._blocks_in_use[member] for member in members)
        )
        self._last_block[members, key] = index
        for member in members:
            self._blocks_in_use[member].add((key, index))
        if (key, index) not in self._block_start:
            self._block_start[key, index] = len(self._slot_sizes)
            self._slot_sizes += [slot_bytes] * slots
            self._check_slots(len(self._slot_sizes))
        return self._block_start[key, index]

    def _check_slots(self, slots: int) -> None:
        if slots * len(self._site) > MAX_SLOTS:
            raise _Malformed(
                f"collectives have more than {MAX_SLOTS:,} slots of all GPUs together, where each GPU has a slot per "
                "block; allowed: that many, so fewer collectives, or another collective.algorithm"
            )

    def _collective_of(self, kind: str, members: Sequence[int]) -> Workload:
        """Return a collective of this kind among `members`, with a placeholder size."""
        sites = tuple(len(list(row)) for _, row in groupby(self._site[member] for member in members))
        if (kind, sites) not in self._workloads:
            algorithm = self._algorithm if self._algorithm in ALGORITHMS[kind] else ALGORITHMS[kind][0]
            is_tree = kind == "allreduce" and algorithm in ("chain", "tree", "double-tree")
            if blocks(kind, len(members)) > 1 and not is_tree:
                self._check_slots(len(members))  # before a quadratic number of transfers is generated
            self._workloads[kind, sites] = workload(kind, str(algorithm), sites=sites, size_bytes=1)
        return self._workloads[kind, sites]
