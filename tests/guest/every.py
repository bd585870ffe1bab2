"""Runs inside the VM: every collective by every algorithm on one testbed, in mode base, as JSON.

For each, by "KIND ALGORITHM": when every transfer had arrived, the measured and the predicted completion time, the
packets lost, and whether flows can share a link. Links are shared fairly where they can be: those collectives have a
testbed of their own.
"""

import json
import sys
from dataclasses import replace
from typing import Any

from hosts.collectives.kinds import ALGORITHMS
from scenarios.engines.prediction import Expectations
from scenarios.policies.policy import MODES
from scenarios.spec.load import load_scenario
from scenarios.spec.scenario import Scenario
from scenarios.testbed.testbed import Testbed


def measured(settings: dict[str, Scenario]) -> dict[str, Any]:
    """What the first collective of each of these settings was, one after the other on one testbed."""
    found = {}
    links = {link for setting in settings.values() for link in setting.fair_links("base") or ()}
    with Testbed(next(iter(settings.values())), fair_links=sorted(links) or None) as testbed:
        for name, setting in settings.items():
            testbed.renew(setting.collective)
            record = testbed.collective(MODES["base"], 0)
            found[name] = {
                "arrived_ns": record.arrived_ns,
                "measured_s": record.completion_s,
                "predicted_s": Expectations(setting, "base").of(0).predicted_s,
                "drops": record.drops,
                "shared": bool(links),
            }
    return found


def main() -> None:
    plain = replace(load_scenario("paper"), name="every")
    plain = replace(plain, collective=replace(plain.collective, count=1, chunk_bytes=1_000_000))
    settings = {
        f"{kind} {algorithm}": replace(plain, collective=replace(plain.collective, kind=kind, algorithm=algorithm))
        for kind, algorithms in ALGORITHMS.items()
        for algorithm in algorithms
    }
    found = {}
    for shares in (False, True):
        found |= measured({name: one for name, one in settings.items() if bool(one.fair_links("base")) == shares})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
