"""Campaigns: the same faults for the same seed, and a table that counts what came of them; a small one in VMs."""

import os
import subprocess
import sys

import pytest

from scenarios import vm
from scenarios.engines.emulation import EmulationError
from scenarios.spec.faults import KINDS
from scenarios.testbed import launch
from scenarios.tools.drill import drawn, run, sizes_of
from scenarios.tools.outcomes import GOOD, OUTCOMES, Outcome, table
from tests.conftest import PROJECT

CAMPAIGN = [sys.executable, str(PROJECT / "scenarios" / "campaign.py")]


def test_the_same_seed_draws_the_same_scenarios_and_another_others() -> None:
    sizes = sizes_of(60, 7)
    assert sum(sizes) == 60 and set(sizes) == {1, 2}
    found = [drawn(number, 7, size) for number, size in enumerate(sizes)]
    assert found == [drawn(number, 7, size) for number, size in enumerate(sizes)]
    assert [trial.text for trial in found] != [drawn(number, 8, size).text for number, size in enumerate(sizes)]
    assert [len(trial.whats) for trial in found] == sizes
    words = {word for trial in found for what in trial.whats for word in what.split()}
    assert {word for kind in KINDS for word in kind.split()} <= words  # every kind of fault
    assert {trial.mode for trial in found} == {"base", "wan", "ccl", "joint"}


def test_the_table_counts_every_outcome() -> None:
    outcomes = [
        Outcome(what="agent 3 killed", outcome="recovered", sentence="", lost=1),
        Outcome(what="agent 4 killed", outcome="aborted", sentence="why", lost=3),
        Outcome(what="link a-b down", outcome="hung", sentence="why"),
    ]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in table(outcomes).splitlines()}
    assert rows["agent killed"] == "| agent killed | 1 | 0 | 1 | 0 | 0 | 4 |"
    assert rows["link down"] == "| link down | 0 | 0 | 0 | 1 | 0 | 0 |"
    assert rows["all"] == "| all | 1 | 0 | 1 | 1 | 0 | 4 |"
    assert set(GOOD) < set(OUTCOMES)


def test_a_scenario_of_a_campaign_can_be_shown() -> None:
    shown = subprocess.run([*CAMPAIGN, "--show", "3", "--seed", "5"], capture_output=True, text=True, check=True)
    assert shown.stdout == drawn(3, 5, sizes_of(20, 5)[3]).text
    refused = subprocess.run([*CAMPAIGN, "--show", "99"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "99 is none of its scenarios" in refused.stderr


def test_a_small_campaign_ends_well() -> None:
    ended = subprocess.run(
        [*CAMPAIGN, "--count", "3", "--seed", "11"], capture_output=True, text=True, check=False, timeout=500
    )
    assert ended.returncode == 0, ended.stderr
    recovered, ridden_out, aborted, hung, wrong, _ = map(
        int, ended.stdout.splitlines()[-1].strip("| ").split(" | ")[1:]
    )
    assert recovered + ridden_out + aborted >= 3 and hung == wrong == 0
    assert recovered >= 1  # which an aborted run would not have


def test_a_machine_that_cannot_is_told_and_no_fault_counts_as_ended_well() -> None:
    ended = subprocess.run(
        [*CAMPAIGN, "--count", "3"],
        env={**os.environ, "LONGHAUL_KERNEL": "/nonexistent"}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith("campaign.py: ") and "/nonexistent" in ended.stderr


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(vm.VMError("the VM died"), "VM lost"), (EmulationError("the plan says otherwise"), "wrong data")],
)
def test_a_vm_that_fails_is_no_good_end_of_any_fault(
    monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: str
) -> None:
    def testbed(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(launch, "testbed", testbed)
    two = next(drawn(number, 7, size) for number, size in enumerate(sizes_of(60, 7)) if size == 2)
    found = run(two, patience_s=60)
    assert [(one.what, one.outcome, one.sentence) for one in found] == [(w, outcome, str(error)) for w in two.whats]
    assert outcome not in GOOD and outcome in OUTCOMES
