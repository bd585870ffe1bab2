"""The kernel's tc-testing: traffic control of the VM's kernel is that of the kernel without the project's patches.

Run with ``pytest -m references``.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT, VM, own_python
from tests.references.conftest import UNPATCHED, Record
from tests.references.page import FAILED, PASSED, SKIPPED, Outcome, Suite

pytestmark = pytest.mark.references

FILES = ("qdiscs/htb", "qdiscs/netem", "qdiscs/fq", "qdiscs/tbf", "qdiscs/ingress", "filters/flower")
FEWER = 100  # flower's tests have a million filters, and would take some minutes each


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with what tc-testing advises to install."""
    with own_python(["pyroute2"]) as found:
        yield found


def with_fewer_filters(text: str) -> str:
    """Return flower's tests with a hundredth of their filters: 1000000, 500000, 100000, and the 500001st."""
    return re.sub(r"\b[15]\d{5,6}\b", lambda number: str((int(number[0]) - 1) // FEWER + 1), text)


def said(vm: VM, python: Path, folder: Path) -> dict[str, tuple[bool | None, str]]:
    """Boot the VM; return how each test ended, and what tc-testing says of it."""
    program = [str(python), "-m", "tests.guest.tc_testing", str(folder), *FILES]
    ended = vm.run("--", *program, timeout=900, cwd=PROJECT)
    assert ended.status == 0, ended.err
    found: dict[str, dict[str, Any]] = json.loads(ended.out.splitlines()[-1])
    return {f"{file} {name}": tuple(one) for file, tests in found.items() for name, one in tests.items()}


def outcome(ours: tuple[bool | None, str], theirs: tuple[bool | None, str]) -> Outcome:
    """Return how a test ends, given how it ended on the project's kernel and on the unpatched one."""
    if ours[0] != theirs[0]:
        return Outcome(FAILED, f"{ours[0]} ({ours[1]}), and {theirs[0]} ({theirs[1]}) on the unpatched kernel")
    if ours[0]:
        return Outcome(PASSED)
    return Outcome(SKIPPED, f"on the unpatched kernel too: {ours[1].rstrip('.')}")


def test_traffic_control_of_the_vm_is_that_of_the_unpatched_kernel(
    vm: VM, unpatched_vm: VM, python: Path, selftests: Path, record: Record
) -> None:
    folder = selftests / "tc-testing"
    flower = folder / "tc-tests/filters/flower.json"
    flower.write_text(with_fewer_filters(flower.read_text()))
    theirs = said(unpatched_vm, python, folder)

    def run() -> Mapping[str, Outcome]:
        ours = said(vm, python, folder)
        assert ours.keys() == theirs.keys()
        return {name: outcome(one, theirs[name]) for name, one in ours.items()}

    what = (
        "The kernel's own tests of the queueing disciplines and the filter that the testbed uses, with a hundredth of "
        "flower's million filters: a test passes if it does on the VM's kernel and on the unpatched one. " + UNPATCHED
    )
    outcomes = record(Suite("tc-testing", "6.12", "Debian's package linux-source-6.12", what), run)
    assert not [name for name, one in outcomes.items() if one.kind == FAILED]
    assert len([name for name, one in outcomes.items() if one.kind == PASSED]) >= 70
