"""``run.py --doctor``: what this machine can do, what is missing, and the command that mends it.

What can be tried is tried: the VM is booted in either clock and Open vSwitch brought up in it. Imports nothing that
Python does not bring, as it must also tell what is missing before anything has been set up.
"""

import sys
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

from scenarios import native, vm
from scenarios.native import SETUP, Lack

CAN, CANNOT = 0, 3
_ROOT = Path(__file__).resolve().parent.parent
_HEADINGS = ("this machine has", "", "what is missing", "what mends it")
_DEFAULT = "the virtual clock, in the VM (the default)"


def diagnosis() -> int:
    """Print the table; return 0 if the default works, 3 if it does not."""
    found = {
        _DEFAULT: list(_in_the_vm("virtual")),
        "the wall clock, in the VM": list(_in_the_vm("wall")),
        "the wall clock, on its own kernel": native.lacking(),
    }
    print(table(found))
    return CANNOT if found[_DEFAULT] else CAN


def table(found: dict[str, list[Lack]]) -> str:
    """What was found as a table: a line for each ability, and one more for every further thing that it lacks."""
    rows = [_HEADINGS]
    for ability, lacks in found.items():
        first, *more = lacks or [Lack("", "")]
        rows.append((ability, "no" if lacks else "yes", first.what, first.mend))
        rows += [("", "", lack.what, lack.mend) for lack in more]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _in_the_vm(clock: vm.Clock) -> Iterator[Lack]:
    """What keeps experiments in the VM from running; the VM is tried only if all that it is made of is there."""
    parts = [*_python(), *_programs(), *_kernel()]
    yield from parts
    if not parts:
        print(f"doctor: trying the VM with the {clock} clock", file=sys.stderr, flush=True)
        yield from _boot(clock)


def _python() -> Iterator[Lack]:
    """Packages that are not there for this Python."""
    try:
        wanted = [line.partition(";") for line in metadata.requires("longhaul") or []]
    except metadata.PackageNotFoundError:
        yield Lack(f"Longhaul's Python packages for {sys.executable}", SETUP)
        return
    names = [_name(requirement) for requirement, _, condition in wanted if "extra" not in condition]
    absent = [name for name in names if not _is_installed(name)]
    absent += ["mininet"] if util.find_spec("mininet") is None else []
    if absent:
        yield Lack(f"the Python packages {', '.join(absent)}", SETUP)


def _name(requirement: str) -> str:
    """The name at the beginning of a requirement: "os-ken" of "os-ken>=4.0"."""
    end = next((i for i, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:end]


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _programs() -> Iterator[Lack]:
    if programs := native.missing_programs():
        yield Lack(f"the programs {', '.join(programs)}", SETUP)


def _kernel() -> Iterator[Lack]:
    try:
        vm.check()
    except vm.VMError as error:
        yield _lack(str(error))


def _boot(clock: vm.Clock) -> Iterator[Lack]:
    words = _Words()
    command = [sys.executable, "-m", "scenarios.vm.openvswitch", "up"]
    try:
        status = vm.run(command, clock=clock, directory=_ROOT, stdout=words, stderr=words)
    except vm.VMError as error:
        yield _lack(str(error))
        return
    if status != 0:
        yield Lack(f"Open vSwitch in the VM: {words.last()}", SETUP)


def _lack(sentence: str) -> Lack:
    """A sentence that ends with what mends it, taken apart."""
    what, _, mend = sentence.rpartition(": ")
    if not what:
        return Lack(sentence, "")
    return Lack(what, mend.removeprefix("run `").removesuffix("`") if mend.startswith("run `") else mend)


class _Words:
    """Takes in what the VM says, to be quoted where it fails."""

    def __init__(self) -> None:
        self._data = b""

    def write(self, data: bytes) -> None:
        self._data += data

    def flush(self) -> None:
        """There is nothing to flush."""

    def last(self) -> str:
        """The last line that says something."""
        lines = [line.strip() for line in self._data.decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "it said nothing")
