"""The communicator: makes rings of the GPUs' agents and runs collectives on them.

It starts one small process that forks the agents (`hosts.agent.launcher`), sends each its commands over a private
socket pair, and waits for all answers with a deadline. Every failure is one CollectiveError that names the
rank; the agents have ended then, and a new communicator must be made.
"""

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hosts.agent import messages
from hosts.agent.agent import Job, now_ns
from hosts.agent.transport import Transport, limits
from hosts.collectives.ring import ring_allgather
from topologies.fabric.fabric import Fabric

_PROJECT = Path(__file__).parent.parent
LEAD_S = 0.05
"""From the command to begin a collective to its beginning: all agents must receive it in that time."""
_PHASE_NS = 10_000_000  # collectives begin at the same phase of the kernel's tick of 100 Hz
_GRACE_S = 5.0  # beyond the agents' own deadline


class CollectiveError(Exception):
    """A ring or a collective failed: a sentence that names the rank; `seen_ns` is when it was detected."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.seen_ns = now_ns()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A wrong chunk: the receiving rank, the step, the rank that the chunk began at, and what is wrong."""

    rank: int
    step: int
    chunk: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Flip:
    """Damage, for a test: one bit of byte `byte` of the chunk received by `rank` in `step`, before it is forwarded."""

    rank: int
    step: int
    byte: int


@dataclass(frozen=True, kw_only=True)
class AllGather:
    """A completed collective: when each rank began and when it had received each chunk whole, on CLOCK_MONOTONIC.

    `arrived_ns[rank][step - 1]` is of the chunk that arrives in that step, and is forwarded at once unless it is the
    last. `faults` are the wrong chunks; if there are none, every GPU received every chunk right, byte for byte.
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

    Collectives are of `chunk_bytes` a GPU. No step may take longer than `deadline_s`, by the VM's clock. `lead_s`
    is the time from the command to begin a collective to its beginning. `epoch` is the number of the last ring: a
    communicator that replaces another continues from its epoch, so that no connection can be mistaken for one of
    the other's. The thread that makes a communicator must outlive it, as the agents die with that thread. Raises
    ValueError where the chunks are too large for Linux's sockets, CollectiveError where an agent cannot start.
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
        transport = transport or Transport()
        limit = limits(transport, ranks=len(self._gpus), message_bytes=chunk_bytes + messages.LABEL_BYTES)
        token = os.urandom(messages.TOKEN_BYTES).hex()  # another for every communicator
        job = Job(chunk_bytes=chunk_bytes, deadline_s=deadline_s, token=token, transport=transport, limits=limit)
        self.epoch, self._collective = epoch, 0
        self._arrivals: list[list[int]] = []
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in self._ranks]
        self._controls, agents_ends = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        fds = [end.fileno() for end in agents_ends]
        gpus = [
            {"rank": g.rank, "address": g.ip, "interface": g.interface, "host_pid": pid, "control_fd": fd}
            for g, pid, fd in zip(self._gpus, host_pids, fds, strict=True)
        ]
        self._launcher = _start_launcher(json.dumps({"gpus": gpus, "job": asdict(job)}), fds)
        for end in agents_ends:
            end.close()
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
        """Leave the present ring and make this one, of all ranks: on return every connection is up, at line rate.

        Raises ValueError unless `ring` has each rank once, CollectiveError where a connection cannot be made.
        """
        if sorted(ring) != list(self._ranks):
            raise ValueError(f"{list(ring)} is not a ring of {len(self._ranks)} GPUs: it must have each rank once")
        self.epoch += 1
        after = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
        before = {b: a for a, b in after.items()}
        self._all("abort")
        for rank in self._ranks:  # one after the other, so that nothing depends on which of them is first
            address = self._gpus[after[rank]].ip
            self._tell(rank, "connect", epoch=self.epoch, successor=after[rank], address=address)
            self._answers("connect", [rank])
        for rank in self._ranks:
            self._tell(rank, "accept", epoch=self.epoch, predecessor=before[rank])
        self._answers("accept", self._ranks)
        self._all("confirm")
        self._arrivals = [[] for _ in self._ranks]
        for transfer in ring_allgather(ring):
            self._arrivals[transfer.dst].append(transfer.chunk)

    def allgather(self, *, flip: Flip | None = None, on_start: Callable[[int], object] = lambda _: None) -> AllGather:
        """Run an AllGather over the ring, begun by all ranks at one instant; `flip` damages a chunk of it.

        `on_start` is called with the instant (CLOCK_MONOTONIC, ns) shortly before. Raises ValueError without a ring,
        CollectiveError when an agent dies or does not finish in time.
        """
        if not self._arrivals:
            raise ValueError("there is no ring yet")
        if flip is not None and not (0 < flip.step < len(self._ranks) and 0 <= flip.byte < self._chunk_bytes):
            raise ValueError(f"{flip} is not in a collective of {len(self._ranks)} GPUs and {self._chunk_bytes} bytes")
        self._collective += 1
        self._all("touch")
        start_ns = -(-(now_ns() + self._lead_ns) // _PHASE_NS) * _PHASE_NS
        for rank, arrivals in enumerate(self._arrivals):
            damage = [flip.step, flip.byte] if flip is not None and flip.rank == rank else []
            command = {"collective": self._collective, "start_ns": start_ns, "arrivals": arrivals, "flip": damage}
            self._tell(rank, "allgather", **command)
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

    def retransmitted_bytes(self) -> int:
        """The bytes that TCP has retransmitted between the GPUs since the ring was made; raises CollectiveError."""
        return sum(answer["bytes"] for answer in self._all("retransmitted"))

    def close(self) -> None:
        """End the agents and their parent, and wait until they have; may be called again."""
        for control in self._controls:  # an agent ends when its control connection is closed
            control.close()
        for end in (self._launcher.terminate, self._launcher.kill):  # the first kills its agents, the second itself
            try:
                self._launcher.wait(_GRACE_S)
                break
            except subprocess.TimeoutExpired:
                end()
        self._launcher.wait()
        self._arrivals = []

    def kill(self) -> None:
        """End the agents at once, also during a collective."""
        self._launcher.terminate()  # which kills its agents
        self.close()

    def _tell(self, rank: int, do: str, **arguments: object) -> None:
        """Send a rank a command."""
        with suppress(BrokenPipeError, ConnectionResetError):  # the agent has died, which `_answers` will find
            messages.send(self._controls[rank], {"do": do, **arguments})

    def _all(self, do: str) -> list[dict[str, Any]]:
        for rank in self._ranks:
            self._tell(rank, do)
        return self._answers(do, self._ranks)

    def _answers(self, do: str, ranks: Sequence[int]) -> list[dict[str, Any]]:
        """The answers of these ranks to `do`; closes and raises CollectiveError where one is missing or an error."""
        answers: dict[int, dict[str, Any] | None] = {}
        end_s = time.monotonic() + self._deadline_s + _GRACE_S
        with selectors.PollSelector() as waiting:
            for rank in ranks:
                waiting.register(self._controls[rank], selectors.EVENT_READ, rank)
            while waiting.get_map() and (left_s := end_s - time.monotonic()) > 0:
                for key, _ in waiting.select(left_s):
                    answers[key.data] = messages.receive(self._controls[key.data])
                    waiting.unregister(key.fileobj)
        died = sorted(rank for rank, answer in answers.items() if answer is None)
        silent = [rank for rank in ranks if rank not in answers]
        errors = [f"GPU {rank} {answer['error']}" for rank, answer in answers.items() if answer and "error" in answer]
        if died:  # of what failed at several ranks, the most likely cause
            cause = f"the process of GPU {_listed(died)} died"
        elif silent:
            cause = f"GPU {_listed(silent)} did not answer within {self._deadline_s:g} s"
        elif errors:
            cause = errors[0]
        else:
            return [answer for answer in map(answers.get, ranks) if answer is not None]
        what = "the agents' start" if do == "start" else f"ring {self.epoch}"
        if do in ("touch", "allgather", "retransmitted"):
            what = f"collective {self._collective}"
        self.close()
        raise CollectiveError(f"{what} failed: {cause}")


def _listed(ranks: Sequence[int]) -> str:
    return " and ".join(str(rank) for rank in ranks)


def _start_launcher(request: str, fds: Sequence[int]) -> "subprocess.Popen[str]":
    """Start the process that forks the agents, with as little of Python as it needs: starting is slow in the VM."""
    launcher = subprocess.Popen(
        [sys.executable, "-S", "-m", "hosts.agent.launcher", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=fds,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(_PROJECT)},
        process_group=0,  # Ctrl-C at a prompt is not for the agents
    )
    assert launcher.stdin is not None
    with suppress(BrokenPipeError), launcher.stdin:  # without agents there will be no answers
        launcher.stdin.write(request)
    return launcher
