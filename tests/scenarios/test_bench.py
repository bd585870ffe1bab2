"""The benchmark and the soak test: what they measure, and their exit statuses."""

import json
from pathlib import Path

import pytest

from scenarios import bench, bench_htsim, soak, vm
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


def test_htsims_messages_are_those_of_a_ring_in_which_every_rank_sends_on_what_it_has_received() -> None:
    """The list is replayed by what its words mean: a message starts at 0 or once another one has been sent."""
    lines = [line.split() for line in bench_htsim.ring(5, 1000).splitlines()]
    messages = [dict(zip(["ends", *one[1::2]], [one[0], *one[2::2]], strict=True)) for one in lines if "->" in one[0]]
    triggers = [one[2] for one in lines if one[0] == "trigger" and one[3] == "oneshot"]
    assert [("Connections", str(len(messages))), ("Triggers", str(len(triggers)))] == [tuple(one) for one in lines[1:3]]
    held, waiting = {rank: {rank} for rank in range(5)}, {one["trigger"]: one for one in messages if "trigger" in one}
    running = [(one, int(one["ends"][0])) for one in messages if one.get("start") == "0"]
    for message, chunk in running:
        src, dst = map(int, message["ends"].split("->"))
        assert chunk in held[src] and chunk not in held[dst]
        held[dst].add(chunk)
        if started := message.get("send_done_trigger"):
            triggers.remove(started)
            running.append((waiting.pop(started), chunk))
    assert all(chunks == set(range(5)) for chunks in held.values())
    assert not triggers and not waiting and len(running) == len(messages) == 5 * 4
    assert all(message["size"] == "1000" for message in messages)


def test_htsim_is_timed_only_if_all_its_messages_end(tmp_path: Path) -> None:
    program = tmp_path / "htsim_roce"
    program.write_text("#!/bin/sh\ngrep -e '->' ring.cm | sed 's/$/ finished at 1/'\n")
    program.chmod(0o700)
    assert 0 < bench_htsim.seconds(program, 4, 1000) < 60
    program.write_text("#!/bin/sh\necho 'Flow 0 finished at 1'\necho 'no route' >&2\nexit 4\n")
    with pytest.raises(RuntimeError, match="ended with status 4 after 1 of 12 messages: no route"):
        bench_htsim.seconds(program, 4, 1000)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--htsim", "{0}/none", "--engine", "emulation"], "none cannot be run; allowed: the path of htsim_roce"),
        (["--htsim", "{0}"], "it is not allowed here; allowed: with --engine emulation alone"),
    ],
)
def test_a_program_of_htsim_that_cannot_be_used_is_an_error(tmp_path: Path, capsys, arguments, why) -> None:
    with pytest.raises(SystemExit):
        bench.main([one.format(tmp_path) for one in arguments])
    assert why in capsys.readouterr().err


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
