"""Injection of a scenario's faults inside the VM: cutting links and switches, killing processes, slowing GPUs.

Each fault is injected once, at its time, and ended after its duration; `recovery` reacts to it. A link is taken down by
its interface; a switch is taken down by all of its interfaces, and loses its rules and its controller.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from controller.process import PORT
from scenarios.spec.faults import Fault, dead_cables, lacks_controller
from scenarios.testbed.testbed import Testbed
from topologies.fabric.failures import cable, cable_name, directions_of
from topologies.linux import make_timers_exact
from topologies.mininet_nodes import run_program


class FaultInjector:
    """Injects and ends the faults of a testbed's scenario, which are identified by their indices in it.

    For every attempt at a collective call `before`, then `during` once its beginning is known, then `after`. For the
    faults of a program, `scenarios.program.fault_times` calls `inject` and `end` at their times.
    """

    def __init__(self, testbed: Testbed, record: Callable[..., object]) -> None:
        """`record` is called with the kind and the fields of an event when a fault is injected ("injected") or ended
        ("over")."""
        self._testbed, self._record = testbed, record
        self._faults: Sequence[Fault] = testbed.config.faults
        self._age: dict[int, int] = {}  # attempts since each injected fault was injected
        self._left_ns: dict[int, int] = {}  # of faults in force that last for a time of collectives
        self._begun_ns: int | None = None  # the beginning of the attempt, once it is known
        self._ended: set[int] = set()
        self._timers: list[_Timer] = []
        self._ports = {(s.name, port.peer): port.interface for s in testbed.fabric.switches for port in s.ports}
        # A cable "a-b" is taken down at one end only, as the other end notices: at the first end by name that is a
        # switch. Between two machines no end notices, and each takes down its own.
        here = testbed.share.has
        ports = sorted(((ends, name) for ends, name in self._ports.items() if here(ends[0])), reverse=True)
        self._interfaces = {cable_name(cable(*ends)): interface for ends, interface in ports}
        self._cables = [self._cables_of(fault) for fault in self._faults]

    def in_force(self) -> tuple[int, ...]:
        """Return the indices of the faults that were injected and have not ended."""
        return tuple(sorted(self._age.keys() - self._ended))

    def down(self) -> list[str]:
        """Return the switches that are down."""
        return [fault.target for fault in self.active() if fault.kind == "switch down"]

    def holds_controller(self) -> bool:
        """Return whether a killed controller must not be restarted yet."""
        return lacks_controller(self.active())

    def before(self, collective: int) -> bool:
        """End the faults whose duration is over and inject those that are due; return whether there were any."""
        self._begun_ns = None
        over = [
            index
            for index in self.in_force()
            if self._age[index] == self._faults[index].lasts or self._left_ns.get(index, 1) <= 0
        ]
        for index in over:
            self.end(index)
        due = self._due(collective, within=False)
        for index in due:
            self.inject(index)
        return bool(over or due)

    def during(self, collective: int, start_ns: int) -> None:
        """Schedule the faults that are due within a collective, which begins at `start_ns` (CLOCK_MONOTONIC)."""
        self._begun_ns = start_ns
        for index in self.in_force():
            if index in self._left_ns:
                self._end_within(collective, index, start_ns + self._left_ns[index])
        for index in self._due(collective, within=True):
            fault = self._faults[index]
            assert fault.after_s is not None
            begins_ns = start_ns + round(fault.after_s * 1e9)
            self._timers.append(_Timer(begins_ns, partial(self.inject, index)))
            if fault.is_timed and fault.lasts_ns is not None:
                self._end_within(collective, index, begins_ns + fault.lasts_ns)

    def _end_within(self, collective: int, index: int, at_ns: int) -> None:
        """Schedule the end of a fault, unless the attempt at the collective ends before it."""
        end = partial(self.end, index, hit=collective)
        self._timers.append(_Timer(at_ns, end, only_in_time=True))

    def skip(self, collective: int) -> tuple[int, ...]:
        """Do as if a collective ran without a lost attempt; a process that is ended is one that is started again.
        Return the indices of the faults that are in force when it begins."""
        for index in self.in_force():
            if self._age[index] == self._faults[index].lasts:
                self.end(index)
        begins: tuple[int, ...] = ()
        for within in (False, True):
            for index in self._due(collective, within=within):
                if self._faults[index].is_short:
                    self._age[index] = 0
                    self._ended.add(index)
                else:
                    self.inject(index)
            begins = begins if within else self.in_force()
        for index in self.in_force():
            self._age[index] += 1
        return begins

    def after(self, ended_ns: int) -> bool:
        """End an attempt that ended at `ended_ns` (CLOCK_MONOTONIC); return whether a fault was injected, or ended,
        within it.

        A fault whose instant has not come yet is injected now. Raises the error of a failed injection.
        """
        timers, self._timers = self._timers, []
        for timer in timers:
            timer.finish()
        for index in self.in_force():
            self._age[index] += 1
            if index in self._left_ns and self._begun_ns is not None:
                # One that was injected within the attempt has been in force for a part of it.
                after_s = (self._faults[index].after_s or 0.0) * (self._age[index] == 1)
                self._left_ns[index] -= max(0, ended_ns - self._begun_ns - round(after_s * 1e9))
        return any(timer.has_run for timer in timers)

    def active(self) -> tuple[Fault, ...]:
        """Return the faults that were injected and have not ended."""
        return tuple(self._faults[index] for index in self.in_force())

    def _due(self, collective: int, *, within: bool) -> list[int]:
        return [
            index
            for index, fault in enumerate(self._faults)
            if fault.collective == collective and (fault.after_s is not None) == within and index not in self._age
        ]

    def inject(self, index: int) -> None:
        """Inject a fault, and record it."""
        fault = self._faults[index]
        self._age[index] = 0
        if fault.is_timed and fault.lasts_ns is not None:
            self._left_ns[index] = fault.lasts_ns
        if fault.is_short:
            self._ended.add(index)
        self._record("injected", fault=index, kind=fault.kind, what=fault.what, cables=sorted(self._cables[index]))
        if fault.kind == "controller killed":
            self._testbed.controller.kill()
        elif fault.kind == "agent killed":
            self._kill_agent(int(fault.target))
        elif fault.kind == "agent slow":
            self._slow_agents(fault)
        elif fault.kind == "link loss":
            self._lose(fault, fault.amount)
        else:
            self._set_cables(self._cables[index], "down")
            if fault.after_s is not None:
                self._testbed.await_tunnel_limits(dead_cables(self.active(), self._testbed.fabric))
            self._testbed.tell_dead(dead_cables(self.active(), self._testbed.fabric))
        if fault.kind == "switch down" and self._testbed.share.has(fault.target):
            run_program(["ovs-vsctl", "--timeout=10", "del-controller", fault.target])
            run_program(["ovs-ofctl", "-O", "OpenFlow13", "del-flows", fault.target])

    def _kill_agent(self, gpu: int) -> None:
        """Kill the process of a GPU."""
        os.kill(self._testbed.agent_pid(gpu), signal.SIGKILL)

    def _slow_agents(self, fault: Fault) -> None:
        """Give links the rates that they have with all faults in force, of which this one is new."""
        self._testbed.shape(fault.collective, self.in_force())

    def end(self, index: int, hit: int | None = None) -> None:
        """Record the end of a fault, and undo it, except for effects that another fault in force has too. If it ends
        within a collective, that is the last one that it has `hit`."""
        self._ended.add(index)
        self._record("over", fault=index, **({} if hit is None else {"collective": hit + 1, "within": True}))
        fault = self._faults[index]
        if fault.kind == "agent slow" and hit is not None:
            self._testbed.shape(hit, self.in_force())
        if fault.kind == "link loss":
            same = (other for other in self.active() if other.kind == "link loss")
            self._lose(
                fault, max((other.amount for other in same if cable(*other.ends) == cable(*fault.ends)), default=0.0)
            )
        is_here = self._testbed.share.has(fault.target) if fault.kind == "switch down" else False
        if is_here and fault.target not in self.down():
            address = self._testbed.controller_at.get(fault.target, "127.0.0.1")
            set_controller = f"set-controller {fault.target} tcp:{address}:{PORT}"
            backoff = f"set controller {fault.target} max_backoff=1000"
            run_program(["ovs-vsctl", "--timeout=10", *set_controller.split(), "--", *backoff.split()])
        kept_down = {name for other in self.in_force() for name in self._cables[other]}
        self._set_cables([name for name in self._cables[index] if name not in kept_down], "up")
        if self._cables[index]:
            self._testbed.tell_dead(dead_cables(self.active(), self._testbed.fabric))

    def _cables_of(self, fault: Fault) -> list[str]:
        """Return the cables that a fault takes down, in the order of a switch's ports."""
        if fault.kind == "switch down":
            return [cable_name(cable(*ends)) for ends in self._ports if ends[0] == fault.target]
        return [cable_name(cable(*fault.ends))] if fault.kind == "link down" else []

    def _set_cables(self, cables: Sequence[str], state: str) -> None:
        """Set cables "down" or "up"."""
        here = [self._interfaces[name] for name in cables if name in self._interfaces]
        if here:
            lines = "".join(f"link set dev {interface} {state}\n" for interface in here)
            run_program(["ip", "-batch", "-"], lines)
            if state == "up":
                self._testbed.restore_links()

    def _lose(self, fault: Fault, share: float) -> None:
        """Make a cable lose this share (0 to 1) of the packets that switches send over it, in both directions."""
        for direction in directions_of(cable(*fault.ends)):
            if direction in self._ports and self._testbed.share.has(direction[0]):
                self._testbed.lose(self._ports[direction], share)


class _Timer:
    """Runs an action at an instant of CLOCK_MONOTONIC in a thread, while the main thread waits for the agents: with
    `only_in_time` not at all if it is finished before that."""

    def __init__(self, instant_ns: int, action: Callable[[], object], *, only_in_time: bool = False) -> None:
        self._instant_ns, self._action, self._only_in_time = instant_ns, action, only_in_time
        self.has_run = False
        self._now = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Run the action now if it has not run yet, unless it is only to be run in time, and raise its error."""
        self._now.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        make_timers_exact()
        is_early = self._now.wait(max(0.0, (self._instant_ns - time.monotonic_ns()) / 1e9))
        if is_early and self._only_in_time:
            return
        self.has_run = True
        try:
            self._action()
        except Exception as error:
            self._error = error
