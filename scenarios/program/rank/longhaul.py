"""For programs that run.py runs on the GPUs' hosts (`run.py --exec`), where this module can be imported."""

import math
import time


def compute(seconds: float) -> None:
    """Have this rank, or this thread of it, be busy for so many seconds of the run's time, as if it computed.

    Computing itself takes no virtual time. Raises ValueError for a number below 0 or not finite.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{seconds} is not a time to compute for; allowed: a number of seconds from 0 up")
    time.sleep(seconds)
