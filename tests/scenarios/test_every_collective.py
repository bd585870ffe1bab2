"""Every collective by every algorithm in the emulation: as the model says, and the same in every boot.

tests/guest/every.py runs inside, in two VMs one after the other.
"""

from typing import Any

import pytest

from hosts.collectives.kinds import ALGORITHMS
from tests.conftest import VM
from topologies.shaping.classes import VIRTUAL_LATE_S

NAMES = [f"{kind} {algorithm}" for kind, algorithms in ALGORITHMS.items() for algorithm in algorithms]


@pytest.fixture(scope="module")
def boots(module_vm: VM) -> list[dict[str, Any]]:
    """What two boots found."""
    return [module_vm.report("every") for _ in range(2)]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_as_the_model_says_and_the_same_to_the_nanosecond_in_every_boot(
    boots: list[dict[str, Any]], name: str
) -> None:
    first, second = (boot[name] for boot in boots)
    assert first["arrived_ns"] == second["arrived_ns"]
    assert first["drops"] == 0
    # Flows that share links do so packet by packet, and a message of 1 MB has few of them. A message arrives early by
    # what its classes make up for late timers, and on a chain one message is behind the other.
    within = 0.01 if first["shared"] else 5e-4
    assert first["measured_s"] == pytest.approx(first["predicted_s"], rel=within, abs=7 * VIRTUAL_LATE_S)


def test_both_kinds_of_links_were_seen(boots: list[dict[str, Any]]) -> None:
    assert sorted(boots[0]) == sorted(NAMES)
    assert {one["shared"] for one in boots[0].values()} == {False, True}
