"""Writes schedules as MSCCL's XML, which msccl-tools generates and MSCCL runs, and reads them (Cowan et al., "MSCCLang:
Microsoft Collective Communication Language", ASPLOS 2023).

A GPU has threadblocks. Each sends to at most one GPU and receives from at most one, and executes its steps in order: s
sends, r receives, rrc receives and adds, rcs, rrs and rrcs also forward the received data, cpy copies and re adds
within the GPU, and nop does nothing. A step names chunks of its GPU's buffers: i (input), o (output), s (scratch). It
waits for step `deps` of threadblock `depid` of its GPU. Before the first step, a GPU's copy elements copy chunks of its
input to its output, as TE-CCL writes them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from hosts.collectives.kinds import MESSAGES, contents
from hosts.collectives.operations import Operation, Order, topological_order
from hosts.collectives.schedule import (
    Contents,
    Flow,
    Schedule,
    ScheduleError,
    Stream,
    Transfer,
    check_placement,
    prove,
)
from hosts.collectives.untrusted_file import check_size

KINDS = {
    "allgather": "allgather",
    "reduce_scatter": "reducescatter",
    "reducescatter": "reducescatter",
    "allreduce": "allreduce",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
"""The kind of collective for each allowed value of a file's `coll`."""

CUSTOM = "custom"
"""The `coll` of a program whose collective only its writer knows."""

MAX_CHANNELS = 64
MAX_PROVEN_STEPS = 40_000
"""Maximum number of steps, without nop, of a program that is proven: the proof keeps a bit for every pair of them."""
_MAX_STEPS, _MAX_CHUNKS = 200_000, 200_000
_SENDS, _RECEIVES = ("s", "rcs", "rrs", "rrcs"), ("r", "rrc", "rcs", "rrs", "rrcs")
_TYPES = ("s", "r", "rrc", "rcs", "rrs", "rrcs", "cpy", "re", "nop")

_OWN_BLOCK = {"allgather": "i", "gather": "i", "reducescatter": "o", "scatter": "o"}
"""The buffer that is only the GPU's own block of the other buffer, by kind."""

_NUMBER = re.compile(r"-?[0-9]{1,9}")

_Number = Callable[..., int]
"""A function from an attribute's name, and a default for a missing attribute, to the attribute as an integer."""

Chunk = tuple[str, int]
"""A chunk: its buffer (i, o, s) and its index in that buffer."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The mapping of input, output and scratch chunks to the slots of the one buffer that a GPU has in a schedule.

    As in MSCCL's `inplace` collectives, input and output are the same memory; for instance, an allgather's input is the
    GPU's own block of the output. Only an alltoall has separate halves for input and output. `slots` is the number of
    slots of one GPU without scratch, whose slots follow.
    """

    kind: str
    gpus: int
    slots: int

    @property
    def block(self) -> int:
        """The number of slots of a block."""
        return self.slots // (2 * self.gpus if self.kind == "alltoall" else self.gpus)

    def slot(self, gpu: int, chunk: Chunk) -> int | None:
        """Return the slot of a chunk of a GPU, or None if the chunk is outside its buffer."""
        buffer, index = chunk
        if buffer == "s":
            return self.slots + index
        begin, count = 0, self.slots
        if self.kind == "alltoall":
            count = self.slots // 2
            begin = count if buffer == "o" else 0
        elif buffer == _OWN_BLOCK.get(self.kind):
            begin, count = gpu * self.block, self.block
        return begin + index if 0 <= index < count else None

    def chunk(self, slot: int) -> Chunk:
        """Return the chunk that names a slot in a file."""
        if slot >= self.slots:
            return "s", slot - self.slots
        if self.kind == "alltoall":
            half = self.slots // 2
            return ("i", slot) if slot < half else ("o", slot - half)
        return ("o" if self.kind in ("allgather", "gather") else "i"), slot


# --- writing --------------------------------------------------------------------------------------------------------


def text(schedule: Schedule, *, kind: str, placement: Sequence[int]) -> str:
    """Return a schedule of this kind of collective as XML, with rank `placement[p]` at place p.

    Each flow becomes a sending and a receiving threadblock. A message whose slots are not contiguous becomes one step
    per contiguous run; all steps but the first have the attribute `continues`, from which `read` restores the message.
    Raises ScheduleError for a schedule with computations or messages without slots, and if `placement` is not a
    permutation of the ranks.
    """
    check_placement(placement, schedule.places)
    if kind not in KINDS.values() or not all(transfer.slots for transfer in schedule.transfers):
        kinds = ", ".join(dict.fromkeys(KINDS.values()))
        raise ScheduleError(f"{kind} as MSCCL's XML; allowed: {kinds}, which send slots and compute nothing")
    layout = Layout(kind=kind, gpus=schedule.places, slots=schedule.slots - schedule.scratch)
    placed = canonical(_placed(schedule, layout, placement))
    flows = [flow for flow in placed.flows if isinstance(flow, Flow)]
    blocks: dict[tuple[int, str, Flow], _Threadblock] = {}  # by GPU, type and flow
    for gpu in range(layout.gpus):
        keys = [(gpu, "s", flow) for flow in flows if flow.src == gpu]
        keys += [(gpu, "r", flow) for flow in flows if flow.dst == gpu]
        blocks |= {key: _Threadblock(number=number) for number, key in enumerate(keys)}
    received: list[tuple[_Threadblock, int]] = []  # the last receiving step of each transfer
    for transfer in placed.transfers:
        flow = flows[transfer.flow]
        sending, receiving = blocks[flow.src, "s", flow], blocks[flow.dst, "r", flow]
        waits = [received[one] for one in transfer.after]
        for block, step in waits[1:]:
            sending.add("nop", ("i", -1), ("o", -1), 0, waits=(block, step))
        for number, (src, dst, count) in enumerate(_runs(transfer.slots, layout)):
            first = waits[0] if waits and number == 0 else None
            sending.add("s", src, dst, count, waits=first, continues=number > 0)
            kind_of = ("rrc", dst) if transfer.adds else ("r", src)
            receiving.add(kind_of[0], kind_of[1], dst, count, continues=number > 0)
        received.append((receiving, len(receiving.steps) - 1))
    return _xml(layout, blocks, scratch=schedule.scratch)


@dataclass(kw_only=True)
class _Threadblock:
    number: int
    steps: list[dict[str, str]] = field(default_factory=list)

    def add(
        self,
        kind: str,
        src: Chunk,
        dst: Chunk,
        count: int,
        *,
        waits: "tuple[_Threadblock, int] | None" = None,
        continues: bool = False,
    ) -> None:
        """Add a step; the step for which it waits gets the attribute `hasdep`."""
        step = {
            "s": len(self.steps),
            "type": kind,
            "srcbuf": src[0],
            "srcoff": src[1],
            "dstbuf": dst[0],
            "dstoff": dst[1],
            "cnt": count,
            "depid": -1 if waits is None else waits[0].number,
            "deps": -1 if waits is None else waits[1],
            "hasdep": 0,
        } | ({"continues": 1} if continues else {})
        if waits is not None:
            waits[0].steps[waits[1]]["hasdep"] = "1"
        self.steps.append({name: str(value) for name, value in step.items()})


def _xml(layout: Layout, blocks: Mapping[tuple[int, str, Flow], _Threadblock], *, scratch: int) -> str:
    slots = layout.slots // 2 if layout.kind == "alltoall" else layout.slots
    chunks = {
        buffer: slots if any(layout.chunk(slot)[0] == buffer for slot in range(layout.slots)) else 0 for buffer in "io"
    }
    algo = ElementTree.Element(
        "algo",
        {
            "name": f"longhaul_{layout.kind}",
            "proto": "Simple",
            "nchannels": str(1 + max(flow.channel for _, _, flow in blocks)),
            "nchunksperloop": str(slots),
            "ngpus": str(layout.gpus),
            "coll": next(name for name, kind in KINDS.items() if kind == layout.kind),
            "inplace": "0" if layout.kind == "alltoall" else "1",
        },
    )
    for gpu in range(layout.gpus):
        sizes = {"i_chunks": chunks["i"], "o_chunks": chunks["o"], "s_chunks": scratch}
        at = ElementTree.SubElement(algo, "gpu", {"id": str(gpu)} | {name: str(size) for name, size in sizes.items()})
        own = [(kind, flow, block) for (where, kind, flow), block in blocks.items() if where == gpu]
        for kind, flow, block in own:
            ends = {"send": flow.dst if kind == "s" else -1, "recv": flow.src if kind == "r" else -1}
            _threadblock(at, block, ends | {"chan": flow.channel})
        if layout.kind == "alltoall":  # the block that the GPU keeps
            block = _Threadblock(number=len(own))
            block.add("cpy", ("i", gpu * layout.block), ("o", gpu * layout.block), layout.block)
            _threadblock(at, block, {"send": -1, "recv": -1, "chan": 0})
    ElementTree.indent(algo)
    return ElementTree.tostring(algo, encoding="unicode") + "\n"


def _threadblock(at: ElementTree.Element, block: _Threadblock, ends: Mapping[str, int]) -> None:
    attributes = {"id": str(block.number)} | {name: str(end) for name, end in ends.items()}
    element = ElementTree.SubElement(at, "tb", attributes)
    for step in block.steps:
        ElementTree.SubElement(element, "step", step)


def _placed(schedule: Schedule, layout: Layout, placement: Sequence[int]) -> Schedule:
    """Return the schedule with each rank r at place r; blocks that belong to a place move to those of its rank."""

    def moved(slot: int) -> int:
        if layout.kind in ("allreduce", "broadcast", "reduce") or slot >= layout.slots:
            return slot
        block, rest = divmod(slot, layout.block)
        half, place = divmod(block, layout.gpus)
        return (half * layout.gpus + placement[place]) * layout.block + rest

    flows = tuple(
        Flow(placement[flow.src], placement[flow.dst], flow.channel)
        for flow in schedule.flows
        if isinstance(flow, Flow)
    )
    transfers = tuple(
        replace(transfer, slots=tuple((moved(a), moved(b)) for a, b in transfer.slots))
        for transfer in schedule.transfers
    )
    return replace(schedule, flows=flows, transfers=transfers)


def _runs(slots: Sequence[tuple[int, int]], layout: Layout) -> Iterator[tuple[Chunk, Chunk, int]]:
    """Split pairs of slots into contiguous runs of chunks: first chunk at the sender, at the receiver, and count."""
    first = 0
    chunks = [(layout.chunk(a), layout.chunk(b)) for a, b in slots]
    for index in range(1, len(chunks) + 1):
        (src, dst), count = chunks[first], index - first
        if index == len(chunks) or chunks[index] != ((src[0], src[1] + count), (dst[0], dst[1] + count)):
            yield src, dst, count
            first = index


def canonical(schedule: Schedule) -> Schedule:
    """Return an equivalent schedule with sorted flows, and transfers sorted by depth of dependencies, then by flow.

    The order of transfers on different flows has no meaning, and is not stored in a file.
    """
    flows = sorted(schedule.flows, key=lambda flow: (isinstance(flow, Stream), flow))
    index_of = {flow: index for index, flow in enumerate(flows)}
    level: list[int] = []
    last_level: dict[int, int] = {}
    for transfer in schedule.transfers:
        level.append(1 + max([*(level[one] for one in transfer.after), last_level.get(transfer.flow, 0)]))
        last_level[transfer.flow] = level[-1]
    server = [index_of[schedule.flows[transfer.flow]] for transfer in schedule.transfers]
    order = sorted(range(len(level)), key=lambda index: (level[index], server[index]))
    position = {index: at for at, index in enumerate(order)}
    transfers = tuple(
        replace(
            schedule.transfers[index],
            flow=server[index],
            after=tuple(sorted(position[one] for one in schedule.transfers[index].after)),
        )
        for index in order
    )
    return replace(schedule, flows=tuple(flows), transfers=transfers)


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A step of a file; `runs` has its chunks, as (first chunk read, first chunk written, count)."""

    line: int
    kind: str
    runs: list[tuple[Chunk, Chunk, int]]
    waits: tuple[int, int] | None

    @property
    def read(self) -> list[Chunk]:
        """The chunks that it reads."""
        return [(src[0], src[1] + number) for src, _, count in self.runs for number in range(count)]

    @property
    def written(self) -> list[Chunk]:
        """The chunks that it writes."""
        return [(dst[0], dst[1] + number) for _, dst, count in self.runs for number in range(count)]


@dataclass(frozen=True, kw_only=True)
class _Block:
    """A threadblock of a file. Steps are indexed by their number; a step that continues another is the same object."""

    line: int
    send: int
    recv: int
    channel: int
    steps: list[_Step] = field(default_factory=list)


def read(path: Path, content: str, *, as_messages: bool = False, chunk_bytes: int = 1) -> tuple[str, Schedule]:
    """Return the kind of collective and the schedule in a file's text: GPU g is place g, and the root is GPU 0.

    Channels are kept. Copies and sums within a GPU take no time: data that is received into scratch and then copied or
    added to a chunk is received or added there directly, and a copy is an alias of its source. Data that is received
    into scratch and forwarded has a scratch slot. The result is proven to do its collective. A program that messages
    cannot express in this way, such as one that adds what it has received only after it has sent its own, is proven
    step by step; its schedule then has the same messages, which carry no contents, and a note says so.

    With `as_messages` any program is a schedule of messages without contents, in bytes, with chunks of `chunk_bytes`;
    nothing is proven, and `coll` may have any value.

    Raises ScheduleError, one sentence that begins with the path, if the text is not such a program, is too large, has a
    document type, deadlocks, has a send without a receive, or does not do its collective.
    """
    program = _Parser(path, as_messages=as_messages).parse(content)
    listed = _Operations(path, program)
    order = topological_order(listed.operations)
    gpus, slots = program.layout.gpus, program.layout.slots
    sent = [len(listed.at[index][1].written) for index in order.tasks]
    if as_messages:
        check_size(path, gpus=gpus, slots=0, tasks=len(order.tasks))
        note = f"its messages carry no contents, and what they do (coll {program.coll[:40]!r}) is not proven"
        return MESSAGES, _without_contents(gpus, 0, order, [chunk_bytes * count for count in sent], note)
    try:
        return program.layout.kind, _with_contents(path, program, listed, order)
    except ScheduleError as error:
        check_size(path, gpus=gpus, slots=slots, tasks=len(order.tasks))
        _prove_steps(path, program, listed, order, error)
    note = (
        f"its steps are proven to do its {program.layout.kind}, but its messages are carried without contents: a GPU "
        "adds or copies data later than it arrives, which only the steps say"
    )
    return program.layout.kind, _without_contents(gpus, slots, order, sent, note)


def _with_contents(path: Path, program: "_Program", listed: "_Operations", order: Order) -> Schedule:
    """Return a program as messages that are copied or added as they arrive; raises ScheduleError if it is not that."""
    messages, scratch = _Walk(program, listed).run(order.events)
    slots = program.layout.slots + scratch
    check_size(path, gpus=program.layout.gpus, slots=slots, tasks=len(order.tasks))
    schedule = Schedule(
        places=program.layout.gpus,
        slots=slots,
        scratch=scratch,
        flows=order.servers,
        transfers=tuple(
            Transfer(flow=server, slots=messages[index].slots, adds=messages[index].adds[0], after=after)
            for index, server, after in zip(order.tasks, order.server, order.after, strict=True)
        ),
    )
    schedule = canonical(schedule)
    prove(schedule, *contents(program.layout.kind, places=schedule.places, slots=slots, scratch=scratch))
    return schedule


def _without_contents(gpus: int, slots: int, order: Order, sizes: Sequence[float], note: str) -> Schedule:
    """Return a program's messages with these sizes and without contents."""
    transfers = zip(order.server, sizes, order.after, strict=True)
    return Schedule(
        places=gpus,
        slots=slots,
        flows=order.servers,
        transfers=tuple(Transfer(flow=server, size=size, after=after) for server, size, after in transfers),
        notes=(note,),
    )


@dataclass(frozen=True, kw_only=True)
class _Program:
    """A program: `coll` as in the file, whether input and output are the same memory, and, for each GPU, its
    threadblocks by id and its copies before the first step, as (input chunk, output chunk)."""

    layout: Layout
    coll: str
    is_in_place: bool
    gpus: list[dict[int, _Block]]
    copies: list[list[tuple[int, int]]]


class _Parser:
    """Parses the nested elements algo, gpu, tb and step, and copy in gpu; custom entities and external resources are
    not allowed."""

    def __init__(self, path: Path, *, as_messages: bool) -> None:
        self._path, self._as_messages = path, as_messages
        self._open: list[str] = []
        self._expat = expat.ParserCreate("utf-8")
        self._expat.StartElementHandler = self._begin
        self._expat.EndElementHandler = lambda _: self._open.pop()
        self._expat.StartDoctypeDeclHandler = self._doctype
        self._steps = self._chunks = 0
        self.gpus: dict[int, dict[int, _Block]] = {}
        self._blocks: dict[int, _Block] = {}
        self._block: _Block | None = None
        self._copies: dict[int, list[tuple[int, int]]] = {}
        self.coll, self.most_gpus, self.chunks, self._is_in_place = "", 0, 0, True

    def parse(self, content: str) -> _Program:
        """Return the program in a file's text; raises ScheduleError."""
        try:
            self._expat.Parse(content, True)
        except expat.ExpatError as error:
            raise ScheduleError(
                f"{self._path}, line {error.lineno:,}: it is not XML: {expat.ErrorString(error.code)}"
            ) from None
        if sorted(self.gpus) != list(range(self.most_gpus)):
            raise ScheduleError(
                f"{self._path}: it has {len(self.gpus):,} GPUs with ngpus {self.most_gpus:,}; allowed: ngpus GPUs, "
                "numbered from 0"
            )
        kind = MESSAGES if self._as_messages else KINDS[self.coll]
        slots = self.chunks * (2 if kind == "alltoall" else 1)
        check_size(self._path, gpus=self.most_gpus, slots=0 if self._as_messages else slots, tasks=1)
        by_block = kind not in ("allreduce", "broadcast", "reduce", MESSAGES)
        if by_block and self.chunks % self.most_gpus:
            raise ScheduleError(
                f"{self._path}: nchunksperloop {self.chunks} of {kind} on {self.most_gpus} GPUs; allowed: a multiple "
                "of the number of GPUs"
            )
        return _Program(
            layout=Layout(kind=kind, gpus=self.most_gpus, slots=slots),
            coll=self.coll,
            is_in_place=self._is_in_place,
            gpus=[self.gpus[gpu] for gpu in range(self.most_gpus)],
            copies=[self._copies.get(gpu, []) for gpu in range(self.most_gpus)],
        )

    def error(self, sentence: str) -> ScheduleError:
        """Return an error with the path and the current line."""
        return ScheduleError(f"{self._path}, line {self._expat.CurrentLineNumber:,}: {sentence}")

    def _doctype(self, *_: object) -> None:
        raise self.error("it has a document type; allowed: XML without one, and so without custom entities")

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        levels = ("algo", "gpu", "tb", "step")
        is_copy = name == "copy" and self._open == ["algo", "gpu"]
        if not is_copy and (len(self._open) >= len(levels) or name != levels[len(self._open)]):
            raise self.error(
                f"the element {name[:80]!r} is not allowed here; allowed: {', '.join(levels)}, nested in this order, "
                "and copy in gpu"
            )
        self._open.append(name)

        def number(key: str, default: int | None = None) -> int:
            value = attributes.get(key, "missing" if default is None else str(int(default)))
            if not _NUMBER.fullmatch(value):
                raise self.error(f"{key} of {name} is {value[:80]!r}; allowed: a whole number")
            return int(value)

        elements = {"algo": self._algo, "gpu": self._gpu, "copy": self._copy, "tb": self._tb, "step": self._step}
        elements[name](attributes, number)

    def _algo(self, attributes: Mapping[str, str], number: _Number) -> None:
        self.coll = attributes.get("coll", "")
        if self.coll == CUSTOM and not self._as_messages:
            raise self.error(
                f"coll is {CUSTOM!r}, a collective that only its writer knows; allowed: the kind {MESSAGES}, which "
                "carries its messages without proving what they do"
            )
        if self.coll not in KINDS and not self._as_messages:
            raise self.error(
                f"coll is {self.coll[:80]!r}; allowed: {', '.join(KINDS)}, or any with the kind {MESSAGES}, which "
                "carries its messages without proving what they do"
            )
        self.most_gpus, self.chunks = number("ngpus"), number("nchunksperloop")
        self._is_in_place = bool(number("inplace", self.coll != "alltoall"))
        if self.chunks < 1:
            raise self.error(f"nchunksperloop is {self.chunks}; allowed: 1 or more")

    def _gpu(self, _: Mapping[str, str], number: _Number) -> None:
        gpu = number("id")
        if gpu in self.gpus or not 0 <= gpu < self.most_gpus:
            raise self.error(f"the gpu {gpu}; allowed: ids below ngpus {self.most_gpus}, each once")
        self._blocks = self.gpus[gpu] = {}
        self._gpu_id = gpu

    def _copy(self, _: Mapping[str, str], number: _Number) -> None:
        copied = number("i_off"), number("o_off")
        if min(copied) < 0:
            raise self.error(f"a copy from i {copied[0]} to o {copied[1]}; allowed: offsets of 0 or more")
        self._copies.setdefault(self._gpu_id, []).append(copied)

    def _tb(self, _: Mapping[str, str], number: _Number) -> None:
        block_id, send, recv, channel = number("id"), number("send"), number("recv"), number("chan", 0)
        peers = [peer for peer in (send, recv) if peer != -1]
        if block_id in self._blocks or not all(0 <= p < self.most_gpus and p != self._gpu_id for p in peers):
            raise self.error(
                f"the threadblock {block_id} with send {send} and recv {recv}; allowed: an id that is unique in its "
                f"GPU, and as peers other GPUs below {self.most_gpus}, or -1"
            )
        if not 0 <= channel < MAX_CHANNELS:
            raise self.error(f"chan is {channel}; allowed: 0 to {MAX_CHANNELS - 1}")
        self._block = _Block(line=self._expat.CurrentLineNumber, send=send, recv=recv, channel=channel)
        self._blocks[block_id] = self._block

    def _step(self, attributes: Mapping[str, str], number: _Number) -> None:
        assert self._block is not None
        kind, steps = attributes.get("type", ""), self._block.steps
        if kind not in _TYPES or number("s") != len(steps):
            raise self.error(
                f"the step {number('s')} of the type {kind[:80]!r}; allowed: steps numbered in order from 0, of the "
                f"types {', '.join(_TYPES)}"
            )
        if (kind in _SENDS and self._block.send < 0) or (kind in _RECEIVES and self._block.recv < 0):
            raise self.error(f"a step {kind} in a threadblock without its peer; allowed: a threadblock with that peer")
        count = number("cnt", 1)
        src, dst = ((attributes.get(f"{end}buf", ""), number(f"{end}off", -1)) for end in ("src", "dst"))
        if kind != "nop" and not (count >= 1 and {src[0], dst[0]} <= {*"ios"} and min(src[1], dst[1]) >= 0):
            raise self.error(
                f"{count} chunks from {src[0][:8]!r} {src[1]} to {dst[0][:8]!r} {dst[1]}; allowed: 1 or more chunks of "
                "the buffers i, o and s"
            )
        self._steps += 1
        self._chunks += count
        if self._steps > _MAX_STEPS or self._chunks > _MAX_CHUNKS:
            raise self.error(
                f"there are too many steps or chunks; allowed: {_MAX_STEPS:,} steps with {_MAX_CHUNKS:,} chunks"
            )
        waits = (number("depid", -1), number("deps", -1))
        step = _Step(
            line=self._expat.CurrentLineNumber,
            kind=kind,
            runs=[] if kind == "nop" else [(src, dst, count)],
            waits=None if waits[1] < 0 else waits,
        )
        if number("continues", 0):
            before = steps[-1] if steps else None
            if before is None or before.kind != kind or kind not in ("s", "r", "rrc") or step.waits is not None:
                raise self.error(
                    f"a step {kind} continues another; allowed: s, r or rrc after a step of the same type, without deps"
                )
            before.runs.extend(step.runs)
            step = before
        steps.append(step)


class _Operations:
    """The operations of a program; `at` has, for each operation, the GPU and the step to which it belongs."""

    def __init__(self, path: Path, program: _Program) -> None:
        self._path = path
        self.operations: list[Operation] = []
        self.at: list[tuple[int, _Step]] = []
        self._sends: dict[Flow, list[int]] = {}
        self._receives: dict[Flow, list[int]] = {}
        self._last_of: dict[tuple[int, int, int], int] = {}  # a step's last operation, by GPU, threadblock and number
        self._waiting: list[tuple[int, int, tuple[int, int]]] = []  # operation, GPU, and (depid, deps)
        for gpu, blocks in enumerate(program.gpus):
            for number, block in blocks.items():
                self._block(gpu, number, block)
        self._wait()
        self._match()

    def _block(self, gpu: int, block_id: int, block: _Block) -> None:
        """List a threadblock's operations: a step is a receive, a send, both, or an operation that takes no time."""
        out, into = Flow(gpu, block.send, block.channel), Flow(block.recv, gpu, block.channel)
        for flows, flow, peer in ((self._sends, out, block.send), (self._receives, into, block.recv)):
            if peer >= 0 and flow in flows:
                raise ScheduleError(
                    f"{self._path}, line {block.line:,}: a second threadblock from GPU {flow.src} to {flow.dst} on "
                    f"channel {flow.channel}; allowed: one per end"
                )
            flows[flow] = []
        before: int | None = None
        pending = list[tuple[int, int]]()
        for index, step in enumerate(block.steps):
            if index == 0 or step is not block.steps[index - 1]:
                first = len(self.operations)
                pending += [] if step.waits is None else [step.waits]
                if step.kind in _RECEIVES:
                    before = self._add(gpu, step, into, before)
                    self._receives[into].append(before)
                if step.kind in _SENDS:
                    received = [] if step.kind == "s" or before is None else [before]
                    before = self._add(gpu, step, out, before)
                    self._sends[out].append(before)
                    self.operations[before].waits_for += received
                if len(self.operations) == first:
                    before = self._add(gpu, step, None, before)
                self._waiting += [(first, gpu, wait) for wait in pending]
                if step.kind != "nop":  # nops before a step carry its further dependencies
                    pending = []
            self._last_of[gpu, block_id, index] = len(self.operations) - 1

    def _add(self, gpu: int, step: _Step, server: Flow | None, before: int | None) -> int:
        where = f"{self._path}, line {step.line:,}"
        requires = [] if before is None else [before]
        self.operations.append(Operation(where=where, what=f"a step {step.kind}", server=server, requires=requires))
        self.at.append((gpu, step))
        return len(self.operations) - 1

    def _wait(self) -> None:
        for index, gpu, (block_id, step) in self._waiting:
            operation, required = self.operations[index], self._last_of.get((gpu, block_id, step))
            if required is None:
                raise ScheduleError(
                    f"{operation.where}: it waits for step {step} of threadblock {block_id}, which is not in its GPU; "
                    "allowed: steps of its GPU"
                )
            operation.requires.append(required)
            if self.at[required][1].kind in ("r", "rrc"):
                operation.waits_for.append(required)

    def _match(self) -> None:
        """Match the n-th receive of each connection with its n-th send: a connection delivers in order."""
        for flow in {**self._sends, **self._receives}:
            sends, receives = self._sends.get(flow, []), self._receives.get(flow, [])
            for send, receive in zip(sends, receives, strict=False):
                sent, expected = (len(self.at[index][1].written) for index in (send, receive))
                if sent != expected:
                    raise ScheduleError(
                        f"{self.operations[receive].where}: it receives {expected} chunks, but GPU {flow.src} sends "
                        f"{sent} on {self.operations[send].where.rpartition(', ')[2]}; allowed: equal numbers"
                    )
                self.operations[receive].message = send
            if len(sends) != len(receives):
                more, other = (sends, "received") if len(sends) > len(receives) else (receives, "sent")
                unmatched = self.operations[more[min(len(sends), len(receives))]]
                raise ScheduleError(
                    f"{unmatched.where}: {unmatched.what} between GPUs {flow.src} and {flow.dst} on channel "
                    f"{flow.channel} is not {other} at the other end; allowed: one at each end"
                )


@dataclass(kw_only=True)
class _Message:
    """The slots of a message, by chunk: `target` is None while the slot in which a chunk ends up is unknown."""

    source: list[int] = field(default_factory=list)
    target: list[int | None] = field(default_factory=list)
    adds: list[bool] = field(default_factory=list)

    @property
    def slots(self) -> tuple[tuple[int, int], ...]:
        """The pairs of slots whose targets are known."""
        return tuple((a, b) for a, b in zip(self.source, self.target, strict=True) if b is not None)


@dataclass(kw_only=True)
class _Sum:
    """Data received into scratch: its parts, each (message, index in it), and its slot, None while that is unknown."""

    parts: list[tuple[_Message, int]]
    slot: int | None = None

    def settle(self, slot: int, *, adds: bool) -> None:
        """Direct all parts to a slot: all are added to its content with `adds`, otherwise the first overwrites it."""
        for position, (message, index) in enumerate(self.parts):
            message.target[index], message.adds[index] = slot, adds or position > 0
        self.slot = slot


class _Walk:
    """Executes steps symbolically: each chunk is an alias of a slot, or of a sum whose slot is not known yet."""

    def __init__(self, program: _Program, listed: _Operations) -> None:
        self._layout, self._listed = program.layout, listed
        self._aliases: dict[tuple[int, Chunk], int | _Sum] = {
            (gpu, ("o", dst)): slot
            for gpu, copies in enumerate(program.copies)
            for src, dst in copies
            if (slot := program.layout.slot(gpu, ("i", src))) is not None
        }
        self._messages: dict[int, _Message] = {}  # by the operation that sends

    def run(self, events: Sequence[tuple[int, bool]]) -> tuple[dict[int, _Message], int]:
        """Return the messages, by the operation that sends them, and the number of scratch slots that they use.

        Raises ScheduleError for programs that messages cannot express.
        """
        for index, is_done in events:
            operation, (gpu, step) = self._listed.operations[index], self._listed.at[index]
            if operation.message is not None:
                if is_done:
                    self._receive(gpu, step, operation)
            elif is_done or step.kind == "nop":
                continue
            elif operation.server is not None:
                source = [
                    self._sent(gpu, chunk, operation) for chunk in (step.read if step.kind == "s" else step.written)
                ]
                count = len(source)
                self._messages[index] = _Message(source=source, target=[None] * count, adds=[False] * count)
            else:
                for src, dst in zip(step.read, step.written, strict=True):
                    (self._copy if step.kind == "cpy" else self._add)(gpu, src, dst, operation)
        used = set[int]()
        for index, message in self._messages.items():
            if None in message.target or len(set(message.adds)) > 1:
                problem = "is received into scratch and not used" if None in message.target else "is partly added"
                raise ScheduleError(
                    f"{self._listed.operations[index].where}: the message {problem}; allowed: messages that are "
                    "copied as a whole, or added as a whole"
                )
            used.update(slot for pair in message.slots for slot in pair if slot >= self._layout.slots)
        # Renumber the used scratch slots without gaps.
        renumbered = {slot: self._layout.slots + number for number, slot in enumerate(sorted(used))}
        for message in self._messages.values():
            message.source = [renumbered.get(slot, slot) for slot in message.source]
            message.target = [slot if slot is None else renumbered.get(slot, slot) for slot in message.target]
        return self._messages, len(used)

    def _receive(self, gpu: int, step: _Step, operation: Operation) -> None:
        assert operation.message is not None
        message = self._messages[operation.message]
        for index, chunk in enumerate(step.written):
            if step.kind in ("r", "rcs"):
                held = self._aliases[gpu, chunk] = _Sum(parts=[(message, index)])
                if chunk[0] != "s":
                    held.settle(self._slot(gpu, chunk, operation), adds=False)
                continue
            target = self._resolve(gpu, chunk, operation)
            if isinstance(target, int):
                message.target[index], message.adds[index] = target, True
            else:
                target.parts.append((message, index))

    def _copy(self, gpu: int, src: Chunk, dst: Chunk, operation: Operation) -> None:
        held = self._resolve(gpu, src, operation)
        if isinstance(held, _Sum) and dst[0] != "s":
            held.settle(self._slot(gpu, dst, operation), adds=False)
        self._aliases[gpu, dst] = held

    def _add(self, gpu: int, src: Chunk, dst: Chunk, operation: Operation) -> None:
        """Add one chunk to another: the one that is still in scratch is received as an addition to the other."""
        target, source = self._resolve(gpu, dst, operation), self._resolve(gpu, src, operation)
        if isinstance(source, _Sum):
            if isinstance(target, _Sum):
                target.parts += source.parts
            else:
                source.settle(target, adds=True)
        elif isinstance(target, _Sum):
            target.settle(source, adds=True)
        else:
            raise ScheduleError(
                f"{operation.where}: it adds {src[0]} {src[1]} to {dst[0]} {dst[1]}, which are both in the buffer "
                "already; allowed: sums with one part that has just been received into scratch"
            )
        self._aliases.pop((gpu, src), None)

    def _resolve(self, gpu: int, chunk: Chunk, operation: Operation) -> int | _Sum:
        """Return the slot of which a chunk is an alias, or the sum whose slot is not known yet."""
        meaning = self._aliases.get((gpu, chunk))
        if meaning is None and chunk[0] != "s":
            meaning = self._layout.slot(gpu, chunk)
        if isinstance(meaning, _Sum) and meaning.slot is not None:
            return meaning.slot
        if meaning is None:
            raise ScheduleError(
                f"{operation.where}: {chunk[0]} {chunk[1]} of GPU {gpu} is empty here; allowed: the chunks of its "
                "input and output, and scratch that has been written"
            )
        return meaning

    def _slot(self, gpu: int, chunk: Chunk, operation: Operation) -> int:
        """Return the slot of a chunk; raises ScheduleError if the chunk is outside its buffer."""
        slot = self._layout.slot(gpu, chunk)
        if slot is None:
            raise ScheduleError(
                f"{operation.where}: {chunk[0]} {chunk[1]} of GPU {gpu} is outside its buffer; allowed: the chunks of "
                "its input and output"
            )
        return slot

    def _sent(self, gpu: int, chunk: Chunk, operation: Operation) -> int:
        """Return the slot of a chunk that is being sent; data in scratch gets its scratch slot now."""
        meaning = self._resolve(gpu, chunk, operation)
        if isinstance(meaning, _Sum):
            meaning.settle(self._slot(gpu, chunk, operation), adds=False)
            assert meaning.slot is not None
            return meaning.slot
        return meaning


# --- the proof of a program's steps -----------------------------------------------------------------------------------


def _prove_steps(
    path: Path, program: _Program, listed: _Operations, order: Order, inexpressible: ScheduleError
) -> None:
    """Raise ScheduleError unless a program's steps do its collective under any timing of the network and of its
    threadblocks, with input and output as one memory or as two; `inexpressible` is why messages cannot express it."""
    touching = sum(1 for _, step in listed.at if step.kind != "nop")
    if touching > MAX_PROVEN_STEPS:
        raise ScheduleError(
            f"{path}: it has {touching:,} steps, too many to prove, and messages alone do not express it "
            f"({str(inexpressible).removeprefix(f'{path}: ')}); allowed: {MAX_PROVEN_STEPS:,} steps, or the kind "
            f"{MESSAGES}"
        )
    first: ScheduleError | None = None
    for is_in_place in (program.is_in_place, not program.is_in_place):
        try:
            _Steps(path, program, listed, is_in_place=is_in_place).prove(order.events)
            return
        except ScheduleError as error:
            first = first or error
    raise ScheduleError(
        f"{first}; allowed: a program that does its {program.layout.kind}, or the kind {MESSAGES}, which carries its "
        "messages without proving what they do"
    )


_Place = tuple[int, str, int]
"""A chunk's memory: its GPU, i, o, s or, for one memory of input and output, b, and its number there."""


@dataclass(kw_only=True)
class _Accesses:
    """The accesses to a chunk since it was last overwritten, by that copy: sets of operations as bits."""

    copied: int = 0
    added: int = 0
    read: int = 0


class _Steps:
    """Executes a program's steps on sets of contributions, and checks that the order of all conflicting accesses is
    fixed by threadblocks, dependencies and messages."""

    def __init__(self, path: Path, program: _Program, listed: _Operations, *, is_in_place: bool) -> None:
        self._path, self._program, self._layout, self._listed = path, program, program.layout, listed
        self._is_in_place = is_in_place
        layout = program.layout
        self._holds, self._wanted = contents(layout.kind, places=layout.gpus, slots=layout.slots)
        self._now = dict(self._places_of(self._holds, "i"))
        for gpu, copies in enumerate(program.copies):
            for src, dst in copies:
                self._now[self._memory(gpu, ("o", dst))] = self._now.get(self._memory(gpu, ("i", src)), 0)
        self._accesses: dict[_Place, _Accesses] = {}
        self._before: dict[int, int] = {}  # by operation, as bits: those that have always ended when it ends
        self._bits: dict[int, int] = {}  # by operation that touches memory
        self._numbered: list[int] = []
        self._values: dict[int, list[int]] = {}  # by operation, the contents that it sends or passes on

    def _places_of(self, of_slots: Contents, buffer: str) -> Iterator[tuple[_Place, int]]:
        """Yield the memory and the content of every slot that is not empty, of the input (i) or the output (o)."""
        half = self._layout.slots // 2 if self._layout.kind == "alltoall" else 0
        for gpu, row in enumerate(of_slots):
            for slot, content in enumerate(row):
                if content and self._is_in_place:
                    yield (gpu, "b", slot - half if half and buffer == "o" else slot), content
                elif content:
                    yield (gpu, buffer, slot), content

    def _memory(self, gpu: int, chunk: Chunk) -> _Place:
        buffer, index = chunk
        if buffer == "s":
            return gpu, "s", index
        if self._is_in_place and self._layout.kind == "alltoall":
            slot = index if index < self._layout.slots // 2 else None
        else:
            slot = self._layout.slot(gpu, chunk)
        if slot is None:
            raise ScheduleError(f"{self._path}: {buffer} {index} of GPU {gpu} is outside its buffer")
        return gpu, "b" if self._is_in_place else buffer, slot

    def prove(self, events: Sequence[tuple[int, bool]]) -> None:
        """Raise ScheduleError, without what is allowed, unless every GPU ends with what the collective requires."""
        for index, is_done in events:
            operation, (_, step) = self._listed.operations[index], self._listed.at[index]
            if is_done != (operation.message is not None):
                continue  # a receive happens when its message is there, all else when it begins
            before = 0
            for one in (*operation.requires, *(() if operation.message is None else (operation.message,))):
                before |= self._before[one] | self._bits.get(one, 0)
            self._before[index] = before
            if step.kind != "nop":
                self._bits[index] = 1 << len(self._numbered)
                self._numbered.append(index)
                self._execute(index, operation, before)
        for place, wanted in self._places_of(self._wanted, "o"):
            if (found := self._now.get(place, 0)) != wanted:
                raise ScheduleError(
                    f"{self._path}: it does not do its {self._layout.kind}: chunk {place[2]} of GPU {place[0]}'s "
                    f"{'buffer' if self._is_in_place else 'output'} ends with {found.bit_count()} contributions, which "
                    f"are not the {wanted.bit_count()} required ones"
                )

    def _execute(self, index: int, operation: Operation, before: int) -> None:
        gpu, step = self._listed.at[index]
        src = [self._memory(gpu, chunk) for chunk in step.read] if step.kind not in ("r", "rcs") else []
        dst = [self._memory(gpu, chunk) for chunk in step.written] if step.kind not in ("s", "rrs") else []
        if operation.message is not None:
            arrived = self._values[operation.message]
            if step.kind in ("r", "rcs"):
                self._copy(index, dst, arrived, before)
                self._values[index] = arrived
            elif step.kind == "rrs":  # the sum is passed on without being stored
                self._values[index] = [
                    self._sum(index, one, more)
                    for one, more in zip(self._read(index, src, before), arrived, strict=True)
                ]
            elif src == dst:
                self._values[index] = self._add(index, dst, arrived, before)
            else:
                held = self._read(index, src, before)
                sums = [self._sum(index, one, more) for one, more in zip(held, arrived, strict=True)]
                self._copy(index, dst, sums, before)
                self._values[index] = sums
        elif operation.server is not None:  # rcs, rrs and rrcs send what they have just received
            received = operation.requires[:1]
            self._values[index] = self._read(index, src, before) if step.kind == "s" else self._values[received[0]]
        elif step.kind == "cpy":
            self._copy(index, dst, self._read(index, src, before), before)
        else:
            self._add(index, dst, self._read(index, src, before), before)

    def _read(self, index: int, places: Sequence[_Place], before: int) -> list[int]:
        for place in places:
            if not self._now.get(place, 0):
                raise self._error(index, f"uses {_named(place)}, to which nothing has been written")
            accesses = self._accesses.setdefault(place, _Accesses())
            self._check(index, (accesses.copied | accesses.added) & ~before, f"uses {_named(place)}")
            accesses.read |= self._bits[index]
        return [self._now[place] for place in places]

    def _copy(self, index: int, places: Sequence[_Place], values: Sequence[int], before: int) -> None:
        for place, value in zip(places, values, strict=True):
            accesses = self._accesses.setdefault(place, _Accesses())
            earlier = accesses.copied | accesses.added | accesses.read & ~self._bits[index]
            self._check(index, earlier & ~before, f"overwrites {_named(place)}")
            self._accesses[place] = _Accesses(copied=self._bits[index])
            self._now[place] = value

    def _add(self, index: int, places: Sequence[_Place], values: Sequence[int], before: int) -> list[int]:
        for place, value in zip(places, values, strict=True):
            if not self._now.get(place, 0):
                raise self._error(index, f"adds to {_named(place)}, to which nothing has been written")
            accesses = self._accesses.setdefault(place, _Accesses())
            earlier = accesses.copied | accesses.read & ~self._bits[index]
            self._check(index, earlier & ~before, f"adds to {_named(place)}")
            accesses.added |= self._bits[index]
            self._now[place] = self._sum(index, self._now[place], value)
        return [self._now[place] for place in places]

    def _sum(self, index: int, one: int, other: int) -> int:
        if one & other:
            raise self._error(index, "adds a contribution to a sum that has it already")
        return one | other

    def _check(self, index: int, unordered: int, what: str) -> None:
        if unordered:
            other = self._numbered[(unordered & -unordered).bit_length() - 1]
            line = self._listed.operations[other].where.rpartition(", ")[2]
            raise self._error(index, f"{what} without waiting for the step on {line}, which uses it too")

    def _error(self, index: int, sentence: str) -> ScheduleError:
        operation = self._listed.operations[index]
        return ScheduleError(f"{operation.where}: {operation.what} {sentence}")


def _named(place: _Place) -> str:
    gpu, buffer, number = place
    names = {"b": "chunk", "s": "scratch"}
    return f"{names.get(buffer, buffer)} {number} of GPU {gpu}"
