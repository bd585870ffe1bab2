#!/usr/bin/env python3
"""Soak test, a long run in one VM: `python scenarios/soak.py [--collectives N]`. Memory and time must not grow.

Runs N collectives (default 2,000) of 8 GPUs with small chunks in mode joint, and compares the last hundred with the
second hundred: the memory of every process, and the wall time and the VM's processor time of a collective.

The speed of the machine may change during the run. After every hundred collectives a yardstick is therefore timed, a
fixed number of round trips over a pipe in the same VM; the processor time of a collective in yardsticks must not grow.
The exit status is 1 if that or any memory has grown by more than a tenth.
"""

import _signal  # the part of `signal` that takes no time to import

if __name__ == "__main__":
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no traceback on Ctrl-C until the supervisor takes over

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent

MAX_GROWTH = 0.10
_WINDOW = 100
_MOST, _LEAST = 1_000_000, 4 * _WINDOW
_ROUND_TRIPS = 20_000
"""The yardstick: a second or two of system calls and context switches, the main cost of a collective."""
_SMALL_BYTES = 1e6  # smaller processes are left out, because a few pages would be a large share of their memory
_MEMORY_BYTES = 3 * 2**29
_KINDS = {
    "ovs-vswitchd": "switches",
    "ovsdb-server": "switches' database",
    "controller": "controller",
    "hosts.agent.launcher": "agents",
    "scenarios.soak": "testbed",
}


@dataclass(frozen=True)
class Sample:
    """The VM after `done` collectives: bytes in use by kind of process, and the [wall, processor] seconds that it had
    used before and after the yardstick."""

    done: int
    memory: Mapping[str, int]
    before: NDArray[np.float64]
    after: NDArray[np.float64]


class _Reader:
    """A sink for the VM's output: a line before each yardstick, and a line with the memory in use after it."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._unread = b""
        self._before = np.zeros(2)

    def write(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            report = json.loads(line)
            cost = np.array([time.monotonic(), _processor_s()])
            if not report:
                self._before = cost
                continue
            self.samples.append(Sample(report["done"], report["memory"], self._before, cost))
            memory = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in report["memory"].items())
            print(f"{report['done']:,} collectives: {memory}", file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Do nothing: lines are handled when they are written."""


def _processor_s() -> float:
    """Return the processor time of all descendants of this process, including those that were waited for."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # user and system time, its own and its children's
    return total


@dataclass(frozen=True)
class Growth:
    """A line of the table: a value after the first hundred collectives and at the end; `counts` if it must not grow."""

    name: str
    first: float
    last: float
    unit: str
    counts: bool = True

    @property
    def share(self) -> float:
        """The relative growth."""
        return self.last / self.first - 1

    def __str__(self) -> str:
        digits = 1 if self.unit == "MB" else 3
        first, last = (f"{number:.{digits}f} {self.unit}" for number in (self.first, self.last))
        return f"| {self.name} | {first} | {last} | {self.share:+.1%} |"


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """Return the growth of memory and times between samples, four or more, a hundred collectives apart.

    The first sample is taken before the first collective.
    """
    start, end = samples[1], samples[-1]
    memory = [
        Growth(f"memory: {name}", size / 1e6, end.memory[name] / 1e6, "MB")
        for name, size in start.memory.items()
        if size > _SMALL_BYTES
    ]
    wall, processor, yardsticks = _per_collective(start, samples[2])
    wall_end, processor_end, yardsticks_end = _per_collective(samples[-2], end)
    return [
        *memory,
        Growth("wall time of a collective", wall, wall_end, "s", counts=False),
        Growth("processor time of a collective", processor, processor_end, "s", counts=False),
        Growth("processor time in yardsticks", yardsticks, yardsticks_end, "yd"),
    ]


def _per_collective(first: Sample, second: Sample) -> tuple[float, float, float]:
    """Return the wall time, processor time and processor time in yardsticks of a collective between two samples."""
    wall_s, processor_s = (second.before - first.after) / _WINDOW
    yardstick_s = ((first.after - first.before)[1] + (second.after - second.before)[1]) / 2
    return wall_s, processor_s, processor_s / yardstick_s


def soak(collectives: int) -> int:
    """Run this number of collectives in a VM, print the table, return the exit status."""
    from scenarios import vm
    from scenarios.spec.load import Override, load_scenario
    from scenarios.spec.scenario import to_json
    from scenarios.studies import harness
    from scenarios.testbed import launch

    given = {"collective.chunk": "100 kB", "collective.count": collectives, "collective.emulated": collectives}
    scenario = load_scenario("paper", [Override(key, value, "soak") for key, value in given.items()])
    harness.warn("soak.py", [scenario], emulates=True)
    reader = _Reader()
    status = vm.run(
        [sys.executable, "-m", "scenarios.soak", "--inside", to_json(scenario), "--collectives", str(collectives)],
        memory_bytes=_MEMORY_BYTES,
        directory=ROOT,
        environment=launch.environment(),
        stdout=reader,
    )
    if status != 0:
        return status
    lines = growths(reader.samples)
    print(f"| after {collectives:,} collectives | after the first {_WINDOW} | at the end | growth |")
    print("| --- | --- | --- | --- |")
    for line in lines:
        print(line)
    return 0 if max(line.share for line in lines if line.counts) <= MAX_GROWTH else 1


def inside(text: str, collectives: int) -> int:
    """Run the collectives inside the VM, with a sample before the first and after each hundred."""
    from scenarios.policies.policy import MODES
    from scenarios.spec.scenario import from_json
    from scenarios.testbed.point_run import PointRun
    from scenarios.testbed.testbed import Failure, Testbed

    try:
        with Testbed(from_json(text)) as testbed:
            _sample(0)
            for row in PointRun(testbed, MODES["joint"]).records(range(collectives)):
                if (row.collective + 1) % _WINDOW == 0:
                    _sample(row.collective + 1)
    except Failure as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _sample(done: int) -> None:
    print("{}", flush=True)
    _yardstick()
    print(json.dumps({"done": done, "memory": _memory()}), flush=True)


def _yardstick() -> None:
    """Make the yardstick's round trips between two processes."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as echo:
        assert echo.stdin is not None and echo.stdout is not None
        for _ in range(_ROUND_TRIPS):
            echo.stdin.write(b".")
            echo.stdout.read(1)


def _memory() -> dict[str, int]:
    """Return the resident bytes of each kind of process, and those of the kernel's slab caches."""
    resident = Counter(dict.fromkeys(_KINDS.values(), 0))
    for process in psutil.process_iter(["cmdline", "memory_info"]):
        command, memory = process.info["cmdline"] or [], process.info["memory_info"]
        kind = next((name for word, name in _KINDS.items() if any(word in part for part in command[:4])), None)
        if kind is not None and memory is not None:
            resident[kind] += memory.rss
    return {**resident, "kernel": psutil.virtual_memory().slab}


def main() -> int:
    """Run the command of sys.argv; return the exit status."""
    from topologies.command_line import CommandParser

    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--collectives", type=int, default=2000, metavar="N", help="number of collectives (default 2000)"
    )
    parser.add_argument("--inside", metavar="SCENARIO", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not _LEAST <= options.collectives <= _MOST or options.collectives % _WINDOW:
        parser.error(f"--collectives: {options.collectives}; allowed: multiples of {_WINDOW}, {_LEAST} to {_MOST:,}")
    if options.inside is not None:
        return inside(options.inside, options.collectives)
    return soak(options.collectives)


if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    from scenarios.signals import guarded, supervised

    sys.exit((guarded if "--inside" in sys.argv else supervised)(main))  # in the VM a supervisor would count as memory
