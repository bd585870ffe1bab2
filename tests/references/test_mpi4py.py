"""Part of mpi4py's own tests passes under MPICH on three hosts in two sites, in virtual time.

Run with ``pytest -m references``; nothing has to be put anywhere.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.fakes.runs import ended
from tests.references.conftest import Record
from tests.references.mpi_libraries import MPI4PY_VERSION, MPICH_VERSION, of_pypi
from tests.references.page import FAILED, PASSED, SKIPPED, Outcome, Suite

pytestmark = pytest.mark.references

SCENARIO = (
    *("--gpus", "4", "--modes", "base", "--wan-delay", "1 ms", "--set", 'program.patience="200 s"'),
    *("--set", 'conditions.wan_rate="1 Gbit/s"', "--set", 'conditions.intra_rate="10 Gbit/s"'),
)
ONE, THREE = "-n 1 -hosts g0", "-n 3 -hosts g0,g1,g2"
OFI = "-genv MPIR_CVAR_CH4_NETMOD ofi -genv FI_PROVIDER tcp"
ALONE = "*test_cco_*Self*"
SLOW = ("io", "rma", "p2p_buf[.]", "p2p_buf_part", "util_dtlib", "util_pkl5", "util_sync")
ELSEWHERE = ("cco_", "mpiabi", "spawn", "dynproc", *SLOW)
PARTS = (
    (f"{THREE} {OFI}", " ".join(f"-e test_{one}" for one in ELSEWHERE)),
    (THREE, f"-i test_cco_.*obj -x '{ALONE}'"),
    (f"{ONE} {OFI}", "-i test_spawn -i test_dynproc"),
    (f"{ONE} -genv UCX_TLS self", f"-k '{ALONE}'"),
)
"""Options of mpirun and of mpi4py's runner of tests. Thousands of collectives of one rank in a row ask the network in
vain, for which ever more virtual time passes; without a network they ask nobody."""
LEFT_OUT = {
    "test_p2p_buf, test_p2p_buf_part, test_util_dtlib, test_util_pkl5, test_util_sync, and other test_cco_* on several "
    "ranks": "minutes of wall time each",
    "test_io and test_rma*": "more than four minutes each",
    "test_mpiabi": "cases of it fail outside of the testbed too",
}
"""What is not run, as patterns of names, and why."""


def results(folder: Path) -> dict[str, Outcome]:
    """Return how each case ended, from the reports of all ranks: it passes if it fails on none and passes on one."""
    found = dict[str, set[Outcome]]()
    for path in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(path).iter("testcase"):
            found.setdefault(f"{case.get('classname')}.{case.get('name')}", set()).add(outcome(case))
    return {name: max(ends, key=_weight) for name, ends in found.items()}


def _weight(one: Outcome) -> tuple[bool, bool, str]:
    return one.kind == FAILED, one.kind == PASSED, one.why


def outcome(case: ElementTree.Element) -> Outcome:
    """Return how a case ended on a rank."""
    for said in case:
        why = " ".join((said.get("message") or "no reason is given").split()).rstrip(".")
        if said.tag in ("failure", "error"):
            return Outcome(FAILED, why)
        if said.tag == "skipped":
            return Outcome(SKIPPED, f"mpi4py: {why}")
    return Outcome(PASSED)


@pytest.fixture(scope="module")
def mpi4py() -> Iterator[tuple[Path, Path]]:
    """The folder of an environment's programs, and that of mpi4py's source."""
    with of_pypi("numpy==2.4.6", "unittest-xml-reporting==4.0.0") as found:
        yield found


def test_mpi4pys_own_tests_pass(mpi4py: tuple[Path, Path], tmp_path: Path, record: Record) -> None:
    programs, source = mpi4py
    runner = f"timeout 300 mpirun {{}} python {source}/test/main.py -q --xml=xml {{}}\n"
    lines = "".join(runner.format(*part) for part in PARTS)
    (tmp_path / "all.sh").write_text(f"mkdir shared\nexport TMPDIR=$PWD/shared\n{lines}")
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}

    def run() -> Mapping[str, Outcome]:
        with tempfile.TemporaryDirectory(dir=tmp_path.parent) as folder:
            commands = ("--exec", "g0: sh all.sh", "--exec", "others: sshd")
            ended(*SCENARIO, "--out", f"{folder}/run", *commands, cwd=tmp_path, env=environment)
            return results(Path(folder) / "run/files/xml")

    left_out = "; ".join(f"`{name}`, {why}" for name, why in LEFT_OUT.items())
    what = (
        "Part of mpi4py's own tests on three hosts in two sites with a round trip of 2 ms, by its own runner, in "
        "virtual time: a case passes if it fails on no rank and skips itself on not all. Those of starting processes "
        f"begin on one host, and buffers of one rank stay on one. The library is PyPI's MPICH {MPICH_VERSION}, over "
        f"libfabric, and for test_cco_* over UCX. Not run, and not counted: {left_out}."
    )
    outcomes = record(Suite("mpi4py", MPI4PY_VERSION, "its source on PyPI", what), run)
    assert not [name for name, one in outcomes.items() if one.kind == FAILED]
    assert len(outcomes) >= 1485
