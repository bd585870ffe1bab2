"""The emulation engine: collectives run on real TCP, switches and a real controller, each point in a VM of its own.

A VM runs one mode at one setting, so what it measures depends on nothing that ran before it, nor on the number of VMs
at work. Beside every time stands the model's prediction, and what was chosen on the way is held against the plan.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.timing import completion_s
from hosts.transport import MAX_BUFFER_BYTES, limits
from hosts.wire import LABEL_BYTES
from scenarios import vm
from scenarios.engine import Measured, Slice
from scenarios.loader import resolved
from scenarios.plan import MODES, Decisions, decide
from scenarios.progress import label
from scenarios.spec import Scenario
from topologies.conditions import delays_s, sampler
from topologies.fabric import build_fabric
from topologies.units import format_size

ROOT = Path(__file__).resolve().parent.parent

MOST_QUEUED_BYTES = MAX_BUFFER_BYTES // 5 * 4 - 2**20
"""What a socket can queue, near enough."""

_MEMORY_BYTES = 3 * 2**29  # the system, Open vSwitch, the controller and small agents
_COPIES = 4  # of a chunk that a GPU has at once: its own, the one that arrives, and what TCP holds on either side


class EmulationError(RuntimeError):
    """A point that could not be run to its end; one sentence that names it."""


def emulated(setting: Scenario) -> Scenario:
    """The part of a setting that the emulation measures: its first collectives."""
    count = min(setting.collective.count, setting.collective.emulated)
    return replace(setting, collective=replace(setting.collective, count=count))


@dataclass(frozen=True)
class Emulation:
    """The engine of the emulated testbed, `jobs` VMs at a time."""

    jobs: int = 1

    @property
    def name(self) -> str:
        """The engine as results name it."""
        return "emulation"

    def run(self, settings: Sequence[Scenario]) -> Generator[Slice, None, None]:
        """Every collective of every mode of every setting, a slice for each as soon as it is over; as `Engine.run`.

        Raises EmulationError where a point fails, vm.CannotRunError where this machine cannot run the VM.
        """
        tasks = [_Task(place, setting, mode) for place, setting in enumerate(settings) for mode in setting.run.modes]
        with _started(tasks, self.jobs) as news:
            running = len(tasks)
            while running:
                item = news.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item


@dataclass(frozen=True)
class _Task:
    place: int
    setting: Scenario
    mode: str


class _Point:
    """One point while its VM runs: takes the VM's output in, line by line, and passes a slice on for each."""

    def __init__(self, task: _Task, put: Callable[[Slice], None]) -> None:
        self._task, self._put = task, put
        self._plan = _plan(task)
        self._predicted_s = completion_s(self._plan.edge_alpha_s, self._plan.edge_beta_s)
        self._unread = b""
        self.done = 0

    def write(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def flush(self) -> None:
        """There is nothing to flush: a line is passed on when it is whole."""

    def _take(self, row: dict[str, Any]) -> None:
        k = row["collective"]
        for name in ("ring", "path"):
            planned = getattr(self._plan, name)[k].tolist()
            if row[name] != planned:
                where = f"{label(self._task.setting)}, {self._task.mode}, collective {k}"
                raise EmulationError(f"{where}: the {name} {row[name]} was chosen, and the plan says {planned}")
        self._put(
            Slice(
                setting=self._task.place,
                mode=self._task.mode,
                start=k,
                completion_s=np.array([row["completion_s"]]),
                measured=Measured(
                    predicted_s=self._predicted_s[k : k + 1],
                    drops=np.array([row["drops"]]),
                    ring=self._plan.ring[k : k + 1],
                    path=self._plan.path[k : k + 1],
                ),
            )
        )
        self.done += 1


class _Words:
    """Takes in what a VM says on stderr, to be quoted where it fails."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data
        del self._data[:-4096]

    def flush(self) -> None:
        """There is nothing to flush."""

    def last(self) -> str:
        """The last line that says something."""
        lines = [line.strip() for line in self._data.decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "it said nothing")


def _plan(task: _Task) -> Decisions:
    setting = task.setting
    fabric = build_fabric(setting.fabric)
    return decide(
        fabric,
        sampler(fabric, setting.conditions, seed=setting.run.seed),
        delays_s=delays_s(fabric, setting.conditions),
        mode=MODES[task.mode],
        chunk_bytes=setting.collective.chunk_bytes,
        reembed_every=setting.collective.reembed_every,
        start=0,
        count=setting.collective.count,
    )


def check(settings: Sequence[Scenario]) -> None:
    """Raise ValueError for a setting whose chunks no socket can queue, vm.CannotRunError where there can be no VM."""
    for setting in settings:
        chunk_bytes = setting.collective.chunk_bytes
        try:
            limits(setting.transport, ranks=setting.gpus, message_bytes=chunk_bytes + LABEL_BYTES)
        except ValueError:
            raise ValueError(
                f"{format_size(chunk_bytes)} is too large for the emulation with {setting.gpus} GPUs, which queues all "
                f"but one of their chunks at once: allowed is {MOST_QUEUED_BYTES // (setting.gpus - 1) // 10**6} MB"
            ) from None
    vm.check(memory_bytes=max(memory_bytes(setting) for setting in settings))


def memory_bytes(setting: Scenario) -> int:
    """The memory of a VM that can run a setting."""
    return _MEMORY_BYTES + _COPIES * setting.gpus * setting.collective.chunk_bytes


def _run_point(task: _Task, put: Callable[[Slice], None], on_start: Callable[[Callable[[], None]], None]) -> None:
    """Run one point in a VM, and return when it is over; raises EmulationError where it was not run to its end."""
    setting, words = task.setting, _Words()
    point = _Point(task, put)
    where = f"{label(setting)}, {task.mode}"
    arguments = [resolved(setting), task.mode, str(setting.collective.count)]
    try:
        status = vm.run(
            [sys.executable, "-m", "scenarios.testbed", *arguments],
            memory_bytes=memory_bytes(setting),
            directory=ROOT,
            environment=_environment(),
            stdout=point,
            stderr=words,
            on_start=on_start,
        )
    except vm.CannotRunError:
        raise
    except vm.VMError as error:
        raise EmulationError(f"{where}: {error}") from None
    if status != 0:
        raise EmulationError(f"{where}, after {point.done} collectives: {words.last()}")


def _environment() -> dict[str, str]:
    """What the testbed's programs see: nothing of the caller's that could change what they do."""
    # Mininet imports distutils, and setuptools' own takes five times as long to load as Python's.
    own = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "SETUPTOOLS_USE_DISTUTILS": "stdlib"}
    named = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME", "LONGHAUL_KERNEL") if name in os.environ}
    return own | named | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}


@contextmanager
def _started(tasks: Sequence[_Task], jobs: int) -> Generator["queue.Queue[Any]", None, None]:
    """Threads that run the tasks, and what they have to say: slices, None for a task that is over, or an exception.

    At the end no thread and no VM is left.
    """
    news: queue.Queue[Any] = queue.Queue()
    waiting: queue.Queue[_Task] = queue.Queue()
    for task in tasks:
        waiting.put(task)
    ending = threading.Event()
    stops: dict[int, Callable[[], None]] = {}

    def started(stop: Callable[[], None]) -> None:
        stops[threading.get_ident()] = stop
        if ending.is_set():
            stop()

    def work() -> None:
        with suppress(queue.Empty):
            while not ending.is_set():
                task = waiting.get_nowait()
                try:
                    _run_point(task, news.put, started)
                    news.put(None)
                except Exception as error:
                    news.put(error)
                    return

    threads = [threading.Thread(target=work) for _ in range(min(jobs, len(tasks)))]
    try:
        for thread in threads:
            thread.start()
        yield news
    finally:
        ending.set()
        for stop in list(stops.values()):
            stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
