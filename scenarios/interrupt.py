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
_INSIST_S = 0.2


class _Command:
    """The command of this process: the signal that it was to end by, and whether it has ended."""

    number = 0
    over = False


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM; not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    _deliver(number, frame, again=False, waited_s=0.0)


def _deliver(number: int, frame: FrameType | None, *, again: bool, waited_s: float) -> None:
    """Raise Interrupted where it is heard, and again until it is heeded: extension modules may swallow it anywhere."""
    if _Command.over:
        return
    if waited_s < _PATIENCE_S and _would_be_lost(frame):
        _in_a_while(_AGAIN_S, number, again=again, waited_s=waited_s + _AGAIN_S)
        return
    handled = sys.exc_info()[1]
    if _is_heeded(handled):  # by the clean-up, which a second Ctrl-C must not cut short
        return
    _in_a_while(_INSIST_S, number, again=True, waited_s=0.0)
    if again and handled is not None:  # which may be what an extension module has made of it
        return
    _Command.number = number
    raise Interrupted(number)


def _in_a_while(delay_s: float, number: int, *, again: bool, waited_s: float) -> None:
    signal.signal(signal.SIGALRM, lambda _, frame: _deliver(number, frame, again=again, waited_s=waited_s))
    signal.setitimer(signal.ITIMER_REAL, delay_s)


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
        return _interrupted() if status and _Command.number else status
    except Interrupted:
        return _interrupted()
    except Exception as error:
        _Command.over = True
        if _Command.number:  # it is what became of the interruption on its way
            return _interrupted()
        if not isinstance(error, OSError):
            raise
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


def _interrupted() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):  # generators that were left are closed after this
        signal.signal(number, signal.SIG_IGN)
    print(f"{Path(sys.argv[0]).name}: interrupted", file=sys.stderr)
    return 128 + _Command.number


def end_at_once(number: int, _frame: FrameType | None) -> None:
    """A handler for as long as a command's own modules are being imported and there is nothing to clean up."""
    os._exit(128 + number)
