#!/usr/bin/env python3
"""The command: run a scenario, in one engine or several, and write what it gives. See --help."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the command of sys.argv; returns its exit status."""
    # Imported late: numpy takes long enough for Ctrl-C to arrive meanwhile.
    from scenarios.command import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    # The packages beside this file and no others of the same names; not this folder, whose modules have common names.
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    from scenarios.interrupt import guarded

    sys.exit(guarded(main))
