"""``run.py --doctor``: report what this machine can run, what is missing, and the commands that fix it.

The VM is booted with each clock, and Open vSwitch is started in it. This module imports the standard library only,
because it must also run before anything has been set up.
"""

import io
import re
import sys
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

from scenarios import vm
from scenarios.testbed import own_kernel
from scenarios.testbed.own_kernel import Lack
from scenarios.text_table import aligned
from scenarios.vm.errors import SETUP

CAN, CANNOT = 0, 3
_ROOT = Path(__file__).resolve().parent.parent.parent
_HEADINGS = ("this machine has", "", "missing", "fix")
_DEFAULT = "the virtual clock, in the VM (the default)"


def diagnosis() -> int:
    """Print the table; return 0 if the default works, 3 if it does not."""
    lacks_of = {
        _DEFAULT: list(_in_the_vm("virtual")),
        "the wall clock, in the VM": list(_in_the_vm("wall")),
        "the wall clock, on its own kernel": own_kernel.lacking(),
    }
    print(table(lacks_of))
    return CANNOT if lacks_of[_DEFAULT] else CAN


def table(lacks_of: dict[str, list[Lack]]) -> str:
    """Return the diagnosis as a table: a line for each ability, and another for each further part that it lacks."""
    rows = [_HEADINGS]
    for ability, lacks in lacks_of.items():
        first, *more = lacks or [Lack("", "")]
        rows.append((ability, "no" if lacks else "yes", first.what, first.remedy))
        rows += [("", "", lack.what, lack.remedy) for lack in more]
    return "\n".join(aligned(rows, range(len(_HEADINGS))))


def _in_the_vm(clock: vm.Clock) -> Iterator[Lack]:
    """Yield what experiments in the VM lack on this machine; the VM is booted only if all of its parts exist."""
    missing = list(_python())
    if programs := own_kernel.missing_programs():
        missing.append(Lack(f"the programs {', '.join(programs)}", SETUP))
    try:
        vm.check()
    except vm.VMError as error:
        missing.append(_lack(error))
    yield from missing
    if not missing:
        print(f"doctor: trying the VM with the {clock} clock", file=sys.stderr, flush=True)
        yield from _boot(clock)


def _python() -> Iterator[Lack]:
    """Yield the packages that this Python lacks."""
    if not _is_installed("longhaul"):
        yield Lack(f"Longhaul's Python packages for {sys.executable}", SETUP)
        return
    wanted = [line for line in metadata.requires("longhaul") or [] if "extra ==" not in line]
    names = [re.split(r"[^\w.-]", line)[0] for line in wanted]  # "os-ken" of "os-ken>=4.0"
    absent = [name for name in names if not _is_installed(name)]
    absent += ["mininet"] if util.find_spec("mininet") is None else []
    if absent:
        yield Lack(f"the Python packages {', '.join(absent)}", SETUP)


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _boot(clock: vm.Clock) -> Iterator[Lack]:
    """Boot the VM and start Open vSwitch in it; yield what fails."""
    output = io.BytesIO()
    command = [sys.executable, "-m", "scenarios.vm.openvswitch", "up"]
    try:
        status = vm.run(command, clock=clock, directory=_ROOT, stdout=output, stderr=output)
    except vm.VMError as error:
        yield _lack(error)
        return
    if status != 0:
        lines = output.getvalue().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        yield Lack(f"Open vSwitch in the VM: {last}", SETUP)


def _lack(error: vm.VMError) -> Lack:
    """Return what the VM lacks, given its error, and the remedy; if no remedy is known, the log that may show one."""
    unknown = "" if error.log is None else f"unknown: see the kernel's log, {error.log}"
    return Lack(error.problem, error.remedy or unknown)
