"""Faults: how a scenario declares them, what they do to conditions, and what becomes of them in the VM."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.results.reader import open_run
from scenarios.engines.base import Slice
from scenarios.engines.emulation import Watchdog
from scenarios.engines.model import Model
from scenarios.engines.prediction import Expectations
from scenarios.experiment import command
from scenarios.policies.conditions import conditions_of
from scenarios.spec import ScenarioError, faults
from scenarios.spec.faults import Fault
from scenarios.spec.load import Override, load_scenario
from tests.conftest import PROJECT
from tests.fakes.runs import answer
from topologies.fabric.fabric import FabricSpec, build_fabric

FABRIC = build_fabric(FabricSpec())
DOWN = {"at": "collective 2", "what": "link s0b0-s1b0 down", "for": "3 collectives"}


def load(*tables: dict[str, object]) -> tuple[Fault, ...]:
    return load_scenario("paper", [Override("fault", list(tables), "fault")]).faults


# --- what a scenario says -------------------------------------------------------------------------------------------

kinds = st.sampled_from(
    ["link s0b0-s1b0 down", "link g3-s0l1 loss 0.5 %", "switch s0p1 down", "controller killed", "agent 7 slow 2.5x"]
)


@given(st.integers(0, 19), st.none() | st.integers(1, 10**9), kinds, st.none() | st.integers(1, 50))
def test_what_is_declared_is_read_and_written_back_the_same(
    number: int, after_ns: int | None, what: str, lasts: int | None
) -> None:
    at = f"collective {number}" if after_ns is None else f"{after_ns} ns into collective {number}"
    table = {"at": at, "what": what} | ({} if lasts is None else {"for": f"{lasts} collectives"})
    (fault,) = load(table)
    assert (fault.collective, fault.lasts) == (number, lasts)
    assert (fault.after_s is None) == (after_ns is None)
    assert fault.after_s is None or round(fault.after_s * 1e9) == after_ns
    assert load(dict(fault.written())) == (fault,)


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({"at": "tomorrow"}, "at", '"tomorrow" is not understood; allowed: "collective 12"'),
        ({"at": "collective 100000"}, "at", "collective 100,000 is not run; allowed: 0 to 99,999"),
        ({"what": "link s0b0-s1b0 sideways"}, "what", "is not understood"),
        ({"what": "link s0b0-s1b7 down"}, "what", "is not a link; allowed: a cable of the fabric (did you mean"),
        ({"what": "switch s9b9 down"}, "what", "s9b9 is not a switch; allowed: s0l0"),
        ({"what": "agent 8 slow 2x"}, "what", "there is no agent 8; allowed: 0 to 7"),
        ({"what": "link s0b0-s1b0 loss 101 %"}, "what", "101 % cannot be lost"),
        ({"what": "agent 1 killed"}, "for", "does nothing"),
        ({"for": "0 collectives"}, "for", "0 collectives are not allowed"),
        ({"since": 1}, "since", "unknown key of a fault"),
    ],
)
def test_every_mistake_names_its_place(tmp_path: Path, change: dict[str, object], place: str, words: str) -> None:
    table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in (DOWN | change).items())
    good = ", ".join(f"{key} = {json.dumps(value)}" for key, value in DOWN.items())
    path = tmp_path / "mine.toml"
    path.write_text(f"fault = [{{ {good} }}, {{ {table} }}]\n")
    with pytest.raises(ScenarioError) as refusal:
        load_scenario(str(path))
    assert len(refusal.value.mistakes) == 1
    assert refusal.value.mistakes[0].startswith(f"{path}: fault[2].{place}: ") and words in refusal.value.mistakes[0]


# --- what the model makes of them -----------------------------------------------------------------------------------


def test_faults_are_in_force_from_their_collective_on_for_as_long_as_they_last() -> None:
    before, within = (
        Fault(collective=4, kind="link down", target="s0b0-s1b0", lasts=2),
        Fault(collective=4, after_s=1e-3, kind="link down", target="s0b0-s1b0", lasts=2),
    )
    stays = Fault(collective=4, kind="link down", target="s0b0-s1b0")
    assert [k for k in range(9) if faults.active([before], k)] == [4, 5]
    assert [k for k in range(9) if faults.active([within], k)] == [5]
    assert [k for k in range(9) if faults.active([stays], k)] == [4, 5, 6, 7, 8]


def test_what_is_down_has_no_rate_and_what_is_slow_a_part_of_it() -> None:
    rates = np.full(len(FABRIC.links), 1e9)
    down, slow = load(
        {"at": "collective 1", "what": "switch s0b1 down"}, {"at": "collective 1", "what": "agent 2 slow 4x"}
    )
    found = faults.known(rates, [down, slow], FABRIC)
    for link in FABRIC.links:
        wanted = 0.0 if "s0b1" in (link.src, link.dst) else 0.25e9 if link.src == "g2" else 1e9
        assert found[link.index] == wanted
    assert (rates == 1e9).all()


def test_what_is_expected_of_a_collective_goes_by_the_faults_that_were_in_force() -> None:
    """Those that the testbed has recorded with it, which are others where collectives were lost."""
    setting, plain = load_scenario("paper", [Override("fault", [DOWN], "fault")]), load_scenario("paper")
    link = next(link.index for link in FABRIC.links if link.name == "s0b0>s1b0")
    planned = conditions_of(setting)
    assert [k for k in range(10) if planned.rates_bps(k, 1)[0, link] == 0] == [2, 3, 4]
    expected, healthy = Expectations(setting, "base"), Expectations(plain, "base")
    for k in range(8):
        faults = [0] if k in (3, 4, 5) else []
        found, usual = expected.of(k, faults), healthy.of(k)
        used = {link for index in found.path if index >= 0 for link in FABRIC.paths[index].links}
        assert (found.predicted_s == usual.predicted_s and (found.path == usual.path).all()) == (not faults)
        assert link not in used or not faults


@pytest.mark.parametrize("mode", ["base", "joint"])
def test_the_models_engine_knows_what_is_down_however_its_work_is_cut(mode: str) -> None:
    given = {"fault": [DOWN], "run.modes": [mode], "collective.count": 20}
    chosen = [Override(key, value, "test") for key, value in given.items()]
    link = {link.index for link in FABRIC.links if {link.src, link.dst} == {"s0b0", "s1b0"}}

    def rows(overrides: list[Override], batch: int) -> list[tuple[float, list[int]]]:
        """The time and the paths of each collective."""
        news = [part for part in Model(batch=batch).run([load_scenario("paper", overrides)]) if isinstance(part, Slice)]
        parts = sorted((part.rows for part in news), key=lambda part: part.start)
        return [row for part in parts for row in zip(part.completion_s.tolist(), part.paths.tolist(), strict=True)]

    whole = rows(chosen, 20)
    used = [
        k for k, (_, paths) in enumerate(whole) if link & {m for p in paths if p >= 0 for m in FABRIC.paths[p].links}
    ]
    assert not {2, 3, 4} & set(used) and used
    assert whole == rows(chosen, 1)
    if mode == "base":
        healthy = rows(chosen[1:], 20)
        assert [k for k in range(20) if whole[k][0] != healthy[k][0]] == [2, 3, 4]


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        ({"what": "agent 3 killed"}, 2, "fault[1].what: agent 3 killed has no effect in the model; allowed"),
        ({"at": "1 ms into collective 2"}, 2, "fault[1].at: 1 ms into collective 2 is within a collective, which"),
        ({"what": "switch s0l0 down"}, 1, "collectives 0 to 3: no path leads over the WAN from rank"),
        ({"what": "switch s0l0 down", "for": "4 collectives"}, 1, "no path leads over the WAN from rank"),
    ],
)
def test_a_fault_that_the_model_does_not_know_or_leaves_no_path_is_said_in_a_sentence(
    fault: dict[str, str], status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"at": "collective 2", "what": "link s0b0-s1b0 down"} | fault
    tables = ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
    asked = ["--collectives", "4", "--modes", "base", "--set", f"fault=[{{{tables}}}]", "--out", str(tmp_path / "run")]
    assert command.run(["--engine", "model", *asked]) == status
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("lasts", [1, 2, 3])
def test_a_leaf_that_is_back_after_three_attempts_costs_no_collective_and_ages_other_faults(lasts: int) -> None:
    """As in the testbed: the collective is lost that often, and every attempt is one that a fault lasts."""

    def rows(*tables: dict[str, str]) -> list[float]:
        overrides = [Override("fault", list(tables), "fault"), Override("run.modes", ["base"], "modes")]
        overrides.append(Override("collective.count", 12, "count"))
        news = [part for part in Model().run([load_scenario("paper", overrides)]) if isinstance(part, Slice)]
        return [float(time_s) for part in news for time_s in part.rows.completion_s]

    leaf = {"at": "collective 2", "what": "switch s0l0 down", "for": f"{lasts} collectives"}
    link = {"at": "collective 2", "what": "link s0b0-s1b0 down", "for": "5 collectives"}
    assert rows(leaf) == rows()
    assert rows(leaf, link) == rows(link | {"for": f"{5 - lasts} collectives"}) != rows()


# --- the watch ------------------------------------------------------------------------------------------------------


def test_who_is_silent_for_too_long_is_stopped_and_named_for_what_it_did() -> None:
    stopped = list[float]()
    with Watchdog(1.0, waits_for="the start") as watchdog:
        watchdog.guard(lambda: stopped.append(time.monotonic()))
        for _ in range(4):
            time.sleep(0.4)
            watchdog.renew("collective 3: the AllGather")
        assert not stopped
        spoke = time.monotonic()
        while not stopped and time.monotonic() < spoke + 20:
            time.sleep(0.01)
    assert stopped and stopped[0] - spoke >= 0.9
    assert watchdog.stuck == "collective 3: the AllGather"
    assert watchdog.sentence().endswith("while Longhaul waited for collective 3: the AllGather")


def test_a_testbed_that_spins_is_ended_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from scenarios import vm
    from scenarios.engines import emulation
    from scenarios.engines.emulation import EmulationError, Task, run_point
    from scenarios.testbed import launch

    def spin(_arguments: object, *, stdout: vm.Sink, on_start: object, **_: object) -> int:
        code = "from scenarios.testbed.__main__ import tell\ntell('collective 0: the ring')\nwhile True: pass"
        command = [sys.executable, "-c", code]
        return vm.run(command, directory=PROJECT, stdout=stdout, on_start=on_start)  # type: ignore[arg-type]

    monkeypatch.setattr(launch, "testbed", spin)
    monkeypatch.setattr(emulation, "patience_s", lambda _setting: 12.0)
    with pytest.raises(EmulationError, match=r"the VM printed nothing for 12 s while .* collective 0: the ring"):
        run_point(Task(0, load_scenario("paper"), "base"), lambda _: None)


# --- in the VM ------------------------------------------------------------------------------------------------------

SCENARIO = """
name = "struck"
[collective]
count = 12
chunk = "1 MB"
[run]
modes = ["base", "joint"]
[[fault]]
at = "300 us into collective 2"
what = "switch s0b0 down"
for = "2 collectives"
[[fault]]
at = "200 us into collective 5"
what = "agent 3 killed"
[[fault]]
at = "1 s into collective 6"
what = "agent 2 killed"
[[fault]]
at = "collective 7"
what = "controller killed"
[[fault]]
at = "collective 9"
what = "agent 1 slow 10x"
for = "1 collective"
[[fault]]
at = "100 us into collective 10"
what = "switch s0l1 down"
for = "1 collective"
"""


def test_whatever_is_struck_the_run_comes_to_its_end_and_every_fault_is_accounted_for(tmp_path: Path) -> None:
    (tmp_path / "struck.toml").write_text(SCENARIO)
    fidelity = answer(tmp_path / "out", "struck.toml", "--engine", "emulation", report=True)["fidelity"]
    found = open_run(tmp_path / "out")
    rows, struck = found.collectives, found.faults
    assert len(rows) == 24 and len(struck) == 12
    assert set(struck.outcome) == {"recovered", "ridden out"}
    by_what = dict(iter(struck.groupby("what")))
    assert set(by_what["agent 1 slow 10x"].outcome) == {"ridden out"}
    for what in ("switch s0b0 down", "agent 3 killed", "controller killed", "switch s0l1 down"):
        part = by_what[what]
        assert set(part.outcome) == {"recovered"}
        assert (part.detected_s <= part.recovered_s).all() and (part.recovered_s < 100).all()
    assert (by_what["switch s0b0 down"].collectives_lost == 0).all()  # the same collective went another way
    assert (by_what["switch s0b0 down"].recovered_s < 0.2).all()
    assert (by_what["controller killed"].recovered_s < 2).all()  # switches look for it again after a second
    assert (by_what["agent 3 killed"].collectives_lost == 1).all()
    assert set(by_what["agent 2 killed"].outcome) == {"recovered"}  # its instant came when the collective was over
    assert (by_what["agent 2 killed"].collectives_lost == 0).all()
    assert (by_what["agent 3 killed"].bytes_again > 1e6).all()
    assert (by_what["switch s0l1 down"].collectives_lost >= 1).all()  # there is no way around a leaf
    # What nothing struck in the middle takes what the model says, also with something down or slow.
    whole = rows[rows.undisturbed]
    assert fidelity["collectives"] == len(whole) >= 16
    assert abs(fidelity["median_ratio"] - 1) < 0.001 and fidelity["p99_abs_error"] < 0.01
    slow = rows[(rows.collective == 9) & (rows["mode"] == "base")]
    assert slow.undisturbed.all()
    assert (tmp_path / "out" / "figures" / "struck-faults.svg").exists()
