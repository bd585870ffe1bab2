"""The figure of a run over time: its collectives, the rates under which they ran, and faults as spans."""

import csv
from pathlib import Path

import numpy as np
import pytest

from analysis.figures import over_time
from analysis.figures.__main__ import draw
from analysis.figures.run_points import configurations_of, points_of
from analysis.results import load
from analysis.results.reader import open_run
from scenarios.policies.conditions import conditions_of
from scenarios.spec.load import load_scenario
from tests.fakes.commands import FakeTestbeds, run, testbeds  # noqa: F401

FAULT = 'fault=[{at="collective %d",what="link s0b0-s1b0 down",for="3 collectives"}]'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def drawn(name="paper-over-time"):
    with Path("out", "figures", f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    return rows, Path("out", "figures", f"{name}.svg").read_text()


def modelled(*options, count=40):
    words = [word for one in options for word in ("--set", one)]
    run("--engine", "model", "--modes", "base,joint", "--collectives", count, *words, "--out", "out", "--no-report")
    draw("out")


@pytest.mark.parametrize("sampler", ["markov", "ar1"])
def test_it_has_the_stored_time_of_each_collective_and_the_rates_of_its_conditions(sampler):
    modelled(f"conditions.sampler={sampler}")
    rows, svg = drawn()
    stored = load("out").set_index(["mode", "collective"]).completion_s
    assert {(row["mode"], int(row["collective"])): float(row["completion_s"]) for row in rows} == stored.to_dict()
    (config,) = load_scenario("out/scenario.toml").configurations()
    conditions = conditions_of(config)
    index = {link.name: link.index for link in conditions.shared.all}
    rates_bps = conditions.drawn.rates_bps(0, 40)
    shown = [key.partition(" ")[2] for key in rows[0] if key.startswith("rate_bps ")]
    assert 0 < len(shown) <= 6 and all(name in svg.replace("&gt;", ">") for name in shown)
    for row in rows:
        for name in shown:
            assert float(row[f"rate_bps {name}"]) == rates_bps[int(row["collective"]), index[name]]


def test_only_links_that_are_used_have_lines():
    run("--engine", "model", "--modes", "base", "--collectives", 40, "--set", "conditions.sampler=ar1", "--out", "out")
    rows, _ = drawn()
    assert [key for key in rows[0] if key.startswith("rate_bps ")] == ["rate_bps s0b0>s1b0", "rate_bps s1b0>s0b0"]


def test_a_late_fault_moves_the_window_and_is_marked():
    modelled(FAULT % 1000, count=2000)
    rows, svg = drawn()
    numbers = {int(row["collective"]) for row in rows}
    assert (min(numbers), max(numbers)) == (980, 1179)
    assert "a fault is in force" in svg and "Collectives 980 to 1,179 of 2,000." in svg


def test_conditions_by_time_show_every_row_in_force_and_independent_draws_have_no_such_figure():
    modelled("conditions.sampler=ar1", 'conditions.every="1 ms"', 'conditions.interval="40 ms"')
    rows, svg = drawn()
    assert {int(row["collective"]) for row in rows} == set(range(10)) and "one every 40 ms" in svg
    run("--engine", "model", "--modes", "base", "--collectives", 5, "--out", "plain", "--no-report")
    assert not [path for path in draw("plain") if "over-time" in path.name]


def test_the_cost_of_a_measured_fault_is_written_below(testbeds):
    testbeds(FakeTestbeds())
    run(
        "--engine",
        "emulation",
        "--modes",
        "base",
        "--collectives",
        12,
        "--set",
        FAULT % 3,
        "--out",
        "out",
        "--no-report",
    )
    draw("out")
    rows, svg = drawn()
    assert len(rows) == 12 and "Lines: predicted; markers: measured." in svg
    assert np.allclose([float(row["completion_s"]) for row in rows], load("out").completion_s)


@pytest.mark.parametrize(
    ("engine", "note"), [("both", "Lines: predicted; markers: measured."), ("emulation", "Markers: measured.")]
)
def test_predictions_of_collectives_that_were_not_measured_come_from_the_model(testbeds, engine, note):
    """No straight line joins measured collectives that do not follow each other."""
    testbeds(FakeTestbeds())
    options = (
        "--set",
        "conditions.sampler=markov",
        "--set",
        "collective.count=12",
        "--set",
        "collective.emulated=every 4th",
    )
    run("--engine", engine, "--modes", "base", *options, "--out", "out", "--no-report")
    found = open_run("out")
    (one,) = configurations_of(found)
    times, _ = over_time.picture("paper", found, points_of(found, [one]), one).figure.axes[:2]
    drawn = {line.get_linestyle() == "None": line.get_xdata().tolist() for line in times.lines}
    assert drawn == {True: [0, 4, 8]} | ({False: list(range(9))} if engine == "both" else {})
    draw("out")
    assert note in Path("out", "figures", "paper-over-time.svg").read_text()
