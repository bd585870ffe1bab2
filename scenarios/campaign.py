#!/usr/bin/env python3
"""Random faults in random scenarios, and what came of each: `python scenarios/campaign.py --count N --seed S`.

Each scenario is small, has one fault or two of any kind at any time, and runs in a VM of its own. In the end stands a
table of outcomes. Exit status 0 where every fault was recovered from, ridden out or ended in one sentence; 1 where
anything hung, delivered wrong bytes, chose what it should not have, or left something behind.
"""

import argparse
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

MAX_COUNT, MAX_JOBS = 100_000, 64
OUTCOMES = ("recovered", "ridden out", "aborted", "hung", "wrong data", "left something")
GOOD = ("recovered", "ridden out", "aborted")
_COLLECTIVES = 6


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One scenario of a campaign: its number, its text, its mode and how many faults it has."""

    number: int
    text: str
    mode: str
    whats: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one fault: of OUTCOMES, the sentence where there is one, and the scenario's number."""

    what: str
    outcome: str
    sentence: str
    trial: int
    lost: int = 0


def drawn(number: int, seed: int, faults: int) -> Trial:
    """The scenario of this number in the campaign of this seed, with so many faults; the same each time."""
    from scenarios.loader import Override, load_scenario, resolved
    from topologies.fabric import build_fabric

    chance = random.Random(f"{seed} {number}")  # noqa: S311 - the same faults for the same seed are the point
    given: dict[str, object] = {
        "name": f"campaign-{seed}-{number}",
        "fabric.gpus": chance.choice([4, 6, 8, [2, 3], [3, 5]]),
        "fabric.leaves": chance.choice([1, 2, 2]),
        "fabric.spines": chance.choice([1, 2, 3]),
        "fabric.border_routers": chance.choice([1, 2, 2]),
        "fabric.wan": chance.choice(["mesh", "mesh", "five-router"]),
        "conditions.wan_delay": chance.choice(["10 us", "100 us", "1 ms"]),
        "collective.chunk": chance.choice(["10 kB", "100 kB", "500 kB"]),
        "collective.count": _COLLECTIVES,
        "collective.emulated": _COLLECTIVES,
        "collective.reembed_every": 3,
        "run.modes": [chance.choice(["base", "wan", "ccl", "joint"])],
        "run.seed": chance.randrange(1000),
    }
    overrides = [Override(key, value, key) for key, value in given.items()]
    fabric = build_fabric(load_scenario("paper", overrides).fabric)
    tables = [_fault(chance, fabric) for _ in range(faults)]
    scenario = load_scenario("paper", [*overrides, Override("fault", tables, "fault")])
    (mode,) = scenario.run.modes
    return Trial(
        number=number, text=resolved(scenario), mode=mode, whats=tuple(fault.what for fault in scenario.faults)
    )


def _fault(chance: random.Random, fabric: Any) -> dict[str, str]:
    kind = chance.choice(["link", "link", "loss", "switch", "controller", "killed", "slow"])
    cables = [f"{c.a}-{c.b}" for c in fabric.cables]
    wan = [f"{c.a}-{c.b}" for c in fabric.cables if "g" not in c.a and "p" not in c.a + c.b]
    rank, cable = chance.randrange(len(fabric.gpus)), chance.choice([*wan * 3, *cables])
    what = {
        "link": f"link {cable} down",
        "loss": f"link {cable} loss {chance.choice([1, 5, 20])} %",
        "switch": f"switch {chance.choice(fabric.switches).name} down",
        "controller": "controller killed",
        "killed": f"agent {rank} killed",
        "slow": f"agent {rank} slow {chance.choice([2, 10])}x",
    }[kind]
    at = f"collective {chance.randrange(1, _COLLECTIVES)}"
    if chance.random() < 0.6:
        at = f"{chance.choice([1, 20, 50, 100, 200, 400, 1000])} us into {at}"
    table = {"at": at, "what": what}
    if kind != "killed" and chance.random() < 0.8:
        table["for"] = f"{chance.randint(1, 3)} collectives"
    return table


def run(trial: Trial, patience_s: float) -> list[Outcome]:
    """Run one scenario in a VM: an outcome for each of its faults, and one more if something else went wrong."""
    from scenarios import launch, vm
    from scenarios.loader import load_scenario
    from scenarios.point import memory_bytes
    from scenarios.watchdog import Watchdog

    path = _scratch() / f"{trial.number}.toml"
    path.write_text(trial.text)
    setting = load_scenario(str(path))
    path.unlink()
    words, said = bytearray(), _Said(trial)
    with Watchdog(patience_s, waits_for="the VM's start") as watchdog:
        said.heard = watchdog.heard
        try:
            status = launch.testbed(
                [trial.text, trial.mode, str(_COLLECTIVES)],
                memory_bytes=memory_bytes(setting),
                stdout=said,
                stderr=_Kept(words),
                on_start=watchdog.guard,
            )
        except vm.VMError as error:
            status, words = 1, bytearray(str(error).encode())
    if watchdog.stuck is not None:
        return [_all(trial, "hung", watchdog.sentence())]
    lines = [line for line in words.decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if said.wrong or "wrong data" in last or "Traceback" in words.decode(errors="replace"):
        return [_all(trial, "wrong data", said.wrong or last)]
    if status != 0 and not last:
        return [_all(trial, "hung", "it failed without a word")]
    if status == 0 and said.rows != _COLLECTIVES:
        return [_all(trial, "hung", f"{said.rows} of {_COLLECTIVES} collectives were told of")]
    return said.outcomes(last if status != 0 else "")


def _all(trial: Trial, outcome: str, sentence: str) -> Outcome:
    return Outcome(what=" and ".join(trial.whats), outcome=outcome, sentence=sentence, trial=trial.number)


class _Kept:
    """Takes in what a VM says on stderr."""

    def __init__(self, kept: bytearray) -> None:
        self._kept = kept

    def write(self, data: bytes) -> None:
        self._kept += data
        del self._kept[:-65536]

    def flush(self) -> None:
        """There is nothing to flush."""


class _Said:
    """Takes in the lines of a point: counts its rows, holds them against the plan, and keeps its faults' accounts."""

    def __init__(self, trial: Trial) -> None:
        from scenarios.expected import Expectations
        from scenarios.loader import load_scenario

        path = _scratch() / f"{trial.number}-plan.toml"
        path.write_text(trial.text)
        self._setting = load_scenario(str(path))
        path.unlink()
        self._trial, self._expected = trial, Expectations(self._setting, trial.mode)
        self._unread, self._accounts = b"", list[dict[str, Any]]()
        self.rows, self.wrong = 0, ""
        self.heard: Any = lambda _=None: None

    def write(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self.heard(said.get("doing"))
            if "fault" in said:
                self._accounts.append(said["fault"])
            elif "collective" in said:
                self._row(said)

    def flush(self) -> None:
        """There is nothing to flush."""

    def _row(self, row: dict[str, Any]) -> None:
        self.rows += 1
        expected = self._expected.of(row["collective"], row["faults"])
        if any(self._setting.faults[place].kind == "controller killed" for place in row["faults"]):
            return  # nobody chose
        for name in ("ring", "path"):
            if row[name] != getattr(expected, name).tolist():
                self.wrong = f"collective {row['collective']}: the {name} is {row[name]}, and the plan's is another"

    def outcomes(self, sentence: str) -> list[Outcome]:
        """An outcome for each fault that has struck; of the others, those that the end has kept from it."""
        found = []
        for place, what in enumerate(self._trial.whats):
            account = next((a for a in self._accounts if a["fault"] == place), None)
            outcome = "aborted" if account is None and sentence else "ridden out"
            if account is not None:
                outcome = account["outcome"].partition(":")[0]
            lost = 0 if account is None else account["collectives_lost"]
            words = sentence if outcome == "aborted" else ""
            found.append(Outcome(what=what, outcome=outcome, sentence=words, trial=self._trial.number, lost=lost))
        strange = [a for a in self._accounts if a["fault"] < 0]
        found += [
            Outcome(what=f"not declared: {a['what']}", outcome=a["outcome"].partition(":")[0], sentence=a["what"],
                    trial=self._trial.number, lost=a["collectives_lost"])
            for a in strange
        ]  # fmt: skip
        return found


def _scratch() -> Path:
    return _Scratch.folder


class _Scratch:
    """A folder of this campaign's own, for as long as it runs."""

    folder = Path()


def table(outcomes: Sequence[Outcome]) -> str:
    """How often what came of which kind of fault, and every sentence once."""
    kinds = [_kind(outcome.what) for outcome in outcomes]
    counted = Counter((kind, outcome.outcome) for kind, outcome in zip(kinds, outcomes, strict=True))
    lost = Counter[str]()
    for kind, outcome in zip(kinds, outcomes, strict=True):
        lost[kind] += outcome.lost
    shown = [name for name in OUTCOMES if name in GOOD or any(o.outcome == name for o in outcomes)]
    shown = [*shown, *(name for name in ("hung", "wrong data") if name not in shown)]
    lines = ["| fault | " + " | ".join([*shown, "collectives lost"]) + " |", "| --- " * (len(shown) + 2) + "|"]
    for kind in [*sorted(set(kinds)), "all"]:
        numbers = [sum(n for (k, o), n in counted.items() if o == name and kind in (k, "all")) for name in shown]
        total = sum(lost.values()) if kind == "all" else lost[kind]
        lines.append("| " + " | ".join([kind, *map(str, numbers), str(total)]) + " |")
    return "\n".join(lines)


def _kind(what: str) -> str:
    from scenarios import faults

    return next((kind for kind in faults.KINDS if all(word in what.split() for word in kind.split())), "not declared")


def sizes_of(count: int, seed: int) -> list[int]:
    """How many faults each scenario of a campaign has, so many in all."""
    chance = random.Random(seed)  # noqa: S311 - as above
    sizes: list[int] = []
    while sum(sizes) < count:
        sizes.append(min(chance.choice([1, 1, 2]), count - sum(sizes)))
    return sizes


def _campaign(count: int, seed: int, jobs: int, patience_s: float) -> list[Outcome]:
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
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, metavar="N", help="how many faults (default 20)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of everything random (default 1)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="VMs at a time")
    parser.add_argument("--show", type=int, metavar="K", help="print scenario K of the campaign, and run nothing")
    parser.add_argument("--patience", type=float, default=180.0, metavar="S", help="seconds of silence that are a hang")
    options = parser.parse_args()
    if not 1 <= options.count <= MAX_COUNT or not 1 <= options.jobs <= MAX_JOBS:
        parser.error(f"allowed are 1 to {MAX_COUNT:,} faults, and 1 to {MAX_JOBS} jobs")
    if options.show is not None:
        sizes = sizes_of(options.count, options.seed)
        if not 0 <= options.show < len(sizes):
            parser.error(f"--show: {options.show} is none of its scenarios: allowed is 0 to {len(sizes) - 1}")
        print(drawn(options.show, options.seed, sizes[options.show]).text, end="")
        return 0
    fds = len(list(Path("/proc/self/fd").iterdir()))
    with tempfile.TemporaryDirectory(prefix="longhaul-campaign-") as folder:
        _Scratch.folder = Path(folder)
        outcomes = _campaign(options.count, options.seed, options.jobs, options.patience)
    left = _children() + ["a file descriptor"] * max(0, len(list(Path("/proc/self/fd").iterdir())) - fds)
    if left:
        outcomes.append(Outcome(what="the end", outcome="left something", sentence=", ".join(left), trial=-1))
    print(table(outcomes))
    return 0 if all(outcome.outcome in GOOD for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    from scenarios.interrupt import guarded

    sys.exit(guarded(main))
