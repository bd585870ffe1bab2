"""Worker processes: a function over many tasks on several cores, ended cleanly however the run ends.

Each worker is a fresh interpreter with a socket of its own to its parent, so one that dies is noticed at once and one
that loses its parent ends by itself. Tasks and results are bytes.
"""

import importlib
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scenarios.engines.framing import receive, send

Function = Callable[[bytes], bytes]

TRIES = 2
"""How often a task is tried before it is given up."""

_ROOT = str(Path(__file__).resolve().parent.parent.parent)
# The packages beside this file, whatever else of their names lies in the current folder.
_PROGRAM = f"import sys; sys.path[0] = {_ROOT!r}; from scenarios.engines.pool import serve; serve()"
_ENDED = "a worker process ended before its task was done (killed, or the machine is out of memory)"


@dataclass(frozen=True)
class Lost:
    """The result of a task that could not be done; `why` is a sentence."""

    why: str


class Over(Protocol):
    """A way to have a function done over many tasks."""

    def __call__(
        self, function: Function, tasks: Iterable[bytes], *, jobs: int
    ) -> Generator[tuple[bytes, "bytes | Lost"], None, None]:
        """As `over_tasks`."""


def over_tasks(
    function: Function, tasks: Iterable[bytes], *, jobs: int
) -> Generator[tuple[bytes, bytes | Lost], None, None]:
    """Every task with `function` of it, in whatever order they are done, over `jobs` processes (this one if it is 1).

    `function` is one of a module, as workers find it by name. Tasks are taken from the iterable as workers become
    free. A task that raises an exception, or whose worker dies, is tried once more, by another worker if there is
    one, and then Lost. Whenever the generator ends or is closed, every worker has ended.
    """
    queue = Queue(tasks)
    if jobs == 1:
        for task in queue:
            yield from queue.settled(task, _answer(function, task))
        return
    with _Pool(function) as pool:
        for task in queue.first(jobs):
            pool.start(task)
        while pool.busy:
            for worker, task, result in pool.done():
                settled = list(queue.settled(task, result))
                following = next(queue, None)
                if following is not None:
                    pool.give(worker, following)
                yield from settled  # whoever takes it may take time, in which the worker is at the next


class Queue:
    """The tasks that are still to do: those to be tried again, and then those that were never tried."""

    def __init__(self, tasks: Iterable[bytes]) -> None:
        self._new = iter(tasks)
        self._again: list[bytes] = []
        self._tried: dict[bytes, int] = {}

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return self._again.pop(0) if self._again else next(self._new)

    def first(self, count: int) -> Iterator[bytes]:
        """So many tasks, or as many as there are."""
        for _, task in zip(range(count), self, strict=False):
            yield task

    def settled(self, task: bytes, result: bytes | Lost) -> Iterator[tuple[bytes, bytes | Lost]]:
        """The task with its result, unless it is to be tried again."""
        tries = self._tried.pop(task, 0) + 1
        if isinstance(result, Lost) and tries < TRIES:
            self._tried[task] = tries
            self._again.append(task)
        else:
            yield task, result


@dataclass
class _Worker:
    process: "subprocess.Popen[bytes]"
    line: socket.socket


class _Pool:
    """Workers, each at one task or at none; a context manager that leaves none of them behind."""

    def __init__(self, function: Function) -> None:
        self._function = f"{function.__module__}:{function.__qualname__}".encode()
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []

    @property
    def busy(self) -> bool:
        """Whether any worker is at a task."""
        return bool(self._selector.get_map())

    def start(self, task: bytes) -> None:
        """Have a new worker do a task."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen([sys.executable, "-c", _PROGRAM], stdin=theirs.fileno())
        worker = _Worker(process, ours)
        self._workers.append(worker)
        self._hand(worker, self._function, task)

    def give(self, worker: _Worker, task: bytes) -> None:
        """Have a worker that is at none do a task; one that has died is replaced."""
        if worker.line.fileno() < 0:
            self.start(task)
        else:
            self._hand(worker, task)

    def done(self) -> Iterator[tuple[_Worker, bytes, bytes | Lost]]:
        """Wait until a worker is done or dead, and tell which, with its task and what came of it."""
        for key, _ in self._selector.select():
            worker, task = key.data
            self._selector.unregister(worker.line)
            try:
                said = receive(worker.line)
                yield worker, task, said[1:] if said[:1] == b"+" else Lost(said[1:].decode())
            except (EOFError, OSError):
                worker.line.close()
                self._workers.remove(worker)
                worker.process.kill()
                worker.process.wait()
                yield worker, task, Lost(_ENDED)

    def _hand(self, worker: _Worker, *messages: bytes) -> None:
        self._selector.register(worker.line, selectors.EVENT_READ, (worker, messages[-1]))
        try:
            for message in messages:
                send(worker.line, message)
        except OSError:
            return  # it is dead, which `done` will find

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            worker.line.close()
        self._selector.close()


def serve() -> None:
    """A worker's life: the function's name, then a task in, its result out, until the parent hangs up."""
    with socket.socket(fileno=sys.stdin.fileno()) as parent:
        try:
            module, _, name = receive(parent).decode().partition(":")
            function: Function = getattr(importlib.import_module(module), name)
            while True:
                result = _answer(function, receive(parent))
                send(parent, b"-" + result.why.encode() if isinstance(result, Lost) else b"+" + result)
        except (EOFError, OSError):
            return


def _answer(function: Function, task: bytes) -> bytes | Lost:
    try:
        return function(task)
    except MemoryError:
        return Lost("out of memory")
    except Exception as failure:
        return Lost(f"{type(failure).__name__}: {failure}")
