"""Runs inside the VM: small experiments during which something is measured or killed.

`testbed.py SCENARIO MODE ACTION...` prints one JSON object with the result of each ACTION. `bytes`: for each
collective, the WAN ports that carried more than one megabyte, and the links of the paths in use. `controller`, `agent`
and `switch` kill that part before the third collective; the result has the collectives' numbers and the outcomes of
the faults.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil

from analysis.statistics.fault_outcomes import fault_outcomes
from scenarios.policies.policy import MODES
from scenarios.spec.load import load_scenario
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.recovery import Recovery
from scenarios.testbed.testbed import CollectiveRecord, Event, Testbed

COUNT = 4


def sent_bytes() -> dict[str, int]:
    """Return the bytes that every interface has sent so far, by the kernel's counters."""
    shown = subprocess.run(["ip", "-j", "-s", "link"], check=True, capture_output=True, text=True).stdout
    return {interface["ifname"]: interface["stats64"]["tx"]["bytes"] for interface in json.loads(shown)}


def wan_ports(testbed: Testbed) -> dict[str, str]:
    """Return the WAN link of each port of a border or transit router, by interface."""
    routers = {switch.name for switch in testbed.fabric.switches if switch.kind in ("border", "transit")}
    ports = {}
    for cable in testbed.fabric.cables:
        if cable.a in routers and cable.b in routers:
            ports[f"{cable.a}-eth{cable.a_port}"] = f"{cable.a}>{cable.b}"
            ports[f"{cable.b}-eth{cable.b_port}"] = f"{cable.b}>{cable.a}"
    return ports


def watch(testbed: Testbed, mode: str) -> Iterator[Any]:
    ports = wan_ports(testbed)
    before = sent_bytes()
    for row in PointRun(testbed, MODES[mode]).records(count=COUNT):
        after = sent_bytes()
        busy = {link: after[port] - before.get(port, 0) for port, link in ports.items()}
        paths = [testbed.fabric.paths[index] for index in row.path if index >= 0]
        chosen = sorted(testbed.fabric.links[link].name for path in paths for link in path.links)
        yield {"busy": {k: v for k, v in busy.items() if v > 1_000_000}, "chosen": chosen}
        before = after


def kill(testbed: Testbed, mode: str, victim: str) -> Iterator[Any]:
    events: list[Event] = []
    for row in Recovery(PointRun(testbed, MODES[mode])).records(count=COUNT):
        if not isinstance(row, CollectiveRecord):
            events.append(row)
            if row["event"] == "ended":
                for fault in fault_outcomes(events):
                    yield f"{fault['what']}: {fault['outcome']}, {fault['collectives_lost']} lost"
            continue
        yield row.collective
        if row.collective != 1:
            continue
        if victim == "switch":
            subprocess.run(["ovs-vsctl", "del-br", "s0b0"], check=True)
            continue
        name = {"controller": "controller", "agent": "hosts.agent.launcher"}[victim]
        found = [one.pid for one in psutil.process_iter(["cmdline"]) if name in (one.info["cmdline"] or [])]
        os.kill(max(found), signal.SIGKILL)


def main(scenario: str, mode: str, *actions: str) -> None:
    seen = {}
    for action in actions:
        with Testbed(load_scenario(scenario)) as testbed:
            seen[action] = list(watch(testbed, mode) if action == "bytes" else kill(testbed, mode, action))
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
