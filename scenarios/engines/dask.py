"""A Dask cluster as executors, and, on its workers, tasks that stop when the run that submitted them has ended.

If a worker dies, Dask runs its tasks on another one. Workers whose code differs from this process's are refused,
because their results could differ.
"""

import asyncio
import hashlib
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from distributed import Client, get_worker
from distributed.client import ClosedClientError
from distributed.comm.addressing import get_address_host_port
from distributed.comm.core import CommClosedError

_ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ("analysis", "controller", "hosts", "scenarios", "topologies")
_CONNECT_S = 10
_POLL_S = 0.5


class ClusterError(RuntimeError):
    """A cluster that cannot be used; the message is one sentence that names it."""


class Cluster(Executor):
    """The workers of a Dask cluster as an executor; a context manager."""

    def __init__(self, address: str) -> None:
        """Connect; raises ClusterError if no scheduler answers or its workers cannot run Longhaul's tasks."""
        for name in ("distributed", "distributed.client"):  # failures appear in the results of tasks
            logging.getLogger(name).setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", module="distributed")
        self.address = address
        try:
            get_address_host_port(address)  # a malformed address would leave a half-initialised client
            self._client = Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError, CommClosedError) as error:
            text = str(error).partition("\n")[0][:200]
            raise ClusterError(f"no Dask scheduler answers at {address}: {text or 'timed out'}") from None
        try:
            self._check_workers()
        except BaseException:
            self.shutdown()
            raise

    def _check_workers(self) -> None:
        try:
            digests: dict[str, str] = self._client.run(code_digest)
        except Exception as error:
            raise ClusterError(f"a worker of {self.address} cannot load Longhaul: {error}") from None
        if not digests:
            raise ClusterError(f"the Dask scheduler at {self.address} has no workers")
        for worker, digest in digests.items():
            if digest != code_digest():
                raise ClusterError(f"the worker {worker} has different code; allowed: the same code as this process")

    def executors(self, _jobs: int = 0) -> AbstractContextManager[Sequence[Executor]]:
        """Return this executor twice per worker thread, so that no thread idles between tasks; a `pool.Executors`."""
        return nullcontext([self] * (2 * sum(self._client.nthreads().values())))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """As `Executor.submit`; raises ClusterError if the scheduler has ended, as the task would never end."""
        if not self._is_connected:
            raise ClusterError(f"the Dask scheduler at {self.address} has ended")
        future = Future[Any]()
        future.set_running_or_notify_cancel()
        try:
            task = self._client.submit(fn, *args, pure=False, **kwargs)
        except ClosedClientError:
            raise ClusterError(f"the Dask scheduler at {self.address} has ended") from None
        assert self._client.loop is not None  # it runs
        self._client.loop.add_callback(self._deliver, task, future)
        return future

    @property
    def _is_connected(self) -> bool:
        """Whether the client is connected to the scheduler or is connecting."""
        return self._client.status in ("running", "connecting")

    async def _deliver(self, task: Any, future: "Future[Any]") -> None:
        """Give a future the result of its task on the cluster, or the error. Dask's own executor is not used: if the
        scheduler dies while a result is being fetched, its future never ends."""
        fetching = asyncio.ensure_future(task)
        while not fetching.done() and self._is_connected:
            await asyncio.wait([fetching], timeout=_POLL_S)
        try:
            if not fetching.done():
                raise CancelledError
            future.set_result(fetching.result())
        except asyncio.CancelledError:
            future.set_exception(CancelledError())
        except Exception as error:
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Disconnect from the cluster, which cancels all tasks, including running ones."""
        self._client.close(timeout=_CONNECT_S)


def code_digest() -> str:
    """Return a digest of Longhaul's own code on the machine that calls this."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for file in sorted((_ROOT / package).rglob("*.py")):
            digest.update(f"{file.relative_to(_ROOT)}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


@contextmanager
def attended() -> Iterator[Callable[[Callable[[], None]], None]]:
    """On a worker, watch the running task; yields a function that registers callbacks for when it is cancelled."""
    worker = get_worker()
    key = worker.get_current_task()
    over = threading.Event()
    stops: list[Callable[[], None]] = []

    def watch() -> None:
        while not over.wait(_POLL_S):
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
