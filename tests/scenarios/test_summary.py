"""The results that a run prints and stores: fidelity, lower bound, reconfiguration, and points that failed."""

import csv
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.results import load
from scenarios.engines import emulation
from scenarios.engines.emulation import EmulationError, Reader
from scenarios.engines.model import Model
from scenarios.engines.prediction import Expectations
from scenarios.experiment import command
from scenarios.spec.load import load_scenario


@pytest.fixture
def emulate(monkeypatch, tmp_path):
    """Run the command with a function in place of the VM: of a mode and a collective it returns how many times as long
    as predicted that takes, and more values of the collective's record."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(emulation.vm, "check", lambda **_: None)
    monkeypatch.setattr(emulation.vm, "run", lambda *_, **__: 0)  # the boot before the first point

    def run(measured, *arguments, status=0):
        def run_point(task, put, on_start=None):
            reader, expectations = Reader(task, put), Expectations(task.setting, task.mode)
            for k in range(task.setting.collective.count):
                n, expected = task.setting.gpus, expectations.of(k)
                times, more = measured(task, k)
                row = {"collective": k, "completion_s": expected.predicted_s * times, "drops": 0, **more}
                row |= {"ring": expected.ring.tolist(), "path": expected.path.tolist()}
                row |= {"reembedded": False, "rerouted": False}
                row |= {"start_ns": [0] * n, "arrived_ns": [[10 * step for step in range(1, n)]] * n}
                reader.write((json.dumps(row) + "\n").encode())

        monkeypatch.setattr(emulation, "run_point", run_point)
        assert command.run(["--engine", "emulation", *arguments, "--out", "run"]) == status

    return run


def test_points_that_failed_are_named_in_the_runs_order_whichever_gave_up_first(emulate, capsys):
    def failing(task, k):
        if k < 2:
            return 1.0, {}
        time.sleep(0.5 if task.place == 0 else 0)
        raise EmulationError(f"{task.name}: the switch fell over")

    emulate(failing, "--modes", "wan", "--seed", "1,2", "--jobs", "2", status=1)
    failed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("run.py: failed: ")]
    assert ["seed 1" in line for line in failed] == [True, False]
    assert load("run").groupby("setting").collective.apply(list).to_dict() == {0: [0, 1], 1: [0, 1]}
    assert len(pd.read_parquet("run/collectives.parquet")) == 4


def test_fidelity_is_of_collectives_without_faults_and_the_same_when_printed_again(emulate, capsys):
    struck = lambda _, k: (1 + (k == 1), {"undisturbed": k != 1})  # noqa: E731
    emulate(struck, "--modes", "base,joint", "--collectives", "5", "--json")
    first = json.loads(capsys.readouterr().out)
    numbers = {"collectives": 8, "median_ratio": 1.0, "p99_abs_error": 0.0, "drops": 0}
    assert first["fidelity"] == numbers | {"holds": True, "warnings": []}
    with (Path("run") / "figures" / "paper-fidelity.csv").open() as file:
        assert sorted({row["collective"] for row in csv.DictReader(file)}) == ["0", "2", "3", "4"]
    assert command.run(["--resume", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_a_model_that_does_not_hold_is_warned_of_on_the_terminal_and_in_json(emulate, capsys):
    emulate(lambda _, k: (1.2 if k % 4 == 3 else 1.0, {}), "--modes", "base", "--collectives", "8")
    assert "WARNING: measured times differ" in capsys.readouterr().out
    assert command.run(["--resume", "run", "--json"]) == 0
    printed = capsys.readouterr()
    fidelity = json.loads(printed.out)["fidelity"]
    assert (fidelity["holds"], fidelity["median_ratio"], len(fidelity["warnings"])) == (False, 1.0, 1)
    assert f"WARNING: {fidelity['warnings'][0]}" in printed.err


def test_the_cost_of_reconfiguration_is_stored_and_its_mean_is_shown_where_routes_were_changed(emulate, capsys):
    def measured(task, k):
        changed = task.mode == "wan" and k > 0
        return 1.0, {"reconfigure_s": k / 1000 if changed else None, "reconfigure_messages": 12 * changed}

    emulate(measured, "--modes", "base,wan", "--collectives", "3")
    (heading, base, wan) = capsys.readouterr().out.splitlines()[:3]
    assert heading.endswith("reconfiguration (ms)") and wan.endswith(" 1.500") and not base.endswith(" 1.500")
    rows = load("run")
    wan = rows[rows["mode"] == "wan"]
    assert wan.reconfigure_s.fillna(-1).to_list() == [-1, 0.001, 0.002]
    assert wan.reconfigure_messages.to_list() == [0, 12, 12] and rows.reconfigure_s.notna().sum() == 2
    with Path("run/summary.csv").open() as file:
        assert [row["mean_reconfigure_s"] for row in csv.DictReader(file)] == ["", "0.0015"]


def test_the_lower_bound_is_that_of_the_conditions_in_either_engine_and_any_batch(emulate, capsys):
    emulate(lambda *_: (1.0, {}), "--modes", "base,joint", "--collectives", "12", "--json")
    points = json.loads(capsys.readouterr().out)["points"]
    rows = load("run")
    bounds = [rows[rows["mode"] == mode].bound_s.to_numpy() for mode in ("base", "joint")]
    assert np.array_equal(*bounds) and len(set(bounds[0])) == 12
    assert [point["mean_bound_s"] for point in points] == pytest.approx([bounds[0].mean()] * 2)
    assert all(point["mean_bound_s"] < point["mean_s"] for point in points)
    for batch in (5, 5000):
        for part in Model(batch=batch).run(load_scenario("paper").settings()):
            found = part.rows.bound_s[: max(0, 12 - part.rows.start)]
            assert found == pytest.approx(bounds[0][part.rows.start :][: len(found)], rel=1e-12)
            if part.rows.stop >= 12:
                break
