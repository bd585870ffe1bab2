"""Collectives whose flows share links: when the emulation shares them fairly, and that it agrees with the model."""

from dataclasses import replace
from pathlib import Path

import pytest

from scenarios.spec.load import load_scenario
from tests.fakes.runs import measured


def test_fair_links_are_the_shared_links_under_fair_queues_in_virtual_time() -> None:
    paper = load_scenario("paper")
    wanted = {"collective.kind": "alltoall", "collective.algorithm": "direct"}
    direct = paper.with_values(wanted)
    assert paper.fair_links("base") is None  # a ring over a mesh
    assert direct.fair_links("base") == direct.shared_links("base") != ()
    assert direct.with_values({"transport.queue": "fifo"}).fair_links("base") is None
    assert replace(direct, run=replace(direct.run, clock="wall")).fair_links("base") is None


COMMAND = ("--engine", "emulation", "--modes", "base", "--collectives", "3", "--chunk", "4 MB")


@pytest.mark.parametrize(
    ("kind", "algorithm", "delay"),
    [
        pytest.param("allreduce", "double-tree", "1 ms", marks=pytest.mark.slow),
        ("allgather", "hierarchical", "10 ms"),
    ],
)
def test_collectives_that_share_links_over_a_long_wan_take_the_predicted_time(
    tmp_path: Path, kind: str, algorithm: str, delay: str
) -> None:
    """test_every_collective covers all algorithms, with a WAN delay of 10 us."""
    values = f"collective.kind={kind}", f"collective.algorithm={algorithm}", f"conditions.wan_delay={delay}"
    measured(tmp_path / "run", *COMMAND, sets=values, collectives=3, p99=0.01)
