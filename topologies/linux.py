"""Linux system calls that Python's standard library lacks, where more than one module needs them."""

import ctypes
import os
import signal
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK, _PR_SET_CHILD_SUBREAPER = 1, 29, 36
_libc = ctypes.CDLL(None, use_errno=True)


def enter_network(namespace: int) -> None:
    """Move the calling thread into the network namespace of an open file, such as /proc/PID/ns/net; raises OSError."""
    _check(_libc.setns(namespace, _CLONE_NEWNET), "a network namespace cannot be entered")


def set_namespaces(file: int, kinds: int) -> None:
    """Move the calling thread into namespaces of these kinds (CLONE_NEW flags): that of an open file in /proc/PID/ns,
    or those of a process given by its pidfd. Raises OSError."""
    _check(_libc.setns(file, kinds), "namespaces cannot be entered")


def unshare(kinds: int) -> None:
    """Move the calling thread into new namespaces of these kinds (CLONE_NEW flags); raises OSError."""
    _check(_libc.unshare(kinds), "namespaces cannot be made")


def mount(source: str | Path, target: Path, kind: str | None = None, *, flags: int = 0, data: str = "") -> None:
    """Mount a file system of this kind, or change a mount by `flags` (MS_ flags) such as a bind; raises OSError."""
    encoded = None if kind is None else kind.encode()
    status = _libc.mount(os.fsencode(source), os.fsencode(target), encoded, ctypes.c_ulong(flags), data.encode())
    _check(status, f"{target} cannot be mounted")


def unmount(target: Path) -> None:
    """Detach what is mounted at `target`, if anything is; processes that use it keep it until they end."""
    _libc.umount2(os.fsencode(target), _MNT_DETACH)


def make_timers_exact() -> None:
    """Have the calling thread's sleeps, and those of programs that it starts, end at most 1 ns late, not 50 us."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1)


def adopt_orphans() -> None:
    """Make descendants of this process its children when their parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it (in process `parent`) ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the prctl call
        os._exit(1)


def begin_worker(parent: int) -> None:
    """Reset the signal handlers that a forked worker process has from its parent, and die with the parent."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(parent)


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
