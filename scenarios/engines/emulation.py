"""The emulation engine: collectives on real TCP, switches and a real controller, each point in a VM of its own.

A VM runs one mode of one configuration from its first collective on, so what it measures depends on nothing that ran
before it, nor on the number of VMs at work. Every ring, path and time is compared with the plan and the model.
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from analysis.results.rows import Rows
from analysis.statistics.fault_outcomes import Event, fault_outcomes
from hosts.agent.buffers import LENT
from hosts.agent.transport import MAX_BUFFER_BYTES, limits
from hosts.collectives.kinds import OWN_SIZES
from hosts.collectives.program import flow_bytes, makes_sums, moves, peaks, programs
from scenarios import vm
from scenarios.engines.base import (
    Activity,
    EngineEvent,
    Failed,
    FaultOutcome,
    IsStored,
    Retrying,
    Slice,
    Snapshot,
    none_stored,
)
from scenarios.engines.offline import best_s
from scenarios.engines.pool import TRIES, Executors, Lost, results
from scenarios.engines.prediction import Expectations, jobs_s, round_s
from scenarios.policies.conditions import conditions_of
from scenarios.policies.measured import readings
from scenarios.spec.scenario import Scenario, to_json
from scenarios.testbed import capabilities, launch
from scenarios.testbed.platform import VIRTUAL, Platform
from topologies.errors import SpecError
from topologies.shaping.classes import Buffer, Shaping
from topologies.units import format_size

MOST_QUEUED_BYTES = MAX_BUFFER_BYTES // 5 * 4 - 2**20
"""What a socket can queue, near enough."""
WRONG_DATA = "delivered wrong data"
"""In a testbed's last line on stderr where it ended because a chunk had wrong bytes."""

# What a VM takes, as measured with 8 to 256 GPUs: 120 MB for the system, Open vSwitch and the controller, 3.3 MB a GPU
# (its host and its agent), 20 kB for each pair of GPUs of a site (its link's class and its share of every table).
_SYSTEM_BYTES = 512 * 2**20  # with room for the kernel's cache of files and for the choice of rings
_GPU_BYTES, _PAIR_BYTES = 3_500_000, 20_000
_KEPT, _QUEUED = 1.45, 1.25  # of what agents keep and of what is under way, as `peaks` counts both
_SUMS_BYTES, _SUMS_GPU_BYTES = 32 * 2**20, 8 * 2**20  # numpy, and the data that an agent has multiplied
_TRACE_SHARE = 6  # of a trace's size, for its rows while they are read
_KEPT_BYTES = 65536  # of what a VM prints on stderr

_PATIENCE_S = 180.0  # a busy machine takes a tenth of it from the start of a VM to the first line
_PATIENCE_PAIR_S = 2e-3  # for each two GPUs: every host learns of every other, and the links of a site are pairs
_PATIENCE_BYTES_PER_S = 1e8  # a tenth of what a slow machine carries

OnStart = Callable[[Callable[[], None]], None]
"""Is called with a function that ends the VM from any thread."""


class EmulationError(RuntimeError):
    """A point that ended early; one sentence that names it."""


class WrongError(EmulationError):
    """A point whose collectives delivered wrong bytes or differ from the plan; a retry would hide that."""


@dataclass(frozen=True)
class Task:
    """One mode of one configuration, `place` being the configuration's index in the run."""

    place: int
    setting: Scenario
    mode: str

    @property
    def name(self) -> str:
        """The point in words."""
        return f"emulation, {self.setting.label}, {self.mode}"


def emulated(setting: Scenario) -> Scenario:
    """The part of a configuration that the emulation measures: its first collectives."""
    count = min(setting.collective.count, setting.collective.emulated)
    return replace(setting, collective=replace(setting.collective, count=count))


def carried_chunk_bytes(setting: Scenario) -> int:
    """The bytes that the emulation carries for a chunk."""
    return setting.run.scale.chunk_bytes(setting.collective.chunk_bytes)


def network_bytes(setting: Scenario) -> int:
    """The memory of a VM for the system and the network of a configuration."""
    pairs = sum(gpus * gpus for gpus in setting.fabric.gpus_per_site)
    return _SYSTEM_BYTES + _GPU_BYTES * setting.gpus + _PAIR_BYTES * pairs


def memory_bytes(setting: Scenario) -> int:
    """The memory of a VM that can run a configuration."""
    workload = setting.carried
    of_ranks = programs(workload, range(setting.gpus))
    most = [peaks(workload, of_ranks, slow=rank) for rank in (-1, setting.gpus - 1)]
    buffers, queued = max(sum(kept) for kept, _ in most), max(in_flight for _, in_flight in most)
    lent = sum(LENT for program in of_ranks if program.buffers and not makes_sums(workload))
    data = round(workload.largest_slot_bytes * (_KEPT * buffers + lent) + _QUEUED * queued)
    sums = _SUMS_BYTES + _SUMS_GPU_BYTES * setting.gpus if makes_sums(workload) else 0
    trace = setting.conditions.trace
    rows = 0 if trace is None else _TRACE_SHARE * trace.stat().st_size
    return network_bytes(setting) + data + sums + rows


@cache
def _own_kernel() -> bool:
    """Whether this machine's own kernel carries experiments on the wall clock; looked up once."""
    return not capabilities.lacking()


def platform(setting: Scenario) -> Platform:
    """Where the testbed of a configuration runs: in a VM, or in real time on this machine's kernel where it can."""
    return Platform.real(setting.run.scale, own_kernel=_own_kernel()) if setting.run.is_real else VIRTUAL


def check_chunks(settings: Sequence[Scenario]) -> None:
    """Raise ValueError for a configuration whose chunks no socket can queue."""
    for setting in settings:
        chunk_bytes, most = carried_chunk_bytes(setting), flow_bytes(setting.carried)
        try:
            limits(setting.transport, flow_bytes=most)
        except ValueError:
            if setting.jobs or setting.collective.kind in OWN_SIZES:
                what = "a round of these jobs" if setting.jobs else setting.collective.kind
                raise ValueError(
                    f"{what} queues {most / 1e6:,.0f} MB on one connection, which is too much for the emulation; "
                    f"allowed: {MOST_QUEUED_BYTES / 1e6:,.0f} MB, so smaller messages, or fewer"
                ) from None
            allowed = MOST_QUEUED_BYTES * chunk_bytes // most // 10**6
            raise ValueError(
                f"{format_size(chunk_bytes)} is too large for the emulation with {setting.gpus} GPUs, which queues "
                f"{most / chunk_bytes:.3g} times as much on one connection; allowed: {allowed} MB"
            ) from None


def check_delays(settings: Sequence[Scenario]) -> None:
    """Raise ValueError for a configuration with links whose delays the emulation cannot shape."""
    for setting in (one for one in settings if one.conditions.links):
        conditions = conditions_of(setting)
        for fair in {setting.fair_links(mode) is not None for mode in setting.run.modes}:
            size = setting.transport.buffer_bytes
            buffer = None if size is None else Buffer(limit_bytes=size)
            shaping = Shaping(fabric=conditions.fabric, delays_s=conditions.delays_s, fair=fair, buffer=buffer)
            try:
                _ = shaping.ifbs
            except ValueError as error:
                raise ValueError(f"conditions.links has {error} in the emulation of {setting.label}") from None


def check_faults(settings: Sequence[Scenario]) -> None:
    """Raise ValueError for a fault that comes after all collectives of an `emulated` configuration."""
    for setting in settings:
        count = setting.collective.count
        for number, fault in enumerate(setting.faults, 1):
            if fault.collective >= count:
                raise ValueError(
                    f"fault[{number}].at: collective {fault.collective:,} is not among the {count:,} that the "
                    f"emulation measures (collective.emulated); allowed: 0 to {count - 1:,}"
                )


@dataclass(frozen=True)
class Emulation:
    """The engine of the emulated testbed: `jobs` VMs at a time on this machine, or whole points on `elsewhere`."""

    jobs: int = 1
    elsewhere: Executors | None = None

    @property
    def name(self) -> str:
        """The engine as results name it."""
        return "emulation"

    def run(
        self, settings: Sequence[Scenario], is_stored: IsStored = none_stored
    ) -> Generator[EngineEvent, None, None]:
        """Every collective of every mode of every configuration, a slice for each once it is over; as `Engine.run`.

        Raises vm.CannotRunError where this machine cannot run the VM.
        """
        tasks = [
            Task(place, setting, mode)
            for place, setting in enumerate(settings)
            for mode in setting.run.modes
            if not is_stored(place, mode, 0, setting.collective.count)
        ]
        if self.elsewhere is None:
            yield from _on_this_machine(tasks, self.jobs)
            return
        with self.elsewhere(len(tasks)) as executors:
            for task, result in results(_measured_on_dask, tasks, executors):
                if isinstance(result, Lost):
                    yield Failed(setting=task.place, mode=task.mode, why=f"{task.name}: {result.why}")
                else:
                    yield from result


def _on_this_machine(tasks: Sequence[Task], jobs: int) -> Generator[EngineEvent, None, None]:
    """Run points in `jobs` threads; when the generator ends, no thread and no VM is left."""
    events = queue.SimpleQueue[EngineEvent | Future[None]]()
    running: dict[Future[None], tuple[Task, int]] = {}
    stops, over = dict[int, Callable[[], None]](), threading.Event()  # how to end the VM of each thread

    def started(stop: Callable[[], None]) -> None:
        stops[threading.get_ident()] = stop
        if over.is_set():
            stop()

    def start(task: Task, tries: int) -> None:
        future = threads.submit(run_point, task, events.put, started)
        running[future] = task, tries
        future.add_done_callback(events.put)

    threads = ThreadPoolExecutor(jobs)
    try:
        for task in tasks:
            start(task, 1)
        while running:
            event = events.get()
            if not isinstance(event, Future):
                yield event
                continue
            task, tries = running.pop(event)
            error = event.exception()
            if isinstance(error, EmulationError):
                again = tries < TRIES and not isinstance(error, WrongError)
                yield (Retrying if again else Failed)(setting=task.place, mode=task.mode, why=str(error))
                if again:
                    start(task, tries + 1)
            elif error is not None:
                raise error
    finally:
        over.set()
        for stop in list(stops.values()):
            stop()
        threads.shutdown(cancel_futures=True)


def _measured_on_dask(task: Task) -> list[EngineEvent]:
    """Run a whole point on a Dask worker and return its events; its VM ends once the task is cancelled."""
    from scenarios.engines.dask import attended

    news: list[EngineEvent] = []
    with attended() as on_start:
        try:
            run_point(task, news.append, on_start)
        except WrongError as error:  # a result, as an exception would be retried
            news.append(Failed(setting=task.place, mode=task.mode, why=str(error)))
    return [item for item in news if not isinstance(item, Activity)]


def run_point(task: Task, put: Callable[[EngineEvent], None], on_start: OnStart = lambda _: None) -> None:
    """Run one point in a VM, from its first collective on, and return when it is over.

    Every collective goes to `put` as soon as it is measured. Raises EmulationError where the point ends early,
    vm.CannotRunError where this machine cannot run its VM.
    """
    setting, words = task.setting, Words()
    begins = "the search for best schedules" if setting.searches_schedules else "the start of the testbed"
    put(Activity(setting=task.place, mode=task.mode, doing=begins))
    with Watchdog(patience_s(setting), waits_for="the testbed to start") as watchdog:
        try:
            reader = Reader(task, put, watchdog.renew)
        except SpecError as error:  # of a policy of the user's own
            raise EmulationError(f"{task.name}: {error}") from None

        def started(stop: Callable[[], None]) -> None:
            watchdog.guard(stop)
            on_start(stop)

        try:
            status = launch.testbed(
                [to_json(setting), task.mode, str(setting.collective.count)],
                memory_bytes=memory_bytes(setting),
                stdout=reader,
                stderr=words,
                platform=platform(setting),
                on_start=started,
            )
        except vm.VMError as error:
            if isinstance(error, vm.CannotRunError):
                raise
            raise EmulationError(f"{task.name}: {watchdog.sentence() if watchdog.stuck else error}") from None
    if watchdog.stuck is not None:
        raise EmulationError(f"{task.name}: {watchdog.sentence()}")
    if status != 0:
        kind = WrongError if WRONG_DATA in words.last() else EmulationError
        raise kind(f"{task.name}, after {reader.done} collectives: {words.last() or 'it printed no reason'}")


class Reader:
    """Takes in a VM's output, JSON line by line, and hands on an event for each; `done` counts the collectives.

    A ring or a path that differs from the plan raises WrongError. `renew` is called at every line, with what the VM
    does next where the line says that.
    """

    def __init__(
        self, task: Task, put: Callable[[EngineEvent], None], renew: Callable[[str | None], object] = lambda _: None
    ) -> None:
        self._task, self._put, self._renew = task, put, renew
        self._expected = Expectations(task.setting, task.mode)
        count = task.setting.collective.count
        self._best_s = best_s(task.setting, self._expected.conditions, start=0, count=count)
        self._events: list[Event] = []
        self._unread = b""
        self.done = 0

    def write(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        point: dict[str, Any] = {"setting": self._task.place, "mode": self._task.mode}
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            self._renew(message.get("doing"))
            if "collective" in message:
                self._put(Slice(**point, rows=self._rows(message)))
                self.done += 1
            elif "event" in message:
                self._events.append(message["event"])
                if message["event"]["event"] == "ended":
                    for outcome in fault_outcomes(self._events):
                        self._put(FaultOutcome(**point, account=outcome))
            elif "doing" in message:
                self._put(Activity(**point, doing=message["doing"]))
            else:
                ((moment, facts),) = message.items()
                self._put(Snapshot(**point, moment=moment, facts=facts))

    def flush(self) -> None:
        """Do nothing: every whole line has been handed on."""

    def _rows(self, row: dict[str, Any]) -> Rows:
        """The row of one collective, compared with the plan."""
        k, faults = row["collective"], row.get("faults", ())
        probes = None if "probes" not in row else np.array(row["probes"], dtype=np.int64).reshape(-1, 5)
        if probes is not None:
            self._expected.probed(k, probes, faults)
        counters = None if "counters" not in row else np.array(row["counters"], dtype=np.int64).reshape(-1, 4)
        read = None if counters is None else readings(counters)
        expected = self._expected.of(k, faults, read)
        if not any(self._task.setting.faults[place].kind == "controller killed" for place in faults):
            plan = {"placement": expected.placement.tolist(), "path": expected.path.tolist()}
            if row.get("undisturbed", True):
                plan["later"] = [path.tolist() for path in expected.later]
            for name, planned in plan.items():
                if row.get(name, []) != planned:
                    where = f"{self._task.name}, collective {k}"
                    raise WrongError(f"{where}: the {name} {row[name]} was chosen, and the plan says {planned}")
        if (moved := row.get("moved")) is not None and moved != self._expected.moved(k, [one[0] for one in moved]):
            raise WrongError(f"{self._task.name}, collective {k}: other paths than planned were chosen while it ran")
        transfers = [
            (k, move.step, move.src, move.dst, move.chunk, row["sent_ns"][move.task], row["arrived_ns"][move.task])
            for move in moves(self._task.setting.carried, row["placement"])
        ]
        completion_s, of_jobs_s = np.array([row["completion_s"]], dtype=np.float64), None
        if spans := self._task.setting.workload.jobs:
            arrived_s = np.array(row["arrived_ns"], dtype=np.float64)[:, None] / 1e9
            completion_s, of_jobs_s = round_s(spans, arrived_s), jobs_s(spans, arrived_s)
        sent_s, arrived_s = (np.array(row[name]) / 1e9 for name in ("sent_ns", "arrived_ns"))
        self._expected.saw(k, sent_s=sent_s, arrived_s=arrived_s, readings=read)
        if self._task.setting.control.counted:
            completion_s = completion_s + row.get("reconfigure_s", 0.0)
        in_fifo: dict[str, Any] = {}
        if "retransmitted_bytes" in row:
            found = self._expected.shares(k, sent_s=sent_s, arrived_s=arrived_s)
            in_fifo = {
                "retransmitted_bytes": np.array([row["retransmitted_bytes"]], dtype=np.float64),
                "quickest_transfer": np.array([found.quickest]),
                "slowest_transfer": np.array([found.slowest]),
                "fairness": np.array([found.fairness]),
                "fairness_link": np.array([found.link], dtype=object),
            }
        return Rows(
            start=k,
            completion_s=completion_s,
            predicted_s=np.array([expected.predicted_s]),
            job_completion_s=of_jobs_s,
            job_predicted_s=expected.jobs_s,
            ring=np.array([row["placement"]], dtype=np.int16),
            paths=np.array([row["path"]], dtype=np.int16),
            reembedded=np.array([row["reembedded"]]),
            rerouted=np.array([row["rerouted"]]),
            drops=np.array([row["drops"]], dtype=np.int64),
            late=np.array([row["late"]]) if self._task.setting.run.is_real else None,
            undisturbed=np.array([row.get("undisturbed", True)]),
            bound_s=self._expected.bound_s(k),
            **{name: times_s[k : k + 1] for name, times_s in self._best_s.items()},
            reconfigure_s=np.array([row.get("reconfigure_s", np.nan)], dtype=np.float64),
            reconfigure_messages=np.array([row.get("reconfigure_messages", 0)], dtype=np.int64),
            transfers=np.array(transfers, dtype=np.int64),
            counters=None if counters is None else np.insert(counters, 0, k, axis=1),
            probes=None if probes is None else np.insert(probes, 0, k, axis=1),
            **in_fifo,
        )


class Words:
    """Takes in the end of what a VM prints on stderr."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data
        del self._data[:-_KEPT_BYTES]

    def flush(self) -> None:
        """Do nothing."""

    def text(self) -> str:
        """All of it, as text."""
        return self._data.decode(errors="replace")

    def last(self) -> str:
        """The last line that is not blank; empty where there is none."""
        return next((line.strip() for line in reversed(self.text().splitlines()) if line.strip()), "")


def patience_s(setting: Scenario) -> float:
    """How long a VM that runs this configuration may be silent: no step of it takes a tenth of that."""
    workload = setting.workload
    carried = sum(task.amount for _, task in workload.schedule.sends()) * workload.slot_bytes
    return _PATIENCE_S + _PATIENCE_PAIR_S * setting.gpus**2 + carried / _PATIENCE_BYTES_PER_S


class Watchdog:
    """Stops a VM that prints nothing for `patience_s` seconds of wall time: where it hangs, its own clock stands still.

    A context manager; its thread ends with it. `stuck` is what it waited for when it stopped the VM, else None.
    """

    def __init__(self, patience_s: float, *, waits_for: str) -> None:
        self._patience_s, self._doing = patience_s, waits_for
        self._last_s = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.stuck: str | None = None

    def __enter__(self) -> "Watchdog":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def guard(self, stop: Callable[[], None]) -> None:
        """Start to watch a VM that `stop` ends."""
        self.renew()
        self._thread = threading.Thread(target=self._watch, args=(stop,), daemon=True)
        self._thread.start()

    def renew(self, doing: str | None = None) -> None:
        """Note a sign of life; `doing` is what comes next, where that is known."""
        self._last_s = time.monotonic()
        self._doing = doing or self._doing

    def sentence(self) -> str:
        """Why the VM was stopped."""
        return f"the VM printed nothing for {self._patience_s:.0f} s, while it was waited for {self.stuck}"

    def _watch(self, stop: Callable[[], None]) -> None:
        while (left_s := self._last_s + self._patience_s - time.monotonic()) > 0:
            if self._over.wait(left_s):
                return
        self.stuck = self._doing
        stop()
