"""Has ranks wait for the store of rank 0 before torch looks for it.

A TCPStore that is refused tries again after a random time of some 0.5 s, which torch draws from the processor's own
random numbers. Nothing in the VM can repeat these, so no two runs of a script would begin at the same time.
"""

import functools
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

_RETRY_S = 0.001


def register() -> None:
    """Let every rank but the first wait until something listens at the store's address, for as long as its timeout."""
    module = sys.modules.get("torch.distributed.rendezvous")
    create = getattr(module, "_create_c10d_store", None)
    if create is not None and not hasattr(create, "__wrapped__"):
        module._create_c10d_store = _waiting(create)  # type: ignore[union-attr]


def _waiting(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def call(hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, *args: Any, **more: Any) -> Any:
        if rank != 0 and not found(hostname, port, timeout.total_seconds()):
            from torch.distributed import DistNetworkError  # the rest of this module needs no torch

            raise DistNetworkError(f"rank {rank} found nothing that listens at {hostname}:{port} within {timeout}")
        return create(hostname, port, rank, world_size, timeout, *args, **more)

    return call


def found(host: str, port: int, timeout_s: float) -> bool:
    """Return once something listens at this address, or False when the time is over.

    It is also True if the address cannot be used at all: torch then tells what is wrong.
    """
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), timeout=left_s).close()
        except ConnectionRefusedError:
            time.sleep(_RETRY_S)
        except TimeoutError:
            break
        except (OSError, UnicodeError):  # no such name or network
            return True
        else:
            return True
    return False
