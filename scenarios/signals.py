"""How a command ends early: Ctrl-C, SIGTERM, a closed terminal, or a reader of its output that has gone.

A command runs in a child process. Its parent, the supervisor, imports nothing that could delay it, passes the signal
on and kills what has not ended soon after: a signal that an extension module swallows, or that comes in the middle of
a long call, ends the command all the same. A kill loses nothing, as whatever is measured is on the disk by then.
"""

import atexit
import ctypes
import errno
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

_OTHERS = (signal.SIGCHLD, signal.SIGTSTP)  # that the supervisor waits for
_GRACE_S = 1.5
_LAST_S = 30.0  # for orphans: a network on this machine's own kernel is taken down by the process that made it
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NEVER_S = 1e8


class Interrupted(BaseException):
    """One of the signals that end a command; not an Exception, so that nothing takes it for a failure."""


class OutputError(OSError):
    """The output of the command cannot be written; any other OSError is about a file of the run."""


_interrupted: list[int] = []  # the signals that this process has got: the first interrupts, the others change nothing


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _interrupted.append(number)
    if len(_interrupted) == 1:
        sys.unraisablehook = lambda _: None  # should it be a finalizer that this is raised in
        raise Interrupted


def guarded(command: Callable[[], int]) -> int:
    """Run `command` and return its exit status, or 128+n after signal n, or 1 when its output cannot be written.

    For the main function of a program. A signal raises Interrupted in it once, so that it can clean up.
    """
    ends = _ends()
    for number in ends:
        signal.signal(number, _interrupt)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*ends, *_OTHERS})  # which the supervisor has blocked
        status = command()
        if sys.stdout is not None:
            sys.stdout.flush()
        if not status or not _interrupted:
            return status
    except Interrupted:
        pass
    except Exception as error:
        if not _interrupted:  # else it is what a library has made of the interruption
            if not isinstance(error, OSError):
                raise
            if error.errno != errno.EPIPE:
                print(f"{_name()}: the output cannot be written: {error.strerror}", file=sys.stderr)
            nowhere = os.open(os.devnull, os.O_WRONLY)  # for what is flushed at exit
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            return 1
    finally:
        for number in ends:  # a handler's exception at the interpreter's exit would be a traceback
            signal.signal(number, signal.SIG_IGN if _interrupted else signal.SIG_DFL)
    with suppress(OSError):
        sys.stdout.flush()
    os.write(2, f"{_name()}: interrupted\n".encode())
    os._exit(128 + _interrupted[0])  # at once, without finalizers, which were interrupted


def _ends() -> set[int]:
    """The signals that end a command: not the hangup that nohup has it ignore."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return {signal.SIGINT, signal.SIGTERM} | (set() if ignored else {signal.SIGHUP})


def _name() -> str:
    return Path(sys.argv[0]).name


def supervised(command: Callable[[], int]) -> int:
    """Run `command` as `guarded` does, in a child process that a signal is sure to end, with all its processes.

    Returns in both processes, with the exit status for sys.exit: 128+n within two seconds of signal n, except where
    a network on this machine's own kernel must be taken down.
    """
    returned: list[int] = []
    atexit.register(_leave, returned)  # before others, so that it is the last that is called
    returned.append(_supervised(command))
    return returned[0]


def _leave(returned: Sequence[int]) -> None:
    """End this process, if it ends with this status, and do not free each object first: that is a tenth of a run."""
    if returned:
        with suppress(OSError):  # it is told of as Python ends
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(returned[0])


def _supervised(command: Callable[[], int]) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, a child would end without a signal
    awaited = {*_ends(), *_OTHERS}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    supervisor, prctl, came_back = os.getpid(), ctypes.CDLL(None).prctl, mmap.mmap(-1, 1)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # a terminal's Ctrl-C is for the supervisor
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # writing to that terminal stays allowed
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(1)
        try:
            return guarded(command)
        finally:
            came_back[0] = 1
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the child leaves is waited for here
    ended_by, deadline, status = 0, time.monotonic() + _NEVER_S, None
    while status is None:
        found = signal.sigtimedwait(awaited, max(0.0, deadline - time.monotonic()))
        number = found.si_signo if found else signal.SIGKILL
        if number == signal.SIGCHLD:
            pid, ended = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(ended) if pid else None
        elif number == signal.SIGKILL:
            _signal(child, number)
            deadline += _NEVER_S
        elif number == signal.SIGTSTP:
            _signal(child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            _signal(child, signal.SIGCONT)
        elif not ended_by:
            ended_by, deadline = number, time.monotonic() + _GRACE_S
            os.kill(child, number)
    if ended_by or status < 0:
        _signal(child, signal.SIGKILL)
        until = time.monotonic() + _LAST_S
        with suppress(ChildProcessError):  # until no process is left that outlives the child, as it cleans up
            while time.monotonic() < until:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    signal.sigtimedwait({signal.SIGCHLD}, 1.0)
    if status >= 0 and (came_back[0] or status >= 128):
        return status
    return _ended(status, by=ended_by)


def _ended(status: int, *, by: int) -> int:
    """Tell how a child ended that did not come back from its command, by this signal if any; returns an exit status."""
    if os.isatty(2):
        os.write(2, b"\n\x1b[?25h")  # a live table has hidden the cursor
    early = f"ended early with status {status}, by os._exit in a policy or a library"
    how = "interrupted" if by else early if status >= 0 else f"killed by signal {-status}"
    os.write(2, f"{_name()}: {how}\n".encode())
    return 128 + by if by else 128 - status if status < 0 else status or 1


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
