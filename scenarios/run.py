#!/usr/bin/env python3
"""The command: run a scenario, in one engine or several, and write what it gives. See --help.

Started by the system's Python (`sudo python scenarios/run.py`, say) it goes on in the project's own environment. Until
that is sure to be there, nothing is imported that Python does not bring.
"""

import os
import signal
import sys


def _end_at_once(*_: object) -> None:
    """End at a Ctrl-C that comes while modules are still being imported: nothing has been started."""
    os.write(2, b"run.py: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _end_at_once)

from pathlib import Path  # noqa: E402 - it takes long enough for a Ctrl-C

ROOT = Path(__file__).resolve().parent.parent
SETUP = "bash scenarios/setup.sh"
CANNOT = 3
_OLDEST = (3, 11)


def main() -> int:
    """Run the command of sys.argv; returns its exit status."""
    if sys.argv[1:] == ["--doctor"]:
        from scenarios.doctor import diagnosis

        return diagnosis()
    # Imported late: numpy takes long enough for Ctrl-C to arrive meanwhile.
    from scenarios.command import run

    return run(sys.argv[1:])


def _at_home(own: Path) -> None:
    """Go on in the project's own environment, whose Python `own` is, if this is the system's Python."""
    is_system = sys.prefix == sys.base_prefix
    if is_system and own.exists() and Path(sys.executable) != own:
        os.execv(own, [str(own), *sys.orig_argv[-len(sys.argv) :]])  # noqa: S606 - there is no shell to start
    if sys.version_info < _OLDEST:
        _refuse(f"Python {sys.version.split()[0]} is too old: 3.11 or newer is needed, in Debian 12 or newer")


def _refuse(sentence: str) -> None:
    print(f"run.py: {sentence}", file=sys.stderr)
    raise SystemExit(CANNOT)


if __name__ == "__main__":
    _at_home(ROOT / ".venv" / "bin" / "python")
    # The packages beside this file and no others of the same names; not this folder, whose modules have common names.
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    try:
        from scenarios.interrupt import guarded

        sys.exit(guarded(main))
    except ModuleNotFoundError as missing:
        if (ROOT / str(missing.name).partition(".")[0]).is_dir():
            raise  # a module of the project's own that is not there is no matter of set-up
        _refuse(f"{sys.executable} has no module {missing.name}: run `{SETUP}` in {ROOT}, which makes .venv")
