"""FSDP2 under `program.gpu`: its collectives overlap computing as on CUDA, and change no weights.

Run with ``pytest -m torch``, which installs PyTorch from the package index into a virtual environment of its own.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT, own_python
from tests.fakes.runs import ended
from tests.scenarios.test_torch import TORCH
from tests.scenarios.test_torch_backend import run_ranks

pytestmark = pytest.mark.torch

GUEST = PROJECT / "tests/guest"
RATE = 100e9
WIDTH, LAYERS, STEPS = 1024, 6, 4


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with PyTorch."""
    with own_python([TORCH]) as found:
        yield found


def test_streams_that_wait_in_place_of_the_host_change_no_weights(tmp_path: Path, python: Path) -> None:
    """The oracle is the same script on the CPU, where the host waits for each collective."""
    found = []
    for variables in ({}, {"LONGHAUL_GPU_MODEL": "h100"}):
        command = [str(GUEST / "torch_training.py"), "longhaul", "more"]
        ranks = run_ranks(python, command, ranks=4, folder=tmp_path / str(len(variables)), **variables)
        assert [one.status for one in ranks] == [0] * 4, ranks[0].err
        lines = [line for one in ranks for line in one.out.splitlines() if line.startswith("{")]
        found.append([json.loads(line) for line in lines])
    assert len(found[0]) == len(found[1]) == 4
    for on_cpu, served in zip(*found, strict=True):
        for name in ("hsdp", "half", "accumulated", "both"):  # in groups of two ranks
            assert served[name] == on_cpu[name]
        assert served["fsdp"] == pytest.approx(on_cpu["fsdp"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("how", "rows", "delay_s"),
    [
        ("", 32768, 1e-5),
        ("resharded", 32768, 1e-3),
        ("resharded half", 131072, 1e-5),
        ("resharded replicated", 32768, 1e-4),
    ],
)
def test_a_step_takes_computing_the_first_all_gather_and_the_last_reduce_scatter(
    tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str], how: str, rows: int, delay_s: float
) -> None:
    """Two ranks exchange half of a layer's weights in each collective, which takes less than a layer's computing: over
    the WAN, or in each of two sites, which then reduce what each rank has over the WAN.

    The oracle is the roofline of the products and alpha-beta: all other collectives are hidden.
    """
    is_half, is_replicated = "half" in how, "replicated" in how
    ranks = [0, 1, 4, 5] if is_replicated else [0, 4]
    sets = ("gpu=h100", "tensors=fake", "backend=longhaul", f"ranks={ranks}", 'preload=["torch"]', 'memory="4 GB"')
    given = [word for one in sets for word in ("--set", f"program.{one}")]
    rates = [word for one in ("wan", "intra") for word in ("--set", f'conditions.{one}_rate="{RATE / 1e9:g} Gbit/s"')]
    command = ("--modes", "base", *given, *rates, "--wan-delay", f"{delay_s * 1e3:g} ms", "--json", "--out", "run")
    script = f"{python} {GUEST}/fsdp_steps.py {WIDTH} {rows} {LAYERS} {STEPS} {how}"
    ended("paper", *command, "--exec", script, cwd=tmp_path)
    with (tmp_path / "run/collectives.csv").open() as file:
        kinds = [row["kind"] for row in csv.DictReader(file) if int(row["size_bytes"]) > 10_000]
    gathers, groups, each = 1 + ("resharded" in how), len(ranks) // 2, LAYERS * STEPS
    counts = {"allgather": groups * gathers * each, "reducescatter": groups * each}
    assert Counter(kinds) == counts | ({"allreduce": 2 * each} if is_replicated else {})
    half_s = WIDTH**2 * (2 if is_half else 4) / 2 * 8 / RATE
    collective_s = half_s + (1e-6 if is_replicated else delay_s)
    # Two pairs share the WAN, on which each rank sends half of what it has, and then the half that it has reduced.
    reduced_s = 2 * (2 * half_s / 2 + delay_s) if is_replicated else 0.0
    exposed_s = 2 * collective_s + reduced_s
    product_s = 2 * rows * WIDTH**2 / (0.803 * (989.4e12 if is_half else 67e12))
    assert collective_s + reduced_s < product_s
    products_s = (3 * LAYERS - 1) * product_s  # nothing needs the gradient of the first layer's input
    with (tmp_path / "run/script_steps.csv").open() as file:
        steps = list(csv.DictReader(file))
    names = ("step_s", "computing_s", "exposed_s", "overlap_s")
    with capsys.disabled():
        print(f"\n{how}: to be exposed {exposed_s * 1e3:.4f}, products {products_s * 1e3:.4f}", end="")
        print("".join(f", {name} {float(steps[0][name]) * 1e3:.4f} ms" for name in names), end="")
    assert len(steps) == len(ranks) * (STEPS - 1)
    for row in steps:
        step_s, computing_s, found_s, overlap_s = (float(row[name]) for name in names)
        assert found_s == pytest.approx(exposed_s, rel=0.02)
        if not is_replicated:  # else some run at the same time
            assert overlap_s == pytest.approx(((gathers + 1) * LAYERS - 2) * collective_s, rel=0.1)
        # In bfloat16 what is bound by memory takes more than a tenth of the time.
        assert computing_s == pytest.approx(products_s, rel=0.2 if is_half else 0.02)
        assert step_s == pytest.approx(computing_s + exposed_s, rel=0.01)
