"""Failures of the VM: each is reported in one sentence, as an unprivileged user sees it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.vm import CannotRunError, VMError, kernel, openvswitch, resources
from tests.conftest import PROJECT, VM


def sentence(err: str) -> str:
    """Return the one sentence that a failed command printed; fail if there is more."""
    lines = err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("longhaul: "), err
    return lines[0]


def python(script: str) -> tuple[str, ...]:
    return ("--", "python3", "-c", script)


def test_a_kernel_panic_is_reported_in_one_sentence_with_its_log(vm: VM) -> None:
    # Overwrite the code of init, which then dies of a signal; the kernel panics without init.
    script = (
        "import re\n"
        "for line in open('/proc/1/maps'):\n"
        "    if ' r-xp ' in line and 'dash' in line or ' r-xp ' in line and 'libc' in line:\n"
        "        low, high = (int(x, 16) for x in re.match('([0-9a-f]+)-([0-9a-f]+)', line).groups())\n"
        "        with open('/proc/1/mem', 'r+b', buffering=0) as memory:\n"
        "            memory.seek(low); memory.write(bytes(high - low))\n"
    )
    ended = vm.run(*python(script), timeout=60)
    assert ended.status == 1
    assert "kernel panicked" in sentence(ended.err) and "init" in ended.err
    log = vm.folder / ".cache" / "longhaul" / "panic.log"
    assert str(log) in ended.err
    assert "Kernel panic - not syncing: Attempted to kill init!" in log.read_text()


def test_a_guest_that_runs_out_of_memory_is_reported_in_one_sentence(vm: VM) -> None:
    ended = vm.run("--memory", "256 MiB", *python("x = []\nwhile True: x.append(b'x' * 2**22)"), timeout=60)
    assert ended.status == 1
    assert "ran out of memory" in sentence(ended.err) and "--memory" in ended.err


def test_a_vm_that_cannot_be_started_is_reported_in_one_sentence(vm: VM) -> None:
    limited = ["sh", "-c", 'ulimit -n 12; exec "$0" "$@"', sys.executable, "-m", "scenarios.vm", "--", "true"]
    ended = subprocess.run(limited, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert sentence(ended.stderr) == "longhaul: the VM cannot be started: Too many open files"


def test_a_full_disk_under_the_output_is_reported_in_one_sentence(vm: VM) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = vm.run("--", "echo", "hello", stdout=full)
    assert ended.status == 1
    assert "cannot be written: No space left" in sentence(ended.err)


@pytest.mark.parametrize(
    ("arguments", "image", "status", "words"),
    [
        ("-- true", "/no/kernel", 3, "/no/kernel"),
        ("-- true", "/bin/true", 3, "unset LONGHAUL_KERNEL and run `bash scenarios/setup.sh`"),
        ("--memory 900TB -- true", None, 3, "900 TB"),
        ("--memory 1MB -- true", None, 2, "1 MB"),
        ("--results /etc/x -- true", None, 3, "/etc/x"),
        ("--results / -- true", None, 2, "results folder"),
        ("--results /proc/x -- true", None, 2, "results folder"),
        ("--", None, 2, "COMMAND is missing"),
        ("--clock sundial -- true", None, 2, '"sundial" is not known; allowed: virtual, wall'),
        ("--memory 2apples -- true", None, 2, '"2apples" has the wrong unit'),
    ],
)
def test_invalid_vm_arguments_are_refused_before_the_vm_starts(
    vm: VM, arguments: str, image: str | None, status: int, words: str
) -> None:
    if os.getuid() != 0 and "/etc" in arguments and os.access("/etc", os.W_OK):
        pytest.fail("the tests' own user may write to /etc")
    ended = vm.run(*arguments.split(), env={"LONGHAUL_KERNEL": image} if image else {})
    assert ended.status == status and "Traceback" not in ended.err
    is_usage = ended.err.startswith("python -m scenarios.vm: ")
    assert words in (ended.err if is_usage else sentence(ended.err)) and ended.err.count("\n") == 1


def test_a_machine_that_forbids_ptrace_is_reported_as_the_cause(vm: VM) -> None:
    launcher = [sys.executable, str(PROJECT / "tests/guest/without_ptrace.py")]
    ended = subprocess.run(
        [*launcher, sys.executable, "-m", "scenarios.vm", "--", "true"],
        env=vm.environment, capture_output=True, text=True, cwd=PROJECT, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 3
    assert "forbids ptrace" in sentence(ended.stderr)


def test_the_kernel_is_searched_in_the_users_cache_and_the_virtual_environment(
    kernel_image: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The virtual environment serves users who did not build the kernel themselves."""
    own = {"XDG_CACHE_HOME": str(tmp_path)}
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with pytest.raises(CannotRunError, match=r"not built yet .*: run `bash scenarios/setup.sh`"):
        kernel.find_kernel(own)
    copy = kernel.cached(tmp_path / "lib" / "longhaul", "6.12.1-1", kernel.wanted_fingerprint())
    copy.parent.mkdir(parents=True)
    shutil.copy2(kernel_image, copy)
    assert kernel.find_kernel(own) == copy
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(CannotRunError, match="aarch64"):
        kernel.find_kernel(own)


def test_a_kernel_without_options_or_room_for_registers_is_refused_before_a_boot(
    vm: VM, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, fake = Path(vm.environment["LONGHAUL_KERNEL"]), vm.folder / "linux"
    fake.write_text("#!/bin/sh\necho CONFIG_UML=y\necho CONFIG_OPENVSWITCH=y\n")
    fake.chmod(0o755)
    with pytest.raises(CannotRunError, match=r"CONFIG_64BIT=y.* more,"):
        kernel.check(fake)
    # A user's own kernel may have more than ours, such as input devices.
    shown = subprocess.run([image, "--showconfig"], capture_output=True, text=True, check=True).stdout
    (vm.folder / "config").write_text(shown.replace("# CONFIG_INPUT is not set", "CONFIG_INPUT=y"))
    assert "CONFIG_INPUT=y" in (vm.folder / "config").read_text()
    fake.write_text(f"#!/bin/sh\ncat {vm.folder}/config\n")
    kernel.check(fake)
    # With AMX a process's registers take 11,008 bytes; later machines may have more than any kernel was built for.
    for state_bytes in (0, 832, 11_008, 16_384):
        monkeypatch.setattr(resources, "register_bytes", lambda size=state_bytes: size)
        kernel.check(image)
    monkeypatch.setattr(resources, "register_bytes", lambda: 16_385)
    with pytest.raises(CannotRunError, match=r"16,385 bytes .* 16,384"):
        kernel.check(image)


def test_open_vswitch_is_started_and_stopped_inside_the_vm_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvswitch, "RUN", tmp_path)
    for action in (openvswitch.up, openvswitch.down):
        with pytest.raises(VMError, match="inside the VM only"):
            action()
    assert tmp_path.exists()
    assert openvswitch.main(["up"]) == 1 and openvswitch.main(["sideways"]) == 2
