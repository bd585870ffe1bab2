"""Every collective by every algorithm in the emulation: as the model says, and the same in every boot.

tests/guest/every.py runs inside, all of it in one VM.
"""

from typing import Any

import pytest

from hosts.collectives.kinds import ALGORITHMS
from tests.conftest import VM
from tests.fakes.runs import assert_recorded
from topologies.shaping.classes import VIRTUAL_LATE_S

NAMES = [f"{kind} {algorithm}" for kind, algorithms in ALGORITHMS.items() for algorithm in algorithms]


@pytest.fixture(scope="module")
def every(module_vm: VM) -> dict[str, Any]:
    """What the guest found."""
    found: dict[str, Any] = module_vm.report("every")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_it_is_as_the_model_says_and_the_same_to_the_nanosecond_in_every_boot(every: dict[str, Any], name: str) -> None:
    found = every[name]
    assert_recorded(name, found["arrived_ns"])
    assert found["drops"] == 0
    # Flows that share links do so packet by packet, and a message of 1 MB has few of them. A message arrives early by
    # what its classes make up for late timers, and on a chain one message is behind the other.
    within = 0.01 if found["shared"] else 5e-4
    assert found["measured_s"] == pytest.approx(found["predicted_s"], rel=within, abs=7 * VIRTUAL_LATE_S)


def test_both_kinds_of_links_were_seen(every: dict[str, Any]) -> None:
    assert sorted(every) == sorted(NAMES)
    assert {one["shared"] for one in every.values()} == {False, True}
