"""However a VM ends, it leaves no processes or files behind."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import PROJECT, VM, WHO
from tests.fakes.processes import await_that


def processes(image: Path) -> list[int]:
    """Return the process ids, without zombies, that run `image`, a copy of the kernel for this test session alone."""
    found = psutil.process_iter(["cmdline", "status"])
    return [one.pid for one in found if str(image) in (one.info["cmdline"] or []) and one.info["status"] != "zombie"]


def names(vm: VM) -> set[Path]:
    """Return the files in the VM's folder, its user's home, and the files of that user in /dev/shm."""
    found = set(vm.folder.iterdir())
    for path in Path("/dev/shm").iterdir():
        with suppress(FileNotFoundError):
            found |= {path} if path.lstat().st_uid == WHO else set()
    return found


def assert_gone(vm: VM, image: Path, before: set[Path]) -> None:
    await_that(lambda: not processes(image) and not names(vm) - before, 20)


@pytest.mark.parametrize(
    ("when", "number", "status", "clock"),
    [
        ("running", signal.SIGINT, 130, "virtual"),
        ("running", signal.SIGTERM, 143, "wall"),
        ("running", signal.SIGKILL, -9, "virtual"),
        ("booting", signal.SIGKILL, -9, "wall"),
    ],
)
def test_a_signalled_or_killed_vm_leaves_no_processes_or_files(
    vm: VM, kernel_image: Path, when: str, number: signal.Signals, status: int, clock: str
) -> None:
    before = names(vm)
    with vm.start("--clock", clock, "--", "sh", "-c", "echo up; sleep 1 & cat; sleep 100000") as process:
        assert process.stdout is not None and process.stderr is not None
        if when == "running":
            assert process.stdout.readline() == b"up\n"
        else:
            while not processes(kernel_image):
                time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=30) == status
        assert_gone(vm, kernel_image, before)
        assert process.stderr.read() == b""


@pytest.mark.parametrize("instants", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_a_launcher_killed_at_any_instant_of_its_start_leaves_no_processes_or_files(
    vm: VM, kernel_image: Path, instants: int
) -> None:
    before, chance = names(vm), random.Random(1)
    for _ in range(instants):
        with vm.start("--clock", "wall", "--", "sleep", "1000") as process:
            while not processes(kernel_image):
                pass
            time.sleep(chance.uniform(0, 0.03))
            process.kill()
        assert_gone(vm, kernel_image, before)


DEAF = """
import signal, sys, threading
from scenarios import vm
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    vm.run(["sleep", "100000"], clock="wall", on_start=lambda stop: threading.Timer(0.5, stop).start())
except vm.VMError:
    sys.exit(7)
"""


def test_a_launcher_that_ignored_sigterm_before_the_start_can_still_stop_its_vm(vm: VM) -> None:
    with subprocess.Popen([sys.executable, "-c", DEAF], cwd=PROJECT, env=os.environ | vm.environment) as process:
        try:
            assert process.wait(timeout=60) == 7
        finally:
            process.kill()


def spawner(image: Path) -> int:
    """Return the process of a kernel that begins all others: the only one that it does not trace."""
    kernels = [pid for pid in processes(image) if psutil.Process(pid).cmdline()[0] == str(image)]
    untraced = [pid for pid in kernels if "TracerPid:\t0\n" in Path("/proc", str(pid), "status").read_text()]
    (found,) = [pid for pid in untraced if psutil.Process(pid).ppid() in untraced]
    return found


def test_a_vm_that_can_begin_no_processes_any_more_ends_with_a_sentence(vm: VM, kernel_image: Path) -> None:
    before = names(vm)
    with vm.start("--clock", "wall", "--", "sh", "-c", "echo up; read line; ls /") as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        os.kill(spawner(kernel_image), signal.SIGKILL)
        _, err = process.communicate(b"\n", timeout=60)
    assert process.returncode == 1 and b"the host's process that begins all others was killed" in err
    assert_gone(vm, kernel_image, before | {vm.folder / ".cache"})
