#!/usr/bin/env python3
"""A long run in one VM: `python scenarios/soak.py [--collectives N]`. Memory and time must not grow.

Runs N collectives (2,000) of 8 GPUs with small chunks in mode joint and compares the last hundred with the hundred
after the first: the memory of every process, and the time of a collective, by the wall and in processor time of the VM.
A machine's own pace changes meanwhile, so after every hundred a yardstick is timed, the same round trips over a pipe
in the same VM, and what may not grow is the processor time of a collective in yardsticks. Exit status 1 if anything
has grown by more than a tenth.
"""

import _signal  # the part of `signal` that takes no time to import

if __name__ == "__main__":
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no traceback until the supervisor takes over

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

MOST_GROWTH = 0.10
_WINDOW = 100
_MOST, _LEAST = 1_000_000, 4 * _WINDOW
_ROUND_TRIPS = 20_000
"""The yardstick: a second or two of system calls and changes of process, which is what a collective costs most of."""
_SMALL_BYTES = 1e6  # what is smaller than this may grow by a page or two
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
    """The VM after so many collectives: bytes in use by kind of process, and [wall, processor] seconds that it had
    taken before and after the yardstick."""

    done: int
    memory: Mapping[str, int]
    before: NDArray[np.float64]
    after: NDArray[np.float64]


class _Samples:
    """Reads the VM's output: a line before each yardstick, and one after it, with the memory in use."""

    def __init__(self) -> None:
        self.found: list[Sample] = []
        self._unread = b""
        self._before = np.zeros(2)

    def write(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            found = json.loads(line)
            cost = np.array([time.monotonic(), _processor_s()])
            if not found:
                self._before = cost
                continue
            self.found.append(Sample(found["done"], found["memory"], self._before, cost))
            memory = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in found["memory"].items())
            print(f"{found['done']:,} collectives: {memory}", file=sys.stderr, flush=True)

    def flush(self) -> None:
        """There is nothing to flush."""


def _processor_s() -> float:
    """Processor time of all processes below this one, including those that have ended and were waited for."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # its own and its children's, in user and in system mode
    return total


@dataclass(frozen=True)
class Growth:
    """A line of the table: a number after the first hundred and at the end; `counts` if it must not grow."""

    name: str
    first: float
    last: float
    unit: str
    counts: bool = True

    @property
    def share(self) -> float:
        """By what share it has grown."""
        return self.last / self.first - 1

    def __str__(self) -> str:
        digits = 1 if self.unit == "MB" else 3
        first, last = (f"{number:.{digits}f} {self.unit}" for number in (self.first, self.last))
        return f"| {self.name} | {first} | {last} | {self.share:+.1%} |"


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """The growth of memory and times, of four or more samples a hundred collectives apart, the first before any."""
    begin, end = samples[1], samples[-1]
    memory = [
        Growth(f"memory: {name}", size / 1e6, end.memory[name] / 1e6, "MB")
        for name, size in begin.memory.items()
        if size > _SMALL_BYTES
    ]
    (wall, processor, yardsticks), (wall_end, processor_end, yardsticks_end) = (
        _per_collective(*pair) for pair in ((begin, samples[2]), (samples[-2], end))
    )
    return [
        *memory,
        Growth("wall time of a collective", wall, wall_end, "s", counts=False),
        Growth("processor time of a collective", processor, processor_end, "s", counts=False),
        Growth("processor time in yardsticks", yardsticks, yardsticks_end, "yd"),
    ]


def _per_collective(one: Sample, other: Sample) -> tuple[float, float, float]:
    """Wall time, processor time and processor time in yardsticks of a collective between two samples."""
    wall_s, processor_s = (other.before - one.after) / _WINDOW
    yardstick_s = ((one.after - one.before)[1] + (other.after - other.before)[1]) / 2
    return wall_s, processor_s, processor_s / yardstick_s


def soak(collectives: int) -> int:
    """Run, print the table, return the exit status."""
    from scenarios import vm
    from scenarios.spec.load import Override, load_scenario
    from scenarios.spec.scenario import to_json
    from scenarios.testbed import launch

    given = {"collective.chunk": "100 kB", "collective.count": collectives, "collective.emulated": collectives}
    scenario = load_scenario("paper", [Override(key, value, "soak") for key, value in given.items()])
    samples = _Samples()
    status = vm.run(
        [sys.executable, "-m", "scenarios.soak", "--inside", to_json(scenario), "--collectives", str(collectives)],
        memory_bytes=_MEMORY_BYTES,
        directory=ROOT,
        environment=launch.environment(),
        stdout=samples,
    )
    if status != 0:
        return status
    lines = growths(samples.found)
    print(f"| after {collectives:,} collectives | after the first {_WINDOW} | at the end | growth |")
    print("| --- | --- | --- | --- |")
    for line in lines:
        print(line)
    return 0 if max(line.share for line in lines if line.counts) <= MOST_GROWTH else 1


def inside(text: str, collectives: int) -> int:
    """The VM's side: run the collectives, with a sample before the first and after each hundred."""
    from scenarios.policies.policy import MODES
    from scenarios.spec.scenario import from_json
    from scenarios.testbed.testbed import Failure, Testbed

    try:
        with Testbed(from_json(text)) as testbed:
            _sample(0)
            for row in testbed.run(MODES["joint"], count=collectives):
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
    """Round trips between two processes; returns when they are over."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as echo:
        assert echo.stdin is not None and echo.stdout is not None
        for _ in range(_ROUND_TRIPS):
            echo.stdin.write(b".")
            echo.stdout.read(1)


def _memory() -> dict[str, int]:
    """Bytes of resident memory of each kind of process, and of the kernel's own data structures."""
    found = Counter(dict.fromkeys(_KINDS.values(), 0))
    for process in psutil.process_iter(["cmdline", "memory_info"]):
        command, memory = process.info["cmdline"] or [], process.info["memory_info"]
        kind = next((name for word, name in _KINDS.items() if any(word in part for part in command[:4])), None)
        if kind is not None and memory is not None:
            found[kind] += memory.rss
    return {**found, "kernel": psutil.virtual_memory().slab}


def main() -> int:
    """Do as the command line says; return an exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectives", type=int, default=2000, metavar="N", help="how many (default 2000)")
    parser.add_argument("--inside", metavar="SCENARIO", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not _LEAST <= options.collectives <= _MOST or options.collectives % _WINDOW:
        parser.error(f"--collectives: {options.collectives} is not allowed; allowed: hundreds, {_LEAST} to {_MOST:,}")
    if options.inside is not None:
        return inside(options.inside, options.collectives)
    return soak(options.collectives)


if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    from scenarios.signals import guarded, supervised

    sys.exit((guarded if "--inside" in sys.argv else supervised)(main))  # what is inside counts memory
