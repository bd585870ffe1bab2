#!/usr/bin/env python3
"""A long run in one VM: `python scenarios/soak.py [--collectives N]`. Memory and time must not grow.

Runs N collectives (2,000) of 8 GPUs with small chunks in mode joint and compares the last hundred with the hundred
after the first: the memory of every process, and the time of a collective, by the wall and in processor time of the VM.
A machine's own pace changes meanwhile, so after every hundred a yardstick is timed, the same round trips over a pipe
in the same VM, and what may not grow is the processor time of a collective in yardsticks. Exit status 1 where anything
has grown by more than a tenth.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MOST_GROWTH = 0.10
_WINDOW = 100
_MOST, _LEAST = 1_000_000, 4 * _WINDOW
_ROUND_TRIPS = 20_000
"""The yardstick: a second or two of system calls and changes of process, which is what a collective costs most of."""
_SMALL_KB = 1024  # what is smaller than this may grow by a page or two
_MEMORY_BYTES = 3 * 2**29
_KINDS = (
    ("ovs-vswitchd", "switches"),
    ("ovsdb-server", "switches' database"),
    ("controller", "controller"),
    ("hosts.agent.launcher", "agents"),
    ("scenarios.soak", "testbed"),
)


@dataclass(frozen=True)
class Cost:
    """What a VM has cost by an instant, in seconds."""

    wall_s: float
    processor_s: float

    def __sub__(self, before: "Cost") -> "Cost":
        return Cost(self.wall_s - before.wall_s, self.processor_s - before.processor_s)


@dataclass(frozen=True)
class Sample:
    """A VM after so many collectives: the memory of its kinds of processes; its cost before and after a yardstick."""

    done: int
    memory_kb: Mapping[str, int]
    before: Cost
    after: Cost


class _Samples:
    """Takes in what the VM says: that a yardstick begins, and then, when it is over, what memory there is in use."""

    def __init__(self) -> None:
        self.found: list[Sample] = []
        self._unread = b""
        self._before = Cost(0, 0)

    def write(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            cost = Cost(time.monotonic(), _processor_s(os.getpid()))
            if "memory_kb" not in said:
                self._before = cost
                continue
            self.found.append(Sample(said["done"], said["memory_kb"], self._before, cost))
            memory = ", ".join(f"{name} {kb / 1024:.0f} MB" for name, kb in said["memory_kb"].items())
            print(f"{said['done']:,} collectives: {memory}", file=sys.stderr, flush=True)

    def flush(self) -> None:
        """There is nothing to flush."""


def _processor_s(pid: int) -> float:
    """What all processes below one have cost so far, those that have ended and been waited for included."""
    found, parents = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(process.name)] = int(fields[1])
        found[int(process.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    below = {pid}
    while fresh := {child for child, parent in parents.items() if parent in below} - below:
        below |= fresh
    return sum(found[child] for child in below - {pid} if child in found)


@dataclass(frozen=True)
class Growth:
    """A line of the table: a number after the first hundred and at the end; `counts` where it may not grow."""

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
    """What a run has grown by, of samples that are a hundred collectives apart, the first before any: four at least."""
    begin, end = samples[1], samples[-1]
    memory = [
        Growth(f"memory: {name}", kb / 1024, end.memory_kb[name] / 1024, "MB")
        for name, kb in begin.memory_kb.items()
        if kb > _SMALL_KB
    ]
    first, last = (_costs(*pair) for pair in ((begin, samples[2]), (samples[-2], end)))
    units = {
        "wall time of a collective": "s",
        "processor time of a collective": "s",
        "processor time in yardsticks": "yd",
    }
    times = [Growth(name, first[name], last[name], unit, unit == "yd") for name, unit in units.items()]
    return memory + times


def _costs(one: Sample, other: Sample) -> dict[str, float]:
    """What a collective between two samples has cost."""
    cost = other.before - one.after
    yardstick_s = ((one.after - one.before).processor_s + (other.after - other.before).processor_s) / 2
    return {
        "wall time of a collective": cost.wall_s / _WINDOW,
        "processor time of a collective": cost.processor_s / _WINDOW,
        "processor time in yardsticks": cost.processor_s / _WINDOW / yardstick_s,
    }


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
    """The VM's side: run them, and say every hundred what memory each kind of process has."""
    from scenarios.policies.decide import MODES
    from scenarios.spec.scenario import from_json
    from scenarios.testbed.testbed import Failure, Testbed

    try:
        with Testbed(from_json(text)) as testbed:
            _say(0)
            for row in testbed.run(MODES["joint"], count=collectives):
                if (row.collective + 1) % _WINDOW == 0:
                    _say(row.collective + 1)
    except Failure as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _say(done: int) -> None:
    print("{}", flush=True)
    _yardstick()
    print(json.dumps({"done": done, "memory_kb": _memory_kb()}), flush=True)


def _yardstick() -> None:
    """Round trips between two processes; returns when they are over."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as echo:
        assert echo.stdin is not None and echo.stdout is not None
        for _ in range(_ROUND_TRIPS):
            echo.stdin.write(b".")
            echo.stdout.read(1)


def _memory_kb() -> dict[str, int]:
    """The resident memory of each kind of process, and what the kernel has taken for itself."""
    found = dict.fromkeys((name for _, name in _KINDS), 0)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            status = (process / "status").read_text()
        except OSError:
            continue
        kind = next((name for word, name in _KINDS if any(word in part for part in command[:4])), None)
        if kind is not None and "VmRSS:" in status:
            found[kind] += int(status.split("VmRSS:")[1].split()[0])
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return found | {"kernel": int(fields["Slab"].split()[0])}


def main() -> int:
    """Do as the command line says; return an exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectives", type=int, default=2000, metavar="N", help="how many (default 2000)")
    parser.add_argument("--inside", metavar="SCENARIO", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not _LEAST <= options.collectives <= _MOST or options.collectives % _WINDOW:
        parser.error(
            f"--collectives: {options.collectives} is not allowed: allowed are hundreds, {_LEAST} to {_MOST:,}"
        )
    if options.inside is not None:
        return inside(options.inside, options.collectives)
    return soak(options.collectives)


if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    from scenarios.signals import guarded, supervised

    sys.exit((guarded if "--inside" in sys.argv else supervised)(main))  # what is inside counts memory
