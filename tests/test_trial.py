"""What is done when collectives fail, and how it is accounted for, on a testbed that fails as it is told to."""

import math
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.api.client import ControllerError
from hosts.communicator import CollectiveError
from scenarios.policies.decide import MODES
from scenarios.spec.faults import Fault
from scenarios.testbed import fault_injector, recovery
from scenarios.testbed.recovery import Account, Trial
from scenarios.testbed.row import Row
from scenarios.testbed.testbed import WrongDataError
from topologies.fabric.fabric import FabricSpec, build_fabric

ROW = Row(
    collective=0, completion_s=1.0, ring=(), path=(), reembedded=False, rerouted=False, drops=0, late=False,
    start_ns=(), arrived_ns=(),
)  # fmt: skip


def failed(text: str = "the process of GPU 3 died") -> CollectiveError:
    return CollectiveError(text)


class Scripted:
    """A testbed whose attempts at a collective end as scripted: None for well, or the error that is raised."""

    def __init__(self, script: list[Exception | None], faults: tuple[Fault, ...] = ()) -> None:
        self.setting, self.fabric = SimpleNamespace(faults=faults), build_fabric(FabricSpec())
        self.network = SimpleNamespace(host_pids=[])
        self.controller = SimpleNamespace(alive=lambda: True, ends=lambda: False, kill=lambda: None)
        self._script, self.begun, self.renewed = iter(script), [], 0

    def collective(self, _mode: object, number: int, **_: object) -> Row:
        self.begun.append(number)
        error = next(self._script)
        if error is not None:
            raise error
        return replace(ROW, collective=number)

    def renew(self) -> None:
        self.renewed += 1

    def bytes_again(self) -> int:
        return 0

    def part(self) -> None:
        pass

    def lose(self, *_: object) -> None:
        pass

    def outages(self) -> list[Any]:
        return []


def told(testbed: Scripted, count: int) -> tuple[list[Row | Account], str]:
    """Rows and accounts, and the sentence that it ended with, if it did."""
    found: list[Row | Account] = []
    try:
        for item in Trial(testbed, MODES["base"]).run(count=count):  # type: ignore[arg-type]
            found.append(item)
    except Exception as error:
        return found, str(error)
    return found, ""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_SETTLE_S", 0)
    monkeypatch.setattr(fault_injector, "run_program", lambda *_: None)


def test_a_collective_is_begun_four_times_at_most() -> None:
    testbed = Scripted([None, failed(), failed(), failed(), None, None])
    found, ended = told(testbed, 3)
    assert testbed.begun == [0, 1, 1, 1, 1, 2] and testbed.renewed == 3 and ended == ""
    rows = [item for item in found if isinstance(item, Row)]
    assert [(row.attempts, row.undisturbed) for row in rows] == [(1, True), (4, False), (1, True)]
    testbed = Scripted([None, *(failed(f"try {number}") for number in range(1, 5))])
    found, ended = told(testbed, 3)
    assert testbed.begun == [0, 1, 1, 1, 1] and ended == "collective 1 was begun 4 times: try 4"
    accounts = [item for item in found if isinstance(item, Account)]  # they are told before it ends
    assert accounts[-1].outcome == f"aborted: {ended}"


LEAF = ("g0-s0l0", "g1-s0l0", "s0l0-s0p0", "s0l0-s0p1")
FALLS = [
    # seen, done, what died, what came back: the cables of a leaf, the first of which no rule leads over
    (10, 10, LEAF[:1], ()), (20, 0, LEAF[1:], ()), (30, 50, LEAF[1:], ()),
]  # fmt: skip
RISES = [(900, 910, (), LEAF[:1]), (910, 930, (), LEAF[1:])]
EARLIER = [(-2 * 10**9, -(10**9), LEAF[:2], ()), (2, 3, (), LEAF[:2])]  # of a fault before, whose end comes late
OTHER = [(5, 500, ("s0b0-s1b0",), ()), (940, 990, ("s0b0-s1b0",), ())]


@pytest.mark.parametrize(
    ("outages", "script", "recovered_ns"),
    [
        (FALLS, [None], 50),
        (FALLS[:2], [None], None),  # a way round that is not complete yet
        (FALLS + RISES, [None], 50),
        (EARLIER + FALLS, [None], 50),
        (EARLIER, [None], None),
        (FALLS[:2] + RISES, [None], 930),  # there was none before it was back
        (FALLS + RISES, [failed(), None], 930),  # the way round was no help
        (FALLS, [failed(), None], 50),  # or it was, in the end
        (OTHER, [None], None),
    ],
)
def test_a_switch_is_made_good_when_its_last_cable_is_led_around_or_it_is_back(
    outages: list[Any], script: list[Exception | None], recovered_ns: int | None
) -> None:
    testbed = Scripted(script, (Fault(collective=0, kind="switch down", target="s0l0"),))
    begun = time.monotonic_ns() + 10**9

    def told_of() -> list[dict[str, Any]]:
        return [
            {"seen_ns": begun + seen, "done_ns": done and begun + done, "died": list(died), "back": list(back)}
            for seen, done, died, back in sorted(OTHER[:1] + outages)
        ]

    testbed.outages = told_of  # type: ignore[method-assign]
    (account,) = (item for item in told(testbed, 1)[0] if isinstance(item, Account))
    if recovered_ns is None:
        assert account.outcome == "ridden out" and math.isnan(account.recovered_s)
    else:
        assert account.outcome == "recovered"
        assert round((account.recovered_s - account.detected_s) * 1e9) == recovered_ns - 10


def test_wrong_data_is_never_tried_again() -> None:
    testbed = Scripted([None, WrongDataError("collective 1 delivered wrong data: GPU 1, step 1: byte 0 is wrong")])
    _, ended = told(testbed, 3)
    assert testbed.begun == [0, 1] and ended.startswith("collective 1 delivered wrong data")


def test_what_nobody_declared_is_fault_minus_one_and_counts_what_it_cost() -> None:
    found, _ = told(Scripted([None, failed(), None, None]), 3)
    (account,) = (item for item in found if isinstance(item, Account))
    assert (account.fault, account.at_collective, account.what) == (-1, 1, "the process of GPU 3 died")
    assert (account.outcome, account.collectives_lost) == ("recovered", 1)
    assert 0 <= account.detected_s <= account.recovered_s


def test_the_certificate_leaves_out_what_the_model_cannot_know() -> None:
    """In force when a collective begins: losses and a dead controller are unknown to the model, the others are not."""
    for kind, target, known in (
        ("link loss", "s0b0-s1b0", False), ("controller killed", "", False),
        ("link down", "s0b0-s1b0", True), ("agent slow", "1", True),
    ):  # fmt: skip
        fault = Fault(collective=1, kind=kind, target=target, amount=0.5, lasts=1)
        testbed = Scripted([None] * 3, (fault,))
        testbed.shape = lambda *_: None  # type: ignore[attr-defined]
        found, ended = told(testbed, 3)
        rows = [item for item in found if isinstance(item, Row)]
        assert ([row.undisturbed for row in rows], ended) == ([True, known, True], ""), kind
        assert [row.faults for row in rows] == [(), (0,), ()]


def test_a_controller_that_dies_as_it_is_asked_loses_no_collective() -> None:
    testbed = Scripted([None, ControllerError("the controller has ended"), None, None])
    alive = iter([True] * 3 + [False] + [True] * 99)
    testbed.controller = SimpleNamespace(alive=lambda: next(alive, True), ends=lambda: True, kill=lambda: None)
    testbed.restart_controller = lambda **_: None  # type: ignore[attr-defined]
    found, ended = told(testbed, 3)
    assert ended == "" and testbed.begun == [0, 1, 1, 2] and testbed.renewed == 0
    assert all(item.collectives_lost == 0 for item in found if isinstance(item, Account))
