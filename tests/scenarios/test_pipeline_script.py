"""A pipeline by torch.distributed.pipelining takes what its kernels, its schedule and alpha-beta imply.

Run with ``pytest -m torch``, which installs PyTorch from the package index into a virtual environment of its own.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import PROJECT, own_python
from tests.fakes.runs import ended
from tests.scenarios.test_torch import TORCH

pytestmark = pytest.mark.torch

SCRIPT = PROJECT / "docs/examples/pipeline.py"
RATE, INTRA_DELAY_S = 100e9, 1e-6
WIDTH, TOKENS, LAYERS, MICROBATCHES = 1024, 256, 2, 8
ACTIVATION_BYTES = 4 * TOKENS * WIDTH
RANKS = (0, 1, 4, 5)  # two in each site, so that one of the three boundaries crosses the WAN


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with PyTorch."""
    with own_python([TORCH, "numpy"]) as found:
        yield found


def order_of(schedule: str, stage: int, stages: int) -> list[tuple[str, int]]:
    """Return the order in which a stage computes: all forwards first, or as soon as possible a backward for each."""
    ahead = MICROBATCHES if schedule == "gpipe" else min(MICROBATCHES, stages - stage)
    order = [("forward", number) for number in range(ahead)]
    for number in range(MICROBATCHES):
        order.append(("backward", number))
        if ahead + number < MICROBATCHES:
            order.append(("forward", ahead + number))
    return order


def schedule_s(
    schedule: str, forward_s: Sequence[float], backward_s: Sequence[float], hops_s: Sequence[float]
) -> float:
    """Return when the last stage ends: each computes in its order, when the input of the stage before or after it has
    come, which takes alpha + beta of the boundary between both."""
    stages = len(forward_s)
    left = [order_of(schedule, stage, stages) for stage in range(stages)]
    free_s, ends_s = [0.0] * stages, dict[tuple[str, int, int], float]()
    while any(left):
        for stage, order in enumerate(left):
            while order:
                kind, number = order[0]
                neighbour = stage - 1 if kind == "forward" else stage + 1
                arrived_s = 0.0
                if 0 <= neighbour < stages:
                    if (kind, number, neighbour) not in ends_s:
                        break
                    arrived_s = ends_s[kind, number, neighbour] + hops_s[min(stage, neighbour)]
                takes_s = (forward_s if kind == "forward" else backward_s)[stage]
                free_s[stage] = ends_s[kind, number, stage] = max(free_s[stage], arrived_s) + takes_s
                order.pop(0)
    return max(free_s)


@pytest.mark.parametrize(
    ("schedule", "delay_s"), [("gpipe", 1e-5), ("gpipe", 1e-2), ("1f1b", 5e-3)], ids=lambda value: str(value)
)
def test_a_step_takes_what_its_kernels_the_schedule_and_the_activations_on_the_wan_imply(
    tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str], schedule: str, delay_s: float
) -> None:
    sets = ("gpu=h100", "tensors=fake", "backend=longhaul", f"ranks={[*RANKS]}", 'preload=["torch"]', 'memory="4 GB"')
    given = [word for one in sets for word in ("--set", f"program.{one}")]
    rates = [word for one in ("wan", "intra") for word in ("--set", f'conditions.{one}_rate="{RATE / 1e9:g} Gbit/s"')]
    command = ("--modes", "base", *given, *rates, "--wan-delay", f"{delay_s * 1e3:g} ms", "--json", "--out", "run")
    found = json.loads(ended("paper", *command, "--exec", f"{python} {SCRIPT} {schedule}", cwd=tmp_path)[0])
    with (tmp_path / "run/script_steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = max(row["step"] for row in rows)
    computing_s = [float(row["computing_s"]) for row in rows if row["step"] == last]
    step_s = max(float(row["step_s"]) for row in rows if row["step"] == last)
    assert len(computing_s) == len(RANKS)
    told_ms = re.findall(r"loss [0-9.]+, ([0-9.]+) ms", (tmp_path / "run/output/3.stdout").read_text())
    assert step_s == pytest.approx(float(told_ms[-1]) / 1e3, rel=0.02)  # as the script itself has measured

    # SGD reads weights and gradients, and writes weights.
    optimizer_s = 3 * 4 * (12 * WIDTH**2 + 13 * WIDTH) * LAYERS / (3.35e12 * 0.84)
    both_s = [(one - optimizer_s) / MICROBATCHES for one in computing_s]
    crosses = [one // 4 != other // 4 for one, other in pairwise(RANKS)]
    hops_s = [ACTIVATION_BYTES * 8 / RATE + (delay_s if wan else INTRA_DELAY_S) for wan in crosses]
    closed_s = sum(both_s) + (MICROBATCHES - 1) * max(both_s) + 2 * sum(hops_s) + optimizer_s
    forward_s, backward_s = ([share * one for one in both_s] for share in (1 / 3, 2 / 3))
    expected_s = schedule_s(schedule, forward_s, backward_s, hops_s) + optimizer_s
    with capsys.disabled():
        print(
            f"\n{schedule}, {delay_s * 1e3:g} ms: kernels {max(computing_s) * 1e3:.4f}, step {step_s * 1e3:.4f}", end=""
        )
        print(f", by the schedule {expected_s * 1e3:.4f}, GPipe's closed form {closed_s * 1e3:.4f} ms", end="")
        print(f", {found['wall_s']} s of wall time", end="")
    if schedule == "gpipe":
        assert expected_s == pytest.approx(closed_s, rel=1e-6)
    assert step_s == pytest.approx(expected_s, rel=0.03)

    # What a stage does not compute it waits for its neighbours' messages, of which each has one per microbatch.
    for row in rows:
        assert float(row["exposed_s"]) == pytest.approx(float(row["step_s"]) - float(row["computing_s"]), rel=0.01)
    of_kinds = found["script_steps"]["exposed_by_kind"]
    assert {*of_kinds} == {"send", "recv"} and of_kinds["recv"] > 0.9 * found["script_steps"]["exposed_s"]
    with (tmp_path / "run/exposed.csv").open() as file:
        messages = [row for row in csv.DictReader(file) if row["rank"] == "1" and row["step"] == last]
    counts = Counter((row["kind"], row["ranks"]) for row in messages if int(row["size_bytes"]) == ACTIVATION_BYTES)
    ways = {("recv", "0 1"), ("send", "1 2"), ("recv", "2 1"), ("send", "1 0")}
    assert counts == dict.fromkeys(ways, MICROBATCHES)
