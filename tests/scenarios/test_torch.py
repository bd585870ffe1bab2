"""A collective that is not the project's, on its hosts untouched: PyTorch's all_gather over Gloo: ``pytest -m torch``.

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


def test_gloo_gathers_right_and_no_faster_than_the_links(
    vm: VM, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = load_scenario("paper")
    (vm.folder / "paper.toml").write_text(resolved(scenario))
    guest = [sys.executable, str(PROJECT / "tests/guest/gloo.py"), "paper.toml", str(python)]
    ended = vm.run("--memory", "5 GiB", "--", *guest, timeout=900)
    assert ended.status == 0, ended.err
    found = json.loads(ended.out.splitlines()[-1])
    received_bits = 8 * (scenario.gpus - 1) * scenario.collective.chunk_bytes
    with capsys.disabled():
        print()
        for name, time_s in [("ours", found["ours_s"]), *(("gloo", time_s) for time_s in found["gloo_s"])]:
            print(f"{name}: {time_s * 1e3:.3f} ms, goodput {received_bits / time_s / 1e9:.2f} Gbit/s a GPU")
    assert found["right"]
    # A ring as well, over the same slowest edge: neither can be faster than that, and Gloo adds only its own messages.
    assert all(0.999 < time_s / found["ours_s"] < 1.1 for time_s in found["gloo_s"])
