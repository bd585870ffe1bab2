"""Every kind of collective by every algorithm on the agents in the VM: whole, damaged, and with computations.

tests/guest/collectives.py runs inside, all of it in one boot.
"""

import json
import random
from typing import Any

import pytest

from hosts.collectives.kinds import ALGORITHMS, Workload, blocks, workload
from hosts.collectives.program import message_bytes
from hosts.collectives.schedule import Flow
from tests.conftest import VM

BLOCK_BYTES = 200_000
COMPUTED_S = 2.5
PAIRS = [(kind, algorithm) for kind, algorithms in ALGORITHMS.items() for algorithm in algorithms]


def sized(kind: str, algorithm: str, **options: int) -> Workload:
    return workload(kind, algorithm, sites=(4, 4), size_bytes=BLOCK_BYTES * blocks(kind, 8), **options)


def case(kind: str, algorithm: str, **options: int) -> dict[str, Any]:
    """The arguments of the guest's `case`: a random placement and a random byte of a random transfer to damage."""
    rng = random.Random(f"{kind} {algorithm}")
    transfers = sized(kind, algorithm, **options).schedule.transfers
    task = rng.randrange(len(transfers))
    byte = rng.randrange(message_bytes(sized(kind, algorithm, **options), transfers[task]))
    placement = rng.sample(range(8), 8)
    size_bytes = BLOCK_BYTES * blocks(kind, 8)
    asked = {"kind": kind, "algorithm": algorithm, "size_bytes": size_bytes, "flips": [[task, byte]]}
    return asked | {"placement": placement} | options


CASES = {(*pair, 1): case(*pair) for pair in PAIRS} | {
    ("allreduce", "ring", 3): case("allreduce", "ring", channels=3, pieces=2)
}


@pytest.fixture(scope="module")
def report(module_vm: VM) -> dict[str, Any]:
    """What the guest found."""
    asked = {"cases": list(CASES.values()), "computed_s": COMPUTED_S}
    found: dict[str, Any] = module_vm.report("collectives", json.dumps(asked))
    return found


@pytest.mark.parametrize("name", CASES, ids=str)
def test_every_byte_of_a_collective_is_right_and_a_wrong_one_is_found(
    report: dict[str, Any], name: tuple[str, str, int]
) -> None:
    asked, found = CASES[name], report["cases"][list(CASES).index(name)]
    options = {key: asked[key] for key in ("channels", "pieces") if key in asked}
    done = sized(asked["kind"], asked["algorithm"], **options)
    transfers, placement = done.schedule.transfers, asked["placement"]
    assert found["whole"]["faults"] == [] and found["again"]["faults"] == []
    assert len(found["whole"]["sent_ns"]) == len(found["whole"]["arrived_ns"]) == len(transfers)
    for transfer, sent_ns, arrived_ns in zip(
        transfers, found["whole"]["sent_ns"], found["whole"]["arrived_ns"], strict=True
    ):
        flow = done.schedule.flows[transfer.flow]
        assert isinstance(flow, Flow)
        waited_ns = [found["whole"]["arrived_ns"][one] for one in transfer.after]
        # Handed to the kernel at the instant at which the last that it waits for was there.
        assert sent_ns == max(waited_ns, default=found["whole"]["start_ns"][placement[flow.src]]) <= arrived_ns
    ((task, byte),) = asked["flips"]
    flow = done.schedule.flows[transfers[task].flow]
    assert isinstance(flow, Flow)
    number, at = divmod(byte, done.slot_bytes)
    (faults,) = found["damaged"]
    first = {"rank": placement[flow.dst], "task": task, "src": placement[flow.src]}
    assert first | {"text": f"byte {at} of slot {transfers[task].slots[number][1]} is wrong"} in faults


def test_a_computation_takes_its_time_and_messages_wait_for_it(report: dict[str, Any]) -> None:
    found = report["computation"]
    (there, computed, back), (sent_there, begun, sent_back) = found["arrived_ns"], found["sent_ns"]
    assert found["faults"] == []
    assert begun == there and sent_back == computed
    assert computed - begun == pytest.approx(COMPUTED_S * 1e9, abs=1000)  # the VM's clock is exact
    assert sent_there <= there and sent_back <= back
