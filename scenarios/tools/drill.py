"""One scenario of a campaign of faults: drawn at random, run in a VM of its own, and what came of its faults."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scenarios import vm
from scenarios.engines.base import News, Slice, Struck
from scenarios.engines.emulation import WRONG_DATA, EmulationError, Reader, Task, Watchdog, Words, memory_bytes
from scenarios.spec.load import Override, load_scenario, resolved, scenario_of
from scenarios.testbed import launch
from scenarios.tools.outcomes import Outcome
from topologies.fabric.fabric import Fabric, build_fabric

_COLLECTIVES = 6


@dataclass(frozen=True, kw_only=True)
class Drill:
    """One scenario of a campaign: its text, its mode and its faults in words."""

    text: str
    mode: str
    whats: tuple[str, ...]


def sizes_of(count: int, seed: int) -> list[int]:
    """How many faults each scenario of a campaign has, so many in all."""
    chance = random.Random(seed)  # noqa: S311 - the same faults for the same seed are the point
    sizes: list[int] = []
    while sum(sizes) < count:
        sizes.append(min(chance.choice([1, 1, 2]), count - sum(sizes)))
    return sizes


def drawn(number: int, seed: int, faults: int) -> Drill:
    """The scenario of this number in the campaign of this seed, with so many faults; the same each time."""
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
        "collective.reembed_every": 3,
        "run.modes": [chance.choice(["base", "wan", "ccl", "joint"])],
        "run.seed": chance.randrange(1000),
    }
    overrides = [Override(key, value, key) for key, value in given.items()]
    fabric = build_fabric(load_scenario("paper", overrides).fabric)
    tables = [_fault(chance, fabric) for _ in range(faults)]
    scenario = load_scenario("paper", [*overrides, Override("fault", tables, "fault")])
    (mode,) = scenario.run.modes
    return Drill(text=resolved(scenario), mode=mode, whats=tuple(fault.what for fault in scenario.faults))


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


def run(drill: Drill, patience_s: float) -> list[Outcome]:
    """Run one scenario in a VM: an outcome for each of its faults, and for each thing that died undeclared.

    Raises vm.CannotRunError where this machine cannot run it.
    """
    setting, words, news = scenario_of(drill.text), Words(), list[News]()
    with Watchdog(patience_s, waits_for="the VM's start") as watchdog:
        try:
            status = launch.testbed(
                [drill.text, drill.mode, str(_COLLECTIVES)],
                memory_bytes=memory_bytes(setting),
                stdout=Reader(Task(0, setting, drill.mode), news.append, watchdog.heard),
                stderr=words,
                on_start=watchdog.guard,
            )
        except EmulationError as error:  # what was chosen is not what the plan says
            trouble: tuple[str, str] | None = ("wrong data", str(error))
        except vm.CannotRunError:
            raise
        except vm.VMError as error:
            trouble = ("VM lost", str(error))
        else:
            trouble = _trouble(status, words, sum(isinstance(item, Slice) for item in news))
    if watchdog.stuck is not None:
        trouble = ("hung", watchdog.sentence())
    if trouble is not None:
        outcome, sentence = trouble
        return [Outcome(what=what, outcome=outcome, sentence=sentence) for what in drill.whats]
    accounts = [item.account for item in news if isinstance(item, Struck)]
    return _outcomes(drill, accounts, words.last() if status else "")


def _trouble(status: int, words: Words, done: int) -> tuple[str, str] | None:
    """What is wrong, whatever the faults were, with a testbed that has ended so after so many collectives."""
    if WRONG_DATA in words.last() or "Traceback" in words.text():
        return "wrong data", words.last()
    if status == 0 and done != _COLLECTIVES:
        return "hung", f"{done} of {_COLLECTIVES} collectives were told of"
    if status != 0 and not words.last():
        return "hung", "it failed without a word"
    return None


def _outcomes(drill: Drill, accounts: Sequence[Mapping[str, Any]], sentence: str) -> list[Outcome]:
    """An outcome for each fault that has struck; of the others, those that the end has kept from it."""
    found = []
    for place, what in enumerate(drill.whats):
        account = next((a for a in accounts if a["fault"] == place), None)
        outcome = "aborted" if account is None and sentence else "ridden out"
        if account is not None:
            outcome = account["outcome"].partition(":")[0]
        lost = 0 if account is None else account["collectives_lost"]
        words = sentence if outcome == "aborted" else ""
        found.append(Outcome(what=what, outcome=outcome, sentence=words, lost=lost))
    for account in accounts:
        if account["fault"] < 0:
            what, outcome = account["what"], account["outcome"].partition(":")[0]
            lost = account["collectives_lost"]
            strange = f"not declared: {what}"
            found.append(Outcome(what=strange, outcome=outcome, sentence=what, lost=lost))
    return found
