#!/usr/bin/env python3
"""Random faults in random scenarios, and what came of each: `python scenarios/campaign.py --count N --seed S`.

Each scenario is small, has one fault or two of any kind at any time, and runs in a VM of its own. In the end stands a
table of outcomes. Exit status 0 where every fault was recovered from, ridden out or ended in one sentence; 1 where
anything hung, delivered wrong bytes, chose what it should not have, lost its VM, or left something behind; 3 where
this machine cannot run the VM.
"""

import argparse
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scenarios.tools.outcomes import Outcome

ROOT = Path(__file__).resolve().parent.parent

MAX_COUNT, MAX_JOBS, MAX_PATIENCE_S = 100_000, 64, 86_400


def _campaign(count: int, seed: int, jobs: int, patience_s: float) -> "list[Outcome]":
    from scenarios.tools.drill import drawn, run, sizes_of

    sizes = sizes_of(count, seed)
    outcomes: list[Outcome] = []
    done, began, lock = 0, time.monotonic(), threading.Lock()

    def one(number: int) -> None:
        nonlocal done
        found = run(drawn(number, seed, sizes[number]), patience_s)
        with lock:
            outcomes.extend(found)
            done += 1
            for outcome in found:
                words = f": {outcome.sentence}" if outcome.sentence else ""
                print(
                    f"[{done}/{len(sizes)}] scenario {number}, {outcome.what}: {outcome.outcome}{words}",
                    file=sys.stderr,
                )

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in [pool.submit(one, number) for number in range(len(sizes))]:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print(f"{len(sizes)} scenarios in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return outcomes


def _children() -> list[str]:
    """The processes below this one."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        found += (task / "children").read_text().split()
    return found


def main() -> int:
    """Run the campaign of sys.argv and print its table; return an exit status."""
    from scenarios.tools.drill import drawn, sizes_of
    from scenarios.tools.outcomes import GOOD, Outcome, table
    from scenarios.vm import CannotRunError

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, metavar="N", help="how many faults (default 20)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of everything random (default 1)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="VMs at a time")
    parser.add_argument("--show", type=int, metavar="K", help="print scenario K of the campaign, and run nothing")
    parser.add_argument("--patience", type=float, default=180.0, metavar="S", help="seconds of silence that are a hang")
    options = parser.parse_args()
    for name, most in (("count", MAX_COUNT), ("jobs", MAX_JOBS), ("patience", MAX_PATIENCE_S)):
        if not 1 <= (value := getattr(options, name)) <= most:
            parser.error(f"--{name}: {value} is not allowed: allowed is 1 to {most:,}")
    if options.show is not None:
        sizes = sizes_of(options.count, options.seed)
        if not 0 <= options.show < len(sizes):
            parser.error(f"--show: {options.show} is none of its scenarios: allowed is 0 to {len(sizes) - 1}")
        print(drawn(options.show, options.seed, sizes[options.show]).text, end="")
        return 0
    fds = len(list(Path("/proc/self/fd").iterdir()))
    try:
        outcomes = _campaign(options.count, options.seed, options.jobs, options.patience)
    except CannotRunError as error:
        print(f"campaign.py: {error}", file=sys.stderr)
        return 3
    left = _children() + ["a file descriptor"] * max(0, len(list(Path("/proc/self/fd").iterdir())) - fds)
    if left:
        outcomes.append(Outcome(what="the end", outcome="left something", sentence=", ".join(left)))
    print(table(outcomes))
    return 0 if all(outcome.outcome in GOOD for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    from scenarios.signals import supervised

    sys.exit(supervised(main))
