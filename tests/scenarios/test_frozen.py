"""What the model chose and predicted when it was recorded: a change of the code must not change one placement, path,
flag or time of any shipped scenario, in its own modes and with every built-in kind of knowledge.

tests/frozen.json has checksums. With LONGHAUL_RECORD=1 and without -n, this file records them; that is right only for
a change that is meant to change results. A case that is not recorded is a mistake, and so is a recorded one that no
longer runs. `-m slow` compares 2,000 collectives a case (200 where they take long), the other test the first of them.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scenarios.api import ScenarioError, engine_for, scenario
from scenarios.engines.base import Failed, Slice
from scenarios.engines.model import Model

RECORDED = Path(__file__).parent.parent / "frozen.json"
MANY, FEW = 2000, 50
MANY_SLOW, FEW_SLOW = 200, 6
OTHER_MODES = ("base", "ccl", "wan", "joint")
SHIPPED = {path.stem for path in Path(__file__).parents[2].glob("scenarios/*.toml")}
LARGE = {"nobel-us", "fig5a", "fig5b", "backbone", "geopipe"}  # few of their collectives take as long as many of others
KNOWLEDGE = ("stale 1", "mean", "ewma 0.3", "ar 2", "measured ends", "measured ports", "probed")
RULES = {
    "every": {"reroute": "every", "reembed": "every 3"},
    "drift": {"reroute": "drift 0.3", "reembed": "drift 0.35"},
    "gain": {"reroute": "gain 0.02", "reembed": "gain 0.05"},
}
RULED = ("paper", "fig5a", "policies")  # scenarios in which rules and knowledge are combined


def cases() -> dict[str, tuple[str, dict[str, object]]]:
    """Return the name of a shipped scenario, and values in place of its own, by the name of the case."""
    found: dict[str, tuple[str, dict[str, object]]] = {}
    for name in sorted(SHIPPED):
        found[name] = name, {}
        found[f"{name}, other modes"] = name, {"run.modes": list(OTHER_MODES)}
        for knowledge in KNOWLEDGE:
            for rule in RULES if name in RULED else ("every",):
                policy = {"name": "this", "knowledge": knowledge, **RULES[rule]}
                found[f"{name}, {rule}, {knowledge}"] = name, {"policy": [policy], "run.modes": ["this"]}
    for name in RULED:
        for rule in ("drift", "gain"):
            policy = {"name": "this", **RULES[rule]}
            found[f"{name}, {rule}"] = name, {"policy": [policy], "run.modes": ["this"]}
    return found


def checksum(case: str, count: int) -> str:
    """Return the checksum of a case's first collectives, in the first and the last of its configurations; "refused" if
    the scenario language refuses the case."""
    name, values = cases()[case]
    try:
        made = scenario(name, {**values, "collective.count": count, "collective.emulated": 1})
    except ScenarioError:
        return "refused"
    runner, configurations = engine_for(made, "model")
    assert isinstance(runner, Model)
    runner = replace(runner, transfers=1 << 40)  # a checksum goes batch by batch: smaller ones would have another
    found = hashlib.sha256()
    for event in runner.run(list(dict.fromkeys((configurations[0], configurations[-1])))):
        if isinstance(event, Failed):
            return "refused"
        if isinstance(event, Slice):
            rows = event.rows
            for array in (rows[name] for name in ("ring", "paths", "reembedded", "rerouted")):
                found.update(np.ascontiguousarray(array).tobytes())
            # Times in whole ns: a processor's logarithms, of which some samplers make rates, differ in the last bits.
            found.update(np.rint(rows.completion_s * 1e9).astype(np.int64).tobytes())
    return found.hexdigest()[:16]


def is_slow(case: str) -> bool:
    """Return whether a case's collectives take long: large schedules, and choices that wait for measurements."""
    return cases()[case][0] in LARGE or "measured" in case or "probed" in case or "gain" in case


def assert_frozen(case: str, count: int) -> None:
    """Compare a case's checksum with the recorded one, or record it."""
    recorded: Mapping[str, dict[str, str]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    found, before = checksum(case, count), recorded.get(case, {})
    if os.environ.get("LONGHAUL_RECORD") == "1":
        kept = {**recorded, case: {**before, str(count): found}}
        RECORDED.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
        return
    assert str(count) in before, f"{case}: {count} collectives are not recorded; see {__name__}"
    if before[str(count)] != "refused":  # what was refused may run one day
        assert found == before[str(count)], f"{case}: other results than recorded; see {__name__}"


@pytest.mark.parametrize("case", cases())
def test_the_first_placements_paths_flags_and_times_are_those_recorded(case: str) -> None:
    assert_frozen(case, FEW_SLOW if is_slow(case) else FEW)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases())
def test_two_thousand_placements_paths_flags_and_times_are_those_recorded(case: str) -> None:
    assert_frozen(case, MANY_SLOW if is_slow(case) else MANY)


def test_every_recorded_case_is_still_one() -> None:
    assert set(json.loads(RECORDED.read_text())) == set(cases())
