"""A range or a period of collectives that the emulation measures: each as in a run that measures all of them."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.figures.__main__ import draw
from analysis.results.reader import open_run
from scenarios.policies.play import Given, Player, play
from scenarios.policies.policy import Mode, When
from scenarios.spec import ScenarioError
from scenarios.spec.emulated import Emulated, numbers_of, parse
from scenarios.spec.load import resolved, scenario_of
from scenarios.testbed.point_run import Skipping
from tests.fakes.runs import answer, ended, rows
from tests.fakes.worlds import FakeChoices, FakeWorld

RUN = """
[fabric]
gpus = [2, 2]
[conditions]
wan_delay = "1 ms"
sampler = "markov"
mean_stay = 5.0
[collective]
chunk = "2 MB"
pieces = 1
count = 24
reembed_every = 7
emulated = 24
[run]
modes = ["joint", "gains", "own"]
[[policy]]
name = "gains"
reroute = "gain 0.05"
reembed = "drift 0.3"
[[policy]]
name = "own"
function = "own.py:Own"
"""
FAULTS = """
[[fault]]
at = "collective 6"
what = "link s0b0-s1b0 down"
for = "9 collectives"
[[fault]]
at = "1 ms into collective 9"
what = "link s0b1-s1b1 loss 1 %"
for = "2 collectives"
"""
OWN = """
class Own:
    def __init__(self):
        self.asked = 0
    def __call__(self, now):
        self.asked += 1
        assert self.asked == now.number + 1
        return self.asked % 3 == 0, self.asked % 5 == 0
"""


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 300))
def test_a_range_is_the_numbers_that_its_ends_say(first: int, length: int, count: int) -> None:
    which = parse(f"{first}-{first + length}")
    assert list(numbers_of(which, count)) == [k for k in range(count) if first <= k <= first + length]
    assert parse(str(which)) == which


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_period_is_every_so_many_from_the_first_on(step: int, count: int) -> None:
    which = parse(f"every {step}th")
    assert list(numbers_of(which, count)) == [k for k in range(count) if k % step == 0]
    assert parse(str(which)) == which
    assert list(numbers_of(step, count)) == [k for k in range(count) if k < step]


def test_a_period_is_written_as_one_speaks() -> None:
    assert [str(Emulated(step=step)) for step in (2, 3, 11, 21, 50)] == [
        *("every 2nd", "every 3rd", "every 11th", "every 21st", "every 50th")
    ]
    scenario = scenario_of('[collective]\nemulated = "98-103"\n')
    assert 'emulated = "98-103"' in resolved(scenario) and scenario_of(resolved(scenario)) == scenario


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('emulated = "5-3"', "ends before it begins"),
        ('emulated = "every 0th"', "is not a period"),
        ('emulated = "some"', "is not understood; allowed: a number of collectives"),
        ('emulated = "50-60"\ncount = 40', '"50-60" goes beyond the 40 collectives .*; allowed: numbers from 0 to 39'),
        ('emulated = "30-40"\ncount = 40', '"30-40" goes beyond the 40 collectives .*; allowed: numbers from 0 to 39'),
        ('emulated = "1-2"\n[control]\nknowledge = "measured ends"', "it has to see every collective"),
        ('emulated = "1-2"\n[fabric]\nbuffer = "500 kB"\n[transport]\nqueue = "fifo"', "TCP's windows follow"),
    ],
)
def test_what_cannot_be_measured_alone_is_refused(text: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        scenario_of(f"[collective]\n{text}")


def test_a_world_that_skips_runs_the_wanted_collectives_and_the_one_before_each() -> None:
    rates = np.array([[3e9, 1e9], [1e9, 3e9]] * 6)
    believed = SimpleNamespace(rates_bps=lambda start, count: rates[start : start + count], limit=len(rates))
    player = Player(Mode(name="wan", reroute=When("every", 1)), FakeChoices(), Given(believed), reembed_every=4)  # type: ignore[arg-type]
    world, skipped, ran = FakeWorld(rates, player), list[int](), list[int]()

    def run(number: int, decide: Any) -> Any:
        ran.append(number)
        return world.run(number, decide)

    skipping: Any = Skipping(SimpleNamespace(run=run), range(3, 12, 4), skipped.append)  # type: ignore[arg-type]
    list(play(skipping, player, range(12)))
    assert ran == [2, 3, 6, 7, 10, 11] and skipped == [0, 1, 4, 5, 8, 9]
    assert player.in_force.routing is not None and player.in_force.routing.number == 11


@pytest.mark.parametrize("faults", ["", FAULTS], ids=["", "faults"])
def test_measured_ranges_and_periods_equal_those_of_a_whole_run_to_the_nanosecond(tmp_path: Path, faults: str) -> None:
    """Placement, paths, flags, times, and the prediction beside each."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "part.toml").write_text(RUN + faults)
    answer(tmp_path / "all", "part.toml", "--engine", "emulation", "--no-report")
    whole = rows(tmp_path / "all").set_index(["mode", "collective"])
    for which, numbers in (("13-16", [13, 14, 15, 16]), ("every 11th", [0, 11, 22])):
        out = tmp_path / which
        answer(out, "part.toml", "--engine", "emulation", "--set", f"collective.emulated={which}", "--no-report")
        found = rows(out)
        assert [here.collective.to_list() for _, here in found.groupby("mode")] == [numbers] * 3
        found = found.set_index(["mode", "collective"])
        same = whole.loc[found.index]
        for column in ("completion_s", "predicted_s", "reembedded", "rerouted"):
            assert found[column].to_list() == same[column].to_list(), column
        for column in ("ring", "paths"):
            assert [*map(list, found[column])] == [*map(list, same[column])]


def test_a_range_is_told_drawn_and_resumed(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "part.toml").write_text(RUN)
    found = answer(tmp_path / "out", "part.toml", "--engine", "both", "--set", "collective.emulated=13-16")
    counts = {(point["engine"], point["collectives"]) for point in found["points"]}
    assert counts == {("model", 24), ("emulation", 4)}
    draw(tmp_path / "out")
    with (tmp_path / "out/figures/part-timeline.csv").open() as file:
        assert {(row["collective"], row["measured"]) for row in csv.DictReader(file)} == {("13", "True")}
    run = open_run(tmp_path / "out")
    assert set(run.transfers.collective) == {13, 14, 15, 16}
    again, _ = ended("--json", "--resume", tmp_path / "out", cwd=tmp_path)
    assert json.loads(again)["points"] == found["points"]


def test_a_policy_that_asks_for_a_collective_that_was_not_measured_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def Own(now):\n    return now.last is None or now.last.seconds > 0, now.number % 5 == 0"
    )
    (tmp_path / "part.toml").write_text(RUN.replace('"joint", "gains", "own"', '"own"'))
    wanted = ("--engine", "emulation", "--set", "collective.emulated=13-16", "--no-report", "--out", tmp_path / "out")
    _, said = ended("part.toml", *wanted, cwd=tmp_path, status=1)
    assert "before collective 1: NotMeasuredError: collective 0 is not measured (collective.emulated)" in said
