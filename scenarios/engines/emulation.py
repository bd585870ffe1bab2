"""The emulation engine: collectives run on real TCP, switches and a real controller, each point in a VM of its own.

A VM runs one mode at one setting from its first collective on, so what it measures depends on nothing that ran before
it, nor on the number of VMs at work. Which machine can run how many VMs is asked before any is started.
"""

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hosts.agent.messages import LABEL_BYTES
from hosts.agent.transport import MAX_BUFFER_BYTES, limits
from scenarios import vm
from scenarios.engines.base import Again, Failed, Have, News, nothing
from scenarios.engines.point import (
    EmulationError,
    Task,
    WrongError,
    carried_chunk_bytes,
    ground,
    measured_by_dask,
    memory_bytes,
    most_gpus,
    news_of,
    run_point,
    task_bytes,
)
from scenarios.engines.pool import TRIES, Lost, Over
from scenarios.engines.watchdog import Watchdog
from scenarios.spec.scenario import Scenario
from topologies.units import format_size

MOST_QUEUED_BYTES = MAX_BUFFER_BYTES // 5 * 4 - 2**20
"""What a socket can queue, near enough."""

_BOOT_PATIENCE_S = 60.0  # a boot takes less than a second, and on a busy machine some


def emulated(setting: Scenario) -> Scenario:
    """The part of a setting that the emulation measures: its first collectives."""
    count = min(setting.collective.count, setting.collective.emulated)
    return replace(setting, collective=replace(setting.collective, count=count))


@dataclass(frozen=True)
class Emulation:
    """The engine of the emulated testbed, `jobs` VMs at a time on this machine, or `elsewhere`: whole points, then."""

    jobs: int = 1
    elsewhere: Over | None = None

    @property
    def name(self) -> str:
        """The engine as results name it."""
        return "emulation"

    def run(self, settings: Sequence[Scenario], have: Have = nothing) -> Generator[News, None, None]:
        """Every collective of every mode of every setting, a slice for each as soon as it is over; as `Engine.run`.

        Raises vm.CannotRunError where this machine cannot run the VM.
        """
        tasks = tasks_of(settings, have)
        if not tasks:
            return
        if self.elsewhere is not None:
            yield from _from_elsewhere(self.elsewhere, tasks)
            return
        with _started(tasks, self.jobs) as news:
            running = len(tasks)
            while running:
                item = news.get()
                if isinstance(item, BaseException):
                    raise item
                running -= item is None or isinstance(item, Failed)
                if item is not None:
                    yield item


def _from_elsewhere(over: Over, tasks: Sequence[Task]) -> Generator[News, None, None]:
    names = {task_bytes(task): task for task in tasks}
    with closing(over(measured_by_dask, names, jobs=len(tasks))) as results:
        for task, result in results:
            if isinstance(result, Lost):
                point = names[task]
                yield Failed(setting=point.place, mode=point.mode, why=f"{point.name}: {result.why}")
            else:
                yield from news_of(task, result)


def tasks_of(settings: Sequence[Scenario], have: Have) -> list[Task]:
    """The points that are not finished."""
    return [
        Task(place, setting, mode)
        for place, setting in enumerate(settings)
        for mode in setting.run.modes
        if not have(place, mode, 0, setting.collective.count)
    ]


def check(settings: Sequence[Scenario]) -> None:
    """Raise vm.CannotRunError where there can be no VM on this machine for one of the settings; boots one to see.

    Where it is for want of memory, the sentence names the most GPUs that there is memory for.
    """
    in_vm = [setting for setting in settings if ground(setting).own_openvswitch]
    if not in_vm:
        return
    largest = max(in_vm, key=memory_bytes)
    try:
        vm.check(memory_bytes=memory_bytes(largest))
    except vm.NoRoomError as error:
        fewer = most_gpus(largest, error.room_bytes)
        if fewer is None:
            raise
        chunk = format_size(carried_chunk_bytes(largest))
        raise vm.CannotRunError(
            error.what,
            remedy=f"{error.remedy}, or take fewer than {largest.gpus} GPUs: with chunks of {chunk} there is room for "
            f"{fewer.gpus}",
        ) from None
    _boot(memory_bytes=memory_bytes(largest))


def _boot(*, memory_bytes: int) -> None:
    """Boot a VM for a moment; raises vm.CannotRunError where it does not come up."""
    with Watchdog(_BOOT_PATIENCE_S, waits_for="its first boot") as watchdog:
        try:
            vm.run(["true"], memory_bytes=memory_bytes, directory="/", on_start=watchdog.guard)
        except vm.VMError as error:
            if watchdog.stuck is not None:
                raise vm.CannotRunError(watchdog.sentence()) from None
            raise vm.CannotRunError(error.what, remedy=error.remedy, option=error.option, log=error.log) from None


def check_chunks(settings: Sequence[Scenario]) -> None:
    """Raise ValueError for a setting whose chunks no socket can queue."""
    for setting in settings:
        chunk_bytes = carried_chunk_bytes(setting)
        try:
            limits(setting.transport, ranks=setting.gpus, message_bytes=chunk_bytes + LABEL_BYTES)
        except ValueError:
            raise ValueError(
                f"{format_size(chunk_bytes)} is too large for the emulation with {setting.gpus} GPUs, which queues all "
                f"but one of their chunks at once: allowed is {MOST_QUEUED_BYTES // (setting.gpus - 1) // 10**6} MB"
            ) from None


def check_faults(settings: Sequence[Scenario]) -> None:
    """Raise ValueError for a fault that comes after all collectives that are measured, as in `emulated` settings."""
    for setting in settings:
        count = setting.collective.count
        for place, fault in enumerate(setting.faults, 1):
            if fault.collective >= count:
                raise ValueError(
                    f"fault[{place}].at: collective {fault.collective:,} is not among the {count:,} that the emulation "
                    f"measures (collective.emulated): allowed is 0 to {count - 1:,}"
                )


def at_a_time(settings: Sequence[Scenario], jobs: int) -> int:
    """How many VMs can be at work at a time, `jobs` at most: what they need together has room on this machine."""
    points = [setting for setting in settings for _ in setting.run.modes]
    in_vm = (memory_bytes(setting) if ground(setting).own_openvswitch else 0 for setting in points)
    needs = sorted(in_vm, reverse=True)[:jobs]
    while len(needs) > 1 and any(needs):
        try:
            vm.check(memory_bytes=sum(needs))
        except vm.CannotRunError:
            needs.pop()
        else:
            break
    return len(needs)


class _Work:
    """The points that are still to do, and what the threads that do them have to say."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.news: queue.Queue[Any] = queue.Queue()
        self._waiting: queue.Queue[Task | None] = queue.Queue()
        self._tried: dict[tuple[int, str], int] = {}
        self._ending = threading.Event()
        self._stops: dict[int, Callable[[], None]] = {}
        for task in tasks:
            self._waiting.put(task)

    def do(self) -> None:
        """Do points until all are done, in the thread that calls; a VM dies with its thread."""
        while (task := self._waiting.get()) is not None and not self._ending.is_set():
            try:
                run_point(task, self.news.put, self._started)
            except EmulationError as error:
                point = task.place, task.mode
                self._tried[point] = self._tried.get(point, 0) + 1
                if self._tried[point] < TRIES and not isinstance(error, WrongError):
                    self.news.put(Again(setting=task.place, mode=task.mode, why=str(error)))
                    self._waiting.put(task)
                else:
                    self.news.put(Failed(setting=task.place, mode=task.mode, why=str(error)))
            except Exception as error:
                self.news.put(error)
                return
            else:
                self.news.put(None)

    def end(self, threads: int) -> None:
        """Have so many threads end, and every VM."""
        self._ending.set()
        for stop in list(self._stops.values()):
            stop()
        for _ in range(threads):
            self._waiting.put(None)

    def _started(self, stop: Callable[[], None]) -> None:
        self._stops[threading.get_ident()] = stop
        if self._ending.is_set():
            stop()


@contextmanager
def _started(tasks: Sequence[Task], jobs: int) -> Generator["queue.Queue[Any]", None, None]:
    """Threads that run the tasks, and what they have to say: news, None for a task that is over, or an exception.

    At the end no thread and no VM is left.
    """
    work = _Work(tasks)
    threads = [threading.Thread(target=work.do) for _ in range(min(jobs, len(tasks)))]
    try:
        for thread in threads:
            thread.start()
        yield work.news
    finally:
        work.end(len(threads))
        for thread in threads:
            if thread.ident is not None:
                thread.join()
