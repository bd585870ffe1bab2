"""What torch gets for a piece of work that a group has begun: a handle to wait for."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.futures import Future

from . import computing
from .errors import ranks_text


class _Callbacks:
    """A thread that settles futures.

    What a script has attached to one may issue a collective and wait for it, which the group's own thread never ended.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, job: Callable[[], None]) -> None:
        """Have the thread do this after all before it."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # the first job, or the first in a fork
                self._thread = threading.Thread(target=self._run, name="longhaul-futures", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            self._jobs.get()()


_CALLBACKS = _Callbacks()


class Work(dist._Work):
    """Work under way, whose result is `outputs`; `rank` is this rank's in the world, for errors."""

    def __init__(self, outputs: Sequence[Any], rank: int, what: str) -> None:
        super().__init__()
        self._outputs, self._rank, self._what = list(outputs), rank, what
        self._lock, self._done = threading.Lock(), threading.Event()
        self._error: Exception | None = None
        self._future: Any = None
        self._source = -1
        self.keeps: object = None  # tensors whose memory the work uses
        self.records = list[int]()  # the ids of its collectives (`longhaul_gpu.recording`)
        self.waits_for: Callable[[], Sequence[int]] = tuple
        self.blocks_host = False  # also where a stream of a GPU could wait in place of the host
        self._ended_ns = 0

    # What the group's threads call.
    def begin(self, what: str) -> None:
        """Note what the work does now, for errors."""
        self._what = what

    def finish(self, sentence: str | None = None, source: int = -1) -> None:
        """End the work, with the sentence of its failure if it failed; `source` is the rank that sent a message."""
        with self._lock:
            self._error = None if sentence is None else dist.DistBackendError(sentence)
            self._source, self.keeps, self._ended_ns = source, None, time.monotonic_ns()
            self._done.set()
            future = self._future
        if future is not None:
            _CALLBACKS.put(partial(self._settle, future))

    def _settle(self, future: Any) -> None:
        computing.settled(self.records)
        if self._error is None:
            future.set_result(self._outputs)
        else:
            future.set_exception(self._error)

    # What torch and scripts call.
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end; a timeout of 0 is none. Raises DistBackendError if the work failed, or is not done then.

        Without a timeout a stream of a GPU may wait instead (`longhaul_gpu.streams`).
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if seconds <= 0 and not self.blocks_host and not self._done.is_set() and computing.deferred(self):
            return True
        if not self._done.wait(seconds if seconds > 0 else None):
            missing = list(self.waits_for())
            from_whom = f": nothing came from {ranks_text(missing)}" if missing else ""
            raise dist.DistBackendError(
                f"{self._what} did not end within the {seconds:g} s of wait() on rank {self._rank}{from_whom}"
            )
        if self._error is not None:
            raise self._error
        computing.joined(self.records)
        return True

    def ended(self) -> tuple[int, tuple[int, ...]]:
        """Wait for the end; return the instant and the ids of its collectives. Raises DistBackendError if it failed."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._ended_ns, tuple(self.records)

    def synchronize(self) -> None:
        """Wait for the end."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait for the end, as a CPU has no streams."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the work has ended, or failed."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Return whether the work has ended without a failure."""
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """Return the failure, None if there is none."""
        return self._error

    def result(self) -> list[Any]:
        """Return the tensors that hold the result."""
        return self._outputs

    def get_future(self) -> Any:
        """Return a future of the result."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = future = Future()
            is_done = self._done.is_set()
        if is_done:
            self._settle(future)
        return future

    def source_rank(self) -> int:
        """Return the rank in the group that sent the message; -1 for other work."""
        return self._source

    _source_rank = source_rank


class Works(Work):
    """Several pieces of work as one, which has ended when all have."""

    def __init__(self, works: Sequence[Work], rank: int) -> None:
        super().__init__([one for work in works for one in work.result()], rank, "coalesced work")
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        deadline = time.monotonic() + seconds
        for work in self._works:
            left = max(1e-6, deadline - time.monotonic()) if seconds > 0 else 0.0
            work.wait(timedelta(seconds=left))
        return True

    def is_completed(self) -> bool:
        """Return whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all have ended without a failure."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        """Return the first failure."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def get_future(self) -> Any:
        """Return a future of all results."""
        whole: Any = Future()
        outputs, left, lock = self._outputs, [len(self._works)], threading.Lock()

        def one_ended(_: Any) -> None:
            with lock:
                left[0] -= 1
                is_last = left[0] == 0
            if is_last:
                error = self.exception()
                whole.set_result(outputs) if error is None else whole.set_exception(error)

        for work in self._works:
            work.get_future().add_done_callback(one_ended)
        if not self._works:
            whole.set_result([])
        return whole
