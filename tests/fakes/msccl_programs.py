"""MSCCL programs in the forms that msccl-tools, RCCL and TE-CCL write, and an interpreter that runs any program.

The interpreter knows nothing of the reader: it executes threadblocks step by step in a random order, with queues
between GPUs, on numbers.
"""

import random
from collections import defaultdict, deque
from xml.etree import ElementTree

Chunk = tuple[str, int]


class Program:
    """A program under construction; threadblocks are created by their first step."""

    def __init__(self, gpus: int, chunks: int, coll: str, **attributes: object) -> None:
        values = {"name": "test", "proto": "Simple", "nchannels": 1, "nchunksperloop": chunks, "ngpus": gpus}
        self.root = ElementTree.Element("algo", {k: str(v) for k, v in (values | {"coll": coll} | attributes).items()})
        sizes = {"i_chunks": chunks, "o_chunks": chunks, "s_chunks": 99}
        self._gpus = [
            ElementTree.SubElement(self.root, "gpu", {k: str(v) for k, v in ({"id": gpu} | sizes).items()})
            for gpu in range(gpus)
        ]
        self._blocks: dict[tuple[int, int], ElementTree.Element] = {}

    def block(self, gpu: int, block: int, *, send: int = -1, recv: int = -1, chan: int = 0) -> None:
        """Create a threadblock."""
        values = {"id": block, "send": send, "recv": recv, "chan": chan}
        at = ElementTree.SubElement(self._gpus[gpu], "tb", {k: str(v) for k, v in values.items()})
        self._blocks[gpu, block] = at

    def copy(self, gpu: int, src: int, dst: int) -> None:
        """Add a copy from the input to the output before the first step."""
        at = ElementTree.Element("copy", {"i_off": str(src), "o_off": str(dst)})
        self._gpus[gpu].insert(0, at)

    def step(
        self,
        gpu: int,
        block: int,
        kind: str,
        src: Chunk = ("i", -1),
        dst: Chunk = ("o", -1),
        count: int = 0,
        *,
        after: tuple[int, int] = (-1, -1),
    ) -> None:
        """Add a step, after step `after[1]` of threadblock `after[0]`."""
        at = self._blocks[gpu, block]
        values = {
            **{"s": len(at), "type": kind, "srcbuf": src[0], "srcoff": src[1], "dstbuf": dst[0], "dstoff": dst[1]},
            **{"cnt": count, "depid": after[0], "deps": after[1], "hasdep": 0},
        }
        ElementTree.SubElement(at, "step", {k: str(v) for k, v in values.items()})

    @property
    def text(self) -> str:
        """The program as XML."""
        ElementTree.indent(self.root)
        return ElementTree.tostring(self.root, encoding="unicode")


def one_pass(gpus: int, *, waits: bool = True, in_place: bool = True) -> Program:
    """Return an AllReduce in which every GPU sends its input to all others, and adds what it receives in scratch.

    In place, a GPU adds only after all of its sends; without `waits` it does not wait for them. Out of place it copies
    its input to the output and adds there.
    """
    program = Program(gpus, gpus, "allreduce", inplace=int(in_place), outofplace=int(not in_place))
    own = ("i" if in_place else "o", 0)
    for gpu in range(gpus):
        others = [peer for peer in range(gpus) if peer != gpu]
        for block, peer in enumerate(others):
            program.block(gpu, block, send=peer, recv=peer)
            program.step(gpu, block, "s", ("i", 0), ("s", gpu * gpus), gpus)
            program.step(gpu, block, "r", ("i", 0), ("s", peer * gpus), gpus)
        program.block(gpu, gpus)
        if not in_place:
            program.step(gpu, gpus, "cpy", ("i", 0), own, gpus)
        elif waits:
            for block in range(len(others)):
                program.step(gpu, gpus, "nop", after=(block, 0))
        for block, peer in enumerate(others):
            program.step(gpu, gpus, "re", ("s", peer * gpus), own, gpus, after=(block, 1))
    return program


def exchange(rounds: int, *, waits: bool = True) -> Program:
    """Return an AllReduce by recursive doubling in place: a partial sum is sent before the partner's is added to it."""
    gpus = 2**rounds
    program = Program(gpus, 1, "allreduce", inplace=1)
    for gpu in range(gpus):
        for number in range(rounds):
            peer, sums = gpu ^ 1 << number, 2 * rounds
            program.block(gpu, 2 * number, send=peer)
            earlier = (sums, number - 1 + (number - 1) * waits + waits) if number else (-1, -1)
            program.step(gpu, 2 * number, "s", ("i", 0), ("s", number), 1, after=earlier)
            program.block(gpu, 2 * number + 1, recv=peer)
            program.step(gpu, 2 * number + 1, "r", ("i", 0), ("s", number), 1)
        program.block(gpu, 2 * rounds)
        for number in range(rounds):
            if waits:
                program.step(gpu, 2 * rounds, "nop", after=(2 * number, 0))
            program.step(gpu, 2 * rounds, "re", ("s", number), ("i", 0), 1, after=(2 * number + 1, 0))
    return program


def ring_with_copies(gpus: int, *, in_place: bool) -> Program:
    """Return an AllGather around a ring that copies the own block to the output before the first step."""
    program = Program(gpus, gpus, "allgather", inplace=int(in_place), redop="nop", minBytes=1024)
    for gpu in range(gpus):
        program.copy(gpu, 0, gpu)
        before, after = (gpu - 1) % gpus, (gpu + 1) % gpus
        program.block(gpu, 0, send=after, recv=before)
        program.step(gpu, 0, "s", ("o", gpu), ("o", gpu), 1)
        for step in range(1, gpus):
            block = (gpu - step) % gpus
            kind = "rcs" if step < gpus - 1 else "r"
            program.step(gpu, 0, kind, ("o", block), ("o", block), 1)
    return program


def pass_on(gpus: int, *, coll: str = "custom") -> Program:
    """Return a chain that hands GPU 0's two chunks on to the last GPU."""
    program = Program(gpus, 2, coll, inplace=0)
    for gpu in range(gpus):
        program.block(gpu, 0, send=gpu + 1 if gpu < gpus - 1 else -1, recv=gpu - 1)
        kind = "s" if gpu == 0 else "rcs" if gpu < gpus - 1 else "r"
        program.step(gpu, 0, kind, ("i", 0), ("o" if gpu == gpus - 1 else "s", 0), 2)
    return program


def alltoall_in_place(gpus: int) -> Program:
    """Return an AlltoAll whose output is its input: blocks arrive in scratch, and are copied after all were sent."""
    program = Program(gpus, gpus, "alltoall", inplace=1)
    for gpu in range(gpus):
        others = [peer for peer in range(gpus) if peer != gpu]
        for block, peer in enumerate(others):
            program.block(gpu, block, send=peer, recv=peer)
            program.step(gpu, block, "s", ("i", peer), ("s", gpu), 1)
            program.step(gpu, block, "r", ("i", gpu), ("s", peer), 1)
        program.block(gpu, gpus)
        for block in range(len(others)):
            program.step(gpu, gpus, "nop", after=(block, 0))
        for block, peer in enumerate(others):
            program.step(gpu, gpus, "cpy", ("s", peer), ("o", peer), 1, after=(block, 1))
    return program


# --- the interpreter --------------------------------------------------------------------------------------------------


class Interpreter:
    """Runs a program on numbers, its threadblocks in a random order; `memory` has values by (GPU, buffer, index)."""

    def __init__(self, text: str, seed: int) -> None:
        self.root = ElementTree.fromstring(text)
        self._rng = random.Random(seed)
        self.gpus, self.chunks = int(self.root.get("ngpus", "0")), int(self.root.get("nchunksperloop", "0"))
        self.coll, self.in_place = self.root.get("coll"), self.root.get("inplace") == "1"
        self.memory: dict[tuple[int, str, int], int] = {}
        self.value = {
            (gpu, index): self._rng.randrange(1, 1 << 40) for gpu in range(self.gpus) for index in range(self.chunks)
        }
        self._queues: defaultdict[tuple[int, int, int], deque[list[int]]] = defaultdict(deque)
        self._done: dict[tuple[int, int], int] = {}

    def _at(self, gpu: int, buffer: str, index: int) -> tuple[int, str, int]:
        if self.in_place and self.coll == "allgather" and buffer == "i":
            return gpu, "o", gpu * self.chunks // self.gpus + index
        return gpu, "o" if self.in_place and buffer == "i" else buffer, index

    def run(self) -> None:
        """Fill the inputs, and execute steps in a random order until all are done."""
        inputs = self.chunks // self.gpus if self.coll == "allgather" else self.chunks
        for gpu in range(self.gpus):
            for index in range(inputs):
                self.memory[self._at(gpu, "i", index)] = self.value[gpu, index]
        blocks = []
        for at in self.root:
            gpu = int(at.get("id", ""))
            for one in at.iter("copy"):
                src, dst = (int(one.get(name, "")) for name in ("i_off", "o_off"))
                self.memory[self._at(gpu, "o", dst)] = self.memory[self._at(gpu, "i", src)]
            blocks += [(gpu, one, [step.attrib for step in one]) for one in at.iter("tb")]
            self._done |= {(gpu, int(one.get("id", ""))): 0 for one in at.iter("tb")}
        while any(steps for _, _, steps in blocks):
            gpu, block, steps = self._rng.choice([one for one in blocks if self._can_run(*one)])
            self._step(gpu, block, steps.pop(0))
            self._done[gpu, int(block.get("id", ""))] += 1

    def _can_run(self, gpu: int, block: ElementTree.Element, steps: list[dict[str, str]]) -> bool:
        if not steps:
            return False
        waits = int(steps[0]["depid"]), int(steps[0]["deps"])
        if waits[1] >= 0 and self._done[gpu, waits[0]] <= waits[1]:
            return False
        return steps[0]["type"][0] != "r" or steps[0]["type"] == "re" or bool(self._queue(gpu, block, "recv"))

    def _queue(self, gpu: int, block: ElementTree.Element, end: str) -> deque[list[int]]:
        peer, channel = int(block.get(end, "")), int(block.get("chan", ""))
        return self._queues[(peer, gpu, channel) if end == "recv" else (gpu, peer, channel)]

    def _step(self, gpu: int, block: ElementTree.Element, step: dict[str, str]) -> None:
        kind, count = step["type"], int(step["cnt"])
        src, dst = (
            [self._at(gpu, step[f"{end}buf"], int(step[f"{end}off"]) + one) for one in range(count)]
            for end in ("src", "dst")
        )
        if kind == "nop":
            return
        data = [0] * count
        if kind in ("s", "cpy", "re", "rrc", "rrs", "rrcs"):
            data = [self.memory[one] for one in src]
        if kind[0] == "r" and kind != "re":
            data = [a + b for a, b in zip(data, self._queue(gpu, block, "recv").popleft(), strict=True)]
        if kind == "re":
            data = [self.memory[there] + one for there, one in zip(dst, data, strict=True)]
        if kind in ("r", "rcs", "cpy", "re", "rrc", "rrcs"):
            self.memory |= dict(zip(dst, data, strict=True))
        if kind in ("s", "rcs", "rrs", "rrcs"):
            self._queue(gpu, block, "send").append(data)

    def result(self, gpu: int, index: int) -> int:
        """Return chunk `index` of a GPU's output."""
        return self.memory[self._at(gpu, "o", index)]

    def does_its_collective(self) -> bool:
        """Whether every GPU has ended with what the collective requires."""
        block = self.chunks // self.gpus or 1
        wanted = {
            "allreduce": lambda _, index: sum(self.value[gpu, index] for gpu in range(self.gpus)),
            "allgather": lambda _, index: self.value[index // block, index % block],
            "alltoall": lambda gpu, index: self.value[index // block, gpu * block + index % block],
        }[str(self.coll)]
        return all(
            self.result(gpu, index) == wanted(gpu, index)
            for gpu in range(self.gpus)
            for index in range(self.chunks)
            if not (self.coll == "alltoall" and index // block == gpu)
        )


def always_right(text: str, seeds: range) -> bool:
    """Whether a program does its collective for all of these random orders of its threadblocks."""
    for seed in seeds:
        run = Interpreter(text, seed)
        try:
            run.run()
            if not run.does_its_collective():
                return False
        except (KeyError, IndexError):  # memory that nothing has written, or no threadblock that can go on
            return False
    return True
