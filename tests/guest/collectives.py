"""Runs inside the VM: collectives of all kinds on GPUs on one Linux bridge, whole and damaged.

`python -m tests.guest.collectives ASKED`: ASKED is a JSON object with `cases`, a list of the arguments of `case`, and
`computed_s`; prints one with what `case` returns for each, and with a `computation` of so many seconds.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

from hosts.collectives.kinds import MESSAGES, Workload, workload
from hosts.collectives.schedule import Flow, Schedule, Stream, Transfer
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
    """A collective, one for each [task, byte] to damage, of which the faults are returned, and one more."""
    sites = fabric.spec.gpus_per_site
    found = workload(kind, algorithm, sites=sites, size_bytes=size_bytes, **options)
    with Communicator(fabric, host_pids=pids, workload=found) as communicator:
        communicator.connect(placement)
        whole = asdict(communicator.run())
        flipped = [communicator.run(flip=Flip(task=task, byte=byte)) for task, byte in flips]
        damaged = [[asdict(fault) for fault in one.faults] for one in flipped]
        return {"whole": whole, "damaged": damaged, "again": asdict(communicator.run())}


def computation(fabric: Fabric, pids: list[int], seconds: float) -> Any:
    """A message from place 0 to 1, a computation there, and a message back."""
    flows = (Flow(0, 1), Stream(1), Flow(1, 0))
    transfers = (
        Transfer(flow=0, size=10.0),
        Transfer(flow=1, size=seconds, after=(0,)),
        Transfer(flow=2, size=1.0, after=(1,)),
    )
    schedule = Schedule(places=len(pids), slots=0, flows=flows, transfers=transfers)
    found = Workload(kind=MESSAGES, algorithm="own", schedule=schedule, slot_bytes=100_000)
    with Communicator(fabric, host_pids=pids, workload=found, deadline_s=1) as communicator:
        communicator.connect(range(len(pids)))
        return asdict(communicator.run())


def main(asked: dict[str, Any]) -> None:
    fabric = build_fabric(FabricSpec())
    with hosts(fabric) as pids:
        found = {
            "cases": [case(fabric, pids, **one) for one in asked["cases"]],
            "computation": computation(fabric, pids, asked["computed_s"]),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
