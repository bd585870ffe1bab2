"""What becomes of points that fail, and how many VMs are at work at a time."""

import json
import os
import re
from pathlib import Path

import pytest

from analysis.results.reader import load, open_run
from scenarios.engines import emulation, point
from scenarios.engines.emulation import MOST_QUEUED_BYTES, at_a_time, check_chunks
from scenarios.engines.point import EmulationError, Reader, WrongError, memory_bytes
from scenarios.testbed.platform import VIRTUAL
from scenarios.vm import CannotRunError, NoRoomError
from tests.test_sweep import run, scenario


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
    monkeypatch.setattr(emulation.vm, "run", lambda *_, **__: 0)  # the boot before the first point

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


def no_kernel(**_):
    raise CannotRunError("there is no kernel", remedy="build one")


@pytest.mark.parametrize("asked", [("--engine", "both"), ("--engine", "emulation"), ("--clock", "wall")])
def test_a_machine_without_a_vm_refuses_a_measurement_before_anything_runs(bench, monkeypatch, capsys, asked):
    used = bench(Bench())
    monkeypatch.setattr(emulation, "ground", lambda _: VIRTUAL)  # even if its own kernel carries the wall clock
    monkeypatch.setattr(emulation.vm, "check", no_kernel)
    run(*asked, "--out", "run", status=3)
    assert capsys.readouterr().err == "run.py: there is no kernel: build one (or reckon alone: --engine model)\n"
    assert used.tries == [] and not Path("run").exists()


def test_a_machine_without_a_vm_models_what_nobody_asked_to_be_measured(bench, monkeypatch, capsys):
    bench(Bench())
    with monkeypatch.context() as machine:
        machine.setattr(emulation.vm, "check", no_kernel)
        run("--collectives", "5", "--json", "--out", "run", status=3)
        out, said = capsys.readouterr()
        answer = json.loads(out)
        assert {point["engine"] for point in answer["points"]} == {"model"} and len(answer["points"]) == 4
        assert answer["unmeasured"] == "there is no kernel: build one" and "fidelity" not in answer
        assert "nothing was measured: there is no kernel: build one" in said
        assert (Path("run") / "summary.csv").exists() and (Path("run") / "report.html").exists()
        run("--resume", "run", status=3)  # what is left is the measurement
        assert "there is no kernel" in capsys.readouterr().err
    used = bench(Bench())
    run("--resume", "run")  # the machine has been mended
    assert len(used.tries) == 4 and open_run("run").complete
    assert load("run").groupby("engine").size().to_dict() == {"emulation": 20, "model": 20}


@pytest.mark.parametrize("gpus", ["[64, 64]", "[6, 100]"])
def test_where_memory_is_short_the_refusal_names_the_most_gpus_that_fit(bench, monkeypatch, capsys, gpus):
    def room(**_):
        raise NoRoomError("no room", room_bytes=10**9)

    monkeypatch.setattr(emulation.vm, "check", room)
    wanted = ("--modes", "base", "--chunk", "4 MB", "--set", f"fabric.gpus={gpus}")
    run("--engine", "emulation", *wanted, "--out", "run", status=3)
    (most,) = re.findall(r"room for (\d+) \(", capsys.readouterr().err)
    largest, smaller = json.loads(gpus)[1], json.loads(gpus)[0]
    fits = max(n for n in range(2, largest + 1) if memory_bytes(four_mb(min(n, smaller), n)) <= 10**9)
    assert int(most) == fits + min(fits, smaller)
    assert not Path("run").exists()


def four_mb(*gpus):
    return scenario(("fabric.gpus", list(gpus)), ("collective.chunk", "4 MB"), ("run.modes", ["base"]))


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


def test_a_fault_after_all_that_is_measured_is_refused_before_anything_is_run(bench, capsys):
    bench(Bench())
    Path("late.toml").write_text('[collective]\ncount = 30\n[[fault]]\nat = "collective 20"\nwhat = "agent 3 killed"\n')
    run("late.toml", "--engine", "both", "--modes", "base", "--out", "run", status=2)
    assert capsys.readouterr().err == (
        "fault[1].at: collective 20 is not among the 20 that the emulation measures (collective.emulated): "
        "allowed is 0 to 19\n"
    )
    assert not Path("run").exists()
    run("late.toml", "--engine", "model", "--modes", "base", "--out", "run")


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
