"""A policy that is a user's function: the page's example in both engines, and what is said of functions that fail."""

import re

import pytest

from scenarios.engines.prediction import decided
from scenarios.policies.conditions import conditions_of
from scenarios.spec import ScenarioError
from scenarios.spec.load import scenario_of
from tests.conftest import PROJECT
from tests.fakes.runs import measured, rows
from topologies.errors import SpecError


def page_example() -> str:
    (text,) = re.findall(r"```python\n(# calm\.py\n.*?)```", (PROJECT / "docs" / "scenarios.md").read_text(), re.S)
    assert len(text.splitlines()) <= 15
    return str(text)


def decisions_of(folder, program, count=40):
    (folder / "mine.py").write_text(program)
    text = f'[collective]\ncount = {count}\n[[policy]]\nname = "mine"\nfunction = "mine.py:mine"'
    (setting,) = scenario_of(text, path=folder / "scenario.toml").settings()
    return decided(setting, "mine", conditions_of(setting), start=0, count=count)


def test_the_example_of_the_page_chooses_alike_in_both_engines(tmp_path):
    (tmp_path / "calm.py").write_text(page_example())
    wanted = ("--modes", "base,calm", "--collectives", "10", "--engine", "both")
    measured(tmp_path / "run", "--policy", "calm.py:calm", *wanted, p99=0.002)
    found = rows(tmp_path / "run")
    calm = found[found["mode"] == "calm"]
    acted = {engine: here[["reembedded", "rerouted"]].to_numpy().tolist() for engine, here in calm.groupby("engine")}
    assert acted["model"] == acted["emulation"]
    assert acted["model"][0] == [True, True]
    assert sum(map(any, acted["model"])) < 10
    assert calm.completion_s.mean() < found[found["mode"] == "base"].completion_s.mean()


def test_a_function_says_what_is_chosen_and_sees_what_was(tmp_path):
    program = """
seen = []
def mine(now):
    assert now.embedded == (now.number - 1) // 4 * 4 if now.number else now.embedded == -1
    assert now.anew_s > 0 and now.kept_s >= 0.999 * min(now.kept_s, now.rerouted_s)
    return now.number % 2 == 0, now.number % 4 == 0
"""
    decisions = decisions_of(tmp_path, program)
    assert decisions.reembedded.nonzero()[0].tolist() == list(range(0, 40, 4))
    assert decisions.rerouted.nonzero()[0].tolist() == list(range(0, 40, 2))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("def mine(now): return 3", "mine.py:mine, before collective 0: it returned 3: allowed is a pair of booleans"),
        ("def mine(now):\n    return 1 / now.number, True", "ZeroDivisionError: division by zero, line 2"),
    ],
)
def test_a_function_that_fails_is_named_with_its_collective(tmp_path, program, said):
    with pytest.raises(SpecError, match=re.escape(said)):
        decisions_of(tmp_path, program)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("def mined(now): return True, True", 'has no function "mine" (did you mean mined?)'),
        ("def mine(now) return 3", "is not Python"),
        ("import nothing_of_this_name", "fails when it is read: ModuleNotFoundError"),
    ],
)
def test_a_file_without_the_function_is_refused(tmp_path, program, said):
    with pytest.raises(ScenarioError, match=re.escape(said)):
        decisions_of(tmp_path, program)
