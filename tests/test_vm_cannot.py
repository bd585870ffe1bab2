"""What the VM says where it cannot: one sentence, as an unprivileged user meets it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.vm import CannotRunError, kconfig, kernel
from tests.conftest import PROJECT, VM
from tests.test_vm import python, sentence


def test_a_guest_that_panics_says_so(vm: VM) -> None:
    # Wipe the code of init, which then dies of a signal: the kernel cannot go on without.
    script = (
        "import re\n"
        "for line in open('/proc/1/maps'):\n"
        "    if ' r-xp ' in line and 'dash' in line or ' r-xp ' in line and 'libc' in line:\n"
        "        low, high = (int(x, 16) for x in re.match('([0-9a-f]+)-([0-9a-f]+)', line).groups())\n"
        "        with open('/proc/1/mem', 'r+b', buffering=0) as memory:\n"
        "            memory.seek(low); memory.write(bytes(high - low))\n"
    )
    ended = vm.run(*python(script=script), timeout=60)
    assert ended.status == 1
    assert "kernel panicked" in sentence(ended.err) and "init" in ended.err


def test_a_guest_that_runs_out_of_memory_says_so(vm: VM) -> None:
    ended = vm.run("--memory", "256 MiB", *python(script="x = []\nwhile True: x.append(b'x' * 2**22)"), timeout=60)
    assert ended.status == 1
    assert "ran out of memory" in sentence(ended.err) and "--memory" in ended.err


@pytest.mark.parametrize(
    ("arguments", "environment", "status", "words"),
    [
        (("--", "true"), {"LONGHAUL_KERNEL": "/no/kernel"}, 3, "run `bash scenarios/setup.sh`"),
        (("--", "true"), {"LONGHAUL_KERNEL": "/bin/true"}, 3, "/bin/true is no User-Mode Linux kernel"),
        (("--", "true"), {"LONGHAUL_KERNEL": "/no/kernel"}, 3, "/no/kernel is no User-Mode Linux kernel"),
        (("--memory", "900 TB", "--", "true"), {}, 3, "no room for the VM's 900 TB of memory"),
        (("--memory", "1 MB", "--", "true"), {}, 2, "1 MB of memory is too little"),
        (("--results", "/etc/x", "--", "true"), {}, 3, "results folder /etc/x cannot be made: Permission denied"),
        (("--results", "/etc", "--", "true"), {}, 3, "results folder /etc is not writable"),
        (("--results", "/", "--", "true"), {}, 2, "/ cannot be the results folder"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence_before_anything_starts(
    vm: VM, arguments: tuple[str, ...], environment: dict[str, str], status: int, words: str
) -> None:
    if os.getuid() != 0 and "/etc" in arguments and os.access("/etc", os.W_OK):
        pytest.fail("the tests' own user may write to /etc")
    ended = vm.run(*arguments, env=environment)
    assert ended.status == status
    assert words in sentence(ended.err)


def test_a_kernel_without_the_options_names_them(vm: VM) -> None:
    fake = vm.folder / "linux"
    fake.write_text("#!/bin/sh\necho CONFIG_UML=y\necho CONFIG_OPENVSWITCH=y\n")
    fake.chmod(0o755)
    ended = vm.run("--", "true", env={"LONGHAUL_KERNEL": str(fake)})
    assert ended.status == 3
    assert "was built without CONFIG_64BIT=y" in sentence(ended.err) and "more options" in ended.err


def test_bad_usage_ends_with_status_two(vm: VM) -> None:
    for arguments in (("--",), ("--clock", "sundial", "--", "true"), ("--memory", "2 apples", "--", "true")):
        ended = vm.run(*arguments)
        assert ended.status == 2
        assert "Traceback" not in ended.err and "usage:" in ended.err


def test_a_machine_that_forbids_ptrace_is_named(vm: VM) -> None:
    launcher = [sys.executable, str(PROJECT / "tests/guest/without_ptrace.py")]
    ended = subprocess.run(
        [*launcher, sys.executable, "-m", "scenarios.vm", "--", "true"],
        env=vm.environment, capture_output=True, text=True, cwd=PROJECT, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 3
    assert "forbids ptrace" in sentence(ended.stderr)


def test_a_kernel_that_is_not_built_is_named_with_what_builds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with pytest.raises(
        CannotRunError, match=r"not built yet \(looked in .*longhaul.*\): run `bash scenarios/setup.sh`"
    ):
        kernel.find_kernel({"XDG_CACHE_HOME": str(tmp_path)})


def test_a_kernel_in_the_virtual_environment_serves_those_who_did_not_build_it(
    kernel_image: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fingerprint = kconfig.wanted_fingerprint()
    copy = kernel.cached(tmp_path / "lib" / "longhaul", "6.12.1-1", fingerprint)
    copy.parent.mkdir(parents=True)
    shutil.copy2(kernel_image, copy)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert kernel.find_kernel({"XDG_CACHE_HOME": str(tmp_path)}) == copy


def test_another_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(CannotRunError, match="x86_64 machines only, and this one is aarch64"):
        kernel.find_kernel({})
