"""scenarios/setup.sh: nothing to do the second time, and a sentence where it cannot go on."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROJECT

SETUP = PROJECT / "scenarios" / "setup.sh"


def set_up(**environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", str(SETUP)], env=dict(os.environ) | environment, cwd="/", capture_output=True, text=True, check=False
    )


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A folder to stand first, or alone, in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_second_set_up_finds_everything_in_place() -> None:
    stamp = PROJECT / ".venv" / "longhaul.stamp"
    before = stamp.stat().st_mtime_ns
    ended = set_up()
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == "setup: ready\n"  # nothing was updated, installed or built
    assert stamp.stat().st_mtime_ns == before


def test_a_machine_without_apt_is_told_what_is_supported(bin_folder: Path) -> None:
    for name in ("uname", "dirname"):
        (bin_folder / name).symlink_to(shutil.which(name) or "")
    ended = subprocess.run(
        ["/bin/bash", str(SETUP)], env={"PATH": str(bin_folder)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert ended.stderr == "setup: this machine has no apt: Debian 12, Debian 13 and Ubuntu 24.04 are supported\n"


def test_another_processor_is_told_apart_before_anything_is_installed(bin_folder: Path) -> None:
    fake(bin_folder, "uname", "echo aarch64")
    ended = set_up(PATH=f"{bin_folder}:{os.environ['PATH']}")
    assert ended.returncode == 3
    assert "x86_64 machines only, and this one is aarch64" in ended.stderr


def test_it_stops_at_the_first_failure_with_the_reason(bin_folder: Path) -> None:
    fake(bin_folder, "dpkg-query", "exit 1")  # as if nothing were installed
    fake(bin_folder, "sudo", 'shift; exec "$@"')
    fake(bin_folder, "apt-get", "echo apt-get was called with $1 >&2; exit 100")
    ended = set_up(PATH=f"{bin_folder}:{os.environ['PATH']}")
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "setup: updating the package lists",
        "apt-get was called with update",
        "setup: apt-get update failed",
    ]
