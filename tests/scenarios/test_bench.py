"""The bench and the soak: what they make of their measurements."""

import json

import numpy as np
import pytest

from scenarios import bench, soak, vm
from scenarios.engines import emulation
from scenarios.engines.base import Failed
from scenarios.soak import Growth, Sample, growths


def test_a_sweep_is_measured_to_the_end_of_every_point() -> None:
    ends = bench.ends_s("model", {"collective.count": 10, "sweep.run.seed": bench.SEEDS}, jobs=2)
    assert len(ends) == len(bench.MODES) * len(bench.SEEDS) and 0 < ends[0] <= ends[-1]


def test_the_models_rate_and_memory_are_measured() -> None:
    rate, peak = bench.measured(8, "base", 100)
    assert 1e3 < rate < 1e9 and 2**24 < peak < 2**34


def test_workers_are_compared_in_turns_by_the_median_of_the_ratios(monkeypatch, capsys):
    took = iter([8.0, 5.0, 9.0, 5.0, 8.0, 4.0])
    monkeypatch.setattr(bench, "ends_s", lambda engine, given, jobs: [1.0, next(took)])
    assert bench.main(["--jobs", "2"]) == 0
    assert "median: 1.80 times faster" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--jobs", "1"], ["--jobs", "9"], ["--collectives", "1"]])
def test_numbers_that_are_not_allowed_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(arguments)
    assert ended.value.code == 2 and ": ".join(arguments) in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--jobs", "2"], []])
def test_a_point_that_fails_ends_the_bench_with_its_reason(monkeypatch, capsys, arguments):
    failed = Failed(setting=0, mode="joint", why="the switch fell over")
    monkeypatch.setattr(emulation.Emulation, "run", lambda *_: iter([failed]))
    assert bench.main(["--engine", "emulation", *arguments]) == 1
    assert "the switch fell over" in capsys.readouterr().err


def samples(*, pace: float = 1.0, slower: float = 1.0, memory: float = 1.0) -> list[Sample]:
    """Samples of five hundred collectives of 0.2 s; in the last hundred the machine's pace, the collectives, and the
    memory of one kind of process are so many times what they were."""
    now, found = 0.0, []
    for done in range(0, 600, 100):
        at_end = done == 500
        now += 0 if done == 0 else 100 * 0.2 * (pace * slower if at_end else 1)
        before = np.array([2 * now, now])
        now += 1.5 * (pace if done >= 400 else 1)
        size = {"agents": int(2e7 * (memory if at_end else 1)), "small": 100_000 * (1 + at_end)}
        found.append(Sample(done, size, before, np.array([2 * now, now])))
    return found


def found(**changes: float) -> dict[str, Growth]:
    return {line.name: line for line in growths(samples(**changes))}


def test_a_machine_that_changes_its_pace_is_not_a_growth_and_slower_collectives_are() -> None:
    lines = found(pace=3)
    assert lines["processor time of a collective"].share == pytest.approx(2)
    assert {name for name, line in lines.items() if line.counts} == {"memory: agents", "processor time in yardsticks"}
    assert lines["processor time in yardsticks"].share == pytest.approx(0)
    assert found(slower=1.25)["processor time in yardsticks"].share == pytest.approx(0.25)
    assert found(slower=1.25, pace=0.4)["processor time in yardsticks"].share == pytest.approx(0.25)
    assert found(memory=1.5)["memory: agents"].share == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("pace", "memory", "vm_status", "status"),
    [(1, 1, 0, 0), (1.09, 1, 0, 0), (1.12, 1, 0, 1), (1, 1.09, 0, 0), (1, 1.12, 0, 1), (1, 1, 3, 3)],
)
def test_what_grows_by_more_than_a_tenth_fails(monkeypatch, pace, memory, vm_status, status):
    clock = {"now": 0.0}
    monkeypatch.setattr(soak.time, "monotonic", lambda: 2 * clock["now"])
    monkeypatch.setattr(soak, "_processor_s", lambda: clock["now"])

    def run(_command, *, stdout, **_):
        for done in range(0, 600, 100):
            clock["now"] += 0 if done == 0 else 20 * (pace if done == 500 else 1)
            stdout.write(b"{}\n")
            clock["now"] += 1.5
            line = {"done": done, "memory": {"agents": 2e7 * (memory if done == 500 else 1)}}
            text = json.dumps(line).encode() + b"\n"
            stdout.write(text[:7])  # as a pipe may cut it
            stdout.write(text[7:])
        return vm_status

    monkeypatch.setattr(vm, "run", run)
    assert soak.soak(500) == status
