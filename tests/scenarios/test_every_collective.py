"""Every collective by every algorithm in the emulation: it takes the predicted time, and the same nanoseconds in every
boot; every byte arrives right, and a flipped byte is reported.

tests/guest/every.py runs inside the VM; one VM runs all collectives.
"""

from typing import Any

import pytest

from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Flow
from tests.conftest import VM
from tests.fakes.runs import assert_recorded
from tests.guest.every import CHANNELS, COMPUTED_S, flip_of, in_channels, placement_of, settings
from topologies.shaping.classes import VIRTUAL_LATE_S

WORKLOADS: dict[str, Workload] = {name: setting.workload for name, setting in settings().items()}


@pytest.fixture(scope="module")
def report(module_vm: VM) -> dict[str, Any]:
    """Return the report of the guest by the name of the workload."""
    found: dict[str, Any] = module_vm.report("every")
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_collective_takes_the_predicted_time_and_the_same_nanoseconds_in_every_boot(
    report: dict[str, Any], name: str
) -> None:
    found = report[name]
    assert_recorded(name, found["arrived_ns"])
    assert found["drops"] == 0
    # Flows share links packet by packet, and a message of 1 MB has few packets. A message arrives early by as much as
    # its classes make up for late timers, and along a chain of messages this adds up.
    within = 0.01 if found["shared"] else 5e-4
    assert found["measured_s"] == pytest.approx(found["predicted_s"], rel=within, abs=7 * VIRTUAL_LATE_S)


def test_the_collectives_include_some_with_and_some_without_shared_links(report: dict[str, Any]) -> None:
    assert sorted(report) == sorted([*WORKLOADS, CHANNELS, "computation"])
    assert {report[name]["shared"] for name in WORKLOADS} == {False, True}


@pytest.mark.parametrize("name", [*WORKLOADS, CHANNELS])
def test_every_byte_is_delivered_right_and_a_flipped_byte_is_reported(report: dict[str, Any], name: str) -> None:
    found, done, placement = report[name], (WORKLOADS | {CHANNELS: in_channels()})[name], placement_of(name)
    transfers, whole = done.schedule.transfers, found["whole"]
    assert whole["faults"] == []
    assert len(whole["sent_ns"]) == len(whole["arrived_ns"]) == len(transfers)
    for transfer, sent_ns, arrived_ns in zip(transfers, whole["sent_ns"], whole["arrived_ns"], strict=True):
        flow = done.schedule.flows[transfer.flow]
        assert isinstance(flow, Flow)
        waited_ns = [whole["arrived_ns"][one] for one in transfer.after]
        ready_ns = max(waited_ns, default=whole["start_ns"][placement[flow.src]])
        # A message is handed to the kernel at the instant at which its last dependency has arrived or, where flows
        # share links and keep their queues short, once the data before it has left.
        assert sent_ns == ready_ns or (found["shared"] and sent_ns > ready_ns)
        assert sent_ns <= arrived_ns
    flip = flip_of(name, done)
    flow = done.schedule.flows[transfers[flip.task].flow]
    assert isinstance(flow, Flow)
    number, at = divmod(flip.byte, done.slot_bytes)
    first = {"rank": placement[flow.dst], "task": flip.task, "src": placement[flow.src]}
    assert first | {"text": f"byte {at} of slot {transfers[flip.task].slots[number][1]} is wrong"} in found["damaged"]


def test_a_computation_takes_its_configured_time_and_dependent_messages_wait_for_it(report: dict[str, Any]) -> None:
    found = report["computation"]
    (there, computed, back), (sent_there, begun, sent_back) = found["arrived_ns"], found["sent_ns"]
    assert found["faults"] == []
    assert begun == there and sent_back == computed
    assert computed - begun == pytest.approx(COMPUTED_S * 1e9, abs=1000)  # the VM's clock is exact
    assert sent_there <= there and sent_back <= back
