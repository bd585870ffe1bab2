"""Asks the run for plans of collectives, and tells it what became of them: JSON lines on a Unix socket.

Each group has a connection of its own, so that an answer that takes time holds up no other group.
"""

import json
import select
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import GroupError, ShutDown, TimedOut
from .waking import Wake

_MAX_LINE_BYTES = 1 << 26


class Message(NamedTuple):
    """A message of a rank's program: its task, its slots on this rank, and whether it is added to them.

    A message to send waits for the tasks `after`, messages that this rank receives.
    """

    task: int
    slots: tuple[int, ...]
    after: tuple[int, ...] = ()
    adds: bool = False


@dataclass(frozen=True)
class Plan:
    """How a group executes a collective, as far as one rank needs it.

    `placement` has the group's rank at each place. A buffer has `slots` slots of `slot_bytes`, of which the last
    `scratch` are not part of the collective. `sends` and `receives` have an entry for each connection: the rank in the
    group and the channel of its other end, and its messages in order.
    """

    kind: str
    placement: tuple[int, ...]
    slots: int
    scratch: int
    slot_bytes: int
    sends: tuple[tuple[int, int, tuple[Message, ...]], ...]
    receives: tuple[tuple[int, int, tuple[Message, ...]], ...]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Plan":
        """Return the plan of a JSON object; raises GroupError if it has what a tensor's collective cannot have."""
        program = content["program"]
        if program.get("sizes") or program.get("computations"):
            raise GroupError("the run's plan has slots of different sizes or computations, which this backend has not")

        def connections(name: str) -> tuple[tuple[int, int, tuple[Message, ...]], ...]:
            return tuple(
                (
                    rank,
                    channel,
                    tuple(
                        Message(
                            one["task"],
                            tuple(one["slots"]),
                            tuple(one.get("after", ())),
                            one.get("adds", False),
                        )
                        for one in messages
                    ),
                )
                for rank, channel, messages in program[name]
            )

        return cls(
            kind=content["kind"],
            placement=tuple(content["placement"]),
            slots=content["slots"],
            scratch=content.get("scratch", 0),
            slot_bytes=content["slot_bytes"],
            sends=connections("sends"),
            receives=connections("receives"),
        )


class Planner:
    """A group's connection to the run; `path` is the socket's. Raises GroupError if there is no run at its other end.

    Every question waits for its answer, unless `wake` is over. One thread at a time may use it.
    """

    def __init__(self, path: str, name: str, wake: Wake) -> None:
        self._name, self._wake, self._received = name, wake, bytearray()
        self.wants_messages = False  # whether the run wants to know the times of the messages of the last plan
        self._plans = dict[object, Plan]()  # by id: the run sends the content of each once, until it has it forgotten
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise GroupError(f"the run's socket {path} does not answer: {error.strerror}") from None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def group(self, ranks: Sequence[int], *, made: str, timeout_s: float) -> bool:
        """Tell the run of the group, the world's ranks in its order; return whether to connect all pairs now.

        `made` is a text that all ranks of the group know, and that no group of this name has had before.
        """
        asked = {"ask": "group", "group": self._name, "made": made, "ranks": list(ranks)}
        return bool(self._answer(asked, timeout_s).get("connect"))

    def plan(self, *, number: int, kind: str, size_bytes: int, unit_bytes: int, root: int, timeout_s: float) -> Plan:
        """Return the plan of a collective once this rank may begin it; raises GroupError and TimedOut."""
        asked = {"ask": "plan", "group": self._name, "number": number, "kind": kind, "bytes": size_bytes}
        answer = self._answer({**asked, "unit": unit_bytes, "root": root}, timeout_s)
        key, self.wants_messages = answer["plan"], bool(answer.get("messages"))
        if answer.get("content") is not None:
            self._plans[key] = Plan.from_json(answer["content"])
        elif key not in self._plans:
            raise GroupError(f"the run names the plan {key}, whose content this rank has not had")
        self._plans.pop(answer.get("forget"), None)
        plan = self._plans[key]
        if plan.kind != kind:
            raise GroupError(f"the run plans {plan.kind} number {number}, where this rank has {kind}")
        return plan

    def ended(
        self,
        *,
        number: int,
        kind: str,
        size_bytes: int,
        asked_ns: int,
        begun_ns: int,
        sent_ns: int,
        ended_ns: int,
        sent: Mapping[int, tuple[int, int]],
        arrived: Mapping[int, int],
    ) -> None:
        """Tell the end of a collective: the times, of CLOCK_MONOTONIC, at which the script issued it, its plan was
        there, its last message was handed to the kernel, and it ended.

        If the run wants to know them, tell also when each message was handed over, with its bytes, and when each one
        had arrived, both by task.
        """
        told = {"tell": "ended", "group": self._name, "number": number, "kind": kind, "bytes": size_bytes}
        times = {"asked_ns": asked_ns, "begun_ns": begun_ns, "sent_ns": sent_ns, "ended_ns": ended_ns}
        messages: dict[str, object] = {}
        if self.wants_messages:
            messages["sent"] = [[task, at_ns - begun_ns, size] for task, (at_ns, size) in sent.items()]
            messages["arrived"] = [[task, at_ns - begun_ns] for task, at_ns in arrived.items()]
        self._send({**told, **times, **messages})

    def failed(self, *, number: int, kind: str, why: str) -> None:
        """Tell that a collective failed, and why."""
        self._send({"tell": "failed", "group": self._name, "number": number, "kind": kind, "why": why})

    def _send(self, message: Mapping[str, object]) -> None:
        try:
            self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise GroupError(f"the run has closed its socket: {error.strerror}") from None

    def _answer(self, question: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
        self._send(question)
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while b"\n" not in self._received:
            ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1e3))
            if self._wake.fileno() in ready:
                self._wake.clear()
                if self._wake.is_over:
                    raise ShutDown
            if self._socket.fileno() in ready:
                data = self._socket.recv(1 << 16)
                if not data:
                    raise GroupError("the run has closed its socket")
                self._received += data
                if len(self._received) > _MAX_LINE_BYTES:
                    raise GroupError(f"the run's answer has more than {_MAX_LINE_BYTES} bytes")
            if not ready and time.monotonic() >= deadline:
                raise TimedOut("the run gave no plan")
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise GroupError(str(answer["error"]))
        return answer
