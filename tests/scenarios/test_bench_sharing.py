"""The benchmark of the timing model for flows that share links."""

import pytest

from scenarios import bench_sharing
from topologies.fabric.fabric import GRAINS


@pytest.mark.parametrize("grain", GRAINS)
def test_the_rate_of_collectives_per_second_is_measured(grain: str) -> None:
    assert 10 < bench_sharing.collectives_per_second(8, "alltoall", "direct", grain, batch=20) < 1e9


def test_only_even_numbers_of_gpus_from_4_to_256_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    for sizes in ("7", "8,many", "258"):
        with pytest.raises(SystemExit, match="2"):
            bench_sharing.main(["--gpus", sizes])
        assert f"{sizes}; allowed: even numbers from 4 to 256" in capsys.readouterr().err
