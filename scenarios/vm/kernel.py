"""The VM's kernel: its configuration, the cache that set-up fills, and the check that a kernel can be used.

The cache is a folder of each user, ``$XDG_CACHE_HOME/longhaul`` or ``~/.cache/longhaul``. It has a folder for each
kernel, named after the kernel's version and the fingerprint of its configuration. Set-up also copies the kernel into
the virtual environment, for users who have not run set-up, such as root. ``LONGHAUL_KERNEL`` names another kernel.
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
from topologies.errors import list_first

FRAGMENT = Path(__file__).with_name("kernel.config")
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))

_SET = re.compile(r"(CONFIG_\w+)=(.+)")
_UNSET = re.compile(r"# (CONFIG_\w+) is not set")
_XSTATE_BYTES = "CONFIG_UML_XSTATE_BYTES"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of a user's kernels; for a user without a home directory it is in the root folder."""
    home = environment.get("HOME")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:  # a container may run as a user that the system does not know
            home = "/"
    return Path(environment.get("XDG_CACHE_HOME") or Path(home, ".cache")) / "longhaul"


def cached(cache: Path, version: str, fingerprint: str) -> Path:
    """Return the path of a kernel in a cache, given its version and the fingerprint of its configuration."""
    return cache / f"linux-{version}-{fingerprint}" / "linux"


def newest(paths: list[Path]) -> Path | None:
    """Return the kernel of the highest version among paths from ``cached``, or None if there are no paths."""
    return max(paths, key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)[:4]], default=None)


def find_kernel(environment: Mapping[str, str]) -> Path:
    """Return the kernel to boot; raises CannotRunError if this machine has no usable kernel."""
    if platform.machine() != "x86_64":
        raise CannotRunError(f"the VM's kernel runs on x86_64 only, and this machine is {platform.machine()}")
    if named := environment.get("LONGHAUL_KERNEL"):
        check(Path(named), fix="unset LONGHAUL_KERNEL")
        return Path(named)
    wanted = wanted_fingerprint()
    caches = [cache_folder(environment), Path(sys.prefix, "lib", "longhaul")]
    paths = [path for cache in caches for path in cache.glob(f"linux-*-{wanted}/linux")]
    path = newest([path for path in paths if os.access(path, os.X_OK)])
    if path is None:
        raise CannotRunError(
            f"the VM's kernel is not built yet (looked in {caches[0]} and {caches[1]})", remedy=f"run `{SETUP}`"
        )
    check(path)
    return path


def check(path: Path, *, fix: str = "remove it") -> None:
    """Raise CannotRunError unless the file is a User-Mode Linux kernel that has every option that the VM needs and room
    for this CPU's registers. `fix` is what to do about a file that is not, before set-up is run."""
    try:
        shown = subprocess.run([path, "--showconfig"], capture_output=True, text=True, timeout=30, check=False)
        config = options(shown.stdout) if shown.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        config = {}
    if config.get("CONFIG_UML") != "y":
        raise CannotRunError(
            f"{path} is not a User-Mode Linux kernel that runs on this machine", remedy=f"{fix} and run `{SETUP}`"
        )
    if lacking := missing(options(FRAGMENT.read_text()), config):
        raise CannotRunError(
            f"the kernel {path} was built without the options {list_first(lacking, 3)}, which the VM needs",
            remedy=f"{fix} and run `{SETUP}`",
        )
    state_bytes, held_bytes = resources.register_bytes(), int(config[_XSTATE_BYTES])
    if state_bytes > held_bytes:  # the kernel transfers all registers at once, and would panic at its first process
        raise CannotRunError(
            f"this CPU's registers take up to {state_bytes:,} bytes per process, and the kernel {path} has room for "
            f"{held_bytes:,} only",
            remedy=f"raise {_XSTATE_BYTES} in {FRAGMENT} and run `{SETUP}`",
        )


def options(text: str) -> dict[str, str]:
    """Parse a kernel configuration into ``{"CONFIG_X": value}``; an option that is "not set" has the value ``n``.

    Raises ValueError with the line number for a line that is neither an option nor a comment.
    """
    values = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _SET.fullmatch(line.strip()):
            values[match[1]] = match[2]
        elif match := _UNSET.fullmatch(line.strip()):
            values[match[1]] = "n"
        elif line.strip() and not line.lstrip().startswith("#"):
            raise ValueError(f"line {number} is not a kernel option: {line.strip()!r}; allowed: CONFIG_NAME=VALUE")
    return values


def merged(base: str, fragment: str) -> str:
    """Return the text of a configuration in which the fragment's options replace the base's."""
    values = options(base) | options(fragment)
    return "".join(f"# {name} is not set\n" if value == "n" else f"{name}={value}\n" for name, value in values.items())


def missing(wanted: Mapping[str, str], config: Mapping[str, str]) -> list[str]:
    """Return the wanted options, as ``CONFIG_X=value``, that a kernel's configuration does not have.

    An option that is off in `wanted` only saves time: it is never missing. A number is the least that is wanted.
    """
    lacking = []
    for name, value in wanted.items():
        found = config.get(name, "n")
        enough = found.isdecimal() and int(found) >= int(value) if value.isdecimal() else found == value
        if value != "n" and not enough:
            lacking.append(f"{name}={value}")
    return lacking


def fingerprint(fragment: str, patches: Sequence[str] = ()) -> str:
    """Return twelve hexadecimal digits that depend on the fragment's options, not on its comments, and on patches."""
    lines = sorted(f"{name}={value}" for name, value in options(fragment).items())
    return hashlib.sha256("\n".join([*lines, *patches]).encode()).hexdigest()[:12]


def wanted_fingerprint(patches: Sequence[Path] = PATCHES) -> str:
    """Return the fingerprint of the kernel that this source tree needs, or of one with other patches."""
    return fingerprint(FRAGMENT.read_text(), [patch.read_text() for patch in patches])
