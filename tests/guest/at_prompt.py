"""Runs inside the VM, as root: ``at_prompt.py SCENARIO`` runs the same collectives at the prompt and in an experiment.

For every mode of the scenario, it runs one collective under each of the first `COUNT` conditions; at the prompt, a
collective of another kind comes before them. Prints one JSON object: by mode, the rows (placement, paths, ns) of both
runs; under "saved", the last row at the prompt, and the row of the scenario that the prompt then saved.
"""

import json
import sys
from pathlib import Path
from typing import Any

from scenarios.prompt.testbed import InteractiveTestbed
from scenarios.spec.load import load_scenario, resolved
from scenarios.testbed.platform import VIRTUAL
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.record import CollectiveRecord
from scenarios.testbed.testbed import Testbed

COUNT = 4


def row(record: CollectiveRecord) -> list[Any]:
    return [record.placement, record.path, max(record.arrived_ns) - min(record.start_ns)]


def main() -> None:
    (setting,) = load_scenario(sys.argv[1]).configurations()
    found: dict[str, Any] = {}
    with Testbed(setting, platform=VIRTUAL) as testbed:
        bed = InteractiveTestbed(testbed)
        for name in setting.run.modes:
            bed.run("alltoall", 1_000_000, is_chunk=True)  # its flows share links
            bed.resample(setting.run.seed)
            bed.set_mode(name)
            rows = []
            for number in range(COUNT):
                rows.append(row(bed.run("allgather", setting.collective.chunk_bytes, is_chunk=True)[0]))
                if number < COUNT - 1:
                    bed.resample(None)
            found[name] = [rows]
        bed.set_rate(0, 1_000_000_000)
        bed.set_delay(1, 2e-3)
        bed.set_mode("joint")
        found["saved"] = [[row(bed.run("allgather", setting.collective.chunk_bytes, is_chunk=True)[0])]]
        Path("saved.toml").write_text(resolved(bed.scenario()))
    for name in setting.run.modes:
        with Testbed(setting, platform=VIRTUAL) as testbed:
            found[name].append([row(record) for record in PointRun(testbed, setting.mode(name)).records(range(COUNT))])
    (saved,) = load_scenario("saved.toml").configurations()
    with Testbed(saved, platform=VIRTUAL) as testbed:
        found["saved"].append(
            [row(record) for record in PointRun(testbed, saved.mode(saved.run.modes[0])).records(range(1))]
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
