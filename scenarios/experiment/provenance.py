"""The origin of a run: the command, the commit, the versions of its packages, the machine."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from analysis.results.reader import FORMAT

_ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ("longhaul", "numpy", "pyarrow", "pandas", "matplotlib", "os-ken", "rich", "scipy", "distributed")
_PATIENCE_S = 20


def provenance(name: str, *, seed: int, engines: Sequence[str], command: Sequence[str]) -> dict[str, Any]:
    """The content of provenance.json when a run begins; "ended" and "vm" are None until they are known."""
    return {
        "format": FORMAT,
        "name": name,
        "started": now(),
        "ended": None,
        "command": list(command),
        "seed": seed,
        "engines": list(engines),
        "resumed": [],
        "failed": [],
        "vm": None,
        **circumstances(),
    }


def circumstances() -> dict[str, Any]:
    """The part of it that can differ when a run is resumed."""
    return {"git": _git(), "versions": _versions(), "machine": _machine()}


def now() -> str:
    """The time, as provenance has it: ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field(Path("/proc/meminfo"), "MemTotal"),
    }


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _git() -> dict[str, Any] | None:
    """The commit, and whether any file that git knows differs from it; None outside a checkout."""
    commit = _git_output("rev-parse", "HEAD")
    if commit is None or not (_ROOT / ".git").exists():
        return None
    return {"commit": commit, "dirty": bool(_git_output("status", "--porcelain", "--untracked-files=no"))}


def _git_output(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], check=False, capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
