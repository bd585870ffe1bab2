"""The benchmark and the soak test: what they measure, and their exit statuses."""

import json

import pytest

from scenarios import bench, soak, vm
from scenarios.engines import emulation
from scenarios.engines.base import Failed
from scenarios.studies.grains import PIECES


def test_the_bench_measures_a_sweep_and_the_rates_memory_and_schedules_of_the_model() -> None:
    ends = bench.ends_s("model", {"collective.count": 10, "sweep.run.seed": bench.SEEDS}, jobs=2)
    assert len(ends) == len(bench.MODES) * len(bench.SEEDS) and 0 < ends[0] <= ends[-1]
    rate, peak = bench.measured(8, "base", 100)
    assert 1e3 < rate < 1e9 and 2**24 < peak < 2**34
    transfers, rate = bench.evaluated("allreduce", "ring", 1, 4)
    assert transfers == 2 * 3 * 4 and 1e3 < rate < 1e9
    transfers, *seconds = bench.scheduled("broadcast", "chain", 4)
    assert transfers == 3 * PIECES and all(0 <= took < 60 for took in seconds)


def test_bytes_over_ports_count_every_port_that_each_ring_edge_passes() -> None:
    """In a ring of eight GPUs in rank order four edges pass two ports, two edges four, and the two WAN edges seven."""
    assert bench.bytes_over_ports(8, "8 MB") == (4 * 2 + 2 * 4 + 2 * 7) * 7 * 8_000_000


@pytest.mark.parametrize("arguments", [["--jobs", "2"], [], ["--hops"]])
def test_a_failed_point_ends_the_bench_with_status_1_and_the_reason(monkeypatch, capsys, arguments):
    failed = Failed(setting=0, mode="joint", why="the switch fell over")
    monkeypatch.setattr(emulation.Emulation, "run", lambda *_: iter([failed]))
    assert bench.main(["--engine", "emulation", *arguments]) == 1
    assert "the switch fell over" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pace", "machine", "memory", "vm_status", "status"),
    [
        (1.09, 1, 1.09, 0, 0),
        (1.12, 1, 1, 0, 1),
        (1, 1, 1.12, 0, 1),
        (1, 3, 1, 0, 0),  # the whole machine has become slower, and the yardstick with it
        (1.25, 0.4, 1, 0, 1),
        (1, 1, 1, 3, 3),
    ],
)
def test_the_soak_fails_if_time_or_memory_grows_by_more_than_a_tenth(
    monkeypatch, pace, machine, memory, vm_status, status
):
    clock = {"now": 0.0}
    monkeypatch.setattr(soak.time, "monotonic", lambda: 2 * clock["now"])
    monkeypatch.setattr(soak, "_processor_s", lambda: clock["now"])

    def run(_command, *, stdout, **_):
        for done in range(0, 600, 100):
            clock["now"] += 0 if done == 0 else 20 * (pace * machine if done == 500 else 1)
            stdout.write(b"{}\n")
            clock["now"] += 1.5 * (machine if done >= 400 else 1)
            line = {"done": done, "memory": {"agents": 2e7 * (memory if done == 500 else 1)}}
            text = json.dumps(line).encode() + b"\n"
            stdout.write(text[:7])  # a pipe may deliver a line in two parts
            stdout.write(text[7:])
        return vm_status

    monkeypatch.setattr(vm, "run", run)
    assert soak.soak(500) == status
