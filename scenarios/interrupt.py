"""How a command ends before its time: Ctrl-C, SIGTERM, and a reader of its output that has gone."""

import os
import signal
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_UNHEARD = (
    "<frozen importlib._bootstrap>",
    *(kind.__init__.__code__.co_filename for kind in (weakref.WeakSet, weakref.WeakKeyDictionary)),
)
_AGAIN_S = 0.02
_PATIENCE_S = 10.0  # with an import that does not end


class _Command:
    over = False


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM; not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(f"signal {number}")


def _interrupt(number: int, frame: FrameType | None, waited_s: float = 0) -> None:
    if _Command.over:
        return
    if waited_s < _PATIENCE_S and _would_be_lost(frame):
        signal.signal(signal.SIGALRM, lambda _number, now: _interrupt(number, now, waited_s + _AGAIN_S))
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    elif not _is_heeded(sys.exc_info()[1]):  # what follows is the clean-up, which a second Ctrl-C must not cut short
        raise Interrupted(number)


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether an exception raised here may reach nobody: inside an import, extension modules take any for their own
    and go on without what they import; inside a finalizer, or a dictionary's that lets go of what has died, Python
    prints it and goes on.
    """
    while frame is not None:
        if frame.f_code.co_filename in _UNHEARD or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _is_heeded(handled: BaseException | None) -> bool:
    """Whether what is being handled now, or what it came of, is an interruption."""
    while handled is not None and not isinstance(handled, Interrupted):
        handled = handled.__context__
    return handled is not None


def guarded(command: Callable[[], int]) -> int:
    """Run `command` and return its exit status, or 130 after Ctrl-C, 143 after SIGTERM, 1 when nobody reads on.

    For the main function of a program: what comes after it can be ended by a signal, and no more than that.
    """
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
        _Command.over = True
        if not isinstance(error, BrokenPipeError):
            print(f"{Path(sys.argv[0]).name}: the output cannot be written: {error.strerror}", file=sys.stderr)
        # There is nobody to tell, and nothing to flush at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        return 1
    finally:
        _Command.over = True  # first of all: a signal may come on the way into any function
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, end_at_once)
            signal.signal(signal.SIGTERM, end_at_once)


def _ignore() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def end_at_once(number: int, _frame: FrameType | None) -> None:
    """A handler for as long as a command's own modules are being imported and there is nothing to clean up."""
    os._exit(128 + number)
