"""What the bench makes of its measurements."""

import pytest

from scenarios import bench
from scenarios.engines.base import Failed, Slice
from tests.fakes.stored import some_rows


def test_the_models_table_grows_from_eight_gpus(monkeypatch, capsys):
    asked = []

    def one(gpus, mode, collectives):
        asked.append((mode, gpus, collectives))
        return 800_000 / gpus, gpus * 10e6

    monkeypatch.setattr(bench, "_in_a_process", one)
    assert bench.main([]) == 0
    assert asked == [(mode, gpus, 4000) for mode in ("base", "ccl", "wan", "joint") for gpus in (8, 16, 24)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["mode", "GPUs", "AllGathers/s/core", "times", "peak", "memory", "times"]
    assert [line.split() for line in lines[7:10]] == [
        ["wan", "8", "100,000", "1.000", "80", "MB", "1.00"],
        ["wan", "16", "50,000", "0.500", "160", "MB", "2.00"],
        ["wan", "24", "33,333", "0.333", "240", "MB", "3.00"],
    ]


def test_the_emulations_table_is_of_what_follows_the_first(monkeypatch, capsys):
    asked = []

    def emulated(gpus, chunk, collectives):
        asked.append((gpus, chunk, collectives))
        return 13.3, [0.4, 0.5, 1.2]

    monkeypatch.setattr(bench, "emulated", emulated)
    monkeypatch.setattr(bench, "copying_s", lambda gpus, chunk_bytes: gpus * chunk_bytes / 2.56e9)
    assert bench.main(["--engine", "emulation"]) == 0
    assert asked == [(8, "8 MB", 12), (16, "8 MB", 12), (8, "64 MB", 12), (16, "64 MB", 12)]
    first = capsys.readouterr().out.splitlines()[1].split()
    assert first == ["8", "8", "MB", "13.3", "s", "0.50", "s", "1.20", "s", "0.03", "s", "20.0"]


def test_an_allgather_is_copied_once_into_and_once_out_of_every_connection(monkeypatch):
    import numpy as np

    copied = []
    monkeypatch.setattr(np, "copyto", lambda sink, source: copied.append(len(source)))
    assert bench.copying_s(4, 1000) >= 0
    assert sum(copied) == 2 * 4 * 3 * 1000


def test_the_first_collective_is_measured_from_the_start_of_the_vm(monkeypatch):
    from scenarios.engines import emulation

    now = iter([100.0, 113.0, 113.5, 115.0])
    monkeypatch.setattr(bench.time, "monotonic", lambda: next(now))
    slices = [Slice(setting=0, mode="joint", rows=some_rows(k, 1)) for k in range(3)]
    monkeypatch.setattr(emulation.Emulation, "run", lambda *_: iter(slices))
    assert bench.emulated(8, "8 MB", 3) == (13.0, [0.5, 1.5])


def test_workers_are_compared_in_turns_and_the_median_of_the_ratios_is_told(monkeypatch, capsys):
    asked, took = [], iter([8.0, 5.0, 9.0, 5.0, 8.0, 4.0])

    def swept_s(engine, jobs, collectives):
        asked.append((engine, jobs, collectives))
        return next(took)

    monkeypatch.setattr(bench, "swept_s", swept_s)
    assert bench.main(["--jobs", "2"]) == 0
    assert asked == [("model", 1, 500_000), ("model", 2, 500_000)] * 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model, 8 points of 500,000 collectives"
    assert [line.split()[-1] for line in lines[2:5]] == ["1.60", "1.80", "2.00"]
    assert lines[-1].startswith("median: 1.80 times faster")


def test_a_sweep_is_every_point_of_four_modes_and_two_seeds(capsys):
    assert bench.swept_s("model", 2, 10) > 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 8
    assert {line.split("seed ")[1].split(":")[0] for line in said} == {
        f"{seed}, {mode}" for seed in (1, 2) for mode in bench.MODES
    }


@pytest.mark.parametrize("jobs", ["1", "9", "0", "-2"])
def test_a_sweep_is_compared_with_two_workers_or_more(jobs, capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["--jobs", jobs])
    assert ended.value.code == 2
    assert f"--jobs: {jobs} is not allowed: allowed is 2 to 8" in capsys.readouterr().err


def test_a_point_that_fails_is_told_and_nothing_is_compared(monkeypatch, capsys):
    from scenarios.engines import emulation

    failed = Failed(setting=0, mode="joint", why="the switch fell over")
    monkeypatch.setattr(emulation.Emulation, "run", lambda *_: iter([failed]))
    for arguments in (["--jobs", "2"], []):
        assert bench.main(["--engine", "emulation", *arguments]) == 1
        sentence = "bench.py: there is nothing to compare, as a point has failed: the switch fell over"
        assert capsys.readouterr().err.splitlines()[-1] == sentence
