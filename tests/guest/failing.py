"""Runs inside the VM: one transfer over and over, with a WAN link that fails at another instant of each second round.

`failing.py DELAY WAN LINK INSTANTS` prints a JSON object: `recovery_s`, the least recovery that is allowed with WAN
links of this delay on this WAN; `due_s`; `there_s`, when the transfer completed without a failure; and `struck_s`, when
it did with a failure at each of the instants, which are in ms before the last message is handed over.
"""

import json
import sys
from dataclasses import replace

from scenarios.policies.policy import MODES
from scenarios.spec.admission import least_recovery_s
from scenarios.spec.faults import Fault
from scenarios.spec.load import scenario_of
from scenarios.spec.scenario import Scenario
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.record import CollectiveRecord
from scenarios.testbed.recovery import Recovery
from scenarios.testbed.testbed import Testbed

HEAD = """
[fabric]
routing = "spray"
gpus = 4
wan = "{wan}"
[conditions]
wan_rate = "1 Gbit/s"
intra_rate = "20 Gbit/s"
wan_delay = "{delay}"
[collective]
count = 1
emulated = 1
[run]
modes = ["base"]
[admission]
protect = "link"
recovery = "{recovery_s} s"
[[job]]
kind = "transfer"
name = "copy"
ranks = [0, 2]
size = "30 MB"
deadline = "{deadline_s} s"
"""


def setting(delay: str, wan: str, recovery_s: float) -> Scenario:
    """Return the scenario with this recovery; its transfer has to be complete half a second before that begins."""
    words = HEAD.format(delay=delay, wan=wan, recovery_s=recovery_s, deadline_s=recovery_s + 0.5)
    (found,) = scenario_of(words).configurations()
    return found


def least_s(delay: str, wan: str) -> float:
    """Return the least recovery that is allowed."""
    found = setting(delay, wan, 100.0)
    assert found.admission_plan is not None
    return least_recovery_s(found.admission_plan, found.jobs[0], found.transport)


def main(delay: str, wan: str, link: str, instants: str) -> None:
    found = setting(delay, wan, recovery_s := round(least_s(delay, wan) + 1e-6, 6))
    (copy,) = found.transfers
    assert copy.workload is not None
    sent_s = sum(wait.size for wait in copy.workload.schedule.transfers[::2])  # each message follows a wait
    at_s = [sent_s - float(before_ms) / 1e3 for before_ms in instants.split(",")]
    faults = tuple(
        Fault(collective=2 * number + 1, kind="link down", target=link, after_s=after_s, lasts=1)
        for number, after_s in enumerate(at_s)
    )
    struck = replace(found, faults=faults, collective=replace(found.collective, count=2 * len(faults) + 1))
    (span,) = found.workload.jobs
    there_s = []
    with Testbed(struck, fair_links=struck.fair_links("base")) as testbed:
        for record in Recovery(PointRun(testbed, MODES["base"])).records(range(struck.collective.count)):
            if isinstance(record, CollectiveRecord):
                there_s.append(max(record.arrived_ns[span.transfers.start : span.transfers.stop]) / 1e9)
    shown = {"recovery_s": recovery_s, "due_s": copy.due_s, "there_s": there_s[::2], "struck_s": there_s[1::2]}
    print(json.dumps(shown))


if __name__ == "__main__":
    main(*sys.argv[1:])
