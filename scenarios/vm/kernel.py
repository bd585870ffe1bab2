"""The VM's kernel: its configuration, the cache that set-up fills, and whether a kernel there can be used.

The cache is a folder per user, ``$XDG_CACHE_HOME/longhaul`` or ``~/.cache/longhaul``, with a folder a kernel named
after the kernel's version and the fingerprint of its configuration. Set-up puts a copy into the virtual environment,
for root and other users who have not run set-up themselves. ``LONGHAUL_KERNEL`` names a kernel to use instead.
"""

import hashlib
import os
import platform
import pwd
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scenarios.vm import resources
from scenarios.vm.errors import SETUP, CannotRunError
from topologies.errors import first_of

FRAGMENT = Path(__file__).with_name("kernel.config")
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))

_SET = re.compile(r"(CONFIG_\w+)=(.+)")
_UNSET = re.compile(r"# (CONFIG_\w+) is not set")
_HELD = "CONFIG_UML_XSTATE_BYTES"


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
    wanted = wanted_fingerprint()
    caches = [cache_folder(environment), Path(sys.prefix, "lib", "longhaul")]
    found = [path for cache in caches for path in cache.glob(f"linux-*-{wanted}/linux")]
    path = newest([path for path in found if os.access(path, os.X_OK)])
    if path is None:
        raise CannotRunError(
            f"the VM's kernel is not built yet (looked in {caches[0]} and {caches[1]})", remedy=f"run `{SETUP}`"
        )
    check(path)
    return path


def check(path: Path) -> None:
    """Raise CannotRunError unless a file is a User-Mode Linux kernel with every option that the VM needs, and with
    room for this CPU's registers."""
    try:
        shown = subprocess.run([path, "--showconfig"], capture_output=True, text=True, timeout=30, check=False)
        found = options(shown.stdout) if shown.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        found = {}
    if found.get("CONFIG_UML") != "y":
        raise CannotRunError(
            f"{path} is not a User-Mode Linux kernel that runs here", remedy=f"remove it and run `{SETUP}`"
        )
    if lacking := missing(options(FRAGMENT.read_text()), found):
        raise CannotRunError(
            f"the kernel {path} was built without the options {first_of(lacking, 3)}, which the VM needs",
            remedy=f"remove it and run `{SETUP}`",
        )
    state_bytes, held_bytes = resources.register_bytes(), int(found[_HELD])
    if state_bytes > held_bytes:  # the VM's kernel fetches and sets all of them at once: it would panic at init
        raise CannotRunError(
            f"this CPU's registers take up to {state_bytes:,} bytes a process, and the kernel {path} has room for "
            f"{held_bytes:,}",
            remedy=f"raise {_HELD} in {FRAGMENT} and run `{SETUP}`",
        )


def options(text: str) -> dict[str, str]:
    """Return the options that a configuration's text sets, ``CONFIG_X -> value``; unset ones have the value ``n``.

    Raises ValueError with the line's number for a line that is neither an option nor a comment.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _SET.fullmatch(line.strip()):
            found[match[1]] = match[2]
        elif match := _UNSET.fullmatch(line.strip()):
            found[match[1]] = "n"
        elif line.strip() and not line.lstrip().startswith("#"):
            raise ValueError(f"line {number} is not a kernel option: {line.strip()!r}; allowed: CONFIG_NAME=VALUE")
    return found


def merged(base: str, fragment: str) -> str:
    """Return a configuration's text with a fragment's options in the place of its own."""
    every = options(base) | options(fragment)
    return "".join(f"# {name} is not set\n" if value == "n" else f"{name}={value}\n" for name, value in every.items())


def missing(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the options, as ``CONFIG_X=value``, that are wanted and that a kernel's configuration does not have."""
    return [f"{name}={value}" for name, value in wanted.items() if found.get(name, "n") != value]


def fingerprint(fragment: str, patches: Sequence[str] = ()) -> str:
    """Return twelve hexadecimal digits that change with any option of the fragment and any patch; comments do not."""
    lines = sorted(f"{name}={value}" for name, value in options(fragment).items())
    return hashlib.sha256("\n".join([*lines, *patches]).encode()).hexdigest()[:12]


def wanted_fingerprint() -> str:
    """Return the fingerprint of the kernel that this tree asks for."""
    return fingerprint(FRAGMENT.read_text(), [patch.read_text() for patch in PATCHES])
