#!/usr/bin/env python3
"""The command: runs a scenario in one engine or both and writes the results. See --help.

If it is started by the system's Python (such as `sudo python scenarios/run.py`), it restarts itself in the project's
own environment. Until that environment is known to exist, only Python's standard library is imported.
"""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback until the supervisor takes over

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
SETUP = "bash scenarios/setup.sh"
STUDIES = (
    *("authors", "collectives", "diloco", "grains", "papers"),
    *("permutation", "referees", "requests", "sizing", "variability"),
)
"""Modules of `scenarios.studies`, each a command with options of its own."""
CANNOT = 3
_OLDEST = (3, 11)


def main() -> int:
    """Run the command in sys.argv; returns its exit status."""
    try:
        if sys.argv[1:] == ["--doctor"]:
            from scenarios.tools.doctor import diagnosis

            return diagnosis()
        if sys.argv[1:2] and sys.argv[1] in STUDIES:
            from scenarios.studies.harness import main as answer

            return answer(import_module(f"scenarios.studies.{sys.argv[1]}").STUDY, sys.argv[2:])
        from scenarios.experiment.options import parser

        parser().parse_args(sys.argv[1:])  # handles --help and unknown options before slow imports
        from scenarios.experiment.command import run
    except ModuleNotFoundError as missing:
        if (ROOT / str(missing.name).partition(".")[0]).is_dir():
            raise  # setup.sh does not install the project's own modules
        _refuse(f"{sys.executable} has no module {missing.name}: run `{SETUP}` in {ROOT}, which creates .venv")
    return run(sys.argv[1:])


def _use_own_environment(own: Path) -> None:
    """Restart in the project's own environment, whose Python is `own`, if this is the system's Python."""
    is_system = sys.prefix == sys.base_prefix
    if is_system and own.exists() and Path(sys.executable) != own:
        os.execv(own, [str(own), *sys.orig_argv[-len(sys.argv) :]])  # noqa: S606 - there is no shell to start
    if sys.version_info < _OLDEST:
        _refuse(f"Python {sys.version.split()[0]} is too old: 3.11 or newer is needed, in Debian 12 or newer")


def _refuse(sentence: str) -> NoReturn:
    print(f"run.py: {sentence}", file=sys.stderr)
    raise SystemExit(CANNOT)


if __name__ == "__main__":
    _use_own_environment(ROOT / ".venv" / "bin" / "python")
    # Import the project's packages from here and nowhere else; not this folder, whose modules have common names.
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    from scenarios.signals import guarded, supervised

    # A prompt needs the terminal for itself, which only the process group in the foreground can read.
    sys.exit((guarded if "--cli" in sys.argv else supervised)(main))
