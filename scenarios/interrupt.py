"""How a command ends before its time: Ctrl-C, SIGTERM, and a reader of its output that has gone."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM; not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(f"signal {number}")


def _interrupt(number: int, _frame: FrameType | None) -> None:
    # What follows is the clean-up, which a second Ctrl-C must not cut short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted(number)


def guarded(command: Callable[[], int]) -> int:
    """Run `command` and return its exit status, or 130 after Ctrl-C, 143 after SIGTERM, 1 when nobody reads on."""
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        status = command()
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except Interrupted as interrupted:
        print(f"{Path(sys.argv[0]).name}: interrupted", file=sys.stderr)
        return interrupted.status
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"{Path(sys.argv[0]).name}: the output cannot be written: {error.strerror}", file=sys.stderr)
        # There is nobody to tell, and nothing to flush at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        return 1


def end_at_once(number: int, _frame: FrameType | None) -> None:
    """A handler for as long as a command's own modules are being imported and there is nothing to clean up."""
    os._exit(128 + number)
