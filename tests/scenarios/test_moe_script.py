"""Experts in two sites: what they exchange is on the WAN what their routing table implies, and takes alpha + beta.

Run with ``pytest -m torch``, which installs PyTorch from the package index into a virtual environment of its own.
"""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import PROJECT, own_python
from tests.fakes.runs import ended
from tests.scenarios.test_torch import TORCH

pytestmark = pytest.mark.torch

RATE = 10e9
WIDTH, EXPERTS, RANKS, STEPS = 512, 16, 8, 3
ROW_BYTES, HEADERS = 4 * WIDTH, 9014 / 8948


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with PyTorch."""
    with own_python([TORCH]) as found:
        yield found


@pytest.mark.parametrize("delay_s", [1e-5, 1e-2])
def test_tokens_are_on_the_wan_as_routed_and_their_exchanges_take_alpha_and_beta(
    tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str], delay_s: float
) -> None:
    """All pairs of GPUs send at once, so that the WAN link of a direction is busy until its last byte has left.

    A rank that has all its rows begins the next exchange while others still wait, which delays these: the times of
    single exchanges differ by that, and their sum does not.
    """
    sets = ("gpu=h100", "backend=longhaul", 'preload=["torch"]', 'memory="6 GB"')
    given = [word for one in sets for word in ("--set", f"program.{one}")]
    rates = ("--set", f'conditions.wan_rate="{RATE / 1e9:g} Gbit/s"', "--set", 'conditions.intra_rate="100 Gbit/s"')
    command = ("--modes", "base", *given, *rates, "--wan-delay", f"{delay_s * 1e3:g} ms", "--json", "--out", "run")
    found = json.loads(ended("paper", *command, "--exec", f"{python} {PROJECT}/docs/examples/moe.py", cwd=tmp_path)[0])
    texts = [(tmp_path / f"run/output/{rank}.stdout").read_text() for rank in range(RANKS)]
    tables = [[json.loads(row) for row in re.findall(r"tokens to GPUs (.*)", text)] for text in texts]
    losses = [[float(loss) for loss in re.findall(r"loss ([0-9.]+)", text)] for text in texts]
    assert all(len(of_rank) == STEPS and of_rank[-1] < of_rank[0] for of_rank in losses)
    routed = np.array(tables).swapaxes(0, 1)  # [step, from, to]
    assert routed.shape == (STEPS, RANKS, RANKS) and len(set(routed[0, 0])) > 1
    away = routed[:, :4, 4:].sum((1, 2)) * ROW_BYTES  # of each step, from site 0 to site 1
    back = routed[:, 4:, :4].sum((1, 2)) * ROW_BYTES

    # Tokens go to experts and back, and their gradients as well. Router and norm are reduced round a ring.
    reduced = STEPS * 2 * (RANKS - 1) / RANKS * 4 * (EXPERTS * WIDTH + 2 * WIDTH)
    expected = 2 * (away + back).sum() + reduced
    carried = {link["link"]: link["bytes"] for link in found["links"]}
    for link in ("s0b0>s1b0", "s1b0>s0b0"):
        assert carried[link] == pytest.approx(expected * HEADERS, rel=0.02)
    assert sum(carried.values()) == pytest.approx(2 * expected * HEADERS, rel=0.02)

    with (tmp_path / "run/collectives.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "alltoall" and int(row["size_bytes"]) > 10_000]
    assert len(rows) == 4 * STEPS
    # Rows that go away come back, so that each direction carries both numbers, and the larger one takes longer.
    expected_s = 4 * (np.maximum(away, back) * HEADERS * 8 / RATE + delay_s)
    begun_s, ended_s = (np.array([float(row[name]) for row in rows]) for name in ("begun_s", "ended_s"))
    measured_s = ended_s[3::4] - begun_s[::4]  # of each step, from when all ranks have begun
    with capsys.disabled():
        print(f"\n{delay_s * 1e3:g} ms: {carried['s0b0>s1b0']:,} bytes, implied {expected * HEADERS:,.0f}", end="")
        print(f"; four exchanges {measured_s * 1e3} ms, expected {expected_s * 1e3} ms", end="")
        print(f"; {found['wall_s']} s of wall time", end="")
    # The link is idle while ranks compute, at most for what the kernels of a step take.
    with (tmp_path / "run/script_steps.csv").open() as file:
        computing_s = max(float(row["computing_s"]) for row in csv.DictReader(file))
    assert computing_s < 0.04 * expected_s.min()
    assert (measured_s > 0.99 * expected_s).all() and (measured_s < 1.01 * expected_s + computing_s).all()
