"""Where the VM's kernel is: the cache that set-up fills, and whether a kernel can serve.

The cache is a folder per user, ``$XDG_CACHE_HOME/longhaul`` or ``~/.cache/longhaul``, with a folder a kernel named
after the kernel's version and the fingerprint of its configuration. Set-up puts a copy into the virtual environment,
for root and whoever else runs the project without having set it up. ``LONGHAUL_KERNEL`` names a kernel to use instead.
"""

import os
import platform
import pwd
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scenarios.vm import kconfig
from scenarios.vm.errors import CannotRunError

SETUP = "bash scenarios/setup.sh"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of a user's own kernels."""
    home = environment.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    return Path(environment.get("XDG_CACHE_HOME") or Path(home, ".cache")) / "longhaul"


def cached(cache: Path, version: str, fingerprint: str) -> Path:
    """Return where a cache keeps the kernel of a version and a configuration."""
    return cache / f"linux-{version}-{fingerprint}" / "linux"


def newest(paths: list[Path]) -> Path | None:
    """Return the kernel of the highest version among paths made by ``cached``, or None when there are none."""
    return max(paths, key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)[:4]], default=None)


def find_kernel(environment: Mapping[str, str]) -> Path:
    """Return the kernel to boot; raises CannotRunError when this machine has none that serves."""
    if platform.machine() != "x86_64":
        raise CannotRunError(f"the VM's kernel runs on x86_64 machines only, and this one is {platform.machine()}")
    if named := environment.get("LONGHAUL_KERNEL"):
        check(Path(named))
        return Path(named)
    fingerprint = kconfig.wanted_fingerprint()
    caches = [cache_folder(environment), Path(sys.prefix, "lib", "longhaul")]
    found = [path for cache in caches for path in cache.glob(f"linux-*-{fingerprint}/linux")]
    path = newest([path for path in found if os.access(path, os.X_OK)])
    if path is None:
        raise CannotRunError(f"the VM's kernel is not built yet (looked in {caches[0]} and {caches[1]}): run `{SETUP}`")
    check(path)
    return path


def check(path: Path) -> None:
    """Raise CannotRunError unless a file is a User-Mode Linux kernel with every option that the VM needs."""
    try:
        shown = subprocess.run([path, "--showconfig"], capture_output=True, text=True, timeout=30, check=False)
        found = kconfig.options(shown.stdout) if shown.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        found = {}
    if found.get("CONFIG_UML") != "y":
        raise CannotRunError(f"{path} is no User-Mode Linux kernel that runs here: remove it and run `{SETUP}`")
    if lacking := kconfig.missing(kconfig.options(kconfig.FRAGMENT.read_text()), found):
        raise CannotRunError(
            f"the kernel {path} was built without {_listed(lacking)}, which the VM needs: remove it and run `{SETUP}`"
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more options"
