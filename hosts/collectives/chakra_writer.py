"""Writes Chakra execution traces, which `chakra` reads: what a rank has computed and communicated, and schedules.

A file is a GlobalMetadata and then Nodes of `et_def.proto` (schema 0.0.4), each prefixed with its length. Times in it
are whole microseconds, so durations are rounded such that each node's end is within half a microsecond of the measured
one.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hosts.collectives.chakra import COLLECTIVE, COMPUTES, KINDS, OF_EACH, RECEIVES, SENDS
from hosts.collectives.schedule import Schedule, ScheduleError, Stream, check_placement

SCHEMA = "0.0.4"


@dataclass(frozen=True)
class Computation:
    """A kernel of a GPU: its begin, its time in ns, its FLOPs, and the ids of the nodes for whose ends it waited."""

    id: int
    name: str
    begin_ns: int
    took_ns: int
    flops: float
    after: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A collective on one rank: its kind, its size in bytes as nccl-tests counts it, and its begin and end in ns.

    `name` is the same on all ranks of its group. `group` is the group's name, "" for that of all ranks, of which it has
    `members`. It waited for the nodes with the ids `after`, and for the group's collective before it.
    """

    id: int
    name: str
    kind: str
    size_bytes: int
    group: str
    members: int
    begin_ns: int
    end_ns: int
    after: tuple[int, ...]


def content(nodes: Iterable[Computation | Call], origin_ns: int) -> bytes:
    """Return the content of a rank's file; the trace begins at `origin_ns`.

    What a node waited for beside other nodes, such as the host, is a COMP_NODE of the CPU that takes this time. Ids of
    nodes that are not given count as ended.
    """
    writer = _Writer(origin_ns)
    for node in sorted(nodes, key=lambda one: (one.begin_ns, one.id)):
        writer.add(node)
    return writer.content()


def messages(schedule: Schedule, *, placement: Sequence[int], slot_bytes: float) -> list[bytes]:
    """Return each rank's file of a schedule, with rank `placement[p]` at place p and slots of `slot_bytes`.

    A message is a send of one rank and a receive of another with the same tag, its 1-based index in the schedule. A
    send depends on the receives for which the messages of its flow up to it wait, so they keep their order. Contents
    and channels are lost. Sizes are rounded to whole bytes, at least 1 unless a message is empty. Raises ScheduleError
    for a schedule that computes, and if `placement` is not a permutation of the ranks.
    """
    check_placement(placement, schedule.places)
    files: list[list[bytes]] = [[_field(1, SCHEMA)] for _ in placement]
    waits = [dict[int, int]() for _ in schedule.flows]  # of each flow: the number of the receive, by the flow it is on
    received = dict[int, int]()  # the number of each message's receive in its rank's file
    for tag, transfer in enumerate(schedule.transfers, start=1):
        flow = schedule.flows[transfer.flow]
        if isinstance(flow, Stream):
            raise ScheduleError("computations as sends and receives; allowed: schedules that only send messages")
        src, dst = placement[flow.src], placement[flow.dst]
        for one in transfer.after:
            waits[transfer.flow][schedule.transfers[one].flow] = received[one]
        size = max(1, round(transfer.amount * slot_bytes)) if transfer.amount else 0
        received[tag - 1] = len(files[dst])
        numbers = {"comm_src": src, "comm_dst": dst, "comm_size": size, "comm_tag": tag}
        attributes = [_attribute("is_cpu_op", False), *(_attribute(name, number) for name, number in numbers.items())]
        more = b"".join(_field(10, one) for one in attributes)
        for rank, kind, after in ((src, SENDS, waits[transfer.flow].values()), (dst, RECEIVES, ())):
            files[rank].append(_node(len(files[rank]), f"message {tag}", kind, after, more))
    return [_joined(file) for file in files]


class _Writer:
    def __init__(self, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        self._messages = [_field(1, SCHEMA)]
        self._numbers = dict[int, int]()  # the node's number in the file by id
        self._end_us = {0: 0}  # by number
        self._last_of = dict[str, int]()  # the number of each group's last collective

    def _us(self, at_ns: int) -> int:
        return max(0, round((at_ns - self._origin_ns) / 1000))

    def _write(
        self, name: str, kind: int, span_us: tuple[int, int], waits: Collection[int], attributes: Sequence[bytes]
    ) -> int:
        (begin_us, end_us), number = span_us, len(self._messages)
        duration_us = max(0, end_us - begin_us)
        more = _field(6, begin_us) + _field(7, duration_us) + b"".join(_field(10, one) for one in attributes)
        self._messages.append(_node(number, name, kind, waits, more))
        self._end_us[number] = begin_us + duration_us
        return number

    def add(self, node: Computation | Call) -> None:
        waits = {self._numbers[one] for one in node.after if one in self._numbers}
        if isinstance(node, Call) and node.group in self._last_of:
            waits.add(self._last_of[node.group])
        begin_us, free_us = self._us(node.begin_ns), max((self._end_us[one] for one in waits), default=0)
        if begin_us > free_us:
            attributes = [_attribute("is_cpu_op", True)]
            waits = {self._write("host", COMPUTES, (free_us, begin_us), waits, attributes)}
            free_us = begin_us
        if isinstance(node, Computation):
            attributes = [_attribute("is_cpu_op", False), _attribute("num_ops", round(node.flops))]
            end_us = self._us(node.begin_ns + node.took_ns)
            number = self._write(node.name, COMPUTES, (free_us, end_us), waits, attributes)
        else:
            attributes = [
                _attribute("is_cpu_op", False),
                _attribute("comm_type", next(type_ for type_, kind in KINDS.items() if kind == node.kind)),
                _attribute("comm_size", node.size_bytes // (node.members if node.kind in OF_EACH else 1)),
            ]
            if node.group:
                attributes.append(_attribute("pg_name", node.group))
            number = self._write(node.name, COLLECTIVE, (free_us, self._us(node.end_ns)), waits, attributes)
            self._last_of[node.group] = number
        self._numbers[node.id] = number

    def content(self) -> bytes:
        return _joined(self._messages)


def _node(number: int, name: str, kind: int, waits: Collection[int], more: bytes) -> bytes:
    data_deps = b"".join(map(_varint, sorted(waits)))
    return _field(1, number) + _field(2, name) + _field(3, kind) + (_field(5, data_deps) if waits else b"") + more


# --- protobuf ---------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _attribute(name: str, value: bool | int | str) -> bytes:
    """Return an AttributeProto: a bool_val, an int64_val or a string_val."""
    number = 27 if isinstance(value, bool) else 9 if isinstance(value, int) else 29
    return _field(1, name) + _field(number, int(value) if isinstance(value, bool) else value)


def _joined(messages: Iterable[bytes]) -> bytes:
    return b"".join(_varint(len(one)) + one for one in messages)
