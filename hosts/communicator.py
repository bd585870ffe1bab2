"""The communicator: connects the GPUs' agents as a schedule requires, and runs collectives on them.

It starts one small process that forks the agents (`hosts.agent.launcher`), sends each agent its commands over a private
socket pair, and waits for all answers with a deadline. Every failure raises one CollectiveError that names the rank.
The agents have ended then, and a new communicator is needed.
"""

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hosts.agent import messages
from hosts.agent.agent import Job, source_port
from hosts.agent.clock import now_ns
from hosts.agent.rank_program import Program
from hosts.agent.transport import Transport, limits, segment_bytes
from hosts.collectives.kinds import Workload
from hosts.collectives.rank_programs import (
    Extent,
    Move,
    extent,
    has_sums,
    message_bytes,
    moves,
    programs,
)
from hosts.collectives.schedule import Flow
from topologies.fabric.fabric import Fabric

_PROJECT = Path(__file__).parent.parent
LEAD_S = 0.05
"""Time between the command to begin a collective and its start, within which all agents must receive the command."""
_PHASE_NS = 10_000_000  # collectives start at the same phase of the kernel's 100 Hz tick
_GRACE_S = 5.0  # added to the agents' own deadline


class CollectiveError(Exception):
    """Raised if connections or a collective failed; the message names the rank, `seen_ns` is the time of detection."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.seen_ns = now_ns()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A wrong message: the receiving rank, the transfer's index in the schedule, the sending rank, and the error."""

    rank: int
    task: int
    src: int
    text: str

    def __str__(self) -> str:
        return f"GPU {self.rank}, transfer {self.task} from GPU {self.src}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A bit error to inject, for tests: in byte `byte` of the message that is transfer `task`, on arrival."""

    task: int
    byte: int


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A completed collective with its times on CLOCK_MONOTONIC: `start_ns` by rank, the others by transfer.

    `sent_ns` is the time at which a transfer was handed to the sender's kernel, where earlier ones may still be queued;
    `arrived_ns` is the time at which it had arrived whole. For a computation they are its beginning and its end.
    `faults` are the wrong messages in order of arrival; without any, all received bytes and all sums were correct.
    """

    collective: int
    start_ns: tuple[int, ...]
    sent_ns: tuple[int, ...]
    arrived_ns: tuple[int, ...]
    faults: tuple[Fault, ...]

    @property
    def completion_s(self) -> float:
        """The time from the first start to the last arrival, in seconds."""
        return (max(self.arrived_ns) - min(self.start_ns)) / 1e9


class Communicator:
    """The agents of a fabric's GPUs; a GPU's host is the network namespace of a process, `host_pids` by rank.

    Every collective executes `workload`, or another one of the same flows (`set_workload`), of which `most` is the
    extent of all. An agent waits for another at most `deadline_s` plus the time of all computations, by the VM's clock.
    `controls` are the congestion controls of flows by their DSCP, in place of that of `transport`. `lead_s` is the time
    between the command to begin a collective and its start. `epoch` counts how often connections have been made; a
    communicator that replaces another continues from its epoch, so that old connections cannot be mistaken for new
    ones. Of a fabric that machines share, `host_pids` has the GPUs of this machine alone, and `exchange` returns the
    values of all machines, each of which runs the same, and `instant` one that is now on all. With `fastest_bps`, the
    rate of the fastest link, TCP's segments are sized for fair shares (`transport.segment_bytes`). `loses` tells that
    packets may be lost. The thread that
    creates a communicator must outlive it, because the agents die with that thread. Raises ValueError if the workload
    does not match the GPUs or is too large for Linux's sockets, and CollectiveError if an agent cannot start.
    """

    def __init__(
        self,
        fabric: Fabric,
        *,
        host_pids: Sequence[int] | Mapping[int, int],
        workload: Workload,
        most: Extent | None = None,
        transport: Transport | None = None,
        controls: Mapping[int, str] = MappingProxyType({}),
        deadline_s: float = 60.0,
        lead_s: float = LEAD_S,
        epoch: int = 0,
        fastest_bps: float | None = None,
        loses: bool = True,
        exchange: Callable[[Any], Sequence[Any]] = lambda value: [value],
        instant: Callable[[], int] = now_ns,
    ) -> None:
        self._gpus, self._workload, self._fastest_bps = fabric.gpus, workload, fastest_bps
        pids = dict(enumerate(host_pids)) if isinstance(host_pids, Sequence) else host_pids
        self._ranks, self._exchange, self._instant = tuple(pids), exchange, instant
        if workload.schedule.places != len(self._gpus):
            raise ValueError(
                f"a schedule of {workload.schedule.places} places; allowed: {len(self._gpus)}, as many as GPUs"
            )
        most = most or extent([workload])
        deadline_s += most.computing_s
        self._deadline_s, self._lead_ns = deadline_s, round(lead_s * 1e9)
        transport = transport or Transport()
        job = Job(
            sites=[gpu.site for gpu in fabric.gpus],
            slot_bytes=workload.largest_slot_bytes,
            windows=most.windows,
            window_bytes=most.window_bytes,
            sums=has_sums(workload),
            channels=_channels(workload),
            dscp=_dscp_of_channels(workload),
            controls=[controls.get(dscp, "") for dscp in _dscp_of_channels(workload)] if controls else [],
            deadline_s=deadline_s,
            token=exchange(os.urandom(messages.TOKEN_BYTES).hex())[0],  # a new one for every communicator
            transport=transport,
            loses=loses,
            limits=limits(transport, flow_bytes=most.flow_bytes, flow_messages=most.flow_messages),
        )
        self.epoch, self._collective = epoch, 0
        self._failure = ""  # why the agents were ended
        self._moves: dict[int, Move] | None = None  # without connections
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in self._ranks]
        agents_ends = [pair[1] for pair in pairs]
        self._controls = {rank: pair[0] for rank, pair in zip(self._ranks, pairs, strict=True)}
        for control in self._controls.values():  # a command that fills the buffer of a stopped agent's socket blocks
            control.settimeout(deadline_s + _GRACE_S)
        fds = [end.fileno() for end in agents_ends]
        gpus = [
            {"rank": g.rank, "address": g.ip, "interface": g.interface, "host_pid": pid, "control_fd": fd}
            for g, pid, fd in zip((self._gpus[rank] for rank in self._ranks), pids.values(), fds, strict=True)
        ]
        self._launcher = _start_launcher(json.dumps({"gpus": gpus, "job": asdict(job)}), fds, numpy=job.sums)
        for end in agents_ends:
            end.close()
        try:
            self.agent_pids = tuple(answer["pid"] for answer in self._answers("start", self._ranks))
            self._exchange(None)  # all agents listen now
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_workload(self, workload: Workload) -> None:
        """Execute another workload from the next `connect` on: of the same flows, and within the extent `most`."""
        assert workload.schedule.flows == self._workload.schedule.flows
        self._workload, self._moves = workload, None

    def connect(self, placement: Sequence[int], *, rto_min_s: float | None = None) -> None:
        """Replace all connections by those that the schedule needs with rank `placement[p]` at place p.

        On return all connections are up, and at line rate if the transport starts there. `rto_min_s` is the lower bound
        of their retransmission timeout, None for that of the transport. Raises ValueError unless `placement` is a
        permutation of the ranks, and CollectiveError if a connection cannot be made.
        """
        of_ranks = programs(self._workload, placement)
        self._moves = {move.task: move for move in moves(self._workload, placement)}
        self.epoch += 1
        self._command_all("abort")
        self._exchange(None)  # an agent takes no new connection before it has ended the old ones
        addresses = [gpu.ip for gpu in self._gpus]
        # One after the other, also on several machines, so that the order and the time of connecting are fixed.
        for turn, ranks in enumerate(self._exchange(self._ranks)):
            if turn:
                self._exchange(None)
            for rank in (rank for rank in ranks if rank in self._controls):
                program = of_ranks[rank]
                segments = self._segments(program)
                arguments = {"program": program.as_json(), "addresses": addresses, "segments": segments}
                self._send_command(rank, "connect", epoch=self.epoch, rto_min_s=rto_min_s, **arguments)
                self._answers("connect", [rank])
        for rank in self._ranks:
            self._send_command(rank, "accept", epoch=self.epoch)
        self._answers("accept", self._ranks)
        self._command_all("confirm")

    def _segments(self, program: Program) -> list[int]:
        """Return the segment size of each outgoing connection of a rank in bytes; empty without `fastest_bps`."""
        if (fastest_bps := self._fastest_bps) is None:
            return []
        transfers = self._workload.schedule.transfers
        largest = [
            max(message_bytes(self._workload, transfers[send.task]) for send in sends) for _, _, sends in program.sends
        ]
        return [segment_bytes(message_bytes=size, fastest_bps=fastest_bps) for size in largest]

    def source_port(self, channel: int) -> int:
        """Return the TCP source port of a channel's current connections."""
        return source_port(channel, epoch=self.epoch, channels=_channels(self._workload))

    def run(
        self,
        *,
        flip: Flip | None = None,
        on_start: Callable[[int], object] = lambda _: None,
        after_s: float | None = None,
    ) -> Completed:
        """Run the collective; all ranks start at the same instant. `flip` injects a bit error into one message.

        `on_start` is called shortly before the start, with its instant (CLOCK_MONOTONIC, ns). With `after_s` it starts
        that much later, at any instant, and connections are not used before: as suits a collective that follows another
        one at once. Raises ValueError without connections and for a flip that is not in the collective, and
        CollectiveError if an agent dies or does not finish in time.
        """
        moved = self._moves
        if moved is None:
            raise ValueError("there are no connections yet")
        transfers = self._workload.schedule.transfers
        if flip is not None and not (
            flip.task in moved and 0 <= flip.byte < message_bytes(self._workload, transfers[flip.task])
        ):
            raise ValueError(f"{flip} is not in a collective of {len(transfers)} transfers of these sizes")
        self._collective += 1
        if after_s is None:
            self._command_all("touch")
            start_ns = -(-(self._instant() + self._lead_ns) // _PHASE_NS) * _PHASE_NS
        else:
            start_ns = self._instant() + round(after_s * 1e9)
        damage = [] if flip is None else [flip.task, flip.byte]
        for rank in self._ranks:
            self._send_command(rank, "run", collective=self._collective, start_ns=start_ns, flip=damage)
        on_start(start_ns)
        here = dict(zip(self._ranks, self._answers("run", self._ranks), strict=True))
        by_rank = [here.get(rank) for rank in range(len(self._gpus))]
        answers = [next(filter(None, of_rank)) for of_rank in zip(*self._exchange(by_rank), strict=True)]
        arrived_ns = _times_by_task(answers, "arrived_ns")
        faults = [
            Fault(rank=rank, src=moved[fault["task"]].src, **fault)
            for rank, answer in enumerate(answers)
            for fault in answer["faults"]
        ]
        return Completed(
            collective=self._collective,
            start_ns=tuple(answer["start_ns"] for answer in answers),
            sent_ns=_times_by_task(answers, "sent_ns"),
            arrived_ns=arrived_ns,
            faults=tuple(sorted(faults, key=lambda fault: (arrived_ns[fault.task], fault.task))),
        )

    def retransmitted_bytes(self) -> int | None:
        """Return the bytes that TCP has retransmitted between the GPUs since `connect`, None over verbs, where nobody
        counts them; raises CollectiveError."""
        here = [answer["bytes"] for answer in self._command_all("retransmitted")]
        of_machines = self._exchange(None if None in here else sum(here))
        return None if None in of_machines else sum(of_machines)

    def close(self) -> None:
        """End the agents and the launcher, and wait for them; may be called more than once."""
        for control in self._controls.values():  # an agent ends when its control connection is closed
            control.close()
        for end in (self._launcher.terminate, self._launcher.kill):  # terminate kills the agents, kill the launcher
            try:
                self._launcher.wait(_GRACE_S)
                break
            except subprocess.TimeoutExpired:
                end()
        self._launcher.wait()
        self._moves = None

    def kill(self) -> None:
        """End the agents immediately, even during a collective."""
        self._launcher.terminate()  # which kills its agents
        self.close()

    def _send_command(self, rank: int, do: str, **arguments: object) -> None:
        """Send a command to a rank's agent; raises CollectiveError if an earlier command has failed."""
        if self._failure:
            raise CollectiveError(self._failure)
        # If the agent has died or is stopped, `_answers` detects it.
        with suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            messages.send(self._controls[rank], {"do": do, **arguments})

    def _command_all(self, do: str) -> list[dict[str, Any]]:
        for rank in self._ranks:
            self._send_command(rank, do)
        return self._answers(do, self._ranks)

    def _answers(self, do: str, ranks: Sequence[int]) -> list[dict[str, Any]]:
        """Return the answers of these ranks to `do`; if one is missing or an error, close and raise CollectiveError."""
        answers: dict[int, dict[str, Any] | None] = {}
        end_s = time.monotonic() + self._deadline_s + _GRACE_S
        with selectors.PollSelector() as selector:
            for rank in ranks:
                selector.register(self._controls[rank], selectors.EVENT_READ, rank)
            while selector.get_map() and (left_s := end_s - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    answers[key.data] = messages.receive(self._controls[key.data])
                    selector.unregister(key.fileobj)
        died = sorted(rank for rank, answer in answers.items() if answer is None)
        silent = [rank for rank in ranks if rank not in answers]
        errors = [f"GPU {rank} {answer['error']}" for rank, answer in answers.items() if answer and "error" in answer]
        if died:  # several ranks may have failed: report the most likely cause
            cause = f"the process of GPU {_joined(died)} died"
        elif silent:
            cause = f"GPU {_joined(silent)} did not answer within {self._deadline_s:g} s"
        elif errors:
            cause = errors[0]
        else:
            return [answer for answer in map(answers.get, ranks) if answer is not None]
        action = "the agents' start" if do == "start" else f"connection {self.epoch}"
        if do in ("touch", "run", "retransmitted"):
            action = f"collective {self._collective}"
        self.close()
        self._failure = f"{action} failed: {cause}"
        raise CollectiveError(self._failure)


def _joined(ranks: Sequence[int]) -> str:
    return " and ".join(str(rank) for rank in ranks)


def _channels(workload: Workload) -> int:
    """Return the number of channels of a workload's flows."""
    return 1 + max(flow.channel for flow in workload.schedule.flows if isinstance(flow, Flow))


def _dscp_of_channels(workload: Workload) -> tuple[int, ...]:
    """Return the DSCP of each channel; empty if no flow has one."""
    if not any(workload.dscp):
        return ()
    pairs = zip(workload.schedule.flows, workload.dscp, strict=True)
    dscp_of = {flow.channel: dscp for flow, dscp in pairs if isinstance(flow, Flow)}
    return tuple(dscp_of.get(channel, 0) for channel in range(1 + max(dscp_of)))


def _times_by_task(answers: Sequence[dict[str, Any]], name: str) -> tuple[int, ...]:
    """Merge the pairs [task, ns] of all ranks' answers; return the times in the order of tasks."""
    return tuple(ns for _, ns in sorted(tuple(pair) for answer in answers for pair in answer[name]))


def _start_launcher(request: str, fds: Sequence[int], *, numpy: bool) -> "subprocess.Popen[str]":
    """Start the process that forks the agents, with a minimal Python environment: starting is slow in the VM."""
    folders, threads = [str(_PROJECT)], {}
    if numpy:
        spec = find_spec("numpy")
        assert spec is not None and spec.origin is not None
        folders.append(str(Path(spec.origin).parent.parent))  # `-S` omits site-packages
        threads = {"OPENBLAS_NUM_THREADS": "1"}  # a multi-threaded process must not fork
    launcher = subprocess.Popen(
        [sys.executable, "-S", "-m", "hosts.agent.launcher", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=fds,
        text=True,
        cwd="/",
        env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(folders)},
        process_group=0,  # Ctrl-C at a prompt must not reach the agents
    )
    assert launcher.stdin is not None
    with suppress(BrokenPipeError), launcher.stdin:  # if the launcher has died, `_answers` detects it
        launcher.stdin.write(request)
    return launcher
