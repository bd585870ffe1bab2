"""Runs inside the VM: every kind of collective by every algorithm on GPUs on one Linux bridge, whole and damaged.

`python -m tests.guest.collectives CASES`: CASES is a JSON list of objects with the arguments of `case`; prints a list
of what it returns for each.
"""

import json
import sys
from typing import Any

from hosts.collectives.kinds import workload
from hosts.communicator import Communicator, Flip
from tests.guest.ring import hosts
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric


def case(
    fabric: Fabric,
    pids: list[int],
    *,
    kind: str,
    algorithm: str,
    size_bytes: int,
    flips: list[list[int]],
    placement: list[int],
    **options: int,
) -> Any:
    """A collective without damage and one for each [task, byte]: the faults that were found, and all times."""
    sites = tuple(fabric.spec.gpus_per_site)
    found = workload(kind, algorithm, sites=sites, size_bytes=size_bytes, **options)
    with Communicator(fabric, host_pids=pids, workload=found) as communicator:
        communicator.connect(placement)
        whole = communicator.run()
        faults = [
            [[fault.rank, fault.task, fault.src, fault.text] for fault in communicator.run(flip=flip).faults]
            for flip in (Flip(task=task, byte=byte) for task, byte in flips)
        ]
    return {
        "faults": [str(fault) for fault in whole.faults],
        "found": faults,
        "start_ns": whole.start_ns,
        "sent_ns": whole.sent_ns,
        "arrived_ns": whole.arrived_ns,
    }


def main(cases: list[dict[str, Any]]) -> None:
    fabric = build_fabric(FabricSpec())
    with hosts(fabric) as pids:
        print(json.dumps([case(fabric, pids, **one) for one in cases]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
