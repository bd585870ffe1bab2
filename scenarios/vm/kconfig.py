"""Kernel configurations as text: reading a fragment, merging it, what a kernel lacks of it, and its fingerprint."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

FRAGMENT = Path(__file__).with_name("kernel.config")
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))

_SET = re.compile(r"(CONFIG_\w+)=(.+)")
_UNSET = re.compile(r"# (CONFIG_\w+) is not set")


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
            raise ValueError(f"line {number} is no kernel option: {line.strip()!r}; allowed is CONFIG_NAME=VALUE")
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
