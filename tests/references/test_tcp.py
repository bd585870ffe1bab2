"""packetdrill's scripts of TCP: the VM's kernel, with its patches and in virtual time, has Linux's TCP.

The same kernel without the patches is the yardstick. Run with ``pytest -m references``.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT, VM, public_folder
from tests.references.conftest import UNPATCHED, Record
from tests.references.page import FAILED, PASSED, SKIPPED, Outcome, Suite

pytestmark = pytest.mark.references

HOW = "git clone https://github.com/google/packetdrill"
COMMIT = "f88d6e6"  # later ones demand a struct tcp_info that is larger than Linux 6.12's
TOLERANCE_S = 10.5e-6  # 10 us; the times of packets are printed in whole us
DATE = "2026-01-01T00:00:00"
# packetdrill asks times(2) until it has seen ten ticks of 10 ms. Without a pause that would stop virtual time.
# A script here also begins at a multiple of 512 such ticks: the kernel rounds timers up to 8 ms, or 64 ms if they are
# far, of its own clock, so their times depend on when a script begins. Last, a sleep ends when it should, so that
# packetdrill need not wake 20 us before an event and read the clock until then.
CHANGES = {
    "const int MAX_SPIN_USECS = 20;": "const int MAX_SPIN_USECS = 0;",
    "while (jiffy_ticks < TARGET_JIFFY_TICKS) {": "while (!jiffy_ticks || last_jiffies % 512) {",
    "clock_t jiffies = times(NULL);": """
        usleep(last_jiffies % 512 < 510 ? 10000 : now_usecs(state) - start_usecs < 9000 ? 500 : 5);
        clock_t jiffies = times(NULL);""",
}
COPIED = "SO_EE_CODE_ZEROCOPY_COPIED"
EDGE = "packetdrill's tolerance is met, but not 10 us: where a time is a whole number of ticks, less than 1 us decides"
EDGES = ("tcp/cubic/cubic-rto-ss-ca-cwnd-bump.pkt", "tcp/shutdown/shutdown-rdwr-send-queue-ack-close.pkt")
"""Scripts in which a round-trip time, or the time since a timer, is rounded to one tick more or less."""


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A folder that the VM can read."""
    with public_folder() as folder:
        yield folder


def built(folder: Path, scratch: Path) -> Path:
    """Build packetdrill in a copy of its source; return its file. Its scripts are then in scratch/scripts/tcp."""
    source = subprocess.run(["git", "-C", folder, "archive", COMMIT, "gtests"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", scratch], input=source, check=True)
    tool = scratch / "gtests/net/packetdrill"
    text = (tool / "run.c").read_text()
    for old, new in CHANGES.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tool / "run.c").write_text(text)
    command = ["make", "-f", "Makefile.Linux", "packetdrill", "CFLAGS=-g"]
    subprocess.run(command, cwd=tool, capture_output=True, check=True)
    for name in ("common", "tcp"):
        shutil.copytree(scratch / "gtests/net" / name, scratch / "scripts" / name)  # links become files
    return tool / "packetdrill"


def expecting_no_copy(scripts: Path, copy: Path) -> Path:
    """Copy the scripts; let them expect that a zero-copy send to this machine is not copied (11-zerocopy.patch), except
    where TCP itself copies it into a SYN."""
    shutil.copytree(scripts, copy)
    for script in (one for one in copy.rglob("*.pkt") if "fastopen-client" not in one.name):
        script.write_text(script.read_text().replace(COPIED, "0"))
    return copy


def said(vm: VM, binary: Path, scripts: Path, most: str) -> dict[str, dict[str, Any]]:
    """Boot the VM; return what packetdrill says of every script (tests/guest/packetdrill.py)."""
    program = [sys.executable, "-m", "tests.guest.packetdrill", str(binary), str(scripts), most]
    ended = vm.run("--date", DATE, "--", *program, timeout=1800, cwd=PROJECT)
    assert ended.status == 0, ended.err
    found: dict[str, dict[str, Any]] = json.loads(ended.out.splitlines()[-1])
    return found


def apart(ours: list[list[Any]], theirs: list[list[Any]]) -> str:
    """Return how the packets of two runs of a script differ, or "" if they are the same at the same times.

    Times count from the script's begin, as a timer's do, or from the packet before, as those of packetdrill's events
    do: so that what the unpatched kernel takes for reading the clock, some us, does not add up."""
    before = 0.0
    for number, (one, other) in enumerate(zip_longest(ours, theirs), 1):
        if one is None or other is None or one[0] != other[0]:
            return f"packet {number} is {one and one[0]}, and {other and other[0]} on the unpatched kernel"
        late = one[1] - other[1]
        if min(abs(late), abs(late - before)) > TOLERANCE_S:
            return f"packet {number} is {1e6 * late:+.0f} us from the unpatched kernel's"
        before = late
    return ""


def outcome(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Outcome:
    """Return how a script ends, given what packetdrill says of it on the project's kernel and on the unpatched one."""
    why = re.sub(r"^\S+\.pkt:(\d+:)? (error handling packet: )?", "", ours["why"]).rstrip(".")
    if ours["exact"]:
        return Outcome(PASSED)
    if theirs["own"] and not ours["own"]:
        return Outcome(FAILED, f"it passes on the unpatched kernel, and here: {why}")
    if not ours["own"]:
        return Outcome(SKIPPED, f"it fails on the unpatched kernel too: {why}")
    if not theirs["own"]:
        return Outcome(SKIPPED, "it passes with packetdrill's tolerance here, and fails on the unpatched kernel")
    if difference := apart(ours["packets"], theirs["packets"]):
        return Outcome(SKIPPED, EDGE) if name in EDGES else Outcome(FAILED, difference)
    return Outcome(PASSED)


def test_tcp_of_the_vm_is_that_of_the_unpatched_kernel_to_ten_microseconds(
    vm: VM,
    unpatched_vm: VM,
    scratch: Path,
    selftests: Path,
    material: Callable[[str, str], Path],
    record: Record,
) -> None:
    binary = built(material("packetdrill", HOW), scratch)
    scripts = scratch / "scripts"
    shutil.copytree(selftests / "net/packetdrill", scripts / "kernel")
    theirs = said(unpatched_vm, binary, scripts, "own")
    uncopied = expecting_no_copy(scripts, scratch / "uncopied")
    exact = set[str]()

    def run() -> Mapping[str, Outcome]:
        ours = said(vm, binary, uncopied, "exact")
        exact.update(name for name, one in ours.items() if one["exact"])
        assert ours.keys() == theirs.keys()
        return {name.removesuffix(".pkt"): outcome(name, one, theirs[name]) for name, one in ours.items()}

    what = (
        "Every IPv4 script of TCP of packetdrill (tcp/) and of the kernel's selftests (kernel/), in virtual time: it "
        "passes if every packet and system call is within 10 us of what it says (--tolerance_usecs=10, "
        "--tolerance_percent=0). TCP's timers have ticks, and some scripts state times roughly: such a script passes "
        "with packetdrill's own tolerance of 4 ms, if every packet is the unpatched kernel's and within 10 us of it. "
        "Scripts of zero-copy sends expect here that nothing is copied, as one kernel is both ends. " + UNPATCHED
    )
    outcomes = record(Suite("packetdrill", COMMIT, "github.com/google/packetdrill", what), run)
    assert not [name for name, one in outcomes.items() if one.kind == FAILED]
    assert len([name for name, one in outcomes.items() if one.kind == PASSED]) >= 150
    assert len(exact) >= 130
