"""Runs inside the VM: every collective by every algorithm, in mode base, intact and damaged; prints JSON.

The results, by "KIND ALGORITHM": when each transfer had arrived, the measured and the predicted completion time, the
packets lost, whether flows can share a link, and, for the same collective on a random placement, the result of
`damaged`. Collectives whose flows can share links run on a second testbed, with fair queues. Two more cases follow, on
other agents: an AllReduce in several channels and pieces, and a computation.
"""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from hosts.collectives.kinds import ALGORITHMS, MESSAGES, Workload, blocks, workload
from hosts.collectives.rank_programs import message_bytes
from hosts.collectives.schedule import Flow, Schedule, Stream, Transfer
from hosts.communicator import Communicator, Flip
from scenarios.engines.prediction import PointPredictor
from scenarios.policies.policy import MODES
from scenarios.spec.load import load_scenario
from scenarios.spec.scenario import Scenario
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.testbed import Testbed

CHUNK_BYTES = 1_000_000
COMPUTED_S = 2.5
CHANNELS = "allreduce ring, 3 channels, 2 pieces"


def settings() -> dict[str, Scenario]:
    """Return the scenario of each collective by each algorithm."""
    plain = replace(load_scenario("paper"), name="every")
    plain = replace(plain, collective=replace(plain.collective, count=1, chunk_bytes=CHUNK_BYTES))
    return {
        f"{kind} {algorithm}": replace(plain, collective=replace(plain.collective, kind=kind, algorithm=algorithm))
        for kind, algorithms in ALGORITHMS.items()
        for algorithm in algorithms
    }


def in_channels() -> Workload:
    return workload(
        "allreduce", "ring", sites=(4, 4), size_bytes=200_000 * blocks("allreduce", 8), channels=3, pieces=2
    )


def placement_of(name: str) -> list[int]:
    """Return a random placement."""
    return random.Random(name).sample(range(8), 8)


def flip_of(name: str, collective: Workload) -> Flip:
    """Return the flip of a random byte of a random transfer."""
    rng = random.Random(f"byte of {name}")
    task = rng.randrange(len(collective.schedule.transfers))
    return Flip(task=task, byte=rng.randrange(message_bytes(collective, collective.schedule.transfers[task])))


def damaged(communicator: Communicator, name: str, collective: Workload) -> dict[str, Any]:
    """Run a collective on the placement of this name, intact, and then damaged; return both outcomes."""
    communicator.connect(placement_of(name))
    whole = asdict(communicator.run())
    faults = communicator.run(flip=flip_of(name, collective)).faults
    return {"whole": whole, "damaged": [asdict(fault) for fault in faults]}


def measured(of: dict[str, Scenario]) -> dict[str, Any]:
    """Run the first collective of each of these configurations, one after the other on one testbed."""
    found = {}
    links = {link for setting in of.values() for link in setting.fair_links("base") or ()}
    with Testbed(next(iter(of.values())), fair_links=sorted(links) or None) as testbed:
        for name, setting in of.items():
            testbed.renew(setting.collective)
            (record,) = PointRun(testbed, MODES["base"]).records(range(1))
            found[name] = {
                "arrived_ns": record.arrived_ns,
                "measured_s": record.completion_s,
                "predicted_s": PointPredictor(setting, "base").of(0).predicted_s,
                "drops": record.drops,
                "shared": bool(links),
            }
            found[name] |= damaged(testbed._communicator, name, setting.workload)
        if not links:
            testbed._communicator.close()  # its agents occupy the ports
            pids = testbed.network.host_pids
            with Communicator(testbed.fabric, host_pids=pids, workload=in_channels(), epoch=100) as communicator:
                found[CHANNELS] = {"shared": False} | damaged(communicator, CHANNELS, in_channels())
            found["computation"] = computation(testbed, pids)
    return found


def computation(testbed: Testbed, pids: Sequence[int]) -> Any:
    """Run a message from position 0 to 1, a computation there, and a message back."""
    flows = (Flow(0, 1), Stream(1), Flow(1, 0))
    transfers = (
        Transfer(flow=0, size=10.0),
        Transfer(flow=1, size=COMPUTED_S, after=(0,)),
        Transfer(flow=2, size=1.0, after=(1,)),
    )
    schedule = Schedule(places=len(pids), slots=0, flows=flows, transfers=transfers)
    found = Workload(kind=MESSAGES, algorithm="own", schedule=schedule, slot_bytes=100_000)
    with Communicator(testbed.fabric, host_pids=pids, workload=found, deadline_s=1, epoch=200) as communicator:
        communicator.connect(range(len(pids)))
        return asdict(communicator.run())


def main() -> None:
    found: dict[str, Any] = {}
    for shares in (False, True):
        found |= measured({name: one for name, one in settings().items() if bool(one.fair_links("base")) == shares})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
