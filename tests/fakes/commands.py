"""Runs the command in this process, with its results, and with fake testbeds that need no VM."""

import json
import re

import numpy as np
import pytest

from scenarios.engines import emulation, preflight
from scenarios.engines.emulation import EmulationError, Reader
from scenarios.engines.prediction import PointPredictor
from scenarios.experiment import command
from scenarios.spec.load import Override, assignment, load_scenario


def run(*arguments, status=0):
    """Run the command in this process, where its parts can be replaced."""
    found = command.run([str(argument) for argument in arguments])
    assert found == status, f"status {found}, not {status}"


def printed(main, capsys, *arguments):
    """Return the JSON that a command prints with --json."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def assert_refused(main, capsys, arguments, says):
    """Assert that the command prints one line on stderr, which contains `says`, and does nothing else.

    On a busy machine lines of progress may come before it.
    """
    assert main([*arguments]) == 2
    told = capsys.readouterr()
    sentences = [line for line in told.err.splitlines() if not re.search(r", \d+ s so far$", line)]
    assert len(sentences) == 1 and says in sentences[0], told.err
    assert told.out == "" and told.err.endswith("\n")


def scenario(*texts, **values):
    """Return the scenario "paper" with other values: "table.key=value", as for --set, or table__key=value."""
    found = [Override(key.replace("__", "."), value, key) for key, value in values.items()]
    return load_scenario("paper", [*map(assignment, texts), *found])


def times(settings, model):
    """Return the model's completion times by (setting, mode)."""
    found = {}
    for part in model.run(settings):
        found.setdefault((part.setting, part.mode), {})[part.rows.start] = part.rows.completion_s
    return {key: np.concatenate([parts[start] for start in sorted(parts)]) for key, parts in found.items()}


class FakeTestbeds:
    """Replaces the VMs: collectives take the predicted time, and `changes` are made to their records.

    Points of the modes in `failing` fail `times` times after two collectives. `tries` are the points that were started,
    as (place, mode).
    """

    def __init__(self, failing=(), times=2, error=EmulationError, changes=lambda row, mode: {}):
        self.failing, self.times, self.error, self.changes = failing, times, error, changes
        self.tries = []

    def run_point(self, task, put, on_start=None):
        self.tries.append((task.index, task.mode))
        reader, expected = Reader(task, put), PointPredictor(task.config, task.mode)
        for k in range(task.config.collective.count):
            if task.mode in self.failing and self.tries.count((task.index, task.mode)) <= self.times and k == 2:
                raise self.error(f"{task.name}, after 2 collectives: the switch fell over")
            found = row(expected.of(k), k)
            reader.write((json.dumps(found | self.changes(found, task.mode)) + "\n").encode())


def row(expected, k, faults=()):
    """Return the record that a testbed prints of collective k if everything is as predicted."""
    n = len(expected.placement)
    return {
        "collective": k,
        "completion_s": expected.predicted_s,
        "placement": expected.placement.tolist(),
        "path": expected.path.tolist(),
        "drops": 0,
        "reembedded": False,
        "rerouted": False,
        "start_ns": [0] * n,
        "sent_ns": [10 * step - 10 for step in range(1, n) for _ in range(n)],
        "arrived_ns": [10 * step for step in range(1, n) for _ in range(n)],
        "faults": list(faults),
    }


@pytest.fixture
def testbeds(monkeypatch, tmp_path):
    """A function that replaces the VMs by FakeTestbeds; runs go to a temporary folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight.vm, "check", lambda **_: None)
    monkeypatch.setattr(preflight.vm, "run", lambda *_, **__: 0)  # the boot before the first point

    def put(testbeds):
        monkeypatch.setattr(emulation, "run_point", testbeds.run_point)
        return testbeds

    return put
