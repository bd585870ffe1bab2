"""Sweeps of any key as independent points: what they span, what becomes of points that fail, how many fit at a time."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis.results import load, open_run
from scenarios import command, emulation, point
from scenarios.emulation import MOST_QUEUED_BYTES, at_a_time, check_chunks
from scenarios.engine import Slice
from scenarios.loader import Override, axis, load_scenario, resolved
from scenarios.point import EmulationError, Reader, WrongError, memory_bytes
from scenarios.progress import Progress, label
from scenarios.vm import CannotRunError
from tests.conftest import PROJECT
from tests.test_results import some_rows

RUN = [sys.executable, str(PROJECT / "scenarios" / "run.py")]


def run(*arguments, status=0):
    """Run the command in this process, where its parts can be replaced."""
    assert command.run([str(argument) for argument in arguments]) == status


def scenario(*overrides):
    return load_scenario("paper", [Override(key, value, key) for key, value in overrides])


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("run.seed=1,2", [1, 2]),
        ("collective.chunk=8 MB, 16 MB", ["8 MB", "16 MB"]),
        ("fabric.gpus=[3, 5],8", [[3, 5], 8]),
        ("transport.line_rate=true,false", [True, False]),
        ('fabric.wan="mesh",five-router', ["mesh", "five-router"]),
        ('conditions.trace="a,b.csv"', ["a,b.csv"]),
        ("conditions.mean=", [""]),
    ],
)
def test_the_values_of_a_sweep_are_apart_at_commas(text, values):
    assert axis(text).value == values
    assert axis(text).key == "sweep." + text.partition("=")[0]


def test_a_sweep_spans_every_combination_and_each_is_what_it_is_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swept = ["--seed", "3,4", "--gpus", "4,6", "--sweep", "conditions.sampler=uniform,markov"]
    run(*swept, "--engine", "model", "--modes", "base,joint", "--jobs", "2", "--out", "all")
    found = open_run("all")
    assert len(found.settings) == 8
    assert [tuple(setting["swept"].values()) for setting in found.settings] == [
        (gpus, sampler, seed) for gpus in ([2, 2], [3, 3]) for sampler in ("uniform", "markov") for seed in (3, 4)
    ]
    rows = found.collectives
    assert rows.groupby(["gpus", "seed", "conditions.sampler", "mode"]).size().to_list() == [20] * 16
    alone = ["--seed", "4", "--gpus", "6", "--set", "conditions.sampler=markov", "--modes", "base,joint"]
    run(*alone, "--engine", "model", "--out", "one")
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
    assert [label(setting) for setting in from_file.settings()] == [
        f"8 GPUs, 8 MB, 10 us, wan {wan}, seed {seed}" for wan in ("mesh", "five-router") for seed in (1, 2)
    ]


def test_sites_of_several_sizes_are_named_everywhere(bench, capsys):
    run("--gpus", "8,3+5", "--engine", "model", "--modes", "base", "--collectives", "5", "--out", "swept")
    run("--set", "fabric.gpus=[3, 5]", "--engine", "model", "--modes", "base", "--collectives", "5", "--out", "one")
    assert capsys.readouterr().out.count("3+5 GPUs, 8 MB, 10 us") == 4
    both, one = load("swept"), load("one")
    assert both[both.setting == 1].completion_s.tolist() == one.completion_s.tolist()


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
        (["--sweep", "run.seed"], '--sweep: "run.seed" is no sweep: allowed is table.key=value,value'),
        (["--sweep", "conditions.mean=0.1,0.2"], "--sweep conditions.mean: does nothing with the sampler uniform"),
        (["--sweep", "run.sede=1,2"], "did you mean run.seed?"),
        (
            ["--set", "transport=1"],
            "--set transport: is a table and no key: allowed is a key in it, transport.line_rate",
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


def test_parameters_of_samplers_that_are_swept_are_allowed():
    swept = scenario(("sweep.conditions.sampler", ["uniform", "gaussian"]), ("conditions.mean", 0.25))
    assert [setting.conditions.mean for setting in swept.settings()] == [0.25, 0.25]
    assert "mean = 0.25" in resolved(swept)
    assert "mean" not in resolved(swept.settings()[0])


class Bench:
    """Takes the place of the VMs: points measure what the model predicts, but for those that are to fail."""

    def __init__(self, failing=(), times=2, error=EmulationError):
        self.failing, self.times, self.error = failing, times, error
        self.tries = []

    def run_point(self, task, put, on_start=None):
        self.tries.append((task.place, task.mode))
        reader = Reader(task, put)
        for k in range(task.setting.collective.count):
            if task.mode in self.failing and self.tries.count((task.place, task.mode)) <= self.times and k == 2:
                raise self.error(f"{task.name}, after 2 collectives: the switch fell over")
            n, expected = task.setting.gpus, reader._expected.of(k)
            row = {"collective": k, "completion_s": expected.predicted_s, "drops": 0}
            row |= {"ring": expected.ring.tolist(), "path": expected.path.tolist()}
            row |= {"reembedded": False, "rerouted": False}
            row |= {"start_ns": [0] * n, "arrived_ns": [[10 * step for step in range(1, n)]] * n}
            reader.write((json.dumps(row) + "\n").encode())


@pytest.fixture
def bench(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(emulation.vm, "check", lambda **_: None)

    def put(bench):
        monkeypatch.setattr(emulation, "run_point", bench.run_point)
        return bench

    return put


def test_a_point_that_fails_once_is_measured_again_and_nothing_is_twice(bench, capsys):
    used = bench(Bench(failing=("wan",), times=1))
    run("--engine", "emulation", "--collectives", "5", "--jobs", "2", "--out", "run")
    assert used.tries.count((0, "wan")) == 2
    assert load("run").groupby("mode").size().to_dict() == dict.fromkeys(["base", "ccl", "joint", "wan"], 5)
    assert open_run("run").complete
    again = "tried once more: emulation, 8 GPUs, 8 MB, 10 us, wan, after 2 collectives: the switch fell over\n"
    assert again in capsys.readouterr().err and again in (Path("run") / "log.txt").read_text()


def test_a_point_that_was_wrong_is_not_tried_until_it_is_right(bench, capsys):
    used = bench(Bench(failing=("wan",), times=1, error=WrongError))
    run("--engine", "emulation", "--collectives", "5", "--jobs", "2", "--out", "run", status=1)
    assert used.tries.count((0, "wan")) == 1
    assert "run.py: failed: emulation, 8 GPUs, 8 MB, 10 us, wan, " in capsys.readouterr().err


def test_a_point_that_fails_twice_is_told_the_rest_goes_on_and_it_can_be_tried_again(bench, capsys):
    used = bench(Bench(failing=("wan",)))
    run("--engine", "both", "--collectives", "5", "--seed", "1,2", "--jobs", "2", "--out", "run", status=1)
    out, said = capsys.readouterr()
    sentence = "emulation, 8 GPUs, 8 MB, 10 us, seed 1, wan, after 2 collectives: the switch fell over"
    assert f"run.py: failed: {sentence}\n" in said
    assert said.endswith("run.py: what was found is kept; go on with --resume run\n")
    assert re.search("^emulation +8 GPUs, 8 MB, 10 us, seed 2 +joint", out, re.MULTILINE)  # what was found is told
    found = open_run("run")
    assert not found.complete
    assert [failed["why"] for failed in found.provenance["failed"]] == [sentence, sentence.replace("seed 1", "seed 2")]
    sizes = found.collectives.groupby(["engine", "mode", "setting"]).size()
    assert set(sizes["model"]) == {5}  # what the model has said stands
    assert sizes["emulation"].to_dict() == {
        (mode, setting): 2 if mode == "wan" else 5 for mode in ("base", "ccl", "wan", "joint") for setting in (0, 1)
    }
    assert (Path("run") / "summary.csv").exists() and (Path("run") / "figures").exists()
    tried = list(used.tries)
    again = bench(Bench())
    run("--resume", "run")
    assert sorted(again.tries) == [(0, "wan"), (1, "wan")]  # what is finished is never measured again
    assert tried.count((0, "wan")) == 2 and tried.count((0, "base")) == 1
    assert open_run("run").complete and open_run("run").provenance["failed"] == []
    assert set(load("run").groupby(["engine", "mode", "setting"]).size()) == {5}


def test_an_emulation_of_which_nothing_succeeds_leaves_what_the_model_found(bench, capsys):
    bench(Bench(failing=("base", "ccl", "wan", "joint")))
    run("--collectives", "5", "--out", "run", status=1)
    assert re.search(r"^model +8 GPUs, 8 MB, 10 us +joint", capsys.readouterr().out, re.MULTILINE)
    found = load("run")
    assert found[found.engine == "model"].groupby("mode").size().to_list() == [5] * 4
    assert "model,joint" in (Path("run") / "summary.csv").read_text()


def test_a_machine_that_cannot_is_told_before_anything_runs(bench, monkeypatch, capsys):
    def no(**_):
        raise CannotRunError("there is no kernel")

    monkeypatch.setattr(emulation.vm, "check", no)
    run("--out", "run", status=3)
    assert capsys.readouterr().err == "run.py: there is no kernel (or reckon alone: --engine model)\n"
    assert not Path("run").exists()


def test_no_more_vms_are_started_than_have_room_together(bench, monkeypatch, capsys):
    small, large = scenario(("collective.chunk", "8 MB")), scenario(("collective.chunk", "64 MB"))
    assert memory_bytes(large) - memory_bytes(small) >= 8 * 2 * 56e6
    room = 2 * memory_bytes(large) + 10

    def check(*, memory_bytes):
        if memory_bytes > room:
            raise CannotRunError("no room")

    monkeypatch.setattr(emulation.vm, "check", check)
    assert at_a_time([large, small], 8) == 2
    assert at_a_time([small], 2) == 2
    assert at_a_time([small], 1) == 1
    used = bench(Bench())
    run("--engine", "emulation", "--chunk", "64 MB", "--jobs", "3", "--out", "run", status=3)
    said = capsys.readouterr().err
    assert said.startswith("run.py: there is room for the memory of 2 VMs at a time, and not of 3: allowed is --jobs 2")
    assert used.tries == [] and not Path("run").exists()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    run("--engine", "emulation", "--chunk", "64 MB", "--collectives", "1", "--out", "run")
    assert "run.py: there is room for the memory of 2 VMs at a time, so that many are run" in capsys.readouterr().err


@pytest.mark.parametrize("gpus", [4, 8, 16])
def test_the_largest_chunk_that_is_allowed_is_allowed_and_no_larger(gpus):
    largest = MOST_QUEUED_BYTES // (gpus - 1) // 10**6
    check_chunks([scenario(("fabric.gpus", gpus), ("collective.chunk", f"{largest} MB"))])
    with pytest.raises(ValueError, match=f"with {gpus} GPUs, .* allowed is {largest} MB"):
        check_chunks([scenario(("fabric.gpus", gpus), ("collective.chunk", f"{largest + 2} MB"))])


def test_drops_are_told_loudly_also_beside_json(bench, monkeypatch, capsys):
    take = point.Reader._take
    monkeypatch.setattr(point.Reader, "_take", lambda self, row: take(self, row | {"drops": 1}))
    bench(Bench())
    run("--engine", "emulation", "--modes", "base", "--collectives", "2", "--out", "one")
    assert "\nWARNING: 2 packets lost in a network that is to lose none" in capsys.readouterr().out
    run("--engine", "emulation", "--modes", "base", "--collectives", "2", "--json", "--out", "two")
    out, said = capsys.readouterr()
    assert json.loads(out)["fidelity"]["drops"] == 2
    assert "run.py: WARNING: 2 packets lost" in said


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


def test_a_worker_that_is_killed_changes_no_number(tmp_path):
    options = ["fig4a", "--engine", "model", "--collectives", "100000", "--chunk", "8 MB", "--jobs", "2"]
    with subprocess.Popen([*RUN, *options, "--out", "run"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        workers = []
        while not list(tmp_path.glob("run/points/*.rows")) and time.monotonic() < until:
            time.sleep(0.01)
        while len(workers) < 2 and time.monotonic() < until:
            workers = [pid for pid in children(process.pid) if b"serve()" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(workers[0], signal.SIGKILL)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert len(re.findall(r"^\[", said, re.MULTILINE)) == 4 and "failed" not in said, said
    subprocess.run([*RUN, *options, "--out", "whole"], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    by = ["mode", "collective"]
    found, whole = (load(tmp_path / name).sort_values(by, ignore_index=True) for name in ("run", "whole"))
    assert found.equals(whole)


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found
