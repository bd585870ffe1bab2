"""The emulation engine: collectives over real TCP, switches and a real controller, with a separate VM for each point.

A VM runs one mode of one configuration from its first collective on, so its results depend neither on earlier points
nor on the number of VMs running. Placements and paths are compared with the plan, completion times with the model.
"""

import json
import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from analysis.results.rows import Rows
from analysis.statistics.fault_outcomes import Event, fault_outcomes
from hosts.agent.buffers import LENT
from hosts.agent.rank_program import Program, message_bytes
from hosts.agent.transport import VERBS
from hosts.agent.verbs import posted_messages
from hosts.collectives.kinds import SELF_SIZED_KINDS, TRAINING
from hosts.collectives.rank_programs import has_sums, moves, peak_usage, programs
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
from scenarios.engines.pool import TRIES, Executors, FailedTask, results
from scenarios.engines.prediction import PlannedCollective, PointPredictor, plan_of
from scenarios.engines.referees import best_s
from scenarios.engines.timing import job_times, path_changes, round_s
from scenarios.policies.conditions import conditions_of
from scenarios.policies.outcome import readings
from scenarios.spec.emulated import numbers_of
from scenarios.spec.physical_limits import MAX_QUEUED_S, ScenarioLoad, roughly
from scenarios.spec.scenario import Scenario, to_json
from scenarios.testbed import launch, own_kernel
from scenarios.testbed.capture import buffered_bytes
from scenarios.testbed.platform import VIRTUAL, Platform
from scenarios.vm.joined import JoinedLink
from topologies.errors import SpecError
from topologies.fabric.fabric import build_fabric
from topologies.fabric.machines import Share, carried_ns
from topologies.shaping.classes import Buffer, Shaping
from topologies.units import format_delay, format_rate

WRONG_DATA = "delivered wrong data"
"""Part of a testbed's last line on stderr if it ended because a chunk had wrong bytes."""

# Memory of a VM, measured with 8 to 256 GPUs: 120 MB for the system, Open vSwitch and the controller, 3.3 MB per GPU
# (its host), 20 kB for each pair of GPUs in a site (the HTB class of its link and its share of every table). An agent
# copies the 4 MB of Python's memory that it has from the launcher, and has 1 MB to receive into (32 and 128 GPUs).
_SYSTEM_BYTES = 512 * 2**20  # includes room for the kernel's page cache and for choosing rings
_GPU_BYTES, _PAIR_BYTES, _AGENT_BYTES = 3_500_000, 20_000, 3_500_000
_KEPT, _QUEUED = 1.45, 1.25  # memory per byte that agents keep, and per byte in flight, as `peak_usage` counts them
_QUEUED_VERBS = 2.1  # of RDMA verbs: each packet of 4 kB has a buffer of 8 kB
_RESERVED_BYTES = 64 * 2**20  # of a VM that is joined with others (guest.sh)
_COMPILED_BYTES = 2_200  # of a transfer in all ranks' programs, which each VM compiles (136 MB with 256 GPUs)
_SUMS_BYTES, _SUMS_GPU_BYTES = 32 * 2**20, 8 * 2**20  # numpy, and each agent's multiplied data
_TRACE_SHARE = 6  # memory for the rows of a trace while it is read, as a multiple of its file size
_KEPT_BYTES = 65536  # of a VM's output on stderr

_PATIENCE_S = 180.0  # ten times what a busy machine takes from the start of a VM to the first line
_PATIENCE_PAIR_S = 2e-3  # for each pair of GPUs: every host learns of every other, and pairs in a site have links
_PATIENCE_BYTES_PER_S = 1e8  # a tenth of the throughput of a slow machine
_WATCH_S = 1.0

OnStart = Callable[[Callable[[], None]], None]
"""Called when a VM starts, with a function that ends it and may be called from any thread."""


class EmulationError(RuntimeError):
    """A point that ended early; the message is one sentence that names it."""


class WrongError(EmulationError):
    """A point whose collectives delivered wrong bytes or differ from the plan; not retried, as that could hide it."""


@dataclass(frozen=True)
class Task:
    """One mode of one configuration; `index` is the configuration's index in the run."""

    index: int
    config: Scenario
    mode: str

    @property
    def name(self) -> str:
        """The point's name in messages."""
        return f"emulation, {self.config.label}, {self.mode}"


def emulated(config: Scenario) -> Scenario:
    """Return the configuration with only the collectives that the emulation measures: its count ends with the last of
    them."""
    spec = config.collective
    numbers = numbers_of(spec.emulated, spec.count)
    count = numbers[-1] + 1
    faults = tuple(fault for fault in config.faults if not fault.is_traced or fault.collective < count)
    return replace(config, collective=replace(spec, count=count, measured=numbers), faults=faults)


def carried_chunk_bytes(config: Scenario) -> int:
    """Return the bytes that the emulation sends for a chunk, at its rate scale."""
    return config.run.scale.chunk_bytes(config.collective.chunk_bytes)


def network_bytes(config: Scenario) -> int:
    """Return the memory that a VM needs for the system, the network and the captures of a configuration."""
    pairs = sum(gpus * gpus for gpus in config.fabric.gpus_per_site)
    captured = config.program.capture
    captures = buffered_bytes(build_fabric(config.fabric), captured) if captured else 0
    return _SYSTEM_BYTES + _GPU_BYTES * config.gpus + _PAIR_BYTES * pairs + captures


def memory_bytes(config: Scenario) -> int:
    """Return the memory that a VM needs to run a configuration, or all its VMs together."""
    workload = config.carried_workload
    of_ranks = programs(workload, range(config.gpus))
    cases = [peak_usage(workload, of_ranks, slow=rank) for rank in (-1, config.gpus - 1)]
    buffers, queued = max(sum(kept) for kept, _ in cases), max(in_flight for _, in_flight in cases)
    adds = has_sums(workload)
    lent = 0 if adds else sum(LENT for program in of_ranks if program.buffers)
    data = round(workload.largest_slot_bytes * (_KEPT * buffers + lent))
    if config.transport.protocol == VERBS:
        data += _registered_bytes(config, of_ranks, queued) + round(_QUEUED_VERBS * queued)
    else:
        data += round(_QUEUED * queued)
    sums = _SUMS_BYTES + _SUMS_GPU_BYTES * config.gpus if adds else 0
    trace = config.conditions.trace
    trace_rows = 0 if trace is None else _TRACE_SHARE * trace.stat().st_size
    further = _SYSTEM_BYTES + _RESERVED_BYTES + _COMPILED_BYTES * len(workload.schedule.transfers)
    once = (config.run.machines - 1) * further
    return once + network_bytes(config) + _AGENT_BYTES * config.gpus + data + sums + trace_rows * config.run.machines


def _registered_bytes(config: Scenario, of_ranks: Sequence[Program], queued_bytes: int) -> int:
    """Return the memory that agents register with verbs devices while up to so many bytes are under way: copies of
    what is not acknowledged, with a further message of each connection, and what is posted for messages to come."""
    slot_bytes, registered = config.carried_workload.largest_slot_bytes, queued_bytes
    for program in of_ranks:
        sizes = dict(program.sizes)
        registered += sum(max(message_bytes(one, sizes, slot_bytes) for one in sends) for _, _, sends in program.sends)
        for _, _, receives in program.receives:
            of_messages = [message_bytes(one, sizes, slot_bytes) for one in receives]
            registered += posted_messages(of_messages) * max(of_messages)
    return registered


def links_between_machines(config: Scenario) -> tuple[JoinedLink, ...]:
    """Return the links that join the VMs of a point, empty for one VM: from the first to each other, for what their
    testbeds exchange, and those in the place of cables."""
    if config.run.machines == 1:
        return ()
    conditions = conditions_of(config)
    share = Share(conditions.fabric, machines=config.run.machines)
    cables = [
        JoinedLink(share.machine_of[one.a], share.machine_of[one.b], carried_ns(share, conditions.delays_s, number))
        for number, one in enumerate(share.between)
    ]
    least_ns = min(link.delay_ns for link in cables)
    return (*(JoinedLink(0, other, least_ns) for other in range(1, config.run.machines)), *cables)


@cache
def _own_kernel() -> bool:
    """Return whether this machine's own kernel can run experiments on the wall clock; checked once."""
    return not own_kernel.lacking()


def platform(config: Scenario) -> Platform:
    """Return where a testbed runs: in a VM; on the wall clock, if possible, on this machine's own kernel instead."""
    return Platform.real(config.run.scale, own_kernel=_own_kernel()) if config.run.is_real else VIRTUAL


def size_key(config: Scenario) -> str:
    """Return the key that the bytes of a configuration's connections follow from, for messages."""
    if config.jobs or config.collective.kind in SELF_SIZED_KINDS:
        return "job" if config.jobs else "training" if config.collective.kind == TRAINING else "collective.schedule"
    return "collective.chunk" if config.collective.size_bytes is None else "collective.size"


def check_waits(configs: Sequence[Scenario]) -> None:
    """Raise ValueError for a configuration whose bytes wait at a link for longer than TCP can."""
    for config in configs:
        load = ScenarioLoad(config)
        carried = load.connection_bytes or 0
        waits_s = 8 * carried / config.run.scale.rate_bps(round(min(load.slowest_bps, 1e15)))
        if waits_s > MAX_QUEUED_S:
            allowed = roughly(max(1.0, 0.99 * carried * MAX_QUEUED_S / waits_s))
            raise ValueError(
                f"{size_key(config)}: the {roughly(carried)} of a connection take {waits_s:,.0f} s at the slowest "
                f"link of conditions ({format_rate(round(load.slowest_bps))}), and in the emulation TCP resends what "
                f"waits for more than {MAX_QUEUED_S:g} s; allowed: {allowed} on a connection, or faster links"
            )


def check_delays(configs: Sequence[Scenario]) -> None:
    """Raise ValueError for a configuration with `conditions.links` whose delays the emulation cannot shape."""
    for config in configs:
        if not config.conditions.links:
            continue
        conditions, size = conditions_of(config), config.transport.buffer_bytes
        buffer = None if size is None else Buffer(limit_bytes=size)
        for fair in {config.fair_links(mode) is not None for mode in config.run.modes}:
            shaping = Shaping(fabric=conditions.fabric, delays_s=conditions.delays_s, fair=fair, buffer=buffer)
            try:
                _ = shaping.ifbs
            except ValueError as error:
                raise ValueError(f"conditions.links has {error} in the emulation of {config.label}") from None


def check_faults(configs: Sequence[Scenario]) -> None:
    """Raise ValueError for a fault after the last collective of an `emulated` configuration, or for one that lasts for
    a time if not all collectives before its last one are measured."""
    for config in configs:
        count = config.collective.count
        for number, fault in enumerate(config.faults, 1):
            if fault.collective >= count:
                raise ValueError(
                    f"fault[{number}].at: collective {fault.collective:,} comes after the last one that the "
                    f"emulation measures (collective.emulated); allowed: 0 to {count - 1:,}"
                )
            if fault.is_timed and len(config.collective.numbers) < count:
                raise ValueError(
                    f"fault[{number}].for: {format_delay(fault.lasts_s or 0.0)} are counted while collectives run, and "
                    "collective.emulated leaves some out; allowed: a number of collectives, or the first ones, such as "
                    f"collective.emulated = {count}"
                )


@dataclass(frozen=True)
class Emulation:
    """The emulation engine: runs `jobs` VMs at a time on this machine, or whole points on the executors `elsewhere`."""

    jobs: int = 1
    elsewhere: Executors | None = None
    name: ClassVar[str] = "emulation"

    def run(self, configs: Sequence[Scenario], is_stored: IsStored = none_stored) -> Generator[EngineEvent, None, None]:
        """As `Engine.run`, with one slice for each collective as soon as it is over. Raises vm.CannotRunError if this
        machine cannot run the VM."""
        tasks = [
            Task(index, config, mode)
            for index, config in enumerate(configs)
            for mode in config.run.modes
            if not is_stored(index, mode, 0, len(config.collective.numbers))
        ]
        if self.elsewhere is None:
            yield from _on_this_machine(tasks, self.jobs)
            return
        with self.elsewhere(len(tasks)) as executors:
            for task, result in results(_measured_on_dask, tasks, executors):
                if isinstance(result, FailedTask):
                    yield Failed(setting=task.index, mode=task.mode, why=f"{task.name}: {result.why}")
                else:
                    yield from result


def _on_this_machine(tasks: Sequence[Task], jobs: int) -> Generator[EngineEvent, None, None]:
    """Run points in `jobs` threads and yield their events; when the generator ends, all threads and VMs have ended."""
    events = queue.SimpleQueue[EngineEvent | Future[None]]()
    running: dict[Future[None], tuple[Task, int]] = {}
    stops, over = dict[int, Callable[[], None]](), threading.Event()  # by thread, the function that ends its VM

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
                yield (Retrying if again else Failed)(setting=task.index, mode=task.mode, why=str(error))
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
    """Run a whole point on a Dask worker and return its events; if the task is cancelled, its VM is ended."""
    from scenarios.engines.dask import watch_cancellation

    events: list[EngineEvent] = []
    with watch_cancellation() as on_start:
        try:
            run_point(task, events.append, on_start)
        except WrongError as error:  # reported as an event, because an exception would cause a retry
            events.append(Failed(setting=task.index, mode=task.mode, why=str(error)))
    return [event for event in events if not isinstance(event, Activity)]


def run_point(task: Task, put: Callable[[EngineEvent], None], on_start: OnStart = lambda _: None) -> None:
    """Run one point in a VM, from its first collective on, and return when it is over. Events go to `put`, each
    collective as soon as it is measured. Raises EmulationError if the point ends early, vm.CannotRunError if this
    machine cannot run its VM."""
    config, stderr = task.config, StderrTail()
    first_step = "the search for best schedules" if config.searches_schedules else "the start of the testbed"
    put(Activity(setting=task.index, mode=task.mode, doing=first_step))
    with Watchdog(patience_s(config), waits_for="the testbed to start") as watchdog:
        try:
            reader = Reader(task, put, watchdog.renew)
        except SpecError as error:  # from a user-defined policy
            raise EmulationError(f"{task.name}: {error}") from None

        def started(stop: Callable[[], None]) -> None:
            watchdog.guard(stop)
            on_start(stop)

        try:
            status = launch.testbed(
                [to_json(config), task.mode, launch.words_of(config.collective.numbers)],
                memory_bytes=memory_bytes(config) // config.run.machines,
                links=links_between_machines(config),
                stdout=reader,
                stderr=stderr,
                platform=platform(config),
                on_start=started,
            )
        except vm.CannotRunError:
            raise
        except vm.VMError as error:
            raise EmulationError(f"{task.name}: {watchdog.sentence() if watchdog.stuck else error}") from None
    if watchdog.stuck is not None:
        raise EmulationError(f"{task.name}: {watchdog.sentence()}")
    if status != 0:
        kind = WrongError if WRONG_DATA in stderr.last() else EmulationError
        raise kind(f"{task.name}, after {reader.done} collectives: {stderr.last() or 'it printed no reason'}")


class Reader:
    """A writable stream for a VM's output, one JSON object per line: puts an event for each; `done` counts collectives.

    Raises WrongError for a placement or a path that differs from the plan. `renew` is called for every line, with the
    name of the VM's next step if the line announces one, else None.
    """

    def __init__(
        self, task: Task, put: Callable[[EngineEvent], None], renew: Callable[[str | None], object] = lambda _: None
    ) -> None:
        self._task, self._put, self._renew = task, put, renew
        self._predictor = PointPredictor(task.config, task.mode)
        count = task.config.collective.count
        self._last = -1  # the number of the last collective that was read
        self._best_s = best_s(task.config, self._predictor.conditions, start=0, count=count)
        self._events: list[Event] = []
        self._completion_s: dict[int, float] = {}
        self._predicted_s: dict[int, float] = {}
        self._jobs_s: dict[int, npt.NDArray[np.float64]] = {}  # [J] each
        self._jobs_predicted_s: dict[int, npt.NDArray[np.float64]] = {}
        self._unread = b""
        self.done = 0

    def write(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        point: dict[str, Any] = {"setting": self._task.index, "mode": self._task.mode}
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            self._renew(message.get("doing"))
            if "collective" in message:
                self._put(Slice(**point, rows=self._rows(message)))
                self.done += 1
            elif "event" in message:
                self._events.append(message["event"])
                if message["event"]["event"] == "ended":
                    for outcome in fault_outcomes(self._events, *self._later_s()):
                        self._put(FaultOutcome(**point, account=outcome))
            elif "doing" in message:
                self._put(Activity(**point, doing=message["doing"]))
            else:
                ((moment, facts),) = message.items()
                self._put(Snapshot(**point, moment=moment, facts=facts))

    def flush(self) -> None:
        """Do nothing: every complete line has been processed."""

    def _later_s(
        self,
    ) -> tuple[
        dict[int, float], dict[int, float], dict[str, tuple[dict[int, float], dict[int, float]]], dict[int, float]
    ]:
        """Return by how much each collective took longer than predicted without any fault, by how much it is
        predicted to take longer under the faults with which it began, both for each job of the rounds, and what
        collectives are predicted to take without any fault, in s; none if the events tell of no fault."""
        if not any(event["event"] in ("injected", "failed", "restarted") for event in self._events):
            return {}, {}, {}, {}
        healthy = plan_of(self._task.config, self._task.mode)
        predicted_s, of_jobs = healthy.with_jobs()
        if self._task.config.control.counted:
            predicted_s = predicted_s + np.nan_to_num(healthy.reconfiguring_s())
        measured, under_faults = (
            {number: time_s - float(predicted_s[number]) for number, time_s in times_s.items()}
            for times_s in (self._completion_s, self._predicted_s)
        )
        healthy_s = {number: float(predicted_s[number]) for number in self._completion_s}
        if of_jobs is None:
            return measured, under_faults, {}, healthy_s
        healthy_jobs_s = of_jobs.completion_s

        def later_s(job: int, jobs_s: Mapping[int, npt.NDArray[np.float64]]) -> dict[int, float]:
            return {number: float(times_s[job] - healthy_jobs_s[number, job]) for number, times_s in jobs_s.items()}

        jobs_later_s = {
            span.name: (later_s(job, self._jobs_s), later_s(job, self._jobs_predicted_s))
            for job, span in enumerate(self._task.config.workload.jobs)
            if not span.is_background
        }
        return measured, under_faults, jobs_later_s, healthy_s

    def _rows(self, row: dict[str, Any]) -> Rows:
        """Compare one collective with the plan and return its row of results."""
        k, faults = row["collective"], row.get("faults", ())
        for skipped in range(self._last + 1, k):
            self._predictor.skip(skipped)
        self._last = k
        probes = None if "probes" not in row else np.array(row["probes"], dtype=np.int64).reshape(-1, 5)
        if probes is not None:
            self._predictor.probed(k, probes, faults)
        counters = None if "counters" not in row else np.array(row["counters"], dtype=np.int64).reshape(-1, 4)
        read = None if counters is None else readings(counters)
        expected = self._predictor.of(k, faults, read)
        self._check_plan(row, expected)
        config = self._task.config.of_round(k)
        transfers = [
            (k, move.step, move.src, move.dst, move.chunk, row["sent_ns"][move.task], row["arrived_ns"][move.task])
            for move in moves(config.carried_workload, row["placement"])
        ]
        sent_s, arrived_s = (np.array(row[name]) / 1e9 for name in ("sent_ns", "arrived_ns"))
        completion_s, of_jobs = np.array([row["completion_s"]], dtype=np.float64), dict[str, Any]()
        if spans := config.workload.jobs:
            completion_s = round_s(spans, arrived_s[:, None])
            of_jobs = job_times(spans, arrived_s[:, None])._asdict() | {"predicted_s": expected.jobs_s}
            self._jobs_s[k] = of_jobs["completion_s"][0]
        self._predictor.observed(k, sent_s=sent_s, arrived_s=arrived_s, readings=read)
        if self._task.config.control.counted:
            completion_s = completion_s + row.get("reconfigure_s", 0.0)
        moved = np.array([paths for _, *paths in row.get("moved") or ()], dtype=np.int16).reshape(-1, len(row["path"]))
        self._completion_s[k] = float(completion_s[0])
        self._predicted_s[k] = expected.predicted_s
        if expected.jobs_s is not None:
            self._jobs_predicted_s[k] = expected.jobs_s[0]
        fifo_columns: dict[str, Any] = {}
        if self._task.config.transport.queue == "fifo":
            shares = self._predictor.shares(k, sent_s=sent_s, arrived_s=arrived_s)
            fifo_columns = {
                "quickest_transfer": np.array([shares.quickest]),
                "slowest_transfer": np.array([shares.slowest]),
                "fairness": np.array([shares.fairness]),
                "fairness_link": np.array([shares.link], dtype=object),
            }
        return Rows(
            k,
            {
                "completion_s": completion_s,
                "predicted_s": np.array([expected.predicted_s]),
                "ring": np.array([row["placement"]], dtype=np.int16),
                "paths": np.array([row["path"]], dtype=np.int16),
                "reembedded": np.array([row["reembedded"]]),
                "rerouted": np.array([row["rerouted"]]),
                "drops": np.array([row["drops"]], dtype=np.int64),
                "retransmitted_bytes": np.array([row.get("retransmitted_bytes", np.nan)], dtype=np.float64),
                "late": np.array([row["late"]]) if self._task.config.run.is_real else None,
                "undisturbed": np.array([row.get("undisturbed", True)]),
                "bound_s": self._predictor.bound_s(k),
                **{name: times_s[k : k + 1] for name, times_s in self._best_s.items()},
                "reconfigure_s": np.array([row.get("reconfigure_s", np.nan)], dtype=np.float64),
                "rerouted_within": np.array([len(moved)]),
                "moved_within": np.array([path_changes(np.array(row["path"]), moved)]),
                "reconfigure_messages": np.array([row.get("reconfigure_messages", 0)], dtype=np.int64),
                **fifo_columns,
            },
            jobs=of_jobs,
            records={
                "transfers": np.array(transfers, dtype=np.int64).reshape(-1, 7),
                "counters": None if counters is None else np.insert(counters, 0, k, axis=1),
                "probes": None if probes is None else np.insert(probes, 0, k, axis=1),
            },
        )

    def _check_plan(self, row: dict[str, Any], expected: PlannedCollective) -> None:
        """Raise WrongError if the placement or the paths of a collective differ from the plan. Its initial choices are
        not compared if the controller was down, the later paths only if it was undisturbed."""
        k, faults = row["collective"], row.get("faults", ())
        if not any(self._task.config.faults[index].kind == "controller killed" for index in faults):
            plan = {"placement": expected.placement.tolist(), "path": expected.path.tolist()}
            if row.get("undisturbed", True):
                plan["later"] = [path.tolist() for path in expected.later]
            for name, planned in plan.items():
                if (chosen := row.get(name, [])) != planned:
                    where = f"{self._task.name}, collective {k}"
                    raise WrongError(f"{where}: the {name} {chosen} differs from the planned one, {planned}")
        moved = row.get("moved")
        if moved is not None and moved != self._predictor.moved(k, [change for change, *_ in moved]):
            raise WrongError(f"{self._task.name}, collective {k}: the paths chosen while it ran differ from the plan")


class StderrTail:
    """A writable stream that keeps the last 64 KiB of a VM's output on stderr."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data
        del self._data[:-_KEPT_BYTES]

    def flush(self) -> None:
        """Do nothing."""

    def text(self) -> str:
        """Return the kept output as text."""
        return self._data.decode(errors="replace")

    def last(self) -> str:
        """Return the last line that is not blank; "" if there is none."""
        return next((line.strip() for line in reversed(self.text().splitlines()) if line.strip()), "")


def patience_s(config: Scenario) -> float:
    """Return for how long a VM that runs this configuration may be silent; no step takes a tenth of that."""
    workload = config.workload
    carried = sum(task.amount for _, task in workload.schedule.sends()) * workload.slot_bytes
    return _PATIENCE_S + _PATIENCE_PAIR_S * config.gpus**2 + carried / _PATIENCE_BYTES_PER_S


class Watchdog:
    """Stops a VM that prints nothing for `patience_s` seconds of wall time, as a hung VM has no virtual time. Time for
    which this process is stopped (Ctrl-Z) does not count. A context manager; its thread ends with it. `stuck` is the
    step that the VM was in when it was stopped, else None."""

    def __init__(self, patience_s: float, *, waits_for: str) -> None:
        self._patience_s, self._doing = patience_s, waits_for
        self._silent_s = 0.0
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
        """Start to watch a VM; `stop` ends it."""
        self.renew()
        self._thread = threading.Thread(target=self._watch, args=(stop,), daemon=True)
        self._thread.start()

    def renew(self, doing: str | None = None) -> None:
        """Restart the timeout; `doing` is the VM's next step, if known."""
        self._silent_s = 0.0
        self._doing = doing or self._doing

    def sentence(self) -> str:
        """Return why the VM was stopped."""
        return f"the VM printed nothing for {self._patience_s:.0f} s while Longhaul waited for {self.stuck}"

    def _watch(self, stop: Callable[[], None]) -> None:
        while self._silent_s <= self._patience_s:  # in steps, of which a stopped process waits for one at most
            if self._over.wait(_WATCH_S):
                return
            self._silent_s += _WATCH_S
        self.stuck = self._doing
        stop()
