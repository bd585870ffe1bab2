"""Runs a group's collectives one after another, in the order in which the script issues them, in a thread."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from . import computing, wire
from .connections import Connections
from .errors import GroupError, TimedOut
from .execution import Add, Execution, Slots
from .fate import Fate
from .planner import Plan, Planner
from .waking import Wake


class Handle(Protocol):
    """What is told of the end of a piece of work."""

    waits_for: Callable[[], Sequence[int]]
    records: list[int]

    def begin(self, what: str) -> None:
        """Note what the work does now, for errors."""

    def finish(self, sentence: str | None = None) -> None:
        """The work has ended; it has failed if there is a sentence."""


@dataclass(frozen=True)
class Collective:
    """A collective as the script issues it: torch's `name` of it, its `kind` and size, and its root in the group.

    `slots` returns this rank's buffers, filled, for a plan; `add` adds slots; `finish` puts the result where it
    belongs. Without bytes, or among one rank, `alone` does all.
    """

    name: str
    kind: str
    size_bytes: int
    unit_bytes: int
    slots: Callable[[Plan], Slots]
    finish: Callable[[Plan], None]
    alone: Callable[[], None]
    add: Add | None = None
    root: int = 0


@dataclass
class _Job:
    collectives: Sequence[Collective]
    handle: Handle
    timeout_s: float
    asked_ns: int  # when the script issued it or, if a GPU is simulated, when that has computed what it reduces
    after: tuple[int, ...] = ()  # the ids of what that is (`longhaul_gpu.recording`)
    due: tuple[Any, ...] = ()  # what has to end before, too

    def settle(self) -> None:
        """Wait for what is due; raises its failure."""
        for one in self.due:
            ended_ns, ids = one.ended()
            self.asked_ns, self.after = max(self.asked_ns, ended_ns), self.after + ids
        self.due = ()


class Worker:
    """The collectives of the group `name` on this rank, which is `rank` in the world; alone it has no `planner`."""

    def __init__(
        self, *, name: str, rank: int, connections: Connections, planner: Planner | None, fate: Fate, wake: Wake
    ) -> None:
        self._name, self._rank = name, rank
        self._connections, self._planner, self._fate, self._wake = connections, planner, fate, wake
        self._number = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"longhaul-group-{name}", daemon=True)
        self._thread.start()

    def issue(self, collectives: Sequence[Collective], handle: Handle, timeout_s: float) -> None:
        """Have these collectives run after all that were issued before, and when what they read has been computed; each
        may take this time from its beginning."""
        self._jobs.put(_Job(collectives, handle, timeout_s, *computing.awaited()))

    def join(self) -> None:
        """Wait for the thread to end; the wake is over."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            sentence = None
            for collective in job.collectives:
                try:
                    job.settle()
                    computing.sleep_until(job.asked_ns)
                    if self._planner is None or not collective.size_bytes:
                        collective.alone()
                    else:
                        self._execute(self._planner, job, collective)
                except Exception as error:
                    sentence = str(error)
                    break
            job.handle.finish(sentence)
            job = None  # so that nothing keeps the tensors until the next collective

    def _execute(self, planner: Planner, job: _Job, collective: Collective) -> None:
        """Run a collective; raises RuntimeError with the sentence for the script."""
        number, kind, timeout_s = self._number, collective.kind, job.timeout_s
        self._number += 1
        what = f"{collective.name} number {number} ({collective.size_bytes} bytes)"
        where = f'{what} of the group "{self._name}"'
        job.handle.begin(where)
        if self._fate.why is not None:
            raise RuntimeError(f"{where} failed on rank {self._rank}: {self._fate.why}")
        deadline = time.monotonic() + timeout_s
        record = None
        try:
            plan = planner.plan(
                number=number,
                kind=kind,
                size_bytes=collective.size_bytes,
                unit_bytes=collective.unit_bytes,
                root=collective.root,
                timeout_s=timeout_s,
            )
            begun_ns = time.monotonic_ns()
            record = computing.begun(
                self._name,
                self._connections.ranks,
                number=number,
                kind=kind,
                size_bytes=collective.size_bytes,
                asked_ns=job.asked_ns,
                begun_ns=begun_ns,
                after=job.after,
            )
            execution = Execution(
                plan,
                collective=wire.collective_of(number, kind),
                slots=collective.slots(plan),
                add=collective.add,
                connections=self._connections,
                wake=self._wake,
            )
            job.handle.waits_for = execution.waits_for
            execution.run(deadline)
            collective.finish(plan)
            ended_ns = time.monotonic_ns()
            if record is not None:
                computing.ended(record, ended_ns)
                job.handle.records.append(record.id)
        except Exception as error:
            if record is not None:
                computing.ended(record, time.monotonic_ns())
            failure = error if isinstance(error, GroupError) else GroupError(f"{type(error).__name__}: {error}")
            if isinstance(error, TimedOut):
                failure = TimedOut(f"it did not end within {timeout_s:g} s: {error}")
            why = self._fate.fail(failure, what)
            with suppress(GroupError):  # the run may have ended, which is why
                planner.failed(number=number, kind=kind, why=why)
            raise RuntimeError(f"{where} failed on rank {self._rank}: {why}") from None
        with suppress(GroupError):  # it ended here, even if the run has ended since
            planner.ended(
                number=number,
                kind=kind,
                size_bytes=collective.size_bytes,
                asked_ns=job.asked_ns,
                begun_ns=begun_ns,
                sent_ns=execution.sent_ns,
                ended_ns=ended_ns,
                sent=execution.sent,
                arrived=execution.arrived,
            )
