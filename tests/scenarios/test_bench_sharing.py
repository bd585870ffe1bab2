"""The bench of the model of flows that share links."""

import pytest

from scenarios import bench_sharing
from topologies.fabric.fabric import GRAINS


@pytest.mark.parametrize("grain", GRAINS)
def test_collectives_are_counted(grain: str) -> None:
    assert 10 < bench_sharing.collectives_per_second(8, "alltoall", "direct", grain, batch=20) < 1e9
