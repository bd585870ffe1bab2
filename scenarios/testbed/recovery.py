"""Collectives that go on after something has died: aborted, repaired, begun again, and every fault accounted for.

What NCCL's users do: a collective that fails is aborted on every rank, the communicator is made anew with the agent
that had died, and the collective is run again. A controller that has died is started again, and until then forwarding
stays as it was. What is led around, and how, is the controller's own business; here it is asked what came of it.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from controller.api.client import ControllerError
from hosts.communicator import CollectiveError
from scenarios.policies.decide import Mode
from scenarios.spec.faults import Fault
from scenarios.testbed.fault_injector import Mishaps
from scenarios.testbed.row import Row
from scenarios.testbed.testbed import Testbed, WrongDataError
from topologies.fabric.failures import around

MOST_ATTEMPTS = 4
"""How often a collective is begun before the run is given up."""

UNFORESEEN = -1
"""The number of a fault that no scenario declares."""

_SETTLE_S = 0.5  # for the controller to have led everything around before a collective begins; free in virtual time
_MOST_ACCOUNTS = 1000


@dataclass(kw_only=True)
class Account:
    """What became of a fault: when it was noticed and when it was made good (seconds from its instant, NaN for never),
    how many collectives were lost, how many bytes were sent again, and the end of it: "recovered", "ridden out" where
    nothing had to be done, or "aborted: " and why.
    """

    fault: int
    at_collective: int
    what: str
    struck_ns: int
    detected_s: float = math.nan
    recovered_s: float = math.nan
    collectives_lost: int = 0
    bytes_again: int = 0
    outcome: str = "ridden out"

    def note(self, *, detected_ns: int, recovered_ns: int | None) -> None:
        """Note when it was noticed, and when it was made good."""
        if math.isnan(self.detected_s):
            self.detected_s = max(0, detected_ns - self.struck_ns) / 1e9
        if recovered_ns is not None and math.isnan(self.recovered_s):
            self.recovered_s = max(0, recovered_ns - self.struck_ns) / 1e9
            self.outcome = "recovered"

    @property
    def open(self) -> bool:
        """Whether it has not been made good."""
        return math.isnan(self.recovered_s)


class Trial:
    """The collectives of a testbed in one mode, whatever its scenario's faults do to them."""

    def __init__(self, testbed: Testbed, mode: Mode) -> None:
        self._testbed, self._mode = testbed, mode
        self._mishaps = Mishaps(testbed, self._struck)
        self._collective = 0
        self._accounts: list[Account] = []
        self._told: set[int] = set()
        self._afresh, self._broken = False, False  # paths to be chosen, and agents to be made, before the next attempt
        self._faults = testbed.setting.faults
        self._interfaces = [f"/proc/{pid}/net/dev" for pid in testbed.network.host_pids]

    def run(self, *, count: int) -> Iterator[Row | Account]:
        """The first `count` collectives in order, and each fault's account as soon as it is closed.

        Raises the errors of `testbed.Failure` where a collective cannot be brought to its end; the accounts that are
        open then are told before.
        """
        for number in range(count):
            self._collective = number
            try:
                yield self._one(number)
            except Exception as error:
                for account in self._accounts:
                    account.outcome = f"aborted: {error}" if account.open else account.outcome
                yield from self._closed(everything=True)
                raise
            yield from self._closed(everything=number == count - 1)

    def _one(self, number: int) -> Row:
        """A collective, begun as often as it takes."""
        disturbed = False
        for attempt in range(1, MOST_ATTEMPTS + 1):
            changed = self._mishaps.before(number)
            if changed:
                self._afresh = True
                time.sleep(_SETTLE_S)
            in_force = self._mishaps.in_force()
            before = self._sent_bytes() if self._faults else 0
            try:
                self._repair()
                row = self._testbed.collective(
                    self._mode,
                    number,
                    in_force=self._mishaps.faults(),
                    afresh=self._take_afresh(),
                    on_start=lambda start_ns: self._mishaps.during(number, start_ns),
                )
            except WrongDataError:
                raise
            except (CollectiveError, ControllerError) as error:
                self._mishaps.after()
                if isinstance(error, ControllerError) and attempt < MOST_ATTEMPTS and self._testbed.controller.ends():
                    disturbed = True
                    continue  # it was dying when it was asked: what that is, the repair knows
                self._lose(error, again=self._sent_bytes() - before if self._faults else 0)
                disturbed = True
                if attempt == MOST_ATTEMPTS:
                    raise CollectiveError(f"collective {number} was begun {attempt} times: {error}") from None
                continue
            struck = self._mishaps.after()
            return self._completed(row, in_force, struck=struck, disturbed=disturbed, attempts=attempt)
        raise AssertionError("the last attempt returns or raises")

    def _completed(self, row: Row, in_force: list[int], *, struck: bool, disturbed: bool, attempts: int) -> Row:
        """A row with what happened to it, after a look at what it took."""
        incomparable = any(self._faults[place].kind in ("link loss", "controller killed") for place in in_force)
        if struck or in_force or disturbed or self._cut():
            if struck:  # it may have come at the very end
                self._afresh = True
                time.sleep(_SETTLE_S)
            self._ask_after()
            for account in self._accounts:
                if account.open and account.collectives_lost:
                    account.note(detected_ns=account.struck_ns, recovered_ns=time.monotonic_ns())
            again = self._bytes_again()
            if again and self._accounts:
                self._accounts[-1].bytes_again += again
            if again or struck:
                self._testbed.part()  # what TCP has learnt from losses is no part of the next collective
        undisturbed = not (struck or disturbed or incomparable)
        return replace(row, attempts=attempts, faults=tuple(in_force), undisturbed=undisturbed)

    def _bytes_again(self) -> int:
        """The bytes that TCP has sent again; 0 where an agent died once the collective was over, which is noted."""
        try:
            return self._testbed.bytes_again()
        except CollectiveError as error:
            self._lose(error, again=0, collectives=0)
            return 0

    def _repair(self) -> None:
        """Start what has died again, and note what is well again by that."""
        testbed = self._testbed
        if not testbed.controller.alive() and not self._mishaps.holds_controller():
            noticed_ns = time.monotonic_ns()
            killed = any(account.open and self._kind(account) == "controller killed" for account in self._accounts)
            if not killed:
                self._struck(UNFORESEEN, noticed_ns, what="the controller has died")
            testbed.restart_controller(without=self._mishaps.down())
            self._afresh = True
            self._note("controller killed" if killed else "", noticed_ns)
        if self._broken:
            testbed.renew()
            self._broken = False
            for kind in ("agent killed", ""):
                self._note(kind, time.monotonic_ns())

    def _take_afresh(self) -> bool:
        afresh, self._afresh = self._afresh, False
        return afresh

    def _note(self, kind: str, noticed_ns: int) -> None:
        for account in self._accounts:
            if account.open and self._kind(account) == kind:
                account.note(detected_ns=noticed_ns, recovered_ns=time.monotonic_ns())

    def _kind(self, account: Account) -> str:
        return "" if account.fault == UNFORESEEN else self._faults[account.fault].kind

    def _lose(self, error: CollectiveError | ControllerError, *, again: int, collectives: int = 1) -> None:
        """An attempt is lost: blame the last fault that is open, or one that nobody declared."""
        seen_ns = error.seen_ns if isinstance(error, CollectiveError) else time.monotonic_ns()
        self._broken = self._broken or isinstance(error, CollectiveError)
        blamed = self._blamed()
        if blamed is None:
            self._struck(UNFORESEEN, seen_ns, what=str(error))
            blamed = self._accounts[-1]
        if self._kind(blamed) in ("agent killed", ""):
            blamed.note(detected_ns=seen_ns, recovered_ns=None)
        blamed.collectives_lost += collectives * isinstance(error, CollectiveError)
        blamed.bytes_again += again
        self._ask_after()
        if self._kind(blamed) in ("link down", "switch down"):  # led around or not, it was no help
            blamed.recovered_s, blamed.outcome = math.nan, "ridden out"

    def _blamed(self) -> Account | None:
        """Whose doing it is that an attempt was lost: an agent's that was killed, or else the last that cuts links."""
        dead = [a for a in self._accounts if self._kind(a) == "agent killed" and math.isnan(a.detected_s)]
        in_force = self._mishaps.in_force()
        cut = [
            a
            for a in self._accounts
            if a.fault in in_force and self._kind(a) in ("link down", "switch down", "link loss")
        ]
        lost = [a for a in self._accounts if a.open and (a.fault == UNFORESEEN or self._kind(a) == "controller killed")]
        return next(iter((*dead, *cut[::-1], *lost[::-1])), None)

    def _struck(self, place: int, now_ns: int, what: str = "") -> None:
        if len(self._accounts) < _MOST_ACCOUNTS:
            what = what or self._faults[place].what
            self._accounts.append(Account(fault=place, at_collective=self._collective, what=what, struck_ns=now_ns))

    def _ask_after(self) -> None:
        """Ask the controller what it has noticed of links and switches that went down."""
        waiting = self._cut()
        if not waiting or not self._testbed.controller.alive():
            return
        try:
            outages = self._testbed.outages()
        except ControllerError:  # it is missed soon enough
            return
        for account in waiting:
            names = self._cables(self._faults[account.fault])
            since = [outage for outage in outages if outage["seen_ns"] >= account.struck_ns]
            died = [outage for outage in since if names & set(outage["died"])]
            if died:  # a switch takes its cables with it one after another, and a way round may take several tries
                noticed_ns = died[0]["seen_ns"]
                back = [o for o in since if names & set(o["back"]) and o["seen_ns"] >= noticed_ns]
                led = [outage for outage in died if not back or outage["seen_ns"] < back[0]["seen_ns"]]
                no_help = account.collectives_lost or not led or not led[-1]["done_ns"]
                helped = back if back and no_help else led
                account.note(detected_ns=noticed_ns, recovered_ns=helped[-1]["done_ns"] or None)

    def _cut(self) -> list[Account]:
        """The faults that cut links and are not made good yet."""
        return [a for a in self._accounts if a.open and self._kind(a) in ("link down", "switch down")]

    def _cables(self, fault: Fault) -> set[str]:
        if fault.kind == "link down":
            return {"-".join(sorted(fault.ends))}
        return {"-".join(sorted(ends)) for ends in around(self._testbed.fabric, fault.target)}

    def _closed(self, *, everything: bool) -> Iterator[Account]:
        """The accounts that nothing can be added to any more."""
        in_force = set(self._mishaps.in_force())
        for place, account in enumerate(self._accounts):
            if place not in self._told and (everything or (not account.open and account.fault not in in_force)):
                self._told.add(place)
                yield account

    def _sent_bytes(self) -> int:
        """What all GPUs have sent so far, headers included."""
        total = 0
        for path in self._interfaces:
            for line in Path(path).read_text().splitlines():
                name, _, columns = line.partition(":")
                if columns and name.strip() != "lo":
                    total += int(columns.split()[8])
        return total
