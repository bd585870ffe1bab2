"""However a VM ends, nothing is left of it, and two at once know nothing of each other."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import NOBODY, PROJECT, VM

WHO = NOBODY if os.getuid() == 0 else os.getuid()


def test_two_vms_run_side_by_side_without_noticing_each_other(vm: VM) -> None:
    script = "echo $1 >/tmp/mine; echo started; read go; cat /tmp/mine; ls /proc | grep -c '^[0-9]'"
    both = [vm.start("--memory", "512 MiB", "--", "sh", "-c", script, "sh", name) for name in ("one", "two")]
    try:
        for process in both:
            assert process.stdout is not None and process.stdout.readline() == b"started\n"
        outs = [process.communicate(b"go\n", timeout=60)[0].split() for process in both]
    finally:
        for process in both:
            process.kill()
    assert [out[0] for out in outs] == [b"one", b"two"]
    assert outs[0][1] == outs[1][1]  # as many processes: its own


def leftovers(image: Path) -> list[str]:
    """Return the processes that run a kernel, except the dead that nobody has waited for yet."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                str(image).encode() in (process / "cmdline").read_bytes()
                and " Z " not in (process / "stat").read_text()
            ):
                found.append(process.name)
        except OSError:
            continue
    return found


def names() -> set[str]:
    """Return what the VM's user has in the folders for temporary files, theirs alone: others use those, too."""
    found = set()
    for path in (path for folder in ("/tmp", "/dev/shm", "/var/tmp") for path in Path(folder).iterdir()):
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_uid == WHO:
                found.add(str(path))
    return found


@pytest.mark.alone
@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize("when", ["booting", "running"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_every_way_to_end_it_leaves_nothing(
    vm: VM, kernel_image: Path, number: signal.Signals, status: int, when: str, clock: str
) -> None:
    before = names()
    with vm.start("--clock", clock, "--", "sh", "-c", "echo up; sleep 1 & cat; sleep 100000") as process:
        assert process.stdout is not None and process.stderr is not None
        if when == "running":
            assert process.stdout.readline() == b"up\n"
        else:
            while not leftovers(kernel_image):
                time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=30) == status
        deadline = time.monotonic() + 10
        while leftovers(kernel_image) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert leftovers(kernel_image) == []
        assert process.stderr.read() == b""
    assert names() - before == set()


@pytest.mark.alone
def test_a_launcher_killed_at_any_instant_of_its_start_leaves_nothing(vm: VM, kernel_image: Path) -> None:
    for attempt in range(30):
        with vm.start("--clock", "wall", "--", "sleep", "1000") as process:
            while not leftovers(kernel_image):
                pass
            time.sleep(0.0005 * (attempt % 15))
            process.kill()
        deadline = time.monotonic() + 20
        while leftovers(kernel_image) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert leftovers(kernel_image) == [], f"attempt {attempt}"


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
