"""The OSU micro-benchmarks under Open MPI and MPICH over a WAN: latency, bandwidth and bytes are those of the messages.

Each collective has an algorithm that the library is told to use; the fluid model times the same messages, and the
barriers between. Run with ``pytest -m references``. It takes some 8 minutes of processor time, and all is run twice.
"""

import csv
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.conftest import own_python
from tests.fakes.runs import ended
from tests.references.conftest import Record
from tests.references.mpi_libraries import CASES, ITERATIONS, LIBRARIES, Result, predicted
from tests.references.page import FAILED, PASSED, Outcome, Suite

pytestmark = pytest.mark.references

HOW = "git clone https://github.com/forresti/osu-micro-benchmarks"
SCENARIO = (
    *("--gpus", "8", "--modes", "base", "--wan-delay", "10 ms"),
    *("--set", 'conditions.wan_rate="1 Gbit/s"', "--set", 'conditions.intra_rate="10 Gbit/s"'),
)
FRAMES = 9014 / 8948  # bytes of a frame for each of the payload
AGREES = 0.01  # numbers that programs print
CARRIES = 0.02  # bytes on the WAN


def script(name: str, binaries: Path) -> Iterator[str]:
    """Yield the lines of a shell script that runs a library's programs, each after a line with its name and a time."""
    run, hosts, told, cases = LIBRARIES[name].run, LIBRARIES[name].hosts, LIBRARIES[name].told, CASES[name]
    for program, (skipped, times) in ITERATIONS.items():
        yield f'echo "# {program} $(date +%s.%N)"'
        case = cases.get(program)
        if case is None:
            yield f"{run} -n 2 {hosts} g0,g4 {binaries}/osu_{program} -i {times} -x {skipped}"
        else:
            how = "".join(f"{told}{one} " for one in dict.fromkeys((cases["barrier"].told, case.told)))
            size = f"-m {case.size}:{case.size} " * (case.size > 0)
            yield f"{run} -n {case.ranks} {how} {binaries}/osu_{program} -f {size}-i {times} -x {skipped}"
    yield 'echo "# end $(date +%s.%N)"'


def printed(text: str) -> dict[int, float]:
    """Return the numbers that a program has printed, by size; a barrier has none."""
    rows = re.findall(r"(?m)^ *(\d+) +(\d+\.\d+)", text) or [
        ("0", one) for one in re.findall(r"(?m)^ +(\d+\.\d+)", text)
    ]
    return {int(size): float(number) for size, number in rows}


def carried(path: Path, link: str, at_s: Sequence[float]) -> list[int]:
    """Return what a WAN link had carried at these times of the run (links.csv), in bytes."""
    with path.open(newline="") as file:
        rows = [(float(row["time_s"]), int(row["bytes"])) for row in csv.DictReader(file) if row["link"] == link]
    return [max(carried for time_s, carried in rows if time_s <= until + 1e-3) for until in at_s]


def outcome(got: dict[int, float], bytes_: Sequence[float], wanted: Result, started: Sequence[float]) -> Outcome:
    """Compare a program's numbers and its bytes over the WAN, from site 0 and 1; `started` are those of starting it."""
    if got.keys() != wanted.printed.keys():
        return Outcome(FAILED, f"it printed sizes {sorted(got)}, not {sorted(wanted.printed)}")
    for size, value in wanted.printed.items():
        if abs(got[size] - value) > AGREES * value + 0.005:  # two decimals
            return Outcome(FAILED, f"{size} bytes: {got[size]:.2f}, predicted {value:.2f}")
    for site, (sent, payload) in enumerate(zip(bytes_, wanted.wan_bytes, strict=True)):
        if abs(sent - payload * FRAMES) > CARRIES * max(wanted.wan_bytes) + started[site]:
            return Outcome(FAILED, f"{sent:,.0f} bytes left site {site}, {payload * FRAMES:,.0f} by the algorithm")
    return Outcome(PASSED)


@pytest.fixture(scope="module")
def mpich() -> Iterator[Path]:
    """The programs of an environment with MPICH of PyPI."""
    with own_python(["mpich"]) as python:
        yield python.parent


def measured(name: str, sources: Path, folder: Path, path: str) -> Mapping[str, Outcome]:
    """Compile a library's programs, run them all in one VM, and compare each with what is predicted."""
    library, binaries = LIBRARIES[name], folder / "bin"
    binaries.mkdir()
    environment = os.environ | {"PATH": path}
    for program in ITERATIONS:
        kind, shared = ("pt2pt", "osu_pt2pt") if program in ("latency", "bw") else ("collective", "osu_coll")
        there = sources / "mpi" / kind
        files = [there / f"osu_{program}.c", there / f"{shared}.c", f"-I{there}", "-o", binaries / f"osu_{program}"]
        command = [library.compiler, "-O2", "-w", '-DPACKAGE_VERSION="5.3"', *files, "-lm"]
        subprocess.run(command, env=environment, check=True)
    (folder / "all.sh").write_text("\n".join(script(name, binaries)))
    keys = ("--set", f"program.env={{{library.environment}}}")
    commands = ("--exec", "g0: sh all.sh", "--exec", "others: sshd")
    ended(*SCENARIO, *keys, "--out", "run", *commands, cwd=folder, env=environment)
    parts = re.split(r"(?m)^# (\w+) (\d+\.\d+)\n", (folder / "run/output/0.stdout").read_text())[1:]
    at_s = [float(one) - float(parts[1]) for one in parts[1::3]]
    sent = [carried(folder / "run/links.csv", link, at_s) for link in ("s0b0>s1b0", "s1b0>s0b0")]
    spans = {one: [link[at + 1] - link[at] for link in sent] for at, one in enumerate(parts[:-3:3])}
    return {
        f"{name}: osu_{one}": outcome(printed(text), spans[one], predicted(name, one), spans["barrier"])
        for one, text in zip(parts[:-3:3], parts[2::3], strict=False)
    }


def test_osu_micro_benchmarks_take_what_the_fluid_model_predicts_for_their_messages(
    tmp_path: Path, mpich: Path, material: Callable[[str, str], Path], record: Record
) -> None:
    sources = material("osu-micro-benchmarks", HOW)
    paths = {"Open MPI": os.environ["PATH"], "MPICH": f"{mpich}:{os.environ['PATH']}"}

    def run() -> Mapping[str, Outcome]:
        outcomes = dict[str, Outcome]()
        for name, path in paths.items():
            with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
                outcomes |= measured(name, sources, Path(folder), path)
        return outcomes

    what = (
        "Eight of the OSU micro-benchmarks on 2 and 8 ranks, in two sites with a round trip of 20 ms, under Debian's "
        "Open MPI and PyPI's MPICH, each collective by an algorithm that the library is told to use. A program passes "
        "if each number that it prints is within 1 % of what the fluid model predicts for its messages, and its bytes "
        "on the WAN are within 2 % of those of its algorithm, besides those of starting its processes. Open MPI "
        "announces messages of 64 kB or more, MPICH those of 2 MiB or more."
    )
    outcomes = record(Suite("OSU micro-benchmarks", "5.3", "github.com/forresti/osu-micro-benchmarks", what), run)
    assert not [name for name, one in outcomes.items() if one.kind == FAILED]
    assert len(outcomes) == len(ITERATIONS) * len(LIBRARIES)
