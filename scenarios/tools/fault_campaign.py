"""Inject random faults into random scenarios, and report the outcome of each.

Each scenario is small, has one or two faults of any kind at any time, and runs in a VM of its own. The campaign ends
with a table of outcomes. The exit status is 0 if every fault was recovered from, masked, or aborted the
run with one sentence; 1 if a run hung, delivered wrong bytes, deviated from the plan, lost its VM or left something
behind; 3 if this machine cannot run the VM.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import psutil

from scenarios import vm
from scenarios.engines.base import EngineEvent, FaultOutcome, Slice
from scenarios.engines.emulation import WRONG_DATA, EmulationError, Reader, StderrTail, Task, Watchdog, memory_bytes
from scenarios.spec.faults import KINDS
from scenarios.spec.load import Override, resolved, scenario_of
from scenarios.spec.scenario import to_json
from scenarios.studies import harness
from scenarios.testbed import launch
from topologies.command_line import CommandParser
from topologies.fabric.fabric import Fabric, build_fabric

GOOD = ("recovered", "masked", "aborted")
BAD = ("hung", "wrong data", "left something", "VM lost")
MAX_COUNT, MAX_JOBS, MAX_PATIENCE_S = 100_000, 64, 86_400
_COLLECTIVES = 6
_RINGS = '[collective]\nreembed_every = 3\nring = "slowest edge"\n'  # used by modes that choose rings


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a fault: one of GOOD or BAD, a sentence or "", and the number of collectives that were lost."""

    what: str
    outcome: str
    sentence: str = ""
    lost: int = 0


@dataclass(frozen=True, kw_only=True)
class CampaignScenario:
    """A scenario of a campaign: its TOML text, its mode, and its faults as written in the scenario."""

    text: str
    mode: str
    faults: tuple[str, ...]


def fault_counts(count: int, seed: int) -> list[int]:
    """Return the number of faults of each scenario of a campaign with `count` faults in all."""
    chance = random.Random(seed)  # noqa: S311 - reproducible by the seed, not for cryptography
    sizes: list[int] = []
    while sum(sizes) < count:
        sizes.append(min(chance.choice([1, 1, 2]), count - sum(sizes)))
    return sizes


def random_scenario(number: int, seed: int, faults: int, *, policies: bool = False) -> CampaignScenario:
    """Return scenario `number` of the campaign with this seed; equal arguments give equal scenarios.

    With `policies` it has a random policy in place of a built-in mode, and conditions that last two collectives on
    average.
    """
    chance = random.Random(f"{seed} {number}")  # noqa: S311 - as above
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
        "run.modes": [chance.choice(["base", "wan", "ccl", "joint"])],
        "run.seed": chance.randrange(1000),
    }
    overrides = [Override(key, value, key) for key, value in given.items()]
    fabric = build_fabric(scenario_of(_RINGS, overrides).fabric)
    given = {"fault": [_fault(chance, fabric) for _ in range(faults)]}
    if policies:
        given["policy"] = [_policy(chance)]
        given |= {"run.modes": ["drawn"], "conditions.sampler": "markov", "conditions.mean_stay": 2.0}
        overrides = [one for one in overrides if one.key not in given]
    scenario = scenario_of(_RINGS, [*overrides, *(Override(key, value, key) for key, value in given.items())])
    (mode,) = scenario.run.modes
    return CampaignScenario(text=resolved(scenario), mode=mode, faults=tuple(fault.what for fault in scenario.faults))


def _policy(chance: random.Random) -> dict[str, str]:
    triggers = ["never", "every 1", "every 2", "every 4", "drift 0.2", "drift 0.6", "gain 0", "gain 0.1", "gain 0.5"]
    knowledge = chance.choice(["oracle", "stale 1", "mean", "ewma 0.5", "measured ends", "measured ports", "probed"])
    policy = {"name": "drawn", "reroute": chance.choice(triggers), "reembed": chance.choice(triggers)}
    is_idle = policy["reroute"] == policy["reembed"] == "never"  # such a policy never uses knowledge
    return policy if is_idle else policy | {"knowledge": knowledge}


def _fault(chance: random.Random, fabric: Fabric) -> dict[str, str]:
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


def run(scenario: CampaignScenario, patience_s: float) -> list[Outcome]:
    """Run a scenario in a VM; return an outcome for each of its faults, and for each process that died unexpectedly.

    A VM without output for `patience_s` seconds counts as hung. Raises vm.CannotRunError if this machine cannot run it.
    """
    config, stderr, events = scenario_of(scenario.text), StderrTail(), list[EngineEvent]()
    with Watchdog(patience_s, waits_for="the VM's start") as watchdog:
        try:
            status = launch.testbed(
                [to_json(config), scenario.mode, str(_COLLECTIVES)],
                memory_bytes=memory_bytes(config),
                stdout=Reader(Task(0, config, scenario.mode), events.append, watchdog.renew),
                stderr=stderr,
                on_start=watchdog.guard,
            )
        except EmulationError as error:  # a ring or a path differs from the plan
            bad_outcome: tuple[str, str] | None = ("wrong data", str(error))
        except vm.CannotRunError:
            raise
        except vm.VMError as error:
            bad_outcome = ("VM lost", str(error))
        else:
            bad_outcome = _bad_outcome(status, stderr, sum(isinstance(event, Slice) for event in events))
    if watchdog.stuck is not None:
        bad_outcome = ("hung", watchdog.sentence())
    if bad_outcome is not None:
        outcome, sentence = bad_outcome
        return [Outcome(what=what, outcome=outcome, sentence=sentence) for what in scenario.faults]
    accounts = [event.account for event in events if isinstance(event, FaultOutcome)]
    return _outcomes(scenario, accounts, stderr.last() if status else "")


def _bad_outcome(status: int, stderr: StderrTail, done: int) -> tuple[str, str] | None:
    """Return the bad outcome, with a sentence, of a testbed that ended with `status` after `done` collectives, or None.

    An error that the testbed reports in one sentence is not a bad outcome.
    """
    if WRONG_DATA in stderr.last() or "Traceback" in stderr.text():
        return "wrong data", stderr.last()
    if status == 0 and done != _COLLECTIVES:
        return "hung", f"only {done} of {_COLLECTIVES} collectives were completed"
    if status != 0 and not stderr.last():
        return "hung", "it failed without an error message"
    return None


def _outcomes(scenario: CampaignScenario, accounts: Sequence[Mapping[str, Any]], sentence: str) -> list[Outcome]:
    """Return an outcome for each fault of the scenario, and for each process that died unexpectedly.

    A fault that was not injected counts as aborted if the run ended with `sentence`, and as masked otherwise.
    """
    declared = {account["number"]: account for account in accounts}
    default = {"outcome": "aborted" if sentence else "masked", "collectives_lost": 0}
    rows = [(what, declared.get(number, default), "") for number, what in enumerate(scenario.faults, 1)]
    rows += [(f"not declared: {one['what']}", one, one["what"]) for one in accounts if not one["number"]]
    outcomes = []
    for what, account, undeclared in rows:
        outcome = account["outcome"].partition(":")[0]
        why = undeclared or (sentence if outcome == "aborted" else "")
        outcomes.append(Outcome(what=what, outcome=outcome, sentence=why, lost=account["collectives_lost"]))
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown table: for each kind of fault, the number of each outcome and of lost collectives."""
    names = {outcome.outcome for outcome in outcomes}
    shown = [*GOOD, *(name for name in BAD if name in ("hung", "wrong data") or name in names)]
    lines = ["| fault | " + " | ".join([*shown, "collectives lost"]) + " |", "| --- " * (len(shown) + 2) + "|"]
    kinds = [_kind(outcome.what) for outcome in outcomes]
    for kind in [*sorted(set(kinds)), "all"]:
        own = [outcome for outcome, its_kind in zip(outcomes, kinds, strict=True) if kind in (its_kind, "all")]
        counts = Counter(outcome.outcome for outcome in own)
        numbers = [*(counts[name] for name in shown), sum(outcome.lost for outcome in own)]
        lines.append("| " + " | ".join([kind, *map(str, numbers)]) + " |")
    return "\n".join(lines)


def _kind(what: str) -> str:
    return next((kind for kind in KINDS if all(word in what.split() for word in kind.split())), "not declared")


def campaign(scenarios: Sequence[CampaignScenario], jobs: int, patience_s: float) -> list[Outcome]:
    """Run the scenarios, `jobs` at a time, print a line on stderr for each outcome, and return the outcomes.

    Processes and file descriptors that are left at the end are a further outcome.
    """
    outcomes: list[Outcome] = []
    start, fds = time.monotonic(), psutil.Process().num_fds()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            running = {pool.submit(run, scenario, patience_s): number for number, scenario in enumerate(scenarios)}
            for done, future in enumerate(as_completed(running), start=1):
                for outcome in future.result():
                    outcomes.append(outcome)
                    words = f"{outcome.what}: {outcome.outcome}" + (f": {outcome.sentence}" if outcome.sentence else "")
                    print(f"[{done}/{len(scenarios)}] scenario {running[future]}, {words}", file=sys.stderr)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print(f"{len(scenarios)} scenarios in {time.monotonic() - start:.0f} s", file=sys.stderr)
    left = [f"process {child.pid}" for child in psutil.Process().children()]
    left += ["a file descriptor"] * (psutil.Process().num_fds() - fds)
    if left:
        print(f"left at the end: {', '.join(left)}", file=sys.stderr)
        outcomes.append(Outcome(what="the end", outcome="left something", sentence=", ".join(left)))
    return outcomes


def main() -> int:
    """Run the campaign of sys.argv and print its table; return an exit status."""
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, metavar="N", help="number of faults (default 20)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of all random choices (default 1)")
    parser.add_argument("--policies", action="store_true", help="use random policies in place of the built-in modes")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="VMs at a time")
    parser.add_argument("--show", type=int, metavar="K", help="print scenario K of the campaign, and run nothing")
    parser.add_argument(
        "--patience", type=float, default=180.0, metavar="S", help="seconds without output that count as a hang"
    )
    options = parser.parse_args()
    for name, most in (("count", MAX_COUNT), ("jobs", MAX_JOBS), ("patience", MAX_PATIENCE_S)):
        if not 1 <= (value := getattr(options, name)) <= most:
            parser.error(f"--{name}: {value} is not allowed; allowed: 1 to {most:,}")
    sizes = fault_counts(options.count, options.seed)
    if options.show is not None:
        if not 0 <= options.show < len(sizes):
            parser.error(f"--show: {options.show} is not a scenario of this campaign; allowed: 0 to {len(sizes) - 1}")
        print(random_scenario(options.show, options.seed, sizes[options.show], policies=options.policies).text, end="")
        return 0
    try:
        scenarios = [
            random_scenario(number, options.seed, size, policies=options.policies) for number, size in enumerate(sizes)
        ]
        harness.warn("campaign.py", [scenario_of(each.text) for each in scenarios], emulates=True)
        outcomes = campaign(scenarios, options.jobs, options.patience)
    except vm.CannotRunError as error:
        print(f"campaign.py: {error}", file=sys.stderr)
        return 3
    print(table(outcomes))
    return 0 if all(outcome.outcome in GOOD for outcome in outcomes) else 1
