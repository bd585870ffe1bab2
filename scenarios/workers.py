"""Worker processes: a function over many tasks on several cores, ended cleanly however the run ends.

Each worker has a pipe of its own, so one that dies is noticed at once and one that loses its parent ends by itself.
Workers never see Ctrl-C or SIGTERM: the parent alone decides, and it leaves none behind.
"""

import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class WorkerError(RuntimeError):
    """A worker ended before its task was done."""


def over_tasks(function: Callable[[T], R], tasks: Iterable[T], *, jobs: int) -> Generator[R, None, None]:
    """`function` of every task, in whatever order they are done, over `jobs` processes (in this one if jobs is 1).

    Tasks are taken from the iterable as workers become free. An exception of `function` is raised here; raises
    WorkerError where a worker is killed. Whenever the generator ends or is closed, every worker has ended.
    """
    if jobs == 1:
        yield from map(function, tasks)
        return
    queue = iter(tasks)
    with _started(function, jobs) as idle:
        busy: set[Connection] = set()
        for pipe in idle:
            _hand_out(queue, pipe, busy)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                busy.remove(ready)
                result = _received(ready)
                _hand_out(queue, ready, busy)
                yield result


def _hand_out(queue: Iterator[T], pipe: Connection, busy: set[Connection]) -> None:
    for task in queue:
        try:
            pipe.send(task)
        except BrokenPipeError:
            raise WorkerError(_ENDED) from None
        busy.add(pipe)
        return


def _received(pipe: Connection) -> Any:
    try:
        failure, result = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise WorkerError(_ENDED) from None
    if failure is not None:
        raise failure
    return result


_ENDED = "a worker process ended before its task was done (killed, or the machine is out of memory)"


@contextmanager
def _started(function: Callable[[T], R], jobs: int) -> Iterator[list[Connection]]:
    # A fresh interpreter for each worker: forking a process in which the live table's thread runs is not safe.
    context = multiprocessing.get_context("spawn")
    processes = []
    pipes = []
    try:
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            pipes.append(ours)
            with _signals_blocked():
                process = context.Process(target=_work, args=(function, theirs), daemon=True)
                process.start()
                processes.append(process)
            theirs.close()
        yield pipes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        for pipe in pipes:
            pipe.close()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back for a moment: a process started meanwhile never receives them at all."""
    held = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


def _work(function: Callable[[Any], Any], pipe: Connection) -> None:
    """A worker's life: a task in, its result or its failure out, until the parent hangs up."""
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[Exception | None, Any] = (None, function(task))
        except Exception as failure:
            answer = (failure, None)
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return
