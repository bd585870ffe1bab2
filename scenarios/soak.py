#!/usr/bin/env python3
"""A long run in one VM: `python scenarios/soak.py [--collectives N]`. Memory and time must not grow.

Runs N collectives (2,000) of 8 GPUs with small chunks in mode joint and compares the last hundred with the hundred
after the first: the memory of every process, and the time of a collective, by the wall and in processor time of the VM.
Exit status 1 where any of them has grown by more than a tenth. On a machine with other work the wall says little.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

MOST_GROWTH = 0.10
_WINDOW = 100
_MOST, _LEAST = 1_000_000, 4 * _WINDOW
_SMALL_KB = 1024  # what is smaller than this may grow by a page or two
_MEMORY_BYTES = 3 * 2**29
_KINDS = (
    ("ovs-vswitchd", "switches"),
    ("ovsdb-server", "switches' database"),
    ("controller", "controller"),
    ("hosts.nursery", "agents"),
    ("scenarios.soak", "testbed"),
)


class _Samples:
    """Takes in what the VM says every so often, and adds when that was and what the VM had cost by then."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._unread = b""

    def write(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            sample = json.loads(line) | {"wall_s": time.monotonic(), "processor_s": _processor_s(os.getpid())}
            self.found.append(sample)
            memory = ", ".join(f"{name} {kb / 1024:.0f} MB" for name, kb in sample["memory_kb"].items())
            print(f"{sample['done']:,} collectives: {memory}", file=sys.stderr, flush=True)

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


def grown(first: Mapping[str, float], last: Mapping[str, float], *, least: float = 0.0) -> dict[str, float]:
    """By what share each number has grown; of those below `least`, nothing."""
    return {name: last[name] / first[name] - 1 for name in first if name in last and first[name] > least}


def soak(collectives: int) -> int:
    """Run, print the table, return the exit status."""
    from scenarios import launch, vm
    from scenarios.loader import Override, load_scenario, resolved

    given = {"collective.chunk": "100 kB", "collective.count": collectives, "collective.emulated": collectives}
    scenario = load_scenario("paper", [Override(key, value, "soak") for key, value in given.items()])
    samples = _Samples()
    status = vm.run(
        [sys.executable, "-m", "scenarios.soak", "--inside", resolved(scenario), "--collectives", str(collectives)],
        memory_bytes=_MEMORY_BYTES,
        directory=ROOT,
        environment=launch.environment(),
        stdout=samples,
    )
    if status != 0:
        return status
    found = samples.found
    memory = grown(found[1]["memory_kb"], found[-1]["memory_kb"], least=_SMALL_KB)
    rates = [
        {"wall": (b["wall_s"] - a["wall_s"]) / _WINDOW, "processor": (b["processor_s"] - a["processor_s"]) / _WINDOW}
        for a, b in ((found[1], found[2]), (found[-2], found[-1]))
    ]
    times = grown(*rates)
    print(f"| after {collectives:,} collectives | after the first {_WINDOW} | at the end | growth |")
    print("| --- | --- | --- | --- |")
    for name, share in memory.items():
        first, last = (sample["memory_kb"][name] / 1024 for sample in (found[1], found[-1]))
        print(f"| memory: {name} | {first:.1f} MB | {last:.1f} MB | {share:+.1%} |")
    for name, share in times.items():
        print(f"| {name} time of a collective | {rates[0][name]:.3f} s | {rates[1][name]:.3f} s | {share:+.1%} |")
    worst = max([*memory.values(), times["processor"]])
    return 0 if worst <= MOST_GROWTH else 1


def inside(text: str, collectives: int) -> int:
    """The VM's side: run them, and say every hundred what memory each kind of process has."""
    from scenarios.ground import VIRTUAL
    from scenarios.loader import load_scenario
    from scenarios.plan import MODES
    from scenarios.testbed import Failure, Testbed

    path = VIRTUAL.folder / "scenario.toml"
    path.write_text(text)
    try:
        with Testbed(load_scenario(str(path))) as testbed:
            _say(0)
            for row in testbed.run(MODES["joint"], count=collectives):
                if (row.collective + 1) % _WINDOW == 0:
                    _say(row.collective + 1)
    except Failure as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _say(done: int) -> None:
    print(json.dumps({"done": done, "memory_kb": _memory_kb()}), flush=True)


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
    from scenarios.interrupt import guarded

    sys.exit(guarded(main))
