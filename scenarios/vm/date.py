"""The date in the VM while Open vSwitch is set up."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_DATE_NS = 1_577_836_800 * 10**9  # 2020-01-01 00:00 UTC


@contextmanager
def fixed_date() -> Iterator[None]:
    """Set the VM's date to the same one in every boot, and go on from the present date afterwards.

    Open vSwitch draws the identifiers of bridges and ports from the date too (do_init in lib/uuid.c), and their order
    follows from them. After a link's failure that order decides which change of the rules comes before a revalidation
    and which one 5 ms later: the same run had one of two results. Raises OSError.
    """
    began_ns, date_ns = time.monotonic_ns(), time.time_ns()
    time.clock_settime_ns(time.CLOCK_REALTIME, _DATE_NS)
    try:
        yield
    finally:
        time.clock_settime_ns(time.CLOCK_REALTIME, date_ns + time.monotonic_ns() - began_ns)
