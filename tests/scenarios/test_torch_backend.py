"""The backend `longhaul` of torch.distributed against Gloo, between processes on this machine (``pytest -m torch``).

The tests install PyTorch into a virtual environment of its own, as `test_torch` does.
"""

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scenarios.program.session import TOOLS
from tests.conftest import PROJECT, own_python
from tests.fakes.planner import Planner
from tests.scenarios.test_torch import TORCH

pytestmark = pytest.mark.torch

GUEST = PROJECT / "tests/guest"


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with PyTorch, which sends objects with numpy."""
    with own_python([TORCH, "numpy"]) as found:
        yield found


@dataclass(frozen=True)
class Ended:
    """How a rank ended, and what it has asked the planner."""

    status: int
    out: str
    err: str
    asked: list[dict[str, Any]]


def run_ranks(
    python: Path, command: Sequence[str], *, ranks: int, folder: Path, connects: bool = True, seed: int = 0, **env: str
) -> list[Ended]:
    """Run a command in each rank, with a planner; all output is that of the ranks, in order."""
    folder.mkdir(exist_ok=True)
    planner = Planner(folder, seed=seed, connects=connects)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    processes = [
        subprocess.Popen(
            [python, *command],
            env={
                **kept,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "PYTHONPATH": str(TOOLS),
                "LONGHAUL_COLLECTIVES": str(planner.socket_of(rank)),
                **env,
            },
            stdout=(folder / f"{rank}.out").open("w"),
            stderr=(folder / f"{rank}.err").open("w"),
        )
        for rank in range(ranks)
    ]
    try:
        statuses = [process.wait(500) for process in processes]
    finally:
        for process in processes:
            process.kill()
        planner.close()
    outputs = [[(folder / f"{rank}.{name}").read_text() for name in ("out", "err")] for rank in range(ranks)]
    return [
        Ended(status, *output, [asked for by, asked in planner.asked if by == rank])
        for rank, (status, output) in enumerate(zip(statuses, outputs, strict=True))
    ]


@pytest.mark.parametrize(("ranks", "cases", "connects"), [(2, 150, True), (4, 250, False), (5, 200, True)])
def test_random_collectives_equal_gloos(tmp_path: Path, python: Path, ranks: int, cases: int, connects: bool) -> None:
    command = [str(GUEST / "torch_cases.py"), str(ranks), str(cases)]
    ended = run_ranks(python, command, ranks=ranks, folder=tmp_path / "run", connects=connects, seed=ranks)
    for one in ended:
        assert one.status == 0, one.err
        (last,) = one.out.splitlines()  # no difference
        assert last.endswith(" cases") and int(last.split()[0]) > cases / 8


def test_models_that_it_trains_have_gloos_weights(tmp_path: Path, python: Path) -> None:
    found = {}
    for backend in ("gloo", "longhaul"):
        command = [str(GUEST / "torch_training.py"), backend]
        ended = run_ranks(python, command, ranks=4, folder=tmp_path / backend)
        assert [one.status for one in ended] == [0] * 4, ended[0].err
        found[backend] = [json.loads(one.out) for one in ended]
        assert all(one["backend"] == backend for one in found[backend])
    for gloo, ours in zip(found["gloo"], found["longhaul"], strict=True):
        for name in ("ddp", "fsdp", "hsdp"):
            assert ours[name] == pytest.approx(gloo[name], rel=1e-6, abs=1e-12)
    assert found["longhaul"][0]["ddp"] == found["longhaul"][3]["ddp"]


@pytest.mark.parametrize("named", ["nccl", "gloo", "cpu:gloo,cuda:nccl", "none"])
def test_a_script_that_names_another_backend_gets_it_without_an_edit(tmp_path: Path, python: Path, named: str) -> None:
    command = [str(GUEST / "torch_training.py"), named]
    ended = run_ranks(python, command, ranks=2, folder=tmp_path / "run", LONGHAUL_BACKEND="longhaul")
    assert [one.status for one in ended] == [0, 0], ended[0].err
    assert all(json.loads(one.out)["backend"] == "longhaul" for one in ended)
    said = [[line for line in one.err.splitlines() if line.startswith("longhaul:")] for one in ended]
    what = "groups without a named backend have" if named == "none" else f'groups of the backend "{named}" have'
    assert said == [[f'longhaul: {what} the backend "longhaul" instead (LONGHAUL_BACKEND)'], []]


def test_failures_are_sentences_that_name_the_group_the_collective_and_the_ranks(tmp_path: Path, python: Path) -> None:
    command = [str(GUEST / "torch_failures.py")]
    ended = run_ranks(python, command, ranks=3, folder=tmp_path / "run")
    assert [one.status for one in ended] == [0, 7, 0], ended[0].err
    said = [dict(line.split(": ", 1) for line in one.out.splitlines()) for one in ended]
    number = 'all_reduce number {} ({} bytes) of the group "{}"'
    late = f"{number.format(0, 40, 1)} failed on rank 0: it did not end within 1 s: nothing came from rank 2 ("
    assert said[0]["late"].startswith(late)
    assert "rank 0 gave up all_reduce number 0 (40 bytes), as it did not end within 1 s" in said[0]["after"]
    assert "send of 40 bytes with tag 0 to rank 2" in said[0]["message"]
    assert "did not end within the 0.5 s of wait() on rank 0: nothing came from rank 1" in said[0]["wait"]
    assert (said[0]["no end"], said[0]["future"]) == ("nothing", "2")
    assert "(40 bytes)" in said[1]["sizes"] and "rank 0 sent transfer" in said[1]["sizes"]
    assert "of allreduce number 0 with 40 bytes was due" in said[1]["sizes"]
    assert "allgather number 0" in said[1]["kinds"] and "reducescatter number 0" in said[1]["kinds"]
    assert "rank 0 sent 8 bytes with tag 0, where 12 bytes are to be received" in said[1]["unequal"]
    assert said[0]["no such"].startswith("the backend longhaul has no BAND of torch.float32 (ValueError")
    assert "allowed: torch.strided" in said[0]["sparse"]
    assert "without data (fake or meta)" in said[0]["fake"]
    assert said[0]["seen"] == "[]"  # a mode that charges a GPU's time counts only what the script computes
    assert "cannot send to rank 0; allowed: the other ranks of 0 to 2" in said[0]["self"]
    assert "4 rows is to be split evenly among 3 ranks" in said[0]["split"]
    for rank in (0, 1):
        assert "rank 2 gave up the group, as the group was aborted" in said[rank]["abort"]
    for rank in (0, 2):
        assert "rank 1 ended or closed its connections" in said[rank]["dies"]
        assert said[rank]["dies"].endswith("(DistBackendError, 0 s)")
        assert "recv of 4 bytes with tag 0 from rank 1" in said[rank]["awaited"]


def test_outside_of_a_run_a_sentence_says_where_it_exists(python: Path) -> None:
    script = (
        "import torch.distributed as d; d.init_process_group('longhaul', store=d.HashStore(), rank=0, world_size=1)"
    )
    ended = subprocess.run([python, "-c", script], env={"PYTHONPATH": str(TOOLS)}, capture_output=True, text=True)
    expected = "the backend longhaul exists in a program that `run.py --exec` starts: LONGHAUL_COLLECTIVES is not set"
    assert ended.returncode == 1 and expected in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("environment", [{}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}])
def test_it_is_registered_by_torch_or_by_an_import_and_never_imports_torch_itself(
    python: Path, environment: dict[str, str]
) -> None:
    script = """
import sys
before = "torch" in sys.modules
import torch.distributed as dist
print(before, "LONGHAUL" in dist.Backend._plugins, "longhaul_torch.group" in sys.modules)
import longhaul_torch
print("LONGHAUL" in dist.Backend._plugins, dist.Backend.default_device_backend_map["cpu"])
"""
    ended = subprocess.run(
        [python, "-c", script],
        env={"PYTHONPATH": str(TOOLS), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == [f"False {not environment} False", "True gloo"]


ATTACHES = """
import datetime, torch, torch.distributed as dist
dist.init_process_group("longhaul", timeout=datetime.timedelta(seconds=60))
def after(future):
    again = future.value()[0] * 2
    dist.all_reduce(again)
    return again
work = dist.all_reduce(torch.ones(4), async_op=True)
print(work.get_future().then(after).wait().tolist())
dist.destroy_process_group()
"""


def test_what_is_attached_to_a_future_may_issue_a_collective_and_wait_for_it(python: Path, tmp_path: Path) -> None:
    for one in run_ranks(python, ["-c", ATTACHES], ranks=2, folder=tmp_path / "run"):
        assert one.status == 0, one.err
        assert one.out.split("\n")[0] == "[8.0, 8.0, 8.0, 8.0]"
