"""The fault injector, on a fake testbed that only records what is done to it."""

import re
import time
from types import SimpleNamespace
from typing import Any

import pytest

from scenarios.spec.faults import Fault
from scenarios.testbed import fault_injector
from scenarios.testbed.fault_injector import FaultInjector
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.failures import cable, cable_name
from topologies.fabric.machines import Share

FABRIC = build_fabric(FabricSpec())
WHOLE = Share(FABRIC)


class FakeTestbed:
    """A testbed that records the interfaces that are down, the loss of each port, and kills and new controllers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *faults: Fault, share: Share = WHOLE) -> None:
        self.told: list[list[str]] = []
        self.down: set[str] = set()
        self.loss: dict[str, float] = {}
        self.controllers: list[str] = []
        self.events: list[tuple[str, int, Any]] = []
        self.hit: list[int] = []
        monkeypatch.setattr(fault_injector, "run_program", self.run_program)
        testbed: Any = SimpleNamespace(
            config=SimpleNamespace(faults=faults),
            fabric=FABRIC,
            share=share,
            tell_dead=lambda dead: self.told.append(sorted(map(cable_name, dead))),
            lose=self.loss.__setitem__,
            controller_at={},
            restore_links=lambda: None,
            await_tunnel_limits=lambda _: None,
        )
        testbed.controller = SimpleNamespace(kill=lambda: self.controllers.append("killed"))
        self.injector = FaultInjector(testbed, self.record)

    def record(self, event: str, *, fault: int, **fields: Any) -> None:
        self.events.append((event, fault, fields.get("cables")))
        self.hit += [fields["collective"]] if "collective" in fields else []

    def run_program(self, command: list[str], text: str = "") -> None:
        for interface, state in re.findall(r"^link set dev (\S+) (up|down)$", text, re.MULTILINE):
            (self.down.add if state == "down" else self.down.discard)(interface)
        if "set-controller" in command:
            self.controllers.append(command[command.index("set-controller") + 1])

    def attempt(self, collective: int) -> bool:
        """Take the injector through one attempt at a collective; return whether anything changed before it."""
        changed = self.injector.before(collective)
        self.injector.during(collective, 0)
        self.injector.after(0)
        return changed

    def collective(self, number: int, lasts_ns: int) -> tuple[set[str], bool]:
        """Take the injector through a collective of that length; return which interfaces are down at its end, and
        whether it was struck."""
        self.injector.before(number)
        begun_ns = time.monotonic_ns()
        self.injector.during(number, begun_ns)
        time.sleep(max(0, begun_ns + lasts_ns - time.monotonic_ns()) / 1e9)
        struck = self.injector.after(begun_ns + lasts_ns)
        return set(self.down), struck


def ends(a: str, b: str) -> set[str]:
    """Return the interfaces at both ends of a cable."""
    return {p.interface for s in FABRIC.switches for p in s.ports if (s.name, p.peer) in ((a, b), (b, a))}


def test_a_failed_link_is_down_for_its_duration_and_then_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTestbed(monkeypatch, Fault(collective=1, kind="link down", target="s0b0-s1b0", lasts=2))
    seen = []
    for collective in range(5):
        changed = fake.attempt(collective)
        seen.append((changed, len(fake.down & ends("s0b0", "s1b0")), len(fake.down)))
    assert seen == [(False, 0, 0), (True, 1, 1), (False, 1, 1), (True, 0, 0), (False, 0, 0)]


def test_every_attempt_at_a_collective_counts_towards_the_duration_of_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTestbed(monkeypatch, Fault(collective=1, kind="link down", target="s0b0-s1b0", lasts=2))
    for collective, down in ((0, 0), (1, 1), (1, 1), (1, 0)):  # collective 1 is attempted three times
        fake.attempt(collective)
        assert len(fake.down) == down
    # The fault is injected once, not at every attempt.
    assert fake.events == [("injected", 0, ["s0b0-s1b0"]), ("over", 0, None)]


def test_a_lossy_link_drops_its_share_in_both_directions_until_the_fault_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTestbed(
        monkeypatch,
        Fault(collective=0, kind="link loss", target="s0b0-s1b0", amount=0.01, lasts=3),
        Fault(collective=1, kind="link loss", target="s1b0-s0b0", amount=0.2, lasts=1),
    )
    seen = []
    for collective in range(5):
        fake.attempt(collective)
        seen.append(dict(fake.loss))
    both = ends("s0b0", "s1b0")
    assert len(both) == 2
    assert seen == [dict.fromkeys(both, share) for share in (0.01, 0.2, 0.01, 0.0, 0.0)]


def test_of_two_machines_each_takes_its_own_ends_down_and_knows_what_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, ends in enumerate(("s0b0", "s1b0")):
        between = Fault(collective=0, kind="link down", target="s0b0-s1b0", lasts=1)
        far = Fault(collective=1, kind="switch down", target="s1b1")
        fake = FakeTestbed(monkeypatch, between, far, share=Share(FABRIC, machine, 2))
        fake.attempt(0)
        (down,) = fake.down
        assert down.startswith(ends) and fake.told[-1] == ["s0b0-s1b0"]
        fake.attempt(1)
        of_far = [c for c in FABRIC.cables if "s1b1" in (c.a, c.b)]
        assert fake.told[-1] == sorted(cable_name(cable(c.a, c.b)) for c in of_far)
        between_machines = [c for c in of_far if {c.a[:2], c.b[:2]} == {"s0", "s1"}]
        assert len(fake.down) == (len(of_far) if machine else len(between_machines))
        assert {name[:2] for name in fake.down} <= {f"s{machine}"} and not fake.controllers


def test_an_interface_stays_down_while_another_fault_keeps_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTestbed(
        monkeypatch,
        Fault(collective=0, kind="switch down", target="s0b0", lasts=2),
        Fault(collective=0, kind="link down", target="s0b0-s1b0", lasts=1),
        Fault(collective=0, kind="link down", target="s0b0-s1b1", lasts=3),
    )
    around = sum("s0b0" in (c.a, c.b) for c in FABRIC.cables)
    seen = []
    for collective in range(5):
        fake.attempt(collective)
        seen.append((len(fake.down), fake.controllers.count("s0b0")))
    assert seen == [(around, 0), (around, 0), (1, 1), (0, 1), (0, 1)]


@pytest.mark.parametrize(("lasts", "held"), [(None, [0, 0, 0, 0]), (2, [0, 1, 1, 0])])
def test_a_killed_controller_stays_dead_for_the_duration_of_the_fault(
    monkeypatch: pytest.MonkeyPatch, lasts: int | None, held: list[int]
) -> None:
    fake = FakeTestbed(monkeypatch, Fault(collective=1, kind="controller killed", lasts=lasts))
    found = []
    for collective in range(4):
        fake.injector.before(collective)
        found.append(fake.injector.holds_controller())
        fake.injector.after(0)
    assert found == held and fake.controllers == ["killed"]


def test_a_fault_that_lasts_for_a_time_ends_within_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lasts for 500 ms of collectives of 200 ms: the pauses between them do not count."""
    fault = Fault(collective=1, kind="link down", target="s0b0-s1b0", lasts_s=0.5)
    fake, seen = FakeTestbed(monkeypatch, fault), []
    for number in range(5):
        down, struck = fake.collective(number, 200_000_000)
        seen.append((bool(down), struck))
        time.sleep(0.3)
    assert seen == [(False, False), (True, False), (True, False), (False, True), (False, False)]
    assert [(event, index) for event, index, _ in fake.events] == [("injected", 0), ("over", 0)]
    assert fake.hit == [4]  # the first one that it does not hit any more


def test_a_fault_may_begin_and_end_within_one_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(collective=1, after_s=0.1, kind="link down", target="s0b0-s1b0", lasts_s=0.1)
    fake = FakeTestbed(monkeypatch, fault)
    assert [fake.collective(number, 400_000_000) for number in range(3)] == [
        (set(), False), (set(), True), (set(), False)
    ]  # fmt: skip
    assert [event for event, *_ in fake.events] == ["injected", "over"] and fake.hit == [2]
    late = FakeTestbed(monkeypatch, fault)  # its collective ends before it does, and 50 ms are left
    assert [bool(late.collective(number, ns)[0]) for number, ns in ((1, 150_000_000), (2, 200_000_000))] == [
        True,
        False,
    ]
