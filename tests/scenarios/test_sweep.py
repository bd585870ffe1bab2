"""Sweeps of any key as independent points: what they span, how they are named, and what cannot be swept."""

from pathlib import Path

import pytest

from analysis.results.reader import load, open_run
from scenarios.spec.load import Override, axis, load_scenario, resolved
from tests.fakes.commands import run, scenario

MODEL = ("--engine", "model", "--modes", "base,joint", "--collectives", "20")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("run.seed=1,2", [1, 2]),
        ("collective.chunk=8 MB, 16 MB", ["8 MB", "16 MB"]),
        ("fabric.gpus=[3, 5],8", [[3, 5], 8]),
        ("transport.line_rate=true,false", [True, False]),
        ('fabric.wan="mesh",five-router', ["mesh", "five-router"]),
        ('conditions.trace="a,b.csv"', ["a,b.csv"]),
    ],
)
def test_the_values_of_a_sweep_are_separated_by_commas(text, values):
    assert axis(text).value == values
    assert axis(text).key == "sweep." + text.partition("=")[0]


def test_a_sweep_spans_every_combination_and_each_is_what_it_is_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swept = ["--seed", "3,4", "--gpus", "4,2+3", "--sweep", "conditions.sampler=uniform,markov"]
    run(*swept, *MODEL, "--jobs", "2", "--out", "all")
    found = open_run("all")
    assert [tuple(setting["swept"].values()) for setting in found.settings] == [
        (gpus, sampler, seed) for gpus in ([2, 2], [2, 3]) for sampler in ("uniform", "markov") for seed in (3, 4)
    ]
    rows = found.collectives
    assert rows.groupby(["setting", "mode"]).size().to_list() == [20] * 16
    run("--seed", "4", "--gpus", "2+3", "--set", "conditions.sampler=markov", *MODEL, "--out", "one")
    assert rows[rows.setting == 7].completion_s.to_list() == load("one").completion_s.to_list()


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
    ("arguments", "key", "mistake"),
    [
        (["--sweep", "run.modes=base,wan"], "--sweep run.modes: ", "cannot be swept"),
        (["--sweep", "fabric.gpus=8,9"], "--sweep fabric.gpus: ", "9 GPUs"),
        (["--gpus", "3+5,9"], "--gpus: ", "9 GPUs"),
        (["--set", 'fault=[{at="collective 3", what="agent 9 killed"}]'], "--set fault[1].what: ", "agent 9"),
        (["--sweep", "fabric.gpus=8,8"], "--sweep fabric.gpus: ", "twice"),
        (["--sweep", "run.seed"], "--sweep: ", "run.seed"),
        (["--sweep", "conditions.mean=0.1,0.2"], "--sweep conditions.mean: ", "uniform"),
        (["--sweep", "run.sede=1,2"], "--sweep run.sede: ", "run.seed"),
        (["--set", "transport=1"], "--set transport: ", "transport.line_rate"),
        (["--engine", "emulation", "--chunk", "8 MB,1 GB"], "", "1 GB is too large"),
        (["--seed", "1,x"], "--seed: ", '"x"'),
    ],
)
def test_a_sweep_that_cannot_be_is_one_sentence_that_names_its_key(
    tmp_path, monkeypatch, capsys, arguments, key, mistake
):
    monkeypatch.chdir(tmp_path)
    run(*arguments, status=2)
    err = capsys.readouterr().err
    assert err.startswith(key) and mistake in err and len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_parameters_of_samplers_that_are_swept_are_allowed():
    swept = scenario(sweep__conditions__sampler=["uniform", "gaussian"], conditions__mean=0.25)
    assert [setting.conditions.mean for setting in swept.settings()] == [0.25, 0.25]
    assert "mean = 0.25" in resolved(swept)
    assert "mean" not in resolved(swept.settings()[0])
