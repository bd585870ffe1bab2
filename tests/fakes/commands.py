"""The command in this process, its results, and testbeds that need no VM."""

import json

import numpy as np
import pytest

from scenarios.engines import emulation, host_capacity
from scenarios.engines.emulation import EmulationError, Reader
from scenarios.engines.prediction import Expectations
from scenarios.experiment import command
from scenarios.spec.load import Override, assignment, load_scenario


def run(*arguments, status=0):
    """Run the command in this process, where its parts can be replaced."""
    found = command.run([str(argument) for argument in arguments])
    assert found == status, f"status {found}, not {status}"


def printed(main, capsys, *arguments):
    """The JSON that a command prints when it is asked for it."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def assert_refused(main, capsys, arguments, says):
    """The command says what is wrong in one line, and does nothing else."""
    assert main([*arguments]) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert (told.err.count("\n"), told.out) == (1, "")


def scenario(*texts, **values):
    """The paper's scenario with other values: "table.key=value", as after --set, or table__key=value."""
    found = [Override(key.replace("__", "."), value, key) for key, value in values.items()]
    return load_scenario("paper", [*map(assignment, texts), *found])


def times(settings, model):
    """Completion times by (setting, mode)."""
    found = {}
    for part in model.run(settings):
        found.setdefault((part.setting, part.mode), {})[part.rows.start] = part.rows.completion_s
    return {key: np.concatenate([parts[start] for start in sorted(parts)]) for key, parts in found.items()}


class FakeTestbeds:
    """Takes the place of the VMs: collectives take what the model predicts, with `changes` made to their records.

    Points of the modes in `failing` fail `times` times after two collectives. `tries` are the points that were begun,
    as (place, mode).
    """

    def __init__(self, failing=(), times=2, error=EmulationError, changes=lambda row, mode: {}):
        self.failing, self.times, self.error, self.changes = failing, times, error, changes
        self.tries = []

    def run_point(self, task, put, on_start=None):
        self.tries.append((task.index, task.mode))
        reader, expected = Reader(task, put), Expectations(task.setting, task.mode)
        for k in range(task.setting.collective.count):
            if task.mode in self.failing and self.tries.count((task.index, task.mode)) <= self.times and k == 2:
                raise self.error(f"{task.name}, after 2 collectives: the switch fell over")
            found = row(expected.of(k), k)
            reader.write((json.dumps(found | self.changes(found, task.mode)) + "\n").encode())


def row(expected, k, faults=()):
    """What a testbed prints of collective k where everything is as expected."""
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
    """A function that puts FakeTestbeds in the place of the VMs; runs are in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(host_capacity.vm, "check", lambda **_: None)
    monkeypatch.setattr(host_capacity.vm, "run", lambda *_, **__: 0)  # the boot before the first point

    def put(testbeds):
        monkeypatch.setattr(emulation, "run_point", testbeds.run_point)
        return testbeds

    return put
