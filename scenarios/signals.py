"""Early ends of a command: Ctrl-C, SIGTERM, a closed terminal, or a reader of its output that has exited.

A command runs in a child process. Its parent, the supervisor, imports nothing that could delay it; it forwards the
signal and kills processes that have not ended shortly afterwards. So a signal ends the command even if an extension
module swallows it or if it arrives during a long call. A kill loses no results, because measurements are written to the
disk at once.
"""

import atexit
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

from topologies.linux import adopt_orphans, die_with_parent

_WATCHED = (signal.SIGCHLD, signal.SIGTSTP)  # the supervisor also waits for these
_GRACE_S, _MORE_S = 1.5, 2.0
_ORPHANS_S = 30.0  # for orphans: the process that made a network on this machine's own kernel takes it down
_NEVER_S = 1e8


class Interrupted(BaseException):
    """A signal that ends the command was received; not an Exception, so that no handler takes it for a failure."""


class OutputError(OSError):
    """The output of the command cannot be written; any other OSError concerns a file of the run."""


_shared: list[mmap.mmap] = []  # with the supervisor: whether the command has returned, and whether it asks for time

_interrupted: list[int] = []  # the signals received: the first one interrupts, further ones have no effect


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _interrupted.append(number)
    if len(_interrupted) == 1:
        sys.unraisablehook = lambda _: None  # in case it is raised in a finalizer
        raise Interrupted


def _open_standard_streams() -> None:
    """Connect the standard streams with which the process was started closed to /dev/null.

    Otherwise the next file that is opened gets the descriptor of a stream, and what is printed ends in it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free one: that of the stream
            setattr(sys, name, os.fdopen(descriptor, mode))
            os.set_inheritable(number, True)


def guarded(command: Callable[[], int]) -> int:
    """Run `command` and return its exit status: 128+n after signal n, 1 if its output cannot be written.

    For the main function of a program. A signal raises Interrupted once in `command`, so that it can clean up.
    """
    _open_standard_streams()
    ends = _ending_signals()
    for number in ends:
        signal.signal(number, _interrupt)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*ends, *_WATCHED})  # the supervisor blocked them
        status = command()
        sys.stdout.flush()
        if not status or not _interrupted:
            return status
    except Interrupted:
        pass
    except Exception as error:
        if not _interrupted:  # otherwise a library turned the interruption into this exception
            if not isinstance(error, OSError):
                raise
            if error.errno != errno.EPIPE:
                print(f"{_name()}: the output cannot be written: {error.strerror}", file=sys.stderr)
            nowhere = os.open(os.devnull, os.O_WRONLY)  # for buffers that are flushed at exit
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            return 1
    finally:
        for number in ends:  # an exception from a handler during the interpreter's exit would print a traceback
            signal.signal(number, signal.SIG_IGN if _interrupted else signal.SIG_DFL)
    with suppress(OSError):
        sys.stdout.flush()
    os.write(2, f"{_name()}: interrupted\n".encode())
    os._exit(128 + _interrupted[0])  # at once, without finalizers, as some were interrupted


def _ending_signals() -> set[int]:
    """Return the signals that end a command; without SIGHUP if nohup makes the command ignore it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return {signal.SIGINT, signal.SIGTERM} | (set() if ignored else {signal.SIGHUP})


def _name() -> str:
    return Path(sys.argv[0]).name


def supervised(command: Callable[[], int]) -> int:
    """Run `command` as `guarded` does, in a child process that a signal certainly ends, with all its processes.

    Returns in both processes, with the exit status for sys.exit. After signal n this is 128+n, within two seconds, or
    four if the command asks for time, unless a network on this machine's own kernel must be taken down.
    """
    _open_standard_streams()
    returned: list[int] = []
    atexit.register(_exit_at_once, returned)  # registered first, so that it is called last
    returned.append(_supervised(command))
    return returned[0]


def ask_for_time() -> None:
    """Ask the supervisor, if there is one, for two more seconds after a signal, to tell what there is so far."""
    for shared in _shared:
        shared[1] = 1


def _exit_at_once(returned: Sequence[int]) -> None:
    """End this process with this status, if any, without freeing each object first, which takes a tenth of a run."""
    if returned:
        with suppress(OSError):  # Python reports it when it exits
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(returned[0])


def _supervised(command: Callable[[], int]) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, no signal would be sent when a child ends
    awaited = {*_ending_signals(), *_WATCHED}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    supervisor, came_back = os.getpid(), mmap.mmap(-1, 2)
    _shared.append(came_back)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # a terminal's Ctrl-C goes to the supervisor
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # so that the child may write to the terminal
        die_with_parent(supervisor)
        try:
            return guarded(command)
        finally:
            came_back[0] = 1
    adopt_orphans()
    ended_by, deadline, status = 0, time.monotonic() + _NEVER_S, None
    while status is None:
        received = signal.sigtimedwait(awaited, max(0.0, deadline - time.monotonic()))
        number = received.si_signo if received else signal.SIGKILL
        if not received and came_back[1]:
            came_back[1], deadline = 0, deadline + _MORE_S
        elif number == signal.SIGCHLD:
            pid, ended = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(ended) if pid else None
        elif number == signal.SIGKILL:
            _signal_group(child, number)
            deadline += _NEVER_S
        elif number == signal.SIGTSTP:
            _signal_group(child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            _signal_group(child, signal.SIGCONT)
        elif not ended_by:
            ended_by, deadline = number, time.monotonic() + _GRACE_S
            os.kill(child, number)
    if ended_by or status < 0:
        _signal_group(child, signal.SIGKILL)
        until = time.monotonic() + _ORPHANS_S
        with suppress(ChildProcessError):  # until the last process that is still cleaning up has ended
            while time.monotonic() < until:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    signal.sigtimedwait({signal.SIGCHLD}, 1.0)
    if status >= 0 and (came_back[0] or status >= 128):
        return status
    return _report_end(status, by=ended_by)


def _report_end(status: int, *, by: int) -> int:
    """Report how a child ended without returning, after signal `by` if not 0; returns an exit status."""
    if os.isatty(2):
        os.write(2, b"\n\x1b[?25h")  # a live table has hidden the cursor
    if by:
        how, returned = "interrupted", 128 + by
    elif status < 0:
        how, returned = f"killed by signal {-status}", 128 - status
    else:
        how, returned = f"ended early with status {status}, by os._exit in a policy or a library", status or 1
    os.write(2, f"{_name()}: {how}\n".encode())
    return returned


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
