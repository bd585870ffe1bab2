"""A module that programs on the GPUs' hosts (`run.py --exec`) can import."""

import math
import os
import time
from contextlib import suppress
from pathlib import Path

_COMPUTED = Path("/dev/shm/.longhaul-computed")  # noqa: S108 - each rank has its own; by it the run knows


def compute(seconds: float) -> None:
    """Keep the calling thread busy for so many seconds of the run's time, as if it computed.

    Computing itself takes no virtual time. Raises ValueError if `seconds` is negative or not finite.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{seconds} is not a computing time; allowed: a number of seconds from 0 up")
    if seconds > 0:
        _tell(f"{seconds!r} {time.monotonic()!r} {os.getpid()}")
    time.sleep(seconds)


def _tell(line: str) -> None:
    with suppress(OSError), _COMPUTED.open("a") as file:  # threads and processes of the rank append to it
        file.write(f"{line}\n")


def report(step: float, tokens: float | None = None) -> None:
    """Tell the run how many seconds a step took, and how many tokens this rank trained on in it, if given: print a line
    from which it makes tables and a figure.

    Raises ValueError if one of them is negative or not finite.
    """
    if not (math.isfinite(step) and step >= 0):
        raise ValueError(f"{step} is not the time of a step; allowed: a number of seconds from 0 up")
    if tokens is not None and not (math.isfinite(tokens) and tokens >= 0):
        raise ValueError(f"{tokens} is not a number of tokens; allowed: a number from 0 up")
    trained = "" if tokens is None else f"{tokens:.15g}"
    _tell(f"step {step!r} {time.monotonic()!r} {os.getpid()} {trained}".rstrip())
    print(f"longhaul: step {step:.9f}{trained and f' tokens {trained}'}", flush=True)
