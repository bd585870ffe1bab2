"""The command on machines that are not set up: ``--doctor``, the system's Python, and ``setup.sh``."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.tools.doctor import CANNOT
from tests.conftest import PROJECT

RUN = str(PROJECT / "scenarios" / "run.py")
SETUP = str(PROJECT / "scenarios" / "setup.sh")
SYSTEM = "/usr/bin/python3"
MENDS = "bash scenarios/setup.sh"


def run(*command: str, status: int = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=os.environ | environment, cwd="/"
    )
    assert done.returncode == status and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done


def test_doctor_tries_both_clocks_in_the_vm_and_reports_that_they_work() -> None:
    done = run(sys.executable, RUN, "--doctor")
    assert " yes" in done.stdout.splitlines()[1] and " yes" in done.stdout.splitlines()[2]
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["doctor:", "doctor:"]


def panicking(folder: Path, image: Path, *words: str) -> Path:
    """Write a fake VM kernel with every option of `image`, which at boot prints `words` and ends as after a panic."""
    fake = folder / "linux-that-panics"
    lines = "".join(f"echo {shlex.quote(line)}\n" for line in words)
    fake.write_text(
        f'#!/bin/sh\n[ "$1" != --showconfig ] || exec {shlex.quote(str(image))} --showconfig\n{lines}exit 134\n'
    )
    fake.chmod(0o755)
    return fake


@pytest.mark.parametrize(
    ("words", "mends"),
    [
        (None, MENDS),
        ("Kernel panic - not syncing: Attempted to kill init!", "panic.log"),
        ("userspace - ptrace set fp regs failed, errno = 14", MENDS),
    ],
)
def test_doctor_lists_a_kernel_that_does_not_boot_as_missing_with_its_fix(
    tmp_path: Path, kernel_image: Path, words: str | None, mends: str
) -> None:
    image = panicking(tmp_path, kernel_image, words) if words else "/bin/true"
    done = run(sys.executable, RUN, "--doctor", status=CANNOT, LONGHAUL_KERNEL=str(image), XDG_CACHE_HOME=str(tmp_path))
    heading, *lines = done.stdout.splitlines()
    middle = heading.index("fix")
    for line in (lines[0], next(line for line in lines[1:] if line[0] != " ")):
        what, mend = line[heading.index("missing") : middle], line[middle:]
        assert " no " in line and what.strip() and mends in mend
        assert "panic" not in mend.replace("panic.log", "").replace(str(tmp_path), "")
    if words:
        assert words in (tmp_path / "longhaul" / "panic.log").read_text()


def test_the_system_python_runs_in_the_projects_environment_or_says_how_to_set_it_up(tmp_path: Path) -> None:
    for package in ("topologies", "hosts", "controller", "analysis", "scenarios"):
        shutil.copytree(PROJECT / package, tmp_path / package)
    command = (SYSTEM, str(tmp_path / "scenarios" / "run.py"))
    done = run(*command, status=CANNOT)
    assert MENDS in done.stderr and len(done.stderr.splitlines()) == 1
    done = run(*command, "--doctor", status=CANNOT)
    assert " no " in done.stdout.splitlines()[1] and "Python packages" in done.stdout
    (tmp_path / ".venv").symlink_to(sys.prefix)
    done = run(*command, "--dry-run", "--engine", "model", "--seed", "4711")
    assert "seed = 4711" in done.stdout


# --- set-up -----------------------------------------------------------------------------------------------------------


def fakes(folder: Path, **scripts: str) -> str:
    """Write these shell scripts as programs into the folder, and return a PATH that begins with the folder."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_a_second_setup_changes_nothing() -> None:
    stamp = PROJECT / ".venv" / "longhaul.stamp"
    before = stamp.stat().st_mtime_ns
    assert run("bash", SETUP).stderr == "setup: ready\n"  # nothing was updated, installed or built
    assert stamp.stat().st_mtime_ns == before


def test_setup_refuses_an_unsupported_machine_before_it_installs_anything(tmp_path: Path) -> None:
    path = fakes(tmp_path, uname="echo aarch64")
    assert "this one is aarch64" in run("bash", SETUP, status=3, PATH=path).stderr
    (tmp_path / "uname").unlink()
    for name in ("uname", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    assert "no apt" in run("/bin/bash", SETUP, status=3, PATH=str(tmp_path)).stderr


def test_setup_stops_at_the_first_failure_with_the_reason(tmp_path: Path) -> None:
    apt = "echo apt-get was called with $1 >&2; exit 100"
    path = fakes(tmp_path, **{"dpkg-query": "exit 1", "sudo": 'shift; exec "$@"', "apt-get": apt})
    said = run("bash", SETUP, status=1, PATH=path).stderr.splitlines()
    assert len(said) == 3 and said[1] == "apt-get was called with update" and "failed" in said[2]


def test_setup_completes_everything_else_if_the_vm_cannot_run_or_be_built(tmp_path: Path) -> None:
    (line,) = run("bash", SETUP, LONGHAUL_KERNEL="/bin/false").stderr.splitlines()
    assert "everything but the VM is ready" in line and "/bin/false" in line
    path = fakes(tmp_path, tar="echo the archive is damaged >&2; exit 2")
    said = run("bash", SETUP, PATH=path, XDG_CACHE_HOME=str(tmp_path)).stderr
    assert "the archive is damaged" in said and "everything but the VM is ready" in said.splitlines()[-1]
