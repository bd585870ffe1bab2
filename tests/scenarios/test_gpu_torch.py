"""A torch script under `program.gpu`: what operations, streams and reads take, and `cuda` on CPU tensors.

Run with ``pytest -m torch``, which installs PyTorch from the package index into a virtual environment of its own.
"""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scenarios.program.rank.longhaul_gpu.models import MODELS, Gpu
from scenarios.spec.program import TOOLS
from tests.conftest import PROJECT, own_python
from tests.fakes.runs import ended
from tests.scenarios.test_torch import TORCH

pytestmark = pytest.mark.torch

GUEST = PROJECT / "tests" / "guest"
# Half of 100 and 400 GFLOP/s, 10 GB/s and 1 us, so that small operations are bound by either.
GPU = Gpu(
    flops=(("float32", 1e11), ("bfloat16", 4e11)),
    bandwidth_bps=1e10,
    launch_s=1e-6,
    efficiency=0.5,
    memory_efficiency=1.0,
)


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with PyTorch."""
    with own_python([TORCH]) as found:
        yield found


def environment(**variables: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(TOOLS), "OMP_NUM_THREADS": "1"} | variables


@pytest.fixture(scope="module")
def charges(python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """What `gpu_charges.py` printed, what it told on stderr, and its accounts."""
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "kernels.csv").write_text('operation,shapes,dtype,us\naten::bmm,"[[2, 3, 4], [2, 4, 5]]",float32,70\n')
    variables = {"LONGHAUL_GPU_MODEL": GPU.as_json(), "LONGHAUL_GPU_KERNELS": "kernels.csv"}
    ran = subprocess.run(
        [python, GUEST / "gpu_charges.py"],
        env=environment(**variables, LONGHAUL_GPU_REPORT="gpu.json"),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    printed, reported = ran.stdout.splitlines()
    assert reported.startswith("longhaul: step ")
    return json.loads(printed), ran.stderr, json.loads((folder / "gpu.json").read_text())


def us(*, flops: float = 0, moved: float = 0, peak: float = 1e11) -> float:
    """The roofline of `GPU`, written anew."""
    return 1 + max(flops / (0.5 * peak) * 1e6, moved / 1e10 * 1e6)


def test_operations_take_what_their_flops_or_bytes_imply(charges: Any) -> None:
    times_us = {name: ns / 1e3 for name, ns in charges[0]["times"].items()}
    product, left = 2 * 64 * 128 * 32, 64 * 128 * 4
    expected = {
        "mm": us(flops=product),
        "mm bfloat16": us(moved=2 * (64 * 128 + 128 * 32 + 64 * 32), peak=4e11),
        "relu": us(moved=2 * left),
        "add in place": us(moved=2 * left),
        "fill": us(moved=left),
        "sum": us(moved=left + 4),
        "broadcast": us(moved=2 * left + 128 * 4),
        "embedding": us(moved=2 * 8) + us(moved=2 * 8 + 2 * 2 * 32 * 4),  # with arange; two rows of the table
        "views": 0,
        "chain": us(flops=product) + us(moved=2 * 64 * 32 * 4) + us(moved=64 * 32 * 4 + 4),
        "measured": 70,
        "measured, other shapes": us(moved=(12 + 20 + 15) * 4),
    }
    assert times_us == pytest.approx(expected, abs=2e-3)


def test_streams_compute_at_the_same_time_and_the_host_waits_only_where_it_must(charges: Any) -> None:
    streams, product = charges[0]["streams"], us(flops=2 * 64 * 128 * 32) * 1e3
    relu = us(moved=2 * 64 * 128 * 4) * 1e3
    assert streams["overlapped"] == pytest.approx(2 * product, abs=3)  # not 3: one of them ran beside
    assert streams["joined"] == streams["event"] == pytest.approx(2 * product + relu, abs=3)
    assert (streams["host"], streams["happened"]) == (0, False)
    assert (streams["host, synchronised"], streams["happened, synchronised"]) == (streams["joined"], True)
    slept_ns = charges[0]["slept"]
    lazy = {name for name, ns in slept_ns.items() if ns == 0}
    assert lazy == {"launch", "shape", "to, later", "indexed", "other stream"}
    assert all(1_000_000 <= ns < 1_020_000 for name, ns in slept_ns.items() if name not in lazy)


def test_a_transformer_computes_what_the_formula_says(charges: Any) -> None:
    """6 N D + 12 L B T^2 d, with all of T^2, and 2 L B T^2 d for the scores that flash attention computes again."""
    one = charges[0]["model"]
    tokens, pairs = one["batch"] * one["length"], one["layers"] * one["batch"] * one["length"] ** 2 * one["width"]
    assert one["unknown"] == []
    assert one["flops"] == pytest.approx(6 * one["parameters"] * tokens + 12 * pairs, rel=0.02)
    matrices = 12 * one["layers"] * one["width"] ** 2 + one["words"] * one["width"]
    assert one["flops"] == 6 * matrices * tokens + 14 * pairs


def test_an_optimizer_takes_foreach_kernels_as_on_a_gpu_and_their_bytes(charges: Any) -> None:
    one = charges[0]["optimizer"]
    assert one["kernels"] < one["tensors"] / 2  # without the counters of steps, which are the host's
    # AdamW reads parameter, gradient and both moments and writes three of them at least.
    assert 7 * 4 * one["parameters"] < one["bytes"] < 4 * 7 * 4 * one["parameters"]


def test_cuda_is_served_on_cpu_tensors_with_the_values_that_a_gpu_would_have(charges: Any) -> None:
    found, told, _ = charges
    cuda = found["cuda"]
    assert cuda.pop("refused").startswith("torch.cuda.CUDAGraph needs a real GPU")
    assert cuda == {
        "available": True,
        "count": 1,
        "name": GPU.title,
        "memory": GPU.memory_bytes,
        "devices": ["cuda:0", "cuda:0", "cpu", True, False],
        "numbered": ["cuda:0", "cuda:0", 0, "cuda:0"],
        "same": True,
        "kept": 1.0,  # a copy on the host does not follow the GPU's tensor
        "moved": [1.0, 1.0],  # nor does the GPU's follow pinned memory
        "batches": [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]],
        "drawn": 2,
        "autocast": "torch.float16",
        "compiled": True,
    }
    assert "torch.compile is left out" in told


def test_unknown_operations_are_told_and_in_the_accounts(charges: Any) -> None:
    _, told, accounts = charges
    share = accounts["operations"]["aten::_linalg_svd"]["s"] / accounts["charged_s"]
    assert accounts["unknown"] == ["aten::_linalg_svd"] and accounts["unknown_share"] == pytest.approx(share)
    assert 0.05 < share < 0.5
    words = f"as their FLOPs are not known: aten::_linalg_svd (1), {share:.1%} of the GPU's time. That is more than 5%"
    assert words in told
    assert accounts["measured_s"] == pytest.approx(70e-6) and accounts["host_waited_s"] > 0.01


SIDE_STREAM = """
import torch
from longhaul_gpu.streams import DEVICE
DEVICE.now_ns, DEVICE.sleep = lambda: 1_000_000_000, lambda seconds: None
class Collective:
    waits = 0
    def ended(self):
        Collective.waits += 1
        reduced.fill_(3.0)
        return DEVICE.now_ns() + 1_000_000, ()
    def is_completed(self):
        return False
began = torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))
reduced, grad = torch.zeros(1000), torch.ones(1000, dtype=torch.bfloat16)
side, done = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(side), torch.no_grad():
    DEVICE.defer(Collective())
    cast = reduced.to(torch.bfloat16)
    grad += cast
    torch._foreach_mul_([grad], 2.0)
    done.record()
    assert not done.query() and not side.query()
assert Collective.waits == 0
torch.cuda.current_stream().wait_event(done)
assert Collective.waits == 1 and cast.eq(3).all() and grad.eq(8).all()
assert 1.012 <= began.elapsed_time(done) < 1.013, began.elapsed_time(done)  # with three launches
with torch.cuda.stream(side):
    DEVICE.defer(Collective())
    assert (reduced * 2).eq(6).all() and Collective.waits == 2  # a new tensor, whose values are needed at once
    DEVICE.defer(Collective())
    assert reduced.sum().item() == 3000 and Collective.waits == 3
"""


def test_what_a_side_stream_computes_of_a_collective_is_done_when_that_has_ended(python: Path) -> None:
    """A copy to another dtype, an addition in place and a foreach kernel, as FSDP2 has them after its ReduceScatter."""
    variables = {"LONGHAUL_GPU_MODEL": "h100"}
    ran = subprocess.run(
        [python, "-c", SIDE_STREAM], env=environment(**variables), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def trained(python: Path, folder: Path, kind: str, **variables: str) -> tuple[list[float], list[str]]:
    """Return the losses and the other lines of two ranks that train natively."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [python, GUEST / "gpu_train.py", kind],
            env=environment(
                RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_RANK="0",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                GLOO_SOCKET_IFNAME="lo",
                **variables,
            ),
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    lines = outputs[0].splitlines()
    (losses,) = [json.loads(line) for line in lines if line.startswith("[")]
    return losses, [line for line in lines if not line.startswith("[")]


def test_a_script_for_cuda_and_nccl_has_the_losses_of_the_same_on_the_cpu(python: Path, tmp_path: Path) -> None:
    on_cpu, nothing = trained(python, tmp_path, "cpu")
    served, steps = trained(python, tmp_path, "cuda", LONGHAUL_GPU_MODEL="h100")
    assert served == on_cpu and served[-1] < served[0]
    assert nothing == [] and len(steps) == 3 and all(line.startswith("longhaul: step ") for line in steps)


def test_a_step_in_virtual_time_takes_the_sum_of_what_its_operations_are_charged(
    tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rank, so that no collective crosses a link: what is left is the GPU."""
    command = f"{python} {GUEST / 'gpu_train.py'} cuda 6"
    options = ("--set", "program.gpu=h100", "--set", "program.ranks=[0]", "--set", 'program.memory="3 GB"')
    found = json.loads(
        ended("paper", "--modes", "base", "--exec", command, *options, "--json", "--out", "run", cwd=tmp_path)[0]
    )
    accounts = json.loads((tmp_path / "run/files/gpu-0.json").read_text())
    steps_s = [step_s for _, _, step_s in found["steps"]]
    (sums,) = found["gpu_accounts"]
    assert sums["charged_s"] == accounts["charged_s"] and sums["unknown"] == []
    with capsys.disabled():
        print(f"\nsteps {steps_s}, charged {accounts['charged_s']:.6f} s in {found['wall_s']} s of wall time")
    assert len(steps_s) == 5 and max(steps_s[1:]) - min(steps_s[1:]) < 2e-6
    # A step has at least the launches of its kernels, and all of them together are what was charged.
    kernels = sum(one["count"] for one in accounts["operations"].values())
    assert accounts["charged_s"] > kernels * MODELS["h100"].launch_s
    assert 5 * steps_s[-1] < accounts["charged_s"] < 8 * steps_s[-1]
