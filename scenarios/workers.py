"""Worker processes: a function over many tasks on several cores, ended cleanly however the run ends.

Each worker is a fresh interpreter with a socket of its own to its parent, so one that dies is noticed at once and one
that loses its parent ends by itself. Workers never see Ctrl-C or SIGTERM: the parent alone decides, and it leaves
none behind.
"""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_ROOT = str(Path(__file__).resolve().parent.parent)
# The packages beside this file, whatever else of their names lies in the current folder.
_PROGRAM = f"import sys; sys.path[0] = {_ROOT!r}; from scenarios.workers import serve; serve()"
_ENDED = "a worker process ended before its task was done (killed, or the machine is out of memory)"


class WorkerError(RuntimeError):
    """A worker ended before its task was done."""


def over_tasks(function: Callable[[T], R], tasks: Iterable[T], *, jobs: int) -> Generator[R, None, None]:
    """`function` of every task, in whatever order they are done, over `jobs` processes (in this one if jobs is 1).

    `function` is one of a module, as workers find it by name. Tasks are taken from the iterable as workers become
    free. An exception of `function` is raised here; raises WorkerError where a worker is killed. Whenever the
    generator ends or is closed, every worker has ended.
    """
    if jobs == 1:
        yield from map(function, tasks)
        return
    queue = iter(tasks)
    with _started(function, jobs) as workers:
        busy: set[Connection] = set()
        for worker in workers:
            _hand_out(queue, worker, busy)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                busy.remove(ready)
                result = _received(ready)
                _hand_out(queue, ready, busy)
                yield result


def _hand_out(queue: Iterator[T], worker: Connection, busy: set[Connection]) -> None:
    for task in queue:
        _send(worker, task)
        busy.add(worker)
        return


def _send(worker: Connection, item: object) -> None:
    try:
        worker.send(item)
    except OSError:
        raise WorkerError(_ENDED) from None


def _received(worker: Connection) -> Any:
    try:
        failure, result = worker.recv()
    except (EOFError, OSError):
        raise WorkerError(_ENDED) from None
    if failure is not None:
        raise failure
    return result


@contextmanager
def _started(function: Callable[[T], R], jobs: int) -> Iterator[list[Connection]]:
    """The sockets to that many workers, ready for tasks; at the end the workers are gone, at work or not."""
    processes: list[subprocess.Popen[bytes]] = []
    workers: list[Connection] = []
    try:
        for _ in range(jobs):
            ours, theirs = socket.socketpair()
            workers.append(Connection(ours.detach()))
            with theirs, _signals_held():
                processes.append(subprocess.Popen([sys.executable, "-c", _PROGRAM], stdin=theirs.fileno()))
            _send(workers[-1], function)
        yield workers
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        for worker in workers:
            worker.close()


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back for a moment; a process started meanwhile holds them back for all of its life."""
    held = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


def serve() -> None:
    """A worker's life: the function, then a task in, its result or its failure out, until the parent hangs up."""
    with Connection(sys.stdin.fileno()) as parent:
        try:
            function: Callable[[Any], Any] = parent.recv()
            while True:
                parent.send(_answer(function, parent.recv()))
        except (EOFError, OSError):
            return


def _answer(function: Callable[[Any], Any], task: Any) -> tuple[Exception | None, Any]:
    try:
        return None, function(task)
    except Exception as failure:
        return failure, None
