"""Running collectives under faults: a failed collective is aborted, repaired and run again, and every step recorded.

Recovery is as for users of NCCL: a failed collective is aborted on every rank, a new communicator with all agents is
made, and the collective is run again. A controller that has died is restarted; until then forwarding stays as it was.
The controller alone routes around failures. All steps are recorded as events, from which
`analysis.statistics.fault_outcomes` computes the cost of each fault.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from controller.api.client import ControllerError
from hosts.communicator import CollectiveError
from scenarios.policies.play import play
from scenarios.policies.situation import Action
from scenarios.spec.faults import CABLE_KINDS, MAX_ATTEMPTS, dead_cables
from scenarios.testbed.fault_injector import FaultInjector
from scenarios.testbed.point_run import MeasuredOutcome, PointRun, Skipping
from scenarios.testbed.record import CollectiveRecord
from scenarios.testbed.testbed import Event, WrongDataError
from topologies.fabric.failures import cable

_SETTLE_S = 0.5  # for packets in flight, and in virtual time, where waiting costs nothing, for the controller as well
_UNPREDICTABLE = ("link loss", "controller killed")  # faults whose effect on a collective the model cannot predict


class Recovery:
    """Runs the collectives of a point, and recovers them from the scenario's faults. A `play.World`."""

    def __init__(self, point: PointRun) -> None:
        testbed = point.testbed
        self._point, self._testbed = point, testbed
        self._injector = FaultInjector(testbed, self._record)
        self._collective, self._sent_before = 0, 0  # the current collective, and the bytes sent before its attempt
        self._began_ns: int | None = None  # the beginning of the current attempt, None before it
        self._events: list[Event] = []  # not yielded yet
        self._in_force: tuple[int, ...] = ()  # the faults under which paths were last chosen
        self._reroute, self._renew = False, False  # whether the next attempt needs new paths, and new agents
        self._faults = testbed.config.faults
        self._interfaces = [f"/proc/{pid}/net/dev" for pid in testbed.network.pids_here.values()]

    def records(self, numbers: range) -> Iterator[CollectiveRecord | Event]:
        """Run these collectives in order; yield the record of each, then the events until its end. Of those that are
        not among them, only faults that begin or end are told.

        The last event is always "ended". Raises the errors in `testbed.Failure` if a collective cannot be completed.
        """
        try:
            for outcome in play(Skipping(self, numbers, self._skip), self._point.player, range(numbers[-1] + 1)):
                if isinstance(outcome, MeasuredOutcome) and outcome.number in numbers:
                    yield outcome.record
                yield from self._take_events()
        except Exception as error:
            self._record("ended", why=str(error))
            yield from self._take_events()
            raise
        self._record("ended", why="")
        yield from self._take_events()

    def _skip(self, number: int) -> None:
        """Begin and end the faults that do so before or in a collective that is not run."""
        self._collective = number
        self._testbed.faults_under[number] = self._testbed.faults(self._injector.skip(number))

    def _record(self, event: str, **fields: object) -> None:
        """Record an event, with the present time unless `fields` has `at_ns`."""
        self._events.append({"event": event, "collective": self._collective, "at_ns": time.monotonic_ns(), **fields})

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def run(self, number: int, decide: Callable[[], Action]) -> MeasuredOutcome:
        """Attempt a collective up to MAX_ATTEMPTS times; return its outcome, or raise the last attempt's error."""
        self._collective = number
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return self._attempt(number, attempt, decide)
            except WrongDataError:
                raise
            except (CollectiveError, ControllerError) as error:
                self._injector.after(error.seen_ns if isinstance(error, CollectiveError) else time.monotonic_ns())
                last = attempt == MAX_ATTEMPTS or self._testbed.share.machines > 1  # the others know nothing of it
                if isinstance(error, ControllerError) and not last and self._testbed.controller.ends():
                    continue  # the controller was ending during the call; the repair restarts it
                sent_bytes = self._sent_bytes() - self._sent_before
                self._record_failure(error, lost=isinstance(error, CollectiveError), sent_bytes=sent_bytes)
                if last:
                    times = f"collective {number} was begun {attempt} times: " if attempt > 1 else ""
                    raise CollectiveError(f"{times}{error}") from None
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, number: int, attempt: int, decide: Callable[[], Action]) -> MeasuredOutcome:
        """Attempt a collective once and return its outcome; raises the errors of `PointRun.collective`."""
        if self._faults and self._testbed.share.machines > 1:
            # A cable between machines loses what is on it when it goes down, such as TCP's delayed acknowledgements.
            time.sleep(_SETTLE_S)
        changed, struck, self._began_ns = self._injector.before(number), False, None
        in_force = self._injector.in_force()
        if changed or in_force != self._in_force:  # without `changed`: a fault within a lost attempt
            self._settle()
        self._sent_before = self._sent_bytes()
        predictable = not any(self._faults[index].kind in _UNPREDICTABLE for index in in_force)

        def undisturbed(ended_ns: int) -> bool:
            nonlocal struck
            struck = self._injector.after(ended_ns)
            # Paths that recovery chooses cost time, too, but only a mode's own choices are predicted.
            is_planned = not (reroute and self._testbed.config.control.counted)
            return predictable and is_planned and not struck and attempt == 1

        def started(start_ns: int) -> None:
            self._began_ns = start_ns
            self._injector.during(number, start_ns)

        self._repair()
        reroute, self._reroute = self._reroute, False
        outcome = self._point.collective(
            number,
            decide,
            attempt=attempt,
            in_force=in_force,
            reroute=reroute,
            on_start=started,
            undisturbed=undisturbed,
        )
        if changed or struck or in_force or attempt > 1:
            if struck:  # perhaps at the very end, so that the controller has not noticed it yet
                self._settle()
            self._record_outages()
            self._record("completed")
            retransmitted_bytes = self._retransmitted_bytes()
            if retransmitted_bytes:
                self._record("retransmitted", retransmitted_bytes=retransmitted_bytes)
            if retransmitted_bytes or struck:
                self._testbed.reset_connections()  # TCP's state after losses must not affect the next collective
        if not self._faults:
            return outcome
        drops = max(outcome.record.drops, self._testbed.lost_packets())
        return replace(outcome, record=replace(outcome.record, drops=drops))

    def _settle(self) -> None:
        """Wait until the controller knows which cables are down, and have the next attempt choose paths again.

        If it reports other cables after `NOTICED_S`, its paths are used nevertheless, and a path that differs from the
        plan ends the point.
        """
        self._reroute, self._in_force = True, self._injector.in_force()
        time.sleep(_SETTLE_S)
        testbed = self._testbed
        dead = dead_cables([self._faults[index] for index in self._in_force], testbed.fabric)
        if testbed.controller.alive():
            with suppress(ControllerError):  # the controller is ending; the next repair restarts it
                testbed.await_status(lambda status: {cable(a, b) for a, b in status["dead"]} == dead)

    def _repair(self) -> None:
        """Restart the controller and the agents if they have ended."""
        testbed = self._testbed
        if not testbed.controller.alive() and not self._injector.holds_controller():
            detected_ns = time.monotonic_ns()
            testbed.restart_controller(without=self._injector.down())
            self._reroute = True
            self._record("restarted", what="controller", detected_ns=detected_ns)
        if self._renew:
            testbed.renew()
            self._renew = False
            now_ns = time.monotonic_ns()
            self._record("restarted", what="agents", detected_ns=now_ns, at_ns=now_ns)

    def _record_failure(self, error: CollectiveError | ControllerError, *, lost: bool, sent_bytes: int) -> None:
        """Record a failure; `lost` is whether it ended an attempt, in which all GPUs together sent `sent_bytes`."""
        at_ns = error.seen_ns if isinstance(error, CollectiveError) else time.monotonic_ns()
        self._renew = self._renew or isinstance(error, CollectiveError)
        spent_ns = max(0, at_ns - self._began_ns) if lost and self._began_ns is not None else 0
        costs = {"retransmitted_bytes": sent_bytes, "spent_ns": spent_ns}
        self._record("failed", at_ns=at_ns, why=str(error), lost=int(lost), **costs)
        self._record_outages()

    def _record_outages(self) -> None:
        """Record the outages that the controller lists, if the scenario has faults that cut cables."""
        if not any(fault.kind in CABLE_KINDS for fault in self._faults) or not self._testbed.controller.alive():
            return
        try:
            outages = self._testbed.status()["outages"]
        except ControllerError:  # the controller is ending; the next repair restarts it
            return
        fields = ("died", "back", "seen_ns", "done_ns")
        self._record("outages", outages=[{name: outage[name] for name in fields} for outage in outages])

    def _retransmitted_bytes(self) -> int:
        """Return the bytes that TCP has retransmitted; if an agent has died, record the failure and return 0."""
        try:
            return self._testbed.retransmitted_bytes() or 0
        except CollectiveError as error:
            self._record_failure(error, lost=False, sent_bytes=0)
            return 0

    def _sent_bytes(self) -> int:
        """Return the bytes that all GPUs have sent so far, headers included; 0 if the scenario has no faults."""
        total = 0
        for path in self._interfaces if self._faults else ():
            for line in Path(path).read_text().splitlines():
                name, _, columns = line.partition(":")
                if columns and name.strip() != "lo":
                    total += int(columns.split()[8])
        return total
