"""Parts of the VM, tested without a boot: environment, cores, kernels, kernel configurations, causes of death."""

import io
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from scenarios.vm import VMError, boot, build, kernel, machine, resources
from scenarios.vm.errors import death
from tests.conftest import PROJECT


def test_the_vms_environment_drops_the_variables_of_the_hosts_session() -> None:
    inside = boot.guest_environment(
        {"PATH": "/opt/x:/usr/bin", "DISPLAY": ":0", "SSH_AUTH_SOCK": "/s", "TMPDIR": "/t", "MINE": "1", "USER": "ada"}
    )
    assert inside["MINE"] == "1" and inside["USER"] == "root"
    assert inside["PATH"].split(":")[:2] == ["/opt/x", "/usr/bin"] and "/usr/sbin" in inside["PATH"].split(":")
    assert not inside.keys() & {"DISPLAY", "SSH_AUTH_SOCK", "TMPDIR"}
    assert inside["PYTHONHASHSEED"] == "0"
    assert boot.guest_environment({"PYTHONHASHSEED": "7"})["PYTHONHASHSEED"] == "7"


HOLD = "import sys\nfrom scenarios.vm import resources\nresources.CORE_MARK = sys.argv[1]\n"
HOLD += "with resources.own_core() as core: print(core, flush=True); input()"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine gives the tests one core")
def test_every_vm_gets_its_own_core_while_cores_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, mark = os.sched_getaffinity(0), f"longhaul-test-{os.getpid()}-core-"
    monkeypatch.setattr(resources, "CORE_MARK", mark)  # other tests run VMs as well
    busy, idle = sorted(allowed)[:2]
    for first in (idle, busy):
        counts = iter([dict.fromkeys(allowed, 7), dict.fromkeys(allowed, 8) | {first: 12}])
        with resources.own_core(lambda counts=counts: next(counts)) as core:  # type: ignore[misc]
            assert core == first
    with ExitStack() as stack:
        others = [stack.enter_context(resources.own_core()) for _ in range(len(allowed) - 1)]
        command = [sys.executable, "-c", HOLD, mark]
        with subprocess.Popen(command, cwd=PROJECT, stdin=-1, stdout=-1) as holder:
            assert holder.stdout is not None
            (core,) = allowed - set(others)
            assert int(holder.stdout.readline()) == core
            with resources.own_core() as none:
                assert none is None
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        with resources.own_core() as freed:
            assert freed == core


def test_kernel_options_are_merged_compared_and_fingerprinted_without_regard_to_order() -> None:
    base = "# a comment\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\n"
    found = kernel.options(kernel.merged(base, "CONFIG_B=y\nCONFIG_C=n\n"))
    assert found == {"CONFIG_A": "y", "CONFIG_B": "y", "CONFIG_C": "n"}
    wanted = kernel.options('CONFIG_A=y\nCONFIG_S="null"\nCONFIG_OFF=n\n')
    assert kernel.missing(wanted, kernel.options('CONFIG_A=y\nCONFIG_S="null"\n')) == []
    # An option that only saves time when the kernel is built is not needed, and a number is a lower bound.
    assert kernel.missing(wanted, {"CONFIG_A": "m", "CONFIG_S": '"null"', "CONFIG_OFF": "y"}) == ["CONFIG_A=y"]
    numbers = {"CONFIG_MORE": "1000", "CONFIG_EQUAL": "250", "CONFIG_LESS": "1000", "CONFIG_NONE": "1"}
    found = {"CONFIG_MORE": "16384", "CONFIG_EQUAL": "250", "CONFIG_LESS": "250"}
    assert kernel.missing(numbers, found) == ["CONFIG_LESS=1000", "CONFIG_NONE=1"]
    with pytest.raises(ValueError, match="line 2 "):
        kernel.options("CONFIG_A=y\nCONFIG B\n")
    one = kernel.fingerprint("CONFIG_A=y\nCONFIG_B=y\n")
    assert kernel.fingerprint("# why\nCONFIG_B=y\n\nCONFIG_A=y\n") == one
    assert one not in (kernel.fingerprint("CONFIG_A=y\n"), kernel.fingerprint("CONFIG_A=y\nCONFIG_B=y\n", ["patch"]))
    assert kernel.wanted_fingerprint(kernel.PATCHES[:1]) != kernel.wanted_fingerprint()


def test_a_relative_tmpdir_is_found_by_the_kernel_which_runs_in_another_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(os, "access", lambda folder, _mode: str(folder).endswith("mine"))  # /dev/shm has no room
    assert resources.memory_folder(2**28, {"TMPDIR": "mine"}) == str(tmp_path / "mine")


def test_a_user_without_a_home_directory_has_a_folder_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert kernel.cache_folder({}) == Path("/.cache/longhaul")
    assert kernel.cache_folder({"HOME": "/home/ada"}) == Path("/home/ada/.cache/longhaul")


def test_a_vm_whose_reaper_is_killed_is_reported_as_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with machine.Machine() as vm:
        vm.start(Path("/bin/sleep"), ("100",), memory_folder="/tmp", core=None, request=b"")
        assert vm._process is not None
        vm._process.kill()
        with pytest.raises(VMError, match="the VM's kernel was killed by signal 9 "):
            vm.wait(io.BytesIO(), io.BytesIO())


def test_the_newest_kernel_and_kernel_source_are_chosen() -> None:
    paths = [kernel.cached(Path("/c"), version, "abc") for version in ("6.12.9-1", "6.12.117-1~deb12u1", "6.8.0-49.49")]
    assert kernel.newest(paths) == paths[1] and kernel.newest([]) is None
    sources = [Path(f"/usr/src/linux-source-{version}") for version in ("6.1.tar.xz", "6.9.tar.xz", "6.11.0.tar.bz2")]
    assert build.newest_source(sources) == sources[2]
    assert build.newest_source([*sources, Path("/usr/src/linux-source-6.12.tar.xz")]).name == "linux-source-6.12.tar.xz"
    with pytest.raises(VMError, match="no kernel source"):
        build.newest_source([Path("/usr/src/linux-source-6.12-rt.patch")])


@pytest.mark.parametrize(
    ("log", "status", "ready", "sentence", "expected"),
    [
        ("[1.0] Kernel panic - not syncing: Attempted to kill init!\n[1.0] CPU", 1, True, "panicked: Attempted to", 1),
        ("Kernel panic - not syncing: Out of memory: system-wide", 1, True, "out of memory", 1),
        ("ptrace: Operation not permitted\ncheck_ptrace : expected", 1, False, "forbids ptrace", 3),
        ("x", 128 + 7, True, "out of room", 3),
        ("ptrace set fp regs failed, errno = 14\nKernel panic - not syncing: Attempted", 139, False, "register", 3),
        ("make_umid - failed", 128 + 9, True, "signal 9 (the host may have run out of memory) while COMMAND ran", 1),
        ("[0.1] some words\n\n", 128 + 11, False, "signal 11 before COMMAND started; its last output: some", 1),
    ],
)
def test_the_cause_of_a_vms_death_is_derived_from_its_log_and_status(
    log: str, status: int, ready: bool, sentence: str, expected: int
) -> None:
    error = death(log, status=status, ready=ready)
    assert sentence in str(error) and "\n" not in str(error)
    assert error.status == expected
    # The sentence names the log where no remedy is known.
    kept = death(log, status=status, ready=ready, kept=Path("/x/panic.log"))
    assert kept.remedy or kept.option or "/x/panic.log" in str(kept)
    assert "/x/panic.log" not in kept.problem + kept.remedy
