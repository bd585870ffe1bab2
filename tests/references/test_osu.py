"""The OSU micro-benchmarks, also mpi4py's of Python, over a WAN: times and bytes are those of the messages.

Each collective has an algorithm that the library is told to use; the fluid model times the same messages, and the
barriers between. Run with ``pytest -m references``.
"""

import csv
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.runs import ended
from tests.references.conftest import Record
from tests.references.debian import needed
from tests.references.mpi_libraries import MPI4PY, MPI4PY_VERSION, MPICH, MPICH_VERSION, OPEN_MPI, of_pypi
from tests.references.osu import POINT_TO_POINT, Case, Library, Result, predicted, printed
from tests.references.page import FAILED, PASSED, Outcome, Suite

pytestmark = pytest.mark.references

HOW = "git clone https://github.com/forresti/osu-micro-benchmarks"
OSU = ("5.3", "github.com/forresti/osu-micro-benchmarks")
SUITES = {
    "Open MPI": (OPEN_MPI, *OSU, "Debian's Open MPI announces messages of 64 kB or more, in the AllReduce of 2 MiB."),
    "MPICH": (MPICH, *OSU, f"PyPI's MPICH {MPICH_VERSION} announces messages of 2 MiB or more."),
    "mpi4py": (MPI4PY, MPI4PY_VERSION, "PyPI's mpi4py", f"All is in Python, under PyPI's MPICH {MPICH_VERSION}."),
}
"""The cases, the version and the source of the programs, and what is particular."""
WHAT = (
    "OSU micro-benchmarks on 2 to {} ranks, in two sites with a round trip of 20 ms, each collective by an algorithm "
    "that the library is told to use. A program passes if the numbers that it prints are within 1 % of what the fluid "
    "model predicts for its messages, and its bytes on the WAN within 2 % of those of its algorithm, besides those of "
    "starting its processes. {}"
)
SCENARIO = (
    *("--gpus", "16", "--modes", "base", "--wan-delay", "10 ms"),
    *("--set", 'conditions.wan_rate="1 Gbit/s"', "--set", 'conditions.intra_rate="10 Gbit/s"'),
)
FRAMES = 9014 / 8948  # bytes of a frame for each of the payload
AGREES = 0.01  # numbers that programs print
CARRIES = 0.02  # bytes on the WAN


def script(library: Library, folder: Path) -> Iterator[str]:
    """Yield the lines of a shell script that runs all cases, each after a line with its number and a time."""
    for number, case in enumerate(library.cases):
        hosts = ",".join(f"g{site * 8 + at}" for site in (0, 1) for at in range(case.ranks // 2))
        told = [f"{library.told}{one}" for one in dict.fromkeys((library.barrier.told, case.told)) if one]
        words = [library.run, "-n", str(case.ranks), library.hosts, hosts, *told, command(library, case, folder)]
        yield f'echo "# {number} $(date +%s.%N)"'
        yield " ".join(words)
    yield 'echo "# end $(date +%s.%N)"'


def command(library: Library, case: Case, folder: Path) -> str:
    """Return the command of a rank, with OSU's compiled programs or mpi4py's in `folder`."""
    skipped, counted, most = case.skipped, case.counted, max(case.sizes)
    if library.compiler:
        size = "" if case.program in POINT_TO_POINT else f"-f -m {most}:{most} " if most else "-f "
        return f"{folder}/osu_{case.program} {size}-i {counted} -x {skipped}"
    times = ", ".join(f"skip{which}={skipped}, loop{which}={counted}" for which in ("", "_large"))
    lines = (
        f'import sys; sys.path.append("{folder}"); import osu_{case.program} as osu',
        f"osu.message_sizes = lambda _: {list(case.sizes)}",
        f"osu.osu_{case.program}({times}, MAX_MSG_SIZE={most})",
    )
    return f"python -c '{'; '.join(lines)}'"


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


def compiled(library: Library, sources: Path, folder: Path) -> None:
    """Compile a library's programs of OSU into a folder."""
    for program in {case.program for case in library.cases}:
        kind, shared = ("pt2pt", "osu_pt2pt.c") if program in POINT_TO_POINT else ("collective", "osu_coll.c")
        there = sources / "mpi" / kind
        files = [there / f"osu_{program}.c", there / shared, f"-I{there}", "-o", folder / f"osu_{program}"]
        subprocess.run([library.compiler, "-O2", "-w", '-DPACKAGE_VERSION="5.3"', *files, "-lm"], check=True)


def measured(library: Library, folder: Path, programs: Path) -> Mapping[str, Outcome]:
    """Run all cases in one VM, and compare each with what is predicted."""
    (folder / "all.sh").write_text("\n".join(script(library, programs)))
    keys = ("--set", f"program.env={{{library.environment}}}")
    commands = ("--exec", "g0: sh all.sh", "--exec", "others: sshd")
    ended(*SCENARIO, *keys, "--out", "run", *commands, cwd=folder, env=os.environ.copy())
    parts = re.split(r"(?m)^# (\d+|end) (\d+\.\d+)\n", (folder / "run/output/0.stdout").read_text())[1:]
    at_s = [float(one) - float(parts[1]) for one in parts[1::3]]
    sent = [carried(folder / "run/links.csv", link, at_s) for link in ("s0b0>s1b0", "s1b0>s0b0")]
    spans = [[link[at + 1] - link[at] for link in sent] for at in range(len(library.cases))]
    # Starting n processes tells each of them the addresses of all.
    eight = spans[list(library.cases).index(library.barrier)]
    started = {n: [max(1, (n / library.barrier.ranks) ** 2) * site for site in eight] for n in (2, 4, 8, 16)}
    return {
        case.name: outcome(printed(text), span, predicted(library, case), started[case.ranks])
        for case, text, span in zip(library.cases, parts[2::3], spans, strict=False)
    }


@pytest.mark.parametrize("name", SUITES)
def test_osu_micro_benchmarks_take_what_the_fluid_model_predicts_for_their_messages(
    name: str, material: Callable[[str, str], Path], record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, version, source, particular = SUITES[name]
    sources = material("osu-micro-benchmarks", HOW) if library.compiler else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if library is OPEN_MPI:
            needed("mpicc.openmpi", packages="openmpi-bin libopenmpi-dev")
        else:
            programs, mpi4py = stack.enter_context(of_pypi())
            monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        if sources:
            compiled(library, sources, folder)

        def run() -> Mapping[str, Outcome]:
            with tempfile.TemporaryDirectory(dir=folder) as there:
                return measured(library, Path(there), folder if sources else mpi4py / "demo")

        what = WHAT.format(max(case.ranks for case in library.cases), particular)
        outcomes = record(Suite(f"OSU micro-benchmarks, {name}", version, source, what), run)
    assert not [case for case, one in outcomes.items() if one.kind == FAILED]
    assert len(outcomes) == len(library.cases)
