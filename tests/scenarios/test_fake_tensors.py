"""Fake tensors of a torch script (`program.tensors`): no values and no memory, the same charges and the same bytes.

Run with ``pytest -m torch``, which installs PyTorch from the package index into a virtual environment of its own.
"""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scenarios.spec.program import TOOLS
from tests.conftest import PROJECT, own_python
from tests.scenarios.test_torch import TORCH
from tests.scenarios.test_torch_backend import run_ranks

pytestmark = pytest.mark.torch

GUEST = PROJECT / "tests" / "guest"


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with PyTorch, which sends objects with numpy."""
    with own_python([TORCH, "numpy"]) as found:
        yield found


def alone(python: Path, *command: str, tensors: str) -> tuple[dict[str, Any], str]:
    """Return what a script prints in a process alone, and what it tells on stderr."""
    variables = {"LONGHAUL_GPU_MODEL": "h100", "LONGHAUL_GPU_TENSORS": tensors, "PYTHONPATH": str(TOOLS)}
    ran = subprocess.run(
        [python, GUEST / command[0], *command[1:]],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (line,) = [one for one in ran.stdout.splitlines() if one.startswith("{")]
    return json.loads(line), ran.stderr


def test_fake_tensors_have_shapes_and_take_no_memory_and_what_reads_them_gets_0_and_is_told(python: Path) -> None:
    found, told = alone(python, "fake_values.py", tensors="fake")
    assert found.pop("taken") < 50_000  # kB, where the tensors have some 30 GB in all
    refused = found.pop("refused")
    assert [sentence.split()[0] for sentence in refused] == ["aten::nonzero", "aten::index", "aten::_unique2"]
    assert "fake_values.py:" in refused[0] and 'allowed: program.tensors = "real"' in refused[0]
    assert found == {
        "shape": [30_000, 7],
        "item": 0.0,
        "float": "0.000",
        "list": [0.0, 0.0, 0.0],
        "text": "tensor(..., size=(30000, 30000), dtype=torch.float32, without values)",
        "bool": False,
        "equal": False,
        "fake": [True] * 6,
        "real": [False] * 5,
        "dtypes": ["torch.bfloat16", "torch.float32", "torch.int32", "torch.bool"],
        "values": [64.0, pytest.approx(sum(range(50_000)), rel=1e-6), 99_995],
        "reads": 5,
    }
    assert "reads the value of a fake tensor (program.tensors), which has none: it gets 0" in told
    assert "decides by the value of a fake tensor (program.tensors), which has none: false is taken for it" in told


def test_fake_tensors_are_charged_what_real_ones_are(python: Path) -> None:
    """The oracle is the same script on real tensors."""
    real, fake = (alone(python, "fake_training.py", "alone", tensors=one)[0] for one in ("real", "fake"))
    assert fake["operations"] == real["operations"] and fake["charged_s"] == real["charged_s"] > 0
    assert fake["losses"] == [0.0] * 3 and 5 < real["losses"][0] < 8
    assert real["fake_reads"] == 0 < fake["fake_reads"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_collectives_of_fake_tensors_are_those_of_real_ones(python: Path, tmp_path: Path, kind: str) -> None:
    found = {}
    for tensors in ("real", "fake"):
        ended = run_ranks(
            python,
            [str(GUEST / "fake_training.py"), kind],
            ranks=2,
            folder=tmp_path / tensors,
            LONGHAUL_BACKEND="longhaul",
            LONGHAUL_GPU_MODEL="h100",
            LONGHAUL_GPU_TENSORS=tensors,
            OMP_NUM_THREADS="1",
        )
        assert [one.status for one in ended] == [0, 0], ended[0].err + ended[1].err
        texts = [[line for line in one.out.splitlines() if line.startswith("{")] for one in ended]
        accounts = [json.loads(text[0]) for text in texts]
        kinds = Counter((one["kind"], one["bytes"]) for one in ended[0].asked if one["ask"] == "plan")
        found[tensors] = [(one["operations"], one["charged_s"]) for one in accounts], kinds
        assert any(accounts[0]["losses"]) == (tensors == "real")
    assert found["fake"] == found["real"]
    large = sum(size * count for (_, size), count in found["fake"][1].items())
    assert large > 3 * 4 * 500_000  # the gradients of three steps, in bytes


def test_llama_3_under_fsdp2_computes_what_the_formula_says(python: Path) -> None:
    """Rank 0 of 8 with one and two layers: 6 N D for the products, 14 B T^2 d for attention with flash's scores, and
    for each layer the products that its checkpoint computes again: keys, attention's output and the second of three."""
    found = []
    for layers in (1, 2):
        variables = {"LONGHAUL_GPU_MODEL": "h100", "LONGHAUL_GPU_TENSORS": "fake", "PYTHONPATH": str(TOOLS)}
        ran = subprocess.run(
            [python, GUEST / "fake_llama.py"],
            env=os.environ | variables | {"LAYERS": str(layers)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        found.append(json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{"))))
    width, keys, hidden, words, batch, length = 4096, 1024, 14336, 128256, 2, 8192
    weights = 2 * width**2 + 2 * width * keys + 3 * width * hidden
    again = width * keys + width**2 + width * hidden
    tokens = batch * length
    layer = (6 * weights + 2 * again) * tokens + 14 * batch * length**2 * width
    assert [one["flops"] for one in found] == [6 * words * width * tokens + n * layer for n in (1, 2)]
    assert found[1]["step_s"] > found[0]["step_s"] > found[0]["flops"] / 989.5e12


def test_a_value_that_is_not_allowed_is_refused_by_the_process(python: Path) -> None:
    variables = {"LONGHAUL_GPU_MODEL": "h100", "LONGHAUL_GPU_TENSORS": "none", "PYTHONPATH": str(TOOLS)}
    ran = subprocess.run([python, "-c", "import torch"], env=os.environ | variables, capture_output=True, text=True)
    assert ran.returncode == 1 and "LONGHAUL_GPU_TENSORS is 'none'; allowed: real, fake" in ran.stderr
