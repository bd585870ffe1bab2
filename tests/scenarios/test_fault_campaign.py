"""Campaigns of random faults: a seed repeats its drills, all endings are classified, and a small one runs in VMs."""

import json
import os
import subprocess
import sys

import pytest

from scenarios import vm
from scenarios.engines import emulation
from scenarios.engines.prediction import PointPredictor
from scenarios.spec.faults import KINDS
from scenarios.spec.load import scenario_of
from scenarios.testbed import launch
from scenarios.tools import fault_campaign
from scenarios.tools.fault_campaign import Outcome, fault_counts, random_scenario, run
from tests.conftest import PROJECT
from tests.fakes.commands import row

CAMPAIGN = [sys.executable, str(PROJECT / "scenarios" / "campaign.py")]
DRILL = random_scenario(0, 1, 1)  # one fault: "controller killed", in mode joint
RECOVERED = {"number": 1, "at_collective": 1, "what": DRILL.faults[0], "detected_s": 0.1, "recovered_s": 1.0,
        "collectives_lost": 2, "bytes_again": 0, "outcome": "recovered"}  # fmt: skip


def test_the_same_seed_draws_the_same_scenarios_with_every_kind_of_fault() -> None:
    sizes = fault_counts(60, 7)
    assert sum(sizes) == 60 and set(sizes) == {1, 2}
    found = [random_scenario(number, 7, size) for number, size in enumerate(sizes)]
    assert found == [random_scenario(number, 7, size) for number, size in enumerate(sizes)]
    assert [drill.text for drill in found] != [
        random_scenario(number, 8, size).text for number, size in enumerate(sizes)
    ]
    assert [len(drill.faults) for drill in found] == sizes
    words = {word for drill in found for what in drill.faults for word in what.split()}
    assert {word for kind in KINDS for word in kind.split()} <= words
    assert {drill.mode for drill in found} == {"base", "wan", "ccl", "joint"}


def rows(count=6, change=lambda found: found, outcomes=(RECOVERED,)):
    """Yield a VM's output: `count` collectives as planned, the last one altered by `change`, then fault outcomes."""
    expected = PointPredictor(scenario_of(DRILL.text), DRILL.mode)
    for k in range(count):
        found = row(expected.of(k), k)
        yield change(found) if k == count - 1 else found
    if outcomes:
        yield {"event": {"event": "ended", "outcomes": outcomes}}


WRONG = "collective 2 delivered wrong data: GPU 1, step 1: byte 0 is wrong"
UNDECLARED = RECOVERED | {"number": 0, "what": "the process of GPU 2 died"}


@pytest.mark.parametrize(
    ("said", "status", "words", "ended"),
    [
        (rows(), 0, "", [("recovered", "", 2)]),
        (rows(outcomes=()), 0, "", [("masked", "", 0)]),
        (rows(3, outcomes=()), 1, "why it ended", [("aborted", "why it ended", 0)]),
        (rows(3, outcomes=[RECOVERED | {"outcome": "aborted: why"}]), 1, "why", [("aborted", "why", 2)]),
        (rows(5), 0, "", [("hung", None, 0)]),
        (rows(5), 1, "", [("hung", None, 0)]),
        (rows(3), 1, WRONG, [("wrong data", WRONG, 0)]),
        (rows(), 0, "Traceback (most recent call last)", [("wrong data", None, 0)]),
        (rows(outcomes=[RECOVERED, UNDECLARED]), 0, "", [("recovered", "", 2), ("recovered", UNDECLARED["what"], 2)]),
        ([], vm.VMError("the VM died"), "", [("VM lost", "the VM died", 0)]),
        (rows(2, change=lambda one: one | {"placement": one["placement"][::-1]}), 0, "", [("wrong data", None, 0)]),
        (rows(2, change=lambda one: one | {"path": one["path"][::-1]}), 0, "", [("wrong data", None, 0)]),
    ],
)
def test_every_way_a_drill_can_end_is_classified_with_its_reason(monkeypatch, said, status, words, ended):
    def testbed(_arguments, *, stdout, stderr, **_):
        for line in said:
            stdout.write(json.dumps(line).encode() + b"\n")
        stderr.write(words.encode() + b"\n" * bool(words))
        if isinstance(status, Exception):
            raise status
        return status

    monkeypatch.setattr(launch, "testbed", testbed)
    monkeypatch.setattr(emulation, "fault_outcomes", lambda events, *_: events[-1]["outcomes"])
    found = run(DRILL, patience_s=60)
    assert [one.what for one in found][:1] == list(DRILL.faults)
    assert [(one.outcome, one.lost) for one in found] == [(outcome, lost) for outcome, _, lost in ended]
    for one, (_, sentence, _) in zip(found, ended, strict=True):
        assert one.sentence == sentence if sentence is not None else one.sentence


def campaign(*arguments: str, status: int, **environment: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run([*CAMPAIGN, *arguments], env=os.environ | environment, capture_output=True, text=True,
                          check=False, timeout=500)  # fmt: skip
    assert done.returncode == status, done.stderr
    return done


def test_a_campaign_with_policies_draws_the_same_faults_as_one_with_modes() -> None:
    of_modes, of_policies = (
        [random_scenario(number, 1, 2, policies=some) for number in range(40)] for some in (False, True)
    )
    assert [drill.faults for drill in of_policies] == [drill.faults for drill in of_modes]
    found = [scenario_of(drill.text).policies for drill in of_policies]
    assert {drill.mode for drill in of_policies} == {"drawn"} == {one.name for (one,) in found}
    assert {one.reroute.kind for (one,) in found} == {"never", "every", "drift", "gain"}
    assert any(one.keeps_paths for (one,) in found) and not all(one.is_periodic for (one,) in found)


def test_show_prints_one_scenario_of_a_campaign_and_refuses_an_unknown_number() -> None:
    assert campaign("--show", "3", "--seed", "5", status=0).stdout == random_scenario(3, 5, fault_counts(20, 5)[3]).text
    assert "--show: 99 " in campaign("--show", "99", status=2).stderr


def test_a_small_campaign_in_vms_has_no_hung_or_wrong_drill() -> None:
    total = campaign("--count", "3", "--seed", "11", status=0).stdout.splitlines()[-1]
    recovered, masked, aborted, hung, wrong, _ = map(int, total.strip("| ").split(" | ")[1:])
    assert recovered + masked + aborted >= 3 and hung == wrong == 0
    assert recovered >= 1  # an aborted run would have none


def test_without_a_vm_a_campaign_exits_with_status_3_and_prints_no_outcome() -> None:
    done = campaign("--count", "3", status=3, LONGHAUL_KERNEL="/nonexistent")
    assert done.stdout == "" and done.stderr.startswith("campaign.py: ") and "/nonexistent" in done.stderr


@pytest.mark.parametrize(
    ("outcome", "leaves", "status"), [("hung", False, 1), ("recovered", True, 1), ("aborted", False, 0)]
)
def test_a_hung_drill_or_a_leftover_process_gives_exit_status_1(monkeypatch, outcome, leaves, status):
    left = []

    def drill(*_):
        if leaves:
            left.append(subprocess.Popen(["sleep", "60"]))
        return [Outcome(what="agent 1 killed", outcome=outcome)]

    monkeypatch.setattr(fault_campaign, "run", drill)
    monkeypatch.setattr(sys, "argv", ["campaign.py", "--count", "1"])
    assert fault_campaign.main() == status
    for process in left:
        process.kill()
        process.wait()
