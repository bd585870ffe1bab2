"""What a group knows of the GPU whose time the script takes (`longhaul_gpu`): nothing unless it is active."""

import sys
import time


def ready_ns() -> int:
    """Return when the tensors that the script has now are computed, in ns of CLOCK_MONOTONIC, and now at the least."""
    active = sys.modules.get("longhaul_gpu")
    return max(time.monotonic_ns(), 0 if active is None else active.ready_ns())


def sleep_until(instant_ns: int) -> None:
    """Sleep until an instant of CLOCK_MONOTONIC."""
    while (left_ns := instant_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)


def joined() -> None:
    """Have what the script computes next begin now at the earliest, as it has waited for a result."""
    active = sys.modules.get("longhaul_gpu")
    if active is not None:
        active.joined()
