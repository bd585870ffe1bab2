"""How a command ends before its time: Ctrl-C, SIGTERM, and a reader of its output that has gone."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_IMPORT = "<frozen importlib._bootstrap>"
_AGAIN_S = 0.02


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM; not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(f"signal {number}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _would_be_lost(frame):
        signal.signal(signal.SIGALRM, lambda _number, now: _interrupt(number, now))
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    elif not _is_heeded(sys.exc_info()[1]):  # what follows is the clean-up, which a second Ctrl-C must not cut short
        raise Interrupted(number)


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether an exception raised here may reach nobody: inside an import, extension modules take any for their own
    and go on without what they import; inside a finalizer, Python prints it and goes on.
    """
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _is_heeded(handled: BaseException | None) -> bool:
    """Whether what is being handled now, or what it came of, is an interruption."""
    while handled is not None and not isinstance(handled, Interrupted):
        handled = handled.__context__
    return handled is not None


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
        _ignore()  # generators that were left are closed with it
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
    finally:
        _ignore()


def _ignore() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def end_at_once(number: int, _frame: FrameType | None) -> None:
    """A handler for as long as a command's own modules are being imported and there is nothing to clean up."""
    os._exit(128 + number)
