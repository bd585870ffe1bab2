"""CLOCK_MONOTONIC, the clock that all hosts of the VM share, and sleeping until an instant without reading it: in the
VM each reading of a clock takes time."""

import ctypes
import errno
import os
import time

_TIMER_ABSTIME = 1
_libc = ctypes.CDLL(None, use_errno=True)
_Timespec = ctypes.c_long * 2
_Itimerspec = ctypes.c_long * 4  # interval and expiry, each in s and ns


def now_ns() -> int:
    """Return the time of CLOCK_MONOTONIC in ns."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def sleep_until(instant_ns: int) -> None:
    """Sleep until `instant_ns`; unlike time.sleep(), this does not read the clock. Raises OSError."""
    instant = _Timespec(*divmod(instant_ns, 1_000_000_000))
    while (error := _libc.clock_nanosleep(time.CLOCK_MONOTONIC, _TIMER_ABSTIME, instant, None)) != 0:
        if error != errno.EINTR:
            raise OSError(error, "the agent cannot sleep")


class Timer:
    """A file descriptor that becomes readable at a given instant (timerfd). A context manager; raises OSError."""

    def __init__(self) -> None:
        self._fd: int = _checked(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC))

    def __enter__(self) -> "Timer":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._fd

    def set(self, instant_ns: int) -> None:
        """Set the instant at which the descriptor becomes readable; this replaces an earlier setting."""
        instant = _Itimerspec(0, 0, *divmod(instant_ns, 1_000_000_000))
        _checked(_libc.timerfd_settime(self._fd, _TIMER_ABSTIME, instant, None))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "the agent has no timer")
    return result
