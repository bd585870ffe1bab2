"""The faults of a program's run, inside the VM: injected and ended at their times while the program runs.

The controller reacts to them as it does during collectives. One that was killed is started again: without a duration
at once, as far as the switches connect to it, otherwise when the fault ends.
"""

import heapq
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from controller.api.client import ControllerError
from scenarios.spec.faults import CABLE_KINDS, Fault, dead_cables
from scenarios.testbed.fault_injector import FaultInjector
from scenarios.testbed.testbed import Testbed
from topologies.fabric.failures import cable
from topologies.linux import make_timers_exact

_LOOK_NS = 1_000_000  # between two looks whether a new controller is ready


class FaultTimes(FaultInjector):
    """Injects and ends the faults of a program at their times, in ns since the ranks' start.

    `record` is called with every event, as for `FaultInjector`. `kill_rank` kills the program's processes on a GPU.
    `changed` is called after every fault that began or ended, and when a new controller is ready. While `is_busy`
    returns true, the controller is not asked for outages.
    """

    def __init__(
        self,
        testbed: Testbed,
        record: Callable[..., object],
        *,
        kill_rank: Callable[[int], object],
        changed: Callable[[], object],
        is_busy: Callable[[], bool],
    ) -> None:
        super().__init__(testbed, record)
        self._kill_rank, self._changed, self._is_busy = kill_rank, changed, is_busy
        self._due_ns: list[tuple[int, bool, int]] = []  # a heap of times, beginnings (after ends), and faults
        for index, fault in enumerate(self._faults):
            if not fault.is_awaited:
                heapq.heappush(self._due_ns, (fault.begins_ns, True, index))
        self._restart: _Restart | None = None

    @property
    def has_controller(self) -> bool:
        """Whether the controller can be asked: it has not been killed, or a new one is ready."""
        return self._restart is None and not self.holds_controller()

    def next_ns(self, now_ns: int) -> int | None:
        """Return when `advance` is to be called next; None for never."""
        due_ns = self._due_ns[0][0] if self._due_ns else None
        if self._restart is None:
            return due_ns
        return now_ns + _LOOK_NS if due_ns is None else min(due_ns, now_ns + _LOOK_NS)

    def begin(self, index: int, fault: Fault) -> None:
        """Give a fault that waited for its mark or its collective a time: it is now this `fault`."""
        self._faults = [fault if index == number else other for number, other in enumerate(self._faults)]
        heapq.heappush(self._due_ns, (fault.begins_ns, True, index))

    def finish(self, index: int, now_ns: int) -> None:
        """End a fault now, or as soon as it has begun."""
        heapq.heappush(self._due_ns, (max(now_ns, self._faults[index].begins_ns + 1), False, index))

    def advance(self, now_ns: int) -> None:
        """Inject and end the faults that are due. Raises the error of an injection, or of a new controller."""
        if self._restart is not None and self._restart.is_over():
            self._finish_restart()
        while self._due_ns and self._due_ns[0][0] <= now_ns:
            due_ns, begins, index = heapq.heappop(self._due_ns)
            if begins and (lasts_ns := self._faults[index].lasts_ns) is not None:
                # On the wall clock a fault may begin late, while ranks are being started, and still lasts as long.
                began_ns = now_ns if self._testbed.platform.is_real else due_ns
                heapq.heappush(self._due_ns, (began_ns + lasts_ns, False, index))
            if not self._is_busy():
                self.record_outages()  # before the controller is killed, or forgets the oldest
            if self._faults[index].kind == "controller killed" and self._restart is not None:
                self._finish_restart()
            (self.inject if begins else self.end)(index)
            if self._faults[index].kind == "controller killed" and not self.holds_controller():
                self._restart = _Restart(self._testbed, without=self.down())
            self._changed()

    def settle(self) -> None:
        """Wait until the controller has noticed the faults in force, before the ranks start."""
        dead = dead_cables(self.active(), self._testbed.fabric)
        while self._restart is not None:
            self._finish_restart()
        if self.has_controller:
            self._testbed.await_status(lambda status: {cable(a, b) for a, b in status["dead"]} == dead)
        self._testbed.settle()

    def record_outages(self) -> None:
        """Record the outages that the controller lists, if the scenario has faults that cut cables."""
        if not self.has_controller or not any(fault.kind in CABLE_KINDS for fault in self._faults):
            return
        with suppress(ControllerError):  # it has ended by itself
            fields = ("died", "back", "seen_ns", "done_ns")
            outages = [{name: one[name] for name in fields} for one in self._testbed.status()["outages"]]
            self._record("outages", outages=outages)

    def _finish_restart(self) -> None:
        """Wait for the new controller, and record it."""
        assert self._restart is not None
        restart, self._restart = self._restart, None
        restart.finish()
        self._record("restarted", what="controller", detected_ns=restart.began_ns)
        self._changed()

    def _kill_agent(self, gpu: int) -> None:
        self._kill_rank(gpu)

    def _slow_agents(self, fault: Fault) -> None:
        """Do nothing: `changed` gives links the rates that they have now."""


class _Restart:
    """Starts a new controller in a thread, as switches connect to it only after some time; `began_ns` is when."""

    def __init__(self, testbed: Testbed, *, without: list[str]) -> None:
        self._testbed, self._without = testbed, without
        self._error: Exception | None = None
        self.began_ns = time.monotonic_ns()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        """Return whether the controller is ready, or has failed."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Wait until the controller is ready; raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        make_timers_exact()
        try:
            self._testbed.restart_controller(without=self._without)
        except Exception as error:
            self._error = error
