"""The example programs of msccl-tools: schedules that others wrote are proven, and take what is predicted.

Each program prints a schedule as MSCCL's XML, which is read as users' files are. Run with ``pytest -m references``.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from hosts.collectives.schedule import ScheduleError
from scenarios import api
from tests.conftest import own_python
from tests.references.conftest import Record, commit
from tests.references.page import FAILED, PASSED, SKIPPED, Outcome, Suite

pytestmark = pytest.mark.references

HOW = "git clone https://github.com/microsoft/msccl-tools"
NEEDED = ["z3-solver", "argcomplete", "lxml", "humanfriendly", "tabulate", "igraph"]  # of its setup.py
OF_GPUS = ("8 1", "16 1")  # GPUs and instances
PROGRAMS: dict[str, tuple[str, ...]] = {
    "allgather_a100_pcie": OF_GPUS,
    "allgather_allpairs": OF_GPUS,
    "allgather_recursive_doubling": OF_GPUS,
    "allgather_ring": ("8 1 1", "16 1 1", "8 2 1"),
    "allreduce_1step": OF_GPUS,
    "allreduce_a100_allpairs": OF_GPUS,
    "allreduce_a100_allpairs_v2": OF_GPUS,
    "allreduce_a100_multinode_allpairs": ("4 1", "8 1"),  # GPUs of each of two nodes
    "allreduce_a100_ncv4": OF_GPUS,
    "allreduce_a100_ncv4_v2": OF_GPUS,
    "allreduce_a100_pcie_hierarchical": OF_GPUS,
    "allreduce_a100_recursive_doubling_halving": ("1 1", "2 1"),
    "allreduce_a100_ring": ("8 1 1", "16 1 1", "8 4 1"),
    "allreduce_binomial_tree": ("8 1 1", "16 1 1"),
    "allreduce_dgx1": ("1 1", "2 1"),
    "allreduce_ndv2": ("1",),
    "allreduce_recursive_doubling_halving": OF_GPUS,
    "alltoall_a100_three_step": ("2 4 1", "2 8 1"),
    "alltoall_a100_two_step": ("2 4", "2 8"),
    "alltoall_allpairs": OF_GPUS,
    "alltonext_backward": ("1 1", "2 1"),
    "alltonext_forward": ("1 1", "2 1"),
    "hierarchical_allreduce": ("4 2 1", "8 2 1"),
    "pipeline_a100_allpairs": ("4 1", "8 1"),  # GPUs of each of two nodes
    "pipeline_a100_ring": ("4 1 1", "8 1 1"),
    "reducegather": ("8 2", "16 2"),
    "simple/allgather_ring": ("",),
    "simple/allreduce_ring": OF_GPUS,
    "simple/custom_collective": ("",),
}
"""Arguments of each program, for 8 and 16 GPUs where it takes their number."""
MEASURED_GPUS = 8  # larger schedules are predicted only
AGREES = 0.005


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with what msccl-tools imports."""
    with own_python(NEEDED) as found:
        yield found


def printed(python: Path, folder: Path, program: str, arguments: str) -> str | Outcome:
    """Return the schedule that a program prints, or that it is skipped, if there is none or if msccl-tools' own
    check, which writes below it, does not pass."""
    command = [python, f"examples/mscclang/{program}.py", *arguments.split()]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        return Outcome(SKIPPED, f"the program itself ends with {ran.stderr.strip().splitlines()[-1]}")
    text, end, rest = ran.stdout.partition("</algo>")
    if "is incorrect" in rest:
        return Outcome(SKIPPED, "msccl-tools' own check finds the result incorrect")
    return text + end


def outcome(path: Path, text: str) -> Outcome:
    """Run a schedule in the model, up to 8 GPUs also in the emulation."""
    path.write_text(text)
    gpus = int(re.findall(r'ngpus="(\d+)"', text)[0])
    kind = re.findall(r'coll="(\w+)"', text)[0]
    values = {
        "fabric.gpus": [gpus - gpus // 2, gpus // 2],
        "run.modes": ["base"],
        "collective.kind": "messages" if kind == "custom" else kind,
        "collective.schedule": str(path),
        "collective.chunk": "8 MB",  # messages of 1 MB that share links are up to 1 % off (docs/sharing.md)
        "collective.count": 1,
        "collective.emulated": 1,
    }
    try:
        config = api.scenario("paper", values)
        found = api.run(config, "both" if gpus <= MEASURED_GPUS else "model")
    except (ScheduleError, ValueError) as error:
        return Outcome(SKIPPED, f"refused: {str(error).rpartition(f'{path.name}: ')[2].partition('; allowed')[0]}")
    except api.RunError as error:
        return Outcome(FAILED, str(error))
    times = {str(one.engine): float(one.completion_s) for one in found.itertuples()}
    if times["model"] < float(found.bound_s.iloc[0]) * (1 - 1e-9):
        return Outcome(FAILED, f"{times['model']:.9f} s are predicted, less than the lower bound")
    if abs(times.get("emulation", times["model"]) / times["model"] - 1) > AGREES:
        return Outcome(FAILED, f"{times['emulation']:.9f} s were measured, {times['model']:.9f} s predicted")
    return Outcome(PASSED)


def test_schedules_of_msccl_tools_are_proven_or_refused_and_take_what_is_predicted(
    tmp_path: Path, python: Path, material: Callable[[str, str], Path], record: Record
) -> None:
    folder = material("msccl-tools", HOW)
    version = commit(folder)

    schedules = dict[str, tuple[Path, str | Outcome]]()
    for program, several in PROGRAMS.items():
        for number, arguments in enumerate(several):
            path = tmp_path / f"{Path(program).name}-{number}.xml"
            schedules[f"{program} {arguments}".strip()] = path, printed(python, folder, program, arguments)

    def run() -> Mapping[str, Outcome]:
        return {
            name: outcome(path, text) if isinstance(text, str) else text for name, (path, text) in schedules.items()
        }

    what = (
        "Every example program of msccl-tools, for 8 and 16 GPUs where it takes their number: a schedule passes if it "
        "is proven to do its collective, takes no less than the lower bound, and is measured within 0.5 % of what is "
        "predicted (blocks of 8 MB, up to 8 GPUs)."
    )
    outcomes = record(Suite("msccl-tools", version, "github.com/microsoft/msccl-tools", what), run)
    assert not [name for name, one in outcomes.items() if one.kind == FAILED]
    assert len({name.split()[0] for name, one in outcomes.items() if one.kind == PASSED}) >= 15
