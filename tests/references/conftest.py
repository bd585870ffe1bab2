"""What tests by references share: the folder of material that the user names, and the page that is written."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from scenarios.vm import build, kernel
from tests.conftest import PROJECT, VM, public_folder, vm_of
from tests.references.page import Outcome, Suite, section, with_section

PAGE = PROJECT / "docs" / "references.md"

Record = Callable[[Suite, Callable[[], Mapping[str, Outcome]]], Mapping[str, Outcome]]


def commit(folder: Path) -> str:
    """Return the short commit of a clone."""
    command = ["git", "-C", folder, "log", "-1", "--format=%h"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def material(request: pytest.FixtureRequest) -> Callable[[str, str], Path]:
    """Return a function that gives the folder NAME of --references=DIR; it skips the test, saying how to get it."""

    def find(name: str, how: str) -> Path:
        given = request.config.getoption("--references")
        folder = Path(given or ".").expanduser()  # a shell leaves the ~ of --references=~/DIR
        if given is None or not (folder / name).is_dir():
            where = "no --references=DIR is given" if given is None else f"{given} has no folder {name}"
            pytest.skip(f"{where}; into DIR: {how}")
        return folder / name

    return find


@pytest.fixture
def record() -> Record:
    """Return a function that runs a suite twice, demands the same outcomes, and writes its section of the page."""

    def run_and_write(suite: Suite, run: Callable[[], Mapping[str, Outcome]]) -> Mapping[str, Outcome]:
        outcomes = run()
        assert run() == outcomes, "the second run ended otherwise"
        text = section(suite, outcomes)
        with Path(__file__).open() as lock:  # with xdist, another process may be writing its section
            fcntl.flock(lock, fcntl.LOCK_EX)
            PAGE.write_text(with_section(PAGE.read_text() if PAGE.exists() else "", text))
        return outcomes

    return run_and_write


UNPATCHED = (
    "The unpatched kernel has of the project's patches only what its configuration needs (06, and the ticks of 13) "
    "and what keeps the clock still while it computes (01, 04)."
)


@pytest.fixture(scope="module")
def unpatched_vm() -> Iterator[VM]:
    """The VM with a kernel of the same source and configuration, without the project's patches except four: the
    configuration needs room for the CPU's registers (06) and 1000 ticks a second (13, here without its exact sleeps);
    and without 01 and 04, reading the clock and failed system calls take virtual time, so no times could be compared.

    It is built at the first use, which takes as long as set-up does, and stays in the cache of kernels."""
    patches = {patch.name[:2]: patch for patch in kernel.PATCHES}
    with public_folder() as folder:
        ticks = folder / "ticks.patch"
        ticks.write_text(patches["13"].read_text().partition("--- a/kernel/")[0])
        wanted = [patches["01"], patches["04"], patches["06"], ticks]
        image = Path(shutil.copy2(build.build(dict(os.environ), wanted), folder / "linux"))
        image.chmod(0o755)
        with vm_of(image) as found:
            yield found


@pytest.fixture(scope="module")
def selftests() -> Iterator[Path]:
    """The folder tools/testing/selftests of the source of the VM's kernel, with what is run here."""
    archive = build.newest_source(sorted(build.SOURCES.glob("linux-source-*.tar.*")))
    inside = f"{archive.name.partition('.tar')[0]}/tools/testing/selftests"
    with public_folder() as folder:
        command = ["tar", "-xf", archive, "-C", folder, f"{inside}/net/packetdrill", f"{inside}/tc-testing"]
        subprocess.run(command, check=True)
        yield folder / inside
