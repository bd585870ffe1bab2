"""Attacks on a running experiment: strangers contact the agents' listeners, the controller and its ports."""

import json
import re
import sys

from tests.conftest import PROJECT, VM


def test_an_experiment_continues_unharmed_under_attacks_on_agents_and_controller(vm: VM) -> None:
    scenario = str(PROJECT / "scenarios" / "paper.toml")
    environment = {"SETUPTOOLS_USE_DISTUTILS": "stdlib"}
    command = [sys.executable, "-m", "tests.guest.hostile", scenario]
    ended = vm.run("--memory", "3 GiB", "--", *command, timeout=500, cwd=PROJECT, env=environment)
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    assert found["modes"] == {"folder": "0o700", "controller.sock": "0o600"}
    assert found["listening"] == ["127.0.0.1:6653"]
    assert found["reached"] == [[], []]  # no address of the control plane answers a GPU
    assert found["agent"] == {"garbage": [0], "silence": [0], "short": [0], "token": [0], "flood": [0] * 5}
    refused = '{"ok":false,"error":"the run\'s token is missing or wrong"}\n'
    assert found["controller"][:2] == [refused, refused]
    assert found["controller"][2].count("\n") <= 100
    assert len(found["times"]) == 5 and all(0.001 < time < 0.1 for time in found["times"])
    assert "Traceback" not in ended.err
    lines = ended.err.splitlines()
    assert len(lines) < 60 and all(re.match(r"GPU \d: refused |controller: ", line) for line in lines), ended.err
