"""Writes schedules as GOAL text, the input of LogGOPSim's `txt2bin` and of ATLAHS, and reads them.

Hoefler, Siebert, Lumsdaine, "Group Operation Assembly Language" (ICPP 2009); the grammar is LogGOPSim's
`src/LogGOPSim/txt2bin.re`. GOAL describes messages without their contents: which slots a message carries, and whether
the receiver adds them, is lost. Its binary form, which `txt2bin` makes, is not read.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hosts.collectives.operations import (
    MAX_CALC_NS,
    MAX_MESSAGE_BYTES,
    MAX_OPERATIONS,
    Operation,
    dry_run,
    match,
    pair,
    topological_order,
)
from hosts.collectives.schedule import Flow, Schedule, ScheduleError, Stream, Transfer, check_placement
from hosts.collectives.untrusted_file import MAX_GPUS
from topologies.units import UnitError, parse_number, parse_whole_number, rounded

MAX_NICS, MAX_CPUS = 1024, 256

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_RANKS = re.compile(r"num_ranks[ \t]*(\d{1,9})(?!\d)[ \t]*", re.ASCII)
_RANK = re.compile(r"rank[ \t]*(\d{1,9})[ \t]*\{[ \t]*", re.ASCII)
_LABEL = r"[A-Za-z]\w*"
_NUMBER = r"\d[\d_]{0,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,3})?"
_MESSAGE = re.compile(
    rf"(?:({_LABEL})[ \t]*:[ \t]*)?(send|recv)[ \t]*({_NUMBER})[ \t]*b[ \t]*(to|from)[ \t]*(-1|\d{{1,9}})"
    r"(?:[ \t]*tag[ \t]*(-1|\d{1,10}))?(?:[ \t]*cpu[ \t]*(\d{1,4}))?(?:[ \t]*nic[ \t]*(\d{1,4}))?",
    re.ASCII,
)
_CALC = re.compile(rf"(?:({_LABEL})[ \t]*:[ \t]*)?calc[ \t]*({_NUMBER})(?:[ \t]*cpu[ \t]*(\d{{1,4}}))?", re.ASCII)
_REQUIRES = re.compile(rf"({_LABEL})[ \t]+(i?requires)[ \t]+({_LABEL})", re.ASCII)
_ALLOWED = (
    "num_ranks N, rank N {, [LABEL:] send|recv Nb to|from RANK [tag N] [cpu N] [nic N], [LABEL:] calc N [cpu N], "
    "LABEL requires|irequires LABEL, and }"
)


def text(schedule: Schedule, *, placement: Sequence[int], slot_bytes: float) -> str:
    """Return the schedule as GOAL text, with rank `placement[p]` at place p and slots of `slot_bytes`.

    A message becomes a send of one rank and a receive of another with the same tag, its 1-based index in the schedule.
    A send requires the receives and computations on which the message depends, and the previous send on its flow. A
    channel becomes a NIC, a stream a CPU. Sizes are rounded to whole bytes, at least 1 unless a message is empty, and
    computations to whole nanoseconds. Raises ScheduleError if `placement` is not a permutation of the ranks.
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
            size = max(1, round(transfer.amount * slot_bytes)) if transfer.amount else 0
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

    The n-th send to a rank with a tag matches the n-th receive there from the sender with this tag, in file order. At a
    rank that receives from any rank or with any tag, a message matches the first waiting receive that fits, as messages
    would arrive if nothing took time. As in LogGOPSim, the size of a message is that of its send; messages of a rank to
    itself take no time. The schedule's notes say what was decided or left out in this way.

    Sends and computations are ordered by when they could begin if nothing took time, and in file order among those
    that could begin together, as in LogGOPSim for the files of its own generators. A send is done as soon as it begins,
    so an operation that requires a send depends on what the send depends on. For receives and computations, `requires`
    waits for the end and `irequires` for the beginning.

    Raises ScheduleError, one sentence that begins with the path, if the text is not GOAL or is too large, for a message
    without a second end, and for cyclic dependencies.
    """
    reader = _Reader(path)
    reader.read(content)
    notes = reader.match()
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
        notes=notes,
    )


_MAGIC_NUMBERS = (4223, 2342)  # the second one marks a file that a simulation has used
_ANY = -1
"""A receive's sender or tag if any is accepted."""


@dataclass(frozen=True, kw_only=True)
class _End:
    """An end of a message: the operation, the other rank, and the tag."""

    index: int
    peer: int
    tag: int

    def accepts(self, sent: "_End") -> bool:
        """Whether this receive fits a message, whose `peer` is its sender."""
        return self.peer in (_ANY, sent.peer) and (self.tag == sent.tag or _ANY in (self.tag, sent.tag))


def is_binary(content: bytes) -> bool:
    """Whether a file's bytes are GOAL's binary form: they begin with LogGOPSim's magic number, in 8 bytes."""
    return int.from_bytes(content[:8], "little") in _MAGIC_NUMBERS and len(content) >= 8


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
        self._sent: defaultdict[int, list[_End]] = defaultdict(list)  # by receiving rank
        self._received: defaultdict[int, list[_End]] = defaultdict(list)
        self._to_itself = self._rounded = 0

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
        peer, channel = int(other), int(nic or 0)
        if (kind == "send") != (direction == "to"):
            raise self._error(f"{kind} {direction}; allowed: send to and recv from")
        if not 0 <= peer < self._num_ranks and not (peer == _ANY and kind == "recv"):
            any_rank = ", or -1 for any" if kind == "recv" else ""
            raise self._error(f"{kind} {direction} {peer:,}; allowed: the ranks 0 to {self._num_ranks - 1:,}{any_rank}")
        if channel >= MAX_NICS or int(cpu or 0) >= MAX_CPUS:
            raise self._error(
                f"{kind} on CPU {int(cpu or 0)} and NIC {channel}; allowed: CPUs below {MAX_CPUS} and NICs below "
                f"{MAX_NICS}"
            )
        index = self._add_operation(label, kind, self._bytes(kind, size))
        end = _End(index=index, peer=self._rank if kind == "send" else peer, tag=int(tag or 0))
        if kind == "recv":
            self._received[self._rank].append(end)
            return
        self._sent[peer].append(end)
        if peer == self._rank:
            self._to_itself += 1
        else:
            self.operations[index].server = Flow(self._rank, peer, channel)

    def _bytes(self, kind: str, size: str) -> int:
        try:
            return parse_whole_number(size, least=0, most=MAX_MESSAGE_BYTES)
        except UnitError:
            raise self._error(
                f"{kind} of {size[:40]} bytes; allowed: a whole number of bytes from 0 to {MAX_MESSAGE_BYTES:,}"
            ) from None

    def _add_calc(self, label: str | None, length: str, cpu: str | None) -> None:
        assert self._rank is not None
        exact = parse_number(length)
        if exact > MAX_CALC_NS or int(cpu or 0) >= MAX_CPUS:
            raise self._error(
                f"calc of {length[:40]} ns on CPU {int(cpu or 0)}; allowed: {MAX_CALC_NS:,} ns at most and CPUs below "
                f"{MAX_CPUS}"
            )
        whole = rounded(exact)
        self._rounded += whole != exact
        index = self._add_operation(label, "calc", whole * 1e-9)
        self.operations[index].server = Stream(self._rank, int(cpu or 0))

    # --- matching ---------------------------------------------------------------------------------------------------

    def match(self) -> tuple[str, ...]:
        """Match sends and receives; return notes on what was decided, and what was left out."""
        from_any = {dst for dst, ends in self._received.items() if any(_ANY in (end.peer, end.tag) for end in ends)}
        from_any |= {dst for dst, ends in self._sent.items() if any(end.tag == _ANY for end in ends)}
        sends: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        receives: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        for listed, by_ends in ((self._sent, sends), (self._received, receives)):
            for dst, ends in listed.items():
                for end in ends if dst not in from_any else ():
                    by_ends[end.peer, dst, end.tag].append(end.index)
        others = match(self.operations, self.sizes, sends, receives, of_one_size=False)
        others += self._match_any(from_any)
        counts = {
            "receives have another size than their message, which has the size of its send": others,
            "messages of a rank to itself take no time": self._to_itself,
            "computations are rounded to whole nanoseconds": self._rounded,
        }
        notes = [f"{number:,} {what}" for what, number in counts.items() if number]
        if from_any:
            notes.append(
                f"receives from any rank or with any tag, on {len(from_any):,} rank{'s' * (len(from_any) != 1)}, are "
                "matched beforehand, in the order in which messages would arrive if nothing took time"
            )
        return tuple(notes)

    def _match_any(self, ranks: set[int]) -> int:
        """Match all messages to these ranks, which accept some from any; return how many receives differ in size."""
        arrives = {end.index: (dst, end) for dst in ranks for end in self._sent[dst]}
        begins = {end.index: (dst, end) for dst in ranks for end in self._received[dst]}
        waiting: dict[int, list[_End]] = {dst: [] for dst in ranks}
        arrived: dict[int, list[_End]] = {dst: [] for dst in ranks}
        pairs: list[tuple[int, int]] = []

        def taken(ends: list[_End], fits: Callable[[_End], bool]) -> _End | None:
            found = next((end for end in ends if fits(end)), None)
            if found is not None:
                ends.remove(found)
            return found

        def on_begin(index: int) -> tuple[int, ...]:
            if index in arrives:
                dst, sent = arrives[index]
                if (receive := taken(waiting[dst], lambda end: end.accepts(sent))) is None:
                    arrived[dst].append(sent)
                    return ()
                pairs.append((sent.index, receive.index))
                return (receive.index,)
            if index in begins:
                dst, receive = begins[index]
                if (message := taken(arrived[dst], receive.accepts)) is None:
                    waiting[dst].append(receive)
                    return ()
                pairs.append((message.index, receive.index))
                return (receive.index,)
            return ()

        dry_run(self.operations, begins, on_begin)
        left = {*arrives, *begins} - {index for both in pairs for index in both}
        if left:
            operation = self.operations[min(left)]
            other = "send" if min(left) in begins else "recv"
            raise ScheduleError(
                f"{operation.where}: {operation.what} has no matching {other}; allowed: one send and one recv per "
                "message"
            )
        for send, receive_index in pairs:
            pair(self.operations, send, receive_index)
        return sum(self.sizes[send] != self.sizes[receive_index] for send, receive_index in pairs)

    # --- operations -------------------------------------------------------------------------------------------------

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
