"""Points and batches on the workers of a Dask cluster: tasks go out as bytes, results come back as bytes.

Dask runs the tasks of a worker that dies on another. Knows Dask and nothing of what the tasks do, but that a worker
whose code is another would give other numbers.
"""

import hashlib
import itertools
import logging
import os
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import Client, Future, as_completed, get_worker
from distributed.comm.addressing import get_address_host_port
from distributed.comm.core import CommClosedError

from scenarios.engines.pool import Function, Lost, Queue

_ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ("analysis", "controller", "hosts", "scenarios", "topologies")
_CONNECT_S = 10
_LOOK_S = 0.5


class ClusterError(RuntimeError):
    """A cluster that cannot be used; one sentence that names it."""


class Cluster:
    """A Dask cluster's scheduler and its workers; a context manager."""

    def __init__(self, address: str) -> None:
        """Raises ClusterError where no scheduler answers, or its workers cannot run these tasks."""
        # What happens to connections is told by what comes of the tasks.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", module="distributed")
        self.address = address
        try:
            get_address_host_port(address)  # what is no address leaves half a client behind
            self._client = Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError, CommClosedError) as error:
            words = str(error).partition("\n")[0][:200]
            raise ClusterError(f"no Dask scheduler answers at {address}: {words or 'it takes too long'}") from None
        try:
            self._check_workers()
        except BaseException:
            self.close()
            raise

    def _check_workers(self) -> None:
        try:
            found: dict[str, str] = self._client.run(code_digest)
        except Exception as error:
            raise ClusterError(f"a worker of {self.address} cannot load Longhaul: {error}") from None
        if not found:
            raise ClusterError(f"the Dask scheduler at {self.address} has no workers")
        strangers = [worker for worker, digest in found.items() if digest != code_digest()]
        if strangers:
            raise ClusterError(f"the worker {strangers[0]} has other code than this: allowed is the same on all")

    def over_tasks(
        self, function: Function, tasks: Iterable[bytes], *, jobs: int = 0
    ) -> Generator[tuple[bytes, bytes | Lost], None, None]:
        """As `workers.over_tasks`, on the cluster's workers; `jobs` is left to how many threads they have."""
        queue, waiting = Queue(tasks), dict[Future, bytes]()
        with self._client.as_current():
            done = as_completed([])
        numbers = itertools.count()

        def submit(task: bytes) -> None:
            key = f"longhaul-{os.getpid()}-{id(queue)}-{next(numbers)}"
            future = self._client.submit(function, task, key=key, pure=False)
            waiting[future] = task
            done.add(future)

        try:
            for task in queue.first(2 * sum(self._client.nthreads().values())):
                submit(task)
            for future in done:
                yield from queue.settled(waiting.pop(future), _result(future))
                for task in queue.first(1):
                    submit(task)
        finally:
            self._client.cancel(list(waiting), force=True)

    def close(self) -> None:
        """Let go of the cluster; it goes on without us."""
        self._client.close(timeout=_CONNECT_S)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _result(future: Future) -> bytes | Lost:
    try:
        error = future.exception()
        if error is not None:
            return Lost(f"{type(error).__name__}: {error}".partition("\n")[0])
        result: bytes = future.result()
        return result
    except Exception as error:  # it was cancelled, or the scheduler has gone
        return Lost(f"the Dask cluster lost it: {str(error)[:200]}")


def code_digest() -> str:
    """A digest of all of Longhaul's own code, as it is where this is called."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for file in sorted((_ROOT / package).rglob("*.py")):
            digest.update(f"{file.relative_to(_ROOT)}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


@contextmanager
def attended() -> Iterator[Callable[[Callable[[], None]], None]]:
    """On a worker: what is handed to the function is called when nobody wants the task that is running any more."""
    worker = get_worker()
    key = worker.get_current_task()
    over = threading.Event()
    stops: list[Callable[[], None]] = []

    def watch() -> None:
        while not over.wait(_LOOK_S):
            task = worker.state.tasks.get(key)
            if task is None or task.state != "executing":
                for stop in stops:
                    stop()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield stops.append
    finally:
        over.set()
        watcher.join()
