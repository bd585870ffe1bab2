"""Recovery from failed collectives and its recorded events, on a fake testbed whose failures are scripted."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.statistics.fault_outcomes import fault_outcomes
from controller.api.client import ControllerError
from hosts.communicator import CollectiveError
from scenarios.policies.outcome import readings
from scenarios.policies.situation import Action
from scenarios.spec.faults import Fault
from scenarios.testbed import fault_injector, recovery, testbed
from scenarios.testbed.point_run import MeasuredOutcome
from scenarios.testbed.record import CollectiveRecord
from scenarios.testbed.recovery import Recovery
from scenarios.testbed.testbed import WrongDataError
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.machines import Share


def failed(text: str = "the process of GPU 3 died") -> CollectiveError:
    return CollectiveError(text)


class Scripted:
    """A point and its testbed in one, whose attempts at a collective end as scripted: None for success, or an error."""

    def __init__(self, script: list[Exception | None], faults: tuple[Fault, ...] = ()) -> None:
        self.config = SimpleNamespace(faults=faults, control=SimpleNamespace(counted=False))
        self.fabric = build_fabric(FabricSpec())
        self.share = Share(self.fabric)
        self.lost: Iterator[int] = iter(())  # the packets lost in each collective that completes
        self.network, self.testbed = SimpleNamespace(pids_here={}), self
        self.controller = SimpleNamespace(alive=lambda: True, ends=lambda: False, kill=lambda: None)
        self._script, self.begun, self.calls = iter(script), list[int](), list[str]()
        self.dead: Iterator[list[list[str]]] = iter(())  # the failed cables in the controller's next answers
        self.last_dead: list[list[str]] = []
        self.player = SimpleNamespace(decide=lambda _: Action(), learn=lambda _: None)

    def collective(
        self, number: int, decide: Any, *, in_force: Any, reroute: bool, undisturbed: Any, **_: object
    ) -> MeasuredOutcome:
        self.begun.append(number)
        self.calls += ["reroute"] * reroute
        error = next(self._script)
        if error is not None:
            raise error
        record = CollectiveRecord(
            collective=number, placement=(), path=(), reembedded=False, rerouted=False, reconfigure_ns=None,
            reconfigure_messages=None, start_ns=(), sent_ns=(), arrived_ns=(), drops=0, late=False,
            faults=in_force, undisturbed=undisturbed(0),
        )  # fmt: skip
        return MeasuredOutcome(number, decide(), record, readings(np.empty((0, 4), np.int64)), lambda: np.empty((0, 0)))

    def retransmitted_bytes(self) -> int:
        return 0

    def lost_packets(self) -> int:
        return next(self.lost, 0)

    def status(self) -> dict[str, Any]:
        outage = {"seen_ns": 1, "done_ns": 2, "died": ["a-b"], "back": [], "moved": [[0, 4, 0, 1]]}
        self.last_dead = next(self.dead, self.last_dead)
        return {"outages": [outage], "dead": self.last_dead}

    def await_status(self, noticed: Any) -> bool:
        return testbed.Testbed.await_status(self, noticed)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.calls.append(name)


def run(testbed: Scripted, count: int) -> tuple[list[CollectiveRecord], list[Any], str]:
    """Return the records, the events, and the message of the error that ended the run, or "" without one."""
    records, events = list[CollectiveRecord](), list[Any]()
    try:
        for item in Recovery(testbed).records(range(count)):  # type: ignore[arg-type]
            records.append(item) if isinstance(item, CollectiveRecord) else events.append(item)
    except Exception as error:
        return records, events, str(error)
    return records, events, ""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_SETTLE_S", 0)
    monkeypatch.setattr(testbed, "NOTICED_S", 0.3)
    monkeypatch.setattr(fault_injector, "run_program", lambda *_: None)


def test_a_collective_is_attempted_at_most_four_times() -> None:
    testbed = Scripted([None, failed(), failed(), failed(), None, None])
    records, _, ended = run(testbed, 3)
    assert testbed.begun == [0, 1, 1, 1, 1, 2] and testbed.calls == ["renew"] * 3 and ended == ""
    assert [row.undisturbed for row in records] == [True, False, True]
    testbed = Scripted([None, *(failed(f"try {number}") for number in range(1, 5))])
    _, events, ended = run(testbed, 3)
    assert testbed.begun == [0, 1, 1, 1, 1] and ended == "collective 1 was begun 4 times: try 4"
    assert [event["event"] for event in events][-2:] == ["failed", "ended"] and events[-1]["why"] == ended
    assert fault_outcomes(events)[-1]["outcome"] == f"aborted: {ended}"


def test_of_several_machines_the_first_failure_ends_all_as_the_others_know_nothing_of_it() -> None:
    testbed = Scripted([None, failed(), None])
    testbed.share = Share(testbed.fabric, machines=2)
    _, events, ended = run(testbed, 3)
    assert testbed.begun == [0, 1] and ended == "the process of GPU 3 died"
    assert [event["event"] for event in events] == ["failed", "ended"]


def test_a_collective_that_delivered_wrong_data_is_never_retried() -> None:
    testbed = Scripted([None, WrongDataError("collective 1 delivered wrong data: GPU 1, step 1: byte 0 is wrong")])
    _, _, ended = run(testbed, 3)
    assert testbed.begun == [0, 1] and ended.startswith("collective 1 delivered wrong data")


def test_an_undeclared_failure_is_recorded_as_fault_minus_one_with_its_lost_collectives() -> None:
    _, events, _ = run(Scripted([None, failed(), None, None]), 3)
    assert [(event["event"], event["collective"]) for event in events] == [
        ("failed", 1), ("restarted", 1), ("completed", 1), ("ended", 2),
    ]  # fmt: skip
    (row,) = fault_outcomes(events)
    assert (row["number"], row["at_collective"], row["what"]) == (0, 1, "the process of GPU 3 died")
    assert (row["outcome"], row["collectives_lost"]) == ("recovered", 1)
    assert 0 <= row["detected_s"] <= row["recovered_s"]


@pytest.mark.parametrize(
    ("kind", "target", "predictable"),
    [
        ("link loss", "s0b0-s1b0", False), ("controller killed", "", False),
        ("link down", "s0b0-s1b0", True), ("agent slow", "1", True),
    ],
)  # fmt: skip
def test_collectives_under_faults_that_the_model_cannot_know_do_not_count_for_fidelity(
    kind: str, target: str, predictable: bool
) -> None:
    """Faults in force when a collective begins: the model knows all but link losses and a dead controller."""
    testbed = Scripted([None] * 3, (Fault(collective=1, kind=kind, target=target, amount=0.5, lasts=1),))
    records, events, ended = run(testbed, 3)
    assert ([row.undisturbed for row in records], ended) == ([True, predictable, True], "")
    assert [row.faults for row in records] == [(), (0,), ()]
    assert testbed.calls.count("reroute") == 2  # when the fault begins and when it ends
    listed = [event for event in events if event["event"] == "outages"]
    assert bool(listed) == (kind == "link down")
    if listed:
        assert listed[0]["outages"] == [{"seen_ns": 1, "done_ns": 2, "died": ["a-b"], "back": []}]


def test_a_fault_within_a_collective_marks_it_disturbed_and_reconnects_afterwards() -> None:
    testbed = Scripted([None] * 3, (Fault(collective=1, kind="link down", target="s0b0-s1b0", after_s=1e-3, lasts=1),))
    collective = testbed.collective

    def begin(*args: Any, on_start: Any, **kwargs: Any) -> CollectiveRecord:
        on_start(0)
        return collective(*args, **kwargs)

    testbed.collective = begin  # type: ignore[method-assign]
    records, _, _ = run(testbed, 3)
    assert [(row.faults, row.undisturbed) for row in records] == [((), True), ((), False), ((), True)]
    assert testbed.calls == [
        *("await_tunnel_limits", "tell_dead", "reset_connections"),
        *("restore_links", "tell_dead", "reroute"),
    ]


def test_paths_are_chosen_only_after_the_controller_noticed_a_link_going_down_or_up() -> None:
    """The controller may be slow in real time; without waiting, paths in mode base would differ from the plan."""
    scripted = Scripted([None] * 3, (Fault(collective=1, kind="link down", target="s0b0-s1b0", lasts=1),))
    cut = [["s0b0", "s1b0"]]
    scripted.dead, scripted.last_dead = iter([[], [], cut, cut, cut, cut, []]), []
    collective, found = scripted.collective, list[list[list[str]]]()

    def begin(*args: Any, **kwargs: Any) -> CollectiveRecord:
        found.append(scripted.last_dead)
        return collective(*args, **kwargs)

    scripted.collective = begin  # type: ignore[method-assign]
    run(scripted, 3)
    assert found == [[], cut, []]


def test_a_controller_that_dies_during_a_request_is_restarted_and_no_collective_is_lost() -> None:
    testbed = Scripted([None, ControllerError("the controller has ended"), None, None])
    alive = iter([True] * 2 + [False] + [True] * 99)
    testbed.controller = SimpleNamespace(alive=lambda: next(alive, True), ends=lambda: True, kill=lambda: None)
    _, events, ended = run(testbed, 3)
    assert ended == "" and testbed.begun == [0, 1, 1, 2]
    assert testbed.calls == ["restart_controller", "reroute"]
    (row,) = fault_outcomes(events)
    assert (row["what"], row["collectives_lost"]) == ("the controller has died", 0)


def test_packets_that_a_failed_link_has_lost_are_drops_of_the_collective() -> None:
    testbed = Scripted([None] * 3, (Fault(collective=1, kind="link down", target="s0b0-s1b0", after_s=0.0, lasts=1),))
    testbed.lost = iter((0, 63, 0))
    records, _, _ = run(testbed, 3)
    assert [row.drops for row in records] == [0, 63, 0]


@pytest.mark.parametrize("counted", [False, True])
def test_with_counted_costs_a_collective_before_which_recovery_chose_paths_does_not_count_for_fidelity(
    counted: bool,
) -> None:
    testbed = Scripted([None] * 4, (Fault(collective=1, kind="link down", target="s0b0-s1b0", lasts=1),))
    testbed.config.control.counted = counted
    records, _, _ = run(testbed, 4)
    assert [row.undisturbed for row in records] == [True, not counted, not counted, True]


def test_a_failed_attempt_is_recorded_with_the_time_that_it_took() -> None:
    testbed = Scripted([failed(), None])
    started = iter((1_000_000, 2_000_000))

    def collective(number: int, decide: Any, *, on_start: Any, **arguments: Any) -> MeasuredOutcome:
        on_start(next(started))
        return Scripted.collective(testbed, number, decide, **arguments)

    testbed.collective = collective  # type: ignore[method-assign]
    _, events, _ = run(testbed, 1)
    (failure,) = (event for event in events if event["event"] == "failed")
    assert failure["spent_ns"] == failure["at_ns"] - 1_000_000
