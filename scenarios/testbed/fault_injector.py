"""Faults carried out, inside the VM: links and switches taken down and up again, processes killed, GPUs slowed.

Knows how each is done to a testbed and when it is due; what is done about it is `trial`'s. A link is down when its
interface is; a switch is down when all of its interfaces are and it has neither rules nor a controller.
"""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from controller.process import PORT
from scenarios.spec.faults import Fault
from scenarios.testbed.testbed import Testbed
from topologies.mininet_nodes import run_program

_PR_SET_TIMERSLACK = 29


class Mishaps:
    """The faults of a testbed's scenario, each struck once and ended when its time is over.

    Every attempt at a collective is `before`, perhaps `during`, and then `after`.
    """

    def __init__(self, testbed: Testbed, struck: Callable[[int, int], object]) -> None:
        """`struck` is told of every fault as it strikes: its place in the scenario, and when (ns)."""
        self._testbed, self._struck_at = testbed, struck
        self._faults: Sequence[Fault] = testbed.setting.faults
        self._age: dict[int, int] = {}  # of faults that have struck: how many attempts they have lasted
        self._over: set[int] = set()
        self._timers: list[_Timer] = []
        self._ports = {(s.name, port.peer): port.interface for s in testbed.fabric.switches for port in s.ports}

    def in_force(self) -> list[int]:
        """The faults that have struck and are not over, by their places in the scenario."""
        return sorted(self._age.keys() - self._over)

    def faults(self) -> tuple[Fault, ...]:
        """The same as faults."""
        return tuple(self._faults[place] for place in self.in_force())

    def down(self) -> list[str]:
        """The switches that are down."""
        return [fault.target for fault in self.faults() if fault.kind == "switch down"]

    def holds_controller(self) -> bool:
        """Whether a controller that was killed must stay dead for now."""
        return any(fault.kind == "controller killed" and fault.lasts is not None for fault in self.faults())

    def before(self, collective: int) -> bool:
        """End what is over and begin what is due; whether anything has changed."""
        over = [place for place in self.in_force() if self._age[place] == self._faults[place].lasts]
        for place in over:
            self._over.add(place)
            self._end(self._faults[place])
        due = self._due(collective, within=False)
        for place in due:
            self._strike(place)
        return bool(over or due)

    def during(self, collective: int, start_ns: int) -> None:
        """See to it that what is due within a collective strikes at its instant."""
        for place in self._due(collective, within=True):
            after_s = self._faults[place].after_s
            assert after_s is not None
            self._timers.append(_Timer(start_ns + round(after_s * 1e9), partial(self._strike, place)))

    def after(self) -> bool:
        """Let time go by: an attempt is over. Whether anything struck within it.

        A fault whose instant has not come yet strikes now. Raises what went wrong in the making of a fault.
        """
        timers, self._timers = self._timers, []
        for timer in timers:
            timer.settle()
        for place in self.in_force():
            self._age[place] += 1
        return bool(timers)

    def _due(self, collective: int, *, within: bool) -> list[int]:
        return [
            place
            for place, fault in enumerate(self._faults)
            if fault.collective == collective and (fault.after_s is not None) == within and place not in self._age
        ]

    def _strike(self, place: int) -> None:
        fault = self._faults[place]
        self._age[place] = 0
        if fault.kind.endswith("killed") and fault.lasts is None:  # what comes after it is another life
            self._over.add(place)
        self._struck_at(place, time.monotonic_ns())
        if fault.kind == "controller killed":
            self._testbed.controller.kill()
        elif fault.kind == "agent killed":
            os.kill(self._testbed.agent_pid(int(fault.target)), signal.SIGKILL)
        elif fault.kind == "agent slow":
            self._testbed.shape(fault.collective, self.faults())
        elif fault.kind == "link loss":
            self._lose(fault, fault.amount)
        elif fault.kind == "link down":
            _links([self._cable(*fault.ends)], "down")
        else:
            _links(self._around(fault.target), "down")
            run_program(["ovs-vsctl", "--timeout=10", "del-controller", fault.target])
            run_program(["ovs-ofctl", "-O", "OpenFlow13", "del-flows", fault.target])

    def _end(self, fault: Fault) -> None:
        """Undo a fault, as far as no other in force does the same."""
        if fault.kind == "link loss":
            self._lose(fault, max((f.amount for f in self.faults() if self._same(f, fault)), default=0.0))
        elif fault.kind == "link down":
            _links([self._cable(*fault.ends)], "up", self._dead())
        elif fault.kind == "switch down" and fault.target not in self.down():
            target = f"tcp:127.0.0.1:{PORT}"
            words = [
                "set-controller",
                fault.target,
                target,
                "--",
                "set",
                "controller",
                fault.target,
                "max_backoff=1000",
            ]
            run_program(["ovs-vsctl", "--timeout=10", *words])
            _links(self._around(fault.target), "up", self._dead())

    def _same(self, one: Fault, other: Fault) -> bool:
        return one.kind == other.kind and set(one.ends) == set(other.ends)

    def _dead(self) -> set[str]:
        """The interfaces that faults in force keep down."""
        found = {self._cable(*fault.ends) for fault in self.faults() if fault.kind == "link down"}
        return found.union(*(self._around(switch) for switch in self.down()))

    def _cable(self, a: str, b: str) -> str:
        """The interface that takes a cable down: one end is enough, as the other one notices."""
        ends = sorted((a, b), key=lambda end: (end, end))
        return next(self._ports[pair] for pair in (tuple(ends), tuple(reversed(ends))) if pair in self._ports)

    def _around(self, switch: str) -> list[str]:
        """The interfaces that take all cables of a switch down."""
        return [self._cable(switch, peer) for name, peer in self._ports if name == switch]

    def _lose(self, fault: Fault, share: float) -> None:
        """Have both directions of a cable lose this share, as far as switches send them."""
        for pair in (fault.ends, fault.ends[::-1]):
            if pair in self._ports:
                self._testbed.lose(self._ports[pair], share)


def _links(interfaces: Sequence[str], state: str, but: "set[str] | frozenset[str]" = frozenset()) -> None:
    lines = "".join(f"link set dev {interface} {state}\n" for interface in interfaces if interface not in but)
    run_program(["ip", "-batch", "-"], lines)


class _Timer:
    """Something to be done at an instant of CLOCK_MONOTONIC, in a thread of its own, as the others wait."""

    def __init__(self, instant_ns: int, action: Callable[[], object]) -> None:
        self._instant_ns, self._action = instant_ns, action
        self._now = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Have it done at the latest now, and raise what went wrong."""
        self._now.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # this thread's: or it would be 50 us late
        self._now.wait(max(0.0, (self._instant_ns - time.monotonic_ns()) / 1e9))
        try:
            self._action()
        except Exception as error:
            self._error = error
