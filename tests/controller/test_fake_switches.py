"""The controller with fake switches that misbehave."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from controller.api.client import Controller, ControllerError
from controller.compat import has_hung_up
from tests.controller.conftest import FABRIC, LINKS, Process
from tests.fakes.fakeswitch import FakeSwitch, Seen


class Fakes:
    """A controller with fake switches only, all of them ready."""

    def __init__(self, process: Process) -> None:
        self.running, self.port, self.seen = process.up(), process.port, Seen()
        self.switches: dict[str, FakeSwitch] = {}
        for switch in FABRIC.switches:
            self.connect(switch.name)
        self.controller = Controller(process.path)
        self.controller.wait_ready(timeout_s=30)

    def connect(self, name: str, *, silent: bool = False) -> None:
        dpid = next(switch.dpid for switch in FABRIC.switches if switch.name == name)
        self.switches[name] = FakeSwitch(name, dpid, self.port, self.seen, silent=silent)

    def route(self, path: int) -> tuple[int, ...]:
        """Request a route from rank 3 to 4 under conditions that make this path the best; return the chosen paths."""
        rates = [1e9 if link.kind == "wan" else 1e11 for link in FABRIC.links]
        rates[FABRIC.paths[path].links[0]] = 1e11
        return self.controller.route(
            crossings=[(3, 4)], rates_bps=rates, delays_s=[0] * LINKS, chunk_bytes=10**6, best=True
        ).paths

    def events(self) -> list[tuple[str, str, int, int]]:
        """Return the events since the last call."""
        found, self.seen.events = self.seen.events, []
        return found


@pytest.fixture
def fakes(process: Process) -> Iterator[Fakes]:
    found = Fakes(process)
    yield found
    for switch in found.switches.values():
        switch.close()


def is_route(event: tuple[str, str, int, int]) -> bool:
    return event[1] == "add" and bool(event[2] & 0xFFFFFFFF)


def test_a_route_change_is_one_message_to_the_source_leaf(fakes: Fakes) -> None:
    fakes.events()
    for path in (1, 2, 3):
        assert fakes.route(path) == (path,)
        assert [event[:2] for event in fakes.events()] == [("s0l1", "add"), ("s0l1", "confirm")]
    assert fakes.route(0) == (0,)  # the default path
    assert [event[:2] for event in fakes.events()] == [("s0l1", "delete"), ("s0l1", "confirm")]


def outage(fakes: Fakes, switch: str, *, slow: str) -> list[tuple[str, str, int, int]]:
    """Return the events while the controller routes around a disconnected switch, with a route on path 2."""
    assert fakes.route(2) == (2,)
    fakes.events()
    fakes.switches[slow].delay_s = 0.3
    fakes.switches[switch].close()
    while not (outages := fakes.controller.status()["outages"]) or not outages[-1]["done_ns"]:
        time.sleep(0.05)
    return fakes.events()


def test_a_stage_is_sent_only_after_every_switch_has_confirmed_the_previous_stage(fakes: Fakes) -> None:
    """A border router disconnects: first come default rules around it, then the pair's route is removed."""
    events = outage(fakes, "s1b0", slow="s0b1")
    removed = [event[:2] for event in events].index(("s0l1", "delete"))
    before = [event[:2] for event in events[:removed]]
    told = {switch for switch, what in before if what == "add"}
    assert "s0b1" in told
    assert {switch for switch, what in before if what == "confirm"} == told
    assert [event[:2] for event in events[removed + 1 :]] == [("s0l1", "confirm")]


def test_a_route_around_an_outage_is_installed_at_once_if_its_tunnel_exists(fakes: Fakes) -> None:
    """A spine disconnects: the leaf's route moves to another spine in the same stage as the default rules."""
    events = outage(fakes, "s0p1", slow="s0b0")
    (moved,) = (index for index, event in enumerate(events) if is_route(event))
    assert events[moved][0] == "s0l1"
    assert ("s0b0", "confirm") in [event[:2] for event in events[moved:]]
    assert [event[1] for event in events].count("confirm") == len({event[0] for event in events if event[1] == "add"})


def test_a_switch_that_does_not_confirm_is_named_and_the_next_request_clears_all_tables(fakes: Fakes) -> None:
    fakes.switches["s0l1"].silent = True
    with pytest.raises(ControllerError, match="reports: no answer within 5 s from the switch s0l1"):
        fakes.route(2)
    fakes.switches["s0l1"].silent = False
    fakes.events()
    assert fakes.route(3) == (3,)
    events = fakes.events()
    cleared = {switch for switch, what, _, mask in events if what == "delete" and mask == 0xFFFFFEFF << 32}
    assert cleared == {switch.name for switch in FABRIC.switches}
    assert fakes.controller.status()["routes"] == [[3, 4, 3, 2]]


def test_a_request_fails_at_once_naming_the_switch_that_disconnects_or_refuses_a_rule(fakes: Fakes) -> None:
    fakes.switches["s0l1"].hangs_up = True
    begin = time.monotonic()
    with pytest.raises(ControllerError, match="reports: the switch s0l1 has disconnected"):
        fakes.route(1)
    assert time.monotonic() - begin < 4
    with pytest.raises(ControllerError, match="reports: the switch s0l1 is not connected"):
        fakes.route(1)
    fakes.connect("s0l1")
    fakes.controller.wait_ready(timeout_s=30)
    assert fakes.route(1) == (1,)
    fakes.switches["s1p0"].close()
    assert fakes.route(2) == (2,)  # over the other spine
    fakes.connect("s1p0")
    fakes.controller.wait_ready(timeout_s=30)
    fakes.switches["s0l1"].full = True
    with pytest.raises(ControllerError, match="switch s0l1 refuses a rule with OpenFlow error type 5, code 1"):
        fakes.route(3)


def test_a_switch_that_never_confirms_its_default_rules_is_dropped_and_can_reconnect(fakes: Fakes) -> None:
    fakes.switches["s1p0"].close()
    fakes.connect("s1p0", silent=True)
    assert fakes.switches["s1p0"].hung_up_on(timeout_s=60)
    assert fakes.controller.status()["not_ready"] == ["s1p0"]
    fakes.connect("s1p0")
    fakes.controller.wait_ready(timeout_s=60)
    assert fakes.route(1) == (1,)


class Unread(socket.socket):
    """A connection that only the framework may read: a peek would block if the framework reads first."""

    def recv(self, *_: object) -> bytes:  # type: ignore[override]
        raise AssertionError("somebody else reads")


def test_a_closed_connection_is_detected_without_reading_from_it() -> None:
    ours, theirs = socket.socketpair()
    with Unread(fileno=ours.detach()) as connection, theirs:
        connection.settimeout(5)  # as the framework sets it
        datapath = SimpleNamespace(socket=connection)
        assert not has_hung_up(datapath)
        theirs.sendall(b"an answer")
        assert not has_hung_up(datapath)
        theirs.close()
        assert has_hung_up(datapath)
    assert has_hung_up(datapath)


def test_counters_cover_every_port_when_a_switch_replies_in_several_messages(fakes: Fakes) -> None:
    for number, switch in enumerate(fakes.switches.values()):
        switch.sent_bytes = [number, 2**63 + number, 7]
    before_ns = time.monotonic_ns()
    found = fakes.controller.counters()
    assert list(found) == list(fakes.switches)
    for number, (asked_ns, answered_ns, sent) in enumerate(found.values()):
        assert sent == {1: number, 2: 2**63 + number, 3: 7}
        assert before_ns <= asked_ns <= answered_ns <= time.monotonic_ns()
    fakes.switches["s1p1"].close()
    end = time.monotonic() + 30
    while time.monotonic() < end and not fakes.controller.status()["dead"]:  # until the controller has noticed
        with suppress(ControllerError):
            fakes.controller.counters()
    assert list(fakes.controller.counters()) == [name for name in fakes.switches if name != "s1p1"]
