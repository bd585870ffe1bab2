"""Collectives that are not the project's, on its hosts untouched: PyTorch's over Gloo: ``pytest -m torch``.

PyTorch is installed for the occasion from the package index, in an environment of its own (1 GB, and several where the
index has no build without CUDA).
"""

import json
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.model.lower_bound import LowerBound
from scenarios.policies.conditions import conditions_of
from scenarios.spec.load import load_scenario, resolved
from tests.conftest import PROJECT, VM

pytestmark = pytest.mark.torch

TORCH = "torch==2.13.0"


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python with PyTorch, where an unprivileged user can run it."""
    folder = Path(tempfile.mkdtemp(prefix="longhaul-test-"))
    try:
        folder.chmod(0o755)
        venv.create(folder / "torch", with_pip=True, symlinks=True)
        found = folder / "torch/bin/python"
        subprocess.run([found, "-m", "pip", "install", "-q", TORCH], check=True)
        yield found
    finally:
        shutil.rmtree(folder)


def test_gloo_is_right_and_no_faster_than_any_schedule_can_be(
    vm: VM, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = load_scenario("paper")
    (vm.folder / "paper.toml").write_text(resolved(scenario))
    guest = [sys.executable, str(PROJECT / "tests/guest/gloo.py"), "paper.toml", str(python)]
    ended = vm.run("--memory", "6 GiB", "--", *guest, timeout=900)
    assert ended.status == 0, ended.err
    conditions = conditions_of(scenario)
    found = {line["kind"]: line for line in map(json.loads, ended.out.splitlines()[-4:])}
    with capsys.disabled():
        print()
        for kind, line in found.items():
            for name, time_s in [("ours", line["ours_s"]), *(("gloo", time_s) for time_s in line["gloo_s"])]:
                print(f"{kind}, {name}: {time_s * 1e3:.3f} ms")
    for kind, line in found.items():
        bound = LowerBound(
            conditions.fabric,
            delays_s=conditions.delays_s,
            kind=kind,
            block_bytes=scenario.collective.chunk_bytes,
        )
        least_s = float(bound.seconds(conditions.drawn.rates_bps(0, 1))[0])
        assert line["right"], kind
        assert min([line["ours_s"], *line["gloo_s"]]) > least_s, kind
    # Rings as well, over the same slowest edge: they cannot be faster, and Gloo adds its own messages.
    assert all(0.999 < time_s / found["allgather"]["ours_s"] < 1.1 for time_s in found["allgather"]["gloo_s"])
