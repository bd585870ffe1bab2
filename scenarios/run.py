#!/usr/bin/env python3
"""The command: run a scenario, in one engine or several, and write what it gives. See --help."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent


class _Ended(BaseException):
    """Ctrl-C or SIGTERM; not an Exception, so that nothing on the way takes it for a failure."""


def _end(number: int, _frame: FrameType | None) -> None:
    # What follows is the clean-up, which a second Ctrl-C must not cut short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended(128 + number)


def main() -> int:
    """Run the command of sys.argv; returns its exit status."""
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)
    try:
        # Imported late, as numpy and matplotlib take long enough for Ctrl-C to arrive meanwhile.
        from scenarios.command import run

        status = run(sys.argv[1:])
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever read the output has gone; there is nobody to tell, nor anything to flush at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
        return 1
    except _Ended as ended:
        print("run.py: interrupted", file=sys.stderr)
        return int(ended.args[0])


if __name__ == "__main__":
    # The packages beside this file and no others of the same names; not this folder, whose modules have common names.
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    sys.exit(main())
