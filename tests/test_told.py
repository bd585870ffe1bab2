"""What is told of points that failed, and of collectives that a fault struck."""

import csv
import json
import time
from pathlib import Path

from scenarios.engines.point import EmulationError, Reader
from tests.test_sweep import run
from tests.test_tries import Bench, bench  # noqa: F401


class Slow(Bench):
    """Its first point takes longer to fail than its last."""

    def run_point(self, task, put, on_start=None):
        if task.place == 0:
            time.sleep(0.5)
        raise EmulationError(f"{task.name}: the switch fell over")


def test_points_that_failed_are_told_in_the_runs_order_whichever_gave_up_first(bench, capsys):
    bench(Slow())
    run("--engine", "emulation", "--modes", "wan", "--collectives", "5", "--seed", "1,2", "--jobs", "2", "--out", "run",
        status=1)  # fmt: skip
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("run.py: failed: ")]
    assert ["seed 1" in line for line in told] == [True, False]


class Struck(Bench):
    """Of every point's collectives the second was struck by a fault, and took twice as long."""

    def went(self, k):
        """How many times as long as predicted collective k took, and whether no fault struck it."""
        return 1 + (k == 1), k != 1

    def run_point(self, task, put, on_start=None):
        reader = Reader(task, put)
        for k in range(task.setting.collective.count):
            n, expected = task.setting.gpus, reader._expected.of(k)
            times, undisturbed = self.went(k)
            row = {"collective": k, "completion_s": expected.predicted_s * times, "undisturbed": undisturbed}
            row |= {"ring": expected.ring.tolist(), "path": expected.path.tolist(), "drops": 0}
            row |= {"reembedded": False, "rerouted": False}
            row |= {"start_ns": [0] * n, "arrived_ns": [[10 * step for step in range(1, n)]] * n}
            reader.write((json.dumps(row) + "\n").encode())


def test_a_certificate_is_of_what_no_fault_struck_and_is_told_again_the_same(bench, capsys):
    bench(Struck())
    run("--engine", "emulation", "--modes", "base,joint", "--collectives", "5", "--json", "--out", "run")
    first = json.loads(capsys.readouterr().out)
    numbers = {"collectives": 8, "median_ratio": 1.0, "p99_abs_error": 0.0, "drops": 0}
    assert first["fidelity"] == numbers | {"holds": True, "warnings": []}
    with (Path("run") / "figures" / "paper-fidelity.csv").open() as file:
        assert sorted({row["collective"] for row in csv.DictReader(file)}) == ["0", "2", "3", "4"]
    run("--resume", "run", "--json")
    assert json.loads(capsys.readouterr().out) == first


class Far(Struck):
    """Every fourth collective takes a fifth longer than the model says."""

    def went(self, k):
        return 1.2 if k % 4 == 3 else 1.0, True


def test_a_model_that_does_not_hold_is_warned_of_on_the_terminal_and_in_json(bench, capsys):
    bench(Far())
    run("--engine", "emulation", "--modes", "base", "--collectives", "8", "--out", "run")
    assert "WARNING: measured times differ" in capsys.readouterr().out
    run("--resume", "run", "--json")
    told = capsys.readouterr()
    fidelity = json.loads(told.out)["fidelity"]
    assert (fidelity["holds"], fidelity["median_ratio"], len(fidelity["warnings"])) == (False, 1.0, 1)
    assert f"WARNING: {fidelity['warnings'][0]}" in told.err
