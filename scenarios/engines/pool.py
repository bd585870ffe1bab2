"""Worker processes as executors, and a loop that runs a function over many tasks on any executors, with one retry.

Worker processes are forked, which takes 20 ms each; a new interpreter would take 0.6 s to import numpy and the project.
Their pipes are private, so they only unpickle data of this process. The executors of a Dask cluster are in `dask`.
"""

import os
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

from topologies.linux import begin_worker

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
R = TypeVar("R")

Executors = Callable[[int], AbstractContextManager[Sequence[Executor]]]
"""Makes executors for a number of jobs, each for one task at a time; leaving the context ends their tasks at once."""

TRIES = 2
"""The number of attempts at a task before it is given up."""

_KILLED = "a worker process ended before its task was done (killed, or the machine is out of memory)"


@dataclass(frozen=True)
class FailedTask:
    """The result of a task that failed; `why` describes the error."""

    why: str


def results(
    function: Callable[[T], R], tasks: Iterable[T], executors: Sequence[Executor], *, ahead: int = 1
) -> Generator[tuple[T, R | FailedTask], None, None]:
    """Yield every task with `function(task)` in order of completion; without executors, this process runs the tasks.

    Tasks are taken from the iterable as executors become free. Each executor holds up to `ahead` tasks, so that it does
    not idle while a result is processed. A task that raises, or whose worker is killed, is tried once more; if that
    fails, its result is a FailedTask. A killed worker loses all tasks that it holds, so from the first failure on every
    executor holds only one.
    """
    if not executors:
        for task in tasks:
            result = _attempt(function, task)
            yield task, _attempt(function, task) if isinstance(result, FailedTask) else result
        return
    untried, again = iter(tasks), deque[T]()
    running = dict[
        Future[R | FailedTask], tuple[T, int, int]
    ]()  # task, tries, index of the executor (one may occur twice)

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
            is_over = not isinstance(result, FailedTask) or tries == TRIES
            if not is_over:
                again.append(task)
                ahead = 1
            fill()  # before the result is yielded, as the consumer may take a while
            if is_over:
                yield task, result


def _attempt(function: Callable[[T], R], task: T) -> R | FailedTask:
    # Exceptions are not raised in a worker, because some of them cannot be pickled.
    try:
        return function(task)
    except MemoryError:
        return FailedTask("out of memory")
    except Exception as error:
        return FailedTask(f"{type(error).__name__}: {error}")


def _outcome(future: "Future[R | FailedTask]") -> R | FailedTask:
    try:
        return future.result()
    except BrokenExecutor:
        return FailedTask(_KILLED)
    except CancelledError:
        return FailedTask("cancelled by the Dask cluster")
    except Exception as error:
        return FailedTask(f"{type(error).__name__}: {error}".partition("\n")[0])


@contextmanager
def processes(jobs: int) -> Iterator[Sequence[Executor]]:
    """Yield `jobs` worker processes, or none for a single job; they are killed when the context is left."""
    workers = [_Worker() for _ in range(jobs)] if jobs > 1 else []
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.shutdown()


class _Worker(Executor):
    """One worker process, started by its first task, and started again by the first task after it was killed.

    A ProcessPoolExecutor is not used: it keeps the sending end of the result pipe open itself, so if a process is
    killed while sending a result, it waits for the rest forever. A task must not raise; if its result cannot be
    pickled, it is a FailedTask.
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
        """Kill the process, even in the middle of a task."""
        if self._process is not None:
            self._process.process.kill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.kill()
        if wait and self._process is not None:
            self._process.reader.join()


class _Process:
    """A worker process, the futures of the tasks that were sent to it, and a thread that reads their results. Callers
    of `send` must hold `lock`."""

    def __init__(self, lock: threading.Lock) -> None:
        context = get_context("fork")
        self._connection, theirs = context.Pipe()
        self._lock, self._is_over = lock, False
        self._futures = deque[Future[Any]]()
        self.process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()  # the worker holds the only copy, so this process reads EOF when the worker ends
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def send(self, future: "Future[Any]", task: tuple[Any, ...]) -> bool:
        """Send a task unless the process has ended; returns whether it was sent."""
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
                with self._lock:  # `send` appends the future before it releases the lock
                    future = self._futures.popleft()
                future.set_result(result)
        except Exception:  # EOFError at the end; also a result that cannot be unpickled or does not fit into memory
            self.process.kill()
        self.process.join()
        with self._lock:
            self._is_over = True
        self._connection.close()
        for future in self._futures:
            future.set_exception(BrokenExecutor(_KILLED))


def _work(connection: "Connection[Any, Any]", parent: int) -> None:
    """Run tasks in the worker process until it is killed."""
    begin_worker(parent)
    while True:
        function, arguments, keywords = connection.recv()
        try:
            connection.send(function(*arguments, **keywords))
        except Exception as error:  # the result cannot be pickled; nothing of it has been sent yet
            connection.send(FailedTask(f"{type(error).__name__}: {error}"))
