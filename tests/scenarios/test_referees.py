"""The referees: every mode compared with the fastest ring, the best schedule and the lower bound, correctly ordered."""

import csv
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.engines.prediction import lower_bound
from scenarios.engines.referees import totals
from scenarios.experiment import command
from scenarios.policies.conditions import conditions_of
from scenarios.spec import ScenarioError
from scenarios.spec.load import load_scenario
from scenarios.spec.scenario import Scenario
from scenarios.studies import harness
from scenarios.studies.referees import STUDY
from tests.fakes.commands import assert_refused, printed, scenario
from tests.fakes.runs import ended, rows

main = partial(harness.main, STUDY)

FOUR = ("--set", "fabric.gpus=4")


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = printed(main, capsys, *arguments)["collectives"]
    return found


@pytest.mark.parametrize("delay", ["10 us", "10 ms"])
@pytest.mark.parametrize("gpus", ["4", "8", "14"])
def test_no_mode_beats_the_fastest_ring_and_no_ring_beats_its_lower_bounds(
    gpus: str, delay: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("--set", f"fabric.gpus={gpus}", "--set", f"conditions.wan_delay={delay}")
    for line in lines(capsys, "--collectives", "5", "--seconds", "0", *keys):
        assert line["bound_s"] <= line["ring_bound_s"] * (1 + 1e-12) <= line["ring_s"] * (1 + 2e-12)
        best_mode_s = min(line["modes_s"].values())
        assert line["ring_bound_s"] <= best_mode_s * (1 + 1e-12)
        if int(gpus) <= 8:
            assert line["ring_bound_s"] == line["ring_s"] <= best_mode_s * (1 + 1e-12)
        assert line["schedule_s"] is line["schedule_bound_s"] is line["proven"] is None


def test_without_or_tools_a_line_names_the_missing_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    assert main(["--collectives", "1", *FOUR]) == 0
    out, said = capsys.readouterr()
    assert ".venv/bin/pip install 'longhaul[optimum]'" in said and "Traceback" not in said
    assert "fastest ring" in out and "proven" not in out


def some_scenario(rng: np.random.Generator) -> Scenario:
    """Draw a random scenario with all modes, three policies and random conditions."""
    keys: dict[str, Any] = {
        "fabric.gpus": [[4], [2, 3], [8], [2, 2, 2]][rng.integers(4)],
        "fabric.grain": str(rng.choice(["logical", "physical"])),
        "fabric.routing": str(rng.choice(["single", "ecmp"])),
        "conditions.sampler": str(rng.choice(["uniform", "markov", "ar1"])),
        "conditions.wan_delay": str(rng.choice(["10 us", "1 ms", "10 ms"])),
        "collective.kind": str(rng.choice(["allgather", "alltoall"])),
        "collective.chunk": str(rng.choice(["100 kB", "8 MB"])),
        "collective.reembed_every": int(rng.integers(1, 6)),
        "control.counted": bool(rng.random() < 0.7),
        "run.seed": int(rng.integers(2**32)),
        "policy": [
            {"name": "late", "reroute": "every 2", "reembed": "every 3", "knowledge": f"stale {rng.integers(4)}"},
            {"name": "worth", "reroute": "gain 0.05", "reembed": "gain 0.1"},
            {"name": "mean", "reroute": "drift 0.3", "reembed": "every", "knowledge": "mean"},
        ],
    }
    keys["fabric.gpus"] = keys["fabric.gpus"][0] if len(keys["fabric.gpus"]) == 1 else keys["fabric.gpus"]
    (found,) = scenario(**keys).configurations()
    return found


@pytest.mark.parametrize("scenarios", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_no_mode_or_policy_beats_the_offline_optimum_on_random_scenarios(scenarios: int) -> None:
    rng, count, is_better = np.random.default_rng(7), 8, 0
    for _ in range(scenarios):
        setting = some_scenario(rng)
        found = totals(setting, count)
        assert set(found.modes_s) == {"base", "ccl", "wan", "joint", "late", "worth", "mean"}
        assert found.optimum_s <= min(found.modes_s.values()) * (1 + 1e-12), setting
        conditions = conditions_of(setting)
        bound_s = lower_bound(setting, conditions)(0, conditions.drawn.rates_bps(0, count)).sum()
        assert bound_s <= found.optimum_s * (1 + 1e-9)
        is_better += found.gap > 0.01
    assert is_better > scenarios / 10


def test_the_last_line_after_the_table_has_the_totals_and_the_best_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--collectives", "4", "--seconds", "0", *FOUR, "--set", "control.counted=true"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.search(
        r"4 GPUs, .* total of 4, with the cost of changes: base [0-9.]+, .*; the best of \d+ candidates, .* above it$",
        last,
    )


@pytest.mark.optimum
@pytest.mark.parametrize("kind", ["allgather", "broadcast", "alltoall", "scatter", "gather"])
@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_the_best_schedule_of_four_gpus_is_proven_and_between_the_bound_and_the_modes(
    kind: str, grain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("--set", f"collective.kind={kind}", "--set", f"fabric.grain={grain}")
    for line in lines(capsys, "--collectives", "2", *FOUR, *keys):
        assert line["proven"]
        assert line["bound_s"] <= line["schedule_bound_s"] <= line["schedule_s"]
        if (kind, grain) == ("allgather", "logical"):
            assert line["schedule_s"] <= line["ring_s"] <= min(line["modes_s"].values()) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--collectives", "0"], "--collectives: 0; allowed: 1 to 1,000"),
        (["--seconds", "-1"], "--seconds: -1.0; allowed: 0"),
        (["tenants"], "tenants has jobs, faults, messages, training or a trace"),
        (["--set", "fabric.gpu=8"], "did you mean gpus?"),
    ],
)
def test_invalid_arguments_are_refused_in_one_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(main, capsys, arguments, says)


def test_the_figures_data_has_the_mean_times_of_the_table_and_their_ratios_to_the_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(capsys, "--collectives", "4", "--seconds", "0", *FOUR, "--figure", str(tmp_path / "best"))
    with (tmp_path / "best.csv").open() as file:
        drawn = {row["what"]: row for row in csv.DictReader(file)}
    means = {mode: np.mean([line["modes_s"][mode] for line in found]) for mode in found[0]["modes_s"]}
    means["fastest ring"] = np.mean([line["ring_s"] for line in found])
    bound_s = np.mean([line["bound_s"] for line in found])
    for what, seconds in means.items():
        assert float(drawn[what]["mean_s"]) == pytest.approx(seconds)
        assert float(drawn[what]["over_bound"]) == pytest.approx(seconds / bound_s)
    assert 1 <= float(drawn["best known beforehand"]["over_bound"]) <= float(drawn["joint"]["over_bound"])
    assert "best known beforehand" in (tmp_path / "best.svg").read_text()
    assert main(["--figure", str(tmp_path / "none" / "best")]) == 2
    assert "there is no folder" in capsys.readouterr().err


BESIDE = """
[fabric]
gpus = 4
[collective]
count = {count}
emulated = 2
[control]
counted = true
[run]
modes = ["base", "joint"]
referees = ["ring", "policy"]
"""


@pytest.mark.parametrize(("engine", "count"), [("model", 12), ("emulation", 2)])
def test_a_run_stores_the_best_ring_and_policy_with_every_time_and_draws_them(
    tmp_path: Path, engine: str, count: int
) -> None:
    (tmp_path / "beside.toml").write_text(BESIDE.format(count=count))
    said, _ = ended("beside.toml", "--engine", engine, "--json", "--out", "run", cwd=tmp_path)
    found, points = rows(tmp_path / "run"), json.loads(said)["points"]
    (setting,) = load_scenario(str(tmp_path / "run" / "scenario.toml"), []).configurations()
    best = totals(setting, count)
    for point, (mode, here) in zip(points, found.groupby("mode"), strict=True):
        assert here.best_policy_s.sum() == pytest.approx(best.optimum_s, rel=1e-12)
        assert here.predicted_s.sum() == pytest.approx(best.modes_s[mode], rel=1e-12)
        assert here.best_policy_s.sum() <= here.predicted_s.sum() * (1 + 1e-12)
        assert (here.bound_s <= here.best_ring_bound_s * (1 + 1e-12)).all()
        assert (here.best_ring_bound_s == here.best_ring_s).all()
        assert (here.best_ring_s <= here.predicted_s).all()
        for name in ("best_ring_s", "best_ring_bound_s", "best_policy_s"):
            assert point[f"mean_{name}"] == pytest.approx(here[name].mean())
    with (tmp_path / "run" / "figures" / "beside-referees.csv").open() as file:
        drawn = {row["what"]: float(row["mean_s"]) for row in csv.DictReader(file)}
    assert drawn["fastest ring"] == pytest.approx(points[0]["mean_best_ring_s"])
    assert drawn["joint"] == pytest.approx(points[1]["mean_s"])


@pytest.mark.optimum
def test_a_run_stores_the_same_best_schedule_with_every_time_in_both_engines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BESIDE.replace('["ring", "policy"]', '["schedule"]\nsearch = 0.5').format(count=2)
    (tmp_path / "beside.toml").write_text(text)
    said, words = ended("beside.toml", "--json", "--out", "run", cwd=tmp_path)
    assert "searching for up to 2 best schedules per configuration and engine, each with run.search = 0.5" in words
    found = rows(tmp_path / "run")
    wanted = lines(capsys, "--collectives", "2", *FOUR)
    assert len(found) == 8
    for _, here in found.groupby(["engine", "mode"]):
        assert here.best_schedule_s.tolist() == [line["schedule_s"] for line in wanted]
        assert here.best_schedule_bound_s.tolist() == [line["schedule_bound_s"] for line in wanted]
        assert (here.bound_s <= here.best_schedule_bound_s).all()
    assert (found.best_schedule_s <= found.predicted_s).all() and found.best_ring_s.isna().all()
    (mean_s,) = {point["mean_best_schedule_s"] for point in json.loads(said)["points"]}
    assert mean_s == pytest.approx(np.mean([line["schedule_s"] for line in wanted]))
    assert "best schedule" in (tmp_path / "run" / "figures" / "beside-referees.csv").read_text()


def test_a_best_schedule_without_or_tools_is_refused_before_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    asked = ["--engine", "model", "--collectives", "3", "--set", 'run.referees=["schedule"]']
    assert command.run(asked) == 2
    assert "schedule needs OR-Tools: .venv/bin/pip install 'longhaul[optimum]'" in capsys.readouterr().err


def test_without_requested_referees_a_run_has_no_best_times_and_no_referee_figure(tmp_path: Path) -> None:
    said, _ = ended("--engine", "model", "--collectives", "3", "--json", "--out", "run", cwd=tmp_path)
    assert rows(tmp_path / "run").best_ring_s.isna().all()
    assert not any("best" in name for name in json.loads(said)["points"][0])
    assert not list((tmp_path / "run" / "figures").glob("*referees*"))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"collective.count": 301}, "the best policy of 301 collectives; allowed: collective.count up to 300"),
        (
            {"collective.count": 301, "run.referees": ["schedule"]},
            "the best schedule of 301 collectives; allowed: collective.count up to 300",
        ),
        ({"collective.count": 9, "run.search": 0}, "0 is too small"),
    ],
)
def test_referees_for_unsupported_workloads_or_too_many_collectives_are_refused(
    keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(ScenarioError, match=says):
        scenario(**({"run.referees": ["policy"]} | keys))


def test_a_referee_that_applies_to_no_configuration_is_refused() -> None:
    for keys in ({"collective.kind": "alltoall"}, {"collective.channels": 2}, {"fabric.routing": "te"}):
        with pytest.raises(ScenarioError, match="no best ring is known here; allowed: policy, or whole blocks"):
            scenario(**{"run.referees": ["ring"], **keys})
    kept = {"run.referees": ["schedule"], "collective.count": 9}
    for keys in (
        {"collective.kind": "allreduce"},
        {"collective.channels": 2},
        {"collective.pieces": 2},
        {"fabric.routing": "spray"},
        {"fabric.grain": "physical", "fabric.routing": "ecmp"},
        {"fabric.gpus": 18},
        {"conditions.every": "10 ms"},
    ):
        with pytest.raises(ScenarioError, match="no best schedule is known here; allowed: ring, policy, or whole"):
            scenario(**kept, **keys)
    swept = {"run.referees": ["ring"], "sweep.collective.algorithm": ["bruck", "ring"]}
    assert [one.has_best_ring for one in scenario(**swept).configurations()] == [False, True]
