"""Runs inside the VM: one experiment of ten collectives during which bytes are counted and parts are killed.

`testbed.py SCENARIO MODE` prints one JSON object. `bytes`: for each of the first four collectives, the WAN ports that
carried more than one megabyte, and the links of the paths in use. `collectives`: the numbers of those that completed.
`outcomes`: those of the faults. The controller is killed after collective 3, an agent after 5, a switch after 7.
"""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import psutil

from analysis.statistics.fault_outcomes import fault_outcomes
from scenarios.policies.policy import MODES
from scenarios.spec.load import load_scenario
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.record import CollectiveRecord
from scenarios.testbed.recovery import Recovery
from scenarios.testbed.testbed import Event, Testbed

COUNT, WATCHED = 10, 4
VICTIMS = {3: "controller", 5: "hosts.agent.launcher"}
"""The modules of which a process is killed, by the collective before."""
SWITCH_AFTER = 7


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


def main(scenario: str, mode: str) -> None:
    watched: list[dict[str, Any]] = []
    completed: list[int] = []
    events: list[Event] = []
    with Testbed(load_scenario(scenario)) as testbed:
        ports, before = wan_ports(testbed), sent_bytes()
        for row in Recovery(PointRun(testbed, MODES[mode])).records(range(COUNT)):
            if not isinstance(row, CollectiveRecord):
                events.append(row)
                continue
            completed.append(row.collective)
            if row.collective < WATCHED:
                after = sent_bytes()
                busy = {link: after[port] - before.get(port, 0) for port, link in ports.items()}
                paths = [testbed.fabric.paths[index] for index in row.path if index >= 0]
                chosen = sorted(testbed.fabric.links[link].name for path in paths for link in path.links)
                watched.append({"busy": {k: v for k, v in busy.items() if v > 1_000_000}, "chosen": chosen})
                before = after
            if victim := VICTIMS.get(row.collective):
                found = [one.pid for one in psutil.process_iter(["cmdline"]) if victim in (one.info["cmdline"] or [])]
                os.kill(max(found), signal.SIGKILL)
            elif row.collective == SWITCH_AFTER:
                subprocess.run(["ovs-vsctl", "del-br", "s0b0"], check=True)
    outcomes = [f"{one['what']}: {one['outcome']}, {one['collectives_lost']} lost" for one in fault_outcomes(events)]
    print(json.dumps({"bytes": watched, "collectives": completed, "outcomes": outcomes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
