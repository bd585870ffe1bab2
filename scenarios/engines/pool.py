"""Executors of this machine, and a loop that runs a function over many tasks on any executors, retrying once.

Worker processes are forked: 20 ms each, where a new interpreter takes 0.6 s to import numpy and the project. Their
pipes are private, so what they unpickle comes from this process alone. A Dask cluster's executors are in `dask`.
"""

import ctypes
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
R = TypeVar("R")

Executors = Callable[[int], AbstractContextManager[Sequence[Executor]]]
"""Makes executors for this many jobs, each for one task at a time; leaving the context ends their tasks at once."""

TRIES = 2
"""How often a task is tried before it is given up."""

_PR_SET_PDEATHSIG = 1
_KILLED = "a worker process ended before its task was done (killed, or the machine is out of memory)"


@dataclass(frozen=True)
class Lost:
    """The result of a task that failed; `why` is a sentence."""

    why: str


def results(
    function: Callable[[T], R], tasks: Iterable[T], executors: Sequence[Executor], *, ahead: int = 1
) -> Generator[tuple[T, R | Lost], None, None]:
    """Every task with `function` of it, in order of completion; without executors this process computes them in turn.

    Tasks are taken from the iterable as executors become free; each has up to `ahead` of them, so that it need not wait
    while a result is read. A task that raises, or whose worker is killed, is tried once more and is then Lost; a worker
    that is killed takes all that it was given with it, so from then on each is given one at a time.
    """
    if not executors:
        for task in tasks:
            result = _attempt(function, task)
            yield task, _attempt(function, task) if isinstance(result, Lost) else result
        return
    untried, again = iter(tasks), deque[T]()
    running = dict[Future[R | Lost], tuple[T, int, int]]()  # an executor by its index: one may be there several times

    def fill() -> None:
        for depth in range(1, ahead + 1):
            for index, executor in enumerate(executors):
                if sum(where == index for *_, where in running.values()) < depth:
                    following = [(again.popleft(), TRIES)] if again else [(task, 1) for task in islice(untried, 1)]
                    for task, tries in following:
                        running[executor.submit(_attempt, function, task)] = task, tries, index

    fill()
    while running:
        for future in wait_for(running, return_when=FIRST_COMPLETED).done:
            task, tries, _ = running.pop(future)
            result = _outcome(future)
            is_over = not isinstance(result, Lost) or tries == TRIES
            if not is_over:
                again.append(task)
                ahead = 1
            fill()  # before the result is handed on, which may take its reader a while
            if is_over:
                yield task, result


def _attempt(function: Callable[[T], R], task: T) -> R | Lost:
    # Not raised in a worker: some exceptions cannot be pickled.
    try:
        return function(task)
    except MemoryError:
        return Lost("out of memory")
    except Exception as error:
        return Lost(f"{type(error).__name__}: {error}")


def _outcome(future: "Future[R | Lost]") -> R | Lost:
    try:
        return future.result()
    except BrokenExecutor:
        return Lost(_KILLED)
    except CancelledError:
        return Lost("the Dask cluster cancelled it")
    except Exception as error:
        return Lost(f"{type(error).__name__}: {error}".partition("\n")[0])


@contextmanager
def processes(jobs: int) -> Iterator[Sequence[Executor]]:
    """This many worker processes, or none where one job is wanted; killed when the context is left."""
    workers = [_Worker() for _ in range(jobs)] if jobs > 1 else []
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.shutdown()


class _Worker(Executor):
    """One worker process, started by its first task, and again by the task after one that it was killed in.

    Not a ProcessPoolExecutor, which waits forever for the rest of a result that a killed process was sending: it has
    the other end of that pipe open itself. A task must not raise, and its result must be one that can be pickled, or it
    is Lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> "Future[R]":
        future = Future[Any]()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._process is None or not self._process.send(future, (fn, args, kwargs)):
                self._process = _Process(self._lock)
                self._process.send(future, (fn, args, kwargs))
        return future

    def kill(self) -> None:
        """Kill the process, in the middle of a task or not."""
        if self._process is not None:
            self._process.process.kill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.kill()
        if wait and self._process is not None:
            self._process.reader.join()


class _Process:
    """A worker process with the futures of the tasks that it was sent, and a thread that reads their results.

    `lock` is held by whoever calls `send`.
    """

    def __init__(self, lock: threading.Lock) -> None:
        context = get_context("fork")
        self._connection, theirs = context.Pipe()
        self._lock, self._is_over = lock, False
        self._futures = deque[Future[Any]]()
        self.process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()  # so that the process alone has it, and its end is the end of what can be read
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def send(self, future: "Future[Any]", task: tuple[Any, ...]) -> bool:
        """Send a task, unless the process has ended; returns whether it was sent."""
        if self._is_over:
            return False
        try:
            self._connection.send(task)
        except OSError:
            return False
        self._futures.append(future)
        return True

    def _read(self) -> None:
        try:
            while True:
                result = self._connection.recv()
                with self._lock:  # by now its future is there
                    future = self._futures.popleft()
                future.set_result(result)
        except Exception:  # EOFError at the end; a result that cannot be unpickled, or has no room here, is lost, too
            self.process.kill()
        self.process.join()
        with self._lock:
            self._is_over = True
        self._connection.close()
        for future in self._futures:
            future.set_exception(BrokenExecutor(_KILLED))


def _work(connection: "Connection[Any, Any]", parent: int) -> None:
    """Do tasks until killed."""
    _begin_worker(parent)
    while True:
        function, arguments, keywords = connection.recv()
        try:
            connection.send(function(*arguments, **keywords))
        except Exception as error:  # it is pickled before any of it is sent
            connection.send(Lost(f"{type(error).__name__}: {error}"))


def _begin_worker(parent: int) -> None:
    """Undo the parent's signal handlers, and die with it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
