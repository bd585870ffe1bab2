"""Sweeps of any key as independent points: what they span, what becomes of points that fail, how many fit at a time."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.results.reader import load, open_run
from analysis.results.rows import Point
from scenarios.engines.base import Slice
from scenarios.experiment import command
from scenarios.experiment.progress import Progress
from scenarios.experiment.statistics import results_of
from scenarios.spec.load import Override, axis, load_scenario, resolved
from tests.conftest import PROJECT
from tests.fakes.processes import descendants
from tests.fakes.stored import some_rows

RUN = [sys.executable, str(PROJECT / "scenarios" / "run.py")]


def run(*arguments, status=0):
    """Run the command in this process, where its parts can be replaced."""
    assert command.run([str(argument) for argument in arguments]) == status


def scenario(*overrides):
    return load_scenario("paper", [Override(key, value, key) for key, value in overrides])


def test_a_sweep_spans_every_combination_and_each_is_what_it_is_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swept = ["--seed", "3,4", "--gpus", "4,6", "--sweep", "conditions.sampler=uniform,markov"]
    run(*swept, "--engine", "model", "--modes", "base,joint", "--collectives", "20", "--jobs", "2", "--out", "all")
    found = open_run("all")
    assert len(found.settings) == 8
    assert [tuple(setting["swept"].values()) for setting in found.settings] == [
        (gpus, sampler, seed) for gpus in ([2, 2], [3, 3]) for sampler in ("uniform", "markov") for seed in (3, 4)
    ]
    rows = found.collectives
    assert rows.groupby(["gpus", "seed", "conditions.sampler", "mode"]).size().to_list() == [20] * 16
    alone = ["--seed", "4", "--gpus", "6", "--set", "conditions.sampler=markov", "--modes", "base,joint"]
    run(*alone, "--engine", "model", "--collectives", "20", "--out", "one")
    of_all = rows[(rows.gpus == 6) & (rows.seed == 4) & (rows["conditions.sampler"] == "markov")]
    assert of_all.completion_s.to_list() == load("one").completion_s.to_list()


def test_a_sweep_in_a_file_is_that_of_the_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text('[sweep]\n"run.seed" = [1, 2]\n"fabric.wan" = ["mesh", "five-router"]\n')
    from_file = load_scenario("my.toml")
    options = [axis("run.seed=1,2"), axis("fabric.wan=mesh,five-router"), Override("name", "my", "")]
    assert load_scenario("paper", options).settings() == from_file.settings()
    Path("again.toml").write_text(resolved(from_file))
    assert load_scenario("again.toml") == from_file
    assert [setting.label for setting in from_file.settings()] == [
        f"8 GPUs, 8 MB, 10 us, wan {wan}, seed {seed}" for wan in ("mesh", "five-router") for seed in (1, 2)
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--sweep", "run.modes=base,wan"],
            "--sweep run.modes: cannot be swept: allowed is every key but name, run.modes",
        ),
        (["--sweep", "fabric.gpus=8,9"], "--sweep fabric.gpus: 9 GPUs do not divide"),
        (["--gpus", "3+5,9"], "--gpus: 9 GPUs do not divide"),
        (["--set", 'fault=[{at="collective 3", what="agent 9 killed"}]'], "--set fault[1].what: there is no agent 9"),
        (["--sweep", "fabric.gpus=8,8"], "lists a value twice"),
        (["--sweep", "run.seed"], '--sweep: "run.seed" has no equals sign: allowed is table.key=value,value'),
        (["--sweep", "conditions.mean=0.1,0.2"], "--sweep conditions.mean: does nothing with the sampler uniform"),
        (["--sweep", "run.sede=1,2"], "did you mean run.seed?"),
        (
            ["--set", "transport=1"],
            "--set transport: is a table and not a key: allowed is a key in it, transport.line_rate",
        ),
        (["--engine", "emulation", "--chunk", "8 MB,1 GB"], "1 GB is too large for the emulation with 8 GPUs"),
        (["--seed", "1,x"], '--seed: "x" is text'),
    ],
)
def test_a_sweep_that_cannot_be_is_a_sentence(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    run(*arguments, status=2)
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_sites_of_several_sizes_are_named_everywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("--gpus", "8,3+5", "--engine", "model", "--modes", "base", "--collectives", "5", "--out", "swept")
    run("--set", "fabric.gpus=[3, 5]", "--engine", "model", "--modes", "base", "--collectives", "5", "--out", "one")
    assert capsys.readouterr().out.count("3+5 GPUs, 8 MB, 10 us") == 2
    both, one = load("swept"), load("one")
    assert both[both.setting == 1].completion_s.tolist() == one.completion_s.tolist()


def test_parameters_of_samplers_that_are_swept_are_allowed():
    swept = scenario(("sweep.conditions.sampler", ["uniform", "gaussian"]), ("conditions.mean", 0.25))
    assert [setting.conditions.mean for setting in swept.settings()] == [0.25, 0.25]
    assert "mean = 0.25" in resolved(swept)
    assert "mean" not in resolved(swept.settings()[0])


def test_the_time_left_is_that_of_the_rest_at_the_pace_so_far(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    settings = scenario(("collective.count", 100), ("run.modes", ["base", "wan"])).settings()
    progress = Progress("model", settings)
    progress.take(Slice(setting=0, mode="base", rows=some_rows(0, 50)))
    progress.begin()  # what was there before is no measure of the pace
    assert progress.time_left() == ""
    now[0] = 30.0
    progress.take(Slice(setting=0, mode="base", rows=some_rows(50, 50)))
    assert progress.time_left() == ", about 60 s left"
    now[0] = 300.0
    assert progress.time_left() == ", about 10 min left"
    progress.take(Slice(setting=0, mode="wan", rows=some_rows(0, 100)))
    assert progress.time_left() == ""


def sliced(mode, times_s, *starts):
    """The times of a mode in slices that begin at these collectives, the last one first."""
    ends = [*starts[1:], len(times_s)]
    return [
        Slice(setting=0, mode=mode, rows=replace(some_rows(start, end - start), completion_s=times_s[start:end]))
        for start, end in zip(starts, ends, strict=True)
    ][::-1]


def test_what_is_shown_on_the_way_is_what_the_results_say_of_the_same_collectives():
    """Slices of different lengths, as a run that is resumed has them, are paired collective by collective."""
    (setting,) = scenario(("collective.count", 1000)).settings()
    base_s = np.random.default_rng(1).gamma(4.0, 0.001, 1000)
    times_s = {"base": base_s, "ccl": 0.9 * base_s, "wan": base_s**1.1, "joint": 0.5 * base_s}
    progress = Progress("model", [setting])
    for part in [*sliced("base", times_s["base"], 0, 100, 500), *sliced("joint", times_s["joint"], 0, 500)[1:]]:
        progress.take(part)
    assert progress.words(0, "joint")[2] == "50.0 % ± 0.0"
    for mode, starts in (("wan", (0, 700)), ("ccl", (0, 30, 31))):
        for part in sliced(mode, times_s[mode], *starts):
            progress.take(part)
    on_the_way = {mode: progress.words(0, mode) for mode in ("base", "wan", "ccl")}
    progress.take(sliced("joint", times_s["joint"], 0, 500)[0])
    nothing = np.full(1000, np.nan)
    stored = {
        Point("model", 0, mode): pd.DataFrame({"completion_s": times, "bound_s": nothing, "reconfigure_s": nothing})
        for mode, times in times_s.items()
    }
    ((result),) = results_of(stored, "model", [setting])
    for point in result.points:
        mean, gain = point.summary.mean_s, point.gain
        shown = f"{mean.value * 1e3:,.3f} ms ± {(mean.high - mean.low) * 500:,.3f}"
        less = "" if point.mode == "base" else f"{gain.value * 100:.1f} % ± {(gain.high - gain.low) * 50:.1f}"
        assert progress.words(0, point.mode) == ("1,000 of 1,000", shown, less)
        assert on_the_way.get(point.mode, progress.words(0, point.mode)) == ("1,000 of 1,000", shown, less)


def test_a_worker_that_is_killed_changes_no_number(tmp_path):
    options = ["fig4a", "--engine", "model", "--collectives", "100000", "--chunk", "8 MB", "--jobs", "2"]
    with subprocess.Popen([*RUN, *options, "--out", "run"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        workers = []
        while not list(tmp_path.glob("run/provenance.json")) and time.monotonic() < until:
            time.sleep(0.01)
        while len(workers) < 2 and time.monotonic() < until:
            workers = [
                pid for pid in descendants(process.pid) if b"serve()" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
        os.kill(workers[0], signal.SIGKILL)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert len(re.findall(r"^\[", said, re.MULTILINE)) == 4 and "failed" not in said, said
    subprocess.run([*RUN, *options, "--out", "whole"], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    by = ["mode", "collective"]
    found, whole = (load(tmp_path / name).sort_values(by, ignore_index=True) for name in ("run", "whole"))
    assert found.equals(whole)
