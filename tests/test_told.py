"""What is told of points that failed, and of collectives that a fault struck."""

import csv
import json
import time
from pathlib import Path

from scenarios.point import EmulationError, Reader
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

    def run_point(self, task, put, on_start=None):
        reader = Reader(task, put)
        for k in range(task.setting.collective.count):
            n, expected = task.setting.gpus, reader._expected.of(k)
            row = {"collective": k, "completion_s": expected.predicted_s * (1 + (k == 1)), "undisturbed": k != 1}
            row |= {"ring": expected.ring.tolist(), "path": expected.path.tolist(), "drops": 0}
            row |= {"reembedded": False, "rerouted": False}
            row |= {"start_ns": [0] * n, "arrived_ns": [[10 * step for step in range(1, n)]] * n}
            reader.write((json.dumps(row) + "\n").encode())


def test_a_certificate_is_of_what_no_fault_struck_and_is_told_again_the_same(bench, capsys):
    bench(Struck())
    run("--engine", "emulation", "--modes", "base,joint", "--collectives", "5", "--json", "--out", "run")
    first = json.loads(capsys.readouterr().out)
    assert first["fidelity"] == {"collectives": 8, "median_ratio": 1.0, "p99_abs_error": 0.0, "drops": 0}
    with (Path("run") / "figures" / "paper-certificate.csv").open() as file:
        assert sorted({row["collective"] for row in csv.DictReader(file)}) == ["0", "2", "3", "4"]
    run("--resume", "run", "--json")
    assert json.loads(capsys.readouterr().out) == first
