"""Where a prompt's network is: on this machine's own kernel if that can carry it, else in the VM, at the terminal.

The files that it leaves are in a run folder of their own, which goes again if there are none.
"""

import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from scenarios import native, vm
from scenarios.loader import resolved
from scenarios.native import Lack
from scenarios.place import Place
from scenarios.prompt import history
from scenarios.spec import Scenario
from scenarios.vm import terminal

"""100 Gbit/s are 100 Mbit/s, which one core of any machine carries over several switches."""

_ROOT = Path(__file__).resolve().parent.parent.parent
_VM_BYTES = 2 * 2**30


def launch(scenario: Scenario, *, out: Path | None) -> int:
    """Have a prompt on the network of a scenario (the first of its settings); return an exit status.

    Raises FolderError where there is no place for its files, vm.VMError where there is no VM.
    """
    setting, settings = scenario.settings()[0], len(scenario.settings())
    lacks = native.lacking()
    if lacks:
        vm.check(memory_bytes=_VM_BYTES)
    place = Place.new(out) if out is not None else Place.dated(f"{scenario.name}-prompt", datetime.now())
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))  # a terminal that is closed
    which = f"the first of {settings} settings of {scenario.name}, " if settings > 1 else ""
    try:
        if lacks:
            return _in_the_vm(setting, place.path, which + _where(lacks))
        return _here(setting, place.path, f"{which}on this machine's own kernel")
    finally:
        history.adopt(place.path, os.environ)
        place.abandon()
        place.close()


def _where(lacks: Sequence[Lack]) -> str:
    first = lacks[0].what.partition(",")[0]
    return f"in the VM (on this machine's own kernel it would need {first}; --doctor tells more)"


def _here(setting: Scenario, folder: Path, where: str) -> int:
    # Mininet is there only where the network is, and takes its time to load.
    from scenarios.prompt.session import serve

    return serve(setting, own_kernel=True, folder=folder, where=where)


def _in_the_vm(setting: Scenario, folder: Path, where: str) -> int:
    # Mininet imports distutils, and setuptools' own takes five times as long to load as Python's.
    inside = {"PYTHONPATH": str(_ROOT), "SETUPTOOLS_USE_DISTUTILS": "stdlib", "PYTHONHASHSEED": "0"}
    at_terminal = terminal.is_terminal()
    print("longhaul: starting the VM", file=sys.stderr, flush=True)
    return vm.run(
        [sys.executable, "-m", "scenarios.prompt.session", resolved(setting), str(folder.resolve()), where],
        clock="wall",
        memory_bytes=_VM_BYTES,
        results=folder,
        environment={**os.environ, **inside},
        stdin=None if at_terminal else 0,
        use_terminal=at_terminal,
    )
