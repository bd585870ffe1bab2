"""Writes what a rank has computed and communicated as a Chakra execution trace, which `chakra` reads.

A file is a GlobalMetadata and then Nodes of `et_def.proto` (schema 0.0.4), each prefixed with its length. Times in it
are whole microseconds, so durations are rounded such that each node's end is within half a microsecond of the measured
one.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hosts.collectives.chakra import COLLECTIVE, COMPUTES, KINDS, OF_EACH

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
        data_deps = b"".join(map(_varint, sorted(waits)))
        self._messages.append(
            _field(1, number)
            + _field(2, name)
            + _field(3, kind)
            + (_field(5, data_deps) if waits else b"")
            + _field(6, begin_us)
            + _field(7, duration_us)
            + b"".join(_field(10, one) for one in attributes)
        )
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
        return b"".join(_varint(len(one)) + one for one in self._messages)


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
