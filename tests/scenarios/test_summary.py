"""Results that a run prints and stores: fidelity, lower bound and reconfiguration times."""

import csv
import html
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.results import load
from scenarios.engines.model import Model
from scenarios.spec.load import load_scenario
from tests.fakes.commands import FakeTestbeds, run, testbeds  # noqa: F401
from tests.fakes.runs import ended


@pytest.fixture
def emulate(testbeds):
    """Return a function that runs the command with fake testbeds whose records are changed by `changes`."""

    def emulate(changes, *arguments):
        testbeds(FakeTestbeds(changes=changes))
        run("--engine", "emulation", *arguments, "--out", "run")

    return emulate


def test_fidelity_excludes_disturbed_collectives_and_is_the_same_on_resume(emulate, capsys):
    def struck(row, _):
        return {"completion_s": 2 * row["completion_s"], "undisturbed": False} if row["collective"] == 1 else {}

    emulate(struck, "--modes", "base,joint", "--collectives", "5", "--json")
    first = json.loads(capsys.readouterr().out)
    numbers = {"collectives": 8, "median_ratio": 1.0, "p99_abs_error": 0.0, "drops": 0}
    numbers["disturbed"] = {"collectives": 2, "drops": 0, "retransmitted_bytes": 0}
    assert first["fidelity"] == numbers | {"holds": True, "warnings": []}
    with (Path("run") / "figures" / "paper-fidelity.csv").open() as file:
        assert sorted({row["collective"] for row in csv.DictReader(file)}) == ["0", "2", "3", "4"]
    run("--resume", "run", "--json")
    assert json.loads(capsys.readouterr().out) == first


def test_a_low_fidelity_is_warned_of_on_the_terminal_and_in_json(emulate, capsys):
    def slower(row, _):
        return {"completion_s": 1.2 * row["completion_s"]} if row["collective"] % 4 == 3 else {}

    emulate(slower, "--modes", "base", "--collectives", "8", "--no-report")
    assert "WARNING: measured times differ" in capsys.readouterr().out
    run("--resume", "run", "--json", "--no-report")
    printed = capsys.readouterr()
    fidelity = json.loads(printed.out)["fidelity"]
    assert (fidelity["holds"], fidelity["median_ratio"], len(fidelity["warnings"])) == (False, 1.0, 1)
    assert f"WARNING: {fidelity['warnings'][0]}" in printed.err


def test_the_terminal_prints_the_reports_summary_and_the_fidelity_before_the_table(emulate, capsys):
    emulate(lambda *_: {}, "--modes", "base,wan", "--collectives", "3")
    first = capsys.readouterr().out
    sentence, fidelity, table = first.split("\n\n")[:3]
    assert "base and wan compared over 3 AllGathers each (measured), 8 GPUs" in sentence and "\n" not in sentence
    assert fidelity.startswith("fidelity: 6 collectives") and table.startswith("engine")
    assert sentence.replace(" us", " µs") in html.unescape(Path("run/report.html").read_text())
    run("--resume", "run", "--no-report")
    assert capsys.readouterr().out == first


def test_reconfiguration_times_are_stored_and_their_mean_is_shown_for_modes_that_reroute(emulate, capsys):
    def measured(row, mode):
        k, changed = row["collective"], row["collective"] > (0 if mode == "wan" else 1)
        return {"reconfigure_s": k / 1000 if changed else None, "reconfigure_messages": 12 * changed}

    emulate(measured, "--modes", "base,wan", "--collectives", "3", "--no-report")
    table = next(part for part in capsys.readouterr().out.split("\n\n") if part.startswith("engine"))
    (heading, base, wan) = table.splitlines()
    assert heading.endswith("reconfiguration (ms), how often")
    assert base.endswith(" 2.000, once") and wan.endswith(" 1.500, 2 times")
    rows = load("run")
    wan = rows[rows["mode"] == "wan"]
    assert wan.reconfigure_s.fillna(-1).to_list() == [-1, 0.001, 0.002]
    assert wan.reconfigure_messages.to_list() == [0, 12, 12] and rows.reconfigure_s.notna().sum() == 3
    with Path("run/summary.csv").open() as file:
        found = [(row["mean_reconfigure_s"], row["reconfigurations"]) for row in csv.DictReader(file)]
    assert found == [("0.002", "1"), ("0.0015", "2")]


def test_the_changes_and_budgets_told_with_predicted_times_are_those_of_all_predicted_collectives(testbeds, capsys):
    """Few collectives are measured and many predicted: the sentence compares predicted times, and counts of them."""
    testbeds(FakeTestbeds(changes=lambda *_: {"reconfigure_s": 0.01}))
    Path("few.toml").write_text(
        '[conditions]\nsampler = "ar1"\nwan_rate = "10-40 Gbit/s"\nwan_delay = "5 ms"\n'
        '[collective]\ncount = 300\nemulated = 4\nbudget = "25 ms"\n'
        '[control]\ncounted = true\ndelay = "5 ms"\n[run]\nmodes = ["base", "wan"]\n'
    )
    run("few.toml", "--engine", "both", "--out", "run", "--no-report")
    sentence = capsys.readouterr().out.split("\n\n")[0]
    rows = load("run")
    wan = rows[(rows["engine"] == "model") & (rows["mode"] == "wan")].sort_values("collective")
    ways = [tuple(one) for one in wan["paths"]]
    changes = sum(one != other for one, other in itertools.pairwise(ways))
    assert "over 300 AllGathers each (timing model)" in sentence and changes > 100
    assert f"(wan {changes:,} times)" in sentence
    fitting = int((wan["completion_s"] <= 0.025).sum())
    assert f"wan ({fitting:,} of 300 collectives do)" in sentence


def test_the_time_in_which_connections_open_is_told_where_it_is_noticeable(tmp_path):
    """At 20 ms it is many times that of a small AllGather; at 10 us, before large ones, it is not told."""
    common = ("--gpus", 8, "--modes", "base,wan", "--engine", "emulation", "--collectives")
    said, _ = ended(*common, 1, "--chunk", "8 kB", "--wan-delay", "20 ms", "--out", tmp_path / "far", cwd=tmp_path)
    rows = pd.read_parquet(tmp_path / "far/collectives.parquet")
    of_mode = rows.groupby("mode").agg(first_s=("reconfigure_s", "first"), total_s=("completion_s", "sum"))
    worst = of_mode.loc[of_mode.first_s.idxmax()]
    (line,) = (line for line in said.splitlines() if line.startswith("before collective 0 connections were opened"))
    time_s, times = re.search(r": ([0-9.]+) ms of virtual time at most .*, ([0-9]+) times that of", line).groups()
    assert float(time_s) / 1e3 == pytest.approx(worst.first_s, rel=1e-3) and worst.first_s > 0.1
    assert int(times) == round(worst.first_s / worst.total_s) >= 2
    assert line.endswith("which is in no time above") and line in (tmp_path / "far/report.html").read_text()
    near, _ = ended(*common, 2, "--chunk", "64 MB", "--no-report", "--out", tmp_path / "near", cwd=tmp_path)
    rows = pd.read_parquet(tmp_path / "near/collectives.parquet")
    assert rows.reconfigure_s.max() < 0.01 * rows.groupby("mode").completion_s.sum().min()
    assert "connections were opened" not in near


@pytest.mark.parametrize("kind", ["allgather", "training"])
def test_a_bound_is_spoken_of_only_where_one_is_printed(tmp_path, kind):
    """The bound of training is not known; that base takes one of the WAN's links holds without it."""
    options = ["--collectives", "5", "--modes", "base,wan", "--set", f"collective.kind={kind}"]
    options += ["--set", "conditions.wan_rate=40 Gbit/s", "--no-report"]
    said, _ = ended("--engine", "model", *options, "--out", tmp_path / "out", cwd=tmp_path)
    assert ("lower bound" in said) is ("the bound may use all of them" in said) is (kind == "allgather")
    assert "base takes one path between two border routers" in said
    (line,) = (one for one in said.splitlines() if one.startswith("the WAN has 4 links"))
    assert line.endswith("base takes one path between two border routers")


def test_the_lower_bound_depends_only_on_the_conditions_not_on_mode_engine_or_batch(emulate, capsys):
    emulate(lambda *_: {}, "--modes", "base,joint", "--collectives", "12", "--json", "--no-report")
    points = json.loads(capsys.readouterr().out)["points"]
    rows = load("run")
    bounds = [rows[rows["mode"] == mode].bound_s.to_numpy() for mode in ("base", "joint")]
    assert np.array_equal(*bounds) and len(set(bounds[0])) == 12
    assert [point["mean_bound_s"] for point in points] == pytest.approx([bounds[0].mean()] * 2)
    assert all(point["mean_bound_s"] < point["mean_s"] for point in points)
    for batch in (5, 5000):
        for part in Model(batch=batch).run(load_scenario("paper").configurations()):
            found = part.rows["bound_s"][: max(0, 12 - part.rows.start)]
            assert found == pytest.approx(bounds[0][part.rows.start :][: len(found)], rel=1e-12)
            if part.rows.stop >= 12:
                break
