"""The accounts of a rank: what each operation has taken, and what is told at the end of the process. No torch."""

import json
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from .streams import Device

UNKNOWN_SHARE = 0.05
"""Above this share of the charged time, operations of which only the bytes are known mark the run."""

_MAX_NAMES = 8


@dataclass
class Account:
    """What one operation has taken: how often, ns, FLOPs and bytes."""

    count: int = 0
    took_ns: int = 0
    flops: float = 0.0
    moved_bytes: float = 0.0


class Accounts:
    """The accounts of all operations, by name ("aten::mm"); `unknown` are those of which only the bytes are known, and
    `measured_ns` is the time that a table of kernel times gave. `fake_reads` is how often the script has read values of
    fake tensors."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.by_operation: defaultdict[str, Account] = defaultdict(Account)
        self.unknown = set[str]()
        self.measured_ns = self.fake_reads = 0

    def add(self, operation: str, took_ns: int, flops: float, moved_bytes: float) -> None:
        """Enter one kernel."""
        account = self.by_operation[operation]
        account.count += 1
        account.took_ns += took_ns
        account.flops += flops
        account.moved_bytes += moved_bytes

    @property
    def charged_ns(self) -> int:
        """The time of all operations."""
        return sum(one.took_ns for one in self.by_operation.values())

    @property
    def unknown_share(self) -> float:
        """The share of the charged time that operations have of which only the bytes are known."""
        unknown_ns = sum(self.by_operation[name].took_ns for name in self.unknown)
        return unknown_ns / self.charged_ns if unknown_ns else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the accounts, the longest operations first; times in s."""
        ordered = sorted(self.by_operation.items(), key=lambda item: -item[1].took_ns)
        return {
            "rank": os.environ.get("RANK"),
            "charged_s": self.charged_ns / 1e9,
            "measured_s": self.measured_ns / 1e9,
            "flops": sum(one.flops for one in self.by_operation.values()),
            "host_waited_s": self._device.waited_ns / 1e9,
            "host_waits": self._device.waits,
            "fake_reads": self.fake_reads,
            "unknown_share": self.unknown_share,
            "unknown": sorted(self.unknown),
            "operations": {
                name: {"count": one.count, "s": one.took_ns / 1e9, "flops": one.flops, "bytes": one.moved_bytes}
                for name, one in ordered
            },
        }

    def sentences(self) -> list[str]:
        """Return what a user should know of these accounts."""
        if not self.unknown:
            return []
        ordered = sorted(self.unknown, key=lambda name: -self.by_operation[name].took_ns)
        names = ", ".join(f"{name} ({self.by_operation[name].count})" for name in ordered[:_MAX_NAMES])
        more = f" and {len(ordered) - _MAX_NAMES} more" if len(ordered) > _MAX_NAMES else ""
        told = f"longhaul: charged by their bytes alone, as their FLOPs are not known: {names}{more}, "
        told += f"{self.unknown_share:.1%} of the GPU's time"
        if self.unknown_share > UNKNOWN_SHARE:
            told += f". That is more than {UNKNOWN_SHARE:.0%}: give their times in a table (program.kernels)"
        return [told]

    def end(self, path: str | None) -> None:
        """Tell what is to be known, and write the accounts into a file as a line of JSON; a file that cannot be written
        is told."""
        for sentence in self.sentences():
            print(sentence, file=sys.stderr, flush=True)
        if path:
            try:
                with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - imports nothing more
                    file.write(json.dumps(self.as_json()) + "\n")
            except OSError as error:
                print(f"longhaul: {path} cannot be written: {error.strerror or error}", file=sys.stderr, flush=True)
