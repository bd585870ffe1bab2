"""Runs inside the VM: `routing.py SCENARIO...` prints a JSON list with the bytes that every switch port sent in the
second collective of each scenario's only mode, {"s0l0>s0p1": bytes}."""

import json
import sys

from scenarios.policies.policy import MODES
from scenarios.spec.load import load_scenario
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.testbed import Testbed
from tests.guest.testbed import sent_bytes


def sent_in_a_collective(scenario: str) -> dict[str, int]:
    setting = load_scenario(scenario)
    (mode,) = setting.run.modes
    with Testbed(setting, fair_links=setting.fair_links(mode)) as testbed:
        rows = PointRun(testbed, MODES[mode]).records(range(2))
        next(rows)
        before = sent_bytes()
        next(rows)
        after = sent_bytes()
        ports = {port.interface: f"{s.name}>{port.peer}" for s in testbed.fabric.switches for port in s.ports}
    return {name: after[interface] - before[interface] for interface, name in ports.items()}


if __name__ == "__main__":
    print(json.dumps([sent_in_a_collective(one) for one in sys.argv[1:]]))
