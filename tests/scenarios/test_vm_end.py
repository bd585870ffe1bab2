"""However a VM ends, nothing is left of it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import NOBODY, PROJECT, VM

WHO = NOBODY if os.getuid() == 0 else os.getuid()


def processes(image: Path) -> list[str]:
    """The processes that run a kernel, which is this test session's own copy, except the dead."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            of_it = str(image).encode() in (process / "cmdline").read_bytes()
            if of_it and " Z " not in (process / "stat").read_text():
                found.append(process.name)
    return found


def names() -> set[str]:
    """What the VM's user has in the folders for temporary files, except the folders of other tests."""
    found = set()
    for path in (path for folder in ("/tmp", "/dev/shm", "/var/tmp") for path in Path(folder).iterdir()):
        with suppress(FileNotFoundError):
            if path.lstat().st_uid == WHO and not path.name.startswith(("longhaul-test-", "pytest-")):
                found.add(str(path))
    return found


def assert_gone(image: Path, before: set[str]) -> None:
    until = time.monotonic() + 20  # other tests' VMs come and go
    while (processes(image) or names() - before) and time.monotonic() < until:
        time.sleep(0.02)
    assert processes(image) == [] and names() - before == set()


@pytest.mark.parametrize(
    ("when", "number", "status", "clock"),
    [
        ("running", signal.SIGINT, 130, "virtual"),
        ("running", signal.SIGTERM, 143, "wall"),
        ("running", signal.SIGKILL, -9, "virtual"),
        ("booting", signal.SIGKILL, -9, "wall"),
    ],
)
def test_every_way_to_end_it_leaves_nothing(
    vm: VM, kernel_image: Path, when: str, number: signal.Signals, status: int, clock: str
) -> None:
    before, own = names(), sorted(vm.folder.iterdir())
    with vm.start("--clock", clock, "--", "sh", "-c", "echo up; sleep 1 & cat; sleep 100000") as process:
        assert process.stdout is not None and process.stderr is not None
        if when == "running":
            assert process.stdout.readline() == b"up\n"
        else:
            while not processes(kernel_image):
                time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=30) == status
        assert_gone(kernel_image, before)
        assert process.stderr.read() == b""
    assert sorted(vm.folder.iterdir()) == own


def test_a_launcher_killed_at_any_instant_of_its_start_leaves_nothing(vm: VM, kernel_image: Path) -> None:
    before = names()
    for attempt in range(6):
        with vm.start("--clock", "wall", "--", "sleep", "1000") as process:
            while not processes(kernel_image):
                pass
            time.sleep(0.0012 * attempt)
            process.kill()
        assert_gone(kernel_image, before)


DEAF = """
import signal, sys, threading
from scenarios import vm
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    vm.run(["sleep", "100000"], clock="wall", on_start=lambda stop: threading.Timer(0.5, stop).start())
except vm.VMError:
    sys.exit(7)
"""


def test_a_vm_is_ended_by_who_ignores_sigterm_since_before_it_was_started(vm: VM) -> None:
    with subprocess.Popen([sys.executable, "-c", DEAF], cwd=PROJECT, env=os.environ | vm.environment) as process:
        try:
            assert process.wait(timeout=60) == 7
        finally:
            process.kill()
