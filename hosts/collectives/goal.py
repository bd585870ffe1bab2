"""Writes schedules as GOAL text, the input of LogGOPSim's `txt2bin` and of ATLAHS, and reads them.

Hoefler, Siebert, Lumsdaine, "Group Operation Assembly Language" (ICPP 2009); the grammar is LogGOPSim's
`src/LogGOPSim/txt2bin.re`. GOAL describes messages without their contents: which slots a message carries, and whether
the receiver adds them, is lost.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from hosts.collectives.operations import (
    MAX_CALC_NS,
    MAX_MESSAGE_BYTES,
    MAX_OPERATIONS,
    Operation,
    match,
    topological_order,
)
from hosts.collectives.schedule import Flow, Schedule, ScheduleError, Stream, Transfer, check_placement
from hosts.collectives.untrusted_file import MAX_GPUS

MAX_NICS, MAX_CPUS = 1024, 256

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_RANKS = re.compile(r"num_ranks[ \t]*(\d{1,9})(?!\d)[ \t]*", re.ASCII)
_RANK = re.compile(r"rank[ \t]*(\d{1,9})[ \t]*\{[ \t]*", re.ASCII)
_LABEL = r"[A-Za-z]\w*"
_MESSAGE = re.compile(
    rf"(?:({_LABEL})[ \t]*:[ \t]*)?(send|recv)[ \t]+(\d{{1,18}})[ \t]*b[ \t]+(to|from)[ \t]+(-1|\d{{1,9}})"
    r"(?:[ \t]+tag[ \t]+(-1|\d{1,10}))?(?:[ \t]+cpu[ \t]+(\d{1,4}))?(?:[ \t]+nic[ \t]+(\d{1,4}))?",
    re.ASCII,
)
_CALC = re.compile(rf"(?:({_LABEL})[ \t]*:[ \t]*)?calc[ \t]+(\d{{1,18}})(?:[ \t]+cpu[ \t]+(\d{{1,4}}))?", re.ASCII)
_REQUIRES = re.compile(rf"({_LABEL})[ \t]+(i?requires)[ \t]+({_LABEL})", re.ASCII)
_ALLOWED = (
    "num_ranks N, rank N {, [LABEL:] send|recv Nb to|from RANK [tag N] [cpu N] [nic N], [LABEL:] calc N [cpu N], "
    "LABEL requires|irequires LABEL, and }"
)


def text(schedule: Schedule, *, placement: Sequence[int], slot_bytes: float) -> str:
    """Return the schedule as GOAL text, with rank `placement[p]` at place p and slots of `slot_bytes`.

    A message becomes a send of one rank and a receive of another with the same tag, its 1-based index in the schedule.
    A send requires the receives and computations on which the message depends, and the previous send on its flow. A
    channel becomes a NIC, a stream a CPU. Sizes are rounded to whole bytes, at least 1, and computations to whole
    nanoseconds. Raises ScheduleError if `placement` is not a permutation of the ranks.
    """
    check_placement(placement, schedule.places)
    lines: list[list[str]] = [[] for _ in placement]
    requires: list[list[str]] = [[] for _ in placement]
    last: dict[int, int] = {}
    for tag, transfer in enumerate(schedule.transfers, start=1):
        flow = schedule.flows[transfer.flow]
        if isinstance(flow, Stream):
            at, letter = placement[flow.place], "c"
            lines[at].append(f"c{tag}: calc {round(transfer.amount * 1e9)} cpu {flow.number}")
        else:
            at, dst, letter = placement[flow.src], placement[flow.dst], "s"
            size = max(1, round(transfer.amount * slot_bytes))
            lines[at].append(f"s{tag}: send {size}b to {dst} tag {tag} nic {flow.channel}")
            lines[dst].append(f"r{tag}: recv {size}b from {at} tag {tag} nic {flow.channel}")
        for dependency in transfer.after:
            is_calc = isinstance(schedule.flows[schedule.transfers[dependency].flow], Stream)
            requires[at].append(f"{letter}{tag} requires {'c' if is_calc else 'r'}{dependency + 1}")
        if transfer.flow in last:
            requires[at].append(f"{letter}{tag} requires {letter}{last[transfer.flow]}")
        last[transfer.flow] = tag
    blocks = (
        "\n".join([f"rank {rank} {{", *operations, *edges, "}"])
        for rank, (operations, edges) in enumerate(zip(lines, requires, strict=True))
    )
    return f"num_ranks {schedule.places}\n\n" + "\n\n".join(blocks) + "\n"


def read(path: Path, content: str) -> Schedule:
    """Return the schedule in a file's text: rank r is place r, a NIC is a channel, a CPU is a stream; sizes are bytes.

    The n-th send to a rank with a tag matches the n-th receive there from the sender with this tag, in file order.
    Sends and computations are ordered by when they could begin if nothing took time, and in file order among those
    that could begin together, as in LogGOPSim for the files of its own generators. A send is done as soon as it begins,
    so an operation that requires a send depends on what the send depends on. For receives and computations, `requires`
    waits for the end and `irequires` for the beginning.

    Raises ScheduleError, one sentence that begins with the path, if the text is not GOAL or is too large, for receives
    from any rank or with any tag, for a message without a second end or with two sizes, and for cyclic dependencies.
    """
    reader = _Reader(path)
    reader.read(content)
    match(reader.operations, reader.sizes, reader.sends, reader.receives)
    order = topological_order(reader.operations)
    if not any(isinstance(server, Flow) for server in order.servers):
        raise ScheduleError(f"{path}: the file has no message; allowed: at least one")
    return Schedule(
        places=len(reader.ranks),
        slots=0,
        flows=order.servers,
        transfers=tuple(
            Transfer(flow=server, size=reader.sizes[index], after=after)
            for index, server, after in zip(order.tasks, order.server, order.after, strict=True)
        ),
    )


class _Reader:
    """A reader with the operations that it has read so far."""

    def __init__(self, path: Path) -> None:
        self._path, self._line = path, 0
        self._num_ranks: int | None = None
        self._rank: int | None = None
        self._labels: dict[str, int] = {}
        self.ranks: set[int] = set()
        self.operations: list[Operation] = []
        self.sizes: list[float] = []  # bytes, or seconds of a computation
        self.sends: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.receives: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)

    def read(self, content: str) -> None:
        """Read the whole text. Comments may be anywhere; the line numbers of errors count them."""
        content = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), content)
        for self._line, line in enumerate(content.split("\n"), start=1):
            rest = line.strip(" \t\r")
            while rest:
                rest = self._statement(rest)
        self._line += 1
        if self._rank is not None:
            raise self._error("the file ends within a rank; allowed: a } at its end")
        if self._num_ranks is None or len(self.ranks) < self._num_ranks:
            raise self._error(
                f"the file ends after {len(self.ranks):,} ranks; allowed: num_ranks, and as many ranks as it gives"
            )

    def _error(self, sentence: str) -> ScheduleError:
        return ScheduleError(f"{self._path}, line {self._line:,}: {sentence}")

    def _statement(self, rest: str) -> str:
        """Read the first statement of a line; return the rest of the line."""
        if self._rank is None:
            if match := _RANKS.match(rest):
                self._set_ranks(int(match[1]))
                return rest[match.end() :]
            if match := _RANK.match(rest):
                self._begin_rank(int(match[1]))
                return rest[match.end() :]
        elif rest.startswith("}"):
            self._rank = None
            return rest[1:].lstrip(" \t")
        elif match := _MESSAGE.fullmatch(rest):
            self._add_message(match)
            return ""
        elif match := _CALC.fullmatch(rest):
            self._add_calc(*match.groups())
            return ""
        elif match := _REQUIRES.fullmatch(rest):
            self._add_requirement(*match.groups())
            return ""
        raise self._error(f"{rest[:80]!r} is not GOAL here; allowed: {_ALLOWED}")

    def _set_ranks(self, ranks: int) -> None:
        if self._num_ranks is not None or not 2 <= ranks <= MAX_GPUS:
            raise self._error(f"num_ranks {ranks:,}; allowed: 2 to {MAX_GPUS:,}, given once")
        self._num_ranks = ranks

    def _begin_rank(self, rank: int) -> None:
        if self._num_ranks is None or rank >= self._num_ranks or rank in self.ranks:
            raise self._error(f"rank {rank:,}; allowed: ranks below num_ranks, each once, after the line of num_ranks")
        self.ranks.add(rank)
        self._rank, self._labels = rank, {}

    def _add_message(self, match: re.Match[str]) -> None:
        label, kind, size, direction, other, tag, cpu, nic = match.groups()
        assert self._rank is not None and self._num_ranks is not None
        if "-1" in (other, tag):
            raise self._error(f"{kind} with the wildcard -1; allowed: one rank and one tag")
        peer, channel = int(other), int(nic or 0)
        if (kind == "send") != (direction == "to"):
            raise self._error(f"{kind} {direction}; allowed: send to and recv from")
        if peer >= self._num_ranks or peer == self._rank:
            raise self._error(
                f"{kind} {direction} {peer:,}; allowed: the ranks 0 to {self._num_ranks - 1:,} except {self._rank}"
            )
        if not 1 <= int(size) <= MAX_MESSAGE_BYTES or channel >= MAX_NICS or int(cpu or 0) >= MAX_CPUS:
            raise self._error(
                f"{kind} of {int(size):,} bytes on CPU {int(cpu or 0)} and NIC {channel}; allowed: 1 to "
                f"{MAX_MESSAGE_BYTES:,} bytes, CPUs below {MAX_CPUS} and NICs below {MAX_NICS}"
            )
        index = self._add_operation(label, kind, int(size))
        if kind == "send":
            self.operations[index].server = Flow(self._rank, peer, channel)
            self.sends[self._rank, peer, int(tag or 0)].append(index)
        else:
            self.receives[peer, self._rank, int(tag or 0)].append(index)

    def _add_calc(self, label: str | None, length: str, cpu: str | None) -> None:
        assert self._rank is not None
        if int(length) > MAX_CALC_NS or int(cpu or 0) >= MAX_CPUS:
            raise self._error(
                f"calc of {int(length):,} ns on CPU {int(cpu or 0)}; allowed: {MAX_CALC_NS:,} ns at most and CPUs "
                f"below {MAX_CPUS}"
            )
        index = self._add_operation(label, "calc", int(length) * 1e-9)
        self.operations[index].server = Stream(self._rank, int(cpu or 0))

    def _add_operation(self, label: str | None, kind: str, size: float) -> int:
        index = len(self.operations)
        if index == MAX_OPERATIONS:
            raise self._error(f"more than {MAX_OPERATIONS:,} operations; allowed: {MAX_OPERATIONS:,}")
        if label is not None:
            if label in self._labels:
                raise self._error(f"the label {label[:80]} is given twice in a rank; allowed: once")
            self._labels[label] = index
        where = f"{self._path}, line {self._line:,}"
        self.operations.append(Operation(where=where, what=f"{kind} {label[:80]}" if label else f"a {kind}"))
        self.sizes.append(size)
        return index

    def _add_requirement(self, label: str, kind: str, other: str) -> None:
        for name in (label, other):
            if name not in self._labels:
                raise self._error(f"the label {name[:80]} is unknown; allowed: labels that precede it in its rank")
        operation = self.operations[self._labels[label]]
        (operation.requires if kind == "requires" else operation.started).append(self._labels[other])
