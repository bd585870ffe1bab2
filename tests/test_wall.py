"""Experiments on the wall clock: scaled, held against what the machine carries, and marked where it was too slow."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis.results.reader import open_run
from scenarios.engines.host_capacity import check, demand_bps, divisor
from scenarios.spec.load import Override, load_scenario, resolved
from scenarios.vm import CannotRunError
from tests.conftest import PROJECT, VM
from topologies.shaping.rate_scale import RateScale

RUN = [sys.executable, str(PROJECT / "scenarios" / "run.py")]


def run(*arguments: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run([*RUN, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status, done.stderr
    return done


@pytest.mark.alone
def test_what_is_measured_in_real_time_says_so_everywhere(tmp_path: Path) -> None:
    where = tmp_path / "run"
    chosen = ("--modes", "base,joint", "--collectives", "2", "--chunk", "64 MB", "--gpus", "4", "--out", str(where))
    done = run("--engine", "emulation", "--clock", "wall", "--rate-scale", "1/1000", *chosen)
    words = "4 GPUs, 64 MB, 10 us, wall clock at 1/1000 of the rates with 64 kB"
    assert words in done.stdout
    assert words in done.stderr
    assert re.search(r"^it carries [\d.]+ Gbit/s between 4 hosts$", done.stderr, re.MULTILINE)
    assert re.search(r"certificate: 4 collectives measured, .*, [0-4] late$", done.stdout, re.MULTILINE)
    assert json.loads((where / "settings.json").read_text())[0]["label"] == words
    assert {'clock = "wall"', 'rate_scale = "1/1000"'} <= set((where / "scenario.toml").read_text().splitlines())
    with (where / "summary.csv").open(newline="") as file:
        told = [(row["clock"], row["rate_scale"], row["carried_chunk_bytes"]) for row in csv.DictReader(file)]
    assert told == [("wall", "1/1000", "64000")] * 2
    rows = pq.read_table(where / "collectives.parquet").to_pydict()
    assert {type(late) for late in rows["late"]} == {bool}
    # A machine that is busy with other tests is late, so the times can be off; the scale still shows in them.
    ratios = np.array(rows["completion_s"]) / np.array(rows["predicted_s"])
    assert 0.8 < np.median(ratios) < 3


FAULTS = """
[[fault]]
at = "collective 1"
what = "link s0b0-s1b0 down"
for = "1 collectives"
[[fault]]
at = "collective 2"
what = "agent 2 killed"
"""


@pytest.mark.alone
def test_faults_strike_and_are_made_good_in_real_time_too(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(FAULTS)
    where = tmp_path / "run"
    chosen = ("--modes", "joint", "--collectives", "3", "--chunk", "64 MB", "--gpus", "4", "--out", str(where))
    run(str(tmp_path / "f.toml"), "--engine", "emulation", "--clock", "wall", "--rate-scale", "1/1000", *chosen)
    found = open_run(where)
    assert found.faults is not None
    assert found.faults.what.tolist() == ["link s0b0-s1b0 down", "agent 2 killed"]
    assert found.faults.outcome.tolist() == ["recovered", "recovered"]
    assert (found.faults.detected_s <= found.faults.recovered_s).all()
    assert found.collectives.collective.tolist() == [0, 1, 2]


def test_rates_beyond_the_machine_are_refused_before_anything_is_run(tmp_path: Path) -> None:
    done = run("--clock", "wall", "--gpus", "4", "--out", str(tmp_path / "run"), status=3)
    sentence = done.stderr.splitlines()[-1]
    assert "at the rate scale 1 a ring of this scenario sends up to" in sentence
    assert re.search(r"this machine carries [\d.]+ Gbit/s, of which half is allowed: take --rate-scale 1/\d+", sentence)
    assert not (tmp_path / "run").exists()


def test_on_a_kernel_of_its_own_an_experiment_leaves_nothing_and_puts_back_what_it_changed(vm: VM) -> None:
    ended = vm.run(
        "--clock", "wall", "--memory", "3 GiB", "--", sys.executable, "-m", "tests.guest.own", timeout=400
    )  # fmt: skip
    assert ended.status == 0, ended.err
    found = json.loads(ended.out.splitlines()[-1])
    assert found["first"]["status"] == 0, found["first"]["err"]
    assert "measuring what this machine carries on its own kernel" in found["first"]["err"]
    (point,) = json.loads(found["first"]["out"])["points"]
    assert (point["clock"], point["rate_scale"], point["carried_chunk_bytes"]) == ("wall", "1/1000", 64_000)
    assert found["second"] == 128 + signal.SIGTERM
    assert found["before"]["processes"] == found["before"]["files"] == []
    assert found["after"] == found["before"]
    assert found["at the end"] == found["before"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--rate-scale 1/1000", "--rate-scale: 1/1000 is for the wall clock: allowed with the virtual clock is 1"),
        ("--clock wal", '--clock: "wal" is not known: allowed is virtual, wall (did you mean wall?)'),
        (
            "--clock wall --rate-scale 2/3",
            '--rate-scale: "2/3" is not a rate scale: allowed is 1/N, such as "1/1000", or 1',
        ),
        ("--clock wall --jobs 2", "--jobs: 2 is not allowed: on the wall clock points run one at a time"),
        (
            "--clock wall --rate-scale 1/900000 --chunk 1kB",
            "--rate-scale: a chunk of 1000 B at the rate scale 1/900000 is less than a byte",
        ),
    ],
)
def test_a_clock_or_a_scale_that_cannot_be_gets_one_sentence(arguments: str, sentence: str) -> None:
    assert run("--dry-run", *arguments.split(), status=2).stderr == f"{sentence}\n"


def test_the_resolved_scenario_keeps_clock_and_scale() -> None:
    overrides = [Override("run.clock", "wall", "--clock"), Override("run.rate_scale", "1/250", "--rate-scale")]
    text = resolved(load_scenario("paper", overrides))
    assert 'clock = "wall"\nrate_scale = "1/250"\n' in text


def test_a_ring_asks_for_the_sum_of_its_edges_rates() -> None:
    # Chunks of 1 MB in 1 ms and in 2 ms are 8 and 4 Gbit/s: the second collective asks for most, 16 Gbit/s.
    edges_s = np.array([[2e-3, 2e-3], [1e-3, 1e-3]])
    assert demand_bps(edges_s, chunk_bytes=10**6) == pytest.approx(16e9)


def test_half_of_what_is_carried_is_allowed() -> None:
    check(16e9, 3.2e9, RateScale(10))
    with pytest.raises(CannotRunError, match=r"sends up to 1\.6 Gbit/s at a time, .* carries 3\.19 Gbit/s, .* 1/20$"):
        check(16e9, 3.19e9, RateScale(10))
    assert [divisor(demand, 1.0) for demand in (0.5, 1, 1.1, 4.9, 5.1, 99, 501)] == [1, 1, 2, 5, 10, 100, 1000]


def test_a_process_that_was_kept_from_the_processor_knows_how_long() -> None:
    script = """
import sys
from hosts.monitor import TimerLatency
with TimerLatency() as watch:
    watch.worst_s()
    print("ready", flush=True)
    sys.stdin.readline()
    print(watch.worst_s())
"""
    command = [sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=PROJECT, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate("\n", timeout=30)
    assert 0.45 < float(out) < 30
