"""Scripts over the backend `longhaul` in the VM get what the testbed's collectives get. Run with ``pytest -m torch``.

The tests install PyTorch into a virtual environment of its own, as `test_torch` does.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from scenarios.spec.load import scenario_of
from tests.conftest import PROJECT, own_python
from tests.fakes.runs import answer, ended, rows
from tests.scenarios.test_torch import TORCH
from topologies.fabric.fabric import FabricSpec, build_fabric

pytestmark = pytest.mark.torch

COLLECTIVES = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
size, rank = dist.get_world_size(), dist.get_rank()
def begin_together():
    dist.barrier()
    time.sleep((200_000_000 - time.monotonic_ns() % 200_000_000) / 1e9 + 0.2)
whole, blocks = torch.full((size * 500_000,), float(rank)), torch.empty(size * 500_000)
begin_together()
dist.all_reduce(whole)
assert whole.eq(size * (size - 1) / 2).all()
begin_together()
dist.all_gather_into_tensor(blocks, torch.full((500_000,), float(rank)))
assert blocks.view(size, -1).eq(torch.arange(size)[:, None]).all()
begin_together()
dist.reduce_scatter_tensor(torch.empty(500_000), blocks)
begin_together()
dist.all_to_all_single(whole, blocks)
begin_together()
dist.broadcast(whole, 0)
dist.destroy_process_group()
"""

KINDS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast")


PATHS = [path.name for path in build_fabric(FabricSpec(gpus_per_site=(2, 2))).paths]


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with PyTorch."""
    with own_python([TORCH]) as found:
        yield found


def collectives(folder: Path) -> list[dict[str, str]]:
    """Return the rows of collectives.csv."""
    with (folder / "collectives.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("mode", ["base", "joint"])
def test_collectives_of_a_script_take_what_the_testbeds_own_take(
    tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    """The oracle is the emulation of each collective, with the same first draw of conditions."""
    (tmp_path / "script.py").write_text(COLLECTIVES)
    sets = ("program.backend=longhaul", 'program.memory="6 GB"', 'program.preload=["torch"]', "collective.pieces=1")
    options = [word for one in sets for word in ("--set", one)]
    run = ("--modes", mode, "--gpus", "4", *options, "--json", "--out", "run", "--exec", f"{python} script.py")
    found: dict[str, Any] = json.loads(ended("paper", *run, cwd=tmp_path)[0])
    large = [row for row in collectives(tmp_path / "run") if int(row["size_bytes"]) > 1000]
    assert [row["kind"] for row in large] == [*KINDS]
    assert {one["kind"] for one in found["collectives"]} == {*KINDS}
    for row in large:
        sizes = (f'collective.size="{row["size_bytes"]} B"', "collective.count=1", "collective.emulated=1")
        given = (f"collective.kind={row['kind']}", "collective.pieces=1", *sizes)
        out = tmp_path / row["kind"]
        answer(out, "paper", "--modes", mode, "--gpus", "4", "--engine", "emulation", sets=given)
        measured_s = float(rows(out).query("engine == 'emulation'").completion_s.iloc[0])
        script_s, predicted_s = float(row["completion_s"]), float(row["predicted_s"])
        with capsys.disabled():
            print(f"\n{mode} {row['kind']}: {script_s * 1e3:.6f}, the testbed's own {measured_s * 1e3:.6f} ms", end="")
        assert script_s == pytest.approx(measured_s, rel=0.005)
        assert script_s == pytest.approx(predicted_s, rel=0.005)


ENDS = """
[fabric]
gpus = 4
[collective]
kind = "allreduce"
size = "8 MB"
pieces = 1
count = 8
emulated = 8
[conditions]
sampler = "markov"
every = "200 ms"
interval = "200 ms"
[run]
modes = ["ends"]
[[policy]]
name = "ends"
reroute = "every 1"
reembed = "every 2"
knowledge = "measured ends"
"""
ALLREDUCES = """
import time
begin = time.monotonic_ns()
import ctypes, torch, torch.distributed as dist
ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: sleeps end at once
dist.init_process_group("gloo")
size, rank = dist.get_world_size(), dist.get_rank()
dist.broadcast(begun := torch.tensor([begin]), 0)  # so that all ranks begin at one instant
for number in range(8):
    time.sleep((begun.item() + number * 200_000_000 + 100_000_000 - time.monotonic_ns()) / 1e9)
    dist.all_reduce(torch.full((2_000_000,), float(rank)))
dist.destroy_process_group()
"""


def test_a_script_with_measured_ends_gets_what_the_testbeds_own_collectives_get(tmp_path: Path, python: Path) -> None:
    """Under conditions that change before each collective, both choose by what their messages have shown."""
    (tmp_path / "script.py").write_text(ALLREDUCES)
    (tmp_path / "ends.toml").write_text(ENDS)
    sets = ("program.backend=longhaul", 'program.memory="6 GB"', 'program.preload=["torch"]')
    options = [word for one in sets for word in ("--set", one)]
    ended("ends.toml", *options, "--out", "run", "--exec", f"{python} script.py", cwd=tmp_path)
    answer(tmp_path / "own", "ends.toml", "--engine", "emulation")
    ours = [row for row in collectives(tmp_path / "run") if row["kind"] == "allreduce"]
    own = rows(tmp_path / "own").query("engine == 'emulation'")
    assert len(ours) == len(own) == 8
    (config,), paths = scenario_of(ENDS).configurations(), set()
    for script, (_, testbed) in zip(ours, own.iterrows(), strict=True):
        ring = [f"g{gpu}" for gpu in testbed.ring]
        assert script["placement"] == " ".join(ring)
        of_flow = zip(*config.workload.schedule.ends, testbed.paths, strict=True)
        taken = {f"{ring[src]}>{ring[dst]}": path for src, dst, path in of_flow if path >= 0}
        names = dict(one.split(":") for one in script["paths"].split())
        assert names == {pair: PATHS[path] for pair, path in taken.items()}
        paths.add(script["paths"])
        assert float(script["completion_s"]) == pytest.approx(testbed.completion_s, rel=5e-4)
    assert len(paths) > 3  # it has learnt
    assert (tmp_path / "run" / "measured.csv").read_text().count("\n") > 40


def test_a_training_script_is_the_same_to_the_ns_in_every_run_and_faster_where_it_is_re_routed(
    tmp_path: Path, python: Path
) -> None:
    sets = ("program.backend=longhaul", 'program.memory="6 GB"', 'program.preload=["torch"]', "program.gpu=h100")
    options = [word for one in sets for word in ("--set", one)]

    def run(name: str) -> list[dict[str, str]]:
        command = ("--modes", "base,joint", "--gpus", "4", *options, "--json", "--out", name)
        ended("paper", *command, "--exec", f"{python} {PROJECT}/docs/examples/train.py", cwd=tmp_path)
        return [*collectives(tmp_path / name / "1"), *collectives(tmp_path / name / "2")]

    first = run("first")
    assert run("second") == first
    found = json.loads((tmp_path / "first" / "program.json").read_text())["configurations"]
    base, joint = (one["step_s"] for one in found)
    assert joint < base
    texts = [(tmp_path / "first" / str(number) / "output" / "0.stdout").read_text() for number in (1, 2)]
    losses = [re.findall(r"loss ([0-9.]+)", text) for text in texts]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    for number, one in enumerate(found, 1):
        check_steps(tmp_path / "first" / str(number), one)
    assert found[1]["script_steps"]["exposed_s"] < found[0]["script_steps"]["exposed_s"]
    assert (tmp_path / "first/figures/step-parts.svg").exists()
    check_trace(tmp_path, tmp_path / "first" / "1")


def check_steps(folder: Path, result: dict[str, Any]) -> None:
    """The parts of a step against other records of the run: its time as the rank told it, the collectives as the run
    saw them, and what the GPU was charged."""
    table = list(csv.DictReader((folder / "script_steps.csv").open()))
    told = {(row["rank"], row["step"]): float(row["step_s"]) for row in csv.DictReader((folder / "steps.csv").open())}
    assert {(row["rank"], row["step"]) for row in table} == told.keys() and len(told) == 12
    spans = [(float(row["first_begun_s"]), float(row["ended_s"])) for row in collectives(folder)]
    for row in table:
        step_s, computing_s, exposed_s, waiting_s = (
            float(row[name]) for name in ("step_s", "computing_s", "exposed_s", "waiting_s")
        )
        assert step_s == pytest.approx(told[row["rank"], row["step"]], abs=1e-9)
        assert computing_s + exposed_s + waiting_s == pytest.approx(step_s, abs=1e-12)
        # One after the other, collectives run on a rank within their spans of all ranks.
        begin_s, end_s = float(row["begin_s"]), float(row["end_s"])
        possible_s = sum(max(0.0, min(ended, end_s) - max(begun, begin_s)) for begun, ended in spans)
        assert 0.5 * possible_s < float(row["communication_s"]) < possible_s + 1e-9
        assert waiting_s < 1e-6  # DistributedDataParallel is never idle without a collective
    charged_s = result["gpu_accounts"][0]["charged_s"]
    computed_s = sum(float(row["computing_s"]) for row in table if row["rank"] == "0")
    assert 0.5 * charged_s < computed_s < charged_s  # the model's initialisation and the first step are in no row
    of_kinds = result["script_steps"]["exposed_by_kind"]
    assert sum(of_kinds.values()) == pytest.approx(result["script_steps"]["exposed_s"])
    assert of_kinds["allreduce"] > 10 * of_kinds["broadcast"]


def check_trace(folder: Path, run: Path) -> None:
    """The trace read back as a job, under the same conditions by the model, takes the time of its steps."""
    steps = list(csv.DictReader((run / "script_steps.csv").open()))
    took_s = max(float(row["end_s"]) for row in steps) - min(float(row["begin_s"]) for row in steps)
    given = ("collective.kind=trace", f"collective.schedule={run}/chakra/trace.*.et", "collective.count=1")
    answer(folder / "trace", "paper", "--modes", "base", "--gpus", "4", "--engine", "model", sets=given)
    # The model has a rank's collective end with its last message in, and the backend also with its last one handed
    # over, so the model is a little faster.
    assert float(rows(folder / "trace").completion_s.iloc[0]) == pytest.approx(took_s, rel=0.03)


GPT2 = 50304 * 768 + 1024 * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768
"""The parameters of `docs/examples/train.py gpt2`, whose gradients are of float32."""


def gpt2(tmp_path: Path, python: Path, name: str, *options: str) -> tuple[float, list[dict[str, str]]]:
    """Return the time of the last step of GPT-2 by fake tensors, and the rows of its AllReduces."""
    sets = ("program.gpu=h100", "program.tensors=fake", "program.backend=longhaul", 'program.preload=["torch"]')
    more = ('program.memory="6 GB"', 'conditions.wan_rate="10 Gbit/s"', 'conditions.intra_rate="100 Gbit/s"')
    given = [word for one in (*sets, *more) for word in ("--set", one)]
    command = ("--modes", "base", *options, *given, "--json", "--out", name)
    found = json.loads(
        ended("paper", *command, "--exec", f"{python} {PROJECT}/docs/examples/train.py gpt2", cwd=tmp_path)[0]
    )
    rows = collectives(tmp_path / name) if len(found["gpu_accounts"]) > 1 else []
    last = list[dict[str, str]]()
    while rows and sum(int(row["size_bytes"]) for row in last) < 4 * GPT2:
        row = rows.pop()
        last[:0] = [row] if row["kind"] == "allreduce" else []
    return max(step_s for _, number, step_s in found["steps"] if number == found["steps"][-1][1]), last


def ring_ends(begun_s: Sequence[float], taken_s: Sequence[float], delay_s: Sequence[float]) -> list[float]:
    """Return when a ring AllReduce ends at each place, by alpha and beta: a place passes on a chunk when it has it and
    has passed on the one before; that takes `taken_s` and is there `delay_s` later."""
    has = free = list(begun_s)
    for _ in range(2 * (len(begun_s) - 1)):
        free = [max(pair) + takes for *pair, takes in zip(has, free, taken_s, strict=True)]
        has = [free[place - 1] + delay_s[place - 1] for place in range(len(free))]
    return [max(pair) for pair in zip(has, free, strict=True)]


@pytest.fixture(scope="module")
def kernels_s(tmp_path_factory: pytest.TempPathFactory, python: Path) -> float:
    """The time of a step of GPT-2 on one GPU."""
    return gpt2(tmp_path_factory.mktemp("gpt2"), python, "alone", "--set", "program.ranks=[0]")[0]


@pytest.mark.parametrize("delay_ms", [0.01, 5.0, 10.0, 20.0])
def test_a_step_of_gpt2_takes_its_kernels_and_the_collectives_that_do_not_overlap_them(
    tmp_path: Path, python: Path, kernels_s: float, capsys: pytest.CaptureFixture[str], delay_ms: float
) -> None:
    """A rank begins a bucket's AllReduce when it is computed and when the rank's part in the one before has ended.

    The kernels' time is that of the same script on one GPU. What is computed after the first bucket overlaps.
    """
    step_s, buckets = gpt2(tmp_path, python, "run", "--wan-delay", f"{delay_ms} ms")
    assert sum(int(row["size_bytes"]) for row in buckets) == 4 * GPT2
    assert {row["algorithm"] for row in buckets} == {"ring"}
    ready_s = [float(row["first_asked_s"]) - float(buckets[0]["first_asked_s"]) for row in buckets]
    sites = [int(gpu.removeprefix("g")) // 4 for gpu in buckets[0]["placement"].split()]
    crosses = [site != sites[(place + 1) % 8] for place, site in enumerate(sites)]
    ends_s, before_s = [0.0] * 8, [0.0] * 8
    for _ in range(5):  # until ranks begin as far apart as in the step before
        before_s, first_s = ends_s, [end_s + kernels_s - ready_s[-1] for end_s in ends_s]
        ends_s = first_s
        for row, after_s in zip(buckets, ready_s, strict=True):
            chunk_bits = int(row["size_bytes"])  # an eighth of the bucket, in bits
            begun_s = [max(end_s, at_s + after_s) for end_s, at_s in zip(ends_s, first_s, strict=True)]
            taken_s = [chunk_bits / (10e9 if wan else 100e9) for wan in crosses]
            ends_s = ring_ends(begun_s, taken_s, [delay_ms / 1e3 if wan else 1e-6 for wan in crosses])
    expected_s = max(end_s - one_s for end_s, one_s in zip(ends_s, before_s, strict=True))
    with capsys.disabled():
        print(f"\n{delay_ms} ms: {len(buckets)} buckets, kernels {kernels_s:.6f} s", end="")
        print(f", step {step_s:.6f} s, expected {expected_s:.6f} s", end="")
    assert step_s == pytest.approx(expected_s, rel=0.02)
