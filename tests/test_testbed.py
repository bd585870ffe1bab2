"""A collective of a testbed whose parts only say what they are told to: what of it reaches the row."""

from types import SimpleNamespace
from typing import Any

import pytest

from hosts.communicator import AllGather, Fault
from scenarios.policies.decide import MODES
from scenarios.spec.load import load_scenario
from scenarios.testbed import testbed
from scenarios.testbed.testbed import WrongDataError


def bed(*, drops: dict[str, int] | None = None, faults: tuple[Fault, ...] = ()) -> testbed.Testbed:
    found: Any = testbed.Testbed(load_scenario("paper"))
    found._shaper = SimpleNamespace(change=lambda _: None)
    found.controller = SimpleNamespace(alive=lambda: True)
    found._controller = SimpleNamespace(
        route=lambda *, crossings, **_: SimpleNamespace(
            paths=[found.fabric.paths_between[0, 1][1].index] * len(crossings)
        )
    )
    result = AllGather(collective=0, start_ns=(5,) * 8, arrived_ns=((7,) * 7,) * 8, faults=faults)
    found._communicator = SimpleNamespace(build_ring=lambda _: None, allgather=lambda **_: result)
    found._drops, found._watch = SimpleNamespace(drops=lambda: drops or {}), None
    return found  # type: ignore[no-any-return]


def test_packets_dropped_anywhere_are_in_the_row() -> None:
    row = bed(drops={"s0l0-eth1": 2, "g3-eth0": 1}).collective(MODES["base"], 0)
    assert row.drops == 3
    assert bed().collective(MODES["base"], 0).drops == 0


def test_wrong_bytes_end_the_run() -> None:
    wrong = Fault(rank=5, step=3, chunk=2, text="byte 9 is wrong")
    with pytest.raises(WrongDataError, match="collective 7 delivered wrong data: GPU 5, step 3: byte 9 is wrong"):
        bed(faults=(wrong,)).collective(MODES["base"], 7)


def test_a_row_tells_the_paths_that_the_controller_chose() -> None:
    row = bed().collective(MODES["wan"], 0)
    chosen = [path for path in row.path if path >= 0]
    assert len(chosen) == 2 and row.rerouted and row.ring == tuple(range(8))
    assert set(chosen) == {bed().fabric.paths_between[0, 1][1].index}
