"""Debian's packages in a folder of a test's own; nothing is installed into the system."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

LIBRARIES = "usr/lib/x86_64-linux-gnu"


def unpacked(packages: Sequence[str], folder: Path) -> Path:
    """Download packages with apt and unpack them into a new folder, which is returned; skip the test if apt cannot."""
    folder.mkdir()
    got = subprocess.run(["apt-get", "download", *packages], cwd=folder, capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"apt-get download cannot get {', '.join(packages)}: {got.stderr.strip().splitlines()[-1]}")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
        package.unlink()
    return folder


def needed(*programs: str, packages: str = "build-essential cmake") -> None:
    """Skip the test unless these programs of Debian's packages are there."""
    if missing := [one for one in programs if shutil.which(one) is None]:
        pytest.skip(f"{', '.join(missing)} is missing; sudo apt-get install {packages}")


def environment(folder: Path) -> Mapping[str, str]:
    """Return the environment for programs that are unpacked in `folder`, or linked with libraries there."""
    path = f"{folder}/usr/bin:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "LD_LIBRARY_PATH": str(folder / LIBRARIES)}
