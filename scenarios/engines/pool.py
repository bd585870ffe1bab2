"""Executors of this machine, and a loop that runs a function over many tasks on any executors, retrying once.

Worker processes are forked: 20 ms each, where a new interpreter takes 0.6 s to import numpy and the project. Their
pipes are private, so what they unpickle comes from this process alone. A Dask cluster's executors are in `dask`.
"""

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Any, TypeVar

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
    running = dict[Future[R | Lost], tuple[T, int, Executor]]()

    def fill() -> None:
        for depth in range(1, ahead + 1):
            for executor in executors:
                if sum(where is executor for *_, where in running.values()) < depth:
                    following = [(again.popleft(), TRIES)] if again else [(task, 1) for task in islice(untried, 1)]
                    for task, tries in following:
                        running[executor.submit(_attempt, function, task)] = task, tries, executor

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

    Each is a pool of its own, as a pool fails all of its tasks where one process dies.
    """

    def __init__(self) -> None:
        self._pool = _pool()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> "Future[R]":
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenProcessPool:
            self._pool = _pool()
            return self._pool.submit(fn, *args, **kwargs)

    def kill(self) -> None:
        """Kill the process, in the middle of a task or not."""
        for process in list((self._pool._processes or {}).values()):  # kill_workers() is new in Python 3.14
            process.kill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("fork"), initializer=_begin_worker, initargs=(os.getpid(),))


def _begin_worker(parent: int) -> None:
    """Undo the parent's signal handlers, and die with it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
