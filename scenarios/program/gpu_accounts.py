"""What the ranks' GPUs were charged (`program.gpu`), from the accounts that ranks leave at their ends."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.program.rank.longhaul_gpu.accounting import UNKNOWN_SHARE
from scenarios.spec.program import GPU_ACCOUNTS

_NUMBERS = ("charged_s", "measured_s", "host_waited_s", "fake_reads", "unknown_share")
_MOST_BYTES = 10_000_000
_MAX_NAMES = 8


def read(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Return the accounts of the ranks that have left them in this folder, without those of single operations. A file
    that is not an account is left out, as a program can write anything there."""
    found = []
    for rank in range(ranks):
        path = folder / GPU_ACCOUNTS.format(rank)
        try:
            if path.stat().st_size > _MOST_BYTES:
                continue
            given = json.loads(path.read_text(encoding="utf-8"))
            numbers = {name: float(given[name]) for name in _NUMBERS}
            found.append({"rank": rank, **numbers, "unknown": [str(name) for name in given["unknown"]]})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
    return found


def notes(accounts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for what a user should know of the accounts of a run with a GPU."""
    if not accounts:
        yield "no rank was charged the time of program.gpu: that takes a script that imports torch 2.6 or later"
    reads = sum(round(one["fake_reads"]) for one in accounts)
    if reads:
        yield (
            f"values of fake tensors (program.tensors) were read {reads} times: losses and the like that the program "
            "printed mean nothing"
        )
    worst = max(accounts, key=lambda one: one["unknown_share"], default=None)
    if worst is not None and worst["unknown_share"] > UNKNOWN_SHARE:
        names = ", ".join(worst["unknown"][:_MAX_NAMES])
        yield (
            f"rank {worst['rank']}'s GPU was charged {worst['unknown_share']:.1%} of its time for operations of which "
            f"only the bytes are known ({names}): give their times in program.kernels"
        )
