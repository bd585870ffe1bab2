"""The communicator: makes rings of the GPUs' agents and runs collectives on them.

It starts one small process that forks the agents (`hosts.nursery`), tells each over a socket of its own what to do, and
waits for all answers with a deadline. Whatever goes wrong is one CollectiveError that names the rank; then the agents
are gone, and a communicator has to be made anew.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hosts import agent, wire
from hosts.collectives import ring_allgather
from hosts.controls import Controls
from hosts.transport import Transport, limits
from topologies.fabric import Fabric

_PROJECT = Path(__file__).parent.parent
LEAD_S = 0.05
"""From the order to begin until the beginning: all agents must hear it in that time, on a wall clock, too."""
_PHASE_NS = 10_000_000  # collectives begin in step with the kernel's tick of 100 Hz, so all of them find it alike
_GRACE_S = 5.0  # beyond the agents' own deadline


class CollectiveError(Exception):
    """A ring or a collective that failed: a sentence that names the rank; `seen_ns` is when it was noticed."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.seen_ns = agent.now_ns()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A chunk that is not what was due: where, in which step, the rank that the chunk began at, and what is wrong."""

    rank: int
    step: int
    chunk: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Flip:
    """Damage, for a test: a bit of byte `byte` of what `rank` has received in `step`, before it is forwarded."""

    rank: int
    step: int
    byte: int


@dataclass(frozen=True, kw_only=True)
class AllGather:
    """A collective that was run: when each rank began, and when it had received each chunk whole, on CLOCK_MONOTONIC.

    `arrived_ns[rank][step - 1]` is of the chunk that arrives in that step and is handed on at once, but for the last.
    `faults` are the chunks that were wrong; without any, every GPU received every chunk right, byte for byte.
    """

    collective: int
    start_ns: tuple[int, ...]
    arrived_ns: tuple[tuple[int, ...], ...]
    faults: tuple[Fault, ...]

    @property
    def completion_s(self) -> float:
        """From the first beginning to the last end."""
        return (max(arrived[-1] for arrived in self.arrived_ns) - min(self.start_ns)) / 1e9


class Communicator:
    """The agents of a fabric's GPUs, whose hosts are the network namespaces of the processes `host_pids`, by rank.

    Collectives are of `chunk_bytes` a GPU. No step may take longer than `deadline_s`, by the VM's clock. The thread
    that makes a communicator must outlive it, as the agents die with it. Raises ValueError where the chunks are too
    large for Linux's sockets, CollectiveError where an agent cannot start. `lead_s` passes between the order to begin a
    collective and its beginning. `epoch` is the last ring's number: one that takes the place of another communicator
    goes on from its, and no connection can be taken for one that the other has left.
    """

    def __init__(
        self,
        fabric: Fabric,
        *,
        host_pids: Sequence[int],
        chunk_bytes: int,
        transport: Transport | None = None,
        deadline_s: float = 60.0,
        lead_s: float = LEAD_S,
        epoch: int = 0,
    ) -> None:
        self._gpus = fabric.gpus
        self._ranks = range(len(self._gpus))
        self._chunk_bytes, self._deadline_s, self._lead_ns = chunk_bytes, deadline_s, round(lead_s * 1e9)
        if chunk_bytes < 1:
            raise ValueError(f"a chunk has {chunk_bytes} bytes; it needs one at least")
        transport = transport or Transport()
        limit = limits(transport, ranks=len(self._gpus), message_bytes=chunk_bytes + wire.LABEL_BYTES)
        self.epoch, self._collective = epoch, 0
        self._arrivals: list[list[int]] = []
        self._controls = Controls(len(self._gpus))
        spec = {
            "gpus": [
                {"rank": g.rank, "address": g.ip, "interface": g.interface, "host_pid": pid, "control_fd": fd}
                for g, pid, fd in zip(self._gpus, host_pids, self._controls.agents_fds, strict=True)
            ],
            "chunk_bytes": chunk_bytes,
            "deadline_s": deadline_s,
            "transport": asdict(transport),
            "limits": asdict(limit),
            "token": os.urandom(wire.TOKEN_BYTES).hex(),  # another for every communicator
        }
        self._nursery = _start_nursery(json.dumps(spec), self._controls.agents_fds)
        self._controls.hand_over()
        try:
            self.agent_pids = tuple(answer["pid"] for answer in self._answers("start", self._ranks))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def build_ring(self, ring: Sequence[int]) -> None:
        """Leave the ring there is and make this one, of all ranks: on return every connection is up and open wide.

        Raises ValueError for what is no ring of all ranks, CollectiveError where a connection cannot be made.
        """
        if sorted(ring) != list(self._ranks):
            raise ValueError(f"{list(ring)} is no ring of {len(self._ranks)} GPUs: it must have each rank once")
        self.epoch += 1
        after = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
        before = {b: a for a, b in after.items()}
        self._all("abort")
        for rank in self._ranks:  # one after the other: then nothing depends on which of them is first
            address = self._gpus[after[rank]].ip
            self._controls.tell(rank, "connect", epoch=self.epoch, successor=after[rank], address=address)
            self._answers("connect", [rank])
        for rank in self._ranks:
            self._controls.tell(rank, "accept", epoch=self.epoch, predecessor=before[rank])
        self._answers("accept", self._ranks)
        self._all("confirm")
        self._arrivals = [[] for _ in self._ranks]
        for transfer in ring_allgather(ring):
            self._arrivals[transfer.dst].append(transfer.chunk)

    def allgather(self, *, flip: Flip | None = None, on_start: Callable[[int], object] = lambda _: None) -> AllGather:
        """Run an AllGather over the ring, begun by all ranks at one instant; `flip` damages it on the way.

        `on_start` is told the instant (CLOCK_MONOTONIC, ns) shortly before. Raises ValueError without a ring,
        CollectiveError when an agent dies or does not get through in time.
        """
        if not self._arrivals:
            raise ValueError("there is no ring yet")
        if flip is not None and not (0 < flip.step < len(self._ranks) and 0 <= flip.byte < self._chunk_bytes):
            raise ValueError(
                f"{flip} is nowhere in a collective of {len(self._ranks)} GPUs and {self._chunk_bytes} bytes"
            )
        self._collective += 1
        self._all("touch")
        start_ns = -(-(agent.now_ns() + self._lead_ns) // _PHASE_NS) * _PHASE_NS
        for rank, arrivals in enumerate(self._arrivals):
            damage = [flip.step, flip.byte] if flip is not None and flip.rank == rank else []
            order = {"collective": self._collective, "start_ns": start_ns, "arrivals": arrivals, "flip": damage}
            self._controls.tell(rank, "allgather", **order)
        on_start(start_ns)
        answers = self._answers("allgather", self._ranks)
        return AllGather(
            collective=self._collective,
            start_ns=tuple(answer["start_ns"] for answer in answers),
            arrived_ns=tuple(tuple(answer["arrived_ns"]) for answer in answers),
            faults=tuple(
                Fault(rank=rank, **fault) for rank, answer in enumerate(answers) for fault in answer["faults"]
            ),
        )

    def bytes_again(self) -> int:
        """The bytes that TCP has sent again between the GPUs since the ring was made; raises CollectiveError."""
        return sum(int(answer["bytes"]) for answer in self._all("again"))

    def close(self) -> None:
        """End the agents and their parent, and wait until they have; may be called again."""
        self._controls.close()  # an agent ends when its communicator goes away
        for end in (self._nursery.terminate, self._nursery.kill):  # the first kills its agents, the second itself too
            try:
                self._nursery.wait(_GRACE_S)
                break
            except subprocess.TimeoutExpired:
                end()
        self._nursery.wait()
        self._arrivals = []

    def kill(self) -> None:
        """End the agents in the middle of whatever they are doing."""
        self._nursery.terminate()  # which kills its agents
        self.close()

    def _all(self, do: str) -> list[dict[str, Any]]:
        for rank in self._ranks:
            self._controls.tell(rank, do)
        return self._answers(do, self._ranks)

    def _answers(self, do: str, ranks: Sequence[int]) -> list[dict[str, Any]]:
        """The answers of these ranks to `do`; where one is missing or is an error, CollectiveError, and the end."""
        answers, silent, failed = self._controls.answers(do, ranks, timeout_s=self._deadline_s + _GRACE_S)
        if silent or failed:
            text = self._blame(do, silent, failed)
            self.close()
            raise CollectiveError(text)
        return [answers[rank] for rank in ranks]

    def _blame(self, do: str, silent: set[int], failed: Mapping[int, str]) -> str:
        """The one sentence for a failure: of what went wrong at several ranks, what is most likely the cause."""
        collective = f"collective {self._collective}"
        what = {"start": "the agents' start", "touch": collective, "allgather": collective, "again": collective}.get(
            do, f"ring {self.epoch}"
        )
        dead = sorted(rank for rank, text in failed.items() if not text)
        if dead:
            return f"{what} failed: the process of GPU {_listed(dead)} died"
        if silent:
            return f"{what} failed: GPU {_listed(sorted(silent))} did not answer within {self._deadline_s:g} s"
        rank, text = next(iter(failed.items()))
        return f"{what} failed: GPU {rank} {text}"


def _listed(ranks: Sequence[int]) -> str:
    return " and ".join(str(rank) for rank in ranks)


def _start_nursery(spec: str, fds: Sequence[int]) -> "subprocess.Popen[str]":
    """Start the process that forks the agents, with as little of Python as it needs: starting is slow in the VM."""
    nursery = subprocess.Popen(
        [sys.executable, "-S", "-m", "hosts.nursery", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=fds,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(_PROJECT)},
        process_group=0,  # Ctrl-C at a prompt is not for the agents
    )
    assert nursery.stdin is not None
    with suppress(BrokenPipeError), nursery.stdin:  # its agents' silence will tell
        nursery.stdin.write(spec + "\n")
    return nursery
